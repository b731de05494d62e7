"""Graph -> cheaper Graph: apply the rules, leaves first, until none applies.

Beside the rules of algebra: numbers are computed here, views of views become one view, and a copy
of a value that is computed anyway is that value. Outputs that were tensors of their own remain so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch

from fusewright.ir.builder import TensorExpr, constant
from fusewright.ir.graph import (
    BatchSize,
    BufferUpdate,
    Graph,
    Node,
    Size,
    fresh_copy,
    memory_of,
    node,
    numel,
    on_other_memory,
    own_memory_copy,
    rebuild,
    shown_by,
    times,
    toposort,
)
from fusewright.ir.operators import meaning
from fusewright.ir.placement import OwnCopy
from fusewright.rewrite.algebra_rules import RULES, Rule

_ROUNDS = 8


def rewrite(graph: Graph, rules: Sequence[Rule] = RULES) -> tuple[Graph, tuple[str, ...]]:
    """The simplified graph, and the names of the rules that were used."""
    used: list[str] = []
    given = graph

    def change(n: Node) -> Node:
        for rule in rules:
            new = _apply_rule(rule, n)
            if new is not None:
                used.append(rule.name)
                return change(new)
        return _simplify(n)

    graph = traced(graph)
    for _ in range(_ROUNDS):
        before = toposort(graph.roots)
        graph = rebuild(graph, change)
        after = toposort(graph.roots)
        if len(before) == len(after) and all(a is b for a, b in zip(before, after, strict=True)):
            break
    return apart(given, graph), tuple(used)


def cost(n: Node) -> int:
    """Float operations per element of the whole expression, each distinct node counted once."""
    return sum(m.row.cost for m in toposort([n]) if m.row.computed)


def traced(graph: Graph) -> Graph:
    """The graph with the memory of its outputs behind them, for `apart`."""
    return replace(graph, outputs=(*graph.outputs, *(memory_of(o) for o in graph.outputs)))


def apart(before: Graph, after: Graph) -> Graph:
    """Copy each output that shares memory now with something it did not share it with before, and
    let it show what became of its memory.

    after: made of `traced(before)`, so behind its outputs is what became of their memory; or of
    `before`, whose outputs' memory has become what they are views of now.
    """
    count = len(before.outputs)
    if len(after.outputs) == count:
        return _parted(before, after)
    owner: dict[int, Node] = {}
    numbers: dict[int, int] = {}  # of copies: outputs that were one tensor stay one
    for was, update in zip(before.updates, after.updates, strict=True):
        owner.setdefault(id(memory_of(update.value)), memory_of(was.value))
    outputs: list[Node] = []
    pairs = zip(before.outputs, after.outputs[:count], after.outputs[count:], strict=True)
    for k, (o, n, memory) in enumerate(pairs):
        old = memory_of(o)
        if memory_of(n) is not memory_of(memory):
            n = on_other_memory(o, old, memory)
        exposed = _own_memory(old) and (not _own_memory(memory_of(n)) or _is_other_size(memory))
        if exposed or owner.setdefault(id(memory_of(n)), old) is not old:
            # the same views of a copy that lies as the memory did
            own = _output_copy(memory, old.order, numbers.setdefault(id(old), k))
            n = on_other_memory(o, old, own)
        outputs.append(n)
    return replace(after, outputs=tuple(outputs), updates=_in_any_order(after.updates))


def _parted(before: Graph, after: Graph) -> Graph:
    owner: dict[int, Node] = {}
    for was, update in zip(before.updates, after.updates, strict=True):
        owner.setdefault(id(memory_of(update.value)), memory_of(was.value))
    outputs: list[Node] = []
    numbers: dict[int, int] = {}  # of copies: outputs that were one tensor stay one
    for k, (o, n) in enumerate(zip(before.outputs, after.outputs, strict=True)):
        old, memory = memory_of(o), memory_of(n)
        exposed = _own_memory(old) and not _own_memory(memory)
        if exposed or owner.setdefault(id(memory), old) is not old:
            own = _output_copy(memory, memory.order, numbers.setdefault(id(old), k))
            n = on_other_memory(n, memory, own)
        outputs.append(n)
    return replace(after, outputs=tuple(outputs), updates=_in_any_order(after.updates))


def _in_any_order(updates: Sequence[BufferUpdate]) -> tuple[BufferUpdate, ...]:
    """Updates of which none shows what another one changes: those are of copies."""
    targets = {id(u.target) for u in updates}
    shown = [id(memory_of(u.value)) in targets for u in updates]
    return tuple(
        replace(u, value=own_memory_copy(u.value, u.target.order, OwnCopy("update", k)))
        if shows
        else u
        for k, (u, shows) in enumerate(zip(updates, shown, strict=True))
    )


def _output_copy(memory: Node, order: tuple[int, ...], number: int) -> Node:
    return fresh_copy(memory, order, OwnCopy("output", number))


def _own_memory(n: Node) -> bool:
    """Whether the node's memory is new, so that nobody else can see it."""
    return n.row.computed or (n.op == "library" and n.call.new_memory)


