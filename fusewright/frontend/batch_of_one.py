"""A program with a free batch size -> whether it is what eager runs on a batch of exactly 1, too.

torch.export takes a free size to be 2 or more, and answers each question of the model about it so.
At 1 eager may go another way: the model's own text asks, a norm raises, a size of 1 broadcasts, a
copy of what is contiguous already is no copy, a result lies otherwise. So the model is exported
once more, with a batch of 1, and the two programs are compared, call by call, with 1 for the free
size. Then the free program, rewritten as it is, runs on fake tensors at 1, and each tensor has to
have the sizes and strides that its free ones give there. Whatever is not the same is not proved.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_unbacked_symbols
from torch.utils import _pytree as pytree

from fusewright.common.containers import Container, Plain, Tree
from fusewright.frontend.eager_strides import is_cheap, lay_calls, lies_both_ways, made_anew
from fusewright.ir.graph import BatchSize, size_at

NUMBERS = torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool
UNKNOWN = "a number that only the data know"
SAID_OF_SIZES = ("_assert", "sym_constrain")


def inputs_of_one(program: ExportedProgram, count: int) -> tuple[torch.Tensor, ...]:
    """The last `count` arguments of the program, with a batch of 1; their values are nobody's."""
    places = [n.meta["val"] for n in program.graph.nodes if n.op == "placeholder"]
    tensors = [v for v in places if isinstance(v, torch.Tensor)][-count:]
    return tuple(map(example_of_one, tensors))


def example_of_one(value: Any) -> Any:
    """A tensor, or a number, with 1 for the free size."""
    if not isinstance(value, torch.Tensor):
        return _number(value)
    sizes, strides = _at_one(value.shape), _at_one(value.stride())
    return torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)


def tree_of_one(tree: Tree) -> Tree:
    """How results are held, with 1 for the batch size among their numbers."""
    if isinstance(tree, Container):
        return replace(tree, inside=tuple(map(tree_of_one, tree.inside)))
    if isinstance(tree, Plain) and isinstance(tree.value, BatchSize):
        return Plain(size_at(tree.value, dict.fromkeys(tree.value.names, 1)))
    return tree


def same_calls(free: ExportedProgram, single: ExportedProgram) -> bool:
    """Whether a program with a free batch size makes, at 1, the calls of one for a batch of 1."""
    return _same_signature(free, single) and _same_graph(free.graph, single.graph)


def lies_the_same(program: ExportedProgram, device: str) -> bool:
    """Whether a run with a batch of 1 gives results of the sizes and strides that the program says,
    with 1 for its free size, and everything before them has those sizes."""
    there = copy.deepcopy(program.graph)  # to be laid anew
    pairs = [*zip(program.graph.nodes, there.nodes, strict=True)]
    with FakeTensorMode(shape_env=ShapeEnv()):
        run = _Run(program.graph_module)
        places = [n for n in program.graph.nodes if n.op == "placeholder"]
        run.run(*(example_of_one(n.meta.get("val")) for n in places), enable_io_processing=False)
    for n, one in pairs:
        if n in run.made and n.op != "output":
            one.meta["val"] = run.made[n]
    lay_calls(there, frozenset(program.graph_signature.inputs_to_parameters), device)
    calls = [(n, one) for n, one in pairs if n.op == "call_function"]
    if any(_told(n) != _told(one) for n, one in calls):
        return False
    (output,) = (n for n in program.graph.nodes if n.op == "output")
    return _lying_otherwise(calls, device).isdisjoint(output.all_input_nodes)


def _lying_otherwise(
    calls: Sequence[tuple[torch.fx.Node, torch.fx.Node]], device: str
) -> set[torch.fx.Node]:
    """Calls whose results may have another stride at 1 than is said, along a dimension of size 1.

    No kernel asks for such a stride; but another call of PyTorch may lay its own result by it. Of
    a call that reads one such tensor, that is asked: as eager has it, and as it is said.
    """
    found: set[torch.fx.Node] = set()
    for n, one in calls:
        unsure = [a for a in n.all_input_nodes if a in found]
        if _strides(n) != _strides(one) or len(unsure) > 1 or _is_unasked(one):
            found.add(n)
        elif unsure:
            with FakeTensorMode(shape_env=ShapeEnv()) as mode:
                mode.cache_enabled = False
                args, kwargs = torch.fx.map_arg((n.args, n.kwargs), _as_said)
                said = pytree.tree_map(example_of_one, n.meta["val"])
                laid = made_anew(n, args, kwargs, said, device)
            found |= {n} if _strides_of(laid) != _strides(n) else set()
    return found


def _is_unasked(n: torch.fx.Node) -> bool:
    """Whether fake tensors alone said how a result lies, and PyTorch's kernels may lay it by
    strides that mean nothing."""
    args, kwargs = torch.fx.map_arg((n.args, n.kwargs), lambda a: a.meta.get("val"))
    read = pytree.tree_leaves((args, kwargs))
    return any(map(lies_both_ways, read)) and not is_cheap(n, args, kwargs, n.meta.get("val"))


