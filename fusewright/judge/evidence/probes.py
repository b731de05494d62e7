"""A model -> inputs on which a lower precision or a skipped element cannot hide in rounding.

An error ratio alone cannot tell another summation order from a lower precision: an honest
sequential sum may be worse than a sum of rounded inputs. So these inputs leave nothing to sum:
sparse operands hand odd integers through, with more bits than the next lower class of hardware
keeps. A probe applies only where eager and float64 confirm that it does; else it says why not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

import torch
from torch import Tensor

from fusewright.common.call_arguments import like
from fusewright.judge.evidence import probe_inputs
from fusewright.judge.evidence.contract import (
    Run,
    compare,
    real_view,
    same_sizes,
    sensitivity,
    unit_of,
)
from fusewright.judge.evidence.float64_twins import Doubles
from fusewright.judge.evidence.hazard_cases import shortened
from fusewright.judge.evidence.legal_inputs import Illegal, tried
from fusewright.judge.evidence.position_outputs import POSITIONS, Places, both, noted, wrong
from fusewright.judge.evidence.probe_inputs import LOWER_BITS, Arguments
from fusewright.judge.evidence.pytree import mapped, tensors, upcast
from fusewright.judge.evidence.signed_zeros import as_eager, with_other_zeros
from fusewright.judge.evidence.tied_tensors import each

INPUTS = 3  # of every kind of probe, at most so many inputs and weights are aimed at
CLEAR = 64.0  # float32: the lower class must stand out of the noise by this factor
SHARE = 0.5  # an error of half the lower class's counts as the lower class
SELF_NOISE = 2.0**-36  # of the arguments: far above what float64 rounds, far below 11 or 8 bits
DISTINCT = 16  # fewer different values may well be round numbers
INTEGERS = (32, 8)  # largest operand of the integer probe: the first that stays exact
FEW = 16  # elements below which a share of them says nothing
SAME = 1e-9  # float64 results that agree to this relative accuracy are one result

Check = Callable[[list[Tensor]], str | None]


@dataclass(frozen=True)
class Probe:
    """One more call of the candidate, with what its outputs must obey."""

    name: str
    finding: str  # the judge's check a failure belongs to: precision, values or influence
    applies: bool
    why: str
    inputs: list[object]  # for the candidate, with `state`; empty if the probe does not apply
    state: Mapping[str, Tensor]
    check: Check  # the candidate's outputs -> what is wrong, or None


@dataclass(frozen=True)
class _Model:
    """Eager and float64 with the problem's own arguments; every run gets copies of the inputs."""

    run_eager: Run
    run_truth: Run
    own: Arguments
    seed: int
    doubles: Doubles
    wanted: Callable[[str], bool]
    left_out: Collection[str]
    rows: slice | None = None  # only these are run, and looked at
    last: dict[int, tuple[Mapping[str, Tensor], dict[str, Tensor]]] = field(default_factory=dict)

    def eager(self, given: Arguments) -> list[Tensor]:
        state = each(given.state, lambda _, t: t.detach())
        values = mapped(self._shown(given.inputs), Tensor.clone)
        return [t.detach() for t in self.run_eager(values, state)]

    def truth(self, given: Arguments) -> list[Tensor]:
        wide = self._wide(given.state)
        return [t.detach() for t in self.run_truth(mapped(self._shown(given.inputs), upcast), wide)]

    def _shown(self, inputs: Sequence[object]) -> Sequence[object]:
        if self.rows is None:
            return inputs
        return shortened(inputs, self.rows.stop - self.rows.start, self.rows.start)

    def _wide(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state in float64; the last one is kept, since a probe comes back to it."""
        if id(state) not in self.last:
            self.last.clear()
            own = {n: t for n, t in state.items() if t is self.own.state.get(n)}
            rest = {n: t for n, t in state.items() if n not in own}
            other = each(rest, lambda _, t: upcast(t.detach()))
            self.last[id(state)] = state, self.doubles.exact(own) | other
        return self.last[id(state)][1]

    def places(self, given: Arguments) -> Places:
        """From what outputs that are positions were taken; worked out where somebody asks."""
        return cache(
            lambda: both(noted(lambda: self.eager(given)), noted(lambda: self.truth(given)))
        )

    def zeros(self, given: Arguments) -> Callable[[], Sequence[Tensor] | None]:
        """Eager's outputs if extremes of zeros of both signs had the other one."""
        return cache(lambda: with_other_zeros(lambda: self.eager(given)))

    def kappa(self, truth: Sequence[Tensor], eager: Sequence[Tensor]) -> list[Tensor]:
        return sensitivity(
            self.run_truth, self._shown(self.own.inputs), self.own.state,
            unit=unit_of(eager, self.own.inputs),
            seed=self.seed, truth=truth, doubles=self.doubles,
        )  # fmt: skip


def probes(
    run_eager: Run,
    run_truth: Run,
    inputs: Sequence[object],
    state: Mapping[str, Tensor],
    seed: int,
) -> tuple[Probe, ...]:
    """All probes of a model; `iterate` gives them one at a time where memory is short."""
    return tuple(iterate(run_eager, run_truth, inputs, state, seed))


def iterate(  # noqa: PLR0913 -- the reference, and what is wanted of its probes
    run_eager: Run,
    run_truth: Run,
    inputs: Sequence[object],
    state: Mapping[str, Tensor],
    seed: int,
    *,
    doubles: Doubles | None = None,
    wanted: Callable[[str], bool] = lambda _: True,
    known: tuple[list[Tensor], list[Tensor]] | None = None,
    left_out: Collection[str] = (),
    rows: slice | None = None,
) -> Iterator[Probe]:
    """`run_eager` gets native dtypes, `run_truth` float64; neither may change its state.

    A probe for a finding that is not `wanted` any more is not worked out; `known` is what eager
    and float64 say to `inputs`; of names that are `left_out` there is no probe. With `rows`, which
    must depend on no others, what a probe expects is worked out for these alone, and its `check`
    wants these of the outputs.
    """
    own = Arguments(like(inputs, inputs), dict(state))
    model = _Model(
        run_eager, run_truth, own, seed, doubles or Doubles(seed), wanted, left_out, rows
    )
    eager, truth = known or (model.eager(model.own), model.truth(model.own))
    yield from _selections(model)
    yield _trailing_bits(model, eager)
    yield from _influences(model, eager, truth)
    yield from _integers(model)
    yield from _scalings(model, truth, eager)
    yield _if_legal(model, "permutation", "values", partial(_permutation, model, truth, eager))


def _skipped(name: str, finding: str, why: str = "the plan has no more of them") -> Probe:
    return Probe(name, finding, False, why, [], {}, lambda _: None)


def _if_legal(model: _Model, name: str, finding: str, make: Callable[[], Probe]) -> Probe:
    """A probe that the reference takes, or none."""
    try:
        with tried(name, model.left_out):
            return make()
    except Illegal as error:
        return _skipped(name, finding, f"the reference raises: {error}")


def _of_one_size(results: Sequence[Tensor], *others: Sequence[Tensor]) -> None:
    """Raise Illegal where sizes depend on roundings: such results cannot be compared."""
    if not all(same_sizes(results, each) for each in others):
        raise Illegal("eager and float64 give results of other sizes there")


def _guarded(expected: Sequence[Tensor], check: Check) -> Check:
    """Number and shapes of the outputs are checked before their values."""

    def guarded(outputs: list[Tensor]) -> str | None:
        if len(outputs) != len(expected):
            return f"{len(outputs)} outputs instead of {len(expected)}"
        for index, (found, wanted) in enumerate(zip(outputs, expected, strict=True)):
            if found.shape != wanted.shape or found.dtype != wanted.dtype:
                return f"output {index} has another shape or dtype than eager's"
        return check(outputs)

    return guarded


# ---- selection: a rounded operand shows as an error of one whole unit ----------------------------


def _selections(model: _Model) -> Iterator[Probe]:
    for name, make in probe_inputs.selections(model.own, model.seed, INPUTS):
        if not model.wanted("precision"):
            yield _skipped(name, "precision")
            continue
        yield _if_legal(model, name, "precision", partial(_selection, model, name, make))


def _selection(model: _Model, name: str, make: Callable[[], probe_inputs.Pair]) -> Probe:
    given, rounded = make()
    eager, truth, coarse = model.eager(given), model.truth(given), model.truth(rounded)
    _of_one_size(eager, truth, coarse)
    least = SELF_NOISE * _largest(given)
    limits = [_select_limit(*three, least) for three in zip(eager, truth, coarse, strict=True)]
    aimed = sum(int(torch.isfinite(limit).sum()) for limit in limits)
    if not aimed:
        why = "rounding to the lower class does not stand out of eager's own error"
        return _skipped(name, "precision", why)
    why = f"{aimed} output elements show a rounding to the lower class"
    check = _guarded(eager, _within(truth, limits))
    return Probe(name, "precision", True, why, given.inputs, given.state, check)


def _largest(given: Arguments) -> float:
    """The largest finite size among the floating arguments."""
    floats = (t for t in tensors(given.inputs) if t.is_floating_point() and t.numel())
    return max((float(t.double().abs().nan_to_num(0, 0, 0).max()) for t in floats), default=0.0)


def _select_limit(eager: Tensor, truth: Tensor, coarse: Tensor, least: float) -> Tensor:
    """Largest error that is not a sign of the lower class; infinite where nothing can be said.

    least: what moves by less may have moved by the rounding of float64 itself, as the deviations of
    equal numbers from their mean do.
    """
    never = torch.full(truth.shape, float("inf"), dtype=torch.float64, device=truth.device)
    if not eager.is_floating_point() or not eager.numel():
        return never
    error, moved = (eager.double() - truth).abs(), (coarse - truth).abs()
    loss, shift = _row_max(error), _row_max(moved)
    if torch.finfo(eager.dtype).bits == 16:
        # three bits lie between the classes: only where everything is exact can they be told apart
        clear = (loss == 0) & (moved > 0) & (moved >= 0.5 * shift)
    else:
        noise = torch.finfo(eager.dtype).eps * _row_max(truth.abs()) + loss
        clear = (moved > 0) & (moved >= CLEAR * noise)
    clear &= moved >= least
    return torch.where(clear & torch.isfinite(moved), SHARE * moved, never)


def _row_max(t: Tensor) -> Tensor:
    return t.amax(dim=-1, keepdim=True) if t.ndim else t


def _within(truth: Sequence[Tensor], limits: Sequence[Tensor]) -> Check:
    def check(outputs: list[Tensor]) -> str | None:
        for found, wanted, limit in zip(outputs, truth, limits, strict=True):
            if not bool(torch.isfinite(limit).any()):
                continue
            error = (found.to(wanted.device).double() - wanted.double()).abs()
            wrong = ~(error <= limit) & torch.isfinite(limit)
            if bool(wrong.any()):
                at = int(wrong.reshape(-1).to(torch.int8).argmax())
                size, allowed = (float(t.reshape(-1)[at]) for t in (error, limit))
                count = f"{int(wrong.sum())} of {int(torch.isfinite(limit).sum())} elements"
                return f"{count} are wrong: off by {size:.3g}, allowed {allowed:.3g}"
        return None

    return check


# ---- integers: every summation order is exact, a narrow accumulator is not -----------------------


def _integers(model: _Model) -> Iterator[Probe]:
    for target in probe_inputs.integer_targets(model.own, INPUTS):
        name = f"integer-{target}"
        if not model.wanted("precision"):
            yield _skipped(name, "precision")
            continue
        yield _if_legal(model, name, "precision", partial(_integer, model, name, target))


def _integer(model: _Model, name: str, target: str) -> Probe:
    for largest in INTEGERS:
        given = probe_inputs.integers(model.own, target, largest, model.seed)
        eager, truth = model.eager(given), model.truth(given)
        _of_one_size(eager, truth)
        limits = [_integer_limit(*pair) for pair in zip(eager, truth, strict=True)]
        aimed = sum(int(torch.isfinite(limit).sum()) for limit in limits)
        if aimed < FEW:
            continue
        why = f"{aimed} output elements are integers that any summation order gets exactly"
        check = _guarded(eager, _within(truth, limits))
        return Probe(name, "precision", True, why, given.inputs, given.state, check)
    return _skipped(name, "precision", "the model does not keep integers exact")


def _integer_limit(eager: Tensor, truth: Tensor) -> Tensor:
    never = torch.full(truth.shape, float("inf"), dtype=torch.float64, device=truth.device)
    if not eager.is_floating_point() or not eager.numel():
        return never
    whole = bool((truth == truth.round()).all()) and bool(torch.isfinite(truth).all())
    if not (whole and torch.equal(eager.double(), truth.to(eager.dtype).double())):
        return never
    ulps = 1.0 if torch.finfo(eager.dtype).bits == 16 else 4.0
    limit = ulps * torch.finfo(eager.dtype).eps * truth.abs()
    return torch.where(torch.isfinite(eager), limit, never)  # beyond the type's range: nothing


# ---- trailing bits: an output that was rounded and then widened ----------------------------------


def _trailing_bits(model: _Model, eager: Sequence[Tensor]) -> Probe:
    shares = [_zero_tail(t) for t in eager]
    if not any(share < SHARE for share in shares):
        return _skipped("trailing-bits", "precision", "eager's own outputs end in zero bits")

    def check(outputs: list[Tensor]) -> str | None:
        for index, (found, share) in enumerate(zip(outputs, shares, strict=True)):
            rounded = share < SHARE and _zero_tail(found) > 0.9
            if rounded and len(set(found.flatten().tolist())) >= DISTINCT:
                kept = LOWER_BITS[found.dtype]
                return f"output {index} carries only {kept} significant bits"
        return None

    why = "eager's outputs use all their bits"
    guarded = _guarded(eager, check)
    return Probe(
        "trailing-bits", "precision", True, why, model.own.inputs, model.own.state, guarded
    )


def _zero_tail(t: Tensor) -> float:
    """Share of the elements that the lower class could hold exactly; 1 if there are too few."""
    if t.dtype not in LOWER_BITS:
        return 1.0
    values = t.double()
    values = values[torch.isfinite(values) & (values != 0)]
    if values.numel() < FEW:
        return 1.0
    return float((probe_inputs.rounded(values, LOWER_BITS[t.dtype]) == values).double().mean())


# ---- influence: one input element is changed -----------------------------------------------------


def _influences(
    model: _Model, old_eager: Sequence[Tensor], old_truth: Sequence[Tensor]
) -> Iterator[Probe]:
    for name, make in probe_inputs.influences(model.own, model.seed, INPUTS, model.rows):
        if not model.wanted("influence"):
            yield _skipped(name, "influence")
            continue
        make_probe = partial(_influence, model, name, make, old_eager, old_truth)
        yield _if_legal(model, name, "influence", make_probe)


def _influence(
    model: _Model, name: str, make: Callable[[], Arguments],
    old_eager: Sequence[Tensor], old_truth: Sequence[Tensor],
) -> Probe:  # fmt: skip
    given = make()
    eager, truth = model.eager(given), model.truth(given)
    _of_one_size(eager, truth, old_eager, old_truth)
    limits = [
        _influence_limit(*four) for four in zip(eager, truth, old_eager, old_truth, strict=True)
    ]
    aimed = sum(int(torch.isfinite(limit).sum()) for limit in limits)
    if not aimed:
        return _skipped(name, "influence", "no output moves clearly when this element does")
    why = f"{aimed} output elements are aimed at"
    check = _guarded(eager, _within(truth, limits))
    return Probe(name, "influence", True, why, given.inputs, given.state, check)


def _influence_limit(eager: Tensor, truth: Tensor, old_eager: Tensor, old_truth: Tensor) -> Tensor:
    """A moved output must be nearer to its new value than to its old one; others must stay."""
    never = torch.full(truth.shape, float("inf"), dtype=torch.float64, device=truth.device)
    if not eager.is_floating_point() or not eager.numel():
        return never
    new, old = truth.double(), old_truth.double()
    moved, error = (new - old).abs(), (eager.double() - new).abs()
    noise = torch.finfo(eager.dtype).eps * _row_max(new.abs()) + _row_max(error)
    noise = noise + _row_max((old_eager.double() - old).abs())
    factor = 4.0 if torch.finfo(eager.dtype).bits == 16 else CLEAR
    clear = (moved >= factor * noise) & torch.isfinite(moved)
    if not bool(clear.any()):
        return never
    largest = float(moved[clear].max())
    still = (moved == 0) & (SHARE * largest >= factor * noise)
    return torch.where(clear, SHARE * moved, torch.where(still, SHARE * largest, never))


# ---- scaling and permutation: what the exact model maps exactly ----------------------------------


def _scalings(
    model: _Model, truth: Sequence[Tensor], own_eager: Sequence[Tensor]
) -> Iterator[Probe]:
    for name, given, factor in probe_inputs.scalings(model.own):
        if not model.wanted("precision"):
            yield _skipped(name, "precision")
            continue
        make_probe = partial(_scaling, model, name, given, factor, truth, own_eager)
        yield _if_legal(model, name, "precision", make_probe)


def _scaling(
    model: _Model, name: str, given: Arguments, factor: float,
    truth: Sequence[Tensor], own_eager: Sequence[Tensor],
) -> Probe:  # fmt: skip
    scaled = model.truth(given)
    _of_one_size(own_eager, truth, scaled)
    degrees = [_degree(new, old, factor) for new, old in zip(scaled, truth, strict=True)]
    if any(degree is None for degree in degrees):
        return _skipped(name, "precision", "the model is not homogeneous in its inputs")
    kappa, eager = model.kappa(truth, own_eager), model.eager(given)
    _of_one_size(eager, scaled)
    spread = [k * factor**d for k, d in zip(kappa, degrees, strict=True) if d is not None]
    why = f"the model is homogeneous of degree {degrees}"
    check = _guarded(eager, _keeps_contract(eager, scaled, spread, model, given))
    return Probe(name, "precision", True, why, given.inputs, given.state, check)


def _degree(new: Tensor, old: Tensor, factor: float) -> int | None:
    if not new.is_floating_point() or not bool(torch.isfinite(new).all()):
        return None
    size = float(new.abs().max()) if new.numel() else 0.0
    for degree in (1, 0, 2, 3):
        if size and bool(((new - old * factor**degree).abs() <= SAME * size).all()):
            return degree
    return None


def _permutation(model: _Model, truth: Sequence[Tensor], own_eager: Sequence[Tensor]) -> Probe:
    name, finding = "permutation", "values"
    if not model.wanted(finding):
        return _skipped(name, finding)
    given, order = probe_inputs.permuted(model.own, model.seed)
    if given is None or order is None:
        return _skipped(name, finding, "there is no leading dimension of two or more")
    if not all(t.ndim and t.shape[0] == order.numel() for t in truth):
        return _skipped(name, finding, "the outputs do not share the inputs' leading dimension")
    eager, moved = model.eager(given), model.truth(given)
    _of_one_size(own_eager, truth, eager, moved)
    for new, old in zip(moved, truth, strict=True):
        wanted = old[order.to(old.device)]
        if not _same(new, wanted):
            return _skipped(name, finding, "the rows of the outputs depend on each other")
    spread = [k[order.to(k.device)] for k in model.kappa(truth, own_eager)]
    check = _guarded(eager, _keeps_contract(eager, moved, spread, model, given))
    why = "rows are independent: permuted inputs must give permuted outputs"
    return Probe(name, finding, True, why, given.inputs, given.state, check)


def _same(new: Tensor, old: Tensor) -> bool:
    a, b = (real_view(t).double() for t in (new, old))
    return torch.allclose(a, b, SAME, SAME, equal_nan=True)


def _keeps_contract(
    eager: Sequence[Tensor],
    truth: Sequence[Tensor],
    kappa: Sequence[Tensor],
    model: _Model,
    given: Arguments,
) -> Check:
    places, zeros = model.places(given), model.zeros(given)

    def check(outputs: list[Tensor]) -> str | None:
        four = zip(outputs, eager, truth, kappa, strict=True)
        for index, (found, e, y, k) in enumerate(four):
            compared = compare(found, e, y, k)
            if compared.passed or _in_place(found, e, y, places, index):
                continue
            others = zeros()
            if others is None or not compare(as_eager(found, e, others[index]), e, y, k).passed:
                return compared.detail
        return None

    return check


def _in_place(found: Tensor, eager: Tensor, truth: Tensor, places: Places, index: int) -> bool:
    """Is this a position, and its value as good as the best one?"""
    if eager.dtype not in POSITIONS or found.shape != eager.shape or found.dtype != eager.dtype:
        return False
    taken = places()[index]
    return taken is not None and not bool(wrong(found, eager, truth, taken).any())
