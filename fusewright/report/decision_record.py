"""Captured + Plan -> the decision record: what became a kernel, what stayed a library call, why.

It also says what this saves, in bytes, operations and predicted time.

Predictions use the machine's bandwidth and rates (targets/machines.py); they are no measurements.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fusewright.codegen.kernel_text import operators
from fusewright.common.dtypes import HALF
from fusewright.frontend.capture import Captured
from fusewright.frontend.float32_precision import allows_tf32
from fusewright.frontend.library_calls import call_flops
from fusewright.frontend.submodules import Left
from fusewright.fusion.planner import Kernel, LibraryStep, Plan, Step, elements, nbytes
from fusewright.fusion.replay import is_replayed
from fusewright.ir.graph import Graph, Node, toposort
from fusewright.ir.library_call import LibraryCall
from fusewright.ir.origin import calls_of_modules
from fusewright.kernels.interface import Description
from fusewright.loopnest.buffer_reuse import BufferReuse
from fusewright.report.amounts import bytes_text, flops_text, time_text
from fusewright.report.kernel_notes import kernel_notes
from fusewright.report.run_report import Savings, StepReport
from fusewright.report.step_facts import (
    Reasons,
    Results,
    is_item,
    reasons_of,
    results_of_calls,
    shapes_of,
)
from fusewright.report.step_origins import lines_of, of_equal_blocks, origins_line
from fusewright.rewrite import diagonal_matmul
from fusewright.rewrite.algebra_rules import ALGEBRA, RULES, SPELLING

KINDS = {rule.name: rule.kind for rule in RULES} | {diagonal_matmul.RULE: ALGEBRA}
REWRITTEN = {ALGEBRA: "left out by algebra (--no-algebra keeps it)", SPELLING: "spelled otherwise"}

SAME = 1e-3  # predictions that are so near to each other tell nothing
PARTS_NOT_TUNED = "  tuned: no, parts of a model have the strategies that are chosen by default"
AT_ONCE = (
    "calls that come back are launched at once, as a CUDA graph, which keeps the memory between "
    "its steps (FUSEWRIGHT_GRAPHS=0 launches them one by one)"
)
AS_IT_WAS = ["  nothing is replaced: the same calls as in the model are all there is"]


def changes_anything(given: Graph, plan: Plan) -> bool:
    """Whether a plan is anything else than the calls that the model makes itself."""
    return bool(plan.kernels) or _calls(given) != _calls(plan.graph) or plan.precision != "eager"


def is_worth_it(captured: Captured, plan: Plan, descriptions: Mapping[str, Description]) -> bool:
    """Whether kernels for a part of a model gain anything: a single call of eager has to be
    predicted to take less time; of several, some are saved memory, and none takes longer."""
    before = _eager_seconds(captured, plan)
    after = sum(r.predicted_s for r in step_reports(plan, descriptions))
    several = sum(bool(c.bytes) for c in captured.calls) > 1
    return after < before * (1 - SAME) or (several and after < before * (1 + SAME))


def _calls(graph: Graph) -> Counter[LibraryCall]:
    """How often what of PyTorch is called, whatever the reason."""
    calls = [n.call for n in toposort(graph.roots) if n.op == "library"]
    return Counter(replace(call, why_library=None) for call in calls)


def step_reports(plan: Plan, descriptions: Mapping[str, Description]) -> tuple[StepReport, ...]:
    """One entry per step: name, kind, operators, bytes moved, operations, predicted time.

    descriptions: of the kernels, by name.
    """
    results = results_of_calls(plan)
    reports = [_report(step, plan.graph, descriptions, results) for step in plan.steps]
    both = zip(plan.steps, reports, strict=True)
    return tuple(_predicted(step, report, plan, descriptions) for step, report in both)


def notes_of_kernels(
    plan: Plan,
    descriptions: Mapping[str, Description],
    source: Sequence[str],
    function_of: Mapping[str, str],
) -> dict[str, tuple[str, ...]]:
    """The comment above each function in an emitted file, by name, about the first kernel that it
    runs. source: the lines of the file of the model's `forward`; none where nobody knows them."""
    found = dict[str, tuple[str, ...]]()
    for step, report in zip(plan.steps, step_reports(plan, descriptions), strict=True):
        if isinstance(step, Kernel) and (name := function_of[step.name]) not in found:
            numbers = lines_of(step, plan.graph)
            lines = [source[n - 1] for n in numbers if n <= len(source)]
            what = amount(report), time_text(report.predicted_s)
            found[name] = kernel_notes(name, *what, lines, descriptions[step.name].why)
    return found


