"""Outputs of candidate, eager and float64 -> one Comparison: is the candidate as accurate as eager?

The promise: never less accurate than the eager model under the same PyTorch flags, measured against
float64. Both errors are taken against float64 in units of the problem's own sensitivity kappa: what
one unavoidable rounding of the data does to this output. The candidate is never compared with
eager's values, so a better candidate cannot fail for being different.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from fusewright.judge.evidence.error_metrics import (
    TILE,
    Errors,
    Measure,
    Most,
    everywhere,
    measure,
    rows_beyond,
    together,
    within,
    within_least,
)
from fusewright.judge.evidence.float64_twins import Doubles, generator, shaken
from fusewright.judge.evidence.legal_inputs import Illegal
from fusewright.judge.evidence.pytree import mapped, tensors, upcast

Run = Callable[[Sequence[object], Mapping[str, Tensor]], list[Tensor]]
Mode = Literal["contract", "loose"]

PAIRS = 2  # of draws, for the sensitivity of an output that nobody passes with fewer
WIDE_DRAW = 64.0  # draws perturb by so many roundings, to see corners and jumps nearby
WIDEST = 2.0**-9  # but never more than this share of a value
STEP = 4.0  # a jump is so many kappa: either side of it is right
LOOSE = {torch.float64: 1e-9, torch.float32: 1e-4}  # plain tolerance of grade C
LOOSE_HALF = 1e-2
FAULT = 0.1  # eager this far from float64 (relative L2) makes the problem unusable
MORE_ACCURATE = 0.5
SHORT = "within the limits in units of the smallest kappa that there can be"
# Before an output is called inaccurate, eager runs on inputs that are smaller by up to such shares.
NEAR = (0.0, 2.0**-4, 2.0**-5, 2.0**-6, 2.0**-7)
GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio, for hashes: Knuth, TAOCP 3, 6.4


@dataclass(frozen=True)
class Limit:
    """Passes up to `times` eager's own error, or up to `kappas` units, whichever is larger."""

    times: float
    kappas: float


# docs/judge-calibration.md: honest kernels and bad ones on both sides of these numbers
GRADES: Mapping[str, Mapping[str, Limit]] = {
    "A": {
        "rms": Limit(2, 4),
        "line": Limit(2, 8),
        "tile": Limit(2, 16),
        "peak": Limit(4, 64),
        "element": Limit(4, 64),
    },
    "B": {
        "rms": Limit(8, 16),
        "line": Limit(8, 32),
        "tile": Limit(8, 64),
        "peak": Limit(16, 256),
        "element": Limit(16, 256),
    },
}
# Half precision: kappa counts a rounding of every input, but only the output's is unavoidable.
# Double: float64 itself is the truth here, so its own rounding is counted against the candidate.
SLACK = {torch.float64: 64.0, torch.float32: 1.0}
SLACK_HALF = 0.125
NO_ERRORS: Mapping[str, float] = MappingProxyType({})
SOME_ROWS = 4  # no more than such a part of the rows is looked at alone
HALF_OF_IT = 0.5  # of the limits, between candidate and eager, needs no float64
HAZARD = 4.0  # on inputs unlike get_inputs(), so many times more kappas


@dataclass(frozen=True)
class Comparison:
    """One output tensor judged in one case."""

    passed: bool
    grade: str  # "A", "B", "C" (passes only where the mode is loose) or "F"
    check: str  # the judge's check it belongs to: accuracy, values, nonfinite or structure
    detail: str  # one line of evidence
    numbers: Mapping[str, float]
    more_accurate: bool = False  # the candidate's error is less than half of eager's
    notes: tuple[str, ...] = ()


def unit_of(outputs: Sequence[object], inputs: Sequence[object] = ()) -> float:
    """The unit roundoff (eps / 2) to perturb with: of the finest float output, else input."""
    for values in (outputs, inputs):
        floats = [t.dtype for t in tensors(values) if t.is_floating_point() or t.is_complex()]
        if floats:
            return min(torch.finfo(dtype).eps for dtype in floats) / 2
    return torch.finfo(torch.float32).eps / 2


