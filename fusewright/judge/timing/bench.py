"""Workers that take turns -> how fast each is, how sure that is, and whether its clock can be true.

All sides run the same program: the candidate, eager, eager once more (what this machine cannot
tell apart), and torch.compile. A round is one turn of each in random order on the same fresh
inputs; the next input exists only when the last answer is in; every output of the candidate is
compared like any other. After its share of the time every side goes on in a new process.
"""

from __future__ import annotations

import math
import random
import statistics as plain
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from fusewright.common.timing_lock import Turn
from fusewright.errors import NotVerifiable
from fusewright.judge.timing import clock_rules, statistics
from fusewright.judge.timing.fallback import fallback
from fusewright.judge.timing.sides import (
    AGAIN,
    CANDIDATE,
    COMPILED,
    EAGER,
    ENVIRONMENT,
    FEWEST_ROUNDS,
    LostSide,
    Rounds,
    Side,
    begin_again,
    participants,
    prepare,
    ready,
    start,
    take_turn,
    timed,
)

if TYPE_CHECKING:
    from fusewright.judge.session import Session

FLOOR = "floor"
# Untimed and timed calls of a turn, by the seconds that one takes with everything around it: where
# the turns of a long problem are few, more rounds are worth more than more calls in a row. On a
# processor a long call needs none before it: caches are flushed, and threads wake in microseconds.
CALLS_BY_SECONDS: Mapping[str, Sequence[tuple[float, tuple[int, int]]]] = {
    "cpu": ((0.03, (2, 5)), (0.06, (2, 3)), (0.12, (1, 1)), (float("inf"), (0, 1))),
    "cuda": ((0.03, (2, 5)), (0.06, (2, 3)), (float("inf"), (1, 1))),
}
# Of each side, one after the other; fewer where the time is over. Three are the fewest of which an
# interval says something: with two, Student's is six times as wide as what they show. On a GPU each
# takes seconds to start.
PROCESSES: Mapping[str, int] = {"cpu": 5, "cuda": 3}
FEWEST_PROCESSES = 3
MIN_ROUNDS = 6  # of a process
PATIENCE = 20  # shares of the time, for the fewest rounds
FEWEST_OF_PROCESS = FEWEST_ROUNDS // FEWEST_PROCESSES  # where the time is over
# Comparisons that take longer are made of candidates only: beside a call of such a size it makes no
# difference what the caches hold when it begins.
EVEN_S = 0.02
LOOKS, LOOK_AGAIN_S = 3, 1.0  # at a floor that a call went below, and seconds before each
TOO_GOOD = 100  # times faster: no result where the baseline was slower than usual
IMPOSSIBLE = 20  # times faster than the floor: no neighbour makes that of an honest time


@dataclass(frozen=True)
class Timing:
    """What was measured; times in seconds, ratios above 1 mean that the candidate is faster."""

    sides: Mapping[str, Mapping[str, float]]
    ratios: Mapping[str, Mapping[str, object]]
    null: float  # log units: what eager against eager shows
    first_s: Mapping[str, float]  # import, construction, parameters and first call
    resolution_s: float  # a call's time is believed to this, by the parent's own clock
    believed: Mapping[str, float]  # ratio if all that is unexplained were the candidate's time
    floor_s: float  # for bytes and products that nobody can avoid: no call can be faster
    products_s: float  # for eager's operations: faster ones found other algebra, or left work out
    calls_per_turn: int
    stopped: str
    caches: str = "cold: flushed before every call"
    # Baselines with which nothing is compared: they do not run, or the ratio is no result.
    missing: Mapping[str, str] = field(default_factory=dict)
    fallback: str = ""  # calls of the candidate that ran the original forward, if it says so


def measure(
    session: Session, sides: list[Side], turn: Turn = nullcontext, before: Unclear | None = None
) -> Timing | None:
    """Turns until the interval is narrow or the time is over; the ledger gets the checks.

    before: what a first timing, by other processes, left open.
    """

    def lose(_: Side, why: str) -> None:
        session.ledger.add("timing-outputs", "fail", why)

    run = take_turns(session, sides, turn, lose)
    if run is None:
        return None
    session.costs.enter("floors of the time")
    (mine,) = run.candidates
    return conclude(session, run, mine, floors_of(session, run), before)


@dataclass(frozen=True)
class Run:
    """Turns that are over. baselines: by name.  candidates: those that answered to the end, and
    what they say of their calls.  missing: baselines that do not run, and why."""

    baselines: Mapping[str, Side]
    candidates: Mapping[Side, Sequence[str]]
    calls: int
    stopped: str
    missing: Mapping[str, str]


