"""A model's Compilation in the mode in which it was given -> the same in the other mode, and with
gradients.

`forward` of a model with Dropout or BatchNorm is one graph in train mode and another one in eval
mode; and where gradients are recorded, it leaves what their derivative reads. All of them stand in
one file, which has each kernel that they share once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import nn

from fusewright.codegen.kernel_symbols import CXX_NAMES, symbols
from fusewright.codegen.kernel_text import KernelText
from fusewright.codegen.shared_kernels import SharedKernels
from fusewright.codegen.value_names import ValueNames
from fusewright.compiler.compilation import Comment, Compilation, make
from fusewright.compiler.gradients import Recorded, make_recorded
from fusewright.compiler.rules import check_rules
from fusewright.emit.header import ForwardNotes
from fusewright.errors import BadUsage, CaptureFailed
from fusewright.kernels.registry import shared_kernels
from fusewright.report.decision_record import explain_other
from fusewright.report.run_report import FusedForward

MODE_NAMES = {True: "train", False: "eval"}  # by the training flag


@dataclass(frozen=True)
class InModes:
    """What was made for a model. first: in its own mode, of this name.  second: in the other one.
    why: if there is no second, what stopped it; "" where forward is the same in both.  recorded:
    for calls with gradients, by the name of the mode.  unrecorded: why not, by the same."""

    name: str
    first: Compilation
    second: Compilation | None = None
    why: str = ""
    recorded: Mapping[str, Recorded] = field(default_factory=dict)
    unrecorded: Mapping[str, str] = field(default_factory=dict)

    @property
    def made(self) -> tuple[Compilation, ...]:
        return tuple(self.by_label.values())

    @property
    def by_mode(self) -> dict[str, Compilation]:
        """Without gradients, by the name of the mode."""
        return {self.name: self.first} | ({self.other_name: self.second} if self.second else {})

    @property
    def by_label(self) -> dict[str, Compilation]:
        """All that was made, by what it is for, in words; "" where there is nothing else."""
        found = dict[str, Compilation]()
        for mode, made in self.by_mode.items():
            label = f"in {mode} mode" if self.second else ""
            found[label or "without gradients" * bool(self.recorded)] = made
            if mode in self.recorded:
                space, recorded = " " * bool(label), self.recorded[mode]
                label = f"{label}{space}with gradients"
                names = ("backward", "backward of parameters alone")
                found[label] = recorded.forward
                found |= {
                    f"{label}, {name}": one
                    for name, one in zip(names, recorded.backward, strict=False)
                }
        return found

    @property
    def other_name(self) -> str:
        return MODE_NAMES[self.name == "eval"]

    @cached_property
    def shared(self) -> SharedKernels:
        """Which steps run which function, of both modes together."""
        if len(self.made) == 1:
            return self.first.shared
        words = {n: word for made in self.made for n, word in (made.names.words or {}).items()}
        kernels = [kernel for made in self.made for kernel in made.kernels]
        return shared_kernels(kernels, self.first.plan.target.language, ValueNames(words))

    def functions(self, module: nn.Module) -> tuple[KernelText, ...]:
        """The functions, each under the comment of its first kernel."""
        comments = dict[str, Comment]()
        for made in reversed(self.made):
            comments |= made.comments(module, self.shared)
        return tuple(replace(text, notes=comments[text.name]) for text in self.shared.functions)

    def alone(self, why: str) -> InModes:
        """The same in its own mode only. why: what stopped all else that was made."""
        unrecorded = {**self.unrecorded, **({self.name: why} if self.recorded else {})}
        return InModes(
            self.name, self.first, why=why if self.second else self.why, unrecorded=unrecorded
        )

    def notes(self, functions: Mapping[str, str]) -> dict[str, ForwardNotes]:
        """What the header of the emitted file says of each `forward`, by what it is for.

        functions: which of these each kernel runs, by its name.
        """
        return {label: made.notes_of(functions) for label, made in self.by_label.items()}

    def forwards(self, functions: Mapping[str, str], of: str = "") -> tuple[FusedForward, ...]:
        """Each new `forward`, for a report; none where the model stays as it was. of: whose."""
        return tuple(
            made.told(", ".join(filter(None, (of, label))), functions)
            for label, made in self.by_label.items()
            if made.replaced
        )

    def record(self, source: str, functions: Mapping[str, str]) -> str:
        """The decision record."""
        first, *others = self.by_label.items()
        text = first[1].record(source, functions)
        text += "".join(explain_other(label, made.record("", functions)) for label, made in others)
        if self.why:
            text += explain_other(f"in {self.other_name} mode as written", why=self.why)
        for mode, why in self.unrecorded.items():
            text += explain_other(f"{self._with_gradients(mode)} as written", why=why)
        for mode, recorded in self.recorded.items():
            if why := recorded.joint.fixed:
                text += explain_other(f"{self._with_gradients(mode)} at fixed sizes", why=why)
        return text

    def _with_gradients(self, mode: str) -> str:
        """What calls are called that record gradients."""
        return f"in {mode} mode with gradients" if self.second else "with gradients"


def in_its_mode(module: nn.Module, first: Compilation) -> InModes:
    """What was made for `module` in its own mode, alone."""
    return InModes(MODE_NAMES[module.training], first)


@dataclass(frozen=True)
class FurtherModes:
    """What is wanted beside what was made for a module in its own mode. other: the same in the
    other mode.  gradients: for calls that record gradients.  rules: that all of it keeps."""

    other: bool
    gradients: bool
    rules: frozenset[str]

    def added(
        self,
        module: nn.Module,
        inputs: Sequence[object],
        first: Compilation,
        others: Sequence[Compilation] = (),
    ) -> InModes:
        """What was made, with what can be made of that. others: whose kernels have names."""
        modes = in_its_mode(module, first)
        if self.other:
            modes = _in_modes(module, inputs, first, self.rules, others)
        if self.gradients:
            modes = _with_gradients(modes, module, inputs, self.rules, others)
        return modes


def _in_modes(
    module: nn.Module,
    inputs: Sequence[object],
    first: Compilation,
    rules: frozenset[str],
    others: Sequence[Compilation],
) -> InModes:
    """What was made for `module` in its own mode, with what can be made for the other."""
    name = MODE_NAMES[module.training]
    reads = any(setting.name == "training" for setting in first.given.settings)
    if not first.replaced or not reads:
        return InModes(name, first)
    texts = [text for made in (first, *others) for text in made.texts]
    taken = frozenset[str]().union(*(symbols(text.name) for text in texts))
    names, plan, asked = replace(CXX_NAMES, taken=taken), first.plan, first.given.asked
    try:
        with in_other_mode(module):
            second = make(module, inputs, plan.target, plan.precision, rules, names, asked)
        check_rules(second, rules)
    except (CaptureFailed, BadUsage) as error:
        return InModes(name, first, why=str(error))
    if not second.replaced:
        return InModes(name, first, why="no kernel of ours would be faster there")
    return InModes(name, first, second)


def _with_gradients(
    modes: InModes,
    module: nn.Module,
    inputs: Sequence[object],
    rules: frozenset[str],
    others: Sequence[Compilation],
) -> InModes:
    """The same with what can be made for calls that record gradients."""
    recorded, unrecorded, taken = dict[str, Recorded](), dict[str, str](), [*modes.made, *others]
    for mode, made in modes.by_mode.items() if modes.first.replaced else ():
        other = in_other_mode(module) if mode != modes.name else nullcontext()
        try:
            with other:
                found = make_recorded(module, inputs, made, rules, taken)
        except (CaptureFailed, BadUsage) as error:
            unrecorded[mode] = str(error)
            continue
        recorded[mode] = found
        taken += found.made
    return replace(modes, recorded=recorded, unrecorded=unrecorded)


def in_other_mode(module: nn.Module) -> AbstractContextManager[None]:
    """Train mode in place of eval mode, or the other way round, for all submodules."""
    return in_mode(module, training=not module.training)


@contextmanager
def in_mode(module: nn.Module, *, training: bool) -> Iterator[None]:
    """Within the block, all submodules are in one mode."""
    flags = [(child, child.training) for child in module.modules()]
    module.train(training)
    try:
        yield
    finally:
        for child, flag in flags:
            child.training = flag
