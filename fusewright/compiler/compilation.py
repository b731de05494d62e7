"""A model on one target -> everything decided and printed for it: capture, rewrite, plan, print.

Nothing is written to a file, built or run here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch import nn

from fusewright.codegen.kernel_symbols import CXX_NAMES
from fusewright.codegen.kernel_text import KernelText
from fusewright.codegen.shared_kernels import NOTHING_SHARED, SharedKernels
from fusewright.codegen.value_names import ValueNames
from fusewright.compiler.passes import run_passes
from fusewright.emit.header import ForwardNotes, StepRow
from fusewright.errors import CaptureFailed
from fusewright.frontend.asked_size import AskedSize
from fusewright.frontend.call_origins import source_lines
from fusewright.frontend.capture import Captured, argument_names, capture
from fusewright.fusion.batch_counters import move_counters_into_kernels
from fusewright.fusion.kernel_names import NameRules
from fusewright.fusion.planner import Plan, Step, plan
from fusewright.fusion.value_words import value_words
from fusewright.ir.graph import toposort
from fusewright.kernels.interface import Condition, Description, MatchContext, StrategyContext
from fusewright.kernels.registry import (
    ANCHORS,
    Printed,
    Strategy,
    default_strategy,
    family_of,
    kernel_text,
    shared_kernels,
)
from fusewright.loopnest.buffer_reuse import BufferReuse, buffer_reuse
from fusewright.report.decision_record import (
    AS_IT_WAS,
    changes_anything,
    explain,
    header_remarks,
    notes_of_kernels,
    savings,
)
from fusewright.report.model_graph import model_graph
from fusewright.report.run_report import FusedForward
from fusewright.report.step_rows import step_rows
from fusewright.rewrite.algebra_rules import allowed
from fusewright.rewrite.diagonal_matmul import diagonal
from fusewright.rewrite.simplify import rewrite
from fusewright.targets.detect import own_gpu
from fusewright.targets.target import Target
from fusewright.tune.cache import TuneResult
from fusewright.tune.search_space import TuneChoice
from fusewright.tune.tuner import DEFAULT

Comment = tuple[str, ...]  # in lines
NO_RULES: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Compilation:
    """Everything decided and printed for one model on one target.

    given: the model as captured.  used: the names of the rewrites.  tuned: what came of tuning.
    replaced: whether `forward` is a new one; if not, it is the model's own.  shared: which steps
    run which function.
    """

    given: Captured
    captured: Captured
    plan: Plan
    layout: BufferReuse
    kernels: tuple[Printed, ...]
    used: tuple[str, ...]
    tuned: TuneResult | None = None
    replaced: bool = True
    shared: SharedKernels = NOTHING_SHARED

    @property
    def descriptions(self) -> Mapping[str, Description]:
        """What reports say of the kernels, by name."""
        context = StrategyContext(self.plan.target, self.plan.graph)
        return {
            text.name: family_of(nest.kernel).describe(nest.kernel, strategy, context)
            for text, nest, strategy in self.kernels
        }

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What the emitted guard asks for kernels, in the order in which the graph has anchors."""
        owners = {id(k.anchor): k for k in self.plan.kernels if k.anchor}
        found = (owners[id(n)] for n in toposort(self.plan.graph.roots) if id(n) in owners)
        return tuple(asked for kernel in found for asked in family_of(kernel).conditions(kernel))

    @cached_property
    def names(self) -> ValueNames:
        """What kernels call their values: as the model does."""
        return ValueNames(value_words(self.captured))

    @property
    def texts(self) -> tuple[KernelText, ...]:
        """The kernels as text."""
        return tuple(text for text, _, _ in self.kernels)

    def comments(self, module: nn.Module, shared: SharedKernels) -> dict[str, Comment]:
        """What stands above a function in an emitted file, of the first kernel that it runs, by
        name. module: of which the kernels are.  shared: of the file."""
        lines = source_lines(module)
        return notes_of_kernels(self.plan, self.descriptions, lines, shared.function_of)

    @property
    def tuning(self) -> Mapping[str, object] | None:
        """What the report says of tuning."""
        return self.tuned.facts if self.tuned else None

    @property
    def notes(self) -> ForwardNotes:
        """What the header of the emitted file says."""
        return self.notes_of(self.shared.function_of)

    def notes_of(self, function_of: Mapping[str, str]) -> ForwardNotes:
        """The same. function_of: of the emitted file, where this is a part of it."""
        remarks = header_remarks(self.captured, self.plan, self.used)
        tuned = (line.strip() for line in self.tuned.lines) if self.tuned else ()
        rows = tuple(row for row, _ in self._rows(function_of))
        return ForwardNotes(rows, (*remarks, *tuned))

    def _rows(self, function_of: Mapping[str, str]) -> tuple[tuple[StepRow, tuple[Step, ...]], ...]:
        return step_rows(self.plan, self.layout, self.texts, self.descriptions, function_of)

    def told(self, label: str, function_of: Mapping[str, str]) -> FusedForward:
        """The new `forward`, for a report. label: what it is for.  function_of: as `notes_of`."""
        saved = savings(self.captured, self.plan, self.descriptions)
        rows = self._rows(function_of)
        told = [steps for _, steps in rows]
        names = dict(argument_names(self.captured))
        inputs = [names.get(k, n.op) for k, n in enumerate(self.plan.graph.inputs)]
        graph = model_graph(self.plan, self.descriptions, told, inputs)
        return FusedForward(label, tuple(row for row, _ in rows), saved, graph)

    def record(self, source: str, function_of: Mapping[str, str] | None = None) -> str:
        """The decision record. function_of: of the emitted file, where this is a part of it."""
        text = f"{source} on {self.plan.target.name}: the model as it was\n"
        if self.plan.steps:
            text = explain(
                self.captured, self.plan, self.layout, self.descriptions, self.used, source,
                function_of or self.shared.function_of,
            )  # fmt: skip
        lines = ["", *self.tuned.lines] if self.tuned else [] if self.replaced else AS_IT_WAS
        return text + "".join(f"{line}\n" for line in lines)


