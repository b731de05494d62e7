"""What the progress line says: true while a plan is carried out, on fast and on slow machines."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fusewright.judge.judging import judge
from fusewright.judge.outlook import CALLS, ONCE, START, Outlook, Step, steps_of
from fusewright.judge.request import PHASES, Request
from tests.support.folders import CONTROLS, PROBLEMS

PLANNED = {"fresh": 6, "modes": 4, "determinism": 8, "soak": 48}
NAMED = [(phase.name, phase.experiments) for phase in PHASES if phase.name in
         ("first", "hazards", "states")]  # fmt: skip


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("few", [False, True], ids=["cheap", "costly"])
@pytest.mark.parametrize("speed", [0.4, 1.0, 2.5])
@pytest.mark.parametrize(("device", "start"), [("cpu", 1.0), ("cuda", 0.3), ("cuda", 1.6)])
def test_seconds_left_are_within_a_third_once_something_is_done(
    few: bool, speed: float, device: str, start: float
) -> None:
    """Every step takes what its paper says, times the machine's speed, times something random."""
    clock, draws = Clock(), random.Random(7)
    steps = steps_of(NAMED, PLANNED, 0.5, few=few, builds=True, device=device)
    speeds = {CALLS: speed, START: start, ONCE: 1.0}
    real = {s.name: s.seconds * speeds[s.kind] * draws.uniform(0.8, 1.25) for s in steps}
    outlook, told, done = Outlook(steps, 0.0, clock), [], 0.0
    enough = 0.2 * sum(step.seconds for step in steps if step.kind == CALLS)
    for step in steps:
        outlook.begin(step.name)
        for _ in range(max(int(step.messages), 1)):
            if done >= enough:
                told.append((clock.now, outlook.seconds_left(), outlook.share()))
            clock.now += real[step.name] / max(int(step.messages), 1)
            outlook.heard()
        done += step.seconds if step.kind == CALLS else 0.0
    outlook.begin("what is in no plan")
    assert outlook.seconds_left() == 0.0
    assert outlook.share() == 1.0
    whole = clock.now - 100.0
    wrong = [
        (at, left) for at, left, _ in told
        if abs(left - (clock.now - at)) > max(0.34 * (clock.now - at), 0.05 * whole)
    ]  # fmt: skip
    assert len(wrong) <= 0.05 * len(told), wrong
    assert all(abs(share - (at - 100.0) / whole) < 0.2 for at, _, share in told)


def test_a_step_that_is_in_no_plan_takes_nothing_from_it() -> None:
    clock = Clock()
    outlook = Outlook([Step("a", 2.0, 1.0), Step("b", 4.0, 1.0)], 1.0, clock)
    assert outlook.seconds_left() == pytest.approx(7.0)
    outlook.begin("sanitizer")
    clock.now += 50.0
    outlook.begin("a")
    assert outlook.seconds_left() == pytest.approx(7.0)
    clock.now += 2.0
    outlook.begin("b")
    assert outlook.seconds_left() == pytest.approx(5.0)


def test_a_moment_belongs_to_the_step_whose_turn_it_is() -> None:
    clock = Clock()
    outlook = Outlook([Step("a", 4.0, 2.0), Step("b", 4.0, 2.0), Step("c", 4.0, 2.0)], 0.0, clock)
    for lane, name in enumerate("ab"):
        outlook.turn(lane)
        outlook.begin(name)
    for lane, seconds in ((0, 2.0), (1, 2.0), (0, 2.0)):
        outlook.turn(lane)
        clock.now += seconds
        outlook.heard()
    assert outlook.seconds_left() == pytest.approx(6.0)  # half of b, and c
    outlook.turn(0)
    outlook.begin("c")
    assert outlook.seconds_left() == pytest.approx(6.0)
    assert outlook.share() == pytest.approx(0.5)


def test_every_experiment_of_the_plan_is_in_both_tables() -> None:
    asked = {
        name
        for phase in PHASES
        if phase.wanted(Request(Path("p"), Path("c"), device="cuda"))
        for name in phase.experiments
    }
    beside = {"no-default", "global-state"}  # they ask nothing, or one thing
    named = [(phase.name, phase.experiments) for phase in PHASES]
    for few in (False, True):
        steps = steps_of(named, PLANNED, 0.5, few=few, builds=False)
        assert asked - beside <= {step.name.split()[1] for step in steps}


class Told:
    """Takes what a progress line would show."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.moments: list[tuple[float, float]] = []

    def __call__(self, step: str) -> None:
        self.steps.append(step)

    def left(self, share: float, seconds: float) -> None:
        self.moments.append((share, seconds))


def test_a_judging_says_what_is_left_and_ends_with_nothing_left() -> None:
    told = Told()
    verdict = judge(
        PROBLEMS / "linear_relu.py", CONTROLS / "repacks_every_call.py", timing=False, progress=told
    )
    assert verdict.verdict == "verified"
    assert any("modes and repeated calls" in step for step in told.steps)
    shares, seconds = zip(*told.moments, strict=True)
    assert shares[0] < 0.7 < shares[-1] <= 1.0
    assert seconds[-1] < 0.5 * seconds[0]
