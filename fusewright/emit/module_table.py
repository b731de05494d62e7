"""Captured + module -> the table of what every module has to be like, as a function of the emitted
file.

A row stands for all modules that have to be alike: their class, the modules in them, their tensors,
and the values that `forward` reads. Equal blocks of a model are one row, whatever their number. The
table is Python that is read when it is asked for, so its names mean what they mean then.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import FunctionType, MappingProxyType

import torch
from torch import nn

from fusewright.common.containers import PLAIN_TYPES
from fusewright.emit.python_text import literal, shape_tuple, strings_tuple
from fusewright.emit.scope import EmitScope
from fusewright.errors import CaptureFailed
from fusewright.frontend.attribute_reads import FUNCTION, is_plain
from fusewright.frontend.capture import Captured
from fusewright.frontend.forward_trace import ReadAttribute
from fusewright.ir.graph import BatchSize, Node

FUNCTION_NAME = "_fusewright_modules"
AS_TEXT = "as text"  # marks what stands in a table for a value: its `repr`, or a function's name


@dataclass(frozen=True)
class ModuleTable:
    """function: the name of the function that gives the table.  rows: name -> text, the root's
    first.  tensors: the names that the graph has for the tensors, in the order of the table; tied
    ones that are leaves of their own stand together.
    """

    function: str
    rows: Mapping[str, str]
    tensors: tuple[tuple[str, ...], ...]

    def lines(self) -> list[str]:
        """The function, as lines that may be too long."""
        rows = ", ".join(f"{literal(name)}: {row}" for name, row in self.rows.items())
        return [
            f"def {self.function}():",
            '    """What modules have to be like. A row is for all that are alike."""',
            f"    return {{{rows}}}",
        ]


def module_table(captured: Captured, module: nn.Module, scope: EmitScope) -> ModuleTable:
    """The table for a module as it was captured."""
    rows = _Rows(captured, module, scope)
    root = rows.row("", module)
    function = f"{FUNCTION_NAME}_{scope.number}" if scope.number else FUNCTION_NAME
    return ModuleTable(function, MappingProxyType(rows.below(root)), tuple(rows.tensors))


class _Rows:
    """leaves: the state of the graph by its first path: its names there, and what it is."""

    def __init__(self, captured: Captured, module: nn.Module, scope: EmitScope) -> None:
        self.module, self.scope = module, scope
        self.first: dict[int, str] = {}
        for path, child in module.named_modules():
            self.first.setdefault(id(child), path)
        self.leaves: dict[str, tuple[tuple[str, ...], Node]] = {}
        for n in captured.graph.leaves:
            name = str(n["name"]) if n.row.state else ""
            if name and name not in captured.constants:
                self.leaves[self._canonical(name)] = (name,), n
        self.tied = self._tied()
        self.settings: dict[str, list[ReadAttribute]] = {}
        for one in captured.settings:
            self.settings.setdefault(one.path, []).append(one)
        self.names: dict[str, str] = {}  # text -> name
        self.inside: dict[str, list[str]] = {}  # name -> names of the rows of the modules in it
        self.tensors: list[tuple[str, ...]] = []

    def _canonical(self, name: str) -> str:
        """The name with the first path of the module that has it."""
        owner, _, last = name.rpartition(".")
        return joined(self.first[id(self.module.get_submodule(owner))], last)

    def _tied(self) -> dict[str, str]:
        """Path of a tensor that has to be another one -> that one's, which is found before."""
        found: dict[str, str] = {}
        for group in tied_paths(self.module):
            held = [self.leaves[path] for path in group if path in self.leaves]
            if held:
                names = tuple(name for names, _ in held for name in names)
                self.leaves[group[0]] = names, held[0][1]
                found |= dict.fromkeys(group[1:], group[0])
        return found

    # -- rows

    def row(self, path: str, child: nn.Module) -> str:
        """The name of the row for the module at a path."""
        kind = type(child)
        named = class_text(kind, self.scope) if path else self.scope.own
        columns = {"class": named or literal(str(kind))}
        tensors = self._tensors(path, child)
        values = {s.name: self._value(s) for s in self.settings.get(path, ())}
        inside: list[str] = []
        modules = {name: self._child(path, name, inside) for name in child._modules}
        more = {"modules": modules, "tensors": tensors, "values": values}
        columns |= {name: _dict(column) for name, column in more.items() if column}
        if methods := sorted(user_methods(kind) - {"forward"}):
            columns["methods"] = strings_tuple(methods)
        text = _dict(columns)
        if text not in self.names:
            wanted, k = kind.__name__ if path else self.scope.own, 1
            name = wanted
            while name in self.inside:
                k += 1
                name = f"{wanted}_{k}"
            self.names[text], self.inside[name] = name, inside
        return self.names[text]

    def below(self, root: str) -> dict[str, str]:
        """The rows that one reaches, itself first."""
        texts = {name: text for text, name in self.names.items()}
        found: dict[str, str] = {}
        waiting = [root]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found[name] = texts[name]
                waiting += reversed(self.inside[name])
        return found

    def _child(self, path: str, name: str, inside: list[str]) -> str:
        child = self.module.get_submodule(path)._modules[name]
        if child is None:
            return "None"
        own, first = joined(path, name), self.first[id(child)]
        if first != own:
            return f"({literal(first)},)"
        inside.append(self.row(own, child))
        return literal(inside[-1])

    def _tensors(self, path: str, child: nn.Module) -> dict[str, str]:
        columns: dict[str, str] = {}
        for name in (*child._parameters, *child._buffers, *child.__dict__):
            own = joined(path, name)
            if own in self.tied:
                columns[name] = literal(self.tied[own])
            elif own in self.leaves:
                names, leaf = self.leaves[own]
                self.tensors.append(names)
                columns[name] = self._tensor(leaf)
        return columns

    def _tensor(self, leaf: Node) -> str:
        order = f", {leaf.order}" if leaf.order else ""
        assert not any(isinstance(size, BatchSize) for size in leaf.shape)  # nor has any state
        shape = shape_tuple(leaf.shape)
        return f"({shape}, {leaf.dtype}{order})"

    def _value(self, one: ReadAttribute) -> str:
        """A value as itself, or with the text that tells it from any other."""
        value = one.value
        if isinstance(value, FUNCTION):
            known = function_text(value, self.scope)
            return known or f"({literal(AS_TEXT)}, {literal(defined(value, self.scope))})"
        if _has_literal(value):
            return literal(value)
        if is_plain(value) or isinstance(value, Enum):
            return f"({literal(AS_TEXT)}, {literal(repr(value))})"
        raise CaptureFailed(
            f"{type(self.module).__name__}.forward: attribute {joined(one.path, one.name)} is a "
            f"{type(value).__name__}, and the emitted file could not notice a change of it. Use "
            "numbers, strings or tensors."
        )