def explain_parts(
    source: str,
    target: str,
    why: str,
    parts: Sequence[tuple[str, Sequence[str], str]],
    left: Sequence[Left],
) -> str:
    """The decision record of a model that could not be taken as a whole.

    why: what stopped it.  parts: the class, the paths and the record of what is new.  left: the
    other submodules that were tried.
    """
    places = sum(len(paths) for _, paths, _ in parts)
    count = f"{places} submodule{'s' * (places != 1)} fused, the rest as it was written"
    lines = [f"{source} on {target}: {count if parts else 'the model as it was'}"]
    for name, paths, record in parts:
        lines += ["", f"  {name} is {', '.join(paths)}:", *_indented(record)]
    lines += ["", *left_lines(why, left)]
    if not parts:
        lines.append("  nothing to gain here: no submodule has kernels that would be faster")
    else:
        lines.append(PARTS_NOT_TUNED)
    return "\n".join(lines) + "\n"


def explain_other(label: str, record: str = "", why: str = "") -> str:
    """What a decision record says of another mode than the model's, or of gradients, under the
    rest. label: what it is for.  record: of what was made for it, or "".  why: why nothing was.
    """
    if why:
        return f"\n  {label}: {why}\n"
    return "\n".join(["", f"  {label}:", *_indented(record), ""])


def left_lines(why: str, left: Sequence[Left]) -> list[str]:
    """What is left of a model as it was written, and why. why: what stopped it as a whole."""
    told = [("the model", why), *((f"{m.path} ({m.kind})", m.why) for m in left)]
    by_reason: dict[str, list[str]] = {}
    for what, reason in told:
        by_reason.setdefault(reason, []).append(what)
    return [f"  left as written: {', '.join(w)}: {reason}" for reason, w in by_reason.items()]


def _indented(record: str) -> list[str]:
    return [f"  {line}" if line else "" for line in record.rstrip().splitlines()[2:]]


def explain(
    captured: Captured,
    plan: Plan,
    layout: BufferReuse,
    descriptions: Mapping[str, Description],
    used_rules: Sequence[str],
    source: str,
    function_of: Mapping[str, str],
) -> str:
    """The decision record as text: steps in the order of the plan, and those of equal blocks, of
    which all is said that is said of the first, with it.

    function_of: the function that runs a kernel, by the kernel's name.
    """
    reports = step_reports(plan, descriptions)
    lines = [f"{source} on {plan.target.name}: {_counts(plan, function_of)}", ""]
    calls, results = calls_of_modules(plan.graph.origins.values()), results_of_calls(plan)
    reasons = reasons_of(plan, layout, descriptions)
    told = (
        (step, (function_of.get(report.name, report.name), text))
        for step, report in zip(plan.steps, reports, strict=True)
        if (text := _step_text(step, report, reasons, results))
    )
    for ((name, text), _), steps in of_equal_blocks(told, plan.graph).items():
        times = f" x {len(steps)}" if len(steps) > 1 else ""
        lines.append(f"  {text.kind}{name}{times}{text.what}")
        whence = origins_line(steps, plan.graph, calls)
        lines += [f"           {line}" for line in (whence, *text.why) if line]
    lines += ["", *_totals(savings(captured, plan, descriptions))]
    lines += _remarks(captured, plan, used_rules)
    return "\n".join(lines) + "\n"


