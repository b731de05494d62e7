"""What became of a module, in words: `faster.fusewright` of what `fusewright.optimize` returns.

One attribute holds all that is said, so that nothing else of the user's class can be hidden by it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path

from fusewright.common.atomic_write import write_atomically
from fusewright.emit.header import ForwardNotes, StepRow
from fusewright.errors import BadUsage

HEADING = ("step", "from", "operators → result", "how, or why not")
# What a class of the user's may have of its own, so that a notebook shows that.
DISPLAYS = ("_repr_html_", "_repr_mimebundle_", "_ipython_display_")


@dataclass(frozen=True)
class Notes:
    """What is said of one new `forward`. name: of its mode or its class, "" of the only one."""

    name: str
    forward: ForwardNotes


@dataclass(frozen=True)
class Told:
    """record: the decision record.  notes: of each new `forward`.  left: what stays as it was
    written, and why, in lines."""

    record: str
    notes: tuple[Notes, ...] = ()
    left: tuple[str, ...] = ()


@dataclass(frozen=True)
class About:
    """Of a module with kernels. text: the file; "" where there can be none.  no_text: why.
    calls: counts of each class with kernels; of none, if nothing is new.
    """

    told: Told
    text: str
    no_text: str
    calls: Callable[[], dict[str, object]]

    def explain(self) -> str:
        """Which operators share a kernel and why, what this saves, what stays PyTorch's and why."""
        return self.told.record

    @property
    def source(self) -> str:
        """The text of a whole file with `ModelNew`, which runs without fusewright; raises BadUsage
        where a class cannot be imported by a file."""
        if not self.text:
            raise BadUsage(self.no_text)
        return self.text

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write `source` to a file, the whole of it or nothing. force: also over another file."""
        write_atomically(Path(path), self.source, force=force)

    def status(self) -> dict[str, object]:
        """Class -> its calls that ran kernels, and those that did not, by the reason."""
        return self.calls()

    def __repr__(self) -> str:
        return self.told.record.rstrip()

    def _repr_html_(self) -> str:
        """A table of the steps, for notebooks."""
        title, *_ = self.told.record.splitlines()
        rows = [line for notes in self.told.notes for line in _rows(notes)]
        head = "".join(f"<th>{word}</th>" for word in HEADING)
        table = [f"<table><thead><tr>{head}</tr></thead><tbody>", *rows, "</tbody></table>"]
        left = [f"<li>{escape(line.strip())}</li>" for line in self.told.left]
        return "\n".join(
            [
                f"<p><b>{escape(title)}</b></p>",
                *(table if rows else []),
                *(["<ul>", *left, "</ul>"] if left else []),
            ]
        )


def _rows(notes: Notes) -> list[str]:
    """The rows of one `forward`, under its name."""
    name = f'<tr><th colspan="{len(HEADING)}">{escape(notes.name)}</th></tr>'
    return [*[name] * bool(notes.name), *(_row(row) for row in notes.forward.rows)]


def _row(row: StepRow) -> str:
    times = f" × {row.times}" if row.times > 1 else ""
    named = f"<code>{escape(row.name)}</code>" if row.name else "<i>PyTorch</i>"
    computes = f"{', '.join(row.operators)} → {', '.join(row.shapes)}"
    cells = (", ".join(row.places), computes, "; ".join(row.reasons))
    inside = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f"<tr><td>{named}{times}</td>{inside}</tr>"


def module_html(about: About, module: object) -> str:
    """How a notebook shows a module: what became of it, and the module as it is always shown."""
    return f"{about._repr_html_()}\n<pre>{escape(repr(module))}</pre>"
