"""Steps of `forward` -> the comment at the top of an emitted file: what runs where, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusewright import __version__
from fusewright.emit.comment_table import Cell, table
from fusewright.emit.formatter import WIDTH

HEADING = ("step", "from", "operators -> result", "numeric class", "why")
WRITTEN = f"written by fusewright {__version__}."
ORDER = "Below: the model; its kernels, in the order of the steps; and support, to be folded away."


@dataclass(frozen=True)
class NumericClass:
    """In which precision a step computes. name: as the table has it.  meaning: of the name, ""
    where it says that itself."""

    name: str
    meaning: str = ""


@dataclass(frozen=True)
class StepRow:
    """A step of `forward`, or several that differ in nothing but the numbers of their modules.

    name: of its kernel; "" for a call of PyTorch.  places: in the model.  shapes: of what it
    writes.  reasons: why it is what it is, and how it runs.
    """

    name: str
    places: tuple[str, ...]
    operators: tuple[str, ...]
    shapes: tuple[str, ...]
    numeric: NumericClass
    reasons: tuple[str, ...]
    times: int = 1


@dataclass(frozen=True)
class ForwardNotes:
    """What is said of one new `forward`. remarks: of all of its steps."""

    rows: tuple[StepRow, ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class PartNotes:
    """The same of submodules. name: of their new class.  paths: where they are.  notes: of each
    `forward`, by what it is for."""

    name: str
    paths: tuple[str, ...]
    notes: Mapping[str, ForwardNotes]

    @property
    def labels(self) -> list[str]:
        """Whose each `forward` is, and what it is for."""
        return [f"{self.name}, {label}" if label else self.name for label in self.notes]


def header(problem: str, target: str, notes: Mapping[str, ForwardNotes]) -> list[str]:
    """problem: the name of its file.  notes: of each `forward`, by what it is for."""
    modes = [*notes] if len(notes) > 1 else []
    records = any("with gradients" in label for label in notes)
    return [
        f"ModelNew: {problem} with fused kernels for {target}, {WRITTEN}",
        "",
        *_steps([*notes.values()], modes),
        "The constructor, the parameters and the results are the original's. Where the guard of "
        f"`forward` does not hold (other shapes, {'' if records else 'gradients, '}autocast, ...), "
        "it runs `reference_forward`.",
        ORDER,
        "",
    ]


def header_of_parts(
    problem: str, target: str, parts: Sequence[PartNotes], left: Sequence[str]
) -> list[str]:
    """The same where some submodules are new. left: what is not new, and why."""
    labels = [label for part in parts for label in part.labels]
    records = any("with gradients" in label for label in labels)
    return [
        f"ModelNew: {problem} with fused kernels for {target} in some of its submodules, {WRITTEN}",
        "",
        *(f"{part.name} is {', '.join(part.paths)}." for part in parts),
        "",
        *_steps([notes for part in parts for notes in part.notes.values()], labels),
        *left,
        "",
        "The constructor, the parameters and the results are the original's, and so is the code of "
        "Model, which stands here as it was written. These submodules have a new `forward`; where "
        f"its guard does not hold (other shapes, {'' if records else 'gradients, '}autocast, ...), "
        "it runs that of their own class.",
        ORDER,
        "",
    ]


def unchanged_header(record: str) -> list[str]:
    """For a file in which nothing is replaced."""
    kept = [line for line in record.splitlines() if line.strip()]
    return [f"ModelNew: {kept[0]}, kept by fusewright {__version__}.", "", *kept[1:], ""]


# ---- the table -----------------------------------------------------------------------------------


def _steps(forwards: Sequence[ForwardNotes], classes: Sequence[str] = ()) -> list[str]:
    """The table and what its words mean. classes: whose `forward` each is, where there are more."""
    every = [row for notes in forwards for row in notes.rows]
    reasons = [*dict.fromkeys(reason for row in every for reason in row.reasons)]
    numbers = {reason: k for k, reason in enumerate(reasons, 1)}
    rows: list[tuple[Cell, ...]] = [tuple([word] for word in HEADING)]
    for k, notes in enumerate(forwards):
        rows += [([f"{name}:"], [], [], [], []) for name in classes[k : k + 1]]
        rows += [_row(row, numbers) for row in notes.rows]
    meanings = dict.fromkeys(r.numeric.meaning for r in every if r.numeric.meaning)
    remarks = dict.fromkeys(remark for notes in forwards for remark in notes.remarks)
    return [
        *table(rows, WIDTH - len("# ")),
        "",
        *(f"  ({k}) {reason}" for reason, k in numbers.items()),
        *(f"  {text}" for text in (*meanings, *remarks)),
        "",
    ]


def _row(row: StepRow, numbers: dict[str, int]) -> tuple[Cell, ...]:
    name = [row.name or "PyTorch", *[f"x{row.times}"] * (row.times > 1)]
    why = _listed([str(numbers[reason]) for reason in row.reasons])
    computes = [*_listed(row.operators), "->", *_listed(row.shapes)]
    return name, _listed(row.places), computes, row.numeric.name.split(), why


def _listed(pieces: Sequence[str]) -> Cell:
    return [*(f"{piece}," for piece in pieces[:-1]), *pieces[-1:]]
