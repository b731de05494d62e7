"""Clocks that lie are found by the parent's clock; honest ones are believed, and noise is noise."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fusewright.errors import NotVerifiable
from fusewright.judge.evidence.oracle import Oracle
from fusewright.judge.isolation.protocol import Record
from fusewright.judge.isolation.sandbox import Plan
from fusewright.judge.isolation.worker_pool import Site
from fusewright.judge.judging import judge
from fusewright.judge.request import Limits
from fusewright.judge.session import Session
from fusewright.judge.timing.bench import FEWEST_PROCESSES, PROCESSES
from fusewright.judge.timing.sides import (
    AGAIN,
    CANDIDATE,
    COMPILED,
    EAGER,
    FEWEST_ROUNDS,
    LostSide,
    Round,
    Rounds,
    Side,
    start,
    take_turn,
    timed,
)
from fusewright.judge.workers import Short
from tests.support.folders import PROBLEMS

CASES = [f"case {n}" for n in range(9)]


@pytest.mark.parametrize(("warm", "calls"), [(2, 5), (1, 1), (0, 1)])
@pytest.mark.parametrize("moves", [True, False])
def test_what_is_not_counted_comes_anywhere(warm: int, calls: int, moves: bool) -> None:
    places, changes, seen = set(), set(), set()
    for _ in range(200):
        drawn = Rounds(CASES, moves=moves)
        rounds = [drawn.draw(number, warm, calls, first=not number) for number in range(30)]
        assert rounds[0].messages() == Round(0, warm, calls).messages()
        assert [what.counts for what in rounds] == [False] + [True] * 29
        for what in rounds:
            counted = [call for _, call, _ in what.messages() if call >= 0]
            assert counted == list(range(calls)), "what counts is never more, and in order"
            places |= {n for n, m in enumerate(what.messages()) if m[0] == "between"}
        moved = [what.moved for what in rounds]
        assert moved == sorted(moved)
        assert any(moved) == moves
        if moves:
            first = rounds[moved.index(True)]
            assert first.messages()[0][0] == "between", "no timed call follows a change at once"
            changes.add(first.number)
        asked = [case for what in rounds for _, _, case in what.messages() if case]
        assert sorted(asked) == CASES, "each case once"
        seen.add(tuple(asked))
    assert places == set(range(warm + calls + 1))
    assert changes == (set(range(1, FEWEST_ROUNDS)) if moves else set())
    assert len(seen) > 100


def test_new_processes_begin_with_a_round_that_does_not_count() -> None:
    """With the parameters of the rounds before it: no call that counts follows the change."""
    for _ in range(50):
        drawn = Rounds(CASES, moves=True)
        before = [drawn.draw(n, 0, 1, first=not n) for n in range(FEWEST_ROUNDS)]
        what = drawn.draw(len(before), 0, 1, first=True)
        assert what.moved
        assert not what.counts
        assert what.messages() == Round(len(before), 0, 1).messages()


def test_turns_of_each_process() -> None:
    side = Side(EAGER, cast("Any", None), 0)
    for number in range(5):
        side.clocks.claimed.append([float(number)])
        if number == 2:
            side.begins.append(3)
    assert side.processes == [[[0.0], [1.0], [2.0]], [[3.0], [4.0]]]


def test_a_right_candidate_is_timed_in_turns_with_eager(tmp_path: Path) -> None:
    """Of a model whose answers depend on earlier calls, and whose input has gaps."""
    problem, candidate = tmp_path / "problem.py", tmp_path / "candidate.py"
    source = (PROBLEMS / "moving_average.py").read_text()
    source = source.replace("torch.randn(rows, width)", "torch.randn(rows, 2 * width)[:, ::2]")
    problem.write_text(source)
    candidate.write_text(source.replace("class Model(", "class ModelNew("))
    verdict = judge(problem, candidate, against=("eager",), budget_s=6.0)
    assert verdict.verdict == "verified", verdict.reason
    assert verdict.timing is not None
    assert set(verdict.timing["sides"]) == {"candidate", "eager", "eager again"}  # type: ignore[call-overload]
    ratio = verdict.timing["ratios"]["eager"]  # type: ignore[index]
    assert ratio["low"] <= ratio["median"] <= ratio["high"]
    assert ratio["claim"] in ("faster", "slower", "no difference shown")
    assert ratio["pairs"] >= FEWEST_ROUNDS
    assert FEWEST_PROCESSES <= ratio["processes"] <= PROCESSES["cpu"]
    passed = {row.check for row in verdict.checks if row.outcome == "pass"}
    assert {"timing-clocks", "timing-outputs", "timing-floor"} <= passed


@pytest.mark.parametrize(
    ("name", "text", "loss"),
    [
        (CANDIDATE, "refusal: torch.OutOfMemoryError: CUDA out of memory", Short),
        (CANDIDATE, "refusal: MemoryError: no", Short),
        (CANDIDATE, "refusal: ValueError: no", LostSide),
        (EAGER, "refusal: torch.OutOfMemoryError: CUDA out of memory", NotVerifiable),
        (EAGER, "refusal: ValueError: no", NotVerifiable),
    ],
)
def test_only_the_candidates_own_faults_refute_it(
    name: str, text: str, loss: type[Exception]
) -> None:
    record = Record("raised", (), text, (1, 0, 0))
    fake = SimpleNamespace(
        post=lambda *_: None, collect=lambda *_: record, request=SimpleNamespace(limits=Limits())
    )
    with pytest.raises(loss) as told:
        timed(cast("Session", fake), Side(name, cast("Any", None), 0), {"do": "call"})
    assert type(told.value) is loss


@pytest.mark.parametrize("compares", [True, False])
@pytest.mark.parametrize("name", [CANDIDATE, EAGER])
def test_every_side_is_compared_between_its_calls(name: str, compares: bool) -> None:
    """Else a candidate's next call would find cores and caches as the comparison has left them, and
    eager's as its own last call has. What a baseline's shows decides nothing, and is not kept."""
    asked: list[dict[str, Any]] = []

    def ask(**message: Any) -> dict[str, Any]:
        asked.append(message)
        if message["do"] == "ship":
            return {"steps": [{"do": "call"}]}
        return {"rows": [("timing-outputs", "fail", "it is wrong")]}

    record = Record("done", (), "", (1000, 0, 1000))
    fake = SimpleNamespace(
        ask_reference=ask, post=lambda *_: None, collect=lambda *_: record,
        request=SimpleNamespace(limits=Limits(), ignored=()),
    )  # fmt: skip
    side = Side(name, cast("Any", None), 0)
    with pytest.raises(LostSide) if name == CANDIDATE else nullcontext():
        take_turn(cast("Session", fake), side, Round(1, 1, 2), compares=compares)
    checks = [message["counts"] for message in asked if message["do"] == "check"]
    assert checks == ([True] if name == CANDIDATE else [False] * 3 * compares)
    assert len(side.turns) == (name == EAGER)


def test_no_candidate_sees_what_torch_compile_has_made(tmp_path: Path) -> None:
    """It could make the baseline slower, or wrong, for the processes that come later."""
    begun: dict[str, Plan] = {}
    plan = Plan(0, writable=(str(tmp_path / "build"),))
    site = Site(tmp_path, plan, "cpu", tmp_path / "build")
    fake = SimpleNamespace(
        site=site, request=SimpleNamespace(problem="problem.py"),
        start_candidate=lambda name, slot, *, plan, **_: begun.update({name: plan}),
    )  # fmt: skip
    start(cast("Session", fake), (CANDIDATE, EAGER, AGAIN, COMPILED), range(4))
    made = str(site.compiled())
    assert begun["torch.compile"].writable == (made,)
    others = [own for name, own in begun.items() if name != "torch.compile"]
    assert len(others) == 3
    assert not any(made in (*own.writable, *own.readable) for own in others)
    assert begun["candidate"] == plan


def test_what_baselines_show_is_not_reported() -> None:
    order = {"device": "cpu", "accuracy": "contract", "seed": "1f" * 16, "overrides": {}}
    lab = Oracle({**order, "problem": str(PROBLEMS / "linear_relu.py")})
    lab.accuracy_numbers["rms_candidate"], lab.calls_compared = 1.0, 3
    lab.output_numbers[0]["rms_candidate"] = 1.0
    with lab.unrecorded():
        lab.accuracy_numbers["rms_candidate"], lab.calls_compared = 9.0, 4
        lab.output_numbers[0]["rms_candidate"] = lab.output_numbers[1]["rms_candidate"] = 9.0
    assert lab.accuracy_numbers == lab.output_numbers[0] == {"rms_candidate": 1.0}
    assert lab.calls_compared == 3
    assert [*lab.output_numbers] == [0]
