"""Calls of the exported program -> the variables that the model's text gives their results to.

`hidden = torch.relu(self.fc1(x))` names the last call of its line, and `x = self.block(x)` what the
block returns. A name that a function gives to several values tells none of them apart, and is left
out; so is every name where the text is not at hand.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from types import MappingProxyType
from typing import Any

import torch

from fusewright.frontend.call_words import call_word, function_of, word_of

FRAME = re.compile(r'\s*File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>.*)')
SIGNS: Mapping[type[ast.AST], str] = MappingProxyType(
    {
        ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.MatMult: "matmul",
        ast.Pow: "pow", ast.FloorDiv: "floor_divide", ast.Mod: "remainder", ast.USub: "neg",
        ast.BitAnd: "bitwise_and", ast.BitOr: "bitwise_or", ast.Invert: "bitwise_not",
        ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne",
    }
)  # fmt: skip
SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr)
OTHERS = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Lambda,
)  # with lines of their own


@dataclass(frozen=True)
class Frame:
    """One line of Python that leads to a call."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, eq=False)
class _Call:
    """A call of the program. frames: from the outermost.  modules: keys of those that it is in.
    word: what it calls.  is_result: whether that returns it."""

    node: torch.fx.Node
    frames: tuple[Frame, ...]
    modules: tuple[str, ...]
    word: str
    is_result: bool


@dataclass(frozen=True)
class _Statement:
    """A simple statement. value: its expression, without the views around it.  targets: what its
    results are assigned to, "" for what is no name; none of them: the value is returned."""

    value: ast.expr
    targets: tuple[str, ...]


def frames_of(n: torch.fx.Node) -> tuple[Frame, ...]:
    """The lines of Python that lead to a call, from the outermost."""
    found = map(FRAME.fullmatch, (n.meta.get("stack_trace") or "").splitlines())
    return tuple(Frame(f["file"], int(f["line"]), f["function"]) for f in found if f)


def computes(n: torch.fx.Node) -> bool:
    """Whether a call returns tensors of its own, and no views."""
    if n.op != "call_function" or not isinstance(n.target, torch._ops.OpOverload):
        return False
    returns = n.target._schema.returns
    return bool(returns) and not any(r.alias_info for r in returns)


def results_of_functions(nodes: Iterable[torch.fx.Node]) -> frozenset[torch.fx.Node]:
    """Of the calls that compute, in order, the last that each function of PyTorch makes."""
    return frozenset(list(some)[-1] for _, some in groupby(nodes, function_of))


def assigned_variables(
    nodes: Sequence[torch.fx.Node], file: str
) -> Mapping[torch.fx.Node, tuple[str, ...]]:
    """The variable of each result of those calls that have some.

    nodes: those that compute, in order.  file: that of the model's text.
    """
    statements, results = _statements(file), results_of_functions(nodes)
    calls = [
        _Call(
            n, frames_of(n), tuple(n.meta.get("nn_module_stack") or {}), call_word(n), n in results
        )
        for n in nodes
        if statements
    ]
    program = _Program(calls, statements, file)
    found = {call.node: program.variables(k) for k, call in enumerate(calls)}
    return {n: names for n, names in found.items() if any(names)}


