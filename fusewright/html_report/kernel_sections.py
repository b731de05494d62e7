"""New forwards, as the report has them, and their emitted file -> the graph by kernel, each kernel,
what stays PyTorch's, and the roofline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from markupsafe import Markup

from fusewright.html_report.coloured_text import coloured, numbered
from fusewright.html_report.graph_drawing import drawing
from fusewright.html_report.page import Cell, Column, KernelBlock, Section, Table, hue_of
from fusewright.html_report.roofline_plot import RooflinePoint, roofline_plot
from fusewright.report.amounts import bytes_text, counted, flops_text, time_text
from fusewright.report.kernel_notes import EmittedKernel, kernels_in, shown_line
from fusewright.targets.machines import Machine

Forward = Mapping[str, Any]  # a `FusedForward`, as the report has it
MICRO = 1e-6
NO_GRAPH = (
    "Steps and graph are not known here: this command was given files, and planned no model. "
    "`fusewright explain --html` does."
)
UNCHANGED = "Nothing is new: the model stays as it was, for the reasons in the decision record."
NO_KERNELS = "There is no kernel: PyTorch computes all of it."
NO_CODE = "Its text is not here: the emitted file was not at hand, or is another one."
MEASURED = "The times of steps are measured where it says so, and predicted elsewhere."
PREDICTED = (
    "The times of steps are predicted from the bandwidth and the rates of the target; they are no "
    "measurement."
)
ON_THE_ROOFS = "What is predicted lies on the roofs, which is how it is predicted."
LIBRARY = (
    Column("call"), Column("from"), Column("result"), Column("bytes", number=True),
    Column("operations", number=True), Column("time", number=True), Column("why"),
)  # fmt: skip


@dataclass(frozen=True)
class KernelsKnown:
    """What is known of all steps.

    forwards: new ones.  emitted: the text of their file, or "".  source: that of the problem, or
    "".  measured: microseconds of a call of a step, by the name of its function in the emitted
    file, or of what it calls.  planned: whether a model was planned at all.  prefix: of anchors, so
    that they are nobody else's.
    """

    forwards: Sequence[Forward]
    emitted: str = ""
    source: str = ""
    measured: Mapping[str, float] = field(default_factory=dict)
    planned: bool = True
    prefix: str = ""

    @property
    def why_nothing(self) -> str:
        """Where there is no new forward."""
        return UNCHANGED if self.planned else NO_GRAPH

    @cached_property
    def kernels(self) -> Mapping[str, EmittedKernel]:
        """Of the emitted file, by name; none where it is not ours."""
        return {kernel.name: kernel for kernel in kernels_in(self.emitted)}

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """Of each kernel, by the name of its function, from 1 on."""
        rows = (row["name"] for forward in self.forwards for row in forward["rows"])
        named = dict.fromkeys([*filter(None, rows), *self.kernels])
        return {name: number for number, name in enumerate(named, 1)}

    def anchor(self, number: int) -> str:
        return f"{self.prefix}kernel-{number}"

    def number_of(self, row: Mapping[str, Any]) -> int:
        """0 of a call of PyTorch's."""
        return self.numbers[row["name"]] if row["name"] else 0

    def seconds(self, row: Mapping[str, Any], step: Mapping[str, Any]) -> tuple[float, bool]:
        """How long a step takes, and whether that is measured."""
        found = self.measured.get(row["name"] or step["name"])
        return (float(step["predicted_s"]), False) if found is None else (found * MICRO, True)


def graph_sections(known: KernelsKnown) -> Iterator[Section]:
    """One for each new forward, the first of them unfolded."""
    if not known.forwards:
        yield Section("The model, by kernel", (known.why_nothing,))
    anchors = {number: f"#{known.anchor(number)}" for number in known.numbers.values()}
    for k, forward in enumerate(known.forwards):
        label = f", {forward['label']}" if forward["label"] else ""
        rows, graph = forward["rows"], forward["graph"]
        number_of = [known.number_of(rows[row]) for row in graph["row_of"]]
        drawn = drawing(graph, number_of, anchors, f"The graph of the model{label}")
        saved = forward["savings"]
        moved = (
            f"Eager runs {counted(saved['eager_steps'], 'step')} and moves "
            f"{bytes_text(saved['eager_bytes'])} a call; this file runs "
            f"{counted(saved['fused_steps'], 'step')} and moves "
            f"{bytes_text(saved['fused_bytes'])}. Boxes of one colour and number share a kernel; "
            "those marked Py stay calls of PyTorch's."
        )
        yield Section(f"The model, by kernel{label}", (moved,), drawn, folded=k > 0)


