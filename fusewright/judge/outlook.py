"""The plan of a judging, and what has been done of it -> share done, and seconds that are left.

Each experiment has seconds on paper, from the calls that the plan has for it. What those done so
far have taken, against their paper, says how long the rest will take: on this machine, for this
problem, beside these neighbours. So it is with starts of processes, by themselves. Nothing is
decided by it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

# Measured on two cores of a CPU [m: judge-0001]. A judged call with few elements, and a message.
CALL_S, MESSAGE_S = 0.008, 0.003
# Of the examination, a call of full size takes such a share: of a cheap problem most calls are
# right at first sight; of a costly one it has looked at some rows only.
CHEAP, COSTLY = 0.16, 0.75
# Until a process has the model, on a GPU with a context of CUDA [m: judge-0002]; building a kernel.
PROCESS_S: Mapping[str, float] = {"cpu": 0.05, "cuda": 2.0}
BUILD_S = 0.8
ENDING_S = 0.3
BELIEF = 0.06  # of the whole, on paper: so much must be done before its seconds count as much


@dataclass(frozen=True)
class Calls:
    """What an experiment asks, about: judged calls of full size, with fewer rows, other messages.

    Where the plan decides how many calls there are: the name of its part, and the most of them.
    """

    whole: float
    few: float = 0.0
    messages: float = 0.0
    times: float = 1.0  # as long as a plain call, because the reference is asked more
    part: str = ""
    most: int = 0


# Of a cheap problem, and of one that is asked most of its questions with fewer rows.
_CHEAP: Mapping[str, Calls] = {
    "fresh": Calls(0, 0, 6, 1.5, "fresh", 6),
    "grad-mode": Calls(1),
    "stale-cache": Calls(5, 0, 2),
    "weight-change": Calls(9, 0, 10),
    "probes": Calls(8, 0, 10),
    "hazards": Calls(37, times=1.6),
    "dtypes": Calls(3, 0, 6, 2.0),
    "modes": Calls(0, 0, 0, 1.0, "modes", 4),
    "buffers": Calls(0, 0, 1),
    "instances": Calls(4, 0, 3),
    "determinism": Calls(0, 0, 0, 1.0, "determinism", 8),
    "soak": Calls(0, 0, 10, 1.0, "soak", 48),
    "side-stream": Calls(4),
}
_COSTLY: Mapping[str, Calls] = {
    "fresh": Calls(2, 4, 3, 1.5),
    "grad-mode": Calls(0, 1),
    "stale-cache": Calls(3, 6, 4),
    "weight-change": Calls(1, 9, 10),
    "probes": Calls(2, 6, 5),
    "hazards": Calls(3, 30, 0, 1.4),
    "dtypes": Calls(1, 0, 3),
    "modes": Calls(1, 4),
    "buffers": Calls(0, 0, 1),
    "instances": Calls(1, 3, 3),
    "determinism": Calls(2, 9),
    "soak": Calls(4, 49, 4),
    "side-stream": Calls(2, 2),
}


CALLS, START, ONCE = "calls", "start", "once"  # kinds of steps


@dataclass(frozen=True)
class Step:
    """seconds: on paper.  messages: that its end is away from its beginning.

    kind: of what other steps its seconds say something; those of a ONCE say nothing.
    """

    name: str
    seconds: float
    messages: float
    kind: str = CALLS


# Whose number of calls the plan decides: parts of it, and the most calls of each.
PLANNED = {asked.part: asked.most for asked in _CHEAP.values() if asked.part}


def steps_of(
    phases: Iterable[tuple[str, Iterable[str]]], planned: Mapping[str, int], examined_s: float, *,
    few: bool, builds: bool, device: str = "cpu",
) -> list[Step]:  # fmt: skip
    """Names of phases and of their experiments -> what is to be done, in its order.

    planned: calls, by the names of `PLANNED`.  examined_s: how long the examination took.  few:
    whether most calls have fewer rows.  builds: whether the candidate builds kernels.  device: of
    `PROCESS_S`.
    """
    whole = CALL_S + examined_s * (COSTLY if few else CHEAP)
    table = _COSTLY if few else _CHEAP
    made = []
    for number, (phase, experiments) in enumerate(phases):
        for name in experiments:
            if name == "setup":
                made.append(Step(f"{phase} {name}", PROCESS_S[device], 5.0, START))
            elif (asked := table.get(name)) is not None:
                full = asked.whole + (planned[asked.part] if asked.part else 0)
                seconds = full * whole + asked.few * min(whole, 2 * CALL_S)
                seconds = asked.times * seconds + asked.messages * MESSAGE_S
                first = name == "fresh"  # with what happens once: building, loading libraries
                seconds += BUILD_S if first and builds and not number else 0.0
                messages = full + asked.few + asked.messages
                kind = ONCE if first else CALLS
                made.append(Step(f"{phase} {name}", seconds, messages, kind))
    return made


@dataclass
class _Current:
    """A step that has begun: what it has taken so far, and how many answers it has heard."""

    step: Step | None
    spent: float = 0.0
    heard: int = 0


class Outlook:
    """Of one judging: what is done, what is left.

    Several steps may be under way, each in a lane of its own; they take turns, and what a moment
    takes belongs to the step whose turn it is.
    """

    def __init__(
        self, steps: Iterable[Step], behind_s: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        """behind_s: that what comes after all steps will take."""
        self._now, self._behind = now, behind_s
        self._left = {step.name: step for step in steps}
        # By kind: seconds of paper that count like seconds spent, and what is done of both.
        self._belief: dict[str, float] = defaultdict(float)
        for step in self._left.values():
            if step.kind == CALLS:  # starts of one judging are alike: the first one is believed
                self._belief[CALLS] += BELIEF * step.seconds
        self._paper: dict[str, float] = defaultdict(float)
        self._spent: dict[str, float] = defaultdict(float)
        self._begun = self._since = now()
        self._lane = 0
        self._at: dict[int, _Current] = {}

    def turn(self, lane: int) -> None:
        """From now on it is this lane's turn."""
        self._account()
        self._lane = lane

    def begin(self, name: str) -> None:
        """The next step of the lane whose turn it is, or one that is in no plan."""
        self._account()
        ended = self._at.pop(self._lane, None)
        if ended is not None and ended.step is not None:
            self._paper[ended.step.kind] += ended.step.seconds
            self._spent[ended.step.kind] += ended.spent
        self._at[self._lane] = _Current(self._left.pop(name, None))

    def heard(self) -> None:
        """One more answer in the current step."""
        self._at[self._lane].heard += 1

    def _account(self) -> None:
        now = self._now()
        if self._lane in self._at:
            self._at[self._lane].spent += now - self._since
        self._since = now

    def seconds_left(self) -> float:
        """By what is done so far, and by the paper."""
        self._account()
        rest = sum(step.seconds * self._rate(step.kind) for step in self._left.values())
        return sum(map(self._own, self._at.values())) + rest + self._behind

    def _own(self, at: _Current) -> float:
        """Seconds left of a step that has begun."""
        if at.step is None:
            return 0.0
        done = min(at.heard / max(at.step.messages, 1.0), 1.0)
        left = max(at.step.seconds * self._rate(at.step.kind) - at.spent, 0.0)
        if done:  # as fast as so far, once there is something to go by
            left = (1 - done) * left + done * at.spent * (1 - done) / done
        return left

    def _rate(self, kind: str) -> float:
        """What a second of such steps' paper has taken so far."""
        belief = self._belief[kind]
        if kind == ONCE or not belief + self._paper[kind]:
            return 1.0
        return (belief + self._spent[kind]) / (belief + self._paper[kind])

    def share(self) -> float:
        """Of the time that all of it takes."""
        spent = self._now() - self._begun
        return spent / max(spent + self.seconds_left(), 1e-9)
