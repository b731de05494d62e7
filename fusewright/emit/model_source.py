"""The user's file -> its text with Model made ModelNew, and the places where text can be added.

Only two things change in the user's text: the name of the class, and that of its `forward`, which
becomes `reference_forward`. Everything else stays as it is.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fusewright.emit.formatter import double_quotes
from fusewright.emit.import_time import first_that_runs
from fusewright.errors import CaptureFailed

RESERVED = re.compile(r"ModelNew|_fusewright\w*|_FUSEWRIGHT\w*|reference_forward")


@dataclass(frozen=True)
class ModelSource:
    """The user's file around the two places where text is added: that of a new `forward`, behind
    `until_forward`, and that of what it calls.

    What it calls stands behind `definitions`, in front of the rest, or, where the class may run as
    soon as it is defined, behind `until_class`.

    runs_at_once: whether it may.  unit: the indentation of the class.  signature: the parameters of
    its `forward` behind the first, as the user wrote them; None where it inherits `forward`.
    returns: ` -> ...`, if that is said.
    """

    until_class: tuple[str, ...]
    until_forward: tuple[str, ...]
    definitions: tuple[str, ...]
    rest: tuple[str, ...]
    runs_at_once: bool
    unit: str
    signature: str | None
    returns: str


def model_source(source: str, path: str) -> ModelSource:
    """The user's file; raises CaptureFailed where Model is not a plain class."""
    source = _own_line_body(_with_model_new(source, path))
    tree = ast.parse(source)
    model = _class(tree, path)
    method = _method(model, path)
    lines = source.split("\n")
    start, end = _first_line(lines, tree, model), _last_line(method or model)
    runs = first_that_runs(tree.body, model)
    place = len(lines) if runs in (model, None) else _first_line(lines, tree, runs)
    first = lines[model.body[-1].lineno - 1]
    before = lines[:start]
    before[_import_line(source) : _import_line(source)] = _import_torch(source)
    if method:
        lines = _keep_reference(lines, method)
    return ModelSource(
        tuple(before),
        tuple(lines[start:end]),
        tuple(lines[end:place]),
        tuple(lines[place:]),
        runs_at_once=runs is model,
        unit=first[: len(first) - len(first.lstrip())],
        signature=_signature(method) if method else None,
        returns=f" -> {ast.unparse(method.returns)}" if method and method.returns else "",
    )


def renamed_lines(source: str, path: str) -> list[str]:
    """The user's text with no other change than the name of its class; raises as above."""
    source = _with_model_new(source, path)
    _class(ast.parse(source), path)
    return source.split("\n")


def unchanged_lines(source: str, path: str) -> list[str]:
    """The user's text as it is."""
    source = _with_plain_line_ends(source)
    _check_names(source, path)
    return source.rstrip().split("\n")


def lines_with_torch(source: str, path: str) -> list[str]:
    """The user's text as it is, but for `import torch` where generated code would not find it."""
    lines, source = unchanged_lines(source, path), _with_plain_line_ends(source)
    lines[_import_line(source) : _import_line(source)] = _import_torch(source)
    return lines


def _with_plain_line_ends(source: str) -> str:
    return source.replace("\r\n", "\n").replace("\r", "\n")


# ---- Model becomes ModelNew ----------------------------------------------------------------------


def _with_model_new(source: str, path: str) -> str:
    """Every use of the class `Model` becomes `ModelNew`; attributes, strings and comments stay."""
    source = _with_plain_line_ends(source)
    _check_names(source, path)
    lines = source.split("\n")
    edits = sorted(set(_uses(ast.parse(source), lines, path)), reverse=True)
    for row, column in edits:
        line = lines[row]
        lines[row] = f"{line[:column]}ModelNew{line[column + len('Model') :]}"
    return "\n".join(lines)


def _check_names(source: str, path: str) -> None:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and RESERVED.fullmatch(token.string):
            raise CaptureFailed(
                f"{path}:{token.start[0]}: the name {token.string} is used for what is generated. "
                "Rename it, or give the original problem file."
            )


def _uses(tree: ast.AST, lines: Sequence[str], path: str) -> Iterator[tuple[int, int]]:
    """Row and column of every `Model` that means the class."""
    for n in ast.iter_child_nodes(tree):
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and _hides(n):
            continue
        if isinstance(n, ast.JoinedStr):
            yield from _in_format_string(n, lines)
            continue
        if isinstance(n, ast.Name) and n.id == "Model":
            yield n.lineno - 1, _characters(lines[n.lineno - 1], n.col_offset)
        elif isinstance(n, ast.ClassDef) and n.name == "Model":
            found = re.compile(r"class\s+(?=Model\b)").match(lines[n.lineno - 1].lstrip())
            if found is None:
                raise CaptureFailed(f"{path}:{n.lineno}: write `class Model` on one line.")
            yield n.lineno - 1, n.col_offset + found.end()
        elif isinstance(n, ast.Global) and "Model" in n.names:
            yield n.lineno - 1, lines[n.lineno - 1].index("Model")
        yield from _uses(n, lines, path)