def take_turns(
    session: Session, sides: list[Side], turn: Turn, lose: Callable[[Side, str], None]
) -> Run | None:
    """Have all sides get ready, and then take turns; None where no candidate is left.

    lose: told of a candidate that does not get ready, breaks, or answers wrongly. It takes no part
    any more.
    """
    taken = Turntaking(session, sides, lose, Rounds.of(session.ask_reference))
    told: dict[Side, list[str]] = {}
    most = PROCESSES[session.request.device]
    for generation in range(most):
        late = (
            taken.took_s > session.request.budget_s or time.monotonic() > session.request.deadline
        )
        if not taken.candidates or (late and generation >= FEWEST_PROCESSES):
            break
        if generation:
            begin_again(session, sides, generation)
        taken.get_ready()
        session.progress("timing", f"timing: process {generation + 1} of {most} a side")
        with turn():
            taken.rounds()
        for side in taken.candidates:
            try:
                said = timed(session, side, {"do": "status"})[0].text
            except LostSide as error:
                taken.dropped(side, error)
            else:
                told.setdefault(side, []).append(said)
    baselines = {side.name: side for side in sides if side.is_baseline}
    statuses = {side: told[side] for side in taken.candidates}
    return Run(baselines, statuses, taken.calls, taken.stopped, taken.missing) if statuses else None


@dataclass
class Turntaking:
    """The sides that still take part, and what they have come to.

    missing: baselines that do not run, and why.  took_s: all rounds.  calls, stopped: those of a
    turn that are timed, and why the rounds of the last processes ended."""

    session: Session
    sides: list[Side]
    lose: Callable[[Side, str], None]
    to_come: Rounds
    missing: dict[str, str] = field(default_factory=dict)
    number: int = 0  # of the next round
    took_s: float = 0.0
    calls: int = 0
    stopped: str = "no candidate is left"

    @property
    def candidates(self) -> list[Side]:
        return [side for side in self.sides if not side.is_baseline]

    def dropped(self, side: Side, why: object) -> None:
        self.lose(side, str(why))
        self.sides.remove(side)

    def get_ready(self) -> None:
        """Those that cannot do without their like; torch.compile can be missing."""
        self.session.progress("getting ready for timing")
        for side in list(self.sides):
            if not side.prepared:
                prepare(self.session, side)
            why = ready(self.session, side)
            if why and side.name == COMPILED:
                self.missing[side.name] = why
                self.sides.remove(side)
            elif why and side.is_baseline:
                raise NotVerifiable(f"the baseline ({side.name}) does not run: {why}")
            elif why:
                self.dropped(side, f"in the timing process: {why}")

    def rounds(self) -> None:
        """Those of one process a side."""
        request, order = self.session.request, random.SystemRandom()
        share_s = request.budget_s / PROCESSES[request.device]
        limits = CALLS_BY_SECONDS[request.device]
        begin, (warm, calls) = time.monotonic(), limits[-1][1]
        first, rounds = True, 0
        while self.candidates:
            turn = list(self.sides)
            what = self.to_come.draw(self.number, warm, calls, first=first)
            order.shuffle(turn)
            even = max(side.compared_s for side in turn) < EVEN_S
            for side in turn:
                try:
                    take_turn(self.session, side, what, compares=even)
                except LostSide as error:
                    self.dropped(side, error)
            self.number += 1
            if first:  # it only tells how long a turn may be
                typical = (time.monotonic() - begin) / (len(turn) * (warm + calls))
                warm, self.calls = next(n for limit, n in limits if typical < limit)
                begin, first, calls = time.monotonic(), False, self.calls
                continue
            rounds += 1
            if self._is_over(rounds, time.monotonic() - begin, share_s):
                break
        self.took_s += time.monotonic() - begin

    def _is_over(self, rounds: int, elapsed_s: float, share_s: float) -> bool:
        """Has this process had its turns?"""
        late = elapsed_s > share_s
        fewest = FEWEST_OF_PROCESS if late else MIN_ROUNDS
        if rounds < fewest and elapsed_s < PATIENCE * share_s:
            return False
        if rounds < FEWEST_OF_PROCESS:
            raise NotVerifiable(f"only {rounds} rounds in {elapsed_s:.0f} s; give it more time")
        told = self._stops(elapsed_s, share_s)
        reasons = [one.reason for one in told if one.reason]
        self.stopped = (reasons or ["the time is over"])[-1]
        return late or all(one.done for one in told)

    def _stops(self, elapsed_s: float, cap_s: float) -> list[statistics.Stop]:
        """What each candidate's turns of this process say of going on."""
        eager = next(side for side in self.sides if side.name == EAGER)
        stop = partial(
            statistics.stop, eager.processes[-1], elapsed_s=elapsed_s, cap_s=cap_s,
            min_pairs=MIN_ROUNDS,
        )  # fmt: skip
        return [stop(side.processes[-1]) for side in self.candidates]


