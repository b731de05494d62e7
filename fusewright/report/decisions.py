"""An emitted file, or the JSON report of `--report` -> the decisions in it, to be compared."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fusewright.errors import BadUsage
from fusewright.report.amounts import bytes_text, flops_text, time_text
from fusewright.report.emitted_header import EmittedHeader, HeaderRow, emitted_header
from fusewright.report.kernel_notes import EmittedKernel, emitted_kernels

Kind = Literal["kernel", "library call"]
# A remark of a header begins so -> what it is about. Any other is a remark.
ABOUT = (
    ("PyTorch's own contractions", "precision"),
    ("the batch size is", "sizes"),
)
# What a text raises that is no report, or not all of one.
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
SIZES = (" is free, as `", " is fixed: ")  # in a remark on sizes that `--dynamic` names


@dataclass(frozen=True)
class Step:
    """A kernel, or a call of PyTorch. None: nobody says.

    results: the shapes that are written.  origin: places and lines of the model.  strategy: why it
    is what it is, and how it runs.  launch: the body of its entry.  moves: bytes and operations.
    calls: how often it runs.  forwards: in which modes.  text: its C++ or CUDA.
    """

    kind: Kind
    name: str
    operators: str
    results: str | None = None
    origin: tuple[str, ...] | None = None
    numeric: str | None = None
    strategy: tuple[str, ...] | None = None
    launch: str | None = None
    moves: str | None = None
    predicted: str | None = None
    calls: int = 1
    forwards: tuple[str, ...] | None = None
    text: str | None = None


@dataclass(frozen=True)
class Decisions:
    """name: of the file.  source: what it is.  problem: what it was made of, None where nobody
    says.  facts: of all steps, by name.  rest: of an emitted file what is neither header nor
    kernel.  whole: its text."""

    name: str
    source: Literal["emitted file", "report"]
    problem: str | None
    facts: Mapping[str, str]
    steps: tuple[Step, ...]
    rest: tuple[str, ...] | None = None
    whole: str = ""

    def __str__(self) -> str:
        made = f" of {self.problem}" if self.problem else ""
        target = f" for {self.facts['target']}" if "target" in self.facts else ""
        return f"{self.name}: {self.source}{made}{target}"

    @property
    def by_call(self) -> Decisions:
        """A step for each call, as reports have them."""
        once = (replace(step, calls=1) for step in self.steps for _ in range(step.calls))
        return replace(self, steps=tuple(once))


def decisions(text: str, name: str) -> Decisions:
    """text: of a file of this name. Raises BadUsage where it is neither."""
    return _of_report(text, name) if text.lstrip()[:1] == "{" else _of_file(text, name)


# ---- an emitted file -----------------------------------------------------------------------------


def _of_file(text: str, name: str) -> Decisions:
    kernels = emitted_kernels(text, name)
    header = emitted_header(text, {kernel.name for kernel in kernels})
    calls = [_library_step(row) for row in header.rows if not row.name]
    steps = [*(_kernel_step(kernel, header) for kernel in kernels), *calls]
    rest = _rest(text, kernels)
    facts = dict(_facts(header))
    return Decisions(name, "emitted file", header.problem, facts, tuple(steps), rest, text)


def _facts(header: EmittedHeader) -> Iterator[tuple[str, str]]:
    yield "target", header.target
    yield "fusewright", header.version
    yield "model", "as it was" if header.kept else "with kernels, or other calls"
    forwards = dict.fromkeys(row.forward for row in header.rows)
    yield "forward", "; ".join(filter(None, forwards)) or "one for all calls"
    about: dict[str, list[str]] = {"sizes": [], "precision": [], "remarks": []}
    for remark in dict.fromkeys(header.remarks):
        about[_subject(remark)].append(remark)
    yield from ((name, "; ".join(said) or "nothing is said") for name, said in about.items())


def _subject(remark: str) -> str:
    if any(word in remark for word in SIZES):
        return "sizes"
    return next((subject for head, subject in ABOUT if remark.startswith(head)), "remarks")


def _kernel_step(kernel: EmittedKernel, header: EmittedHeader) -> Step:
    rows = [row for row in header.rows if row.name == kernel.name]
    operators, _, results = kernel.computes.rpartition(" -> ")
    return Step(
        "kernel",
        kernel.name,
        operators,
        results,
        (*_unique(_without_lines(row.places) for row in rows), *kernel.lines),
        "; ".join(_unique(row.numeric for row in rows)),
        tuple(_unique([*kernel.strategy, *(why for row in rows for why in row.reasons)])),
        _launch(kernel),
        f"{kernel.bytes}, {kernel.flops}",
        kernel.predicted,
        sum(row.times for row in rows),
        tuple(_unique(row.forward for row in rows)),
        kernel.text,
    )


def _library_step(row: HeaderRow) -> Step:
    return Step(
        "library call",
        row.operators,
        row.operators,
        row.shapes,
        (_without_lines(row.places),),
        row.numeric,
        row.reasons,
        calls=row.times,
        forwards=(row.forward,),
    )


def _unique(values: Iterable[str]) -> list[str]:
    return [*dict.fromkeys(values)]


def _without_lines(places: str) -> str:
    """ "self.gemm (line 14), add (line 15)" -> "self.gemm, add": what moves is the same."""
    first, *others = places.split(" (line ")
    return first + "".join(part.partition(")")[2] for part in others)


def _launch(kernel: EmittedKernel) -> str:
    """What its entry does."""
    body = kernel.text.partition('extern "C"')[2].partition("{")[2].rpartition("}")[0]
    return " ".join(body.split())


def _rest(text: str, kernels: Sequence[EmittedKernel]) -> tuple[str, ...]:
    for kernel in kernels:
        text = text.replace(kernel.text, "")
    lines = text.split("\n")
    first = next((k for k, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return tuple(line for line in lines[first:] if not line.startswith("// "))


# ---- a report ------------------------------------------------------------------------------------


def _of_report(text: str, name: str) -> Decisions:
    try:
        report = json.loads(text)
        steps = tuple(_reported(entry) for entry in report["kernels"] if not _is_item(entry))
        facts = dict(_reported_facts(report))
        problem = (report["replay"].get("request") or {}).get("problem")
    except UNREADABLE as error:
        raise BadUsage(
            f"{name}: this is neither a file that fusewright has written nor the report of "
            "`fusewright optimize --report`."
        ) from error
    if not steps:
        raise BadUsage(
            f"{name}: this report knows of no kernel and no call: {report.get('reason')}. Give one "
            "of `fusewright optimize --report` that has ended well."
        )
    return Decisions(name, "report", problem and str(problem).rpartition("/")[2], facts, steps)


def _is_item(entry: Mapping[str, object]) -> bool:
    """It only takes one of several results of a call; no header lists it."""
    return entry["name"] == "getitem" and entry["kind"] == "library"


def _reported(entry: Mapping[str, object]) -> Step:
    named = entry["operators"]
    if not isinstance(named, list):
        raise TypeError("operators are a list")
    counted = Counter(map(str, named)).items()
    amounts = (entry["bytes"], entry["flops"], entry["predicted_s"])
    nbytes, flops, seconds = (float(str(value)) for value in amounts)
    return Step(
        "library call" if entry["kind"] == "library" else "kernel",
        str(entry["name"]),
        ", ".join(f"{operator} x{k}" if k > 1 else operator for operator, k in counted),
        moves=f"{bytes_text(int(nbytes))}, {flops_text(int(flops))}",
        predicted=time_text(seconds),
    )


def _reported_facts(report: Mapping[str, Mapping[str, object]]) -> Iterator[tuple[str, str]]:
    yield "verdict", str(report["verdict"])
    about = report["environment"]
    yield from ((name, str(about[name])) for name in ("fusewright", "torch", "python", "device")
                if name in about)  # fmt: skip
    hashes = about.get("sha256")
    if isinstance(hashes, dict):
        yield "problem", f"sha256 {str(hashes['problem'])[:12]}"
    request = report["replay"].get("request")
    if isinstance(request, dict):
        yield "mode", str(request["mode"] or "that of the problem")
        yield "settings", ", ".join(f"{n}={v}" for n, v in request["overrides"].items()) or "none"
