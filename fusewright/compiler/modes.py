"""A model's Compilation in the mode in which it was given -> the same in the other mode, too.

`forward` of a model with Dropout or BatchNorm is one graph in train mode and another one in eval
mode. Both stand in one file, which has each kernel that they share once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

from torch import nn

from fusewright.codegen.kernel_symbols import CXX_NAMES, symbols
from fusewright.codegen.kernel_text import KernelText
from fusewright.codegen.shared_kernels import SharedKernels
from fusewright.codegen.value_names import ValueNames
from fusewright.compiler.compilation import Comment, Compilation, make
from fusewright.emit.header import ForwardNotes
from fusewright.errors import BadUsage, CaptureFailed
from fusewright.kernels.registry import shared_kernels
from fusewright.report.decision_record import explain_other_mode

MODE_NAMES = {True: "train", False: "eval"}  # by the training flag


@dataclass(frozen=True)
class InModes:
    """What was made for a model. first: in its own mode, of this name.  second: in the other one.
    why: if there is no second, what stopped it; "" where forward is the same in both."""

    name: str
    first: Compilation
    second: Compilation | None = None
    why: str = ""

    @property
    def made(self) -> tuple[Compilation, ...]:
        return (self.first, *([self.second] if self.second else []))

    @property
    def other_name(self) -> str:
        return MODE_NAMES[self.name == "eval"]

    @cached_property
    def shared(self) -> SharedKernels:
        """Which steps run which function, of both modes together."""
        if self.second is None:
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

    @property
    def notes(self) -> dict[str, ForwardNotes]:
        """What the header of the emitted file says of each mode, by its name."""
        names = (self.name, self.other_name)
        notes = [made.notes_of(self.shared.function_of) for made in self.made]
        return dict(zip(names, notes, strict=False))

    def record(self, source: str) -> str:
        """The decision record."""
        text = self.first.record(source, self.shared.function_of)
        if self.second is None and not self.why:
            return text
        functions = self.shared.function_of
        other = self.second.record("", functions) if self.second else ""
        return text + explain_other_mode(self.other_name, other, self.why)


def in_modes(
    module: nn.Module,
    inputs: Sequence[object],
    first: Compilation,
    rules: frozenset[str],
    check_rules: Callable[[Compilation, frozenset[str]], None],
) -> InModes:
    """What was made for `module` in its own mode, with what can be made for the other.

    check_rules: raises BadUsage for rules that a Compilation breaks.
    """
    name = MODE_NAMES[module.training]
    reads = any(setting.name == "training" for setting in first.given.settings)
    if not first.replaced or not reads:
        return InModes(name, first)
    taken = frozenset[str]().union(*(symbols(text.name) for text in first.texts))
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
