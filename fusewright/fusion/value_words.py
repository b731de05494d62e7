"""Nodes of a captured graph -> what its model calls them, for the names that people read.

A parameter or buffer is its path, an input the argument of `forward`; a result is the variable that
the model's text gives it to, or else what is called. What a call computes on the way is its
operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from fusewright.frontend.capture import Captured, argument_names
from fusewright.fusion.kernel_names import identifier
from fusewright.ir.graph import Graph, Node, toposort
from fusewright.ir.operators import OPS
from fusewright.ir.origin import calls_of_modules

MADE = "constant"  # a small tensor that `forward` makes itself


def value_words(captured: Captured) -> Mapping[Node, tuple[str, ...]]:
    """The name of each node, or the parts of its path."""
    graph = captured.graph
    names = dict(argument_names(captured))
    words: dict[Node, tuple[str, ...]] = {
        n: (identifier(names.get(k, n.op)),) for k, n in enumerate(graph.inputs)
    }
    calls = calls_of_modules(graph.origins.values())
    for n in (*graph.leaves, *toposort(graph.roots)):
        if n not in words:
            words[n] = tuple(filter(None, map(identifier, _word(n, captured, calls))))
    return {n: word if any(word) else (n.op,) for n, word in words.items()}


def variable_of(graph: Graph, n: Node) -> str:
    """The variable that the model's text gives a value to, in letters of ASCII; "" for none."""
    origin = graph.origins.get(n)
    return identifier(origin.variable) if origin else ""


def module_path(graph: Graph, n: Node, calls: Mapping[str, AbstractSet[str]]) -> list[str]:
    """The path of the module that a node is the one call of, if it is one."""
    origin = graph.origins.get(n)
    if origin is None or not origin.module or len(calls[origin.module]) != 1:
        return []
    return list(filter(None, map(identifier, origin.module.split("."))))


def module_word(graph: Graph, n: Node, calls: Mapping[str, AbstractSet[str]]) -> str:
    """The end of that path, from a part that is no number on."""
    path = module_path(graph, n, calls)
    begin = next((k for k in reversed(range(len(path))) if path[k][0].isalpha()), 0)
    return "_".join(path[begin:])


def _word(n: Node, captured: Captured, calls: Mapping[str, AbstractSet[str]]) -> Sequence[str]:
    """calls: what each module calls."""
    graph = captured.graph
    if n.row.state:
        path = str(n["name"])
        return [MADE] if path in captured.constants else path.split(".")
    origin = graph.origins.get(n)
    if origin is None or n.row.kind == "leaf":
        return [n.op]
    if variable := variable_of(graph, n):
        return [variable]
    if n.row.kind == "library":
        return module_path(graph, n, calls) or [origin.call]
    return [origin.call if origin.is_result and origin.call not in OPS else n.op]
