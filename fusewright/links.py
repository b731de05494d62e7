"""Scanned rows in chunks -> whether each chunk has a thread block of its own, and how large it is.

A block waits for what the chunk before has handed on (`skeletons/cuda/chunks.cuh`), so that takes
many rows, or larger chunks.
"""

from __future__ import annotations

LEAST_ROWS, LEAST_LINKS = 64, 4  # rows, or stripes of them, and chunks of one
MANY_ROWS = 256  # from here on a row is waited for so rarely that chunks may be small
MANY_THREADS, FEW_THREADS, EACH = 256, 512, 16
DOWN, ACROSS, MOST_ACROSS = 16, 32, 1 << 15  # of a stripe; most rows that have places to hand on


def linked_rows(rows: int, elements: int, each: int, alone: bool) -> tuple[int, int] | None:
    """Threads of a block and elements of each. alone: a thread keeps nothing beside the scan."""
    if rows < LEAST_ROWS or elements < LEAST_LINKS * MANY_THREADS * each:
        return None
    if rows >= MANY_ROWS:
        return MANY_THREADS, each
    return FEW_THREADS, each * 2 if alone and each == EACH else each


def linked_stripes(rows: int, elements: int, each: int) -> bool:
    """Whether chunks of DOWN x ACROSS threads have a block each."""
    some = LEAST_ROWS * ACROSS <= rows <= MOST_ACROSS
    return some and elements >= LEAST_LINKS * DOWN * each
