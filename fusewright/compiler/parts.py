"""A model of which some submodules are new: what was made for each, and what is said of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property

from fusewright.codegen.shared_kernels import SharedKernels
from fusewright.codegen.value_names import ValueNames
from fusewright.compiler.compilation import Compilation
from fusewright.compiler.modes import InModes
from fusewright.emit.header import PartNotes
from fusewright.frontend.submodules import Chosen
from fusewright.kernels.registry import Printed, shared_kernels
from fusewright.report.decision_record import PARTS_NOT_TUNED, explain_parts, left_lines
from fusewright.report.run_report import FusedForward
from fusewright.targets.target import Target


@dataclass(frozen=True)
class Part:
    """What was made for a submodule. name: of its new class."""

    name: str
    modes: InModes


@dataclass(frozen=True)
class Parts:
    """A model of which some submodules are new. why: what stopped the model as a whole."""

    machine: Target
    chosen: Chosen[Part]
    why: str

    @property
    def made(self) -> tuple[Compilation, ...]:
        """Of all parts, in all modes."""
        return tuple(made for t in self.chosen.taken for made in t.made.modes.made)

    @property
    def other_mode(self) -> str:
        """The name of the mode that some parts have kernels for beside their own, or ""."""
        return next((t.made.modes.other_name for t in self.chosen.taken if t.made.modes.second), "")

    @property
    def kernels(self) -> tuple[Printed, ...]:
        return tuple(kernel for made in self.made for kernel in made.kernels)

    @cached_property
    def shared(self) -> SharedKernels:
        """Which steps run which function, of all parts together."""
        words = {n: word for made in self.made for n, word in (made.names.words or {}).items()}
        return shared_kernels(self.kernels, self.machine.language, ValueNames(words))

    @property
    def notes(self) -> tuple[PartNotes, ...]:
        """What the header of the emitted file says."""
        functions = self.shared.function_of
        return tuple(
            PartNotes(t.made.name, tuple(t.paths), t.made.modes.notes(functions))
            for t in self.chosen.taken
        )

    @property
    def forwards(self) -> tuple[FusedForward, ...]:
        """That of each new class, for a report."""
        functions = self.shared.function_of
        return tuple(
            told
            for t in self.chosen.taken
            for told in t.made.modes.forwards(functions, f"{t.made.name} is {', '.join(t.paths)}")
        )

    @property
    def left(self) -> tuple[str, ...]:
        """Of what is no part and why, in lines."""
        return (*left_lines(self.why, self.chosen.left), PARTS_NOT_TUNED)

    @property
    def facts(self) -> Mapping[str, object]:
        """What the report says."""
        taken = [{"class": t.made.name, "paths": t.paths} for t in self.chosen.taken]
        root = [{"path": "", "kind": "Model", "why": self.why}]
        return {"taken": taken, "left": [*root, *map(asdict, self.chosen.left)]}

    def record(self, source: str) -> str:
        """The decision record."""
        functions = self.shared.function_of
        taken = [
            (t.made.name, t.paths, t.made.modes.record("", functions)) for t in self.chosen.taken
        ]
        return explain_parts(source, self.machine.name, self.why, taken, self.chosen.left)
