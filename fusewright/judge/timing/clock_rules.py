"""What three clocks said about each timed call -> what they cannot all be right about.

A neighbour can only add time to some calls; hidden work is in every call. So a contradiction is
certain only where the paired rounds show it as an interval, beyond what two eager processes show
of each other, and where the fastest calls have it as well. Everything else is a doubt: it refutes
nobody, and nobody is verified with it. No clock is read here, so tests can make up all sides.
"""

from __future__ import annotations

import statistics as plain
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from fusewright.judge.timing import statistics

Turns = Sequence[Sequence[float]]
TRANSPORT_SHARE = 0.25  # what moving the same bytes may differ between two processes
LIES_ABOVE = 0.25  # of eager's time: the parent's clock must find at most this much unexplained
LEAST_S = 200e-6  # below that nobody is accused
FAST = 0.1  # of the calls: those that nothing has disturbed
EVENLY = 0.6  # of what is hidden in the middle: work is much the same in all calls, delays are not
CROWDED = 1.5  # times as long: a device whose slower calls take so much more is not eager's alone
UNUSUAL = 2.0  # times as long as in the fastest turns, or as all threads together have worked
NOTICED_S = 100e-6  # shorter delays of a device are its own


@dataclass
class Clocks:
    """What was read about the timed calls of one side, turn by turn, in seconds."""

    claimed: list[list[float]] = field(default_factory=list)  # the worker's own host clock
    unexplained: list[list[float]] = field(default_factory=list)  # the parent's clock minus that
    device: list[list[float]] = field(default_factory=list)  # between two events
    cpu: list[list[float]] = field(default_factory=list)  # of all the worker's threads


@dataclass(frozen=True)
class Contradiction:
    rule: str
    text: str
    certain: bool  # only then can it refute


def weigh(
    mine: Clocks, eager: Clocks, again: Clocks, *, threads: int, device: str
) -> list[Contradiction]:
    """Everything that the candidate's clocks cannot all be right about."""
    crowded = device == "cuda" and is_crowded(chain(*eager.device, *again.device))
    found = []
    for rule in (*_EVERYWHERE, *(_ON_CUDA if device == "cuda" else ())):
        sides = [rule.beyond(side, threads) for side in (mine, eager, again)]
        if not rule.compared:  # what eager has less of than it may is nothing
            sides[1:] = [[[max(0.0, s) for s in turn] for turn in turns] for turns in sides[1:]]
        allowed = allowance(eager, again) if rule.compared else 0.0
        told = _beyond(sides, allowed, EVENLY if rule.compared else 0.0)
        if told is not None:
            what = rule.text.format(
                us=told[0] * 1e6,
                claimed=_middle(mine.claimed) * 1e6,
                events=_middle(mine.device) * 1e6,
                cpu=_middle(mine.cpu) * 1e6,
            )
            # Where eager contradicts itself as well, the machine's clocks do.
            trusted = rule.compared or max(map(_middle, sides[1:])) <= 0.0
            certain = told[2] and trusted and not crowded
            found.append(Contradiction(rule.name, f"{what}; {told[1]}", certain))
    return found


def allowance(eager: Clocks, again: Clocks) -> float:
    """What moving the same bytes may differ, whoever does it."""
    typical = _middle(eager.claimed)
    usual = _middle([*eager.unexplained, *again.unexplained])
    return max(LIES_ABOVE * typical, TRANSPORT_SHARE * usual, LEAST_S)


def excess(mine: Clocks, eager: Clocks, again: Clocks) -> float:
    """Seconds of a call that the parent sees beyond the claim, and beyond eager's in that round."""
    return plain.median(_paired(mine.unexplained, eager.unexplained, again.unexplained))


def is_crowded(device_s: Iterable[float]) -> bool:
    """Does the device serve others, too? Eager's calls take turns with theirs then."""
    calls = sorted(device_s)
    if not calls:
        return False
    slow, fast = calls[int((1 - FAST) * (len(calls) - 1))], calls[int(FAST * (len(calls) - 1))]
    return slow > CROWDED * fast + NOTICED_S


