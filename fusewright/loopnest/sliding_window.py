"""A map of windows -> SlidingWindow: along which axes its threads go, and what they load only once.

    x[h - 1], x[h], x[h + 1]   for h = 0 ... 3   are six numbers, not twelve

Windows of neighbours overlap. A thread that takes a few results below each other, each a vector of
neighbours, keeps what they share in registers (`kernels/pointwise/cuda/sliding_window.cuh`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fusewright.fusion.axes import AxisBound, TensorWalk, read_walks, write_walks
from fusewright.fusion.planner import Kernel
from fusewright.ir.graph import Size

# Lines of a thread, and as many numbers as its registers hold, with a weight for each: of single
# elements, and of vectors, where fewer registers and more threads are faster [m: pointwise-0017,
# pointwise-0019, pointwise-0021].
# Results of a thread in vectors.
MOST, MOST_OF_VECTORS = (8, 70), (4, 80)
MOST_RESULTS = 16
LEAST_READS, LEAST_SAVED = 6, 0.25  # of a window; the share of loads that overlap
# Of 16 bits, where a warp reads half as much at a time: 3 x 3 of stride 2, which saves a quarter,
# took 60.0 us instead of 58.3 with one result a thread, 3 x 3 x 3, nine heads, 128 instead of 96.
HALF_SAVED, HALF_HEADS = 0.3, 8
LEAST_HIGH, MOST_HIGH = 2, 1 << 29  # which 32 bits count, and a window further
Key = tuple[int, int]  # a member's id, and the number of its argument
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class SlidingWindow:
    """heads: what is read at the first place of windows that overlap.  axis: along which a thread
    goes down.  beside: the axis of its neighbours.  lengths, widths: how many places heads have
    along each.  places: of which head an argument is which place."""

    axis: int
    beside: int
    heads: tuple[TensorWalk, ...]
    lengths: tuple[int, ...]
    widths: tuple[int, ...]
    places: Mapping[Key, tuple[int, int, int]]

    def loads(self, results: int) -> int:
        """What a thread loads of these windows for so many results, vectors or not."""
        sizes = zip(self.lengths, self.widths, strict=True)
        return sum((results - 1 + length) * width for length, width in sizes)

    def held(self, results: int, vector: int) -> int:
        """The numbers in its registers."""
        sizes = zip(self.lengths, self.widths, strict=True)
        return sum((results - 1 + length) * (vector - 1 + width) for length, width in sizes)


def sliding_window(kernel: Kernel) -> SlidingWindow | None:
    """How a map of overlapping windows is taken, None where nothing is gained."""
    if kernel.reductions or kernel.anchor:
        return None
    reads, writes = read_walks(kernel.loops), write_walks(kernel.loops, kernel.outputs)
    written, sizes = writes[id(kernel.outputs[0])].strides, kernel.loops.sizes
    apart = {a: s for a, s in written.items() if isinstance(s, int) and s > 1}
    known = {a: n for a, n in sizes.items() if isinstance(n, int) and LEAST_HIGH <= n < MOST_HIGH}
    axes = sorted(apart.keys() & known.keys(), key=apart.__getitem__)  # nearer neighbours first
    beside = next((a for a, s in written.items() if s == 1 and a in known), None)
    if beside is None:
        return None
    found = [_down(reads, axis, beside, sizes) for axis in axes]
    best = min(found, key=lambda d: d.loads(4) - 4 * len(d.places), default=None)
    if best is None or len(best.places) < LEAST_READS:
        return None
    half = kernel.outputs[0].dtype.itemsize < 4
    if half and sum(best.widths) > HALF_HEADS:
        return None
    saved = HALF_SAVED if half else LEAST_SAVED
    return best if best.loads(4) <= (1 - saved) * 4 * len(best.places) else None


def results(
    found: SlidingWindow, high: int, wide: int, rows: int, vector: int, enough: int
) -> tuple[int, int]:
    """How many results a thread has below each other, and beside each other, `vector` at most: few
    loads for each, but enough threads to keep a GPU busy."""
    ways = [(n, 1) for n in range(2, MOST[0] + 1) if found.held(n, 1) <= MOST[1]]
    for v in (v for v in (2, 4, 8) if v <= vector):
        lines = range(2, min(MOST_OF_VECTORS[0], MOST_RESULTS // v) + 1)
        ways += [(n, v) for n in lines if found.held(n, v) <= MOST_OF_VECTORS[1]]
    most = [way for way in ways if way[0] <= high]
    busy = [(n, v) for n, v in most if rows * (high // n) * (wide // v) >= enough]

    def loads(way: tuple[int, int]) -> float:
        n, v = way
        return ((high // n) * found.loads(n) + 2 * (high % n) * found.loads(1)) / v

    return min(busy or most[:1] or [(1, 1)], key=loads)


def _down(
    tensors: Mapping[Key, TensorWalk], axis: int, beside: int, sizes: Mapping[int, Size]
) -> SlidingWindow:
    """Windows are columns that lie beside each other."""
    walked = {k: walk for k, walk in tensors.items() if _plain(walk, axis)}
    columns, places = _heads(walked, axis, sizes)
    lengths = [1 + max(p for c, p in places.values() if c == n) for n in range(len(columns))]
    even = {n: walk for n, walk in enumerate(columns) if _plain(walk, beside)}
    heads, shifts = _heads(even, beside, sizes, lengths)
    for n in range(len(columns)):  # what shares nothing with its neighbours
        if n not in shifts:
            shifts[n] = len(heads), 0
            heads.append(columns[n])
    of = {key: (shifts[n][0], place, shifts[n][1]) for key, (n, place) in places.items()}
    high, wide = (
        tuple(1 + max(at[d] for at in of.values() if at[0] == n) for n in range(len(heads)))
        for d in (1, 2)
    )
    return SlidingWindow(axis, beside, tuple(heads), high, wide, of)


def _heads(
    tensors: Mapping[K, TensorWalk], axis: int, sizes: Mapping[int, Size], kinds: Sequence[int] = ()
) -> tuple[list[TensorWalk], dict[K, tuple[int, int]]]:
    """What overlaps along an axis: the first places, and of which of them each is which place.
    kinds: what has to be the same, by key, where there are no holes between places."""
    groups: dict[object, list[K]] = {}
    for key, walk in tensors.items():
        others = frozenset(_written(x) for x in walk.limits if not x.strides.get(axis, 0))
        where = id(walk.tensor), frozenset(walk.strides.items()), others
        place = walk.offset % walk.strides[axis]  # type: ignore[operator]
        kind = kinds[key] if kinds else 0  # type: ignore[call-overload]
        groups.setdefault((*where, place, kind), []).append(key)
    heads, places = list[TensorWalk](), dict[K, tuple[int, int]]()
    for keys in groups.values():
        found = _head([tensors[key] for key in keys], axis, sizes)
        if found and not (kinds and max(found[1]) >= len(keys)):
            head, each = found
            places.update({key: (len(heads), place) for key, place in zip(keys, each, strict=True)})
            heads.append(head)
    return heads, places


def _plain(walk: TensorWalk, axis: int) -> bool:
    """Whether its places along the axis are known numbers."""
    step = walk.strides.get(axis, 0)
    numbers = [step, walk.offset, *(n for x in walk.limits for n in (x.offset, x.size))]
    numbers += [x.strides.get(axis, 0) for x in walk.limits]
    known = all(isinstance(n, int) and abs(n) < MOST_HIGH for n in numbers)
    plain = walk.tensor.op != "constant" and all(x.beyond and not x.wrap for x in walk.limits)
    return known and plain and isinstance(step, int) and step > 0


def _head(
    group: Sequence[TensorWalk], axis: int, sizes: Mapping[int, Size]
) -> tuple[TensorWalk, list[int]] | None:
    """The walk of a group's first place, with the limits of all, and the place of each."""
    step, offsets = group[0].strides[axis], [walk.offset for walk in group]
    assert isinstance(step, int)
    places = [(offset - min(offsets)) // step for offset in offsets]  # type: ignore[operator, type-var]
    fills = {repr(walk.fill): walk.fill for walk in group if walk.limits}
    shifted = [
        [_shifted(x, axis, -place) for x in walk.limits]
        for walk, place in zip(group, places, strict=True)
    ]
    limits = {_written(x): x for each in shifted for x in each}
    for each, place in zip(shifted, places, strict=True):
        own = {_written(x) for x in each}
        lacking = [_shifted(x, axis, place) for written, x in limits.items() if written not in own]
        if any(_excludes(x, sizes) for x in lacking):
            return None
    if len(group) < 2 or len(fills) > 1 or min(places) < 0 or max(places) > 2 * len(group):
        return None
    fill = next(iter(fills.values()), None)
    first = group[places.index(0)]
    return first._replace(limits=tuple(limits.values()), fill=fill), places


def shift(walk: TensorWalk, axis: int, places: int) -> TensorWalk:
    """The same elements so many places further along an axis."""
    offset = walk.offset + walk.strides.get(axis, 0) * places  # type: ignore[operator]
    limits = tuple(_shifted(x, axis, places) for x in walk.limits)
    return walk._replace(offset=offset, limits=limits)


def _shifted(limit: AxisBound, axis: int, places: int) -> AxisBound:
    """The same limit so many places further down."""
    by, offset = limit.strides.get(axis, 0), limit.offset
    assert isinstance(by, int)
    assert isinstance(offset, int)
    return limit._replace(offset=offset + by * places)


def _written(limit: AxisBound) -> tuple[object, ...]:
    return frozenset(limit.strides.items()), limit.offset, limit.size


def _excludes(limit: AxisBound, sizes: Mapping[int, Size]) -> bool:
    """Whether any element may lie outside."""
    steps = [(sizes[axis], step) for axis, step in limit.strides.items() if step != 0]
    ends = [s * (n - 1) for n, s in steps if isinstance(n, int) and isinstance(s, int)]
    first, size = limit.offset, limit.size
    if len(ends) < len(steps) or not isinstance(first, int) or not isinstance(size, int):
        return True
    lowest, highest = (first + sum(e for e in ends if e * sign > 0) for sign in (-1, 1))
    return lowest < 0 or highest >= size