class _Program:
    """The calls of a program in order, and the statements of its text by line."""

    def __init__(
        self, calls: Sequence[_Call], statements: Mapping[int, _Statement], file: str
    ) -> None:
        self.calls, self.statements, self.file = calls, statements, file
        self.runs: dict[tuple[int, bool], list[list[_Call]]] = {}

    def variables(self, k: int) -> tuple[str, ...]:
        """What the innermost statement gives the results of call `k` to; of those that return it,
        what their callers do."""
        frames = self.calls[k].frames
        for depth in reversed(range(len(frames))):
            if frames[depth].file == self.file:
                statement = self.statements.get(frames[depth].line)
                if statement is None or not self._is_value(k, depth, statement):
                    return ()
                if statement.targets:
                    return statement.targets
        return ()

    def _is_value(self, k: int, depth: int, statement: _Statement) -> bool:
        """Whether call `k` is the last that the statement of its frame at `depth` makes."""
        run, value = self._run(k, depth, apart=False), statement.value
        wanted = _word(value)
        own = [c for c in run if c.word == wanted and c.is_result and not self._module(c, depth)]
        if own:
            times = sum(_word(e) == wanted for e in ast.walk(value))
            loops = len(own) % times == 0
            return any(c is self.calls[k] for c in (own[times - 1 :: times] if loops else own[-1:]))
        if not isinstance(value, ast.Call):
            return False
        given = [*value.args, *(word.value for word in value.keywords)]
        nested = any(isinstance(e, ast.Call) for a in given for e in ast.walk(a))
        return self._run(k, depth, apart=not nested)[-1] is self.calls[k]

    def _module(self, call: _Call, depth: int) -> str:
        """The key of the module that the frame at `depth` calls on the way, "" for none."""
        first = next((k for k, f in enumerate(call.frames) if f.file == self.file), depth)
        entered = sum(f.function == "forward" for f in call.frames[first : depth + 1])
        return next(iter(call.modules[entered:]), "")

    def _run(self, k: int, depth: int, *, apart: bool) -> list[_Call]:
        """The calls around one that the same statement makes. apart: those of one module alone."""

        def key(call: _Call) -> object:
            line = call.frames[depth].line if depth < len(call.frames) else 0
            place = id(self.statements[line]) if line in self.statements else line
            return call.frames[:depth], place, apart and self._module(call, depth)

        if (depth, apart) not in self.runs:
            runs = [list(some) for _, some in groupby(self.calls, key)]
            self.runs[depth, apart] = [run for run in runs for _ in run]
        return self.runs[depth, apart][k]


# ---- the model's text ----------------------------------------------------------------------------


def _statements(file: str) -> Mapping[int, _Statement]:
    """Line -> the statement on it, of those that assign or return a value and share no line."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return {}
    found, lines = dict[int, _Statement](), Counter[int]()
    for function in (f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef)):
        bound = Counter(name for n in ast.walk(function) if (name := _bound(n)))
        for statement in _simple(function):
            covered = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
            lines.update(covered)
            if made := _read(statement, bound):
                found |= dict.fromkeys(covered, made)
    return {line: made for line, made in found.items() if lines[line] == 1}


def _simple(function: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a function that hold no others."""
    for child in ast.iter_child_nodes(function):
        if isinstance(child, SIMPLE):
            yield child
        elif not isinstance(child, OTHERS):
            yield from _simple(child)


def _read(statement: ast.stmt, bound: Mapping[str, int]) -> _Statement | None:
    """bound: how often each name of the function is bound."""
    if isinstance(statement, ast.Return) and statement.value:
        return _Statement(_shown(statement.value), ())
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        (target,) = statement.targets
    elif isinstance(statement, ast.AnnAssign) and statement.value:
        target = statement.target
    else:
        return None
    places = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    names = tuple(p.id if isinstance(p, ast.Name) and bound[p.id] == 1 else "" for p in places)
    assert isinstance(statement, ast.Assign | ast.AnnAssign)
    return _Statement(_shown(statement.value), names) if statement.value else None


def _shown(e: ast.expr) -> ast.expr:
    """What views around it show."""
    while True:
        if isinstance(e, ast.Subscript | ast.Attribute):
            e = e.value
        elif isinstance(e, ast.Call) and isinstance(e.func, ast.Attribute) and _views(e.func.attr):
            e = e.func.value
        else:
            return e


@cache
def _views(name: str) -> bool:
    """Whether a method of tensors may return a view."""
    packet: Any = getattr(torch.ops.aten, name, None) if hasattr(torch.Tensor, name) else None
    if not issubclass(type(packet), torch._ops.OpOverloadPacket):
        return False
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
    shown = [r.alias_info for schema in schemas for r in schema.returns if r.alias_info]
    return any(not alias.is_write for alias in shown)


def _word(e: ast.AST) -> str:
    """What an expression calls, "" for one that is no call."""
    if isinstance(e, ast.Call):
        name = getattr(e.func, "attr", getattr(e.func, "id", ""))
        return word_of(name)
    if isinstance(e, ast.Compare) and len(e.ops) == 1:
        return SIGNS.get(type(e.ops[0]), "")
    return SIGNS.get(type(e.op), "") if isinstance(e, ast.BinOp | ast.UnaryOp) else ""


def _bound(n: ast.AST) -> str:
    """The name that a part of a function binds, "" for none."""
    if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
        return n.id
    return n.arg if isinstance(n, ast.arg) else ""