def _counts(plan: Plan, function_of: Mapping[str, str]) -> str:
    kernels, calls = len(plan.kernels), len([s for s in plan.libraries if s.node.op != "getitem"])
    functions = len({function_of[kernel.name] for kernel in plan.kernels})
    run = f" ({functions} different)" if functions < kernels else ""
    fused = f"{kernels} fused kernel{'s' * (kernels != 1)}{run}"
    return f"{fused}, {calls} library call{'s' * (calls != 1)}"


def _report(
    step: Step, graph: Graph, descriptions: Mapping[str, Description], results: Results
) -> StepReport:
    if isinstance(step, LibraryStep):
        n = step.node
        if n.op == "getitem":
            return StepReport("getitem", "library", ("getitem",), 0, 0)
        given = results[id(n)]
        moved = sum(nbytes(a, graph) for a in (*n.args, *given))
        name = n.short_name
        flops = call_flops(n, graph.example) or elements(given[0], graph)
        return StepReport(name, "library", (name,), moved, flops)
    moved = sum(nbytes(n, graph) for n in (*step.leaves, *step.outputs, *step.counters))
    flops = sum(m.row.cost * _domain(m, graph) for m in step.members)
    if step.anchor is None:
        return StepReport(step.name, "fused", step.operators, moved, flops)
    found = descriptions[step.name]
    moved, flops = moved + found.nbytes, flops + found.flops
    return StepReport(step.name, "contraction", step.operators, moved, flops)


def _domain(m: Node, graph: Graph) -> int:
    return elements(m.args[0] if m.row.kind == "reduction" else m, graph)


@dataclass(frozen=True)
class StepText:
    """What is said of a step beside its name and its places. kind: before the name.  what: behind
    it.  why: lines of their own."""

    kind: str
    what: str
    why: tuple[str, ...] = ()


def _step_text(
    step: Step,
    report: StepReport,
    reasons: Reasons,
    results: Results,
) -> StepText | None:
    if is_item(step):
        return None
    if isinstance(step, LibraryStep):
        shapes = ", ".join(shapes_of(step.node, results))
        return StepText("library  ", f" -> {shapes}: {step.reason}; {amount(report)}")
    why = reasons.of_kernel(step)
    return StepText("", f"  {operators(step)}; {amount(report)}", why)


def amount(report: StepReport) -> str:
    """What it moves and calculates."""
    return f"{bytes_text(report.bytes)}, {flops_text(report.flops)}"


def savings(captured: Captured, plan: Plan, descriptions: Mapping[str, Description]) -> Savings:
    """What a call does as it was written, and by the plan. captured: as written.  descriptions: of
    the kernels, by name."""
    before, reports = [c for c in captured.calls if c.bytes], step_reports(plan, descriptions)
    return Savings(
        len(before),
        sum(c.bytes for c in before),
        _eager_seconds(captured, plan),
        sum(r.name != "getitem" for r in reports),
        sum(r.bytes for r in reports),
        sum(r.predicted_s for r in reports),
    )


def _totals(saved: Savings) -> list[str]:
    times = saved.eager_s / max(saved.fused_s, 1e-12)
    return [
        f"  eager:  {saved.eager_steps} steps, {bytes_text(saved.eager_bytes)}, "
        f"predicted {time_text(saved.eager_s)}",
        f"  fused:  {saved.fused_steps} steps, {bytes_text(saved.fused_bytes)}, "
        f"predicted {time_text(saved.fused_s)} ({times:.2f}x)",
    ]


def _eager_seconds(captured: Captured, plan: Plan) -> float:
    calls = (c for c in captured.calls if c.bytes)
    return sum(_seconds(c.bytes, c.flops, _rate(c.name, c.half, plan), plan) for c in calls)


