"""What a judging has cost is counted right, and does not creep up."""

from __future__ import annotations

import pytest

from fusewright.judge import judging
from fusewright.judge.costs import WAITED, Costs
from fusewright.judge.counts import Counts
from fusewright.judge.findings import Verdict
from fusewright.judge.request import Request
from tests.support.folders import CONTROLS, PROBLEMS

# Of a small problem, every count at its cap: 10 % more than one judging with this seed took.
MOST = {
    "calls": 168,
    "eager runs": 315,
    "float64 runs": 206,
    "bytes sent": 24_000_000,
    "bytes returned": 16_700_000,
}
# The same of one whose calls are costly on paper: most have three rows of 4,096, which are 1 MB.
# The candidate's bits are eager's on every processor: float64 is asked as rarely as it can be.
COSTLY = Counts("cpu", 60.0, 30.0, 1.0, 30.0, 60.0, few=3)
MOST_OF_COSTLY = {
    "calls": 182,
    "eager runs": 330,
    "float64 runs": 188,
    "bytes sent": 49_200_000,
    "bytes returned": 43_300_000,
}


def test_every_moment_belongs_to_one_phase() -> None:
    now = iter([0.0, 1.0, 3.0, 6.0, 10.0, 15.0])
    costs = Costs(lambda: next(now))
    for phase in ("opening", "first", "", "first"):
        costs.enter(phase)
    assert costs.written(0.5)["seconds"] == {"opening": 2.0, "first": 8.0, WAITED: 0.5}


def test_bytes_and_calls_are_added_up() -> None:
    costs = Costs()
    block = {"blocks": [{"nbytes": 5}, {"nbytes": 7}]}
    costs.posted({"do": "call", "arguments": block, "cotangents": {"blocks": [{"nbytes": 1}]}})
    costs.posted({"do": "load", "arguments": block, "cotangents": None})
    costs.posted({"do": "leave"})
    costs.took([3, 4])
    costs.ran({"eager runs": 2})
    costs.ran({"eager runs": 1, "float64 runs": 9})
    for name, peak in (("first", 10), ("first", 8), ("hazards", 20)):
        costs.ended(name, peak)
    assert costs.written(0.0) == {
        "seconds": {WAITED: 0.0},
        "calls": 1,
        "eager runs": 3,
        "float64 runs": 9,
        "bytes sent": 25,
        "bytes returned": 7,
        "peak bytes": {"hazards": 20, "first": 10},
    }


@pytest.fixture(scope="module")
def verdict() -> Verdict:
    request = Request(
        PROBLEMS / "linear_relu.py", CONTROLS / "repacks_every_call.py",
        timing=False, seed="5a" * 16,
    )  # fmt: skip
    return judging.judge_request(request, lambda _: None)


@pytest.mark.parametrize("what", MOST)
def test_a_small_problem_costs_no_more_than_it_did(what: str, verdict: Verdict) -> None:
    found = verdict.costs[what]
    assert isinstance(found, int)
    assert 0.5 * MOST[what] < found <= MOST[what]


@pytest.fixture(scope="module")
def costly() -> Verdict:
    request = Request(
        PROBLEMS / "linear_relu.py", CONTROLS / "suspicious_words.py",
        timing=False, seed="5a" * 16, overrides={"rows": "4096"}, counts=COSTLY.written(),
    )  # fmt: skip
    return judging.judge_request(request, lambda _: None)


@pytest.mark.parametrize("what", MOST_OF_COSTLY)
def test_a_costly_problem_costs_no_more_than_it_did(what: str, costly: Verdict) -> None:
    found = costly.costs[what]
    assert isinstance(found, int)
    assert 0.5 * MOST_OF_COSTLY[what] < found <= MOST_OF_COSTLY[what]


def test_a_report_has_all_phases_and_processes(verdict: Verdict) -> None:
    seconds, peaks = verdict.costs["seconds"], verdict.costs["peak bytes"]
    assert isinstance(seconds, dict)
    assert isinstance(peaks, dict)
    phases = {"opening the problem", "examining the problem", "self-test"}
    asked = {name for name in seconds if "first" in name or "hazards" in name or "states" in name}
    assert sorted(", ".join(asked).split(", ")) == ["first", "hazards", "states"]
    assert phases | asked | {"starting", "ending", WAITED} == set(seconds)
    whole = verdict.environment["seconds"]
    assert isinstance(whole, float)
    assert sum(s for name, s in seconds.items() if name != WAITED) == pytest.approx(whole, abs=1.0)
    assert {"trusted worker", "canary", "first", "hazards", "states"} == set(peaks)
    assert all(peak > 0 for peak in peaks.values())
