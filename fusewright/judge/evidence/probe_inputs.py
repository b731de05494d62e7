"""Arguments of a model -> the arguments of each probe: sparse, integer, scaled, permuted.

Which answers are right is worked out by `probes`; here is only what is asked. Arguments are such
that an ordinary rounding of a sum cannot be taken for the mistake that is looked for.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy
import torch
from torch import Tensor

from fusewright.judge.evidence.float64_twins import POOL, generator, repeated
from fusewright.judge.evidence.hazard_cases import rows_of
from fusewright.judge.evidence.pytree import mapped, tensors
from fusewright.judge.evidence.tied_tensors import each, first_names

# Significant bits of the next lower class of arithmetic: float64 -> float32, float32 -> TF32 and
# half, half -> bfloat16, bfloat16 -> fp8.
LOWER_BITS: Mapping[torch.dtype, int] = {
    torch.float64: 24,
    torch.float32: 11,
    torch.float16: 8,
    torch.bfloat16: 4,
}
LOUD = {torch.float16: 32.0}  # makes softmax choose one element; half overflows earlier
LOUD_ELSE = 128.0
STEPS = {torch.float16: 3}  # scaling probes go by 2^-16 and 2^16, half by 2^-3 and 2^3
STEPS_ELSE = 16


@dataclass(frozen=True)
class Arguments:
    """What a model is called with."""

    inputs: list[object]
    state: Mapping[str, Tensor]


Pair = tuple[Arguments, Arguments]


def rounded(t: Tensor, bits: int) -> Tensor:
    """To the nearest float64 with so many significant bits (Veltkamp's splitting)."""
    wide = t.double()
    large = wide * (2.0 ** (53 - bits) + 1)
    return large - (large - wide)


def selections(own: Arguments, seed: int, most: int) -> Iterator[tuple[str, Callable[[], Pair]]]:
    """Name, and what makes arguments and the same with the aimed operand in the lower class.

    One operand holds odd integers that the lower class cannot hold; all others are zero but for
    one element per row, so that each output is one of those integers, or a sum of a few.
    """
    targets = [f"input-{i}" for i, t in enumerate(tensors(own.inputs)) if _aimable(t)][:most]
    targets += [f"weight-{name}" for name in _weights(own.state, most)]
    for target in targets:
        yield f"select-{target}", partial(_selected, own, target, seed)
    if any(_aimable(t) for t in tensors(own.inputs)):
        for reach in ("row", "sample"):
            yield f"select-sparse-{reach}", partial(_sparse, own, reach, seed)


def _aimable(t: Tensor) -> bool:
    return t.dtype in LOWER_BITS and t.numel() > 0


def _weights(state: Mapping[str, Tensor], most: int) -> list[str]:
    """First, last and some between, of the parameters with two dimensions or more."""
    first = first_names(state)
    names = [n for n, t in state.items() if _aimable(t) and t.ndim >= 2 and first[n] == n]
    if len(names) <= most:
        return names
    return [names[round(i * (len(names) - 1) / (most - 1))] for i in range(most)]


def _selected(own: Arguments, target: str, seed: int) -> Pair:
    several = sum(_aimable(t) for t in tensors(own.inputs)) > 1
    number = iter(range(1_000_000))

    def change(t: Tensor) -> Tensor:
        index = next(number)
        if not _aimable(t):
            return t.clone()
        if target == f"input-{index}":
            return _odd(t, seed + index)
        loud = LOUD.get(t.dtype, LOUD_ELSE) if several and target.startswith("input") else 1.0
        return _hot(t, "row", seed + index) * loud

    inputs = mapped(own.inputs, change)
    state = each(
        own.state,
        lambda name, t: _odd(t, seed) if f"weight-{name}" == target else _quiet(name, t, seed),
    )
    if target.startswith("input"):
        return Arguments(inputs, state), Arguments(_coarse(inputs), state)
    name = target.removeprefix("weight-")
    lower = each(state, lambda n, t: _lower(t) if n == name else t)
    return Arguments(inputs, state), Arguments(inputs, lower)


def _sparse(own: Arguments, reach: str, seed: int) -> Pair:
    number = iter(range(seed + 1, seed + 1_000_000))

    def change(t: Tensor) -> Tensor:
        own_seed = next(number)
        if not _aimable(t):
            return t.clone()
        return _hot(t, reach, own_seed).abs() * _odd(t, own_seed)

    state = each(own.state, lambda name, t: _quiet(name, t, seed + 1))
    inputs = mapped(own.inputs, change)
    return Arguments(inputs, state), Arguments(_coarse(inputs), state)


def _coarse(inputs: list[object]) -> list[object]:
    """Every input rounded to the lower class; the sparse ones do not change by that."""
    return mapped(inputs, lambda t: _lower(t) if _aimable(t) else t.clone())


def _lower(t: Tensor) -> Tensor:
    made, flat = torch.empty_like(t, memory_format=torch.contiguous_format), t.reshape(-1)
    for start in range(0, t.numel(), POOL):  # weights may be large, and float64 twice that
        part = slice(start, start + POOL)
        made.view(-1)[part] = rounded(flat[part], LOWER_BITS[t.dtype])
    return made


def _odd(t: Tensor, seed: int) -> Tensor:
    """Odd integers with two bits more than the lower class keeps, of random sign."""
    half = 1 << LOWER_BITS[t.dtype]
    # In float64 where float32 could not hold them.
    exact = torch.promote_types(t.dtype, torch.float32)
    values = torch.empty(min(t.numel(), POOL), dtype=exact, device=t.device)
    values.random_(-half, half, generator=_draws(t, seed, "odd"))
    # Sizes from `half` to twice that, of both signs.
    away = torch.where(values < 0, -float(half), float(half))
    return repeated(values.add_(away).mul_(2).add_(1).to(t.dtype), t.shape)


def _hot(t: Tensor, reach: str, seed: int) -> Tensor:
    """One of +1 and -1 in every row (or in every leading index), else zeros."""
    keep = t.ndim - 1 if reach == "row" else min(1, t.ndim - 1)
    groups = t.shape[: max(keep, 0)].numel()
    flat = torch.zeros(groups, t.numel() // groups, dtype=t.dtype, device=t.device)
    draws = _draws(t, seed, reach)
    places = torch.randint(flat.shape[1], (groups, 1), generator=draws, device=t.device)
    signs = 2 * torch.randint(0, 2, (groups, 1), generator=draws, device=t.device) - 1
    return flat.scatter_(1, places, signs.to(t.dtype)).reshape(t.shape)


def _draws(t: Tensor, seed: int, kind: str) -> torch.Generator:
    """Another stream for every shape and purpose."""
    digest = zlib.crc32(repr((kind, tuple(t.shape))).encode())
    return generator(t, seed * 4096 + (digest << 12))


def _quiet(name: str, t: Tensor, seed: int) -> Tensor:
    """A parameter that hands numbers through: a selection, a scale of 1 or a shift of 0."""
    if not _aimable(t) or t.ndim == 0:
        return t.detach().clone()
    if t.ndim >= 2:
        return _hot(t, "sample", seed + zlib.crc32(name.encode()))
    last = name.rsplit(".", 1)[-1]
    return torch.full_like(t, 0.0 if "bias" in last or "mean" in last else 1.0)


def integer_targets(own: Arguments, most: int) -> list[str]:
    """Weights to fill with integers, one at a time; "inputs" where there is no weight."""
    if not any(_aimable(t) for t in tensors(own.inputs)):
        return []
    return _weights(own.state, most) or ["inputs"]


def integers(own: Arguments, target: str, largest: int, seed: int) -> Arguments:
    """1 ... `largest` in the inputs and the target; the other weights select."""
    number = iter(range(1_000_000))

    def small(t: Tensor) -> Tensor:
        if not _aimable(t):
            return t.clone()
        draws = _draws(t, seed, f"small {next(number)}")
        return torch.empty_like(t).random_(1, largest + 1, generator=draws)

    inputs = mapped(own.inputs, small)

    def change(name: str, t: Tensor) -> Tensor:
        return small(t.detach()) if name == target else _positive(_quiet(name, t, seed))

    state = each(own.state, change)
    return Arguments(inputs, state)


def _positive(t: Tensor) -> Tensor:
    return t if t.dtype is torch.bool else t.abs()


def influences(
    own: Arguments, seed: int, most: int, rows: slice | None = None
) -> Iterator[tuple[str, Callable[[], Arguments]]]:
    """One element, the last or a random one, takes the farthest value that its tensor holds; with
    `rows`, one of these."""
    flat = list(tensors(own.inputs))
    usable = [i for i, t in enumerate(flat) if t.numel() > 1 and not t.is_complex()][:most]
    for index in usable:
        draws = torch.Generator().manual_seed(seed + index)
        first, size = 0, flat[index].numel()
        if rows is not None and flat[index].shape[:1] == (rows_of(own.inputs),):
            row = size // flat[index].shape[0]
            first, size = rows.start * row, (rows.stop - rows.start) * row
        drawn = int(torch.randint(size, (), generator=draws))
        places = {"last": first + size - 1, "random": first + drawn}
        for label, place in places.items():
            yield f"influence-{index}-{label}", partial(_moved, own, index, place)


def _moved(own: Arguments, index: int, place: int) -> Arguments:
    changed = mapped(own.inputs, Tensor.clone)
    _move(list(tensors(changed))[index], place)
    return Arguments(changed, own.state)


def _move(t: Tensor, place: int) -> None:
    low, high = float(t.min()), float(t.max())
    at = numpy.unravel_index(place, t.shape)  # torch's own imports sympy, which takes a second
    now = float(t[at])
    t.detach()[at] = low if now - low > high - now else high


def scalings(own: Arguments) -> Iterator[tuple[str, Arguments, float]]:
    """All floating inputs times 2^-16 and 2^16: out of the range of half precision inside."""
    floats = [t for t in tensors(own.inputs) if _aimable(t)]
    if not floats:
        return
    step = min(STEPS.get(t.dtype, STEPS_ELSE) for t in floats)
    for label, power in (("down", -step), ("up", step)):
        factor = 2.0**power

        def scale(t: Tensor, factor: float = factor) -> Tensor:
            return t * factor if _aimable(t) else t.clone()

        yield f"scaling-{label}", Arguments(mapped(own.inputs, scale), own.state), factor


def permuted(own: Arguments, seed: int) -> tuple[Arguments | None, Tensor | None]:
    """The inputs with their common leading dimension permuted, and the permutation."""
    sizes = Counter(t.shape[0] for t in tensors(own.inputs) if t.ndim)
    if not sizes or (size := sizes.most_common(1)[0][0]) < 2:
        return None, None
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))

    def permute(t: Tensor) -> Tensor:
        return t[order.to(t.device)] if t.ndim and t.shape[0] == size else t.clone()

    return Arguments(mapped(own.inputs, permute), own.state), order
