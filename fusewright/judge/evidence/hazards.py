"""Legal inputs that get_inputs() never shows -> rows: right, refused clearly, or wrong.

A kernel that is right for what get_inputs() draws may be wrong for other values, strides, shapes
and types. Cases come in a secret order, as many as the plan has, and what eager refuses is no case.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusewright.judge.counts import WORTH
from fusewright.judge.evidence import hazard_cases
from fusewright.judge.evidence.experiments import construct
from fusewright.judge.evidence.hazard_cases import Case
from fusewright.judge.evidence.legal_inputs import Illegal, ShortOfMemory, TooLarge, tried
from fusewright.judge.evidence.pytree import mapped, tensors
from fusewright.judge.evidence.trial import STICKY, Refused, Starved, Steps, Trial, is_clear
from fusewright.judge.isolation import tensor_transport

if TYPE_CHECKING:
    from fusewright.judge.evidence.expected_answers import Expected
    from fusewright.judge.evidence.oracle import Oracle

FULL_SHARE = 0.3  # where most cases are shortened: for those that are not
SHORT_SHARE = 0.5  # of all, for those that are, however much the full ones take
FEWEST_ROWS, FEWEST_CASES = 2, 2
SLOW = ("tiny-denormal",)  # a CPU takes a hundred times as long for these: not of full size
NO_DEFAULT_CALLS = 3
FAMILY_CHECK = {
    "fresh": "values", "strides": "hazard-strides", "storage": "hazard-strides",
    "aliasing": "hazard-strides", "shapes": "hazard-shapes",
}  # fmt: skip
CHECKS = ("hazard-values", "hazard-strides", "hazard-shapes")
MAY_REFUSE = ("hazard-strides", "hazard-shapes", "hazard-dtypes")
DTYPES = (torch.float64, torch.bfloat16, torch.float16)


@dataclass
class Tally:
    """What became of the cases, by check."""

    right: dict[str, list[str]] = field(default_factory=dict)
    refused: dict[str, list[str]] = field(default_factory=dict)
    beyond: dict[str, int] = field(default_factory=dict)  # the plan
    large: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)  # where eager itself is
    starved: dict[str, list[str]] = field(default_factory=dict)  # no memory: name and bytes

    def add(self, where: dict[str, list[str]], check: str, name: str) -> None:
        where.setdefault(check, []).append(name)

    def answered(self, t: Trial, check: str, name: str) -> None:
        """The candidate gave results; if eager's mean nothing, nobody knows what to make of it."""
        if t.lost:
            self.lost[check] = self.lost.get(check, 0) + 1
        else:
            self.add(self.right, check, name)

    def tried(self, check: str) -> int:
        """How many the candidate has answered, or refused."""
        return sum(len(where.get(check, ())) for where in (self.right, self.refused))

    def say(self, t: Trial, check: str) -> None:
        names, refusals = self.right.get(check, []), self.refused.get(check, [])
        beyond, starved = self.beyond.get(check, 0), self.starved.get(check, [])
        more = f"; {beyond} more are not in the plan" if beyond else ""
        if check in self.large:
            more += f"; {self.large[check]} too large to be tried"
        if check in self.lost:
            more += f"; eager is lost in {self.lost[check]}"
        if starved:
            more += f"; no memory for {len(starved)} ({starved[0]})"
        if (starved or check in self.large) and len(names) + len(refusals) < FEWEST_CASES:
            what = "short" if starved else "gap"
            t.say(check, what, f"only {len(names)} cases could be tried{more}")
        if refusals:
            t.say("specialised", "note", f"refuses {', '.join(refusals[:12])}")
        if names or refusals:
            short = sum("@" in name for name in names)
            rows = f" ({short} of them with fewer rows)" if short else ""
            text = f"{len(names)} right{rows}, {len(refusals)} refused clearly{more}"
            t.say(check, "pass", text)
        else:
            t.say(check, "skip", f"eager accepts no such case{more}")


@dataclass(frozen=True)
class Plan:
    """Cases and their names, the most wanted first, and how many of them are asked."""

    queue: list[tuple[Case, str]]
    count: int


def hazards(t: Trial) -> Steps:
    """All cases that eager accepts, or as many as the plan has; what may crash a kernel last."""
    tally, inputs = Tally(), t.lab.inputs("hazards")
    only = str(t.options.get("case") or "")
    if only:
        name, _, rows = only.partition("@")
        chosen = hazard_cases.shortened(inputs, int(rows)) if rows else inputs
        for case in _ordered(t, chosen):
            if case.name == name:
                yield from _try(t, case, only, tally)
    else:
        yield from _planned(t, inputs, tally)
        yield from _at_least(t, tally)
    for check in CHECKS:
        tally.say(t, check)
    t.say("values", "pass", f"{len(tally.right.get('values', []))} resampled draws")


