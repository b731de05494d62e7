"""Plain values that `forward` reads -> the conditions under which they are still the same.

What is no tensor is built into the kernels: attributes of modules, module-level names of the user's
file, and arguments that hold none. Every one is asked for in the form that tells it from any other:
`==` where that does, or identity, or `repr`.
"""

from __future__ import annotations

import dis
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from types import CodeType, FunctionType

import torch
from torch import nn

from fusewright.common.containers import Container, Plain, Tree
from fusewright.emit.guard_condition import MODE_ADVICE, GuardCondition, all_of
from fusewright.emit.module_table import defined, function_text
from fusewright.emit.python_text import NameScope, literal
from fusewright.emit.scope import EmitScope
from fusewright.errors import CaptureFailed
from fusewright.frontend.attribute_reads import FUNCTION, is_plain

ATTRIBUTE = "attribute "  # so begin the words for one
LONGEST_VALUE = 40  # that is told


@dataclass(frozen=True)
class ValueConditions:
    """Conditions on values. model: the name of its class.  names: the local names in use."""

    model: str
    scope: EmitScope
    names: NameScope

    def unchanged(self, text: str, value: object, what: str) -> Iterator[GuardCondition]:
        """The value is the one that the kernels were written for, and of its type.

        what: it is, in words.
        """
        if asked := [*self._asked(text, value, what)]:
            yield all_of(asked, _otherwise(what, value))

    def _asked(self, text: str, value: object, what: str) -> Iterator[str]:
        if value is inspect.Parameter.empty:
            return
        if value is None or isinstance(value, bool | torch.dtype):
            yield f"{text} is {value}"
        elif type(value) in (int, str) or (type(value) is float and value and value == value):
            found, once = self._named_once(text)
            yield f"type({once}) is {type(value).__name__}"
            yield f"{found} == {literal(value)}"
        elif isinstance(value, FUNCTION):
            yield self._same_function(text, value)
        elif type(value) is tuple and [*map(type, value)] == [int]:  # a third of what repr takes
            found, once = self._named_once(text)
            yield f"type({once}) is tuple"
            yield f"{found} == {literal(value)}"
            yield f"type({found}[0]) is int"
        elif is_plain(value) or isinstance(value, Enum):
            # == would take 0.0 for -0.0, and [1] for [1.0].
            yield f"repr({text}) == {literal(repr(value))}"
        else:
            raise CaptureFailed(
                f"{self.model}.forward: {what} is a {type(value).__name__}, and "
                "the emitted file could not notice a change of it. Use numbers, strings or tensors."
            )

    def _named_once(self, text: str) -> tuple[str, str]:
        """A name for what is asked twice, and the text that gives it; a plain name is its own."""
        if not re.fullmatch(r"\w+(\.\w+)+", text):
            return text, text
        own = text.removeprefix(self.scope.reach.partition("{")[0])
        name = self.names.fresh(own.replace(".", "_"))
        return name, f"{name} := {text}"

    def _same_function(self, text: str, function: object) -> str:
        """Identity where emitted code has a name for the function; else where it was defined."""
        if known := function_text(function, self.scope):
            return f"{text} is {known}"
        where = literal(defined(function, self.scope))
        return f'getattr({text}, "__qualname__", "") == {where}'


def _otherwise(what: str, value: object) -> str:
    """That a value is another one, in words."""
    path, _, name = what.removeprefix(ATTRIBUTE).rpartition(".")
    if name == "training" and isinstance(value, bool):
        flag = f"training flag of {path}" if path else "its training flag"
        mode = "train" if value else "eval"
        return f"{flag} is {not value}, and these kernels are for {mode} mode{MODE_ADVICE}"
    text = getattr(value, "__qualname__", "") or repr(value)
    what = what.replace("the default of ", "argument ")
    return f"{what} is not {text if len(text) <= LONGEST_VALUE else 'what it was'}"


def is_only_plain(tree: Tree) -> bool:
    """Whether `repr` tells everything about it."""
    if isinstance(tree, Container):
        return tree.type in (list, tuple, dict) and all(map(is_only_plain, tree.inside))
    return isinstance(tree, Plain) and is_plain(tree.value)


def values_read(module: nn.Module, scope: EmitScope) -> dict[str, object]:
    """Plain module-level values that the user's functions read, apart from constructors."""
    seen: set[str] = set()
    kinds = {type(child) for _, child in module.named_modules()}
    queue = [
        value
        for kind in kinds
        for c in kind.__mro__
        for name, value in vars(c).items()
        if isinstance(value, FunctionType) and name != "__init__"
    ]
    done: set[int] = set()
    while queue:
        function = queue.pop()
        if id(function) in done or function.__globals__ is not scope.values:
            continue
        done.add(id(function))
        for name in _names_in(function.__code__):
            value = scope.values.get(name)
            if isinstance(value, FunctionType):
                queue.append(value)
            elif name in scope.values and is_plain(value) and not name.startswith("__"):
                seen.add(name)
    return {name: scope.values[name] for name in sorted(seen)}


def _names_in(code: CodeType) -> Iterator[str]:
    """Names that a function looks up at module level, its inner functions included."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