def _predicted(
    step: Step, report: StepReport, plan: Plan, descriptions: Mapping[str, Description]
) -> StepReport:
    if isinstance(step, LibraryStep):  # products of 16 bits are expected to run like a library's
        half = step.node.dtype in HALF
        rate = _rate(report.name, half, plan, ieee=plan.precision == "ieee")
    else:
        rate = descriptions[step.name].flops_per_s
    seconds = _seconds(report.bytes, report.flops, rate, plan)
    return replace(report, predicted_s=seconds)


def _rate(name: str, half: bool, plan: Plan, *, ieee: bool = False) -> float:
    """Operations per second of a library contraction; of anything else they cost nothing.

    ieee: it runs in full float32, whatever PyTorch's flags say.
    """
    if not any(word in name for word in ("linear", "mm", "conv", "matmul", "attention")):
        return math.inf
    rounds = "conv" in name and not ieee and allows_tf32()
    full = plan.target.machine.tf32_flops if rounds else plan.target.machine.matmul_flops
    return plan.target.machine.half_flops if half else full


def _seconds(nbytes_: int, flops: int, rate: float, plan: Plan) -> float:
    """Roofline: the longer of moving the bytes and, for products, the operations."""
    return max(nbytes_ / plan.target.machine.copy_bytes_per_s, flops / rate)


def _remarks(captured: Captured, plan: Plan, used_rules: Sequence[str]) -> list[str]:
    lines = [line for kind in REWRITTEN for line in _rewritten(kind, used_rules)]
    lines = ["", *lines] if lines else []
    if plan.notes:
        lines += ["", *(f"  kept apart: {note}" for note in plan.notes)]
    return [*lines, "", *(f"  {fact}" for fact in (*_facts(captured), *_launches(captured, plan)))]


def header_remarks(captured: Captured, plan: Plan, used_rules: Sequence[str]) -> list[str]:
    """What the header of the emitted file says of all steps."""
    calls = any(step.node.op == "library" for step in plan.libraries)
    how = "run in full float32" if plan.precision == "ieee" else "follow its flags"
    contractions = [f"PyTorch's own contractions {how}"] * calls
    algebra = [line.strip() for line in _rewritten(ALGEBRA, used_rules)]
    return [*contractions, *algebra, *_facts(captured), *_launches(captured, plan)]


def _launches(captured: Captured, plan: Plan) -> list[str]:
    return [AT_ONCE] * is_replayed(captured, plan)


def _rewritten(kind: str, used_rules: Sequence[str]) -> list[str]:
    counted = Counter(name for name in used_rules if KINDS[name] == kind)
    text = ", ".join(f"{name} x{k}" if k > 1 else name for name, k in counted.items())
    return [f"  {REWRITTEN[kind]}: {text}"] * bool(text)


def _facts(captured: Captured) -> list[str]:
    facts = _free_sizes(captured)
    for r in captured.replaced:
        facts.append(f"{r.place} is replaced by each call: read first, and assigned at the end")
    if is_degenerate(captured.graph):
        facts.append("degenerate: the outputs do not depend on the inputs")
    return facts


def _free_sizes(captured: Captured) -> list[str]:
    """Which sizes are free; why others are not that somebody has asked for."""
    asked, free = captured.asked, {size.name: size for size in captured.graph.free}
    if not any(size.text for size in asked):
        bounds = [size.bounds for size in free.values()]
        return [f"the batch size is {f'free ({bounds[0]})' if bounds else 'fixed'}"]
    found = [
        f"{size.text} is free, as `{size.name}` ({free[size.name].bounds})"
        if size.name in free
        else f"{size.text} is fixed: {captured.fixed.get(size, '')}"
        for size in asked
    ]
    return [*found[:-1], found[-1] + "; other sizes are fixed" * bool(free)]


def is_degenerate(graph: Graph) -> bool:
    """Whether no output depends on an input, so that a fast kernel shows nothing."""
    return not any(n.op == "input" for n in toposort(graph.outputs))
