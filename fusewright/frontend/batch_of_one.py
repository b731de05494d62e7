"""A program with free sizes -> whether it is what eager runs where some of them are exactly 1, too.

torch.export takes a free size to be 2 or more, and answers each question of the model about it so.
At 1 eager may go another way: the model's own text asks, a norm raises, a size of 1 broadcasts, a
copy of what is contiguous already is no copy, a result lies otherwise. So the model is exported
once more, with a size of 1 and the others free, and the two programs are compared, call by call,
with 1 for that size. Then the free program, rewritten as it is, runs on fake tensors at 1, and each
tensor has to have the sizes and strides that its free ones give there. Whatever is not the same is
not proved. Of several free sizes, each set of them that may be 1 together is proved by itself.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from fusewright.common.containers import Container, Plain, Tree
from fusewright.frontend.eager_strides import is_cheap, lay_calls, lies_both_ways, made_anew
from fusewright.frontend.size_symbols import SizeSymbols, arguments_of, runtime_number
from fusewright.ir.graph import BatchSize, FreeSize, Sizes, partly_at

NUMBERS = torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool
UNKNOWN = "a number that only the data know"
SAID_OF_SIZES = ("_assert", "sym_constrain")


@dataclass(frozen=True)
class CallOfOnes:
    """The arguments of a call in which the free sizes of these names are 1."""

    names: frozenset[str]
    arguments: tuple[object, ...]


def provable(names: Sequence[str], is_proved: Callable[[frozenset[str]], bool]) -> frozenset[str]:
    """The free sizes that may be 1, alone and with each other, taken in their order. is_proved: for
    these being 1, and all others more."""
    found = frozenset[str]()
    for name in names:
        counts = range(len(found) + 1)
        some = (frozenset({name, *c}) for n in counts for c in combinations(sorted(found), n))
        if all(map(is_proved, some)):
            found |= {name}
    return found


@dataclass(frozen=True)
class Values:
    """What is put for symbols of a program's sizes: numbers, or the symbols of another program."""

    of: Mapping[Any, Any]

    @classmethod
    def at(cls, symbols: SizeSymbols, sizes: Sizes) -> Values:
        """These numbers for the sizes of these names."""
        return cls({s: sizes[name] for s, name in symbols.names.items() if name in sizes})

    @classmethod
    def as_in(cls, symbols: SizeSymbols, other: SizeSymbols) -> Values:
        """The symbols of the other program for the same sizes."""
        theirs = {name: symbol for symbol, name in other.names.items()}
        return cls({symbol: theirs[name] for symbol, name in symbols.names.items()})

    def number(self, value: Any) -> Any:
        """A number with these values."""
        if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return value
        if runtime_number(value):
            return UNKNOWN
        found = value.node.expr.subs(self.of)
        if isinstance(value, torch.SymFloat) and found.is_number:
            return float(found)
        whole = isinstance(value, torch.SymInt) and found.is_Integer
        return int(found) if whole else str(found)

    def numbers(self, sizes: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(map(self.number, sizes))

    def example(self, value: Any) -> Any:
        """A tensor of these sizes, whose values are nobody's, or a number."""
        if not isinstance(value, torch.Tensor):
            return self.number(value)
        sizes, strides = self.numbers(value.shape), self.numbers(value.stride())
        return torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)

    def inputs(self, program: ExportedProgram, count: int) -> tuple[torch.Tensor, ...]:
        """The last `count` arguments of a program."""
        return tuple(map(self.example, arguments_of(program, count)))

    def told(self, n: torch.fx.Node) -> list[object]:
        """Sizes and types of what a call makes."""
        return [
            (self.numbers(v.shape), v.dtype, v.device)
            if isinstance(v, torch.Tensor)
            else self.number(v)
            for v in pytree.tree_leaves(n.meta.get("val"))
        ]

    def strides(self, value: object) -> list[object]:
        """Of tensors."""
        leaves = pytree.tree_leaves(value)
        return [self.numbers(v.stride()) for v in leaves if isinstance(v, torch.Tensor)]


Valued = tuple[ExportedProgram, Values]


def tree_at(tree: Tree, sizes: Sizes) -> Tree:
    """How results are held, with these for free sizes among their numbers."""
    if isinstance(tree, Container):
        return replace(tree, inside=tuple(tree_at(inside, sizes) for inside in tree.inside))
    if isinstance(tree, Plain) and isinstance(tree.value, BatchSize):
        return Plain(partly_at(tree.value, sizes))
    return tree