def _planned(t: Trial, inputs: Sequence[object], tally: Tally) -> Steps:
    """What the plan has, and of each check a few cases in any case, among them a single row, and
    two sizes at once.

    Neither the candidate's seconds nor anybody else's decide what that is.
    """
    matrix = _ordered(t, inputs)
    required = [case for case in matrix if case.required]
    others = [case for case in matrix if not case.required]
    for case in required:
        if few := (yield from t.fewer()):
            short = {c.name: c for c in _ordered(t, hazard_cases.shortened(inputs, few))}
            yield from _try(t, short[case.name], f"{case.name}@{few}", tally)
        else:
            yield from _try(t, case, case.name, tally)
    plan = yield from _shortened(t, others, inputs, len(required), tally)
    wanted = {name for _, name in plan.queue[: plan.count]}
    wanted |= {name for case, name in plan.queue if case.name in hazard_cases.ALWAYS}
    for case, name in sorted(plan.queue, key=lambda pair: pair[0].isolated):
        check = check_of(case)
        if name not in wanted and tally.tried(check) >= FEWEST_CASES:
            tally.beyond[check] = tally.beyond.get(check, 0) + 1
        elif not t.stopped:
            yield from _try(t, case, name, tally)


def _at_least(t: Trial, tally: Tally) -> Steps:
    """A reference that takes next to nothing that it was not made for is given what it takes."""
    check = "hazard-values"
    for number in range(FEWEST_CASES - len(tally.right.get(check, ()))):
        if not t.stopped and check not in tally.starved:
            build = partial(t.lab.inputs, "drawn", number)
            case = Case(f"drawn-{number}", "drawn", True, False, build)
            yield from _try(t, case, case.name, tally)


def check_of(case: Case) -> str:
    """The check that a case belongs to."""
    return FAMILY_CHECK.get(case.family, "hazard-values")


def _ordered(t: Trial, inputs: Sequence[object]) -> list[Case]:
    """The matrix in a secret order, but so that each check has its turn where time is short."""
    matrix = list(hazard_cases.matrix(inputs, seed=t.lab.seed("hazards") % 2**31))
    Random(t.lab.seed("order of hazards")).shuffle(matrix)
    turns: dict[str, int] = {}
    rank = {}
    for case in matrix:
        check = check_of(case)
        rank[case.name] = turns[check] = turns.get(check, 0) + 1
    return sorted(matrix, key=lambda case: rank[case.name])


