"""Workers that take turns -> how fast each is, how sure that is, and whether its clock can be true.

All sides run the same program: the candidate, eager, eager once more (what this machine cannot
tell apart), and torch.compile. A round is one turn of each in random order on the same fresh
inputs; the next input exists only when the last answer is in; every output of the candidate is
compared like any other.
"""

from __future__ import annotations

import math
import random
import statistics as plain
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusewright.common.timing_lock import Turn
from fusewright.errors import NotVerifiable
from fusewright.judge.isolation.protocol import Gone, Late, ProtocolViolation, Record
from fusewright.judge.timing import clock_rules, statistics
from fusewright.judge.timing.clock_rules import Clocks
from fusewright.judge.timing.fallback import fallback
from fusewright.judge.workers import Short

if TYPE_CHECKING:
    from fusewright.judge.isolation.processes import Worker
    from fusewright.judge.request import Request
    from fusewright.judge.session import Session

FLOOR = "floor"
CANDIDATE, EAGER, AGAIN, COMPILED = "candidate", "eager", "eager again", "torch.compile"
# Untimed and timed calls of a turn, by the seconds that one takes with everything around it: where
# the turns of a long problem are few, more rounds are worth more than more calls in a row. On a
# processor a long call needs none before it: caches are flushed, and threads wake in microseconds.
CALLS_BY_SECONDS: Mapping[str, Sequence[tuple[float, tuple[int, int]]]] = {
    "cpu": ((0.03, (2, 5)), (0.06, (2, 3)), (0.12, (1, 1)), (float("inf"), (0, 1))),
    "cuda": ((0.03, (2, 5)), (0.06, (2, 3)), (float("inf"), (1, 1))),
}
MIN_ROUNDS = 30
FEWEST_ROUNDS = 6  # fewer have no 95 % interval; a problem too slow for more gets a wide one
ENVIRONMENT = {
    "TORCHINDUCTOR_COMPILE_THREADS": "1",  # else it leaves helpers running
    # The processor's own list of features is believed; else each is tried with the compiler, which
    # takes longer than compiling the model.
    "TORCHINDUCTOR_VEC_ISA_OK": "1",
    # For the few kernels of a problem this takes longer than compiling them without.
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
}
LEAST_PATIENCE_S = 1.0  # with torch.compile, where the time is over
LOOKS, LOOK_AGAIN_S = 3, 1.0  # at a floor that a call went below, and seconds before each
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
    missing: Mapping[str, str] = field(default_factory=dict)
    fallback: str = ""  # calls of the candidate that ran the original forward, if it says so


@dataclass
class Side:
    """One worker that takes turns, and what the clocks said about each timed call."""

    name: str
    worker: Worker
    slot: int
    clocks: Clocks = field(default_factory=Clocks)
    first_s: float = 0.0
    prepared: bool = False
    moved: bool = False  # does it have the other parameters?
    between: int = 0  # calls that nobody counts, with other values or after a change

    @property
    def turns(self) -> list[list[float]]:
        """By its own host clock."""
        return self.clocks.claimed

    @property
    def loss(self) -> type[Exception]:
        """What it means when it breaks: of a baseline's faults the candidate knows nothing."""
        return _Lost if self.name == CANDIDATE else NotVerifiable


@dataclass(frozen=True)
class Round:
    """What every side is sent in one round; a candidate cannot tell which calls count.

    At `place`, if there is one, is a call that does not: with the values of `case`, or with plain
    ones. `moved`: with the other parameters; the first call after the change is none that counts.
    """

    number: int
    warm: int
    calls: int
    moved: bool = False
    place: int | None = None
    case: str = ""

    def messages(self) -> list[tuple[str, int, str]]:
        """Name of its content, number (negative: not counted), case."""
        made = [(str(call), call, "") for call in range(-self.warm, self.calls)]
        if self.place is not None:
            made.insert(self.place, ("between", -1, self.case))
        return made


