"""Plan -> the rows of the table at the top of an emitted file, in the order of the calls.

Steps that differ in nothing but the numbers of their modules, as those of equal blocks do, are one
row, where the first of them runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from fusewright.codegen.kernel_text import KernelText, operators_and_shapes
from fusewright.emit.header import NumericClass, StepRow
from fusewright.fusion.planner import Kernel, LibraryStep, Plan, Step
from fusewright.ir.origin import calls_of_modules
from fusewright.kernels.interface import Description
from fusewright.loopnest.buffer_reuse import BufferReuse
from fusewright.report.step_facts import is_item, reasons_of, results_of_calls, shapes_of
from fusewright.report.step_origins import any_number, of_equal_blocks, places_of

PYTORCHS = NumericClass("PyTorch's")


def step_rows(
    plan: Plan,
    layout: BufferReuse,
    texts: Sequence[KernelText],
    descriptions: Mapping[str, Description],
    function_of: Mapping[str, str],
) -> tuple[tuple[StepRow, tuple[Step, ...]], ...]:
    """Each row, and the steps that it tells of.

    descriptions: of the kernels, by name.  function_of: of each kernel the function that runs it,
    which equal ones share.
    """
    reasons, results = reasons_of(plan, layout, descriptions), results_of_calls(plan)
    printed = {text.name: text for text in texts}

    def row(step: Step) -> StepRow:
        if isinstance(step, LibraryStep):
            shapes = tuple(shapes_of(step.node, results))
            return StepRow("", (), (step.node.short_name,), shapes, PYTORCHS, (step.reason,))
        names, shapes = map(tuple, operators_and_shapes(step))
        numeric = _numeric_class(step, printed[step.name], descriptions)
        why = dict.fromkeys(line.rstrip(";") for line in reasons.of_kernel(step))
        return StepRow(function_of[step.name], (), names, shapes, numeric, tuple(why))

    rows = {id(step): row(step) for step in plan.steps if not is_item(step)}
    told = ((s, _of_any_block(rows[id(s)])) for s in plan.steps if id(s) in rows)
    calls = calls_of_modules(plan.graph.origins.values())
    return tuple(
        (
            replace(
                _common_row([rows[id(step)] for step in steps]),
                places=places_of(steps, plan.graph, calls),
                times=len(steps),
            ),
            tuple(steps),
        )
        for steps in of_equal_blocks(told, plan.graph).values()
    )


def _common_row(rows: Sequence[StepRow]) -> StepRow:
    """The row of all, if their reasons are the same, or what these are of any block."""
    differ = any(row.reasons != rows[0].reasons for row in rows)
    return _of_any_block(rows[0]) if differ else rows[0]


def _of_any_block(row: StepRow) -> StepRow:
    return replace(row, reasons=tuple(map(any_number, row.reasons)))


def _numeric_class(
    kernel: Kernel, text: KernelText, descriptions: Mapping[str, Description]
) -> NumericClass:
    """In which precision a kernel computes."""
    types = dict.fromkeys(p.node.dtype for p in text.pointers if p.node.dtype.is_floating_point)
    narrow = [str(t).removeprefix("torch.") for t in types if t.itemsize < 4]
    kind = "float64" if torch.float64 in types else "float32" if types else "integers"
    stored = f", {' and '.join(narrow)} only in memory" if narrow else ""
    if kernel.anchor is None:
        return NumericClass(f"{kind}{stored}")
    own = descriptions[text.name].numeric
    name, _, meaning = own.partition(": ")
    return NumericClass(f"{kind}{stored}, {kernel.anchor.op} as {name}", own if meaning else "")