def make(
    module: nn.Module,
    inputs: Sequence[object],
    machine: Target,
    precision: str = "eager",
    rules: frozenset[str] = NO_RULES,
    names: NameRules = CXX_NAMES,
    asked: Sequence[AskedSize] | None = None,
) -> Compilation:
    """Capture, simplify, plan and print the kernels of `module` for `machine`.

    rules: what the strategies avoid where they can; `optimize_file` refuses what breaks them still.
    names: what those of kernels have to keep apart from.  asked: the sizes that are to be
    free; None: the leading one.
    """
    captured = capture(module, inputs, machine.device, asked)
    if captured.placeless and machine.device != "cpu":
        raise CaptureFailed(
            f"{captured.placeless}: {type(module).__name__}.forward returns a tensor that it makes "
            "without naming a device, or on the CPU by name, so that on a GPU it does not lie "
            "where the inputs do. Write device=x.device there, where x is an input."
        )
    return design(captured, machine, precision, rules, names=names)


def design(
    given: Captured,
    machine: Target,
    precision: str = "eager",
    rules: frozenset[str] = NO_RULES,
    choice: TuneChoice = DEFAULT,
    names: NameRules = CXX_NAMES,
) -> Compilation:
    """`make` for a model that is captured already, with what a tuner has chosen.

    names: what those of kernels have to keep apart from.
    """
    graph, used = rewrite(given.graph, allowed(rules))
    graph, more = diagonal(graph, rules)
    used = (*used, *more)
    context = MatchContext(machine, precision, rules, is_here=machine is own_gpu())
    graph = run_passes(graph, context, choice.library)
    captured = replace(given, graph=graph)
    planned = move_counters_into_kernels(plan(graph, machine, ANCHORS, precision, names))
    layout = buffer_reuse(planned)
    made = Compilation(
        given, captured, planned, layout, (), used, replaced=changes_anything(given.graph, planned)
    )
    return printed_as(made, rules, choice)


def printed_as(made: Compilation, rules: frozenset[str], choice: TuneChoice) -> Compilation:
    """The same plan with every kernel as chosen for its function, or by default."""
    context = StrategyContext(made.plan.target, made.captured.graph, rules)
    language, names = made.plan.target.language, made.names
    nests = [made.layout.nests[kernel.name] for kernel in made.plan.kernels]

    def printed(strategies: Sequence[Strategy]) -> tuple[Printed, ...]:
        in_place = made.layout.in_place
        return tuple(
            (kernel_text(nest, strategy, in_place[nest.kernel.name], names), nest, strategy)
            for nest, strategy in zip(nests, strategies, strict=True)
        )

    kernels = printed([default_strategy(nest, context) for nest in nests])
    shared = shared_kernels(kernels, language, names)
    if choice.strategies:
        groups = shared.function_of
        chosen = [choice.strategies.get(groups[text.name], default) for text, _, default in kernels]
        kernels = printed(chosen)
        shared = shared_kernels(kernels, language, names, groups)
    return replace(made, kernels=kernels, shared=shared)
