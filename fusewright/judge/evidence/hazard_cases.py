"""Example inputs -> the hazard matrix: named, replayable inputs of other values, strides, shapes.

A case is a function of (example inputs, seed, name) and nothing else, drawn where the inputs live,
so a replay on the same kind of device rebuilds it bit for bit. Whether a case is legal is not
decided here: eager decides, by taking it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from fusewright.judge.evidence.input_mutations import (
    SPECIALS,
    STRIDES,
    VALUES,
    Change,
    Fits,
    Row,
    resampled,
)
from fusewright.judge.evidence.pytree import mapped, tensors

SPECIAL_TARGETS = 3  # inf and nan are put into the first few float inputs, one at a time
LARGE = 4_097
GRID_LIMIT = 65_537  # one more than a CUDA grid may have in y and z
# Who takes any batch size takes one row, at which eager's rules change; who takes any first and
# second size takes both of them as 1, and both others than they were.
ALWAYS = ("shape-dim0-1", "shape-sizes01-1", "shape-sizes01-drawn")
GROWN_BYTES = 64 << 20  # the very long shapes are tried only where they stay this small
MAX_DIMS = 4  # dimensions that the shape family varies
TOGETHER = 3  # of the sizes of the inputs, those of which two are varied together


@dataclass(frozen=True)
class Case:
    """One way to call the model."""

    name: str
    family: str  # fresh, scale, offset, tiny, special, structure, strides, storage, ... shapes
    required: bool  # same shapes and value range as get_inputs(): the candidate must pass
    isolated: bool  # a wrong kernel may crash on it: run it in a process of its own
    build: Callable[[], list[object]]


def matrix(inputs: Sequence[object], *, seed: int) -> tuple[Case, ...]:
    """Every case that can be built from these example inputs, in a fixed order."""
    given = list(tensors(inputs))
    rows = [row for row in (*VALUES, *STRIDES) if any(row.fits(t) for t in given)]
    cases = [_case(inputs, seed, row) for row in rows]
    shapes = (*_shapes(inputs, seed), *_sizes_anywhere(inputs, seed))
    return (*cases, *_special(inputs, seed), *_aliasing(inputs, seed), *shapes)


def rows_of(inputs: Sequence[object]) -> int:
    """The leading dimension that most inputs have: very likely the batch."""
    sizes = Counter(t.shape[0] for t in tensors(inputs) if t.ndim)
    return sizes.most_common(1)[0][0] if sizes else 0


def shortened(inputs: Sequence[object], rows: int, start: int = 0) -> list[object]:
    """The same inputs with `rows` rows in that dimension, from `start` on."""
    size, kept = rows_of(inputs), slice(start, start + rows)
    return mapped(inputs, lambda t: t[kept].clone() if t.ndim and t.shape[0] == size else t.clone())


def chosen(inputs: Sequence[object], rows: Tensor) -> list[object]:
    """The same inputs with these rows, by number, in that dimension."""
    size = rows_of(inputs)
    return mapped(inputs, lambda t: t[rows] if t.ndim and t.shape[0] == size else t.clone())


def _case(inputs: Sequence[object], seed: int, row: Row) -> Case:
    def build() -> list[object]:
        generator = _generator(inputs, seed, row.name)

        def change(t: Tensor) -> Tensor:
            return row.change(t, generator) if row.fits(t) else t.clone()

        return mapped(inputs, change)

    return Case(row.name, row.family, row.required, row.isolated, build)


def _generator(inputs: Sequence[object], seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    device = next((t.device for t in tensors(inputs)), torch.device("cpu"))
    generator = torch.Generator(device=device)
    generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return generator


# ---- special values, one tensor at a time --------------------------------------------------------


def _special(inputs: Sequence[object], seed: int) -> Iterator[Case]:
    """`special-nan-1` puts one nan into the second float input; the others get fresh values."""
    for name, change, fits in SPECIALS:
        targets = sum(fits(t) for t in tensors(inputs))
        for target in range(min(targets, SPECIAL_TARGETS)):
            full = f"{name}-{target}"
            build = _special_build(inputs, seed, full, change, fits, target)
            yield Case(full, "special", False, False, build)


def _special_build(
    inputs: Sequence[object],
    seed: int,
    name: str,
    change: Change,
    fits: Fits,
    target: int,
) -> Callable[[], list[object]]:
    def build() -> list[object]:
        generator = _generator(inputs, seed, name)
        seen = iter(range(1_000_000))

        def apply(t: Tensor) -> Tensor:
            hit = fits(t) and next(seen) == target
            return change(t, generator) if hit else resampled(t, generator)

        return mapped(inputs, apply)

    return build


# ---- aliasing ------------------------------------------------------------------------------------


def _aliasing(inputs: Sequence[object], seed: int) -> Iterator[Case]:
    """The first two top-level inputs of one shape and dtype become the same tensor."""
    seen: dict[tuple[object, ...], int] = {}
    for index, value in enumerate(inputs):
        if not isinstance(value, Tensor) or not value.numel():
            continue
        first = seen.setdefault((value.shape, value.dtype), index)
        if first != index:
            yield Case("aliasing-same", "aliasing", False, False, _same(inputs, seed, first, index))
            return


def _same(
    inputs: Sequence[object], seed: int, first: int, second: int
) -> Callable[[], list[object]]:
    def build() -> list[object]:
        generator = _generator(inputs, seed, "aliasing-same")
        fresh = mapped(inputs, lambda t: resampled(t, generator))
        fresh[second] = fresh[first]
        return fresh

    return build


# ---- shapes --------------------------------------------------------------------------------------


def _shapes(inputs: Sequence[object], seed: int) -> Iterator[Case]:
    """One dimension at a time, in all inputs that share its position and size: likely legal."""
    given = list(tensors(inputs))
    for dim in range(min(MAX_DIMS, max((t.ndim for t in given), default=0))):
        sizes = Counter(t.shape[dim] for t in given if t.ndim > dim)
        old = sizes.most_common(1)[0][0]
        for label, new in _sizes(dim, old, given, _generator(inputs, seed, f"sizes-dim{dim}")):
            name = f"shape-dim{dim}-{label}"
            build = _resized(inputs, seed, name, {(dim, old): new})
            yield Case(name, "shapes", False, True, build)


def _sizes_anywhere(inputs: Sequence[object], seed: int) -> Iterator[Case]:
    """A size that stands at several dimensions, as that of a mask with as many rows as columns, and
    two sizes at once: `shape-size1-drawn`, `shape-sizes01-1`."""
    places: dict[int, set[int]] = {}
    for t in tensors(inputs):
        for dim, size in enumerate(t.shape[:MAX_DIMS]):
            if size > 1:
                places.setdefault(size, set()).add(dim)
    sizes = [*places][:TOGETHER]
    several = [(k,) for k, size in enumerate(sizes) if len(places[size]) > 1]
    for some in (*several, *combinations(range(len(sizes)), 2)):
        number = "".join(map(str, some))
        for label in ("1", "drawn"):
            name = f"shape-size{'s' * (len(some) > 1)}{number}-{label}"
            draws = _generator(inputs, seed, f"{name} sizes")
            new = {sizes[k]: 1 if label == "1" else _other(sizes[k], draws) for k in some}
            where = {(dim, size): new[size] for size in new for dim in places[size]}
            yield Case(name, "shapes", False, True, _resized(inputs, seed, name, where))


def _other(old: int, generator: torch.Generator) -> int:
    """Another size than `old`, 2 or more."""
    made = torch.randint(2, 2 * old + 8, (), generator=generator, device=generator.device)
    return int(made) + (int(made) == old)


def _sizes(
    dim: int, old: int, given: Sequence[Tensor], generator: torch.Generator
) -> list[tuple[str, int]]:
    """Sizes of which kernels forget some; several are drawn, so that nobody knows them."""

    def drawn(low: int, high: int) -> int:
        made = torch.randint(low, high, (), generator=generator, device=generator.device)
        return int(made)

    prime = next(p for p in (7, 13) if p != old)
    power = 1 << max(old, 2).bit_length()
    wanted = [("1", 1), ("prime", prime), ("more", old + 1), ("drawn", drawn(2, 4 * old + 8))]
    if dim == 0:
        wanted += [("0", 0), ("less", max(power // 2 - 1, 1)), ("double", 2 * old + 1)]
        row = sum(
            t.numel() * t.element_size() // max(old, 1)
            for t in given
            if t.ndim > 0 and t.shape[0] == old
        )
        most = GROWN_BYTES // row if row else GRID_LIMIT
        ranges = (("many", 4 * old, 6 * old), ("thousands", LARGE, 2 * LARGE),
                  ("grid", GRID_LIMIT, GRID_LIMIT + LARGE))  # fmt: skip
        wanted += [
            (label, drawn(low, min(high, most) + 1))
            for label, low, high in ranges
            if old < low <= most
        ]
    return [(label, size) for label, size in wanted if size != old]


def _resized(
    inputs: Sequence[object], seed: int, name: str, new: Mapping[tuple[int, int], int]
) -> Callable[[], list[object]]:
    """new: by dimension and size there, the size that it gets."""

    def build() -> list[object]:
        generator = _generator(inputs, seed, name)

        def resize(t: Tensor) -> Tensor:
            shape = [new.get(place, place[1]) for place in enumerate(t.shape)]
            return resampled(t, generator, shape)

        return mapped(inputs, resize)

    return build
