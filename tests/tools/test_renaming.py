"""What is a one-to-one renaming of a generated text, and what is more than that."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from tests.support.scripts import load_script
from tests.tools.test_replay import replay  # noqa: F401  # a fixture

KERNEL = """\
#include <cmath>
#define FN inline
// Adds what the part has.
FN float add(float part, float step) { return part + step * 2.0f; }
"""
FILE = '''\
# A header.
import torch

_SOURCE = r"""
struct fused_0 { float part; };
"""


def forward(x):
    """Runs `fused_0`."""
    run["fused_0"](x, "float16")
    if x:
        return x
    return None
'''


@pytest.fixture(scope="module")
def renaming() -> ModuleType:
    return load_script("tools/renaming.py")


def whole(found: Any) -> dict[str, str]:
    """What became what, where that is one-to-one in the whole text."""
    assert found.whole
    return dict(found.pairs)


def test_a_renaming_is_shown(renaming: ModuleType) -> None:
    new = KERNEL.replace("part", "term").replace("add", "fma").replace("Adds", "Joins")
    new = new.replace(", float step", ",\n             float step")
    assert whole(renaming.renaming(KERNEL, new, "c++")) == {"part": "term", "add": "fma"}


def test_an_equal_text_needs_none(renaming: ModuleType) -> None:
    assert whole(renaming.renaming(KERNEL, KERNEL, "c++")) == {}


def test_two_names_may_change_places(renaming: ModuleType) -> None:
    new = KERNEL.replace("part", "p").replace("step", "part").replace("p ", "step ")
    new = new.replace("p,", "step,")
    assert whole(renaming.renaming(KERNEL, new, "c++")) == {"part": "step", "step": "part"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2.0f", "3.0f"),
        ("part + step", "part - step"),
        ("inline", "static"),
        ("return part", "return (part)"),
        ("<cmath>", "<cstdlib>"),
        ("inline\n// Adds what the part has.\n", "inline "),
        ("float step", "double step"),
        ("return", "result"),
        ("; }", "; } ;"),
    ],
)
def test_anything_else_is_refused(renaming: ModuleType, old: str, new: str) -> None:
    assert KERNEL.count(old)
    with pytest.raises(renaming.NotRenamed, match="became"):
        renaming.renaming(KERNEL, KERNEL.replace(old, new, 1), "c++")


def test_two_names_do_not_become_one(renaming: ModuleType) -> None:
    with pytest.raises(renaming.NotRenamed, match="part and step became part"):
        renaming.renaming(KERNEL, KERNEL.replace("step", "part"), "c++")


def test_one_name_does_not_become_two(renaming: ModuleType) -> None:
    new = KERNEL.replace("float part", "float term").replace("return part", "return other")
    with pytest.raises(renaming.NotRenamed, match="part became term and other"):
        renaming.renaming(KERNEL, new, "c++")


def test_a_word_of_two_meanings_becomes_two_in_two_definitions(renaming: ModuleType) -> None:
    """What is defined at the left margin is one name everywhere."""
    old = "int f(int part) { return part; }\nint g(int part) { return part + f(1); }\n"
    new = "int f(int term) { return term; }\nint g(int piece) { return piece + f(1); }\n"
    found = renaming.renaming(old, new, "c++")
    assert (found.whole, found.pairs) == (False, {("part", "term"), ("part", "piece")})
    with pytest.raises(renaming.NotRenamed, match="g and f became f"):
        renaming.renaming(old, new.replace("int g(", "int f("), "c++")


def test_a_name_is_not_captured(renaming: ModuleType) -> None:
    """A new name that another thing of the text has already, which stays."""
    old = "int scale;\nint f(int x) { return x * scale; }"
    with pytest.raises(renaming.NotRenamed, match="scale"):
        renaming.renaming(old, old.replace("x", "scale"), "c++")


def test_names_in_strings_follow_those_of_the_code(renaming: ModuleType) -> None:
    new = FILE.replace("fused_0", "fc1_relu").replace("header", "heading")
    assert whole(renaming.renaming(FILE, new, "python")) == {"fused_0": "fc1_relu"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"float16"', '"bfloat16"'),
        ('run["fused_0"]', 'run["fc1_relu"]'),
        ("    return None", "        return None"),
        ("None", "True"),
    ],
)
def test_an_emitted_file_that_says_something_else(renaming: ModuleType, old: str, new: str) -> None:
    with pytest.raises(renaming.NotRenamed, match="became"):
        renaming.renaming(FILE, FILE.replace(old, new), "python")


def test_a_line_may_be_broken_elsewhere(renaming: ModuleType) -> None:
    new = FILE.replace('(x, "float16")', '(\n        x,\n        "float16",\n    )')
    assert whole(renaming.renaming(FILE, new, "python")) == {}
    assert renaming.shape(FILE, "python") == renaming.shape(new, "python")


def test_a_tuple_of_one_is_no_broken_line(renaming: ModuleType) -> None:
    with pytest.raises(renaming.NotRenamed):
        renaming.renaming("a = (b,)\n", "a = (b)\n", "python")


def test_words_of_a_record_are_names(renaming: ModuleType) -> None:
    old = "1 fused kernel\n  fused_0  add -> [4, 8]; 21 MB"
    assert whole(renaming.renaming(old, old.replace("fused_0", "fc1"), "prose")) == {
        "fused_0": "fc1"
    }
    with pytest.raises(renaming.NotRenamed):
        renaming.renaming(old, old.replace("21", "22"), "prose")


def test_texts_of_a_record_are_compared_so(replay: ModuleType) -> None:  # noqa: F811
    """Keys with the names of kernels are found again by what their texts are."""
    old, new = replay.Record(), replay.Record()
    text = "struct part { int k; };"
    old.add({"zoo/a/cpu/fused_0/0": [text], "zoo/a/cpu/fused_0/1": ["int x = 1;"]})
    new.add({"zoo/a/cpu/fc1/0": [text.replace("part", "term")], "zoo/a/cpu/fc1/1": ["int x = 2;"]})
    found = dict(replay.renamed(old, new))
    assert whole(found.pop("zoo/a/cpu/fused_0/0")) == {"part": "term"}
    assert found == {
        "zoo/a/cpu/fused_0/1": "is missing",
        "zoo/a/cpu/fc1/1": "is new",
    }
