"""Nest of scanned rows -> which threads and blocks take them, whole or in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from fusewright.kernels.interface import StrategyContext
from fusewright.kernels.rowwise.row_cooperation import REGISTERS
from fusewright.kernels.rowwise.strategy import (
    CpuRowStrategy,
    RowTeam,
    cpu_neighbours,
    cpu_rows,
    may_meet,
    other_teams,
    row_sizes,
    row_team,
)
from fusewright.kernels.scan.chunks import (
    ScanChunks,
    chunk_moves,
    elements_per_thread,
    row_chunks,
    stripe_chunks,
)
from fusewright.kernels.scan.match import has_chunks
from fusewright.loopnest.nest import Nest
from fusewright.loopnest.reduction_passes import KEEP_ALL, plan_row
from fusewright.loopnest.staged_transpose import is_column_major
from fusewright.loopnest.vector_width import power_of_two, vector_width


@dataclass(frozen=True)
class ScanInRegisters(RowTeam):
    """A row that is scanned, in the registers of its threads; keep: and what is read."""


@dataclass(frozen=True)
class ChunkedScan:
    """A block walks its rows chunk by chunk. elements: of a thread in a chunk.  columns: rows side
    by side in a block where they lie across memory, with `threads` each; else 1."""

    threads: int
    vector: int
    elements: int
    columns: int


@dataclass(frozen=True)
class LookbackScan:
    """So many blocks take the chunks of a row in turn; each joins what the chunks before its own
    came to."""

    blocks: int
    threads: int
    vector: int
    elements: int


@dataclass(frozen=True)
class ChainedScan:
    """A block for each chunk, which waits for what the chunk before hands on."""

    threads: int
    vector: int
    elements: int
    columns: int


InChunks = ChunkedScan | LookbackScan | ChainedScan
ScanStrategy = CpuRowStrategy | ScanInRegisters | InChunks


def default(nest: Nest, context: StrategyContext) -> ScanStrategy:
    """How rows are scanned, as far as sizes tell."""
    if context.target.language == "cpp":
        return cpu_rows(nest, context.graph)
    if has_chunks(nest.kernel.members):
        return _in_chunks(nest, context)
    threads, keeps = row_team(nest, context)
    return ScanInRegisters(threads, vector_width(nest), keeps)


def neighbours(
    default: ScanStrategy, nest: Nest, context: StrategyContext
) -> Sequence[ScanStrategy]:
    """One step from a strategy."""
    if isinstance(default, CpuRowStrategy):
        return cpu_neighbours(default, nest, context.graph)
    if isinstance(default, InChunks):
        moves = chunk_moves(_chunks_of(default), default.vector)
        return [s for c in moves if (s := _strategy(c, default.vector)) != default]
    of = row_sizes(nest, context.graph)
    found = other_teams(default) if of.fixed else []
    return [s for s in found if of.inner <= 2 * s.threads * REGISTERS]


def _in_chunks(nest: Nest, context: StrategyContext) -> InChunks:
    """How the rows of a scan are taken in chunks."""
    graph, machine = context.graph, context.target.machine
    of = row_sizes(nest, graph)
    moved = [a.leaf for a in nest.reads.values() if a.varies and a.leaf.op != "constant"]
    each = elements_per_thread(
        sum(max(n.dtype.itemsize, 4) for n in (*nest.kernel.reductions, *moved))
    )
    # Chunks have whole vectors only, also where every element is moved alone.
    vector = gcd(vector_width(nest), power_of_two([nest.columns]))
    meets = may_meet(nest, context)
    if is_column_major(nest, graph):
        return _strategy(stripe_chunks(of.rows, of.inner, each, machine, meets), 1)
    single = plan_row(nest, KEEP_ALL).registers == 1
    found = row_chunks(of.rows, of.inner, max(each, vector), single, machine, meets)
    return _strategy(found, vector)


def _strategy(found: ScanChunks, vector: int) -> InChunks:
    if found.blocks > 1:
        return LookbackScan(found.blocks, found.threads // found.blocks, vector, found.each)
    kind = ChainedScan if found.split else ChunkedScan
    return kind(found.threads, vector, found.each, found.across)


def _chunks_of(strategy: InChunks) -> ScanChunks:
    if isinstance(strategy, LookbackScan):
        threads = strategy.blocks * strategy.threads
        return ScanChunks(threads, strategy.elements, split=True, blocks=strategy.blocks)
    split = isinstance(strategy, ChainedScan)
    return ScanChunks(strategy.threads, strategy.elements, strategy.columns, split)
