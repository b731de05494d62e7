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
from fusewright.fusion.planner import Plan
from fusewright.kernels.interface import StrategyContext
from fusewright.kernels.registry import FAMILIES, Strategy, kernel_text, neighbours
from fusewright.loopnest.buffer_reuse import BufferReuse
from fusewright.loopnest.nest import Nest
from fusewright.targets.target import Target

Printed = tuple[KernelText, Nest, Strategy]


@dataclass(frozen=True)
class TuneChoice:
    """What is done otherwise than by default. strategies: by kernel.  library: stages of the
    pipeline that are left out, so that the calls they would write stay PyTorch's."""

    strategies: Mapping[str, Strategy] = field(default_factory=dict)
    library: tuple[str, ...] = ()


MODEL = TuneChoice(library=("model",))  # nothing is replaced


@dataclass(frozen=True)
class SearchSpace:
    """defaults, others: the strategies of each kernel, by its name.  library: the stages.
    model: whether the model may stay as it was."""

    defaults: Mapping[str, Strategy]
    others: Mapping[str, Sequence[Strategy]]
    library: Sequence[str] = ()
    model: bool = False

    @property
    def count(self) -> int:
        return sum(map(len, self.others.values())) + len(self.library) + self.model

    def rounds(self, most: int) -> list[TuneChoice]:
        """Choices that try up to `most` alternatives of every kernel."""
        longest = min(max(map(len, self.others.values()), default=0), most)
        return [
            TuneChoice({name: some[k] for name, some in self.others.items() if k < len(some)})
            for k in range(longest)
        ]


def choices(
    kernels: Sequence[Printed],
    layout: BufferReuse,
    planned: Plan,
    rules: frozenset[str],
    replan: Callable[[TuneChoice], Plan],
) -> SearchSpace:
    """replan: the plan of another choice.  rules: of `optimize --rules`."""
    context = StrategyContext(planned.target, planned.graph, rules)
    machine, others = planned.target, dict[str, list[Strategy]]()
    for printed, nest, default in kernels:
        in_place = layout.in_place[printed.name]
        seen = {_text(kernel_text(nest, default, in_place), machine)}  # names aside
        for other in neighbours(default, nest, context):
            text = _text(kernel_text(nest, other, in_place), machine)
            if text not in seen:
                seen.add(text)
                others.setdefault(printed.name, []).append(other)
    stages = (*(f.stage for f in FAMILIES.values() if f.stage), "target-lowering")
    if machine.language != "cuda" or "no-library" in rules:
        stages = ()
    library = [s for s in stages if _length(replan(TuneChoice(library=(s,)))) > _length(planned)]
    model = not rules & {"no-library", "no-workspace"}  # PyTorch's calls keep neither
    return SearchSpace({b.name: s for b, _, s in kernels}, others, library, model)


def _text(kernel: KernelText, machine: Target) -> str:
    return cuda_source([kernel], machine) if machine.language == "cuda" else kernel.text


def _length(planned: Plan) -> tuple[int, int]:
    """How many calls of PyTorch, and how many steps; without attention only the latter grow."""
    return len(planned.libraries), len(planned.steps)
