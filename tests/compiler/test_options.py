"""Options of the Python API: names and values are checked, and errors name the known ones."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fusewright.compiler.options import NO_ALGEBRA, Options
from fusewright.errors import BadUsage
from fusewright.rewrite import algebra_rules


def test_what_is_not_named_is_by_default() -> None:
    assert Options.of(None) == Options.of({}) == Options()
    assert Options.of({"target": None}) == Options()


def test_every_option() -> None:
    found = Options.of(
        {"target": "cpu", "precision": "ieee", "mode": "eval", "rules": ["no-prepack"]}
    )
    assert found == Options("cpu", "ieee", "eval", frozenset({"no-prepack"}))
    assert Options.of({"target": "cuda"}).target == "cuda"


def test_one_dimension_or_several() -> None:
    found = Options.of({"dynamic_shapes": {"x": (1,), "mask": 0}}).dynamic_shapes
    assert dict(found) == {"x": (1,), "mask": (0,)}


@pytest.mark.parametrize(
    "rules", ["no-library, no-algebra", ["no-algebra", "no-library"], {"no-library", "no-algebra"}]
)
def test_rules_in_any_collection(rules: object) -> None:
    assert Options.of({"rules": rules}).rules == {"no-library", "no-algebra"}
    assert Options.of({"rules": ""}).rules == frozenset()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"taget": "cpu"}, r"there is no 'taget'; choose among target, precision, mode, rules"),
        ({"target": "gpu"}, r"Unknown target 'gpu': choose one of cpu, .*cuda"),
        ({"target": 90}, "target is text, not 90"),
        ({"precision": "tf32"}, "precision 'tf32' is none of eager, ieee"),
        ({"mode": "training"}, "mode 'training' is none of both, train, eval"),
        ({"mode": ["train"]}, r"mode \['train'\] is none of both, train, eval"),
        ({"rules": "no-libary"}, "rule 'no-libary' is none of no-library, .*no-algebra"),
        ({"dynamic_shapes": {"x": "1"}}, "names of arguments and their dimensions"),
        ({"dynamic_shapes": ("x", 1)}, "names of arguments and their dimensions"),
        ({"rules": None}, "rules are names in a list or a set, not None"),
    ],
)
def test_what_cannot_be_meant(given: dict[str, object], words: str) -> None:
    with pytest.raises(BadUsage, match=words):
        Options.of(given)


def test_the_restriction_of_algebra_is_the_one_that_rules_know() -> None:
    assert NO_ALGEBRA == algebra_rules.NO_ALGEBRA


def test_to_read_options_takes_no_torch() -> None:
    code = "import sys, fusewright.compiler.options; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
