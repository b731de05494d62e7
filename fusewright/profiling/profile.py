"""A problem, perhaps a candidate -> where the time of a call goes, for each side.

Each side has a process of its own in the judge's sandbox. One after the other takes a few turns
without the profiler, by the clock of `bench`: that is how long a call takes. Then it takes a turn
with it. Every call has fresh inputs and cold caches, and every output of the candidate is compared.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fusewright.errors import BadUsage, NotVerifiable
from fusewright.judge.isolation.worker_pool import open_site
from fusewright.judge.request import Request
from fusewright.judge.session import Session
from fusewright.judge.timing.bench import CALLS_BY_SECONDS
from fusewright.judge.timing.fallback import fallback
from fusewright.judge.timing.sides import (
    CANDIDATE,
    COMPILED,
    EAGER,
    ENVIRONMENT,
    FEWEST_ROUNDS,
    LostSide,
    Round,
    Side,
    prepare,
    ready,
    start,
    take_turn,
    timed,
)
from fusewright.profiling.recorded import MOST_BYTES, Call, recorded_calls
from fusewright.profiling.rows import rows_of, summed, with_steps
from fusewright.profiling.side_profile import Profile, SideProfile
from fusewright.profiling.steps import StepAmounts, step_amounts

PROGRAM = "fusewright.profiling.worker"
BASELINES: Mapping[str, str] = {"eager": EAGER, "compile": COMPILED}
CLOCK_S = 3.0  # of turns without the profiler, if not asked otherwise
MOST_ROUNDS = 30
# Profiled calls of a side, by the seconds that one takes; the first of them is left out.
CALLS = ((0.1, 1 + 9), (1.0, 1 + 5), (math.inf, 1 + 3))


@dataclass(frozen=True)
class Profiled:
    """A profile, and the calls that it was made of, by the names of the sides."""

    profile: Profile
    calls: Mapping[str, Sequence[Call]] = field(default_factory=dict)


def profile(  # noqa: PLR0913 -- each is something that a user may ask for
    problem: Path | str,
    candidate: Path | str | None = None,
    *,
    device: str = "cpu",
    against: tuple[str, ...] = tuple(BASELINES),
    overrides: Mapping[str, str] | None = None,
    budget_s: float = CLOCK_S,
    seed: str = "",
    deadline: float = math.inf,
    progress: Callable[[str], None] = lambda _: None,
) -> Profiled:
    """Profile eager, torch.compile, or both, and a candidate if there is one.

    against: of BASELINES.  budget_s: seconds of turns without the profiler.  overrides, seed,
    deadline: as `judge` takes them.  Raises BadUsage where nothing is to be profiled, and
    NotVerifiable where a side does not run, answers wrongly, or the profiler does not see it.
    """
    names = [CANDIDATE] * (candidate is not None)
    names += [name for asked, name in BASELINES.items() if asked in against]
    if not names:
        raise BadUsage("Nothing is to be profiled: name a candidate, or a baseline in --against.")
    path = Path(problem).absolute()
    own = path if candidate is None else Path(candidate).absolute()
    request = Request(
        path, own, device, against=against, overrides=dict(overrides or {}), budget_s=budget_s,
        seed=seed, deadline=deadline,
    )  # fmt: skip
    with open_site(device, (ENVIRONMENT,)) as site:
        session = Session(request, site, progress)
        if candidate is not None:
            session.read_candidate()
        try:
            return _Profiling(session).of(names)
        except LostSide as error:
            raise NotVerifiable(f"{own.name} cannot be profiled: {error}.") from error
        finally:
            session.close()


class _Profiling:
    """One profile in the making."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._round = 0

    def of(self, names: Sequence[str]) -> Profiled:
        session, steps = self._session, dict[str, StepAmounts]()
        sides = start(session, names, range(len(names)), PROGRAM)
        session.open_problem()
        for side in reversed(sides):  # torch.compile takes longest
            if side.is_baseline:
                prepare(session, side)
        if CANDIDATE in names:
            steps.update(step_amounts(session.source, session.request.candidate.name))
        session.examine()
        session.ask_reference(do="between", lab="problem")  # it gets ready for turns
        missing = self._wait(sides)
        done, calls = [], {}
        for side in sides:
            session.progress(f"profiling {side.name}")
            self._clock(side, session.request.budget_s / len(sides))
            found, calls[side.name] = self._profiled(side, steps)
            done.append(found)
        return Profiled(Profile(session.request.device, tuple(done), missing), calls)

    def _wait(self, sides: list[Side]) -> Mapping[str, str]:
        """Have all sides get ready. Why some baselines take no part."""
        session, missing = self._session, {}
        session.progress("getting ready")
        for side in list(sides):
            if not side.prepared:
                prepare(session, side)
            why = ready(session, side)
            if why and side.name == COMPILED and len(sides) > 1:
                missing[side.name] = why
                sides.remove(side)
            elif why and side.is_baseline:
                raise NotVerifiable(f"the baseline ({side.name}) does not run: {why}")
            elif why:
                raise LostSide(why)
        return missing

    def _clock(self, side: Side, share_s: float) -> None:
        """A few turns without the profiler, so that they differ in nothing else from what comes."""
        limits, begin = CALLS_BY_SECONDS[self._session.request.device], time.monotonic()
        warm, calls = limits[-1][1]
        self._turn(side, warm, calls, counts=False)  # it only tells how long a turn may be
        typical = (time.monotonic() - begin) / (warm + calls)
        warm, calls = next(n for limit, n in limits if typical < limit)
        begin, rounds = time.monotonic(), 0
        while rounds < FEWEST_ROUNDS or (
            rounds < MOST_ROUNDS and time.monotonic() - begin < share_s
        ):
            self._turn(side, warm, calls)
            rounds += 1

    def _turn(self, side: Side, warm: int, calls: int, *, counts: bool = True) -> None:
        """Calls with inputs that no other turn has had."""
        take_turn(self._session, side, Round(self._round, warm, calls, counts=counts))
        self._round += 1

    def _profiled(
        self, side: Side, steps: Mapping[str, StepAmounts]
    ) -> tuple[SideProfile, Sequence[Call]]:
        session, device = self._session, self._session.request.device
        call_s = statistics.median(seconds for turn in side.turns for seconds in turn)
        count = next(n for limit, n in CALLS if call_s < limit)
        timed(session, side, {"do": "profile begin"})
        self._turn(side, 0, count, counts=False)
        record, _ = timed(session, side, {"do": "profile end"})
        content = record.tensors[0].nbytes if record.tensors else 0
        if not 0 < content <= MOST_BYTES:
            raise NotVerifiable(f"The profile of {side.name} has {content} bytes.")
        found = recorded_calls(session.content(side.worker, record), side.name)
        _demand_all(side, found, count, device)
        _, *calls = found
        sums = [summed(call, device) for call in calls]
        own, is_example = steps if not side.is_baseline else {}, _is_example(record.text)
        rows = with_steps(rows_of(sums), own, is_example=is_example is True)
        call_us, busy = call_s * 1e6, statistics.median(one.busy_us for one in sums)
        made = SideProfile(
            side.name,
            call_us,
            profiled_us=statistics.median(one.span_us for one in sums),
            busy_us=busy,
            between_us=statistics.median(one.span_us - one.busy_us for one in sums),
            unaccounted_us=call_us - busy,
            calls=len(calls),
            rows=rows,
        )
        return (made if side.is_baseline else self._noted(made, side, own, is_example)), calls

    def _noted(
        self, made: SideProfile, side: Side, steps: Mapping[str, StepAmounts], example: bool | None
    ) -> SideProfile:
        """With what its class says of its own calls, and why there is no roofline."""
        refused, said = fallback([timed(self._session, side, {"do": "status"})[0].text])
        notes = [said] * (refused > 0)
        if steps and example is not True:
            sizes = "are others than" if example is False else "may not be"
            notes.append(
                f"bytes and roofline are left out: these sizes {sizes} those of the file's comments"
            )
        return replace(made, note="; ".join(notes))


def _demand_all(side: Side, calls: Sequence[Call], count: int, device: str) -> None:
    """Raises NotVerifiable where the profiler has not seen the calls, or not what the GPU did."""
    if len(calls) != count:
        raise NotVerifiable(
            f"The profiler has seen {len(calls)} of {count} calls of {side.name}. Code in that "
            "process may use the profiler, too: leave it out."
        )
    if device == "cuda" and not any(call.device for call in calls):
        raise NotVerifiable(
            f"The profiler has seen nothing of {side.name} on the GPU. It needs CUPTI, which a "
            "driver may keep from users (NVreg_RestrictProfilingToAdminUsers), and which another "
            "profiler may have taken: `python -c 'import torch; print(torch.profiler."
            "supported_activities())'` says whether PyTorch has it."
        )


def _is_example(text: str) -> bool | None:
    """What a side says of the sizes of its arguments; None where that is nothing."""
    try:
        said = json.loads(text)["example"]
    except (ValueError, KeyError, TypeError):
        return None
    return said if isinstance(said, bool) else None
