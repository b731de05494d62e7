"""A function of a problem file -> whether reading its text tells all that a call of it does.

Such a function makes tensors and numbers out of nothing but constants of its file, by calls that
are known: it keeps nothing, changes nothing that others see, and neither prints nor opens a file.
So it may be called once more, or on tensors without values, and nobody could tell. What is not in
the tables below is not understood, and that is no fault of the file: its function is then called
as anyone would call it.
"""

from __future__ import annotations

import ast
import builtins
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch

# Statements and expressions that do nothing but what their parts do.
PLAIN_NODES = (
    *(ast.Assign, ast.Return, ast.Expr, ast.Pass, ast.For, ast.If, ast.Constant, ast.Tuple),
    *(ast.List, ast.Dict, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Slice),
    *(ast.Starred, ast.keyword, ast.ListComp, ast.GeneratorExp, ast.DictComp),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context),
)
BUILTINS = (
    *("range", "len", "int", "float", "bool", "complex", "list", "tuple", "dict", "zip"),
    *("enumerate", "min", "max", "sum", "abs", "round", "reversed", "any", "all"),
)
CONSTANTS: tuple[type, ...] = (
    *(bool, int, float, complex, str, type(None)),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
)
# Of a value that the function has made: what may be read, and what may be called beside the names
# that are operators of PyTorch. What changes lists and dicts stands apart.
ATTRIBUTES = (
    *("shape", "dtype", "device", "ndim", "T", "mT", "H", "mH", "real", "imag"),
    "requires_grad",
)
METHODS = (
    *("to", "float", "half", "double", "bfloat16", "int", "long", "short", "bool", "type"),
    *("cpu", "size", "dim", "stride", "is_contiguous", "requires_grad_", "repeat", "tile"),
    *("manual_seed", "items", "keys", "values", "copy"),
)
CHANGES = (
    *("append", "extend", "insert", "pop", "popitem", "remove", "clear", "sort", "reverse"),
    *("update", "setdefault"),
)
# Operators that do more than compute from what they are given.
NEVER = ("from_file", "set_", "set_data", "resize_", "resize_as_", "record_stream")
PYTHON_OF_TORCH = ("torch.nn.functional", "torch.functional")
MODULES = (torch, math, torch.nn, torch.nn.functional)
KINDS_OF_TORCH = (torch.Generator, torch.device, torch.Size, torch.Tensor)


def is_understood(name: str, source: str, space: Mapping[str, object]) -> bool:
    """Whether all that `name()` does can be read. space: the names of the file when it has run."""
    heads = {n.lineno: n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)}
    reader = _Reader(heads, space)
    try:
        return reader.function(space.get(name)) and not (reader.shared and reader.changes)
    except RecursionError:  # it holds itself, or is written deeper than anyone reads
        return False