class Rounds:
    """Draws what comes between the counted calls, and when the parameters change."""

    def __init__(self, cases: Sequence[str], *, moves: bool) -> None:
        self._draws = random.SystemRandom()
        self._cases = list(cases)
        self._draws.shuffle(self._cases)
        self._change = self._draws.randrange(1, FEWEST_ROUNDS) if moves else None

    def draw(self, number: int, warm: int, calls: int) -> Round:
        if number == 0:  # it only tells how long a turn may be
            return Round(number, warm, calls)
        moved = self._change is not None and number >= self._change
        case = self._cases.pop() if self._cases else ""
        if number == self._change:
            return Round(number, warm, calls, moved, 0, case)
        place = self._draws.randrange(warm + calls + 1) if case else None
        return Round(number, warm, calls, moved, place, case)


def participants(request: Request) -> tuple[str, ...]:
    return (CANDIDATE, EAGER, AGAIN, *((COMPILED,) if "compile" in request.against else ()))


def start(session: Session, names: Sequence[str], slots: Sequence[int]) -> list[Side]:
    """Start every side; the trusted ones set themselves up while correctness is judged."""
    sides = []
    for name, slot in zip(names, slots, strict=True):
        own = None
        if name != CANDIDATE:
            plan = session.site.plan
            shown = (*plan.readable, str(session.request.problem))
            uid = plan.uid if plan.namespaces else None  # another uid may not read the problem
            own = replace(plan, readable=shown, uid=uid)
        own_name = name.replace(" ", "-")
        worker = session.start_candidate(
            own_name, slot, environment=ENVIRONMENT, plan=own, cold=True
        )
        sides.append(Side(name, worker, slot))
    return sides


def prepare(session: Session, side: Side) -> None:
    """Queue import, construction, parameters and a first call."""
    request, side.prepared = session.request, True
    if side.name == CANDIDATE:
        what: dict[str, Any] = {"source": session.source, "name": "candidate", "class": "ModelNew"}
    else:
        overrides = dict(request.overrides)
        what = {"problem": str(request.problem), "overrides": overrides, "class": "Model"}
    steps = session.ask_reference(do="prepare", lab="problem", slot=side.slot)["steps"]
    extra = {"compile": True} if side.name == COMPILED else {}
    with suppress(Gone, Late):  # who waits for the answers will notice
        session.post(side.worker, {"do": "import", "threads": session.lab["threads"], **what})
        for message in steps:
            session.post(side.worker, {**message, **extra})


def measure(
    session: Session, sides: list[Side], turn: Turn = nullcontext, before: Unclear | None = None
) -> Timing | None:
    """Turns until the interval is narrow or the time is over; the ledger gets the checks.

    before: what a first timing, by other processes, left open.
    """
    session.progress("getting ready for timing")
    missing: dict[str, str] = {}
    for side in list(sides):
        if not side.prepared:
            prepare(session, side)
        why = _ready(session, side)
        if why and side.name == COMPILED:
            missing[side.name] = why
            sides.remove(side)
        elif why and side.name != CANDIDATE:
            raise NotVerifiable(f"the baseline ({side.name}) does not run: {why}")
        elif why:
            session.ledger.add("timing-outputs", "fail", f"in the timing process: {why}")
            return None
    try:
        session.progress("timing")
        with turn():
            stopped, calls = _take_turns(session, sides)
        told = _fallback(session, next(side for side in sides if side.name == CANDIDATE))
    except _Lost as lost:
        session.ledger.add("timing-outputs", "fail", str(lost))
        return None
    by_name = {side.name: side for side in sides}
    session.costs.enter("floors of the time")
    floors = _floors(session, by_name)
    timing = _conclude(session, by_name, stopped, calls, missing, floors, before)
    return timing and replace(timing, fallback=told)


def _fallback(session: Session, side: Side) -> str:
    """What the candidate says of its calls; a note, where some ran the original forward."""
    record, _ = _timed(session, side, {"do": "status"})
    refused, told = fallback(record.text)
    if refused > 0:
        session.ledger.add("fallback", "note", f"what was timed: {told}")
    return told


def _floors(session: Session, sides: Mapping[str, Side]) -> Mapping[str, float]:
    """What no call can go below; where one has, the least of several looks, as load adds to it."""
    eager_s = statistics.side([*sides[EAGER].turns, *sides[AGAIN].turns]).min_s
    took = statistics.side(sides[CANDIDATE].turns).p50_s
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


