"""A map of windows -> Down: along which axis its threads go down, and what they load only once.

    x[h - 1], x[h], x[h + 1]   for h = 0 ... 3   are six numbers, not twelve

Windows of neighbours overlap. A thread that takes a few results one below the other keeps what they
share in registers (`skeletons/cuda/down.cuh`), and a warp still reads neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusewright.ir import Size
from fusewright.loops import Limit, Walk, walks
from fusewright.plan import Kernel

# Results of a thread; as many loads as its registers hold, with a weight for each; threads
# that keep a GPU busy. Predictions, from the text that nvcc makes of 3 x 3 to 7 x 7.
MOST_DOWN, MOST_LOADS, BUSY = 8, 70, 132 * 1024
LEAST_READS, LEAST_SAVED = 6, 0.25  # of a window; the share of loads that overlap
# Of 16 bits, where a warp reads half as much at a time: 3 x 3 of stride 2, which saves a quarter,
# took 60.0 us instead of 58.3 with one result a thread, 3 x 3 x 3, nine heads, 128 instead of 96.
HALF_SAVED, HALF_HEADS = 0.3, 8
LEAST_HIGH, MOST_HIGH = 2, 1 << 29  # which 32 bits count, and a window further
Key = tuple[int, int]  # a member's id, and the number of its argument


@dataclass(frozen=True)
class Down:
    """heads: what is read at the first place of windows that overlap.  lengths: how many places
    they have along the axis.  places: of which head an argument is which place."""

    axis: int
    heads: tuple[Walk, ...]
    lengths: tuple[int, ...]
    places: Mapping[Key, tuple[int, int]]

    def loads(self, results: int) -> int:
        """What a thread with so many results loads of these windows."""
        return sum(results - 1 + length for length in self.lengths)


def down(kernel: Kernel) -> Down | None:
    """How a map of overlapping windows is taken, None where nothing is gained."""
    if kernel.folds or kernel.product:
        return None
    tensors = walks(kernel.loops, kernel.outputs)
    written, sizes = tensors[id(kernel.outputs[0]), -1].strides, kernel.loops.sizes
    apart = {a: s for a, s in written.items() if isinstance(s, int) and s > 1}
    high = [a for a in apart if isinstance(n := sizes[a], int) and LEAST_HIGH <= n < MOST_HIGH]
    axes = sorted(high, key=apart.__getitem__)  # of two, the one whose neighbours are nearer
    found = [_down(tensors, axis, sizes) for axis in axes]
    best = min(found, key=lambda d: d.loads(4) - 4 * len(d.places), default=None)
    if best is None or len(best.places) < LEAST_READS:
        return None
    half = kernel.outputs[0].dtype.itemsize < 4
    if half and len(best.heads) > HALF_HEADS:
        return None
    saved = HALF_SAVED if half else LEAST_SAVED
    return best if best.loads(4) <= (1 - saved) * 4 * len(best.places) else None


def results(found: Down, high: int, rows: int) -> int:
    """How many results a thread has: few loads for each, but enough threads."""
    most = [n for n in range(2, MOST_DOWN + 1) if found.loads(n) <= MOST_LOADS and n <= high]
    busy = [n for n in most if rows * (high // n) >= BUSY] or most[:1] or [1]
    return min(busy, key=lambda n: (high // n) * found.loads(n) + 2 * (high % n) * found.loads(1))


def _down(tensors: Mapping[Key, Walk], axis: int, sizes: Mapping[int, Size]) -> Down:
    groups: dict[object, list[Key]] = {}
    for key, walk in tensors.items():
        if key[1] >= 0 and _plain(walk, axis):
            others = frozenset(_written(x) for x in walk.limits if not x.strides.get(axis, 0))
            where = id(walk.tensor), frozenset(walk.strides.items()), others
            place = walk.offset % walk.strides[axis]  # type: ignore[operator]
            groups.setdefault((*where, place), []).append(key)
    heads, lengths, places = list[Walk](), list[int](), dict[Key, tuple[int, int]]()
    for keys in groups.values():
        found = _head([tensors[key] for key in keys], axis, sizes)
        if found:
            head, each = found
            places.update({key: (len(heads), place) for key, place in zip(keys, each, strict=True)})
            heads.append(head)
            lengths.append(max(each) + 1)
    return Down(axis, tuple(heads), tuple(lengths), places)


def _plain(walk: Walk, axis: int) -> bool:
    """Whether its places along the axis are known numbers."""
    step = walk.strides.get(axis, 0)
    numbers = [step, walk.offset, *(x.offset for x in walk.limits)]
    numbers += [x.strides.get(axis, 0) for x in walk.limits]
    known = all(isinstance(n, int) and abs(n) < MOST_HIGH for n in numbers)
    plain = walk.tensor.op != "constant" and not any(x.wrap for x in walk.limits)
    return known and plain and isinstance(step, int) and step > 0


def _head(
    group: Sequence[Walk], axis: int, sizes: Mapping[int, Size]
) -> tuple[Walk, list[int]] | None:
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


def _shifted(limit: Limit, axis: int, places: int) -> Limit:
    """The same limit so many places further down."""
    by, offset = limit.strides.get(axis, 0), limit.offset
    assert isinstance(by, int)
    assert isinstance(offset, int)
    return limit._replace(offset=offset + by * places)


def _written(limit: Limit) -> tuple[object, ...]:
    return frozenset(limit.strides.items()), limit.offset, limit.size


def _excludes(limit: Limit, sizes: Mapping[int, Size]) -> bool:
    """Whether any element may lie outside."""
    steps = [(sizes[axis], step) for axis, step in limit.strides.items() if step != 0]
    ends = [s * (n - 1) for n, s in steps if isinstance(n, int) and isinstance(s, int)]
    first, size = limit.offset, limit.size
    if len(ends) < len(steps) or not isinstance(first, int) or not isinstance(size, int):
        return True
    lowest, highest = (first + sum(e for e in ends if e * sign > 0) for sign in (-1, 1))
    return lowest < 0 or highest >= size