class Sensitivity:
    """kappa of every output: RMS change in float64 when all data moves by one rounding.

    `run` is the float64 eager model; it gets float64 copies of inputs and state; `truth` is what
    it answers to them, if that is known. Draws come in pairs of opposite sign and are wider than
    one rounding, so that corners and jumps within reach of an honest kernel's error are seen:
    there the two changes are not each other's opposite. A pair is drawn when it is asked for.
    """

    def __init__(
        self, run: Run, inputs: Sequence[object], state: Mapping[str, Tensor], *, unit: float,
        seed: int = 0, truth: Sequence[Tensor] | None = None, doubles: Doubles | None = None,
    ) -> None:  # fmt: skip
        self._run, self._inputs, self._state = run, inputs, state
        self._unit, self._seed, self._doubles = unit, seed, doubles or Doubles(seed)
        if truth is None:
            truth = run(mapped(inputs, upcast), self._doubles.exact(state))
        self._still = [real_view(t).double().contiguous() for t in truth]
        self._slopes = [torch.zeros_like(t) for t in self._still]  # sums of squares
        self._steps = [torch.zeros_like(t) for t in self._still]
        self._drawn = 0
        self._alone = False  # it takes these numbers, and none beside them

    def of(self, pairs: int) -> list[Tensor]:
        """From so many pairs of draws, or from more if they are there."""
        while self._drawn < pairs and not self._alone:
            try:
                self._draw()
            except Illegal:
                self._alone = True
        if self._alone:  # their own rounding is left
            return [t.abs().nan_to_num(0.0, 0.0, 0.0) * self._unit for t in self._still]
        sums = zip(self._slopes, self._steps, strict=True)
        return [(slopes / self._drawn).add_(steps).sqrt_() for slopes, steps in sums]

    def _draw(self) -> None:
        wide = min(WIDE_DRAW, max(1.0, WIDEST / self._unit))
        seed = self._seed * 1000 + self._drawn
        up, down = (
            self._run(
                _shaken(self._inputs, size, seed),
                self._doubles.moved(self._state, size, self._drawn),
            )
            for size in (wide * self._unit, -wide * self._unit)
        )
        if not (same_sizes(up, self._still) and same_sizes(down, self._still)):
            raise Illegal("beside these numbers its results are of other sizes")
        self._drawn += 1
        outputs = zip(self._slopes, self._steps, up, down, self._still, strict=True)
        for slopes, steps, above, below, middle in outputs:
            five = slopes, steps, real_view(above), real_view(below), middle
            for into_slopes, into_steps, high, low, still in together(five):
                bent, found = _spread(high.double() - still, low.double() - still, wide)
                into_steps += torch.where(bent, found, 0.0)
                into_slopes += torch.where(bent, 0.0, found)


