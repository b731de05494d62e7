"""A tensor -> the same tensor with other values or another layout; the rows of the hazard matrix.

All values are drawn from what the example holds or from fixed ranges, by a generator that lives
where the example does: large inputs on a GPU are made there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fusewright.judge.evidence.float64_twins import POOL, scaled

FRESH_DRAWS = 2
LARGE, RUN = 1 << 20, 64  # of more elements, so many neighbours are taken at a time

Change = Callable[[Tensor, torch.Generator], Tensor]
Fits = Callable[[Tensor], bool]


@dataclass(frozen=True)
class Row:
    """One row of the matrix: `change` is applied to every tensor that `fits`."""

    name: str
    family: str
    change: Change
    fits: Fits
    isolated: bool = False
    required: bool = False


def _place(shape: Sequence[int], generator: torch.Generator) -> tuple[int, ...]:
    """A random element's index."""
    where = generator.device
    return tuple(int(torch.randint(n, (), generator=generator, device=where)) for n in shape)


# ---- what fits where -----------------------------------------------------------------------------


def _any(t: Tensor) -> bool:
    return t.numel() > 0


def _floats(t: Tensor) -> bool:
    return t.is_floating_point() and t.numel() > 0


def _float_rows(t: Tensor) -> bool:
    return _floats(t) and t.ndim >= 1


def _integers(t: Tensor) -> bool:
    whole = not (t.is_floating_point() or t.is_complex() or t.dtype is torch.bool)
    return whole and t.numel() > 0


def _bools(t: Tensor) -> bool:
    return t.dtype is torch.bool and t.numel() > 0


# ---- values --------------------------------------------------------------------------------------


def resampled(t: Tensor, g: torch.Generator, shape: Sequence[int] | None = None) -> Tensor:
    """New content from the observed values: a float stays in range, an index stays legal."""
    wanted = tuple(t.shape if shape is None else shape)
    flat = t.reshape(-1)
    if not flat.numel():
        return torch.zeros(wanted, dtype=t.dtype, device=t.device)
    count = int(torch.Size(wanted).numel())
    if t.is_floating_point() and count > LARGE and flat.numel() > LARGE:
        return _in_runs(flat, count, g).view(wanted)
    picked = flat[_picks(t, count, g)]
    if t.is_floating_point() and count:
        # repeated values would let a kernel that computes each distinct value once look right
        exact = torch.promote_types(t.dtype, torch.float32)
        jitter = torch.rand(count, generator=g, dtype=exact, device=t.device).sub_(0.5)
        low, high = (bound.to(exact) for bound in torch.aminmax(flat))
        picked = jitter.mul_(2.0**-6).add_(1.0).mul_(picked).clamp_(low, high).to(t.dtype)
    elif _ascending(t):
        picked = picked.reshape(wanted).sort(dim=-1).values
    return picked.reshape(wanted)