def steps_of(forward: Forward) -> Iterator[tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]]:
    """Each row, and the steps that it tells of."""
    graph = forward["graph"]
    for k, row in enumerate(forward["rows"]):
        both = zip(graph["steps"], graph["row_of"], strict=True)
        yield row, [step for step, place in both if place == k]


# ---- kernels -------------------------------------------------------------------------------------


def kernel_section(known: KernelsKnown) -> Section:
    """Each kernel, with the lines of the model beside its text."""
    blocks = tuple(_blocks(known))
    timed = MEASURED if known.measured else PREDICTED
    return Section("Kernels", (timed,) if blocks else (NO_KERNELS,), kernels=blocks)


def _blocks(known: KernelsKnown) -> Iterator[KernelBlock]:
    told = set[str]()
    emitted, numbers = known.kernels, known.numbers
    for forward in known.forwards:
        for row, steps in steps_of(forward):
            name = row["name"]
            if not name or name in told:
                continue
            told.add(name)
            facts = tuple(_facts(known, row, steps))
            lines = sorted(_lines(forward, row))
            source = _source(known.source, lines, emitted.get(name))
            code = emitted[name].text if name in emitted else NO_CODE
            yield _block(known, numbers[name], name, ", ".join(row["places"]), facts, source, code)
    for name, kernel in emitted.items():
        if name not in told:
            facts = tuple(_emitted_facts(kernel, known.measured.get(name)))
            source = _source("", (), kernel)
            yield _block(known, numbers[name], name, "", facts, source, kernel.text)


def _block(
    known: KernelsKnown, number: int, name: str, places: str,
    facts: tuple[tuple[str, str], ...], source: Markup, code: str, /,
) -> KernelBlock:  # fmt: skip
    text = coloured(code, "c++") if code != NO_CODE else Markup(code)
    hue = hue_of(number)
    return KernelBlock(known.anchor(number), hue, str(number), name, places, facts, source, text)


