"""What became of a module, in words: `faster.fusewright` of what `fusewright.optimize` returns.

One attribute holds all that is said, so that nothing else of the user's class can be hidden by it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from pathlib import Path

from fusewright.common.atomic_write import write_atomically
from fusewright.errors import BadUsage
from fusewright.html_report.kernel_sections import (
    KernelsKnown,
    graph_sections,
    kernel_section,
    library_section,
)
from fusewright.html_report.page import Section
from fusewright.html_report.render import blocks_text
from fusewright.report.run_report import FusedForward, plain

# What a class of the user's may have of its own, so that a notebook shows that.
DISPLAYS = ("_repr_html_", "_repr_mimebundle_", "_ipython_display_")


@dataclass(frozen=True)
class Told:
    """record: the decision record.  forwards: the new ones.  left: what stays as it was written,
    and why, in lines."""

    record: str
    forwards: tuple[FusedForward, ...] = ()
    left: tuple[str, ...] = ()


@dataclass(frozen=True)
class About:
    """Of a module with kernels. text: the file; "" where there can be none.  no_text: why.
    calls: counts of each class with kernels; of none, if nothing is new.  code: what runs, which is
    there even where no file can be.
    """

    told: Told
    text: str
    no_text: str
    calls: Callable[[], dict[str, object]]
    code: str = ""

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
        """For notebooks: the graph of the model by kernel, each kernel, what stays PyTorch's."""
        title, *_ = self.told.record.splitlines()
        digest = sha256(f"{self.told.record}{self.code}".encode()).hexdigest()
        forwards = plain(self.told.forwards)
        assert isinstance(forwards, list), "plain makes lists of tuples"
        known = KernelsKnown(forwards, self.code, prefix=f"fusewright-{digest[:8]}-")
        sections = [*graph_sections(known), kernel_section(known), library_section(known)]
        left = Section("Left as written", self.told.left)
        return blocks_text(title, [*sections * bool(forwards), *[left] * bool(self.told.left)])


def module_html(about: About, module: object) -> str:
    """How a notebook shows a module: what became of it, and the module as it is always shown."""
    return f"{about._repr_html_()}\n<pre>{escape(repr(module))}</pre>"
