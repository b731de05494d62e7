"""Planned and printed kernels -> SearchSpace: what a tuner may do otherwise for this model.

Strategies that come to the same text are one. Stages of the pipeline that write PyTorch's calls as
nodes may be left out where that changes the plan: then those calls stay PyTorch's. And the model
may stay as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fusewright.codegen.cuda_source import cuda_source
from fusewright.codegen.kernel_text import KernelText
from fusewright.codegen.shared_kernels import SharedKernels
from fusewright.fusion.planner import Plan
from fusewright.kernels.interface import StrategyContext
from fusewright.kernels.registry import (
    FAMILIES,
    Printed,
    Strategy,
    kernel_text,
    neighbours,
    shared_kernels,
)
from fusewright.targets.target import Target


@dataclass(frozen=True)
class TuneChoice:
    """What is done otherwise than by default. strategies: by function, for all kernels that share
    it.  library: stages of the pipeline that are left out, so that the calls they would write stay
    PyTorch's."""

    strategies: Mapping[str, Strategy] = field(default_factory=dict)
    library: tuple[str, ...] = ()


MODEL = TuneChoice(library=("model",))  # nothing is replaced


@dataclass(frozen=True)
class SearchSpace:
    """defaults, others: the strategies of each function, by its name.  library: the stages.
    model: whether the model may stay as it was."""

    defaults: Mapping[str, Strategy]
    others: Mapping[str, Sequence[Strategy]]
    library: Sequence[str] = ()
    model: bool = False

    @property
    def count(self) -> int:
        return sum(map(len, self.others.values())) + len(self.library) + self.model

    def rounds(self, most: int) -> list[TuneChoice]:
        """Choices that try up to `most` alternatives of every function."""
        longest = min(max(map(len, self.others.values()), default=0), most)
        return [
            TuneChoice({name: some[k] for name, some in self.others.items() if k < len(some)})
            for k in range(longest)
        ]


def choices(
    kernels: Sequence[Printed],
    shared: SharedKernels,
    planned: Plan,
    rules: frozenset[str],
    replan: Callable[[TuneChoice], Plan],
) -> SearchSpace:
    """shared: which of the kernels run which function.  replan: the plan of another choice.
    rules: of `optimize --rules`."""
    context = StrategyContext(planned.target, planned.graph, rules)
    users: dict[str, list[Printed]] = {}
    for kernel in kernels:
        users.setdefault(shared.function_of[kernel[0].name], []).append(kernel)
    machine, others = planned.target, dict[str, list[Strategy]]()
    for name, some in users.items():
        printed, nest, default = some[0]
        seen = {_text(kernel_text(nest, default, printed.in_place), machine)}  # names aside
        for other in neighbours(default, nest, context):
            text = _text(kernel_text(nest, other, printed.in_place), machine)
            if text not in seen and _is_one_function(some, other, machine):
                seen.add(text)
                others.setdefault(name, []).append(other)
    stages = (*(f.stage for f in FAMILIES.values() if f.stage), "target-lowering")
    if machine.language != "cuda" or "no-library" in rules:
        stages = ()
    library = [s for s in stages if _length(replan(TuneChoice(library=(s,)))) > _length(planned)]
    model = not rules & {"no-library", "no-workspace"}  # PyTorch's calls keep neither
    return SearchSpace({name: some[0][2] for name, some in users.items()}, others, library, model)


def _is_one_function(kernels: Sequence[Printed], other: Strategy, machine: Target) -> bool:
    """Whether kernels that share a function share one with another strategy, too."""
    others = [(printed, nest, other) for printed, nest, _ in kernels]
    return len(kernels) == 1 or len(shared_kernels(others, machine.language).functions) == 1


def _text(kernel: KernelText, machine: Target) -> str:
    return cuda_source([kernel], machine) if machine.language == "cuda" else kernel.text


def _length(planned: Plan) -> tuple[int, int]:
    """How many calls of PyTorch, and how many steps; without attention only the latter grow."""
    return len(planned.libraries), len(planned.steps)
