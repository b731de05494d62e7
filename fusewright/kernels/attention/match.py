"""Graph -> Graph: attention that a model spells out becomes `attention` nodes.

    softmax(f(q @ k.mT), -1) @ v  ->  copy(attention(q, k, transposed v, operands of f; f))

f is any pointwise function of the scores: times a number, plus a bias, masked, capped. It is a
graph of its own, `AttentionSpec.score_mod`: its `input` 0 is the product of q and k, the others are
the node's operands. Neither the scores nor their softmax ever lie in memory, so nobody else may
read them. PyTorch's own call of attention means something else, stays, and says so in its `call`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import count

import torch

from fusewright.frontend.library_calls import FUSED_ATTENTION, because
from fusewright.fusion.axes import (
    Axis,
    Incompatible,
    LoopAxes,
    TensorWalk,
    loops,
    merge,
    read_walks,
)
from fusewright.ir.builder import TensorExpr, copy
from fusewright.ir.graph import (
    BatchSize,
    Graph,
    Node,
    Size,
    base,
    node,
    numel,
    on_other_memory,
    rebuild,
    toposort,
    with_args,
)
from fusewright.ir.specs import AttentionSpec, spec_of
from fusewright.ir.strided_view import strided_view
from fusewright.kernels.gemm.match import (
    COPY_RULES,
    K_BLOCK,
    LEAST_FLOPS,
    Operand,
    factor_of,
    memory_of_operand,
    scattered,
)
from fusewright.kernels.tensor_core.support import tile_fits, why_unsupported
from fusewright.rewrite.contraction import (
    FORMS,
    Contraction,
    apply_contraction,
    broadcast_batches,
    contraction_of,
    swap_last_dims,
)
from fusewright.targets.arch import Arch
from fusewright.targets.target import Target

WIDTHS = (64, 128)  # columns that a block has registers for, kernels/attention/cuda/attention.cuh
# Numbers of a head's keys: with fewer, PyTorch's products are faster [m: attention-0001,
# attention-0002, attention-0003, attention-0005, attention-0006].
LEAST_KEYS = 64 * 64
CHEAP = 4  # float operations that are computed again for each score rather than read from memory


def attention(graph: Graph, target: Target, rules: frozenset[str] = frozenset()) -> Graph:
    """Rewrite attention for which `target` has a kernel; rules: of `optimize --rules`."""
    absent = why_unsupported(target.arch, "attention")
    if any(n.called == FUSED_ATTENTION for n in toposort(graph.roots)):
        why = absent or "our kernels take attention that a model spells out"
        graph = rebuild(graph, lambda n: because(n, why) if n.called == FUSED_ATTENTION else n)
    if absent or rules & COPY_RULES:  # it packs keys and values
        return graph
    instances, seen = count(), set[int]()
    while found := _next(graph, seen, instances, target.arch):
        old, new = found
        graph = rebuild(graph, lambda n, old=old, new=new: new if n is old else n)  # type: ignore[misc]
    return graph


def _next(
    graph: Graph, seen: set[int], instances: Iterator[int], arch: Arch
) -> tuple[Node, Node] | None:
    """The first product of a softmax that `seen` does not hold, and what takes its place."""
    for n in toposort(graph.roots):
        if id(n) not in seen and n.called in FORMS:
            seen.add(id(n))
            form = contraction_of(n)
            x = _softmax(form.left) if form else None
            if form is None or x is None:
                continue
            for inner in _matmuls(x):
                with suppress(_Unfit, Incompatible):
                    return n, _written(n, form, x, inner, graph, instances, arch)
    return None


class _Unfit(Exception):
    """There is no kernel for this; everything stays as it is."""


# ---- what is attention ---------------------------------------------------------------------------


def _softmax(n: Node) -> Node | None:
    """What `n` is the softmax of along its last dimension; None if it is none."""
    while n.op == "copy" or _whole_rows(n):
        (n,) = n.args
    if n.op != "div" or n.args[0].op != "exp" or n.args[0].args[0].op != "sub":
        return None
    powers, total = n.args
    x, top = powers.args[0].args
    return x if _reduced(total, "sum") is powers and _reduced(top, "max") is x else None


def _reduced(n: Node, op: str) -> Node | None:
    """What a kept reduction over the last dimension takes."""
    (reduction,) = n.args if n.op == "reshape" else (n,)
    rank = len(reduction.args[0].shape) if reduction.op == op else 0
    kept = (
        rank and n.shape == (*reduction.args[0].shape[:-1], 1) and reduction["dims"] == (rank - 1,)
    )
    return reduction.args[0] if kept else None


def _whole_rows(n: Node) -> bool:
    """Whether `n` only counts its matrices in other dimensions."""
    return n.op == "reshape" and n.shape[-2:] == n.args[0].shape[-2:]


def _matmuls(x: Node) -> list[Node]:
    """The library matmuls below `x` that have its elements, the last one first."""
    some = (n for n in reversed(toposort([x])) if n.called in FORMS)
    return [n for n in some if n.shape[-2:] == x.shape[-2:] and numel(n.shape) == numel(x.shape)]


def _written(
    n: Node,
    outer: Contraction,
    x: Node,
    inner: Node,
    graph: Graph,
    instances: Iterator[int],
    arch: Arch,
) -> Node:
    """What takes the place of `n` = softmax(x) @ v; x is a function of the product `inner`."""
    form = contraction_of(inner)
    if (
        form is None
        or n.order
        or (outer.added is not None and memory_of_operand(outer.added) is None)
    ):
        raise _Unfit
    between = _between(inner, n)
    roots = {id(r) for r in graph.roots}
    readers = (m for m in toposort(graph.roots) if any(id(a) in between for a in m.args))
    if between & roots or any(id(m) not in between and m is not n for m in readers):
        raise _Unfit
    function = _ScoreModBuilder(inner, form, between)
    scores = base(function.copy(x))
    (queries, keys), (_, values) = _batched(form), _batched(outer)
    made = node(
        "attention",
        [*map(_even, (queries, keys, values)), *function.operands],
        shape=n.shape,
        dtype=n.dtype,
        spec=AttentionSpec(scores, next(instances)),
    )
    _check(made, x, graph)
    if not tile_fits(arch, "attention", width(made)):
        raise _Unfit
    return apply_contraction(outer, made)


def _between(inner: Node, n: Node) -> set[int]:
    """The ids of the nodes that depend on `inner` and that `n` needs, `inner` itself included."""
    found = {id(inner)}
    for m in toposort(n.args):
        if any(id(a) in found for a in m.args):
            found.add(id(m))
    return found


def _batched(form: Contraction) -> tuple[Node, Node]:
    """Both factors with the same batches."""
    left, right = form.left, form.right
    if min(len(left.shape), len(right.shape)) < 2:
        raise _Unfit
    right = broadcast_batches(right, left.shape[:-2]) if len(right.shape) == 2 else right
    if left.shape[:-2] != right.shape[:-2]:
        raise _Unfit
    return left, right


def _even(factor: Node) -> Node:
    """A factor whose matrices lie evenly in memory; if need be a copy, in the order as it lies."""
    if factor.row.kind != "view" or not scattered(factor, False):
        return factor
    found = strided_view(factor)
    if found is None or found[1].form.strides[-1] == 1:
        return copy(TensorExpr(factor)).node
    return swap_last_dims(copy(TensorExpr(swap_last_dims(factor))).node)


def _check(made: Node, x: Node, graph: Graph) -> None:
    """Raise if no kernel computes this node."""
    queries, keys, values = (a.shape for a in made.args[:3])
    if any(t.dtype is not torch.float32 for t in (*made.args[:3], made, x)):
        raise _Unfit
    if values[:-2] != made.shape[:-2] or numel(queries[:-2]) != numel(values[:-2]):
        raise _Unfit
    depth, length, columns = queries[-1], keys[-2], values[-2]
    if (
        isinstance(depth, BatchSize)
        or isinstance(length, BatchSize)
        or isinstance(columns, BatchSize)
    ):
        raise _Unfit
    if max(depth, columns) > max(WIDTHS) or min(depth, length) < K_BLOCK:
        raise _Unfit  # a few k do not average out what the product of the low halves would add
    if length * depth < LEAST_KEYS or flops(made, graph) < LEAST_FLOPS[torch.float32]:
        raise _Unfit
    scores(made)


class _ScoreModBuilder:
    """Copies what lies between a product and its softmax, with inputs in place of all tensors."""

    def __init__(self, inner: Node, form: Contraction, between: set[int]) -> None:
        self.between = between
        self.operands: list[Node] = []
        score = _input(0, inner)
        added = None if form.added is None else self._operand(form.added)
        self.made = {id(inner): apply_contraction(replace(form, added=added), score)}

    def copy(self, m: Node) -> Node:
        if id(m) not in self.made:
            self.made[id(m)] = self._copy(m)
        return self.made[id(m)]

    def _copy(self, m: Node) -> Node:
        if id(m) in self.between:
            if m.row.kind != "pointwise" and not _whole_rows(m):
                raise _Unfit
            return with_args(m, tuple(map(self.copy, m.args)))
        if m.row.kind == "pointwise" and _cheap(m):
            return with_args(m, tuple(map(self.copy, m.args)))
        return self._operand(m)

    def _operand(self, m: Node) -> Node:
        """A tensor, seen through views: a constant as it is, else one more input."""
        memory = base(m)
        if memory.op == "constant":
            return m
        if _strided(m):  # neighbouring scores read neighbours
            m = memory = copy(TensorExpr(m)).node
        if not any(memory is known for known in self.operands):
            self.operands.append(memory)
        position = next(k for k, known in enumerate(self.operands, 1) if known is memory)
        return on_other_memory(m, memory, _input(position, memory))


def _strided(m: Node) -> bool:
    """Whether neighbours along the last dimension lie apart, each element once."""
    found = strided_view(m)
    if found is None or not m.shape or m.shape[-1] == 1:
        return False
    steps = found[1].form.strides
    repeats = any(step == 0 and size != 1 for size, step in zip(m.shape, steps, strict=True))
    return steps[-1] != 1 and not repeats


def _input(position: int, like: Node) -> Node:
    """What stands for the product or an operand; no input of the model is the same node."""
    return node("input", position=position, inner=True, shape=like.shape, dtype=like.dtype)


def _cheap(m: Node) -> bool:
    """Whether to compute an operand for each score costs no more than to read it."""
    tensors = [a for a in m.args if a.op != "constant"]
    narrow = sum(a.dtype.itemsize for a in tensors) <= m.dtype.itemsize
    grows = all(numel(a.shape) != numel(m.shape) for a in tensors)
    return m.row.cost <= CHEAP and (narrow or grows)


# ---- what everybody else asks of it --------------------------------------------------------------


@dataclass(frozen=True)
class ScoreMod:
    """The function of an attention node, of its own operands.

    score: what stands for the product.  members: maps, arguments first.  walks: how each tensor is
    read, by (member id, argument).  axes: of the batches, the rows and the columns of the scores.
    """

    score: Node
    members: tuple[Node, ...]
    loops: LoopAxes
    walks: Mapping[tuple[int, int], TensorWalk]
    axes: tuple[Sequence[Axis], ...]

    @property
    def tensors(self) -> tuple[Node, ...]:
        """What is read, each once, numbers not counted."""
        read = {id(w.tensor): w.tensor for w in self.walks.values() if w.tensor.op != "constant"}
        return tuple(read.values())


@cache
def scores(n: Node) -> ScoreMod:
    """What an attention node makes of its scores; raises Incompatible if it has no addresses."""
    given, inside, root = dict[int, Node](), set[int](), spec_of(n, AttentionSpec).score_mod
    for m in toposort([root]):
        place = m["position"] if m.op == "input" else 0
        assert isinstance(place, int), "a position is a number"
        args = tuple(given[id(a)] for a in m.args)
        given[id(m)] = n.args[2 + place] if place else with_args(m, args)
        if m.row.kind == "pointwise" or (m.op == "input" and not place):
            inside.add(id(given[id(m)]))
    members = [m for m in toposort([given[id(root)]]) if id(m) in inside]
    (score,) = (m for m in members if m.has("inner"))
    found = loops(members)
    tensors = read_walks(found)
    steps = [each for walk in tensors.values() for each in walk.all_strides]
    *lead, rows, columns = found.dims[id(score)]
    axes = ([a for d in lead for a in d], rows, columns)
    merged = tuple(merge(some, steps, found.sizes) for some in axes)
    return ScoreMod(score, tuple(m for m in members if m is not score), found, tensors, merged)


def sides(n: Node) -> tuple[Operand, Operand, Operand]:
    """Queries, keys and values of an attention node; the rows of the last are its columns."""
    queries, keys, values = n.args[:3]
    return factor_of(queries, False), factor_of(keys, False), factor_of(values, False)


def width(n: Node) -> int:
    """The columns of a block that holds a row of queries, and one of the result."""
    queries, _, values = (a.shape for a in n.args[:3])
    return next(w for w in WIDTHS if max(int(queries[-1]), int(values[-2])) <= w)  # type: ignore[arg-type]


def flops(n: Node, graph: Graph) -> int:
    """Two for each multiply-add of both products."""
    scored: Size = numel(n.shape[:-1])
    return (
        2
        * graph.hint(scored)
        * graph.hint(n.args[1].shape[-2])
        * (graph.hint(n.args[0].shape[-1]) + graph.hint(n.shape[-1]))
    )
