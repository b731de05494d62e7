"""Nest -> the widest access that all tensors allow; where vectors of windows are whole."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from fusewright.ir.graph import Node, Size, numel, parts_of, times
from fusewright.loopnest.nest import AffineAccess, Nest

ACCESS_BYTES = 16  # of the widest one


def vector_width(nest: Nest) -> int:
    """The widest access of at most 16 bytes that every tensor allows at every row."""
    width = ACCESS_BYTES
    reads = list(nest.reads.values())
    if nest.down:  # windows have a place for their vectors, numbers need none
        alone = nest.reads.keys() - nest.down.places.keys()
        reads = [a for key in alone if (a := nest.reads[key]).leaf.op != "constant"]
    moving = [a for a in (*reads, *nest.writes.values()) if a.varies]
    for head in nest.heads:
        aligned = known_factor(whole_place(head, nest), nest) if head[0].columns == 1 else 1
        width = gcd(width, aligned, ACCESS_BYTES // head[0].leaf.dtype.itemsize)
    if nest.down and isinstance(nest.columns, int):
        width = gcd(width, nest.columns)
    for each in moving:
        width = min(width, ACCESS_BYTES // each.leaf.dtype.itemsize)
        if (each.columns == 1 and not each.wrap) or each.limits:
            width = gcd(width, known_factor(each, nest))
    return max(width, 1)


def vector_tensors(nest: Nest, *, staged: bool = False) -> frozenset[int]:
    """The ids of the nodes that are walked by vectors; staged: also of those that lie across."""
    accesses = (*nest.reads.values(), *nest.writes.values())
    return frozenset(id(a.leaf) for a in accesses if a.varies and (a.columns == 1 or staged))


def starts_aligned(n: Node) -> bool:
    """Whether the memory of a kernel's result starts at a multiple of 16 bytes.

    New memory does; a place inside a joined tensor does where all in front of it is so long.
    """
    inside = n.placement.inside
    if inside is None:
        return True
    before = times(inside.start, numel(n.shape[inside.dim + 1 :]))
    return isinstance(before, int) and before * n.dtype.itemsize % ACCESS_BYTES == 0


def whole_place(head: Sequence[AffineAccess], nest: Nest) -> AffineAccess:
    """Where along the columns windows begin that vectors read."""
    return max(head, key=lambda a: known_factor(a, nest))


def known_factor(access: AffineAccess, nest: Nest) -> int:
    """A power of two that divides every stride of the rows' and outer offsets; and the columns, but
    those of a map: its last vector of a row may be a part of one."""
    sizes: list[Size] = [nest.columns, access.outer] if nest.kernel.reductions else [access.outer]
    return gcd(power_of_two(sizes), access.alignment)


def power_of_two(sizes: Sequence[Size]) -> int:
    """A power of two, at most 16, that divides every size."""
    factor = ACCESS_BYTES
    for size in sizes:
        number, _ = parts_of(size)
        factor = gcd(factor, number) if number else factor
    return factor
