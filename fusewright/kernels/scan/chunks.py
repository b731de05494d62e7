"""Scanned rows in chunks -> which thread blocks take them, and how large they are.

Chunks have a block each where rows, or larger chunks, are so many that hardly any block waits for
what the chunk before has handed on; few rows have some blocks that take their chunks in turn
(`kernels/scan/cuda/chunked_scan.cuh`). Without scratch memory a row has one block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fusewright.kernels.rowwise.row_cooperation import (
    LEAST_ACROSS,
    MAX_THREADS,
    STRIPE_THREADS,
)
from fusewright.targets.machines import Machine

# Threads of a row, the most elements and held bytes of each [m: scan-0001, scan-0002].
CHUNK_THREADS, CHUNK_EACH, CHUNK_BYTES = 256, 16, 128
# Blocks that take the chunks of a row in turn, and how many of them a processor has room for
# [m: scan-0012].
LEAST_SHARING, MOST_SHARING, CHUNK_BLOCKS = 4, 32, 3
# Blocks for each chunk: the least rows, or panels of them, and chunks of one; rows that let chunks
# be small; threads of a panel, and the most rows that have places to hand on.
LEAST_ROWS, LEAST_LINKS, MANY_ROWS = 64, 4, 256
DOWN, ACROSS, MOST_ACROSS = 16, 32, 1 << 15


@dataclass(frozen=True)
class ScanChunks:
    """threads: of a row.  each: elements of a thread.  across: rows of a block.  split: blocks hand
    on in scratch memory what their rows come to.  blocks: that take chunks in turn, or 1."""

    threads: int
    each: int
    across: int = 1
    split: bool = False
    blocks: int = 1


def elements_per_thread(kept: int) -> int:
    """As many elements for a thread as fit its registers, which take so many bytes for each."""
    each = CHUNK_EACH
    while each * kept > CHUNK_BYTES and each > 4:
        each //= 2
    return each


def row_chunks(
    rows: int, elements: int, each: int, single: bool, machine: Machine, meets: bool
) -> ScanChunks:
    """Chunks of rows. single: a thread keeps one number for an element.  meets: blocks may."""
    processors = machine.processors * meets
    blocks = min(processors * CHUNK_BLOCKS // rows, elements // (CHUNK_THREADS * each))
    if processors and rows >= LEAST_ROWS and elements >= LEAST_LINKS * CHUNK_THREADS * each:
        if rows >= MANY_ROWS:
            return ScanChunks(CHUNK_THREADS, each, split=True)
        more = 2 if single and each == CHUNK_EACH else 1
        return ScanChunks(STRIPE_THREADS, each * more, split=True)
    if blocks >= LEAST_SHARING:
        blocks = min(blocks, MOST_SHARING)
        return ScanChunks(blocks * CHUNK_THREADS, each, split=True, blocks=blocks)
    threads = CHUNK_THREADS
    while threads < MAX_THREADS and 2 * threads * rows <= machine.busy_threads // 2:
        threads *= 2
    return ScanChunks(threads, each)


def stripe_chunks(rows: int, elements: int, each: int, machine: Machine, meets: bool) -> ScanChunks:
    """Chunks of rows that lie across memory, where threads make the GPU busy."""
    many = rows * CHUNK_THREADS // 32 >= machine.busy_threads
    some = LEAST_ROWS * ACROSS <= rows <= MOST_ACROSS
    if meets and some and elements >= LEAST_LINKS * DOWN * each:
        return ScanChunks(DOWN, each, ACROSS, split=True)
    across, threads = (32, CHUNK_THREADS) if many else (16, STRIPE_THREADS)
    down = 1
    while down < threads // across and down * each < elements:
        down *= 2
    return ScanChunks(down, each, max(across, 128 // down))


def chunk_moves(default: ScanChunks, vector: int) -> list[ScanChunks]:
    """One step from chunks of a row: what a tuner tries."""
    down, across, each = default.threads, default.across, default.each
    shapes = [(down * 2, across, each), (down // 2, across, each), (down, across, each * 2)]
    shapes += [(down, across, each // 2)] * (each // 2 >= vector)
    if across > 1:
        shapes += [(down, across // 2, each), (down * 2, across // 2, each)]
        shapes += [(down // 2, across * 2, each)]
    least, most = (LEAST_ACROSS, STRIPE_THREADS) if across > 1 else (1, MAX_THREADS)
    alone = replace(default, threads=MAX_THREADS, split=False, blocks=1)
    return [alone] * (default.blocks > 1) + [
        replace(default, threads=d, across=a, each=e)
        for d, a, e in shapes
        if d and a >= least and 64 <= d * a <= most
    ]