def same_calls(free: Valued, single: Valued) -> bool:
    """Whether two programs make the same calls, with these values for their sizes: one with free
    sizes, and one of a call in which some of them are 1."""
    sides = (_Side(program.graph, values) for program, values in (free, single))
    return _same_signature(free[0], single[0]) and _same_graph(*sides)


def same_derivative(
    free: tuple[ExportedProgram, torch.fx.Graph, Values],
    single: tuple[ExportedProgram, torch.fx.Graph, Values],
) -> bool:
    """The same of two programs and the graphs in which these and their derivatives are: with these
    values, the same is computed of the same. Copies, views that show all as it is, and sums over
    sizes of 1 are nothing to compute."""
    sides = (_Side(one[1], one[2], copies=False) for one in (free, single))
    return _same_signature(free[0], single[0]) and _same_graph(*sides)


def other_examples(free: Sequence[FreeSize]) -> list[dict[str, int]]:
    """The sizes of the example, and others, if there are several."""
    more = {s.name: s.example + (1 if s.most is None or s.example < s.most else -1) for s in free}
    return [{s.name: s.example for s in free}, *[more] * (len(free) > 1)]


def lies_the_same(
    given: torch.fx.GraphModule, parameters: Collection[str], values: Values, device: str
) -> bool:
    """Whether a run with these numbers for all free sizes gives results of the sizes and strides
    that the graph says, and everything before them has those sizes. parameters: names of the
    arguments that are parameters."""
    found = lying_otherwise(given, parameters, values, device)
    (output,) = (n for n in given.graph.nodes if n.op == "output")
    return found is not None and found.isdisjoint(output.all_input_nodes)


def lying_otherwise(
    given: torch.fx.GraphModule, parameters: Collection[str], values: Values, device: str
) -> set[torch.fx.Node] | None:
    """The calls that may give another stride than the graph says, in a run with these numbers for
    all free sizes; None where one gives other sizes."""
    there = copy.deepcopy(given.graph)  # to be laid anew
    pairs = [*zip(given.graph.nodes, there.nodes, strict=True)]
    with FakeTensorMode(shape_env=ShapeEnv()):
        run = _Run(given)
        places = [n for n in given.graph.nodes if n.op == "placeholder"]
        examples = (values.example(n.meta.get("val")) for n in places)
        run.run(*examples, enable_io_processing=False)
    for n, one in pairs:
        if n in run.made and n.op != "output":
            one.meta["val"] = run.made[n]
    lay_calls(there, parameters, device)
    calls = [(n, one) for n, one in pairs if n.op == "call_function"]
    if any(values.told(n) != values.told(one) for n, one in calls):
        return None
    return _lying_otherwise(calls, values, device)


def _lying_otherwise(
    calls: Sequence[tuple[torch.fx.Node, torch.fx.Node]], values: Values, device: str
) -> set[torch.fx.Node]:
    """Calls whose results may have another stride at these sizes than is said, along a dimension of
    size 1.

    No kernel asks for such a stride; but another call of PyTorch may lay its own result by it. Of
    a call that reads one such tensor, that is asked: as eager has it, and as it is said.
    """
    found: set[torch.fx.Node] = set()

    def as_said(n: torch.fx.Node) -> Any:
        return pytree.tree_map(values.example, n.meta.get("val"))

    for n, one in calls:
        unsure, strides = [a for a in n.all_input_nodes if a in found], values.strides(_made(n))
        if strides != values.strides(_made(one)) or len(unsure) > 1 or _is_unasked(one):
            found.add(n)
        elif unsure:
            with FakeTensorMode(shape_env=ShapeEnv()) as mode:
                mode.cache_enabled = False
                args, kwargs = torch.fx.map_arg((n.args, n.kwargs), as_said)
                laid = made_anew(n, args, kwargs, as_said(n), device)
            found |= {n} if values.strides(laid) != strides else set()
    return found


def _made(n: torch.fx.Node) -> object:
    return n.meta.get("val")


def _is_unasked(n: torch.fx.Node) -> bool:
    """Whether fake tensors alone said how a result lies, and PyTorch's kernels may lay it by
    strides that mean nothing."""
    args, kwargs = torch.fx.map_arg((n.args, n.kwargs), lambda a: a.meta.get("val"))
    read = pytree.tree_leaves((args, kwargs))
    return any(map(lies_both_ways, read)) and not is_cheap(n, args, kwargs, n.meta.get("val"))


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


