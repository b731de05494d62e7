"""Planned and printed kernels -> SearchSpace: what a tuner may do otherwise for this model.

Schedules that come to the same text are one. Stages of the pipeline that write PyTorch's calls as
nodes may be left out where that changes the plan: then those calls stay PyTorch's. And the model
may stay as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fusewright.codegen.body import body
from fusewright.codegen.cuda_source import cuda_source
from fusewright.codegen.kernel_text import KernelText
from fusewright.fusion.planner import Plan
from fusewright.kernels.registry import FAMILIES
from fusewright.kernels.schedule import Schedule, TuneChoice, neighbours
from fusewright.loopnest.buffer_reuse import BufferReuse
from fusewright.loopnest.nest import Nest
from fusewright.targets.target import Target

STAGES = (*(f.stage for f in FAMILIES if f.stage), "late")
MODEL = TuneChoice(library=("model",))  # nothing is replaced
Printed = tuple[KernelText, Nest, Schedule]


@dataclass(frozen=True)
class SearchSpace:
    """defaults, others: the schedules of each kernel, by its name.  library: the stages.
    model: whether the model may stay as it was."""

    defaults: Mapping[str, Schedule]
    others: Mapping[str, Sequence[Schedule]]
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
    machine, others = planned.target, dict[str, list[Schedule]]()
    for printed, nest, default in kernels:
        in_place = layout.in_place[printed.name]
        seen = {_text((printed, nest, default), machine)}
        for other in neighbours(default, nest, machine, planned.graph, rules):
            text = _text((body(nest, other, in_place), nest, other), machine)
            if text not in seen:
                seen.add(text)
                others.setdefault(printed.name, []).append(other)
    stages = STAGES if machine.language == "cuda" and "no-library" not in rules else ()
    library = [s for s in stages if _length(replan(TuneChoice(library=(s,)))) > _length(planned)]
    model = not rules & {"no-library", "no-workspace"}  # PyTorch's calls keep neither
    return SearchSpace({b.name: s for b, _, s in kernels}, others, library, model)


def _text(kernel: Printed, machine: Target) -> str:
    return cuda_source([kernel], machine) if machine.language == "cuda" else kernel[0].text


def _length(planned: Plan) -> tuple[int, int]:
    """How many calls of PyTorch, and how many steps; without attention only the latter grow."""
    return len(planned.libraries), len(planned.steps)