def far_from_usual(side: Clocks, device: str) -> str:
    """What tells that the calls of a baseline took much longer than they do otherwise; empty if
    nothing does. Then it waited for others, and what is compared with it is no result."""
    turns = sorted(map(_median, side.claimed))
    middle, fast = plain.median(turns), turns[int(FAST * (len(turns) - 1))]
    if middle > UNUSUAL * fast:
        return f"its calls took {middle * 1e6:.0f} us, those of its fastest turns {fast * 1e6:.0f}"
    worked = _middle(side.cpu)
    if device == "cpu" and middle > UNUSUAL * worked:
        return f"its calls took {middle * 1e6:.0f} us, {worked * 1e6:.0f} of them on a processor"
    return ""


def _beyond(
    sides: Sequence[Turns], allowed: float, evenly: float
) -> tuple[float, str, bool] | None:
    """How much is beyond what is allowed, the numbers, and whether that is certain."""
    mine, eager, again = sides
    pairs = _paired(mine, eager, again)
    middle = plain.median(pairs)
    if middle <= allowed:
        return None
    low, high = statistics.interval(pairs)
    null = [_median(a) - _median(b) for a, b in zip(again, eager, strict=True)]
    reach = max(map(abs, statistics.interval(null)))
    fast = _fast(mine) - _fast([*eager, *again])
    numbers = (
        f"95 % of {low * 1e6:.0f} to {high * 1e6:.0f} us over {len(pairs)} rounds, "
        f"{fast * 1e6:.0f} us in the fastest calls; {allowed * 1e6:.0f} us are allowed, "
        f"and eager differs from eager by up to {reach * 1e6:.0f} us"
    )
    return middle, numbers, low > allowed + reach and fast > max(allowed, evenly * middle)


def _paired(mine: Turns, eager: Turns, again: Turns) -> list[float]:
    rounds = zip(mine, eager, again, strict=True)
    return [_median(m) - (_median(e) + _median(a)) / 2 for m, e, a in rounds]


def _median(turn: Sequence[float]) -> float:
    return plain.median(turn)


def _middle(turns: Turns) -> float:
    return plain.median(chain.from_iterable(turns))


def _fast(turns: Turns) -> float:
    calls = sorted(chain.from_iterable(turns))
    return calls[int(FAST * (len(calls) - 1))]


@dataclass(frozen=True)
class _Rule:
    """`beyond`: seconds of each call, of which honest ones have none, or as many as eager's."""

    name: str
    text: str
    beyond: Callable[[Clocks, int], Turns]
    compared: bool = False


def _each(formula: Callable[[float, float, float, int], float]) -> Callable[[Clocks, int], Turns]:
    """Of claimed, device, CPU time and threads."""

    def beyond(clocks: Clocks, threads: int) -> Turns:
        turns = zip(clocks.claimed, clocks.device, clocks.cpu, strict=True)
        return [[formula(*call, threads) for call in zip(*turn, strict=True)] for turn in turns]

    return beyond


_EVERYWHERE = (
    _Rule("hidden", "{us:.0f} us of every call are hidden from its clock",
          lambda clocks, _: clocks.unexplained, compared=True),
    _Rule("processor", "{cpu:.0f} us of CPU time in {claimed:.0f} us",
          _each(lambda claimed, _, cpu, threads: cpu - 1.5 * max(1, threads) * claimed - 2e-3)),
)  # fmt: skip
_ON_CUDA = (
    _Rule("events too short", "events say {events:.0f} us, the host {claimed:.0f} us",
          _each(lambda claimed, events, *_: 0.5 * claimed - 50e-6 - events)),
    _Rule("events too long", "events say {events:.0f} us, the host {claimed:.0f} us",
          _each(lambda claimed, events, *_: events - 1.1 * claimed - 50e-6)),
)  # fmt: skip