def _in_runs(flat: Tensor, count: int, g: torch.Generator) -> Tensor:
    """The same of many: some neighbours at a time, and the jitter from a pool."""
    starts = torch.randint(flat.numel() - RUN, (-(-count // RUN),), generator=g, device=flat.device)
    picked = flat.unfold(0, RUN, 1)[starts].view(-1)[:count]
    exact = torch.promote_types(flat.dtype, torch.float32)
    jitter = torch.rand(min(count, POOL), generator=g, dtype=exact, device=flat.device)
    low, high = torch.aminmax(flat)
    moved = scaled(picked, jitter.sub_(0.5).mul_(2.0**-6).add_(1.0))
    return moved.clamp_(low.to(exact), high.to(exact)).to(flat.dtype)


def _picks(t: Tensor, count: int, g: torch.Generator) -> Tensor:
    """Which observed values to take: a permutation of indices stays a permutation."""
    size = t.numel()
    if count == size and _integers(t) and torch.unique(t).numel() == size:
        return torch.randperm(size, generator=g, device=t.device)
    # Half the memory of int64, where that is enough.
    small = torch.int32 if size < 2**31 else torch.int64
    return torch.randint(size, (count,), generator=g, device=t.device, dtype=small)


def _ascending(t: Tensor) -> bool:
    """Offsets of packed sequences and sorted indices must stay sorted to mean anything."""
    return _integers(t) and t.ndim >= 1 and bool((t.diff(dim=-1) >= 0).all())


def _normal(t: Tensor, g: torch.Generator) -> Tensor:
    exact = torch.promote_types(t.dtype, torch.float32)
    return torch.randn(t.shape, generator=g, dtype=exact, device=t.device).to(t.dtype)


def _uniform(t: Tensor, g: torch.Generator) -> Tensor:
    exact = torch.promote_types(t.dtype, torch.float32)
    return torch.rand(t.shape, generator=g, dtype=exact, device=t.device).to(t.dtype)


def _scale(factor: float) -> Change:
    return lambda t, g: (resampled(t, g).double() * factor).to(t.dtype)


def _offset(amount: float) -> Change:
    return lambda t, g: (resampled(t, g).double() + amount).to(t.dtype)


def _huge(t: Tensor, g: torch.Generator) -> Tensor:
    """As large as sums of products stay finite in; half, which is summed in float32: 6e4."""
    largest = torch.finfo(t.dtype).max
    wanted = 0.9 * largest if t.dtype is torch.float16 else largest**0.5 / 64
    values = resampled(t, g).double()
    peak = float(values.abs().max())
    return values.mul_(wanted / peak if peak else 1.0).to(t.dtype)


def _denormal(t: Tensor, g: torch.Generator) -> Tensor:
    return (resampled(t, g).double() * (torch.finfo(t.dtype).tiny / 8)).to(t.dtype)


def _signed_zeros(t: Tensor, g: torch.Generator) -> Tensor:
    signs = torch.randint(0, 2, t.shape, generator=g, device=t.device, dtype=torch.int8)
    return (signs.mul_(2).sub_(1) * 0.0).to(t.dtype)


def _sorted(t: Tensor, g: torch.Generator) -> Tensor:
    return resampled(t, g).sort(dim=-1).values


def _one_hot(t: Tensor, g: torch.Generator) -> Tensor:
    zeros = torch.zeros(t.shape, dtype=t.dtype, device=t.device)
    return zeros.scatter_(-1, _places(t, g), 1)


def _places(t: Tensor, g: torch.Generator) -> Tensor:
    """A place in each row: the last one, where loops end too early, the first one, or any."""
    width = t.shape[-1]
    places = torch.randint(width, (*t.shape[:-1], 1), generator=g, device=t.device)
    flat = places.view(-1)
    flat[-1:] = 0
    flat[:1] = width - 1
    return places


def _dominating(t: Tensor, g: torch.Generator) -> Tensor:
    """One element of each row is 1000 times the largest of the others."""
    values = resampled(t, g)
    peak = min(1e3 * float(values.abs().max()), 0.5 * torch.finfo(t.dtype).max)
    return values.scatter_(-1, _places(t, g), peak)


def _alternating(t: Tensor, g: torch.Generator) -> Tensor:
    """Neighbours cancel: +a, -a, +b, -b with a remainder of one part in a thousand."""
    values = resampled(t, g).double()
    values[..., 1::2] = -values[..., 0::2][..., : values.shape[-1] // 2] * (1 - 1e-3)
    return values.to(t.dtype)


def _constant_rows(t: Tensor, g: torch.Generator) -> Tensor:
    """Variance zero; of few bits, so that no summation order spoils the mean."""
    mantissa, exponent = torch.frexp(resampled(t, g)[..., :1].double())
    few = torch.ldexp((mantissa * 16).round(), exponent - 4)
    return few.to(t.dtype).expand(t.shape).clone()


def _duplicated(t: Tensor, g: torch.Generator) -> Tensor:
    return torch.full_like(t, t.reshape(-1)[_place((t.numel(),), g)[0]].item())


def _extremes(t: Tensor, g: torch.Generator) -> Tensor:
    low, high = t.min(), t.max()
    coin = torch.randint(0, 2, t.shape, generator=g, device=t.device).bool()
    return torch.where(coin, low, high).to(t.dtype)


def _filled(value: float) -> Change:
    return lambda t, _: torch.full_like(t, value)


VALUES: tuple[Row, ...] = (
    *(Row(f"fresh-{i}", "fresh", resampled, _any, required=True) for i in range(FRESH_DRAWS)),
    Row("redraw-normal", "structure", _normal, _floats),
    Row("redraw-uniform", "structure", _uniform, _floats),
    Row("scale-1e-3", "scale", _scale(1e-3), _floats),
    Row("scale-1e3", "scale", _scale(1e3), _floats),
    Row("scale-huge", "scale", _huge, _floats),
    Row("offset-5", "offset", _offset(5.0), _floats),
    Row("offset-10", "offset", _offset(10.0), _floats),
    Row("offset-1e3", "offset", _offset(1e3), _floats),
    Row("offset-minus-1e3", "offset", _offset(-1e3), _floats),
    Row("tiny-denormal", "tiny", _denormal, _floats),
    Row("tiny-zeros", "tiny", _signed_zeros, _floats),
    Row("structure-sorted", "structure", _sorted, _float_rows),
    Row("structure-one-hot", "structure", _one_hot, _float_rows),
    Row("structure-dominating", "structure", _dominating, _float_rows),
    Row("structure-alternating", "structure", _alternating, _float_rows),
    Row("structure-constant-rows", "structure", _constant_rows, _float_rows),
    Row("index-duplicates", "structure", _duplicated, _integers),
    Row("index-extremes", "structure", _extremes, _integers),
    Row("mask-all", "structure", _filled(1), _bools),
    Row("mask-none", "structure", _filled(0), _bools),
)


# ---- special values ------------------------------------------------------------------------------


def _one_value(value: float) -> Change:
    def change(t: Tensor, g: torch.Generator) -> Tensor:
        values = resampled(t, g)
        values[_place(t.shape, g)] = value
        return values

    return change


def _one_row(value: float) -> Change:
    def change(t: Tensor, g: torch.Generator) -> Tensor:
        values = resampled(t, g)
        values[_place(t.shape[:-1], g)] = value
        return values

    return change


SPECIALS: tuple[tuple[str, Change, Fits], ...] = (
    ("special-inf", _one_value(float("inf")), _floats),
    ("special-minus-inf", _one_value(float("-inf")), _floats),
    ("special-nan", _one_value(float("nan")), _floats),
    ("special-minus-inf-row", _one_row(float("-inf")), _float_rows),
)


# ---- strides and storage -------------------------------------------------------------------------


def _transposed(t: Tensor, g: torch.Generator) -> Tensor:
    return resampled(t, g).transpose(-1, -2).contiguous().transpose(-1, -2)


def _channels_last(t: Tensor, g: torch.Generator) -> Tensor:
    layout = torch.channels_last if t.ndim == 4 else torch.channels_last_3d
    return resampled(t, g).contiguous(memory_format=layout)


def _stepped(dim: int) -> Change:
    """Every second element of a storage twice as long along `dim`."""

    def change(t: Tensor, g: torch.Generator) -> Tensor:
        shape = list(t.shape)
        shape[dim] *= 2
        room = resampled(t, g, shape)
        steps = [slice(None)] * t.ndim
        steps[dim] = slice(None, None, 2)
        return room[tuple(steps)]

    return change


def _expanded(t: Tensor, g: torch.Generator) -> Tensor:
    return resampled(t, g)[:1].expand(t.shape)


def _shifted(t: Tensor, g: torch.Generator) -> Tensor:
    """Contiguous, but starting one element into its storage: vector loads are misaligned."""
    return resampled(t, g, (t.numel() + 1,))[1:].view(t.shape)


STRIDES: tuple[Row, ...] = (
    Row("strides-transposed", "strides", _transposed, lambda t: _any(t) and t.ndim >= 2),
    Row("strides-channels-last", "strides", _channels_last, lambda t: _any(t) and t.ndim in {4, 5}),
    Row("strides-step-last", "strides", _stepped(-1), lambda t: _any(t) and t.ndim >= 1),
    Row("strides-step-first", "strides", _stepped(0), lambda t: _any(t) and t.ndim >= 2),
    Row("strides-expanded", "strides", _expanded, lambda t: _any(t) and t.ndim >= 2, True),
    Row("storage-offset", "storage", _shifted, _any, True),
)
