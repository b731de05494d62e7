"""Graph + Target -> Graph: what PyTorch's norms round once on a CPU, ours round once there.

A model that calls a norm has no value between x and the result, so no rule of contraction asks for
one: docs/numerics.md. PyTorch's batch and group norms on a CPU are x scale + shift, with numbers of
the channel worked out before; x - mean, its product with the scale, and the two of the affine
parameters would be four roundings of each element beside that one. On a GPU its norms subtract the
mean, and so do ours there.

SiLU on a CPU is x / (1 + exp(-x)) in PyTorch, one rounding less than the product with a sigmoid.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fusewright.ir.builder import TensorExpr, cast, constant, pointwise, reshape, where
from fusewright.ir.graph import Graph, Node, base, broadcast, node, rebuild
from fusewright.targets.target import Target


@dataclass(frozen=True)
class _Norm:
    """A norm that has been written as x scale + shift, and these, the same along a row."""

    x: TensorExpr
    scale: TensorExpr
    shift: TensorExpr

    def written(self, n: Node) -> Node:
        scale, shift = (cast(v, self.x.dtype) for v in (self.scale, self.shift))
        return _as(n, pointwise("fma", self.x, scale, shift))


def once(graph: Graph, machine: Target) -> Graph:
    """Write `normalised`, `fma`, variances and x sigmoid(x) as the target has them."""
    if machine.language != "cpp":
        return rebuild(graph, _apart)
    norms: dict[int, _Norm] = {}  # by id, of the new nodes

    def change(n: Node) -> Node:
        norm = _shifted(n) if n.op == "normalised" else None
        if n.op == "fma" and id(n.args[0]) in norms:
            norm = _scaled(norms[id(n.args[0])], *map(TensorExpr, n.args[1:]))
        made = norm.written(n) if norm else _variance(n) or _fraction(n)
        if norm:
            norms[id(made)] = norm
        return made

    return rebuild(graph, change)


def _shifted(n: Node) -> _Norm:
    """x scale + shift, and exactly 0 where all elements of the row are the same.

    Where a row lies along memory its two numbers are worked out in float64, as PyTorch's are. Of
    rows abreast there is one for each lane, and of statistics from outside for each element.
    """
    x, mean, m2, scale = map(TensorExpr, n.args)
    if m2.node.op == "constant":
        return _Norm(x, scale, -(mean * scale))
    along = mean.shape[-1] == 1 and not x.node.order
    if along and x.dtype is torch.float32:
        scale, mean, m2 = _wide(scale, m2), _unrounded(mean), _unrounded(m2)
    scale = where(pointwise("eq", m2, 0.0), 0.0, scale)
    return _Norm(x, scale, -(mean * scale))


def _scaled(norm: _Norm, weight: TensorExpr, bias: TensorExpr) -> _Norm | None:
    """The same with affine parameters, if these are the same along a row, too."""
    if norm.scale.dtype is norm.x.dtype:
        return None
    if any(broadcast([norm.scale.shape, v.shape]) != norm.scale.shape for v in (weight, bias)):
        return None
    weight, bias = (cast(v, norm.scale.dtype) for v in (weight, bias))
    return _Norm(norm.x, norm.scale * weight, norm.shift * weight + bias)


def _wide(v: TensorExpr, m2: TensorExpr) -> TensorExpr:
    """What is worked out from m2, in float64."""
    if v.node is m2.node or v.node.op == "cast":  # what was rounded is float64 before
        return _unrounded(v)
    if v.node.op == "constant":
        return constant(v.node["value"], torch.float64)  # type: ignore[arg-type]
    return pointwise(v.node.op, *(_wide(TensorExpr(a), m2) for a in v.node.args))


def _unrounded(v: TensorExpr) -> TensorExpr:
    """A mean or m2 of float32 as the reduction has it, in float64; anything else as it is."""
    n = v.node
    below = TensorExpr(n.args[0]) if n.args else v
    if n.row.result == "wide" and below.dtype is torch.float32:
        wide, dims = torch.float64, n["dims"]
        return TensorExpr(node(n.op, n.args, shape=n.shape, dtype=wide, order=n.order, dims=dims))
    if n.op == "reshape":
        return reshape(_unrounded(below), n.shape)
    return below if n.op == "cast" and below.dtype is torch.float64 else cast(v, torch.float64)


def _variance(n: Node) -> Node | None:
    """m2 / number, which is rounded once."""
    if n.op != "div" or base(n.args[0]).op != "m2" or n.dtype is not torch.float32:
        return None
    m2, number = map(TensorExpr, n.args)
    return _as(n, cast(_unrounded(m2) / _wide(number, m2), n.dtype))


def _fraction(n: Node) -> Node:
    """x sigmoid(x) as one function of x."""
    if n.op == "mul":
        for x, s in (n.args, n.args[::-1]):
            if s.op == "sigmoid" and s.args[0] is x:
                return _as(n, pointwise("silu", TensorExpr(x)))
    return n


def _apart(n: Node) -> Node:
    if n.op == "normalised":
        x, mean, _, scale = map(TensorExpr, n.args)
        return _as(n, (x - mean) * scale)
    if n.op == "fma":
        x, weight, bias = map(TensorExpr, n.args)
        return _as(n, x * weight + bias)
    return n


def _as(n: Node, made: TensorExpr) -> Node:
    """The same value as it lies where `n` would."""
    below = made.node
    attributes = dict(below.attributes)
    return node(below.op, below.args, shape=n.shape, dtype=n.dtype, order=n.order, **attributes)