class _Lost(Exception):
    """A side stopped answering, or answered wrongly."""


def _ready(session: Session, side: Side) -> str:
    """Why this side cannot take part; empty if it can."""
    begin, until = time.monotonic(), math.inf
    if side.name == COMPILED:  # which takes its time, and nobody has to wait for
        until = max(session.request.deadline, begin + LEAST_PATIENCE_S)
    try:
        for _ in range(5):
            seconds = min(session.request.limits.build_s, until - time.monotonic())
            record = session.collect(side.worker, max(seconds, 0.0))
            if record.kind == "raised":
                _demand_memory(side, record)
                return record.text[:500]
            side.first_s += record.clocks_ns[0] * 1e-9
    except (Gone, Late, ProtocolViolation) as error:
        if isinstance(error, Late) and time.monotonic() > until:
            side.worker.kill("it did not get ready for timing")
            return "it was not ready when the budget was used up"
        lack = session.lack(side.worker, error, begin, 0.0) if side.name == CANDIDATE else ""
        if lack:
            raise Short(f"the candidate did not get ready for timing: {lack}") from error
        end = side.worker.kill("it did not get ready for timing")
        last = end.tail.strip().splitlines()[-1:] or [end.exit]
        return f"{last[0]} ({error})"
    return ""


def _take_turns(session: Session, sides: Sequence[Side]) -> tuple[str, int]:
    request, order = session.request, random.SystemRandom()
    first, limits = {s.name: s for s in sides}, CALLS_BY_SECONDS[request.device]
    begin, number, (warm, calls) = time.monotonic(), 0, limits[-1][1]
    planned = session.ask_reference(do="between", lab="problem")
    rounds_to_come = Rounds(planned["cases"], moves=planned["moves"])
    while True:
        turn, what = list(sides), rounds_to_come.draw(number, warm, calls)
        order.shuffle(turn)
        for side in turn:
            _turn(session, side, what)
        if number == 0:  # the first round only tells how long a turn may be
            typical = (time.monotonic() - begin) / (len(sides) * (warm + calls))
            warm, calls = next(n for limit, n in limits if typical < limit)
            for side in sides:
                side.clocks.clear()
            begin = time.monotonic()
        number += 1
        elapsed = time.monotonic() - begin
        rounds = len(first[EAGER].turns)
        late = elapsed > request.budget_s
        if rounds < (FEWEST_ROUNDS if late else MIN_ROUNDS) and elapsed < 10 * request.budget_s:
            continue
        if rounds < FEWEST_ROUNDS:
            raise NotVerifiable(f"only {rounds} rounds in {elapsed:.0f} s; give it more time")
        told = statistics.stop(
            first[EAGER].turns, first[CANDIDATE].turns, elapsed_s=elapsed, cap_s=request.budget_s,
        )  # fmt: skip
        if told.done or late:
            return told.reason or "the time is over", calls


def _turn(session: Session, side: Side, what: Round) -> None:
    """A few untimed calls, then the timed ones; all of them look the same to the worker."""
    claimed, unexplained, device, cpu = (list[float]() for _ in range(4))
    for name, call, case in what.messages():
        content = {"round": what.number, "call": name, "case": case, "moved": what.moved}
        *before, message = session.ask_reference(
            do="ship", lab="problem", slot=side.slot, load=side.moved != what.moved, **content
        )["steps"]
        side.moved = what.moved
        for step in before:
            _timed(session, side, step)
        record, wall = _timed(session, side, message)
        host = max(record.clocks_ns[0], 1) * 1e-9  # a clock that stands still is the floor's affair
        if side.name == CANDIDATE:
            _check_output(session, side, record, content)
        side.between += name == "between"
        if call >= 0:
            claimed.append(host)
            unexplained.append(wall - host)
            device.append(record.clocks_ns[1] * 1e-9)
            cpu.append(record.clocks_ns[2] * 1e-9)
    for kept, read in (
        (side.clocks.claimed, claimed), (side.clocks.unexplained, unexplained),
        (side.clocks.device, device), (side.clocks.cpu, cpu),
    ):  # fmt: skip
        kept.append(read)


