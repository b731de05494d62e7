"""One process that takes turns -> its calls, and what each clock has said about them.

A turn is a few calls of one side; every side is sent the same content in the same way, and every
output of a candidate is compared.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fusewright.errors import NotVerifiable
from fusewright.judge.isolation.processes import CANDIDATE as PROGRAM
from fusewright.judge.isolation.protocol import Gone, Late, ProtocolViolation, Record
from fusewright.judge.timing.clock_rules import Clocks
from fusewright.judge.workers import Short

if TYPE_CHECKING:
    from fusewright.judge.isolation.processes import Worker
    from fusewright.judge.request import Request
    from fusewright.judge.session import Session

CANDIDATE, EAGER, AGAIN, COMPILED = "candidate", "eager", "eager again", "torch.compile"
BASELINES = frozenset((EAGER, AGAIN, COMPILED))
OVER = "its share of the turns is over"
FEWEST_ROUNDS = 6  # fewer have no 95 % interval; a problem too slow for more gets a wide one
LEAST_PATIENCE_S = 1.0  # with torch.compile, where the time is over
ENVIRONMENT = {
    "TORCHINDUCTOR_COMPILE_THREADS": "1",  # else it leaves helpers running
    # The processor's own list of features is believed; else each is tried with the compiler, which
    # takes longer than compiling the model.
    "TORCHINDUCTOR_VEC_ISA_OK": "1",
    # For the few kernels of a problem this takes longer than compiling them without.
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
}


@dataclass(eq=False)
class Side:
    """Workers that take turns one after the other, and what the clocks said about each timed call.

    begin: another worker, of another nursery the higher the number.  begins: the turn with which
    each of its processes begins."""

    name: str
    worker: Worker
    slot: int
    source: str = ""  # of one candidate among several; a single one's is the session's
    begin: Callable[[int], Worker] | None = None
    clocks: Clocks = field(default_factory=Clocks)
    begins: list[int] = field(default_factory=lambda: [0])
    first_s: float = 0.0
    prepared: bool = False
    moved: bool = False  # does it have the other parameters?
    between: int = 0  # calls that nobody counts, with other values or after a change
    compared_s: float = 0.0  # the shortest comparison of an output: the first ones warm up

    @property
    def is_baseline(self) -> bool:
        """Whether it runs the problem's own model, and nothing of a candidate."""
        return self.name in BASELINES

    @property
    def turns(self) -> list[list[float]]:
        """By its own host clock."""
        return self.clocks.claimed

    @property
    def processes(self) -> list[list[list[float]]]:
        """Its turns, those of each process together."""
        ends = [*self.begins[1:], len(self.turns)]
        return [self.turns[a:b] for a, b in zip(self.begins, ends, strict=True)]

    @property
    def loss(self) -> type[Exception]:
        """What it means when it breaks: of a baseline's faults the candidate knows nothing."""
        return NotVerifiable if self.is_baseline else LostSide


@dataclass(frozen=True)
class Round:
    """What every side is sent in one round; a candidate cannot tell which calls count.

    At `place`, if there is one, is a call that does not: with the values of `case`, or with plain
    ones. `moved`: with the other parameters; the first call after the change is none that counts.
    `counts`: whether any does; none of a process's first round.
    """

    number: int
    warm: int
    calls: int
    moved: bool = False
    place: int | None = None
    case: str = ""
    counts: bool = True

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

    @classmethod
    def of(cls, ask: Callable[..., Mapping[str, Any]]) -> Rounds:
        """What the trusted worker has planned for this problem."""
        planned = ask(do="between", lab="problem")
        return cls(planned["cases"], moves=planned["moves"])

    def draw(self, number: int, warm: int, calls: int, *, first: bool = False) -> Round:
        """first: of new processes."""
        moved = self._change is not None and number >= self._change
        if first:  # it only tells how long a turn may be
            return Round(number, warm, calls, moved, counts=False)
        case = self._cases.pop() if self._cases else ""
        if number == self._change:
            return Round(number, warm, calls, moved, 0, case)
        place = self._draws.randrange(warm + calls + 1) if case else None
        return Round(number, warm, calls, moved, place, case)


def participants(request: Request) -> tuple[str, ...]:
    return (CANDIDATE, EAGER, AGAIN, *((COMPILED,) if "compile" in request.against else ()))


def start(
    session: Session, names: Sequence[str], slots: Sequence[int], program: str = PROGRAM
) -> list[Side]:
    """Start every side; the trusted ones set themselves up while correctness is judged.

    program: the module that each process runs.
    """
    return [_side(session, name, slot, program) for name, slot in zip(names, slots, strict=True)]


def _side(session: Session, name: str, slot: int, program: str) -> Side:
    plan = session.site.plan
    if name in BASELINES:
        shown = (*plan.readable, str(session.request.problem))
        uid = plan.uid if plan.namespaces else None  # another uid may not read the problem
        plan = replace(plan, readable=shown, uid=uid)
    if name == COMPILED:  # what its first process has compiled, the next ones find
        plan = replace(plan, writable=(str(session.site.compiled(plan.uid)),))

    def begin(generation: int) -> Worker:
        return session.start_candidate(
            name.replace(" ", "-"), slot, environment=ENVIRONMENT, plan=plan, cold=True,
            generation=generation, program=program,
        )  # fmt: skip

    return Side(name, begin(0), slot, begin=begin)


