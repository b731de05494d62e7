"""A step of the plan -> what the decision record and the header of the emitted file say of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from fusewright.fusion.planner import Kernel, LibraryStep, Plan, Step
from fusewright.ir.graph import Node, base, shape_text
from fusewright.kernels.interface import Description
from fusewright.loopnest.buffer_reuse import BufferReuse

Results = Mapping[int, Sequence[Node]]  # of calls of PyTorch, by the id of the node


def results_of_calls(plan: Plan) -> Results:
    """What each call of PyTorch gives: itself, or those of its several results that are used."""
    calls = [step.node for step in plan.libraries]
    found: dict[int, list[Node]] = {id(n): [] for n in calls}
    for n in calls:
        if n.op == "getitem":
            found[id(n.args[0])].append(n)
    return {id(n): sorted(found[id(n)], key=lambda m: int(str(m["index"]))) or [n] for n in calls}


def is_item(step: Step) -> bool:
    """Whether it only takes one of several results of a call."""
    return isinstance(step, LibraryStep) and step.node.op == "getitem"


def shapes_of(call: Node, results: Results) -> list[str]:
    """The shapes of what a call of PyTorch gives."""
    return [shape_text(n.shape) for n in results[id(call)]]


@dataclass(frozen=True)
class Reasons:
    """Why kernels are what they are, and how they run.

    factors: the ids of the tensors that contractions read.
    """

    layout: BufferReuse
    descriptions: Mapping[str, Description]
    factors: AbstractSet[int]

    def of_kernel(self, kernel: Kernel) -> tuple[str, ...]:
        """In lines."""
        return (*self._how(kernel), *map(_in_place, self._reused(kernel)))

    def _how(self, kernel: Kernel) -> tuple[str, ...]:
        if {m.op for m in kernel.members} == {"copy"} and self._is_for_contraction(kernel):
            return (
                "for the contraction behind it, whose kernel reads rows that lie evenly, at whole "
                "16 bytes",
            )
        return self.descriptions[kernel.name].why

    def _is_for_contraction(self, kernel: Kernel) -> bool:
        return {id(n) for n in kernel.outputs} <= self.factors

    def _reused(self, kernel: Kernel) -> list[Node]:
        return [leaf for _, leaf in self.layout.in_place[kernel.name]]


def reasons_of(plan: Plan, layout: BufferReuse, descriptions: Mapping[str, Description]) -> Reasons:
    """descriptions: of the kernels, by name."""
    factors = {id(base(n)) for k in plan.kernels if k.anchor for n in k.anchor.args}
    return Reasons(layout, descriptions, factors)


def _in_place(leaf: Node) -> str:
    what = "the model's buffer" if leaf.op == "buffer" else f"{leaf.short_name}'s result"
    return f"in place of {what}: no new memory"