def floors_of(session: Session, run: Run) -> Mapping[str, float]:
    """What no call can go below; where one has, the least of several looks, as load adds to it."""
    eager, again = run.baselines[EAGER], run.baselines[AGAIN]
    eager_s = statistics.side([*eager.turns, *again.turns]).min_s
    took = min(statistics.side(side.turns).p50_s for side in run.candidates)
    floors = session.ask_reference(do="floor", lab="problem", eager_s=eager_s)
    for _ in range(LOOKS):
        if took >= max(floors["copying_s"], floors["needed_s"]):
            break
        time.sleep(LOOK_AGAIN_S)
        more = session.ask_reference(do="floor", lab="problem", eager_s=eager_s)
        floors = {name: min(value, more[name]) for name, value in floors.items()}
    return floors


class Unclear(NotVerifiable):
    """Clocks that contradict each other, though not for certain, or not yet twice."""

    def __init__(self, text: str, rules: tuple[str, ...]) -> None:
        super().__init__(text)
        self.rules = rules


# --- what it means ----------------------------------------------------------------------------


def conclude(
    session: Session,
    run: Run,
    mine: Side,
    floors: Mapping[str, float],
    before: Unclear | None = None,
) -> Timing | None:
    """What the turns of one candidate mean; the session's ledger gets the checks, and where they
    fail there is no timing. Raises Unclear where its clocks contradict each other."""
    ledger, eager, again = session.ledger, run.baselines[EAGER], run.baselines[AGAIN]
    refused, said = fallback(run.candidates[mine])
    if refused > 0:
        ledger.add("fallback", "note", f"what was timed: {said}")
    checked = sum(map(len, mine.turns))
    between = f", and of {mine.between} between them" if mine.between else ""
    ledger.add("timing-outputs", "pass", f"the outputs of all {checked} timed calls{between}")
    ledger.count("timing-outputs", checked)
    fault = statistics.fault(mine.turns)
    if fault:
        ledger.add("timing-clocks", "fail", fault)
        return None
    fastest = statistics.side(mine.turns)
    crowded = clock_rules.is_crowded(chain(*eager.clocks.device, *again.clocks.device))
    _check_floors(session, fastest.p50_s, floors, before, crowded=crowded)
    resolution = _check_clocks(session, mine, eager, again, before)
    null = statistics.null_threshold(eager.processes, again.processes)
    sides = {CANDIDATE: mine, **run.baselines}
    others = {n: s for n, s in sides.items() if n in (EAGER, COMPILED)}
    ratios = {n: statistics.ratio(s.processes, mine.processes) for n, s in others.items()}
    extra = max(0.0, clock_rules.excess(mine.clocks, eager.clocks, again.clocks))
    share = fastest.p50_s / (fastest.p50_s + extra)
    doubts = {n: why for n, r in ratios.items() if (why := _doubt(r, others[n], session))}
    ratios = {n: r for n, r in ratios.items() if n not in doubts}
    return Timing(
        sides={n: asdict(statistics.side(s.turns)) for n, s in sides.items()},
        ratios={n: asdict(r) | {"claim": statistics.claim(r, null)} for n, r in ratios.items()},
        null=null,
        first_s={n: round(s.first_s, 2) for n, s in sides.items()},
        resolution_s=resolution,
        believed={n: r.median * share for n, r in ratios.items()},
        floor_s=max(floors["copying_s"], floors["needed_s"]),
        products_s=floors["products_s"],
        calls_per_turn=run.calls,
        stopped=run.stopped,
        missing={**run.missing, **doubts},
        fallback=said,
    )


def _doubt(ratio: statistics.Ratio, baseline: Side, session: Session) -> str:
    """Why a ratio is no result; empty if it is one."""
    if ratio.median <= TOO_GOOD:
        return ""
    why = clock_rules.far_from_usual(baseline.clocks, session.request.device)
    return why and f"{ratio.median:.0f} times is no result, as the machine was busy: {why}"


