"""A joint graph with its plans -> a `forward` that records gradients, and what it calls.

Its guard is that of any other `forward`, asked where nothing records. Kernels then run within one
function of autograd: its forward leaves what its backward reads, and both are plain functions of
tensors. Where autograd wants the derivative of a derivative, it gets the original's.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from torch import nn

from fusewright.codegen.kernel_text import KernelText
from fusewright.common.containers import Container, Slot, Tree
from fusewright.emit.emitted_file import GeneratedForward
from fusewright.emit.formatter import tidy
from fusewright.emit.forward import ForwardBody, forward_body
from fusewright.emit.guard import ForwardGuard, guard
from fusewright.emit.python_text import NameScope, literal, parameters, tuple_text
from fusewright.emit.runtime_snippets import Snippet
from fusewright.emit.scope import EmitScope, reached
from fusewright.frontend.capture import Captured
from fusewright.frontend.joint_graph import JointGraph, Leaf
from fusewright.fusion.planner import Plan
from fusewright.ir.graph import BatchSize, Node, base
from fusewright.kernels.interface import Condition

RESERVED = frozenset({"torch", "device", "stream", *dir(builtins)})  # in functions of tensors


@dataclass(frozen=True)
class PlannedGraph:
    """captured, plan, kernels: what `forward_body` takes.  conditions: of the kernels."""

    captured: Captured
    plan: Plan
    kernels: tuple[KernelText, ...]
    conditions: tuple[Condition, ...]


@dataclass(frozen=True)
class PlannedJoint:
    """graph: the joint graph.  forward, backward: its parts.  results: how the model holds its
    results."""

    graph: JointGraph
    forward: PlannedGraph
    backward: tuple[PlannedGraph, ...]
    results: Tree


def recorded_forward(
    joint: PlannedJoint, function_of: Mapping[str, str], module: nn.Module, scope: EmitScope
) -> GeneratedForward:
    """The emitted `forward` of `module` for calls that record gradients."""
    return _Recorded(joint, function_of, module, scope).forward()


class _Recorded:
    def __init__(
        self,
        planned: PlannedJoint,
        function_of: Mapping[str, str],
        module: nn.Module,
        scope: EmitScope,
    ) -> None:
        self.joint, self.planned = planned.graph, planned.forward
        self.backward, self.results = planned.backward, planned.results
        self.function_of, self.module, self.scope = function_of, module, scope
        plan = self.planned.plan
        self.cuda = plan.target.language == "cuda"
        every = (self.planned, *self.backward)
        asked = [*dict.fromkeys(c for one in every for c in one.conditions)]
        captured = replace(self.planned.captured, results=self.results)
        self.guard = guard(captured, module, scope, plan, asked, records=True)
        self.snippets: set[Snippet] = {Snippet.RECORDED, *self.guard.snippets}

    def forward(self) -> GeneratedForward:
        guard, own = self.guard, self.scope.own
        names, words = guard.names, _words(self.scope)
        steps = f"_FUSEWRIGHT_STEPS_{words}"
        functions = [
            self._original(f"_fusewright_original_{words}"),
            *self._functions(words),
            self._steps(steps, words),
        ]
        shown = [names.fresh(name) for name in self._shown()]
        inputs = tuple_text(guard.inputs)
        given = f"({', '.join(self._given())},)"
        call = f"_fusewright_apply({steps}, self, {inputs}, {given}, *{self._leaves()})"
        returned = guard.containers.written(self.results, shown, guard.sizes)
        kernels = sum(len(p.kernels) for p in (self.planned, *self.backward[:1]))
        count = f"{kernels} fused kernel{'s' * (kernels != 1)}, with backward"
        return GeneratedForward(
            signature="",
            call="",
            summary=f"{count}; `reference_forward` where a condition does not hold.",
            prelude=guard.prelude,
            conditions=guard.conditions,
            statements=(f"[{', '.join(shown)}] = {call}", f"return {returned}"),
            snippets=frozenset(self.snippets),
            imports=tuple(guard.containers.imports),
            table=guard.table,
            own=own,
            holds=guard.holds,
            records=True,
            functions=tuple(functions),
        )

    # -- what the method hands on

    def _given(self) -> list[str]:
        """What the function for forward takes."""
        tensors = [self.guard.state] if self.guard.state else list(self.guard.tensors)
        sizes = self.guard.sizes.values()
        return [*["device"] * self.cuda, *sizes, *self.guard.inputs, *tensors]

    def _leaves(self) -> str:
        """The tensors that there are gradients of, as a tuple."""
        guard, place = self.guard, {name: k for k, name in enumerate(self.guard.tensors)}
        texts = [
            guard.inputs[leaf] if isinstance(leaf, int) else guard.locals[leaf]
            for leaf in self.joint.leaves
        ]
        if not guard.state:
            return f"({', '.join(texts)},)"
        pieces: list[str] = []
        for held, run in groupby(texts, place.__contains__):
            found = list(run)
            places = ", ".join(str(place[text]) for text in found) if held else ""
            pieces += [f"*[{guard.state}[k] for k in ({places},)]"] if held else found
        return f"({', '.join(pieces)},)"

    # -- functions

    def _original(self, name: str) -> tuple[str, ...]:
        """The results of the original, as a tuple of tensors."""
        trees = {a.parameter: a.tree for a in self.planned.captured.arguments}
        arguments: list[str] = []
        for p in parameters(self.module):
            if p.name not in trees:
                continue
            text = self.guard.containers.written(trees[p.name], self.guard.inputs, {})
            star = "*" * (p.kind is p.VAR_POSITIONAL) or "**" * (p.kind is p.VAR_KEYWORD)
            named = f"{p.name}=" * (p.kind is p.KEYWORD_ONLY)
            arguments.append(f"{star}{named}{text}")
        places = [text for _, text in sorted(_places(self.results, "results"))]
        return (
            f"def {name}(model, {', '.join(self.guard.inputs)}):",
            '    """The tensors that the original forward returns."""',
            f"    results = model.reference_forward({', '.join(arguments)})",
            f"    return ({', '.join(places)},)",
        )

    def _functions(self, words: str) -> Iterator[tuple[str, ...]]:
        """Forward and backward, as functions of tensors."""
        inner = replace(self.guard, names=NameScope({*self._given(), *RESERVED}))
        body = self._body(self.planned, inner)
        yield (
            f"def _fusewright_forward_{words}({', '.join(self._given())}):",
            '    """The results, and what the derivative reads."""',
            *_indented(body.statements),
        )
        for graph, planned in zip(self.joint.backward, self.backward, strict=True):
            yield self._backward(f"_fusewright_backward_{words}", graph.of, planned)

    def _backward(self, name: str, of: Sequence[Leaf], planned: PlannedGraph) -> tuple[str, ...]:
        names = NameScope({*RESERVED})
        sizes = {name: names.fresh(name) for name in self.guard.sizes}
        inputs = [names.fresh(a.parameter) for a in planned.captured.arguments]
        inner = replace(
            self.guard, prelude=(), conditions=(), locals={}, tensors=(), state="", names=names,
            inputs=tuple(inputs), modules={}, table=None, sizes=sizes,
        )  # fmt: skip
        body = self._body(planned, inner)
        nodes = planned.captured.graph.inputs
        known = [
            f"{variable} = {size_source(name, inputs, nodes)}" for name, variable in sizes.items()
        ]
        laid = [
            self._laid(text, leaf)
            for text, leaf, n in zip(inputs, nodes, self._sources(), strict=True)
            if n is None or n.row.kind == "view" or base(n).row.kind == "library"
        ]
        laid = [f"device = {inputs[-1]}.get_device()"] * self.cuda + laid
        which = "the parameters" if len(of) < len(self.joint.leaves) else "all"
        return (
            f"def {name}{_suffix(of, self.joint)}({', '.join(inputs)}):",
            f'    """The gradients of {which}."""',
            *_indented([*known, *laid, *body.statements]),
        )

    def _sources(self) -> list[Node | None]:
        """What leaves each argument of backward; None for gradients that autograd gives."""
        left = self.planned.captured.graph.outputs[self.joint.results :]
        return [*left, *[None] * len(self.joint.differentiable)]

    def _laid(self, text: str, leaf: Node) -> str:
        """A statement: the tensor lies as kernels assume."""
        if leaf.order:
            self.snippets.add(Snippet.WITH_MEMORY_ORDER)
            return f"{text} = {Snippet.WITH_MEMORY_ORDER}({text}, {leaf.order})"
        return f"{text} = {text}.contiguous()"

    def _body(self, planned: PlannedGraph, inner: ForwardGuard) -> ForwardBody:
        kernels = planned.kernels
        workspaces = {b.name: b.launch.workspace for b in kernels if b.launch.workspace}
        captured, plan = planned.captured, planned.plan
        body = forward_body(captured, plan, kernels, self.function_of, inner, workspaces)
        self.snippets |= body.snippets
        return body

    def _steps(self, name: str, words: str) -> tuple[str, ...]:
        """What autograd is told of them."""
        place = {leaf: k for k, leaf in enumerate(self.joint.leaves)}
        backward = [
            f"({tuple(place[leaf] for leaf in graph.of)}, "
            f"_fusewright_backward_{words}{_suffix(graph.of, self.joint)})"
            for graph in reversed(self.joint.backward)
        ]
        leaves = tuple(leaf if isinstance(leaf, int) else None for leaf in self.joint.leaves)
        fields = {
            "own": literal(self.scope.own),
            "forward": f"_fusewright_forward_{words}",
            "results": str(self.joint.results),
            "differentiable": str(self.joint.differentiable),
            "leaves": str(leaves),
            "backward": f"({', '.join(backward)},)",
            "original": f"_fusewright_original_{words}" if self.joint.repeatable else "None",
        }
        pairs = ", ".join(f"{literal(key)}: {text}" for key, text in fields.items())
        return (f"{name} = {{{pairs}}}",)

    def _shown(self) -> list[str]:
        """What the results are called."""
        count = self.joint.results
        return ["result"] if count == 1 else [f"result_{k}" for k in range(count)]


def size_source(free: str, names: Sequence[str], leaves: Sequence[Node]) -> str:
    """A free size as Python text, from a tensor that has it, or a multiple of it. names: of the
    variables that hold the leaves."""
    found = (
        (size.multiple, f"{name}.size({d})")
        for name, leaf in zip(names, leaves, strict=True)
        for d, size in enumerate(leaf.shape)
        if isinstance(size, BatchSize) and size.names == (free,)
    )
    multiple, text = min(found)
    return text if multiple == 1 else f"{text} // {multiple}"


def _words(scope: EmitScope) -> str:
    return f"{scope.own}_{scope.number}" if scope.second else scope.own


def _suffix(of: Sequence[Leaf], joint: JointGraph) -> str:
    return "" if len(of) == len(joint.leaves) else "_parameters"


def _places(tree: Tree, path: str) -> Iterator[tuple[int, str]]:
    """Number and text of each tensor in a value."""
    if isinstance(tree, Slot):
        yield tree.number, path
    elif isinstance(tree, Container):
        for k, inside in enumerate(tree.inside):
            yield from _places(inside, reached(tree, path, k))


def _indented(statements: Sequence[str]) -> list[str]:
    return [f"    {tidy(s)}" for s in statements]
