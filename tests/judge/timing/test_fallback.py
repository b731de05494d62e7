"""What a candidate says of its calls is told beside its times, and decides nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fusewright.judge.judging import judge
from fusewright.judge.timing.fallback import UNKNOWN, fallback
from tests.support.folders import PROBLEMS

STATUS = {"kernels": 8, "reference_forward": 3, "because": {"dtype of x": 1, "batch": 2}}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", (-1, UNKNOWN)),
        ("no JSON", (-1, UNKNOWN)),
        ("[3]", (-1, UNKNOWN)),
        ('{"kernels": null, "because": {}}', (-1, UNKNOWN)),
        ('{"kernels": 3, "because": [1]}', (-1, UNKNOWN)),
        (json.dumps(STATUS | {"because": {}}), (0, "none: all 8 calls ran kernels")),
        (
            json.dumps(STATUS),
            (3, "3 of 11 calls ran the original forward: batch (2); dtype of x (1)"),
        ),
        (
            json.dumps({"First": STATUS, "Second": STATUS}),
            (6, "6 of 22 calls ran the original forward: batch (4); dtype of x (2)"),
        ),
        (
            json.dumps({"kernels": 0, "because": {"long " * 100: 1}}),
            (1, f"1 of 1 calls ran the original forward: {('long ' * 40)} (1)"),
        ),
    ],
)
def test_a_status_in_a_sentence(text: str, wanted: tuple[int, str]) -> None:
    assert fallback([text]) == wanted


def test_the_calls_of_all_processes() -> None:
    none = json.dumps(STATUS | {"because": {}})
    assert fallback([none, none]) == (0, "none: all 16 calls ran kernels")
    refused, said = fallback([none, json.dumps(STATUS)])
    assert (refused, said.partition(":")[0]) == (3, "3 of 19 calls ran the original forward")
    assert fallback([none, ""]) == (-1, UNKNOWN)
    assert fallback([]) == (-1, UNKNOWN)


@pytest.mark.judged
@pytest.mark.parametrize(
    ("body", "told", "noted"),
    [
        (f"return {STATUS}", r"(9 of 33|12 of 44|15 of 55) calls ran the original forward", True),
        ("raise RuntimeError('no')", re.escape(UNKNOWN), False),
    ],
)
def test_it_stands_beside_the_times(body: str, told: str, noted: bool, tmp_path: Path) -> None:
    problem, candidate = tmp_path / "problem.py", tmp_path / "candidate.py"
    source = (PROBLEMS / "moving_average.py").read_text()
    problem.write_text(source)
    status = f"\n    @staticmethod\n    def fusewright_status():\n        {body}\n"
    source = source.replace("class Model(nn.Module):\n", f"class ModelNew(nn.Module):{status}")
    assert status in source
    candidate.write_text(source)
    verdict = judge(problem, candidate, against=("eager",), budget_s=3.0)
    assert verdict.verdict == "verified", verdict.reason
    assert re.match(told, verdict.timing["fallback"])  # type: ignore[index]
    assert ("fallback" in {finding.check for finding in verdict.findings}) is noted