def joined(path: str, name: str) -> str:
    """The name of what a module has, from the model on."""
    return f"{path}.{name}" if path else name


def _dict(columns: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{literal(name)}: {text}" for name, text in columns.items()) + "}"


def _has_literal(value: object) -> bool:
    """Whether Python text makes the very same value again."""
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return value[:1] != (AS_TEXT,) and all(map(_has_literal, value))
    if isinstance(value, dict) and type(value) is dict:
        return all(map(_has_literal, (*value.keys(), *value.values())))
    if type(value) is float:
        return math.isfinite(value)
    return isinstance(value, torch.dtype) or type(value) in PLAIN_TYPES


def class_text(kind: type, scope: EmitScope) -> str:
    """Python text that is the class, or "" if emitted code has no name for it."""
    if kind in scope.classes:
        return scope.classes[kind]
    if getattr(nn, kind.__name__, None) is kind:
        return f"torch.nn.{kind.__name__}"
    named = getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind
    known = named and kind.__module__.startswith("torch.")  # parametrized classes have no name
    return f"{kind.__module__}.{kind.__qualname__}" if known else ""


def function_text(function: object, scope: EmitScope) -> str:
    """Python text that is the function, or "" if emitted code has no name for it."""
    name = str(getattr(function, "__name__", ""))
    for prefix, place in (("torch.", torch), ("torch.nn.functional.", nn.functional)):
        if getattr(place, name, None) is function:
            return f"{prefix}{name}"
    return scope.reach.format(name) if scope.values.get(name) is function else ""


def defined(function: object, scope: EmitScope) -> str:
    """Where a function was defined, as the emitted file has it."""
    where = str(getattr(function, "__qualname__", getattr(function, "__name__", "")))
    outer, dot, inner = where.partition(".")
    renamed = outer == "Model" and scope.own == "ModelNew"
    return f"ModelNew{dot}{inner}" if renamed else where


def tied_paths(module: nn.Module) -> Iterator[list[str]]:
    """The paths of every parameter or buffer that can be reached by more than one, owners once."""
    groups: dict[int, list[str]] = {}
    for path, child in module.named_modules():
        for name, tensor in (*child._parameters.items(), *child._buffers.items()):
            if tensor is not None:
                groups.setdefault(id(tensor), []).append(joined(path, name))
    return (group for group in groups.values() if len(group) > 1)


def user_methods(kind: type) -> set[str]:
    """Methods of a user's module class, which an attribute of the same name would hide."""
    own = [c for c in kind.__mro__ if not f"{c.__module__}.".startswith("torch.")]
    found = {name for c in own for name in vars(c) if isinstance(vars(c)[name], FunctionType)}
    return {name for name in found if not name.startswith("__")}