def begin_again(session: Session, sides: Sequence[Side], generation: int) -> None:
    """Each side goes on in a new process, of a nursery that has forked none of the last ones: what
    is forked from one nursery has its addresses and its heap."""
    for side in sides:
        side.worker.stop(OVER)
    for side in sides:
        side.worker.kill(OVER)
    session.site.retire()
    session.site.nursery(ENVIRONMENT, generation).load()  # once, and not in each that it forks
    for side in sides:
        assert side.begin is not None
        side.worker, side.prepared, side.moved = side.begin(generation), False, False
        side.begins.append(len(side.turns))
    for side in reversed(sides):  # torch.compile takes longest
        prepare(session, side)


def prepare(session: Session, side: Side) -> None:
    """Queue import, construction, parameters and a first call."""
    request, side.prepared = session.request, True
    what: dict[str, Any]
    if side.is_baseline:
        overrides = dict(request.overrides)
        what = {"problem": str(request.problem), "overrides": overrides, "class": "Model"}
    else:
        source = side.source or session.source
        what = {"source": source, "name": "candidate", "class": "ModelNew"}
    steps = session.ask_reference(do="prepare", lab="problem", slot=side.slot)["steps"]
    extra = {"compile": str(session.site.compiled())} if side.name == COMPILED else {}
    with suppress(Gone, Late):  # who waits for the answers will notice
        session.post(side.worker, {"do": "import", "threads": session.lab["threads"], **what})
        for message in steps:
            session.post(side.worker, {**message, **extra})


class LostSide(Exception):
    """A side stopped answering, or answered wrongly."""


def ready(session: Session, side: Side) -> str:
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
            if len(side.begins) == 1:  # what is built then, later processes find
                side.first_s += record.clocks_ns[0] * 1e-9
    except (Gone, Late, ProtocolViolation) as error:
        if isinstance(error, Late) and time.monotonic() > until:
            side.worker.kill("it did not get ready for timing")
            return "it was not ready when the budget was used up"
        lack = "" if side.is_baseline else session.lack(side.worker, error, begin, 0.0)
        if lack:
            raise Short(f"{side.name} did not get ready for timing: {lack}") from error
        end = side.worker.kill("it did not get ready for timing")
        last = end.tail.strip().splitlines()[-1:] or [end.exit]
        return f"{last[0]} ({error})"
    return ""


def take_turn(session: Session, side: Side, what: Round, *, compares: bool = False) -> None:
    """A few untimed calls, then the timed ones; all of them look the same to the worker.

    compares: an output is compared where nobody asks whether it is right, too, so that the next
    call finds cores and caches as a candidate's does.
    """
    claimed, unexplained, device, cpu = (list[float]() for _ in range(4))
    for name, call, case in what.messages():
        content = {"round": what.number, "call": name, "case": case, "moved": what.moved}
        *before, message = session.ask_reference(
            do="ship", lab="problem", slot=side.slot, load=side.moved != what.moved, **content
        )["steps"]
        side.moved = what.moved
        for step in before:
            timed(session, side, step)
        record, wall = timed(session, side, message)
        host = max(record.clocks_ns[0], 1) * 1e-9  # a clock that stands still is the floor's affair
        if compares or not side.is_baseline:
            check_output(session, side, record, content)
        side.between += name == "between"
        if call >= 0 and what.counts:
            claimed.append(host)
            unexplained.append(wall - host)
            device.append(record.clocks_ns[1] * 1e-9)
            cpu.append(record.clocks_ns[2] * 1e-9)
    if not what.counts:
        return
    for kept, read in (
        (side.clocks.claimed, claimed), (side.clocks.unexplained, unexplained),
        (side.clocks.device, device), (side.clocks.cpu, cpu),
    ):  # fmt: skip
        kept.append(read)


def timed(session: Session, side: Side, message: Mapping[str, Any]) -> tuple[Record, float]:
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
    if not side.is_baseline and "MemoryError" in record.text:  # PyTorch's own ends so, too
        raise Short(f"{side.name} ran out of memory while it was timed: {record.text[:300]}")


def check_output(session: Session, side: Side, record: Record, content: Mapping[str, Any]) -> None:
    """Raises LostSide where a candidate's output is wrong."""
    begin = time.monotonic()
    reply = session.ask_reference(
        do="check", lab="problem", slot=side.slot, record=asdict(record),
        counts=not side.is_baseline, **content,
    )  # fmt: skip
    took_s = time.monotonic() - begin
    side.compared_s = min(side.compared_s or took_s, took_s)
    wrong = [evidence for _, outcome, evidence in reply["rows"] if outcome == "fail"]
    if wrong and not side.is_baseline and "timing-outputs" not in session.request.ignored:
        what = " and the parameters had changed" if content["moved"] else ""
        case = f" ({content['case']} between the timed calls{what})" if content["case"] else what
        raise LostSide(f"round {content['round']}{case}: {wrong[0]}")