@dataclass(frozen=True)
class _Side:
    """A graph whose calls are compared. values: for its sizes.  copies: whether it matters where
    values lie, and calls that only copy or show their argument are calls like others."""

    graph: torch.fx.Graph
    values: Values
    copies: bool = True

    def calls(self) -> list[torch.fx.Node]:
        """All but what only says something of sizes, or works out with them, and what is idle."""
        return [n for n in self.graph.nodes if not (self._is_idle(n) or _is_of_sizes_alone(n))]

    def name(self, n: torch.fx.Node) -> tuple[str, str]:
        """What is called."""
        name = str(n.target)
        return n.op, name if self.copies else VIEWED.get(name, name)

    def arguments(self, n: torch.fx.Node) -> tuple[list[Any], Any]:
        """Flat, with numbers in place of sizes."""

        def given(value: torch.fx.Node) -> Any:
            value = self._whole(value)
            return self.values.number(value.meta["val"]) if _is_of_sizes(value) else value

        return pytree.tree_flatten(torch.fx.map_arg((n.args, n.kwargs), given))

    def _whole(self, n: torch.fx.Node) -> torch.fx.Node:
        while self._is_idle(n):
            n = n.all_input_nodes[0]
        return n

    def _is_idle(self, n: torch.fx.Node) -> bool:
        """Whether a call gives its argument as it is: the slices of a whole that a free size leaves
        behind (`x[:, None]`); where copies do not matter, what else does."""
        if _is_whole(n):
            return True
        if self.copies or str(n.target) not in MAY_BE_IDLE:
            return False
        return self.values.told(n) == self.values.told(n.all_input_nodes[0])


VIEW = "aten.view.default"
VIEWED = dict.fromkeys(("aten._unsafe_view.default", "aten.reshape.default"), VIEW)
# What they give has the values of their first argument if it has the sizes and type of that.
MAY_BE_IDLE = frozenset(
    (
        *("aten.clone.default", "aten.detach.default", "aten.alias.default"),
        *(*VIEWED, VIEW, "aten.expand.default", "aten.sum.dim_IntList"),
    )
)


def _same_graph(free: _Side, single: _Side) -> bool:
    """Whether the calls are the same, one by one: operator, arguments, sizes and types."""
    pairs = [free.calls(), single.calls()]
    if len(pairs[0]) != len(pairs[1]):
        return False
    known: dict[torch.fx.Node, torch.fx.Node] = {}
    for n, one in zip(*pairs, strict=True):
        known[n] = one
        if free.name(n) != single.name(one) or n.op == "get_attr":
            return False
        given = free.arguments(n), single.arguments(one)
        if n.op != "placeholder" and not _same_arguments(*given, known):
            return False
        if n.op != "output" and free.values.told(n) != single.values.told(one):
            return False
    return True


def _is_whole(n: torch.fx.Node) -> bool:
    """Whether a slice is all of its tensor, whatever its size."""
    return str(n.target) == "aten.slice.Tensor" and not n.kwargs and is_all(n.args[2:])


def is_all(bounds: Sequence[object]) -> bool:
    """Whether a slice from here to there, in such steps, is all of whatever size."""
    return (*bounds, *(0, sys.maxsize, 1)[len(bounds) :]) == (0, sys.maxsize, 1)


def _is_of_sizes(n: torch.fx.Node) -> bool:
    value = n.meta.get("val")
    if value is None:
        return any(word in str(n.target) for word in SAID_OF_SIZES)
    return isinstance(value, NUMBERS) and not runtime_number(value)


def _is_of_sizes_alone(n: torch.fx.Node) -> bool:
    return n.op == "call_function" and _is_of_sizes(n)


def _same_arguments(
    free: tuple[list[Any], Any],
    single: tuple[list[Any], Any],
    known: Mapping[torch.fx.Node, torch.fx.Node],
) -> bool:
    """Whether two calls are given the same. known: the nodes of the second graph for those of the
    first."""
    (left, form), (right, other) = free, single
    same = [known.get(a, a) if isinstance(a, torch.fx.Node) else a for a in left]
    return bool(form == other) and [*map(_plainly, same)] == [*map(_plainly, right)]


def _plainly(value: object) -> object:
    """1 and True, 0.0 and -0.0 are equal for Python, and NaN is not equal to itself."""
    return (type(value).__name__, repr(value)) if isinstance(value, int | float) else value