def _facts(
    known: KernelsKnown, row: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    step = steps[0]
    yield "computes", f"{', '.join(row['operators'])} → {', '.join(row['shapes'])}"
    yield "bytes", bytes_text(step["bytes"])
    yield "operations", _operations(step)
    seconds, measured = known.seconds(row, step)
    yield "time", f"{time_text(seconds)}, {'measured' if measured else 'predicted'}"
    if len(steps) > 1:
        yield "runs", f"{len(steps)} times a call"
    yield "numeric class", row["numeric"]["name"]
    if row["reasons"]:
        yield "how", "; ".join(row["reasons"])


def _operations(step: Mapping[str, Any]) -> str:
    moved = step["bytes"]
    each = f", {step['flops'] / moved:.3g} for each byte" if moved else ""
    return f"{flops_text(step['flops'])}{each}"


def _emitted_facts(kernel: EmittedKernel, us: float | None) -> Iterator[tuple[str, str]]:
    """As its own file says. us: measured microseconds, where there are any."""
    yield "computes", kernel.computes.replace("->", "→")
    yield "bytes", kernel.bytes
    yield "operations", kernel.flops
    time = f"{kernel.predicted}, predicted"
    yield "time", time if us is None else f"{time_text(us * MICRO)}, measured; {time}"
    if kernel.strategy:
        yield "how", "; ".join(kernel.strategy)


def _lines(forward: Forward, row: Mapping[str, Any]) -> set[int]:
    """The lines of the model's file that ask for a row."""
    graph = forward["graph"]
    place = forward["rows"].index(row)
    own = {k for k, found in enumerate(graph["row_of"]) if found == place}
    return {node["line"] for node in graph["nodes"] if node["step"] in own and node["line"]}


def _source(text: str, lines: Sequence[int], kernel: EmittedKernel | None) -> Markup:
    """Lines of the model: with their numbers where the problem file has just these; else as the
    emitted file says."""
    every = text.splitlines()
    found = [(number, every[number - 1].strip()) for number in lines if number <= len(every)]
    said = kernel.lines if kernel is not None else ()
    stands = {shown_line(line) for _, line in found}
    if found and all(line in stands or line.endswith((" ...", " more lines")) for line in said):
        return numbered(found)
    return numbered((None, line) for line in said)


# ---- what stays PyTorch's ------------------------------------------------------------------------


def library_section(known: KernelsKnown) -> Section:
    """Each call, and why there is no kernel for it."""
    rows = tuple(
        _library_row(known, row, steps)
        for forward in known.forwards
        for row, steps in steps_of(forward)
        if not row["name"]
    )
    title = "What stays PyTorch's"
    if not known.forwards:
        return Section(title, (known.why_nothing,))
    if not rows:
        return Section(title, ("Nothing: kernels compute all of it.",))
    unique = tuple(dict.fromkeys(rows))
    return Section(title, table=Table(LIBRARY, unique, sortable=True))


def _library_row(
    known: KernelsKnown, row: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]
) -> tuple[Cell, ...]:
    step = steps[0]
    seconds, measured = known.seconds(row, step)
    times = f" x{len(steps)}" if len(steps) > 1 else ""
    how = "measured" if measured else "predicted"
    return (
        Cell(f"{', '.join(row['operators'])}{times}"),
        Cell(", ".join(row["places"])),
        Cell(", ".join(row["shapes"])),
        Cell(bytes_text(step["bytes"]), str(step["bytes"])),
        Cell(flops_text(step["flops"]), str(step["flops"])),
        Cell(f"{time_text(seconds)} {how}", str(seconds)),
        Cell("; ".join(row["reasons"])),
    )


# ---- the roofline --------------------------------------------------------------------------------


def roofline_section(known: KernelsKnown, machine: Machine | None, call_s: float | None) -> Section:
    """machine: of the target.  call_s: the measured seconds of a whole call, if it was timed."""
    title = "Roofline"
    if not known.forwards or machine is None:
        return Section(title, (f"Not drawn. {known.why_nothing}",))
    points = [*_points(known, known.forwards[0])]
    if call_s:
        points.append(_whole_call(known.forwards[0], call_s))
    drawn = [point for point in points if point.is_drawn]
    if not drawn:
        return Section(title, ("Not drawn: no step computes anything, they only move bytes.",))
    left_out = len(points) - len(drawn)
    label = known.forwards[0]["label"]
    notes = [f"Of the forward {label}."] * bool(label)
    notes += [
        f"The roofs are those of {machine.name}, which stands for the target "
        "(fusewright/targets/machines.py). "
        "Filled marks are measured, hollow ones predicted; a square is a call of PyTorch's"
        f"{', the diamond a whole call as it was timed' if call_s else ''}."
    ]
    notes.append(ON_THE_ROOFS)
    notes += [f"Steps that only move bytes have no place here: {left_out}."] * (left_out > 0)
    return Section(title, tuple(notes), plot=roofline_plot(drawn, machine))


def _points(known: KernelsKnown, forward: Forward) -> Iterator[RooflinePoint]:
    """One for each row, of its first step."""
    for row, steps in steps_of(forward):
        step = steps[0]
        name = row["name"] or f"{step['name']} of PyTorch's"
        seconds, measured = known.seconds(row, step)
        number = known.number_of(row)
        yield RooflinePoint(name, number, step["bytes"], step["flops"], seconds, measured)


def _whole_call(forward: Forward, seconds: float) -> RooflinePoint:
    steps = forward["graph"]["steps"]
    moved, computed = (sum(step[what] for step in steps) for what in ("bytes", "flops"))
    return RooflinePoint("a whole call", None, moved, computed, seconds, measured=True)