def sensitivity(  # noqa: PLR0913 -- the arguments of Sensitivity, and how many draws
    run: Run,
    inputs: Sequence[object],
    state: Mapping[str, Tensor],
    *,
    unit: float,
    draws: int = 2 * PAIRS,
    seed: int = 0,
    truth: Sequence[Tensor] | None = None,
    doubles: Doubles | None = None,
) -> list[Tensor]:
    """kappa from so many draws at once; see `Sensitivity`."""
    own = Sensitivity(run, inputs, state, unit=unit, seed=seed, truth=truth, doubles=doubles)
    return own.of(max(1, draws // 2))


def noise(
    eager: Run, exact: Run, inputs: Sequence[object], state: Mapping[str, Tensor], *,
    seed: int, doubles: Doubles,
) -> list[Tensor]:  # fmt: skip
    """Eager's usual error at each element: the largest but one of those on inputs nearby.

    kappa does not count the roundings inside a forward, and where they are all there is to see,
    eager may be lucky: log_softmax of a row that one class dominates is the logarithm of a number
    next to 1, and the divergence of a distribution from itself is what its roundings leave over.
    """
    found: list[list[Tensor]] = []
    said: Sequence[Tensor] = ()
    for draw, size in enumerate(NEAR):
        near = mapped(inputs, partial(_nearer, size=size, seed=seed + draw))
        wide = mapped(near, upcast)  # first: eager may write to its arguments
        # Not every number is an argument, but the inputs themselves are.
        with suppress(*(Illegal,) if draw else ()):
            said, truth = eager(near, state), exact(wide, doubles.exact(state))
            if not same_sizes(said, truth):
                continue
            pairs = zip(said, truth, strict=True)
            away = [(real_view(e).double() - real_view(y).double()).abs() for e, y in pairs]
            found.append([t.nan_to_num(0.0, 0.0, 0.0).float() for t in away])
    if not found:
        return [torch.zeros(()) for _ in said]
    alike = [each for each in found if [t.shape for t in each] == [t.shape for t in found[0]]]
    # The largest may be a jump between eager and float64, at inputs where a value is rounded.
    return [torch.stack(each).sort(0).values[-2:][0] for each in zip(*alike, strict=True)]


def _nearer(t: Tensor, *, size: float, seed: int) -> Tensor:
    """x (1 - size d), d from 0 to 1 and a hash of x: what was equal stays equal."""
    if not t.is_floating_point():
        return t.clone()
    wide = t.double()
    mixed = (wide.contiguous().view(torch.int64) >> 29) * (GOLDEN * (2 * seed + 1) % 2**63)
    share = (mixed >> 40 & 0xFFFFFF).double() / (1 << 24)
    return (wide * (1 - size * share)).to(t.dtype)


def _spread(plus: Tensor, minus: Tensor, wide: float) -> tuple[Tensor, Tensor]:
    """Where there is a step, and the square of one pair's kappa: a share of it, else the slope."""
    slope = (plus - minus).abs() / 2
    step = torch.maximum(plus.abs(), minus.abs())
    bent = (plus + minus).abs() > slope
    found = torch.where(bent, (step / STEP).square(), (slope / wide).square())
    return bent, found.nan_to_num(0.0, 0.0, 0.0)


def compare(  # noqa: PLR0913 -- what the rules of accuracy depend on
    candidate: Tensor,
    eager: Tensor,
    truth: Tensor,
    kappa: Tensor | Callable[[int], Tensor],
    *,
    mode: Mode = "contract",
    hazard: bool = False,
    full: bool = True,
    noise: Callable[[], Tensor] | None = None,
) -> Comparison:
    """Judge one output; `truth` is eager in float64, `kappa` is from `sensitivity`.

    Without `full`, numbers that only a reader wants are left out where the output passes, and one
    pair of draws will do for that, if `kappa` is a function of how many there are. None is refuted
    before all of them are drawn.

    `hazard` widens the limits: on inputs that get_inputs() never draws, eager may be exact by
    luck (rows of one value, a single one), and kappa does not count intermediate roundings.

    `noise` is asked for where the output would fail, and then stands for eager's error: that eager
    was lucky once is no reason to call another inaccurate.
    """
    wrong = _structure(candidate, eager, truth)
    if wrong:
        return Comparison(False, "F", "structure", wrong, {})
    if eager.numel() == 0:
        return Comparison(True, "A", "accuracy", "no elements", {"elements": 0.0})
    if eager.is_complex():
        candidate, eager, truth = map(real_view, (candidate, eager, truth))
    of = kappa if callable(kappa) else lambda _: kappa
    if not eager.is_floating_point():
        return _exact(candidate, eager, truth, of(PAIRS))
    widened = HAZARD if hazard else 1.0
    if not full and (quick := _passes_soon(candidate, eager, truth, of, mode, widened)):
        return quick
    loose = loosely(eager.dtype)
    four = candidate, eager, truth, of(PAIRS).expand(eager.shape)
    found = _verdict(measure(*four, loose=loose), candidate, truth, mode, widened)
    if found.grade in ("A", "B") or found.check == "nonfinite" or noise is None:
        return found
    beside = noise()
    if beside.shape != truth.shape:  # inputs nearby give results of other sizes
        return found
    usual = (truth + beside).to(eager.dtype)
    usual = torch.where(torch.isfinite(usual) & torch.isfinite(eager), usual, eager)
    again = _verdict(
        measure(candidate, usual, *four[2:], loose=loose), candidate, truth, mode, widened
    )
    return again if again.passed else found


def _passes_soon(
    candidate: Tensor,
    eager: Tensor,
    truth: Tensor,
    kappa: Callable[[int], Tensor],
    mode: Mode,
    widened: float,
) -> Comparison | None:
    """What the least effort shows to be right, first without a sensitivity, then with that of one
    pair of draws; None if it takes more to say."""
    loose, most = loosely(eager.dtype), _most(widened * SLACK.get(eager.dtype, SLACK_HALF))
    short = Comparison(True, "B", "accuracy", SHORT, {"elements": float(eager.numel())})
    if within_least(candidate, eager, truth, most):
        return short
    for pairs in (1, PAIRS):
        four = candidate, eager, truth, kappa(pairs).expand(eager.shape)
        if within(*four, most):
            return short
        quick = _verdict(measure(*four, loose=loose, full=False), candidate, truth, mode, widened)
        if quick.passed and quick.grade in ("A", "B"):
            return quick
    return None


def usual_errors(eager: Tensor, truth: Tensor, borrowed: float) -> Mapping[str, float]:
    """Eager's errors at all zoom levels, in units of a borrowed sensitivity; none of what is no
    float, or not finite."""
    if eager.shape != truth.shape or not eager.numel():
        return {}
    eager, truth = map(real_view, (eager, truth))
    if not eager.is_floating_point() or not bool(torch.isfinite(eager).all()):
        return {}
    kappa = truth.abs() * (torch.finfo(eager.dtype).eps / 2) + borrowed
    found = measure(eager, eager, truth, kappa, loose=loosely(eager.dtype), full=False).eager
    return {name: getattr(found, name) for name in GRADES["B"]}


def close(
    candidate: Tensor,
    eager: Tensor,
    borrowed: float = 0.0,
    usual: Mapping[str, float] = NO_ERRORS,
) -> bool:
    """True only if the candidate is within the limits whatever float64 says.

    Its error is at most eager's and what lies between the two. Where that is half of what the
    limits allow without eager, either eager's error is the other half at most, or the sum is less
    than twice eager's, and all limits allow more: docs/judge.md. So it is where it is half of what
    they allow beyond eager's `usual` error, that of another draw. The units are the least that
    there can be, the rounding of the value itself, and a borrowed sensitivity beside it.
    """
    if candidate.shape != eager.shape or candidate.dtype != eager.dtype or not eager.numel():
        return False
    candidate, eager = map(real_view, (candidate, eager))
    if not eager.is_floating_point():
        return False
    alone = _without_eager(eager.dtype, usual)
    units = min(limit.units for limit in alone.values())
    kappa = eager.new_tensor(borrowed, dtype=torch.float64)
    if eager.ndim > 1 and eager[0].numel() >= TILE:  # no tile has elements of two rows
        apart = rows_beyond(candidate, eager, borrowed, units)
        count = int(apart.sum())
        if not count:
            return True
        if count * SOME_ROWS <= len(apart):  # the others are within any limit, whatever these add
            some = [t[apart] for t in (candidate, eager)]
            if within(some[0], some[1], some[1], kappa.expand(some[1].shape), alone):
                return True
    elif everywhere(candidate, eager, borrowed, units):
        return True
    return within(candidate, eager, eager, kappa.expand(eager.shape), alone)


def rows_apart(
    candidate: Tensor, eager: Tensor, borrowed: float, usual: Mapping[str, float]
) -> Tensor | None:
    """[rows]: which rows are not `close` in each of their elements; None where nobody can tell."""
    if candidate.shape != eager.shape or candidate.dtype != eager.dtype or not eager.numel():
        return None
    candidate, eager = map(real_view, (candidate, eager))
    if not eager.is_floating_point():
        return None
    units = min(limit.units for limit in _without_eager(eager.dtype, usual).values())
    return rows_beyond(candidate, eager, borrowed, units)


def _without_eager(dtype: torch.dtype, usual: Mapping[str, float]) -> Mapping[str, Most]:
    """Half of what the limits allow, where eager's errors are not known, or are the usual ones."""
    return {
        name: Most(HALF_OF_IT * max(limit.units, (limit.times - 1.0) * usual.get(name, 0.0)), 0.0)
        for name, limit in _most(SLACK.get(dtype, SLACK_HALF)).items()
    }


def _most(slack: float) -> Mapping[str, Most]:
    """The limits of the worst grade that passes everywhere."""
    return {n: Most(limit.kappas * slack, limit.times) for n, limit in GRADES["B"].items()}


def loosely(dtype: torch.dtype) -> float:
    """The plain tolerance of grade C."""
    return LOOSE.get(dtype, LOOSE_HALF)


def passes(candidate: Tensor, eager: Tensor, truth: Tensor, kappa: Tensor) -> bool:
    """`compare` for whoever needs no reasons."""
    if not eager.is_floating_point() or not eager.numel():
        return compare(candidate, eager, truth, kappa).passed
    measured = measure(candidate, eager, truth, kappa, loose=LOOSE_HALF, full=False)
    return _verdict(measured, candidate, truth, "contract", 1.0).passed


def reference_fault(eager: Tensor, truth: Tensor) -> str | None:
    """Why the problem itself cannot be judged on its own inputs, or None."""
    if eager.shape != truth.shape:
        return _other_size(eager, truth)
    if not eager.numel() or not (eager.is_floating_point() or eager.is_complex()):
        return None
    size, away, some = 0.0, 0.0, False
    for parts in together((real_view(eager), real_view(truth))):
        e, y = (t.double() for t in parts)
        both = torch.isfinite(e) & torch.isfinite(y)
        if not bool(both.all()):
            e, y = e[both], y[both]
        some = some or bool(e.numel())
        size = math.hypot(size, float(torch.linalg.vector_norm(y)))
        away = math.hypot(away, float(torch.linalg.vector_norm(e - y)))
    if not some:
        return "the eager model returns no finite number on its own inputs"
    least = torch.finfo(eager.dtype).eps * math.sqrt(real_view(eager).numel())
    if away > max(FAULT * size, least):
        return f"eager is {away / max(size, 1e-300):.1%} away from float64 on its own inputs"
    return None


def nowhere_finite(eager: Tensor, truth: Tensor) -> bool:
    """Is this output NaN or infinite throughout, for eager and in float64 alike?"""
    if not eager.numel() or not (eager.is_floating_point() or eager.is_complex()):
        return False
    return not bool(torch.isfinite(eager).any()) and not bool(torch.isfinite(truth).any())


def null_candidates(eager: Tensor, inputs: Sequence[object]) -> Mapping[str, Tensor]:
    """Outputs that compute nothing; a problem on which one of them passes is weak."""
    nulls = {"zeros": torch.zeros_like(eager)}
    if eager.is_floating_point() and eager.numel():
        nulls["mean"] = torch.full_like(eager, float(eager.double().mean()))
    if eager.ndim and eager.shape[0] > 1:
        nulls["neighbour-row"] = eager.roll(1, 0)
    for index, t in enumerate(tensors(inputs)):
        if t.shape == eager.shape and t.dtype == eager.dtype:
            nulls[f"input-{index}"] = t.detach().clone()
    return nulls


def real_view(t: Tensor) -> Tensor:
    """Complex numbers as pairs of real ones; the tensor itself if it is real."""
    return torch.view_as_real(t.resolve_conj()) if t.is_complex() else t


def _shaken(inputs: Sequence[object], size: float, seed: int) -> list[object]:
    """x (1 + size d) on every floating input, each with its own d."""
    number = iter(range(1_000_000))

    def change(t: Tensor) -> Tensor:
        own = seed + (next(number) << 40)
        moves = t.is_floating_point() or t.is_complex()
        return shaken(t, size, generator(t, own)) if moves else upcast(t)

    return mapped(inputs, change)


def _structure(candidate: Tensor, eager: Tensor, truth: Tensor) -> str | None:
    if candidate.shape != eager.shape:
        return f"shape {tuple(candidate.shape)} instead of {tuple(eager.shape)}"
    if candidate.dtype != eager.dtype:
        return f"dtype {candidate.dtype} instead of {eager.dtype}"
    if truth.shape != eager.shape:
        return _other_size(eager, truth)
    return None


def _other_size(eager: Tensor, truth: Tensor) -> str:
    return f"float64 gives shape {tuple(truth.shape)}, eager {tuple(eager.shape)}"


def same_sizes(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether results are of the same sizes: values decide, where a model selects by them."""
    return [t.shape for t in some] == [t.shape for t in others]


def _exact(candidate: Tensor, eager: Tensor, truth: Tensor, kappa: Tensor) -> Comparison:
    """Integers and booleans: eager's value, or float64's.

    Where a rounding of the data moves the value (a tie of argmax, a rounding boundary), any value
    that occurs in the range of the float64 output is right too.
    """
    c, e, y = (t.to(truth.device).long() for t in (candidate, eager, truth))
    unstable = (kappa.to(truth.device) > 0) & (c >= y.min()) & (c <= y.max())
    wrong = ~((c == e) | (c == y) | unstable)
    count, ties = int(wrong.sum()), int(((c != e) & (c != y) & unstable).sum())
    numbers = {"elements": float(e.numel()), "wrong": float(count), "ties": float(ties)}
    notes = (f"{ties} elements taken as ties",) if ties else ()
    if not count:
        return Comparison(True, "A", "values", f"{e.numel()} elements equal", numbers, False, notes)
    at = int(wrong.reshape(-1).to(torch.int8).argmax())
    found, wanted = c.reshape(-1)[at].item(), y.reshape(-1)[at].item()
    place = _index(at, eager.shape)
    detail = f"{count} of {e.numel()} wrong, first at {place}: {found} instead of {wanted}"
    return Comparison(False, "F", "values", detail, numbers, False, notes)


def _index(flat: int, shape: Sequence[int]) -> list[int]:
    index: list[int] = []
    for size in reversed(shape):
        index.insert(0, flat % size)
        flat //= size
    return index


def _verdict(
    m: Measure, candidate: Tensor, truth: Tensor, mode: Mode, widened: float
) -> Comparison:
    numbers = _numbers(m, candidate.numel())
    if m.first_nonfinite is not None:
        return Comparison(
            False, "F", "nonfinite", _pattern(m, m.first_nonfinite, candidate, truth), numbers
        )
    slack = widened * SLACK.get(candidate.dtype, SLACK_HALF)
    over_a, over_b = (_exceeded(m, GRADES[grade], slack) for grade in ("A", "B"))
    numbers["margin"] = _margin(m, GRADES["B"], slack)
    better = m.candidate.rel_l2 < MORE_ACCURATE * m.eager.rel_l2
    if not over_b:
        grade = "B" if over_a else "A"
        detail = f"rms {m.candidate.rms:.3g} kappa, eager {m.eager.rms:.3g}"
        return Comparison(True, grade, "accuracy", detail, numbers, better)
    grade = "C" if m.outside_truth == 0 and not m.gross else "F"
    check = "values" if m.gross else "accuracy"
    flat = candidate.reshape(-1)[m.worst].item(), truth.reshape(-1)[m.worst].item()
    place = f"worst at {_index(m.worst, candidate.shape)}: {flat[0]:.9g} instead of {flat[1]:.9g}"
    detail = f"{over_b}; {place}"
    return Comparison(grade == "C" and mode == "loose", grade, check, detail, numbers, better)


def _margin(m: Measure, limits: Mapping[str, Limit], slack: float) -> float:
    """The largest share of a limit that the candidate uses; above 1 it breaks that limit."""
    return max(
        float(getattr(m.candidate, name)) / _allowed(m, name, limit, slack)
        for name, limit in limits.items()
    )


def _allowed(m: Measure, name: str, limit: Limit, slack: float) -> float:
    return max(limit.times * float(getattr(m.eager, name)), limit.kappas * slack)


def _exceeded(m: Measure, limits: Mapping[str, Limit], slack: float) -> str:
    """The first limit that the candidate breaks, in words; empty if none."""
    for name, limit in limits.items():
        mine, theirs = getattr(m.candidate, name), getattr(m.eager, name)
        allowed = _allowed(m, name, limit, slack)
        if not mine <= allowed:
            return f"{name} error {mine:.3g} kappa, eager {theirs:.3g}, allowed {allowed:.3g}"
    return ""


def _pattern(m: Measure, at: int, candidate: Tensor, truth: Tensor) -> str:
    found, wanted = candidate.reshape(-1)[at].item(), truth.reshape(-1)[at].item()
    place = _index(at, candidate.shape)
    return f"{m.nonfinite} non-finite mismatches, first at {place}: {found} instead of {wanted}"


def _numbers(m: Measure, elements: int) -> dict[str, float]:
    numbers = {"elements": float(elements), "nonfinite": float(m.nonfinite)}
    for side, errors in (("candidate", m.candidate), ("eager", m.eager)):
        for name in Errors.__dataclass_fields__:
            numbers[f"{name}_{side}"] = getattr(errors, name)
    for share, value in zip(("p50", "p99", "max"), m.ulp or (), strict=m.ulp is not None):
        numbers[f"ulp_{share}"] = value
    for tolerance, outside in m.outside.items():
        numbers[f"outside_allclose_{tolerance:.0e}"] = float(outside)
    return numbers
