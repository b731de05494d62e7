"""The header of an emitted file -> its facts and the rows of its table, as `emit/header.py` has
them.

Cells were broken within their columns (`emit/comment_table.py`); here they are put together again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import takewhile

PYTORCH = "PyTorch"
REST = "  "  # in front of a reason or a remark
CALL = "library  "  # in front of a call of PyTorch in a decision record
BROKEN_AT = ("_", ".")  # a word that goes on in the next line ends so


@dataclass(frozen=True)
class HeaderRow:
    """A step of a `forward`, or several. forward: in which mode or class, "" where there is one
    only.  name: of its kernel, "" for a call of PyTorch.  places: in the model.  operators, shapes:
    what it computes and writes.  times: how often it runs."""

    forward: str
    name: str
    times: int
    places: str
    operators: str
    shapes: str
    numeric: str
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class EmittedHeader:
    """version: of fusewright.  kept: whether the file is the model as it was.  remarks: on all
    steps."""

    problem: str
    target: str
    version: str
    kept: bool
    rows: tuple[HeaderRow, ...]
    remarks: tuple[str, ...]


def emitted_header(text: str, kernels: AbstractSet[str]) -> EmittedHeader:
    """text: of an emitted file.  kernels: the names of those that it has."""
    lines = [line[2:].rstrip() for line in takewhile(_is_comment, text.split("\n"))]
    problem, target, version, kept = _title(" ".join(takewhile(bool, lines)))
    first = _rule(lines)
    table = [*takewhile(bool, lines[first:])] if first else []
    notes = [*_notes(lines[first + len(table) :])]
    reasons = {n: said for n, said in map(_numbered, notes) if n}
    remarks = [said for n, said in map(_numbered, notes) if not n]
    rows = [_row(row, reasons) for row in _rows(table, kernels)]
    if kept:  # there the decision record stands in place of a table
        rows = [_kept(remark) for remark in remarks if remark.startswith(CALL)]
        remarks = [remark for remark in remarks if not remark.startswith(CALL)]
    return EmittedHeader(problem, target, version, kept, tuple(rows), tuple(remarks))


def _is_comment(line: str) -> bool:
    return line.startswith("#")


def _title(words: str) -> tuple[str, str, str, bool]:
    about, _, version = words.removeprefix("ModelNew: ").removesuffix(".").rpartition(" by ")
    kept = about.endswith(", kept")
    about = about.removesuffix(", kept").removesuffix(", written")
    problem, _, rest = about.partition(" on " if kept else " with fused kernels for ")
    target = rest.partition(":")[0].split(" ")[0]
    return problem, target, version.removeprefix("fusewright "), kept


def _notes(lines: Sequence[str]) -> Iterator[str]:
    """Reasons and remarks, each as one line again."""
    note = ""
    for line in lines:
        if line.startswith(REST * 3) and note:
            note += f" {line.strip()}"
            continue
        if note:
            yield note
        note = line.strip() if line.startswith(REST) else ""
    if note:
        yield note


def _numbered(note: str) -> tuple[str, str]:
    """ "(1) one pass" -> ("1", "one pass"); another note has no number."""
    number, closed, said = note.removeprefix("(").partition(") ")
    return (number, said) if note.startswith("(") and closed and number.isdigit() else ("", note)


def _kept(remark: str) -> HeaderRow:
    """ "library  mm x 2 -> [8]: its reason; 2 kB, 3 FLOP from self.a (line 7)" -> its row."""
    step, _, said = remark.removeprefix(CALL).partition(" -> ")
    operators, _, times = step.partition(" x ")
    shapes, _, why = said.partition(": ")
    told, _, places = why.rpartition(" from ")
    reason = told.rpartition("; ")[0]
    return HeaderRow("", "", int(times or 1), places, operators, shapes, "PyTorch's", (reason,))


# ---- the table -----------------------------------------------------------------------------------


@dataclass
class _Row:
    """As it is read: the lines of each cell."""

    forward: str
    cells: list[list[str]] = field(default_factory=lambda: [[] for _ in range(5)])

    def add(self, parts: Sequence[str]) -> None:
        for cell, part in zip(self.cells, parts, strict=True):
            cell += [part] * bool(part)


def _rule(lines: Sequence[str]) -> int:
    """Where the line under the headings is; 0, which is the title, where there is no table."""
    return next((k for k, line in enumerate(lines) if line and not line.strip("- ")), 0)


def _rows(lines: Sequence[str], kernels: AbstractSet[str]) -> Iterator[_Row]:
    spans = [*_spans(lines[0])] if lines else []
    forward, label, row = "", "", None
    for line in lines[1:]:
        parts = [line[first:last].strip() for first, last in spans]
        alone = not any(parts[1:])
        if label or (alone and not _is_count(parts[0])):
            label = f"{label} {parts[0]}".strip()
            if label.endswith(":"):
                forward, label = label[:-1], ""
            continue
        if parts[0].split(" ")[0] in {PYTORCH, *kernels} and parts[2]:
            if row:
                yield row
            row = _Row(forward)
        if row:
            row.add(parts)
    if row:
        yield row


def _spans(rule: str) -> Iterator[tuple[int, int | None]]:
    """Where the columns begin, and where the next ones do."""
    starts = [k for k, c in enumerate(rule) if c == "-" and rule[k - 1 : k] != "-"]
    yield from zip(starts, [*starts[1:], None], strict=True)


def _is_count(part: str) -> bool:
    return not part or (part.startswith("x") and part[1:].isdigit())


def _row(row: _Row, reasons: dict[str, str]) -> HeaderRow:
    step, places, computes, numeric, why = map(_joined, row.cells)
    name, _, times = step.partition(" x")
    operators, _, shapes = computes.rpartition(" -> ")
    said = tuple(reasons.get(number, "") for number in why.split(", ") if number)
    own = "" if name == PYTORCH else name
    return HeaderRow(row.forward, own, int(times or 1), places, operators, shapes, numeric, said)


def _joined(parts: Sequence[str]) -> str:
    """The lines of a cell; one that was broken within a word goes on without a space."""
    text = ""
    for part in parts:
        whole = not text or text.endswith(BROKEN_AT) or (text.endswith("]") and part[0] == ".")
        text += part if whole else f" {part}"
    return text
