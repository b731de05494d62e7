"""Nest of a map + its strategy -> how it is printed, and the launcher that starts it."""

from __future__ import annotations

from fusewright.codegen.launch import BodyPolicy, Call, Launch
from fusewright.errors import InternalError
from fusewright.ir.graph import size_text
from fusewright.kernels.pointwise.strategy import (
    CpuMap,
    FlatMap,
    PointwiseStrategy,
    SlidingWindowMap,
    StagedMap,
    TransposedMap,
)
from fusewright.loopnest.nest import Nest
from fusewright.loopnest.reduction_passes import KEEP_NOTHING
from fusewright.loopnest.staged_transpose import staged_reads, staged_transpose
from fusewright.loopnest.vector_width import vector_tensors

END = ("device", "stream")


def launch(nest: Nest, strategy: PointwiseStrategy) -> tuple[BodyPolicy, Launch]:
    """How a map is printed and started."""
    match strategy:
        case CpuMap():
            return BodyPolicy(KEEP_NOTHING), Launch(Call("run_map"))
        case FlatMap(vector, loads, scalar_loads, inverts):
            wide, single = _flat(nest, vector, loads), _flat(nest, 1, scalar_loads)
        case TransposedMap(vector, loads, scalar_loads):
            inverts = vector > 1
            wide, single = _across(nest, vector, loads), _across(nest, 1, scalar_loads)
        case StagedMap(vector, multiples, scalar_loads):
            policy = BodyPolicy(
                KEEP_NOTHING, inverts_divisors=True, staged_reads=staged_reads(nest)
            )
            tensors = vector_tensors(nest, staged=True)
            single = _across(nest, 1, scalar_loads)
            return policy, Launch(_staged(nest, vector), vector, single, multiples, tensors)
        case SlidingWindowMap(vector, below):
            inverts = True
            wide, single = _windows(nest, below, vector), _windows(nest, below, 1)
    policy = BodyPolicy(KEEP_NOTHING, inverts_divisors=inverts)
    return policy, Launch(wide, vector, single, vector_tensors=vector_tensors(nest))


def _flat(nest: Nest, vector: int, loads: int) -> Call:
    return _map(nest, "run_map", vector, loads)


def _across(nest: Nest, vector: int, loads: int) -> Call:
    return _map(nest, "run_map_transposed", vector, loads)


def _map(nest: Nest, function: str, vector: int, loads: int) -> Call:
    chosen = (vector, loads) if loads > 1 else (vector,)
    return Call(function, chosen, (size_text(nest.rows), size_text(nest.columns), *END))


def _staged(nest: Nest, vector: int) -> Call:
    found = staged_transpose(nest)
    if not found:
        raise InternalError("Nothing of a staged map lies across it.")
    sizes = map(size_text, (nest.rows, nest.columns, found.side, found.step))
    return Call("run_map_staged", (vector, len(found.reads)), (*sizes, *END))


def _windows(nest: Nest, below: int, vector: int) -> Call:
    sizes = map(size_text, (nest.rows, nest.outer, nest.columns))
    return Call("run_map_sliding_window", (below, vector), (*sizes, *END))