@dataclass
class _Reader:
    """heads: the functions of the file by their lines.  known: those that were read already.
    shared: some text names a list or a dict of the file.  changes: some text changes one."""

    heads: Mapping[int, ast.FunctionDef]
    space: Mapping[str, object]
    known: set[str] = field(default_factory=set)
    shared: bool = False
    changes: bool = False

    def function(self, value: object) -> bool:
        """Whether it is a function of the file that is understood."""
        if not isinstance(value, FunctionType) or value.__globals__ is not self.space:
            return False
        head = self.heads.get(value.__code__.co_firstlineno)
        defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        if head is None or head.name != value.__name__ or head.decorator_list:
            return False
        if value.__closure__ or not all(map(_is_constant, defaults)):
            return False
        self.shared |= not all(map(_is_fixed, defaults))
        if head.name in self.known:
            return True
        self.known.add(head.name)
        inner = [n for n in ast.walk(head) if isinstance(n, ast.comprehension)]
        for n in (n for comprehension in inner for n in ast.walk(comprehension.target)):
            if isinstance(n, ast.Name) and n.id in self.space:
                return False  # one name for two things
        stored = [n for n in ast.walk(head) if isinstance(n, ast.Name | ast.arg)]
        local = {n.arg for n in stored if isinstance(n, ast.arg)}
        local |= {n.id for n in stored if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        return all(_Text(self, frozenset(local)).holds(n) for n in head.body)


@dataclass(frozen=True)
class _Text:
    """The text of one function. local: the names that it gives values."""

    reader: _Reader
    local: frozenset[str]

    def holds(self, n: ast.AST) -> bool:
        """Whether the node and all within it are understood."""
        special = SPECIAL.get(type(n))
        if special is not None:
            return special(self, n)
        return isinstance(n, PLAIN_NODES) and self.within(n)

    def within(self, n: ast.AST) -> bool:
        return all(map(self.holds, ast.iter_child_nodes(n)))

    def comprehension(self, n: Any) -> bool:
        return not n.is_async and self.within(n)

    def binary(self, n: Any) -> bool:
        """Text with a value in it says how the value looks."""
        formats = isinstance(n.op, ast.Mod) and not isinstance(n.left, ast.Name | ast.BinOp)
        return not (formats and isinstance(getattr(n.left, "value", None), str)) and self.within(n)

    def augmented(self, n: Any) -> bool:
        self.reader.changes = True
        return self.within(n)

    def annotated(self, n: Any) -> bool:
        return self.holds(n.target) and (n.value is None or self.holds(n.value))

    def subscript(self, n: Any) -> bool:
        self.reader.changes |= not isinstance(n.ctx, ast.Load)
        return self.within(n)

    def name(self, n: Any) -> bool:
        if isinstance(n.ctx, ast.Store) or n.id in self.local:
            return not isinstance(n.ctx, ast.Del)
        value = self.named(n.id)
        self.reader.shared |= not _is_fixed(value)
        return _is_constant(value)

    def attribute(self, n: Any) -> bool:
        if not isinstance(n.ctx, ast.Load):
            return False
        value = self.found(n)
        if value is not None:
            return _is_constant(value)
        return n.attr in ATTRIBUTES and self.holds(n.value)

    def call(self, n: Any) -> bool:
        return self.callee(n.func) and all(map(self.holds, (*n.args, *n.keywords)))

    def callee(self, n: Any) -> bool:
        value = self.found(n)
        if value is not None:
            known = _is_builtin(value) or _is_torchs(value)
            return known or self.reader.function(value)
        if not isinstance(n, ast.Attribute):
            return False
        self.reader.changes |= n.attr in CHANGES
        hidden = n.attr.startswith("_") or n.attr in NEVER
        known = n.attr in (*METHODS, *CHANGES) or (not hidden and hasattr(torch.ops.aten, n.attr))
        return known and self.holds(n.value)

    def found(self, n: ast.AST) -> object:
        """What a name of the file, or of a module that it names, stands for; None for others."""
        if isinstance(n, ast.Name):
            return None if n.id in self.local else self.named(n.id)
        if isinstance(n, ast.Attribute):
            owner = self.found(n.value)
            if any(owner is module for module in MODULES):
                return getattr(owner, n.attr, None)
        return None

    def named(self, name: str) -> object:
        return self.reader.space.get(name, getattr(builtins, name, None))


SPECIAL: Mapping[type[ast.AST], Callable[[_Text, Any], bool]] = {
    ast.comprehension: _Text.comprehension,
    ast.BinOp: _Text.binary,
    ast.AugAssign: _Text.augmented,
    ast.AnnAssign: _Text.annotated,
    ast.Subscript: _Text.subscript,
    ast.Name: _Text.name,
    ast.Attribute: _Text.attribute,
    ast.Call: _Text.call,
}


def _is_constant(value: object) -> bool:
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return all(map(_is_constant, value))
    if isinstance(value, dict) and type(value) is dict:
        return all(map(_is_constant, (*value, *value.values())))
    return type(value) in CONSTANTS


def _is_fixed(value: object) -> bool:
    """Whether nothing can be changed in a constant."""
    if isinstance(value, tuple):
        return all(map(_is_fixed, value))
    return not isinstance(value, list | dict)


def _is_builtin(value: object) -> bool:
    if not isinstance(value, type | BuiltinFunctionType):
        return False
    name = value.__name__
    known = name in BUILTINS and value is getattr(builtins, name)
    return known or value is getattr(math, name, None)


def _is_torchs(value: object) -> bool:
    """Whether it is a function of PyTorch that only computes."""
    if any(value is kind for kind in KINDS_OF_TORCH):
        return True
    if isinstance(value, FunctionType):
        seeds = (value.__module__, value.__name__) == ("torch.random", "manual_seed")
        return seeds or value.__module__ in PYTHON_OF_TORCH
    if not isinstance(value, BuiltinFunctionType) or value.__name__ in NEVER:
        return False
    operators = torch._C._VariableFunctions
    return value == getattr(operators, value.__name__, None)