def _hides(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> bool:
    """Whether the function has an argument of its own called Model."""
    a = function.args
    named = [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]
    return any(arg is not None and arg.arg == "Model" for arg in named)


def _in_format_string(n: ast.JoinedStr, lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Uses between the braces of a format string: ast does not place them before Python 3.12."""
    names = [x for x in ast.walk(n) if isinstance(x, ast.Name) and x.id == "Model"]
    for row in range(n.lineno - 1, n.end_lineno or n.lineno) if names else ():
        for field in re.finditer(r"\{[^{}]*\}", lines[row]):
            for use in re.finditer(r"(?<![\w.\"'])Model\b(?![\"'])", field[0]):
                yield row, field.start() + use.start()


def _characters(line: str, offset: int) -> int:
    """A byte offset, as ast counts, in characters."""
    return len(line.encode()[:offset].decode())


# ---- where it stands -----------------------------------------------------------------------------


def _own_line_body(source: str) -> str:
    """`class ModelNew(Base): x = 1` with its body on a line of its own."""
    lines = source.split("\n")
    for n in ast.parse(source).body:
        if isinstance(n, ast.ClassDef) and n.name == "ModelNew" and n.body[0].lineno == n.lineno:
            row = n.lineno - 1
            column = _characters(lines[row], n.body[0].col_offset)
            lines[row : row + 1] = [lines[row][:column].rstrip(), f"    {lines[row][column:]}"]
    return "\n".join(lines)


def _class(tree: ast.Module, path: str) -> ast.ClassDef:
    found = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "ModelNew"]
    for n in tree.body:
        if not isinstance(n, ast.ClassDef | ast.FunctionDef):
            stored = (x for x in ast.walk(n) if isinstance(x, ast.Name) and x.id == "ModelNew")
            if any(isinstance(x.ctx, ast.Store) for x in stored):
                raise CaptureFailed(
                    f"{path}:{n.lineno}: Model is assigned here. Define it by one class statement."
                )
    if not found:
        raise CaptureFailed(
            f"{path}: Model is not a class at the top level of the file. Define it there."
        )
    return found[-1]


def _method(model: ast.ClassDef, path: str) -> ast.FunctionDef | None:
    """The last `def forward` of the class, None if it inherits forward."""
    found: ast.FunctionDef | None = None
    for n in model.body:
        if isinstance(n, ast.FunctionDef) and n.name == "forward":
            found = n
        elif isinstance(n, ast.AsyncFunctionDef) and n.name == "forward":
            raise CaptureFailed(f"{path}:{n.lineno}: forward is async. Make it a plain function.")
        elif "forward" in _bound(n):
            raise CaptureFailed(
                f"{path}:{n.lineno}: forward is not defined by a plain `def` in the class. "
                "Write it so."
            )
    return found


def _bound(n: ast.stmt) -> set[str]:
    """Names that a statement of a class body binds, other than by a plain `def`."""
    if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return set()
    inside = list(ast.walk(n))
    stored = {x.id for x in inside if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
    return stored | {x.name for x in inside if isinstance(x, ast.FunctionDef)}


def _first_line(lines: Sequence[str], tree: ast.Module, statement: ast.stmt) -> int:
    """The index of the first line of a statement at the top level, its decorators and the comments
    right above; or that of one in whose last line it begins."""
    before = tree.body[: tree.body.index(statement)]
    decorators: Sequence[ast.expr] = getattr(statement, "decorator_list", ())
    start = min([statement.lineno, *(d.lineno for d in decorators)]) - 1
    for other in reversed(before):
        if _last_line(other) > start:
            start = min(start, other.lineno - 1)
    free = max([0, *(_last_line(other) for other in before if _last_line(other) <= start)])
    while start > free and lines[start - 1].startswith("#"):
        start -= 1
    return start


def _last_line(n: ast.stmt) -> int:
    assert n.end_lineno is not None, "a parsed statement has an end"
    return n.end_lineno


def _keep_reference(lines: list[str], method: ast.FunctionDef) -> list[str]:
    row = method.lineno - 1
    changed = re.sub(r"(def\s+)forward\b", r"\1reference_forward", lines[row], count=1)
    return [*lines[:row], changed, *lines[row + 1 :]]


def _import_line(source: str) -> int:
    """The index of the line behind the documentation and the `__future__` imports."""
    row = 0
    for k, n in enumerate(ast.parse(source).body):
        first = k == 0 and isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)
        if not first and not (isinstance(n, ast.ImportFrom) and n.module == "__future__"):
            break
        row = _last_line(n)
    return row


def _import_torch(source: str) -> list[str]:
    """What the generated code needs where the user's file has no `import torch` of its own."""
    for n in ast.parse(source).body:
        if isinstance(n, ast.Import) and any(a.name == "torch" and not a.asname for a in n.names):
            return []
        if isinstance(n, ast.ClassDef) and n.name == "ModelNew":
            break
    return ["", "import torch"] if _import_line(source) else ["import torch", ""]


def _signature(method: ast.FunctionDef) -> str:
    """The parameters behind the first one, as the user wrote them."""
    return double_quotes(ast.unparse(method.args)).partition(", ")[2]
