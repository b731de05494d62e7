"""Nest of a map -> how its elements go over threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fusewright.ir.graph import FixedSizes
from fusewright.kernels.interface import StrategyContext
from fusewright.loopnest.nest import Nest
from fusewright.loopnest.sliding_window import results
from fusewright.loopnest.staged_transpose import is_column_major, staged_vector
from fusewright.loopnest.vector_width import vector_width

# What a thread of a map takes, in at most so many accesses: a GPU starts no more than so many
# blocks at a time. Twice of both where rows lie across memory [m: pointwise-0001, pointwise-0006].
MAP_BYTES, MAP_LOADS = 16, 4


@dataclass(frozen=True)
class CpuMap:
    """Elements in a row for each thread of a CPU."""


@dataclass(frozen=True)
class FlatMap:
    """Threads side by side along the columns.

    vector: elements of an access.  loads, scalar_loads: accesses of a thread, by vectors and by
    single elements.  inverts_divisors: what a row is divided by is inverted once.
    """

    vector: int
    loads: int
    scalar_loads: int
    inverts_divisors: bool = True


@dataclass(frozen=True)
class TransposedMap:
    """The same for tiles, where what is read lies across what is written."""

    vector: int
    loads: int
    scalar_loads: int


@dataclass(frozen=True)
class StagedMap:
    """Tensors that lie across pass through shared memory, at free sizes that are multiples of
    `multiples`; at others it is a TransposedMap of single elements."""

    vector: int
    multiples: FixedSizes
    scalar_loads: int


@dataclass(frozen=True)
class SlidingWindowMap:
    """A thread takes so many results below each other, whose windows overlap."""

    vector: int
    results: int


PointwiseStrategy = CpuMap | FlatMap | TransposedMap | StagedMap | SlidingWindowMap


def default(nest: Nest, context: StrategyContext) -> PointwiseStrategy:
    """How a map runs, as far as sizes tell."""
    graph = context.graph
    if context.target.language == "cpp":
        return CpuMap()
    vector = vector_width(nest)
    if nest.down:
        high, wide, rows = map(graph.hint, (nest.outer, nest.columns, nest.rows))
        enough = context.target.machine.busy_threads // 2
        below, vector = results(nest.down, high, wide, rows, vector, enough)
        return SlidingWindowMap(vector, below)
    wide, multiples = staged_vector(nest, graph)
    if wide:
        return StagedMap(wide, multiples, _loads(nest, 1, twice=True))
    if is_column_major(nest, graph):
        return _transposed(nest, vector)
    return _flat(nest, vector, inverts_divisors=True)


def neighbours(
    default: PointwiseStrategy, nest: Nest, _: StrategyContext
) -> Sequence[PointwiseStrategy]:
    """One step from a strategy."""
    found: list[PointwiseStrategy] = []
    widest = vector_width(nest)
    match default:
        case SlidingWindowMap(vector, below):
            found += [replace(default, results=n) for n in (below // 2, below * 2) if n]
            found += [replace(default, vector=1)] * (vector > 1)
        case StagedMap():
            found += [_transposed(nest, widest), _flat(nest, widest, widest > 1)]
        case TransposedMap(vector):
            found += [_flat(nest, vector, vector > 1)]
            found += [_transposed(nest, v) for v in _narrower(vector)]
        case FlatMap(vector):
            found += [_flat(nest, v, default.inverts_divisors) for v in _narrower(vector)]
    return found


def _narrower(vector: int) -> list[int]:
    return [v for v in (vector // 2, vector // 4) if v]


def _flat(nest: Nest, vector: int, inverts_divisors: bool) -> FlatMap:
    loads, scalar_loads = (_loads(nest, v, twice=False) for v in (vector, 1))
    return FlatMap(vector, loads, scalar_loads, inverts_divisors)


def _transposed(nest: Nest, vector: int) -> TransposedMap:
    return TransposedMap(vector, *(_loads(nest, v, twice=True) for v in (vector, 1)))


def _loads(nest: Nest, vector: int, *, twice: bool) -> int:
    """How many accesses a thread makes to each tensor."""
    times = 2 if twice else 1
    moving = [a for a in (*nest.reads.values(), *nest.writes.values()) if a.varies]
    widest = max((a.leaf.dtype.itemsize for a in moving), default=MAP_BYTES)  # of one number
    return min(times * MAP_LOADS, max(1, times * MAP_BYTES // (widest * vector)))
