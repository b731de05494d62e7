"""Clocks on made-up sides: hidden time refutes each time, neighbours never, whatever they do."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fusewright.judge.findings import Ledger
from fusewright.judge.session import Session
from fusewright.judge.timing import bench, clock_rules, statistics
from fusewright.judge.timing.bench import Unclear
from fusewright.judge.timing.sides import AGAIN, CANDIDATE, EAGER, Side

ROUNDS, CALLS = 30, 5
TRANSPORT_S = 1e-3
Delay = Callable[[random.Random, str, int], float]  # of a call of a side in a round


def side(
    name: str, claimed: float, draw: random.Random, *, hidden: float = 0.0, cpu: float = 1.0,
    events: float = 1.0, delay: Delay = lambda *_: 0.0, rounds: int = ROUNDS, calls: int = CALLS,
) -> Side:  # fmt: skip
    """A worker whose calls take `claimed` seconds by its own clock and hide some more."""
    made = Side(name, cast("Any", None), 0)
    for number in range(rounds):
        times = [claimed * draw.uniform(0.95, 1.05) for _ in range(calls)]
        made.clocks.claimed.append(times)
        made.clocks.unexplained.append(
            [TRANSPORT_S + hidden + draw.gauss(0, 3e-5) + delay(draw, name, number) for _ in times]
        )
        made.clocks.cpu.append([t * cpu for t in times])
        made.clocks.device.append([t * events for t in times])
    return made


def outcome(
    mine: Side, eager: Side, again: Side, device: str = "cpu", before: Unclear | None = None
) -> str:
    """`fail`, `pass` or `unclear`, as the judge would have it after one bench."""
    ledger = Ledger(("timing",))
    request = SimpleNamespace(device=device, ignored=())
    fake = SimpleNamespace(ledger=ledger, lab={"threads": 2}, request=request)
    try:
        bench._check_clocks(cast("Session", fake), mine, eager, again, before)
    except Unclear:
        return "unclear"
    return "fail" if ledger.failed("timing-clocks") else "pass"


def timed(
    seed: int, claimed: float = 8e-4, *, device: str = "cpu", delay: Delay = lambda *_: 0.0,
    rounds: int = ROUNDS, calls: int = CALLS, eager: Mapping[str, float] = {}, **own: float,
) -> str:  # fmt: skip
    """The outcome of a whole judging: timed again by other processes where it was unclear."""
    draw, before = random.Random(seed), None
    for _ in range(2):
        shape: dict[str, Any] = {"delay": delay, "rounds": rounds, "calls": calls}
        twins = [side(n, 8e-4, draw, **shape, **eager) for n in (EAGER, AGAIN)]
        mine = side(CANDIDATE, claimed, draw, **shape, **own)
        told = outcome(mine, twins[0], twins[1], device, before)
        if told != "unclear":
            return told
        before = Unclear("", ("hidden", "processor", "events too short", "events too long"))
    return "unclear"


NEIGHBOURS: Mapping[str, Delay] = {
    "a core is taken now and then": lambda d, *_: 10e-3 if d.random() < 0.1 else 0.0,
    "every core is always busy": lambda d, *_: d.expovariate(1 / 4e-3),
    "waits of a time slice, or none": lambda d, *_: d.choice([0.0, 4e-3]),
    "one worker is frozen for 10 ms": lambda _, name, number: (
        10e-3 if name == CANDIDATE and number % 7 == 0 else 0.0
    ),
    "one worker is held up in most of its rounds": lambda d, name, _: (
        d.uniform(0.0, 2e-3) if name == CANDIDATE and d.random() < 0.8 else 0.0
    ),
    "half of the time everything is slow": lambda _, name, number: (number < 15) * 5e-3,
    "one of the two eager processes is slower": lambda d, name, _: {
        EAGER: 0.0,
        AGAIN: 1e-3,
        CANDIDATE: 0.9e-3,
    }[name],
}


@pytest.mark.parametrize("kind", NEIGHBOURS)
@pytest.mark.parametrize("rounds", [ROUNDS, 6])
def test_neighbours_never_refute(kind: str, rounds: int) -> None:
    calls = CALLS if rounds == ROUNDS else 1
    told = [timed(s, delay=NEIGHBOURS[kind], rounds=rounds, calls=calls) for s in range(40)]
    assert "fail" not in told


@pytest.mark.parametrize("hidden", [3e-4, 1e-3, 5e-3])
def test_hidden_time_above_the_allowance_refutes_each_time(hidden: float) -> None:
    assert {timed(s, claimed=8e-4 - min(hidden, 7e-4), hidden=hidden) for s in range(40)} == {
        "fail" if hidden > TRANSPORT_S * clock_rules.TRANSPORT_SHARE else "pass"
    }


@pytest.mark.parametrize("kind", ["a core is taken now and then", "every core is always busy"])
def test_load_never_buys_a_pass_for_hidden_time(kind: str) -> None:
    assert "pass" not in {timed(s, hidden=6e-3, delay=NEIGHBOURS[kind]) for s in range(40)}


@pytest.mark.parametrize("claimed", [4e-3, 1e-3, 2e-4, 1e-5])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_honest_clocks_pass_whatever_the_speed(claimed: float, device: str) -> None:
    assert {timed(seed, claimed, device=device) for seed in range(20)} == {"pass"}


def test_what_was_not_there_before_does_not_refute() -> None:
    draw = random.Random(1)
    sides = [side(CANDIDATE, 4e-4, draw, hidden=1e-3)]
    sides += [side(name, 8e-4, draw) for name in (EAGER, AGAIN)]
    assert outcome(*sides) == "unclear", "once is not twice"
    assert outcome(*sides, before=Unclear("", ("events too long",))) == "unclear"
    assert outcome(*sides, before=Unclear("", ("hidden",))) == "fail"


def test_clocks_of_the_processor_and_of_the_device() -> None:
    assert timed(1, 1e-3, cpu=20.0) == "fail"
    assert timed(2, 4e-3, device="cuda", events=0.01) == "fail"
    assert timed(3, 4e-3, device="cuda", events=2.0) == "fail"
    assert timed(4, 4e-3, device="cuda", events=2.0, eager={"events": 2.5}) == "unclear"


def test_processor_time_refutes_though_it_varies() -> None:
    """A neighbour adds none to it; what the fastest calls have too much is too much."""
    draw = random.Random(2)
    sides = [side(CANDIDATE, 6e-5, draw)]
    sides += [side(name, 8e-4, draw) for name in (EAGER, AGAIN)]
    sides[0].clocks.cpu = [[draw.choice([5e-3, 11e-3, 12e-3]) for _ in r] for r in sides[0].turns]
    assert outcome(*sides, before=Unclear("", ("processor",))) == "fail"


def test_a_device_that_serves_others_refutes_nobody() -> None:
    """Its events wait for theirs; whose time that is, nobody can tell."""
    draw = random.Random(3)
    sides = [side(CANDIDATE, 4e-4, draw, hidden=1e-3)]
    sides += [side(name, 8e-4, draw) for name in (EAGER, AGAIN)]
    for twin in sides[1:]:
        twin.clocks.device = [[t + draw.choice([0, 2e-3]) for t in r] for r in twin.clocks.device]
    assert outcome(*sides, device="cuda", before=Unclear("", ("hidden",))) == "unclear"


@pytest.mark.parametrize(
    ("turns", "cpu", "device", "told"),
    [
        ([1e-3] * 20, 1.0, "cpu", ""),
        ([1e-3] * 20, 4.0, "cpu", ""),
        ([1e-3] * 5 + [1.8e-3] * 15, 1.0, "cpu", ""),
        ([1e-3] * 5 + [9e-3] * 15, 1.0, "cpu", "took 9000 us, those of its fastest turns 1000"),
        ([1e-3] * 5 + [9e-3] * 15, 1.0, "cuda", "took 9000 us, those of its fastest turns 1000"),
        ([9e-3] * 20, 0.03, "cpu", "took 9000 us, 270 of them on a processor"),
        ([9e-3] * 20, 0.03, "cuda", ""),  # there the host waits
    ],
)
def test_a_baseline_far_from_its_usual_time(
    turns: list[float], cpu: float, device: str, told: str
) -> None:
    """Where it waited for others most of the time, too: the machine was as busy all along."""
    made = Side(EAGER, cast("Any", None), 0)
    made.clocks.claimed = [[t] for t in turns]
    made.clocks.cpu = [[t * cpu] for t in turns]
    found = clock_rules.far_from_usual(made.clocks, device)
    assert told in found
    assert bool(told) == bool(found)


@pytest.mark.parametrize(
    ("times", "busy", "kept"), [(150, True, False), (150, False, True), (50, True, True)]
)
def test_a_ratio_beyond_belief_is_no_result_on_a_busy_machine(
    times: float, busy: bool, kept: bool
) -> None:
    eager = Side(EAGER, cast("Any", None), 0)
    eager.clocks.claimed = [[1e-3]] * 3 + [[3e-3 if busy else 1e-3]] * 17
    eager.clocks.cpu = eager.clocks.claimed
    fake = cast("Session", SimpleNamespace(request=SimpleNamespace(device="cpu")))
    why = bench._doubt(statistics.Ratio(times, times, times, 20, 5), eager, fake)
    assert bool(why) != kept
    assert kept or why.startswith("150 times is no result, as the machine was busy")
