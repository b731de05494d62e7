"""judge(): a problem and a candidate in, a Verdict out; the order in which everything happens.

Processes start early and get ready while the problem is examined; the canaries come before the
candidate, timing comes last, and only where nothing has failed. Whatever goes wrong on the way is a
reason why nothing is verified, never a pass. What comes before the candidate needs no candidate, so
who is still writing one may have it done meanwhile: `Judging.begin`.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType

from fusewright.common.timing_lock import Turn
from fusewright.errors import BadUsage, NotVerifiable
from fusewright.judge import sanitizer
from fusewright.judge.environment import accuracy_table, describe
from fusewright.judge.findings import Verdict
from fusewright.judge.isolation import worker_pool
from fusewright.judge.isolation.processes import Worker
from fusewright.judge.isolation.worker_pool import CHECKED, Site
from fusewright.judge.request import PHASES, Limits, Phase, Request
from fusewright.judge.session import Part, Progress, Session, nothing
from fusewright.judge.timing import bench
from fusewright.judge.timing.sides import (
    CANDIDATE,
    ENVIRONMENT,
    Side,
    participants,
    prepare,
    start,
)
from fusewright.judge.workers import Lost, Short, Stopped

Compiled = Callable[[], Path | None]
DEFAULT_LIMITS = Limits()
NO_OVERRIDES: Mapping[str, str] = MappingProxyType({})
DEVICES = ("cpu", "cuda")
ACCURACIES = ("contract", "loose")
TRUTHS = ("rows", "whole")
MODES = ("train", "eval")
BASELINES = ("eager", "compile")
COMPILING = "waiting for the compiler"  # a phase of those whose caller compiles the kernels


def judge(  # noqa: PLR0913 -- each is something that a user may ask for
    problem: Path | str,
    candidate: Path | str,
    *,
    device: str = "cpu",
    accuracy: str = "contract",
    grad: bool = False,
    sanitize: bool = False,
    timing: bool = True,
    against: tuple[str, ...] = BASELINES,
    overrides: Mapping[str, str] = NO_OVERRIDES,
    budget_s: float = 20.0,
    progress: Progress | None = None,
    limits: Limits = DEFAULT_LIMITS,
    turn: Turn = nullcontext,
    site: Site | None = None,
    truth: str = "rows",
    mode: str = "",
    compiled: Compiled | None = None,
    seed: str = "",
    deadline: float = math.inf,
) -> Verdict:
    """Is the ModelNew in `candidate` right, and is it faster? Never trusts the candidate.

    truth: "rows" asks a costly problem most of its questions with fewer rows, and float64 where the
    candidate is not close to eager; "whole" has every call of full size, and float64 judge it.
    mode: "train" or "eval", in which most is asked and all is timed; "": that of the problem.
    turn: entered for the timed calls, which wait there until the machine is theirs.
    progress: called with the name of each phase as it begins; if it has a method `left`, that is
    called with the share of the plan that is done and the seconds left, after every answer.
    site: of `open_site`, where the judge's processes have got ready before; else one is opened.
    compiled: asked for the candidate's kernels, before it is imported, by a caller that compiles
    them from the same text; None, or an answer of None: the candidate compiles them here.
    seed: hexadecimal digits, an even number of them, from which all inputs come; "": drawn now, so
    that no candidate can know it.
    deadline: of time.monotonic; what is not checked by then leaves the candidate not verified, and
    torch.compile is left out of the timing where it is not ready.
    """
    request = Request(
        Path(problem).absolute(), Path(candidate).absolute(), device, accuracy, truth, grad,
        sanitize, timing, tuple(against), dict(overrides), budget_s,
        limits=limits, mode=mode, seed=seed, deadline=deadline,
    )  # fmt: skip
    return judge_request(request, progress or _silent, turn, site, compiled)


def replay(report: Path | str, case: str, progress: Progress | None = None) -> Verdict:
    """Run the experiment of one failing case of a report again, on the very same bits."""
    try:
        data = json.loads(Path(report).read_bytes())["replay"]
        cases, fields = list(data["cases"]), dict(data["request"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadUsage(f"{report}: not a report of `fusewright judge`: {error!r}.") from error
    if not case.isdecimal() or int(case) >= len(cases):
        raise BadUsage(f"--case {case}: this report has {len(cases)} failing cases, from 0 on.")
    wanted = cases[int(case)]
    name = wanted["case"] if wanted["experiment"] == "hazards" else ""
    request = Request(
        Path(fields.pop("problem")), Path(fields.pop("candidate")), **fields, timing=False,
        seed=data["seed"], only=(wanted["experiment"],), case=name, counts=data.get("counts", {}),
    )  # fmt: skip
    return judge_request(request, progress or _silent)


def open_site(device: str, *, timing: bool = True) -> AbstractContextManager[Site]:
    """Where a judging happens; all its processes start at once, and get ready meanwhile."""
    kinds = (CHECKED, ENVIRONMENT) if timing else (CHECKED,)
    return worker_pool.open_site(device, kinds)


def judge_request(
    request: Request,
    progress: Progress,
    turn: Turn = nullcontext,
    site: Site | None = None,
    compiled: Compiled | None = None,
    text: str | None = None,
) -> Verdict:
    """text: of the candidate, where its file is not written yet."""
    if text is None:
        _check_file(request.candidate)
    with open_judging(request, site) as judging:
        return judging.verdict(progress, turn, compiled, text)


@contextmanager
def open_judging(request: Request, site: Site | None = None) -> Iterator[Judging]:
    """A judging on a site of its own, or on one that is open; its processes get ready at once."""
    _check(request)
    begin = time.monotonic()
    opened = nullcontext(site) if site else open_site(request.device, timing=request.timing)
    with opened as site:
        judging = Judging(Session(request, site, _silent), begin)
        judging.session.costs.spent("starting", time.monotonic() - begin)
        try:
            yield judging
        finally:
            judging.close()


class Judging:
    """One judging, from its beginning, for which no candidate need be there, to its verdict."""

    def __init__(self, session: Session, since: float) -> None:
        """since: the moment from which on it takes its time."""
        self.session = session
        self._since = since
        self._ready: _Ready | None = None
        self._error: Exception | None = None
        self._is_over = False
        self._thread = threading.Thread(target=self._get_ready, daemon=True)

    @property
    def request(self) -> Request:
        return self.session.request

    def begin(self) -> None:
        """Open and examine the problem and test the judge itself, while the caller goes on.

        Takes the memory that a judging takes. A fault is told by `verdict`.
        """
        if self._thread.ident is None:
            self._thread.start()

    def verdict(
        self,
        progress: Progress,
        turn: Turn = nullcontext,
        compiled: Compiled | None = None,
        text: str | None = None,
    ) -> Verdict:
        """Of the candidate, whose file must be there now, unless its text is given."""
        session = self.session
        session.listen(progress)
        if self._thread.ident is not None:
            self._thread.join()
        try:
            if text is None:
                _check_file(session.request.candidate)
            session.read_candidate(text)
            timed = self._judge(turn, compiled)
        except NotVerifiable as error:
            session.ledger.gaps.append(str(error))
            timed = None
        except OSError as error:  # of a file or process of our own: the disk is full, for instance
            session.ledger.gaps.append(f"the judge could not go on: {error}")
            timed = None
        finally:
            session.costs.enter("ending")
            session.account()
            session.close()
            self._is_over = True
        word, reason = session.ledger.word()
        return Verdict(
            verdict=word,
            reason=reason,
            checks=session.ledger.rows(),
            findings=session.ledger.findings(),
            accuracy=accuracy_table(session.numbers, session.output_numbers),
            timing=asdict(timed) if timed else None,
            environment=describe(session) | {"seconds": round(time.monotonic() - self._since, 1)},
            replay=session.replay_data(),
            costs=session.costs.written(session.waited_s),
        )

    def close(self) -> None:
        """Nothing of it is at work any more, whether there was a verdict or not."""
        if self._thread.ident is None or self._is_over:
            return
        self.session.reference.kill("nobody wants a verdict any more")
        self._thread.join()
        self.session.close()

    def _get_ready(self) -> None:
        try:
            self._ready = _prepare(self.session)
        except Exception as error:  # noqa: BLE001 -- whatever it is, the caller hears of it
            self._error = error
        self.session.costs.enter(COMPILING)

    def _judge(self, turn: Turn, compiled: Compiled | None) -> bench.Timing | None:
        if self._thread.ident is None:
            return _judge(self.session, turn, compiled)
        if self._error is not None:
            raise self._error
        return _go_on(self.session, self._ready, turn, compiled) if self._ready else None


def _silent(_: str) -> None:
    """Progress nobody asked for."""


def _check(request: Request) -> None:
    for name, value, known in (
        ("device", (request.device,), DEVICES),
        ("accuracy", (request.accuracy,), ACCURACIES),
        ("truth", (request.truth,), TRUTHS),
        ("mode", (request.mode,), ("", *MODES)),
        ("against", request.against, BASELINES),
    ):
        for found in value:
            if found not in known:
                raise BadUsage(f"{name}: {found!r} is unknown; choose from {', '.join(known)}.")
    if request.sanitize and request.device != "cuda":
        raise BadUsage("--sanitize checks CUDA kernels; add --device cuda.")
    _check_file(request.problem)


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise BadUsage(f"{path}: no such file. Give the path of a Python file.")


@dataclass(frozen=True)
class _Slots:
    """Which memory is whose: the self-test's, each phase's, each side's, the sanitizer's."""

    phases: int
    session: Session

    @property
    def timers(self) -> tuple[str, ...]:
        request = self.session.request
        return participants(request) if request.timing else ()

    @property
    def last(self) -> int:
        return 1 + self.phases + len(self.timers)

    def start_sides(self) -> list[Side]:
        return start(self.session, self.timers, range(1 + self.phases, self.last))


@dataclass(frozen=True)
class _Ready:
    """What waits for a candidate: a process for each phase, and the sides of a timing."""

    slots: _Slots
    workers: Mapping[Phase, Worker]
    sides: list[Side]


def _judge(session: Session, turn: Turn, compiled: Compiled | None = None) -> bench.Timing | None:
    ready = _prepare(session)
    return _go_on(session, ready, turn, compiled) if ready else None


def _prepare(session: Session) -> _Ready | None:
    """All that comes before the candidate; None where the judge misjudges its own."""
    request = session.request
    phases = [p for p in PHASES if p.wanted(request) and _asked(p, request)]
    slots = _Slots(len(phases), session)
    session.costs.enter("starting")
    sides = slots.start_sides()
    session.open_problem()
    if session.lab["placing"]:
        session.ledger.add("default-device", "note", str(session.lab["placing"]))
    # torch.compile takes its time, most of it on one core: it starts first, while we go on here.
    for side in reversed(sides):
        if side.name != CANDIDATE:
            prepare(session, side)
    # Starting takes processor time: these are not needed before the problem is known.
    canary = session.start_candidate("canary", 0)
    workers = {p: session.start_candidate(p.name, i + 1) for i, p in enumerate(phases)}
    for line in session.examine():
        session.ledger.add("weak-problem", "note", line)
    _test_itself(session, canary, sides)
    return None if session.ledger.failed("self-canary") else _Ready(slots, workers, sides)


def _go_on(
    session: Session, ready: _Ready, turn: Turn, compiled: Compiled | None
) -> bench.Timing | None:
    """All that is asked of the candidate."""
    request, sides = session.request, ready.sides
    session.warm_up(list(ready.workers.values())[: session.concurrency])
    if compiled is not None:
        session.progress(COMPILING, "compiling the kernels")
        if (library := compiled()) is not None:
            session.adopt(library)
    session.look_ahead(list(ready.workers))
    complete = _run_phases(session, ready.workers, sides)
    session.outlook = None
    session.part()
    if session.alone:  # they have been stopped
        sides = ready.slots.start_sides()
    session.finish(complete=complete)
    if request.sanitize and not session.ledger.failed():
        sanitizer.check(session, ready.slots.last)
    if not request.timing or session.ledger.failed() or session.is_out_of_budget:
        return None
    return _timed(session, sides, turn, ready.slots.start_sides)


def _timed(
    session: Session,
    sides: list[Side],
    turn: Turn,
    started: Callable[[], list[Side]],
) -> bench.Timing | None:
    """What the clocks say of these sides; where they are not clear, of `started` ones once more."""
    mark, before = session.ledger.mark(), None
    while True:
        try:
            return bench.measure(session, sides, turn, before)
        except Short as short:
            _make_room(session, sides, short)
        except bench.Unclear as unclear:
            if before:
                raise NotVerifiable(_twice(unclear)) from unclear
            before = unclear
            _stop(session, sides)
        session.ledger.back_to(mark)
        sides = started()


def _test_itself(session: Session, canary: Worker, sides: list[Side]) -> None:
    """Once more, alone, where the machine had too little of something."""
    while True:
        try:
            session.run_canaries(canary, 0)
        except Short as short:
            _make_room(session, sides, short)
            canary = session.start_candidate("canary", 0)
        else:
            return


def _twice(unclear: bench.Unclear) -> str:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    return (
        f"{unclear}. It was timed twice, by fresh processes, and the clocks do not say for certain "
        f"that this is the candidate's doing; the load is {load:.1f} on {cores} cores. "
        "Judge it again on a quiet machine."
    )


def _make_room(session: Session, sides: list[Side], short: Short) -> None:
    """What the machine was too small, or too busy, for is tried once more, alone."""
    if session.alone:
        raise Short(f"{short} It was tried twice, the second time with nothing else of this run.")
    session.alone = True
    _stop(session, sides)


def _stop(session: Session, sides: list[Side]) -> None:
    for side in sides:
        side.worker.kill("the judge makes room")
    sides.clear()
    time.sleep(session.limits.pause_s)


def _asked(phase: Phase, request: Request) -> bool:
    return not request.only or any(name in phase.experiments for name in request.only)


def _run_phases(session: Session, workers: Mapping[Phase, Worker], sides: list[Side]) -> bool:
    """True if every phase ran to its end.

    Some are asked again with fresh processes where the judge's own was lost, and once, one behind
    the other, where the machine had too little of something.
    """
    parts = [Part(phase, worker, slot) for slot, (phase, worker) in enumerate(workers.items(), 1)]
    mark, complete = session.ledger.mark(), True

    def prepare_candidate() -> None:
        if not session.ledger.failed():
            for side in sides:
                if side.name == CANDIDATE and not side.prepared:
                    prepare(session, side)

    while parts:
        some, others = parts[: session.concurrency], parts[session.concurrency :]
        session.warm_up(part.worker for part in others[: session.concurrency])
        try:
            session.run_phases(some, before_the_last=nothing if others else prepare_candidate)
        except Lost as lost:
            session.recover(lost)
            parts = [*_afresh(session, some), *others]
        except Short as short:
            _make_room(session, sides, short)
            session.ledger.back_to(mark)
            parts = [*_afresh(session, some), *others]
        except Stopped:
            complete, parts = False, [] if session.is_over() else others
            mark = session.ledger.mark()
        else:
            parts, mark = others, session.ledger.mark()
    return complete


def _afresh(session: Session, parts: Sequence[Part]) -> list[Part]:
    """The same, of processes that know nothing yet."""
    return [replace(p, worker=session.start_candidate(p.phase.name, p.slot)) for p in parts]


__all__ = ["Judging", "Limits", "judge", "judge_request", "open_judging", "replay"]
