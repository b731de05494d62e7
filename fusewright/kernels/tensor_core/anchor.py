"""Kernel -> its contraction, and how wide accesses behind that may be."""

from __future__ import annotations

from math import gcd

from fusewright.errors import InternalError
from fusewright.fusion.planner import Kernel
from fusewright.ir.graph import Node, parts_of
from fusewright.kernels.tensor_core.variant import Variant
from fusewright.loopnest.nest import Nest
from fusewright.loopnest.vector_width import vector_width

LEAST_VECTOR = 4  # elements of an access; fewer come one by one


def anchor_of(kernel: Kernel) -> Node:
    if kernel.anchor is None:
        raise InternalError("A tile is a contraction's.")
    return kernel.anchor


def access(kind: Variant, nest: Nest, most: int = LEAST_VECTOR) -> int:
    """Elements per access behind a contraction, where tensors and `most` allow: eight, four, or
    one."""
    product, columns = anchor_of(nest.kernel), nest.columns
    if product.order:  # of a group
        columns = kind.matrix(product).columns
    multiple, _ = parts_of(columns)
    vector = gcd(most, multiple, vector_width(nest))
    return vector if vector >= LEAST_VECTOR else 1