def _is_other_size(n: Node) -> bool:
    """Whether views show elements of a memory several times, or not all of them."""
    while (shown := shown_by(n)) is not None:
        if _bytes(shown) != _bytes(n):
            return True
        n = shown
    return False


def _bytes(n: Node) -> Size:
    return times(numel(n.shape), n.dtype.itemsize)


# ---- rules ---------------------------------------------------------------------------------------


@cache
def pattern(rule: Rule) -> Node:
    """The rule's left side on variables."""
    return rule.left(*[_variable(v) for v in rule.variables]).node


def _variable(name: str) -> TensorExpr:
    dtype = torch.bool if name == "b" else torch.float32
    return TensorExpr(node("buffer", shape=(), dtype=dtype, name=f"?{name}"))


def _apply_rule(rule: Rule, n: Node) -> Node | None:
    if n.op != pattern(rule).op:
        return None
    found: dict[str, Node] = {}
    if not _match(pattern(rule), n, found):
        return None
    arguments: list[TensorExpr | float] = []
    for name in rule.variables:
        bound = found[name]
        value = bound["value"] if bound.op == "constant" else None
        if name == "c":
            if not isinstance(value, int | float) or not rule.when(value):
                return None
            arguments.append(value)
        else:
            arguments.append(TensorExpr(bound))
    new = rule.right(*arguments).node
    if new.shape != n.shape or new.dtype is not n.dtype:
        return None
    if new.order == n.order:
        return new
    if any(new is argument.node for argument in arguments if isinstance(argument, TensorExpr)):
        return None  # it lies otherwise already
    attributes = dict(new.attributes)
    return node(new.op, new.args, shape=n.shape, dtype=n.dtype, order=n.order, **attributes)


def _match(wanted: Node, n: Node, found: dict[str, Node]) -> bool:
    if wanted.op == "buffer":
        name = str(wanted["name"])[1:]
        if name == "c" and (n.op != "constant" or not n.dtype.is_floating_point):
            return False
        return found.setdefault(name, n) is n
    if wanted.op == "constant":
        return n.op == "constant" and n["value"] == wanted["value"]
    same = n.op == wanted.op and len(n.args) == len(wanted.args)
    return same and all(_match(w, a, found) for w, a in zip(wanted.args, n.args, strict=True))


# ---- numbers, views and copies -------------------------------------------------------------------


def _simplify(n: Node) -> Node:
    moves = n.op == "copy" or n.row.result == "attribute"
    if n.row.kind == "pointwise" and not moves and not n.shape:
        return _number(n)
    if n.op == "reshape":
        return _reshape_of_reshape(n)
    if n.op == "permute":
        return _permute_of_permute(n)
    return _needless_copy(n) if n.op == "copy" else n


def _needless_copy(n: Node) -> Node:
    """A copy of what is computed anyway; an output may have to be its own tensor."""
    (x,) = n.args
    computed = x.row.computed and x.order == n.order
    return x if computed and n.placement.own_copy is None else n


def _number(n: Node) -> Node:
    """A map of number constants is a number."""
    values = [a["value"] if a.op == "constant" else None for a in n.args]
    if any(v is None or isinstance(v, BatchSize) for v in values) or not n.args:
        return n
    wide = torch.float64 if n.args[-1].dtype.is_floating_point else n.args[-1].dtype
    result = meaning(n.op)(*[torch.tensor(v, dtype=wide) for v in values])
    return constant(result.item(), n.dtype).node


def _reshape_of_reshape(n: Node) -> Node:
    (x,) = n.args
    if x.shape == n.shape:
        return x
    if x.op != "reshape":
        return n
    (inner,) = x.args
    return (
        inner if inner.shape == n.shape else node("reshape", [inner], shape=n.shape, dtype=n.dtype)
    )


def _permute_of_permute(n: Node) -> Node:
    (x,) = n.args
    if x.op != "permute":
        return n
    first, second = x["permutation"], n["permutation"]
    both = tuple(first[i] for i in second)  # type: ignore[index,union-attr]
    (inner,) = x.args
    if both == tuple(range(len(both))):
        return inner
    return node("permute", [inner], shape=n.shape, dtype=n.dtype, permutation=both)