def _check_floors(
    session: Session,
    seconds: float,
    floors: Mapping[str, float],
    before: Unclear | None = None,
    *,
    crowded: bool = False,
) -> None:
    """A neighbour slows what the floor is measured by: only what shows again is too fast."""
    took, floor = f"{seconds * 1e6:.2f} us a call", max(floors["copying_s"], floors["needed_s"])
    moving = floors["copying_s"] >= floors["needed_s"]
    if seconds < floor:
        what = "moving the bytes takes" if moving else "the products, in any precision, take"
        text = f"{took}, {what} {floor * 1e6:.2f} us"
        certain = seconds * IMPOSSIBLE < floor or (before and FLOOR in before.rules and not crowded)
        if not certain and "timing-floor" not in session.request.ignored:
            raise Unclear(f"timing-floor: {text}", (FLOOR,))
        session.ledger.add("timing-floor", "fail", text)
    else:
        text = f"{took}, the floor is {floor * 1e6:.2f} us ({'bytes' if moving else 'products'})"
        session.ledger.add("timing-floor", "pass", text)
    if seconds < floors["products_s"]:
        text = (
            f"{took}; eager's {floors['flops']:.3g} operations take this machine "
            f"{floors['products_s'] * 1e6:.2f} us at best: other algebra, or work left out"
        )
        session.ledger.add("tripwire", "note", text)


def _check_clocks(
    session: Session, mine: Side, eager: Side, again: Side, before: Unclear | None = None
) -> float:
    """The parent's clock around each call, the worker's CPU time, and device events must agree.

    Both sides run the same program on the same data, so what the parent's clock sees beyond the
    worker's claim must be the same for both. What is more is hidden work; it refutes where it is
    certain, and was there before, too, in other processes. Returns the resolution.
    """
    sides = mine.clocks, eager.clocks, again.clocks
    device, threads = session.request.device, max(1, int(session.lab["threads"]))
    found = clock_rules.weigh(*sides, threads=threads, device=device)
    allowed = clock_rules.allowance(eager.clocks, again.clocks)
    shown = before.rules if before else ()
    wrong = [c for c in found if c.certain and c.rule in shown]
    if found and not wrong and "timing-clocks" not in session.request.ignored:
        text = "; ".join(c.text for c in found)
        raise Unclear(f"timing-clocks: {text}", tuple(c.rule for c in found))
    for contradiction in wrong:
        session.ledger.add("timing-clocks", "fail", f"{contradiction.text}; shown twice")
    if not wrong:
        text = f"parent's and worker's clocks agree to {allowed * 1e6:.0f} us a call"
        if before:
            text += f"; a first timing did not count ({before})"
        session.ledger.add("timing-clocks", "pass", text)
    usual = chain(*eager.clocks.unexplained, *again.clocks.unexplained)
    quarters = plain.quantiles(usual, n=4)
    transport = clock_rules.TRANSPORT_SHARE * quarters[1]
    return max(quarters[2] - quarters[0], transport, 1e-6)


def bench(  # noqa: PLR0913 -- each is something that a user may ask for
    problem: Path | str,
    candidate: Path | str,
    *,
    device: str = "cpu",
    against: tuple[str, ...] = ("eager", "compile"),
    overrides: Mapping[str, str] | None = None,
    budget_s: float = 20.0,
    seed: str = "",
    deadline: float = math.inf,
    turn: Turn = nullcontext,
    progress: Callable[[str], None] = lambda _: None,
) -> Timing:
    """Times only; every timed output is compared all the same. Raises where that fails.

    seed, deadline: as `judge` takes them.
    """
    from fusewright.judge.isolation.worker_pool import open_site
    from fusewright.judge.request import Request
    from fusewright.judge.session import Session

    request = Request(
        Path(problem).absolute(), Path(candidate).absolute(), device, against=against,
        overrides=dict(overrides or {}), budget_s=budget_s, seed=seed, deadline=deadline,
    )  # fmt: skip
    with open_site(device, (ENVIRONMENT,)) as site:
        session = Session(request, site, progress)
        session.read_candidate()
        try:
            names = participants(request)
            sides = start(session, names, range(len(names)))
            session.open_problem()
            for side in reversed(sides):
                if side.name != CANDIDATE:
                    prepare(session, side)
            session.examine()
            measured = measure(session, sides, turn)
        finally:
            session.close()
    if measured is None or session.ledger.failed():
        found = "; ".join(f.detail for f in session.ledger.findings())
        raise NotVerifiable(f"these times mean nothing: {found}")
    return measured
