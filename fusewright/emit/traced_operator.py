"""Captured -> whether PyTorch's compiler may call the steps of a `forward` as one operator, and the
Python that an emitted file has for that.

`torch.compile` and `torch.export` cannot look into kernels. What they trace in their place is an
operator of PyTorch's that runs them. While they trace, the guard of `forward` is asked once, by its
own code, for the very module and for stand-ins of the arguments; sizes and order in memory of the
arguments are asked by Python that is traced, so that free sizes stay free. The original is traced,
too, and its results are dropped: nothing of them is left in a graph that is compiled, but whatever
it reads is guarded by PyTorch from then on. So this is for models that only compute: no state that
changes, no random numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from fusewright.common.containers import PLAIN_TYPES, Container, Plain, Slot, Tree
from fusewright.emit.guard import ForwardGuard
from fusewright.emit.python_text import literal, shape_tuple
from fusewright.emit.steps_function import StepsFunction
from fusewright.frontend.capture import Captured
from fusewright.ir.graph import Graph, Node, toposort

# What PyTorch's compiler is not known to trace in a condition.
UNTRACEABLE = ("repr(", "getattr(", "globals(", "vars(")


@dataclass(frozen=True)
class TracedOperator:
    """The steps of a `forward` as what PyTorch's compiler can call.

    steps: these.  sizes: the free ones, with the example's.  takes: the tensors among the
    arguments, by variable: what each is like.  gives: what each is like that the steps return.
    asked: what holds for arguments beside tensors, "" of none.  call: all arguments by name, as a
    function of the tensors; "" where these are all.
    """

    steps: StepsFunction
    sizes: Mapping[str, int]
    takes: Mapping[str, str]
    gives: tuple[str, ...]
    asked: str
    call: str

    def traced(self, mode: str, own: str, original: str) -> list[str]:
        """The lines of `forward` that PyTorch's compiler traces. own: the name of the class, as
        text.  original: the statement that returns the original's results."""
        listed = f"[{', '.join(self.sizes)}], [{', '.join(self.takes)}]"
        called = original.removeprefix("return ")
        given = ["self", own, literal(mode), f"lambda: {called}", listed]
        given += [self.asked] * bool(self.asked)
        lines = [f"made = _fusewright_in_graph({', '.join(given)})"]
        steps = self.steps
        if [steps.packed] == [*steps.made]:
            lines.append(f"return made[0] if made else {called}")
        else:
            lines += ["if not made:", f"    {original}", f"[{', '.join(steps.made)}] = made"]
            lines.append(f"return {steps.packed}")
        return ["if _fusewright_compiling():", *(f"    {line}" for line in lines)]

    def tensors(self, mode: str) -> list[str]:
        """The method that tells what the steps take and return."""
        takes = ", ".join(f"{literal(name)}: {like}" for name, like in self.takes.items())
        sizes = ", ".join(f"{name}={example}" for name, example in self.sizes.items())
        return [
            "@staticmethod",
            f"def fusewright_tensors{mode}({sizes}):",
            '    """The tensors among the arguments, and those that the steps return."""',
            f"    takes = {{{takes}}}",
            f"    return takes, [{', '.join(self.gives)}]",
        ]

    def found(self, own: str) -> list[str]:
        """The method that PyTorch's compiler runs while it traces."""
        call = f", {self.call}" * bool(self.call)
        return [
            "def fusewright_operator(self, mode, *given):",
            '    """For PyTorch\'s compiler: an operator with the steps, and its tensors here."""',
            f"    return _fusewright_operator(self, {own}, mode, given{call})",
            "",
            "fusewright_operator._dynamo_marked_constant = True",
        ]


def traced_operator(
    captured: Captured, guard: ForwardGuard, steps: StepsFunction
) -> TracedOperator | None:
    """The operator with the steps of a `forward`; None where there cannot be one."""
    trees = {a.parameter: a.tree for a in captured.arguments}
    if guard.beside is None or not _only_computes(captured.graph):
        return None
    asked = [text for text in guard.beside if text not in (*guard.sizes.values(), "device >= 0")]
    untraceable = any(word in text for text in asked for word in UNTRACEABLE)
    if untraceable or not all(map(_is_traceable, trees.values())):
        return None
    call = ""
    if not all(isinstance(tree, Slot) for tree in trees.values()):
        named = (
            f"{literal(name)}: {guard.containers.written(tree, guard.inputs, guard.sizes)}"
            for name, tree in trees.items()
        )
        call = f"lambda {', '.join(guard.inputs)}: {{{', '.join(named)}}}"
    inputs = zip(guard.inputs, captured.graph.inputs, strict=True)
    sizes = {guard.sizes[size.name]: size.example for size in captured.graph.free}
    return TracedOperator(
        steps,
        MappingProxyType(sizes),
        MappingProxyType({name: _like(n, guard.sizes) for name, n in inputs}),
        tuple(_like(n, guard.sizes) for n in captured.graph.made),
        " and ".join(asked),
        call,
    )


def _only_computes(graph: Graph) -> bool:
    """Whether it changes nothing and draws no random numbers."""
    calls = (n.call for n in toposort(graph.roots) if n.op == "library")
    return not (graph.updates or graph.effects or any(call.drops_out for call in calls))


def _is_traceable(tree: Tree) -> bool:
    """Whether an argument is a tensor, or plain, or a builtin container of such."""
    if isinstance(tree, Container):
        return tree.type in (tuple, list, dict) and all(map(_is_traceable, tree.inside))
    plain = isinstance(tree, Plain) and isinstance(tree.value, (*PLAIN_TYPES, torch.dtype))
    return plain or isinstance(tree, Slot)


def _like(n: Node, sizes: Mapping[str, str]) -> str:
    order = f", {n.order}" if n.order else ""
    return f"({shape_tuple(n.shape, sizes)}, {n.dtype}{order})"