def _shortened(
    t: Trial, others: list[Case], inputs: Sequence[object], required: int, tally: Tally
) -> Generator[dict[str, Any], Any, Plan]:
    """Where not all fit into the plan, most cases get fewer rows: if that is legal and cheaper.

    A candidate that refuses fewer rows is asked everything at full size.
    """
    counts, size = t.lab.counts, hazard_cases.rows_of(inputs)
    everything = [(case, case.name) for case in others]
    left = max(counts.share("hazards") - required * counts.call, 0.0)
    if counts.call * len(others) <= left:
        return Plan(everything, len(others))
    several = FEWEST_CASES * len(CHECKS)
    kept = max(len(CHECKS), int(left * FULL_SHARE / counts.call))
    room = max(left * (1 - FULL_SHARE), counts.share("hazards") * SHORT_SHARE)
    rows = int(size * room / (counts.call * len(others)))
    rows = min(max(rows, FEWEST_ROWS), size // 2)
    short = hazard_cases.shortened(inputs, rows) if size >= 2 * FEWEST_ROWS else inputs
    cost = counts.call if short is inputs else _cost(t.lab, short)
    if cost > WORTH * counts.call:
        return Plan(everything, max(several, int(left / counts.call)))
    matrix = {case.name: case for case in _ordered(t, short)}
    first = next(case for case in matrix.values() if case.required)
    answered = yield from _try(t, first, f"{first.name}@{rows}", tally, "hazard-shapes")
    if not answered:
        return Plan(everything, len(others))
    whole = [pair for pair in everything if pair[1] not in SLOW][:kept]
    left_over = [case.name for case in others if (case, case.name) not in whole]
    rest = [(matrix[name], f"{name}@{rows}") for name in left_over if name in matrix]
    most = max(several, int(room / cost))
    return Plan([*whole, *rest], len(whole) + most)


def _cost(lab: Oracle, short: Sequence[object]) -> float:
    """Of a call with fewer rows; where the reference does not take them, they save nothing."""
    try:
        with tried("fewer rows", lab.left_out):
            return lab.paper(short).call
    except (Illegal, ShortOfMemory):
        return lab.counts.call


def _try(
    t: Trial, case: Case, name: str, tally: Tally, check: str = ""
) -> Generator[dict[str, Any], Any, bool]:
    """One case; True if the candidate answered."""
    check = check or check_of(case)
    try:
        accepted = yield from _case(t, case, name, check)
    except Refused as refusal:
        if _refused(t, refusal, check):
            tally.add(tally.refused, check, name)
        return False
    except Starved as why:
        t.starved(why)
        return False
    except TooLarge:
        tally.large[check] = tally.large.get(check, 0) + 1
        return False
    except Illegal:  # taken by eager, but not in float64
        return False
    except ShortOfMemory as error:
        tally.add(tally.starved, check, f"{name}: {error}")
        return False
    if accepted:
        tally.answered(t, check, name)
    return accepted


def no_default(t: Trial) -> Steps:
    """Where eager runs under a default device only: without it, a candidate is right, or raises."""
    if not t.lab.placing.device:
        return
    label, check = "without a default device", "structure"
    for number in range(NO_DEFAULT_CALLS):
        values = t.lab.inputs("no default", number)
        try:
            yield from t.call(values, label=label, typical=True, default_device="")
        except Refused as refusal:
            if is_clear(refusal):
                t.say("default-device", "note", f"{label} the candidate raises, as eager does")
            else:
                _refused(t, refusal, check)
            return
    t.say("default-device", "note", f"{label} the candidate is right, where eager raises")


def _refused(t: Trial, refusal: Refused, check: str) -> bool:
    """Was that a clear refusal where one is allowed? Everything else is a failure."""
    sticky = any(word in str(refusal) for word in STICKY)
    if check in MAY_REFUSE and is_clear(refusal):
        t.counted(check)
        return True
    t.fail(check, f"raised {str(refusal)[:300]}")
    t.stopped = t.stopped or sticky
    return False


def _case(t: Trial, case: Case, name: str, check: str) -> Generator[dict[str, Any], Any, bool]:
    lab = t.lab
    mode = "eval" if "eval" in lab.modes and case.family == "shapes" else lab.modes[0]
    values = case.build()
    begin = time.monotonic()
    expected = lab.accepts(name, values, mode)
    if expected is None:
        return False
    t.seconds = time.monotonic() - begin  # this shape may take much longer than the last one
    t.hazard = not case.required
    if case.required and lab.costly and lab.typical is not None and mode == lab.modes[0]:
        expected = replace(expected, like=lab.typical)
    try:
        yield from t.call(values, label=name, reports_to=check, mode=mode, known=expected)
    finally:
        t.hazard = False
    return True


def dtypes(t: Trial) -> Steps:
    """Other floating types, of the module or of its inputs alone: never silently wrong."""
    lab, check, tally = t.lab, "hazard-dtypes", Tally()
    types = _types(lab)
    count = lab.counts.calls("dtypes", len(types), 1, each=lab.counts.call)
    try:
        for number, (name, dtype, whole) in enumerate(types):
            if number >= count and tally.tried(check):
                tally.beyond[check] = tally.beyond.get(check, 0) + 1
                continue
            t.lab = lab.cast(dtype) if whole else lab
            values = mapped(lab.own_values, partial(_cast, dtype=dtype))
            try:
                expected = None if t.stopped else t.lab.accepts(name, values, lab.modes[0])
                if expected is not None:
                    yield from _cast_call(t, values, name, check, expected, whole=whole)
                    tally.answered(t, check, name)
            except Refused as refusal:
                if _refused(t, refusal, check):
                    tally.add(tally.refused, check, name)
            except Starved as why:
                t.starved(why)
            except Illegal:
                continue
            except ShortOfMemory as error:
                tally.add(tally.starved, check, f"{name}: {error}")
    finally:
        t.lab = lab
    tally.say(t, check)


def _types(lab: Oracle) -> list[tuple[str, torch.dtype, bool]]:
    """Name, type, and whether the module has it too; in a secret order."""
    if any(x.is_complex() for x in (*lab.model.parameters(), *lab.model.buffers())):
        return []  # `to(dtype)` drops the imaginary parts of its parameters
    given = [x.dtype for x in tensors([lab.own_values, dict(lab.state)]) if x.is_floating_point()]
    other = [dtype for dtype in DTYPES if dtype is not next(iter(given), None)]
    Random(lab.seed("order of types")).shuffle(other)
    if lab.costly:  # there will be time for one: that of which most processors make short work
        other.sort(key=lambda dtype: dtype is not torch.bfloat16)
    made = [(str(dtype).removeprefix("torch."), dtype, True) for dtype in other]
    if any(x.is_floating_point() for x in lab.state.values()):
        made += [(f"{name} inputs", dtype, False) for name, dtype, _ in made]
    return made


def _cast_call(
    t: Trial, values: Sequence[object], name: str, check: str, expected: Expected, *, whole: bool
) -> Steps:
    t.label, t.hazard = name, True
    if whole and t.lab.costly:
        expected = t.lab.expect(
            tensor_transport.pack(values, 0), t.lab.state, t.lab.modes[0], t.lab.typical
        )
    try:
        if whole:
            yield from construct(t, 2, dtype=name)
            yield from t.load(t.lab.state, instance=2)
        instance = 2 if whole else 0
        yield from t.call(values, label=name, reports_to=check, instance=instance, known=expected)
    finally:
        t.hazard = False


def _cast(t: Tensor, dtype: torch.dtype) -> Tensor:
    return t.to(dtype, copy=True) if t.is_floating_point() else t.clone()