def _timed(session: Session, side: Side, message: Mapping[str, Any]) -> tuple[Record, float]:
    begin = time.monotonic()
    try:
        session.post(side.worker, message)
        record = session.collect(side.worker, max(60.0, session.request.limits.call_s))
    except (Gone, Late, ProtocolViolation) as error:
        lack = session.lack(side.worker, error, begin, 0.0)
        side.worker.kill("it stopped answering while it was timed")
        text = f"{side.name} stopped answering in a timed turn: {lack or error}"
        raise (Short if lack else side.loss)(text) from error
    wall = time.monotonic() - begin
    if record.kind != "done":
        _demand_memory(side, record)
        raise side.loss(f"{side.name} raised in a timed turn: {record.text[:300]}")
    return record, wall


def _demand_memory(side: Side, record: Record) -> None:
    """Short if the candidate says that it has none: that it is wrong, nobody knows then."""
    if side.name == CANDIDATE and "MemoryError" in record.text:  # PyTorch's own ends so, too
        raise Short(f"{side.name} ran out of memory while it was timed: {record.text[:300]}")


def _check_output(session: Session, side: Side, record: Record, content: Mapping[str, Any]) -> None:
    reply = session.ask_reference(
        do="check", lab="problem", slot=side.slot, record=asdict(record), **content
    )
    wrong = [evidence for _, outcome, evidence in reply["rows"] if outcome == "fail"]
    if wrong and "timing-outputs" not in session.request.ignored:
        what = " and the parameters had changed" if content["moved"] else ""
        case = f" ({content['case']} between the timed calls{what})" if content["case"] else what
        raise _Lost(f"round {content['round']}{case}: {wrong[0]}")


# --- what it means ----------------------------------------------------------------------------


def _conclude(session: Session, sides: Mapping[str, Side], stopped: str, calls: int,
              missing: Mapping[str, str],
              floors: Mapping[str, float], before: Unclear | None) -> Timing | None:  # fmt: skip
    ledger, mine, eager = session.ledger, sides[CANDIDATE], sides[EAGER]
    checked = sum(map(len, mine.turns))
    between = f", and of {mine.between} between them" if mine.between else ""
    ledger.add("timing-outputs", "pass", f"the outputs of all {checked} timed calls{between}")
    ledger.count("timing-outputs", checked)
    fault = statistics.fault(mine.turns)
    if fault:
        ledger.add("timing-clocks", "fail", fault)
        return None
    fastest = statistics.side(mine.turns)
    crowded = clock_rules.is_crowded(chain(*eager.clocks.device, *sides[AGAIN].clocks.device))
    _check_floors(session, fastest.p50_s, floors, before, crowded=crowded)
    resolution = _check_clocks(session, mine, eager, sides[AGAIN], before)
    null = statistics.null_threshold(eager.turns, sides[AGAIN].turns)
    others = {n: s for n, s in sides.items() if n in (EAGER, COMPILED)}
    ratios = {n: statistics.ratio(s.turns, mine.turns) for n, s in others.items()}
    extra = max(0.0, clock_rules.excess(mine.clocks, eager.clocks, sides[AGAIN].clocks))
    share = fastest.p50_s / (fastest.p50_s + extra)
    return Timing(
        sides={n: asdict(statistics.side(s.turns)) for n, s in sides.items()},
        ratios={n: asdict(r) | {"claim": statistics.claim(r, null)} for n, r in ratios.items()},
        null=null,
        first_s={n: round(s.first_s, 2) for n, s in sides.items()},
        resolution_s=resolution,
        believed={n: r.median * share for n, r in ratios.items()},
        floor_s=max(floors["copying_s"], floors["needed_s"]),
        products_s=floors["products_s"],
        calls_per_turn=calls,
        stopped=stopped,
        missing=missing,
    )


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
            measured = measure(session, sides)
        finally:
            session.close()
    if measured is None or session.ledger.failed():
        found = "; ".join(f.detail for f in session.ledger.findings())
        raise NotVerifiable(f"these times mean nothing: {found}")
    return measured
