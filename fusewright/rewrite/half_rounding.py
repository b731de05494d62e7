"""Graph -> Graph: roundings to a half type go where the value has been rounded already.

Lowering rounds what a call with a result of another type reads of a half type (frontend/lowering).
Whether that value is one that a kernel keeps wider is only known when all calls of PyTorch have
found their kernels. docs/numerics.md has the rule.
"""

from __future__ import annotations

import torch

from fusewright.common.dtypes import HALF
from fusewright.ir.graph import Graph, Node, rebuild
from fusewright.ir.specs import ViewFill, spec_of


def halves(graph: Graph) -> Graph:
    """Drop the roundings that change nothing."""
    exact: dict[int, bool] = {}  # by id, of the new nodes

    def change(n: Node) -> Node:
        if _is_rounding(n) and exact[id(n.args[0])]:
            return n.args[0]
        exact[id(n)] = n.dtype not in HALF or _is_exact(n, exact)
        return n

    return rebuild(graph, change)


def _is_rounding(n: Node) -> bool:
    return n.op == "cast" and n.dtype in HALF and n.args[0].dtype is n.dtype


def _is_exact(n: Node, exact: dict[int, bool]) -> bool:
    """Whether the value, as a kernel has it, has no more bits than its half type."""
    if n.op == "constant":
        value = n["value"]
        return isinstance(value, int | float) and _fits(value, n.dtype)
    if n.row.kind in ("leaf", "library"):
        return True  # they lie in memory
    if n.op == "cast":
        return n["rounds"] is True or n.args[0].dtype is torch.bool
    if n.op == "pad" and not _fits(spec_of(n, ViewFill).value, n.dtype):
        return False
    return (n.row.kind == "view" or n.row.exact) and all(exact[id(a)] for a in n.args)


def _fits(value: object, dtype: torch.dtype) -> bool:
    assert isinstance(value, int | float)
    return value != value or torch.tensor(value, dtype=dtype).item() == value
