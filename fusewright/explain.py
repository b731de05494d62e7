"""Captured + Plan -> the decision record: what became a kernel, what stayed a library call, why.

It also says what this saves, in bytes, operations and predicted time.

Predictions use the target's bandwidth and product rate (target.py); they are not measurements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fusewright.capture import Captured
from fusewright.ir import Graph, Node, shape_text, toposort
from fusewright.library import product_flops
from fusewright.plan import Kernel, Library, Plan, Step, elements, nbytes
from fusewright.report import KernelReport
from fusewright.storage import Storage


def kernel_reports(plan: Plan) -> tuple[KernelReport, ...]:
    """One entry per step: name, kind, operators, bytes moved, floating-point operations."""
    return tuple(_report(step, plan.graph) for step in plan.steps)


def explain(
    captured: Captured, plan: Plan, layout: Storage, used_rules: Sequence[str], source: str
) -> str:
    """The decision record as text."""
    reports = kernel_reports(plan)
    lines = [f"{source} on {plan.target.name}: {_counts(plan)}", ""]
    for step, report in zip(plan.steps, reports, strict=True):
        lines += _step_lines(step, report, layout)
    lines += ["", *_totals(captured, plan, reports)]
    lines += _remarks(captured, plan, used_rules)
    return "\n".join(lines) + "\n"


def _counts(plan: Plan) -> str:
    kernels, calls = len(plan.kernels), len([s for s in plan.libraries if s.node.op != "item"])
    return f"{kernels} fused kernel{'s' * (kernels != 1)}, {calls} library call{'s' * (calls != 1)}"


def _report(step: Step, graph: Graph) -> KernelReport:
    if isinstance(step, Library):
        n = step.node
        moved = sum(nbytes(a, graph) for a in n.args) + nbytes(n, graph)
        if n.op == "item":
            return KernelReport("item", "library", ("item",), 0, 0)
        name = _name(n)
        flops = product_flops(f"aten.{name}", [a.shape for a in n.args], n.shape, graph.batch)
        return KernelReport(name, "library", (name,), moved, flops or elements(n, graph))
    moved = sum(nbytes(n, graph) for n in (*step.leaves, *step.outputs))
    flops = sum(m.row.cost * _domain(m, graph) for m in step.members)
    return KernelReport(step.name, "fused", tuple(m.op for m in step.members), moved, flops)


def _domain(m: Node, graph: Graph) -> int:
    return elements(m.args[0] if m.row.kind == "fold" else m, graph)


def _name(n: Node) -> str:
    return str(n["name"]).removeprefix("aten.") if n.op == "library" else n.op


def _step_lines(step: Step, report: KernelReport, layout: Storage) -> list[str]:
    if isinstance(step, Library):
        if step.node.op == "item":
            return []
        shape = shape_text(step.node.shape)
        return [f"  library  {report.name} -> {shape}: {step.reason}; {_amount(report)}"]
    names = Counter(report.operators)
    operators = ", ".join(f"{op} x{k}" if k > 1 else op for op, k in names.items())
    shapes = " and ".join(shape_text(n.shape) for n in step.outputs)
    lines = [
        f"  {step.name}  {operators} -> {shapes}; {_amount(report)}",
        f"           {_why(step)}",
    ]
    for _, leaf in layout.in_place[step.name]:
        what = "the model's buffer" if leaf.op == "buffer" else f"{_name(leaf)}'s result"
        lines.append(f"           in place of {what}: no new memory")
    return lines


def _why(kernel: Kernel) -> str:
    if not kernel.folds:
        return "one pass: each element depends on the same element of its operands"
    folds = ", ".join(dict.fromkeys(f.op for f in kernel.folds))
    return f"one row at a time: {folds} of a row, then the row again while it is still near"


def _amount(report: KernelReport) -> str:
    return f"{_bytes(report.bytes)}, {_flops(report.flops)}"


def _totals(captured: Captured, plan: Plan, reports: Sequence[KernelReport]) -> list[str]:
    before = [c for c in captured.calls if c.bytes]
    old_bytes, new_bytes = sum(c.bytes for c in before), sum(r.bytes for r in reports)
    old_time = sum(_seconds(c.bytes, c.flops, c.name, plan) for c in before)
    new_time = sum(_seconds(r.bytes, r.flops, f"aten.{r.name}", plan) for r in reports)
    return [
        f"  eager:  {len(before)} steps, {_bytes(old_bytes)}, predicted {_time(old_time)}",
        f"  fused:  {len(reports)} steps, {_bytes(new_bytes)}, predicted {_time(new_time)}"
        f" ({old_time / max(new_time, 1e-12):.2f}x)",
    ]


def _seconds(nbytes_: int, flops: int, name: str, plan: Plan) -> float:
    """Roofline: the longer of moving the bytes and, for products, the library's rate."""
    moving = nbytes_ / plan.target.copy_bytes_per_s
    product = any(word in name for word in ("linear", "mm", "conv", "matmul"))
    return max(moving, flops / plan.target.matmul_flops if product else 0.0)


def _remarks(captured: Captured, plan: Plan, used_rules: Sequence[str]) -> list[str]:
    lines: list[str] = []
    if used_rules:
        counted = Counter(used_rules)
        text = ", ".join(f"{name} x{k}" if k > 1 else name for name, k in counted.items())
        lines += ["", f"  rewritten: {text}"]
    if plan.notes:
        lines += ["", *(f"  kept apart: {note}" for note in plan.notes)]
    free = captured.graph.batch
    lines += ["", f"  the batch size is {'free (2 or more)' if free else 'fixed'}"]
    if not any(n.op == "input" for n in toposort(captured.graph.outputs)):
        lines.append("  degenerate: the outputs do not depend on the inputs")
    return lines


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"


def _flops(count: int) -> str:
    for unit, size in (("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} FLOP"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
