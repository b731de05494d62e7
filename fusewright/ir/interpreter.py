"""Run a Graph with PyTorch, node by node, in any precision: the meaning of the IR."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from fusewright.ir.graph import BatchSize, Graph, Node, Sizes, base, size_at, toposort
from fusewright.ir.operators import meaning
from fusewright.ir.specs import AttentionSpec, spec_of


def interpret(
    graph: Graph,
    inputs: Sequence[torch.Tensor],
    state: Mapping[str, torch.Tensor],
    *,
    sizes: Sizes | None = None,
    dtype: torch.dtype | None = None,
) -> list[torch.Tensor]:
    """The graph's outputs, then its updates' values.

    inputs: one tensor per graph input.  state: parameters and buffers by name.  dtype: compute
    every floating tensor in this type instead of its own.
    """
    values: dict[int, torch.Tensor] = {}
    sizes = graph.example if sizes is None else sizes
    for n in toposort((*graph.inputs, *graph.roots)):
        values[id(n)] = _value(n, inputs, state, values, sizes, dtype)
    updated = {id(u.target): values[id(u.value)] for u in graph.updates}
    return [*(_final(o, values, updated, sizes) for o in graph.outputs), *updated.values()]


def _final(
    o: Node,
    values: Mapping[int, torch.Tensor],
    updated: Mapping[int, torch.Tensor],
    sizes: Sizes,
) -> torch.Tensor:
    """An output's value; outputs show inputs and buffers as they are after the updates."""
    if id(base(o)) not in updated:
        return values[id(o)]
    if o.row.kind == "leaf":
        return updated[id(o)]
    inner = _final(o.args[0], values, updated, sizes)
    return meaning(o.op, tuple(_attributes(o, sizes, o.dtype)))(inner)  # type: ignore[no-any-return]


def _value(
    n: Node,
    inputs: Sequence[torch.Tensor],
    state: Mapping[str, torch.Tensor],
    values: Mapping[int, torch.Tensor],
    sizes: Sizes,
    dtype: torch.dtype | None,
) -> torch.Tensor:
    if n.op == "input":
        return _as(inputs[int(n["position"])], dtype)  # type: ignore[arg-type]
    if n.row.state:
        return _as(state[str(n["name"])], dtype)
    kind = dtype if dtype and n.dtype.is_floating_point else n.dtype
    if n.op == "constant":
        value = n["value"]
        number = size_at(value, sizes) if isinstance(value, BatchSize) else value
        return torch.tensor(number, dtype=kind).reshape((1,) * len(n.shape))
    args = [values[id(a)] for a in n.args]
    if n.op == "library":
        return _library(n, args, sizes)
    if n.op == "attention":
        return _attention(n, args, sizes, dtype)
    if n.row.result == "wide":
        args = [_as(a, kind) for a in args]
    found: torch.Tensor = meaning(n.op, tuple(_attributes(n, sizes, kind)))(*args)
    return _as(found, dtype) if n.op == "bitcast" else found


def _attention(
    n: Node, args: Sequence[torch.Tensor], sizes: Sizes, dtype: torch.dtype | None
) -> torch.Tensor:
    """Its function of scores is a graph: input 0 is the product, the others are its operands."""
    queries, keys, values, *operands = args
    function = spec_of(n, AttentionSpec).score_mod
    given = [queries @ keys.transpose(-1, -2), *operands]
    (scores,) = interpret(Graph((), (function,)), given, {}, sizes=sizes, dtype=dtype)
    lead = (*values.shape[:-2], *scores.shape[-2:])
    return torch.softmax(scores.reshape(lead), -1) @ values.transpose(-1, -2)


def _library(n: Node, args: Sequence[torch.Tensor], sizes: Sizes) -> torch.Tensor:
    names = [f"x{i}" for i in range(len(args))]
    text = n.call.render(names, "torch.device('cpu')", {})
    given = dict(zip(names, args, strict=True))
    scope = {"torch": torch, "_fusewright_on_huge_pages": lambda *_: None, **sizes, **given}
    return eval(text, scope)  # type: ignore[no-any-return]


def _as(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    return tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor


def _attributes(n: Node, sizes: Sizes, dtype: torch.dtype) -> list[tuple[str, str]]:
    """The node's attributes as Python text, sizes filled in."""

    def number(size: BatchSize) -> str:
        return str(size_at(size, sizes))

    pairs = [(name, python_text(value, number)) for name, value in n.words.items()]
    if n.op == "cast":
        pairs = [("to", str(dtype))]
    if n.row.kind == "view" and n.op != "permute":
        pairs.append(("shape", python_text(n.shape, number)))
    if n.row.kind in ("reduction", "scan"):
        dims = n["dims"]
        assert isinstance(dims, tuple)
        pairs += [("first", str(dims[0])), ("last", str(dims[-1]))]
    return pairs


def python_text(value: object, size_text: Callable[[BatchSize], str]) -> str:
    """An attribute as Python source; numpy's numbers and enumerations as plain numbers. size_text:
    of a size that is known at run time."""
    if isinstance(value, BatchSize):
        return size_text(value)
    if isinstance(value, list):
        return f"[{', '.join(python_text(v, size_text) for v in value)}]"
    if isinstance(value, tuple):
        return f"({''.join(f'{python_text(v, size_text)}, ' for v in value).strip()})"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        text = float.__repr__(value)
        return text if math.isfinite(value) else f"float('{text}')"
    return int.__repr__(value) if isinstance(value, int) else repr(value)
