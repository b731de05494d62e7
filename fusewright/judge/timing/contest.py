"""Several candidates for one problem -> how fast each is, in one run of interleaved turns.

Every round has a turn of each candidate and of each baseline, in random order, on the same fresh
inputs. So two candidates are compared as a candidate and eager are: pair by pair. A candidate that
breaks, or answers wrongly, takes no part any more, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fusewright.common.timing_lock import Turn
from fusewright.errors import BadUsage
from fusewright.judge.findings import Ledger
from fusewright.judge.isolation.processes import Worker
from fusewright.judge.isolation.worker_pool import open_site
from fusewright.judge.request import Request
from fusewright.judge.session import Session, source_of
from fusewright.judge.timing import statistics
from fusewright.judge.timing.bench import (
    Run,
    Timing,
    Unclear,
    conclude,
    floors_of,
    take_turns,
)
from fusewright.judge.timing.sides import EAGER, ENVIRONMENT, Side, participants, prepare, start

NO_PART = "it takes no part in the timing any more"
FASTEST = "the fastest"  # what is claimed of the first
MOST = 8  # candidates at once: each has a process, and memory that it shares with the judge


@dataclass(frozen=True)
class Contest:
    """timings: of each candidate that came through, by name, the fastest first.  lost: why the
    others did not.  unclear: of those whose clocks contradict each other, which is nobody's fault
    for certain, and worth another run.  over_best: how many times as fast as the fastest each is,
    with its interval and what may be claimed."""

    timings: Mapping[str, Timing]
    lost: Mapping[str, str]
    unclear: Mapping[str, str]
    over_best: Mapping[str, Mapping[str, object]]


def contest(
    request: Request,
    candidates: Mapping[str, Path],
    turn: Turn = nullcontext,
    progress: Callable[[str], None] = lambda _: None,
) -> Contest:
    """Time them together; every timed output is compared, but right is what `judge` says.

    request: of any one of them; its budget is of the turns of each.  candidates: by any names, 8 at
    most.  turn: entered for the timed calls.  Raises BadUsage for none or too many, and
    NotVerifiable where the baselines do not run.
    """
    if not 1 <= len(candidates) <= MOST:
        raise BadUsage(f"{len(candidates)} candidates: 1 to {MOST} can be timed in one run.")
    request = replace(request, budget_s=request.budget_s * len(candidates))
    with open_site(request.device, (ENVIRONMENT,)) as site:
        session = Session(request, site, progress)
        try:
            sides = start(session, participants(request)[1:], range(len(participants(request)) - 1))
            rivals = {
                _rival(session, len(sides) + number, number + 1, path): name
                for number, (name, path) in enumerate(candidates.items())
            }
            session.open_problem()
            for side in reversed(sides):  # torch.compile takes longest
                prepare(session, side)
            session.examine()
            lost: dict[str, str] = {}

            def lose(side: Side, why: str) -> None:
                lost[rivals[side]] = why
                side.worker.kill(NO_PART)  # else it could slow those that go on

            run = take_turns(session, [*sides, *rivals], turn, lose)
            return _ranked(session, run, rivals, lost) if run else Contest({}, lost, {}, {})
        finally:
            session.close()


def _rival(session: Session, slot: int, number: int, path: Path) -> Side:
    """A candidate in a process that shares nothing with those of the others."""
    source, site = source_of(path), session.site.apart(number)

    def begin(generation: int) -> Worker:
        return session.start_candidate(
            f"candidate-{number}", slot, environment=ENVIRONMENT, cold=True, site=site,
            origin=path, generation=generation,
        )  # fmt: skip

    return Side(f"candidate {number}", begin(0), slot, source, begin)


def _ranked(
    session: Session, run: Run, rivals: Mapping[Side, str], lost: dict[str, str]
) -> Contest:
    session.costs.enter("floors of the time")
    floors, found, unclear = floors_of(session, run), dict[Side, Timing](), dict[str, str]()
    for side in run.candidates:
        session.ledger = Ledger(())
        try:
            timing = conclude(session, run, side, floors)
        except Unclear as error:
            unclear[rivals[side]] = f"its clocks contradict each other: {error}"
            continue
        if timing is None or session.ledger.failed():
            lost[rivals[side]] = "; ".join(f.detail for f in session.ledger.findings())
        else:
            found[side] = timing
    eager = run.baselines[EAGER].processes
    times = {side: statistics.ratio(eager, side.processes).median for side in found}
    order = sorted(found, key=lambda side: (-times[side], rivals[side]))
    over_best: dict[str, Mapping[str, object]] = {}
    for side in order:
        ratio = statistics.ratio(order[0].processes, side.processes)
        claim = statistics.claim(ratio, found[side].null) if side is not order[0] else FASTEST
        over_best[rivals[side]] = asdict(ratio) | {"claim": claim}
    return Contest({rivals[side]: found[side] for side in order}, lost, unclear, over_best)