def _as_said(n: torch.fx.Node) -> Any:
    return pytree.tree_map(example_of_one, n.meta.get("val"))


class _Run(torch.fx.Interpreter):
    """Keeps what each call makes."""

    def __init__(self, program: torch.fx.GraphModule) -> None:
        super().__init__(program)
        self.made: dict[torch.fx.Node, Any] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        self.made[n] = super().run_node(n)
        return self.made[n]


# ---- the same calls ------------------------------------------------------------------------------


def _same_signature(free: ExportedProgram, single: ExportedProgram) -> bool:
    """Whether both take, change and return the same things, and wrote down the same constants."""
    said = [
        [
            *((s.kind, s.target) for s in p.graph_signature.input_specs),
            *((s.kind, s.target) for s in p.graph_signature.output_specs),
        ]
        for p in (free, single)
    ]
    return said[0] == said[1] and all(
        name in single.constants and _same_constant(value, single.constants[name])
        for name, value in free.constants.items()
    )


def _same_constant(a: object, b: object) -> bool:
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return a is b
    alike = (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
    return a is b or (alike and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True))


def _same_graph(free: torch.fx.Graph, single: torch.fx.Graph) -> bool:
    """Whether the calls are the same, one by one: operator, arguments, sizes and types."""
    pairs = [_calls(free), _calls(single)]
    if len(pairs[0]) != len(pairs[1]):
        return False
    known: dict[torch.fx.Node, torch.fx.Node] = {}
    for n, one in zip(*pairs, strict=True):
        known[n] = one
        if (n.op, str(n.target)) != (one.op, str(one.target)) or n.op == "get_attr":
            return False
        if n.op != "placeholder" and not _same_arguments(n, one, known):
            return False
        if n.op != "output" and _told(n) != _told(one):
            return False
    return True


def _calls(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """All but what only says something of sizes, or works out with them, and the slices of a
    whole that a free size leaves behind (`x[:, None]`)."""
    return [
        n for n in graph.nodes if n.op != "call_function" or not (_is_of_sizes(n) or _is_whole(n))
    ]


def _is_whole(n: torch.fx.Node) -> bool:
    """Whether a slice is all of its tensor, whatever its size."""
    named = str(n.target) == "aten.slice.Tensor" and not n.kwargs
    return named and (*n.args[2:], *(0, sys.maxsize, 1)[len(n.args) - 2 :]) == (0, sys.maxsize, 1)


def _is_of_sizes(n: torch.fx.Node) -> bool:
    value = n.meta.get("val")
    if value is None:
        return any(word in str(n.target) for word in SAID_OF_SIZES)
    return isinstance(value, NUMBERS) and not _is_from_data(value)


def _whole(n: torch.fx.Node) -> torch.fx.Node:
    while _is_whole(n):
        (n, *_) = n.all_input_nodes
    return n


def _same_arguments(
    n: torch.fx.Node, one: torch.fx.Node, known: Mapping[torch.fx.Node, torch.fx.Node]
) -> bool:
    """Whether two calls are given the same, with 1 for the free size."""

    def given(value: torch.fx.Node) -> Any:
        value = _whole(value)
        return _number(value.meta["val"]) if _is_of_sizes(value) else known.get(value, value)

    both = [pytree.tree_flatten(torch.fx.map_arg((x.args, x.kwargs), given)) for x in (n, one)]
    (left, form), (right, other) = both
    return bool(form == other) and [*map(_plainly, left)] == [*map(_plainly, right)]


def _plainly(value: object) -> object:
    """1 and True, 0.0 and -0.0 are equal for Python, and NaN is not equal to itself."""
    return (type(value).__name__, repr(value)) if isinstance(value, int | float) else value


# ---- at 1 ----------------------------------------------------------------------------------------


def _is_from_data(value: object) -> bool:
    symbolic = isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)
    return symbolic and bool(free_unbacked_symbols(value))


def _number(value: Any) -> Any:
    """A number with 1 for the free size."""
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value
    if _is_from_data(value):
        return UNKNOWN
    expression = value.node.expr
    found = expression.subs(dict.fromkeys(expression.free_symbols, 1))
    return int(found) if isinstance(value, torch.SymInt) else str(found)


def _at_one(sizes: Any) -> tuple[Any, ...]:
    return tuple(map(_number, sizes))


def _told(n: torch.fx.Node) -> list[object]:
    """Sizes and types of what a call makes."""
    return [
        (_at_one(v.shape), v.dtype, v.device) if isinstance(v, torch.Tensor) else _number(v)
        for v in pytree.tree_leaves(n.meta.get("val"))
    ]


def _strides(n: torch.fx.Node) -> list[object]:
    return _strides_of(n.meta.get("val"))


def _strides_of(value: object) -> list[object]:
    """Of what a call makes."""
    leaves = pytree.tree_leaves(value)
    return [_at_one(v.stride()) for v in leaves if isinstance(v, torch.Tensor)]
