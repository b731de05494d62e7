"""Problem source + Plan + Bodies -> the emitted file: the user's own text with `Model` made `ModelNew`.

Only three things change in the user's text: the name, `forward` (kept as `reference_forward`), and the
block of kernels in front of the class. Everything else stays byte for byte.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass

from fusewright.errors import CaptureFailed

WIDTH = 100


@dataclass(frozen=True)
class NewForward:
    """What replaces `forward`: its guard conditions, its statements, one line of documentation."""

    conditions: tuple[str, ...]
    statements: tuple[str, ...]
    summary: str


def emit(source: str, path: str, header: Sequence[str], runtime: str, forward: NewForward) -> str:
    """The text of the emitted file."""
    renamed = _rename(source)
    tree = ast.parse(renamed)
    model = _class(tree, path)
    lines = renamed.splitlines()
    method = next((n for n in model.body if isinstance(n, ast.FunctionDef) and n.name == "forward"), None)
    indent = " " * model.body[0].col_offset
    if method is None:
        end = model.end_lineno or len(lines)
        added = ["", *_inherited(indent), "", *_methods(forward, "*args, **kwargs", [], indent)]
    else:
        end = method.end_lineno or len(lines)
        lines = _keep_reference(lines, method)
        added = ["", *_methods(forward, _signature(method), _call(method), indent)]
    start = min([model.lineno, *(d.lineno for d in model.decorator_list)]) - 1
    block = [_rule("kernels of ModelNew"), *runtime.rstrip().splitlines(), "", _rule("the model"), ""]
    parts = [
        *(f"# {line}".rstrip() for line in header),
        *lines[:start],
        *block,
        *lines[start:end],
        *added,
        *lines[end:],
    ]
    return "\n".join(parts).rstrip() + "\n"


def argument_names(source: str, path: str) -> tuple[str, ...]:
    """The parameters of `Model.forward` after self, positional ones in order."""
    model = _class(ast.parse(_rename(source)), path)
    for n in model.body:
        if isinstance(n, ast.FunctionDef) and n.name == "forward":
            arguments = n.args
            names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)][1:]
            if arguments.vararg:
                raise CaptureFailed(
                    f"{path}:{n.lineno}: forward takes *{arguments.vararg.arg}. Name its arguments."
                )
            return tuple(names)
    raise CaptureFailed(f"{path}:{model.lineno}: class Model has no forward of its own. Define it there.")


def _class(tree: ast.Module, path: str) -> ast.ClassDef:
    for n in tree.body:
        if isinstance(n, ast.ClassDef) and n.name == "ModelNew":
            return n
    raise CaptureFailed(f"{path}: Model is not a class at the top level of the file. Define it there.")


def _rename(source: str) -> str:
    """Every name `Model` becomes `ModelNew`; attributes, strings and comments stay."""
    lines = source.splitlines(keepends=True)
    previous = ""
    edits: list[tuple[int, int]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and token.string == "Model" and previous != ".":
            edits.append(token.start)
        previous = token.string
    for row, column in reversed(edits):
        line = lines[row - 1]
        lines[row - 1] = f"{line[:column]}ModelNew{line[column + len('Model') :]}"
    return "".join(lines)


def _keep_reference(lines: list[str], method: ast.FunctionDef) -> list[str]:
    row = method.lineno - 1
    changed = lines[row].replace("def forward", "def reference_forward", 1)
    return [*lines[:row], changed, *lines[row + 1 :]]


def _inherited(indent: str) -> list[str]:
    return [
        f"{indent}def reference_forward(self, *args, **kwargs):",
        f"{indent}    return super().forward(*args, **kwargs)",
    ]


def _signature(method: ast.FunctionDef) -> str:
    """The parameters without self, as the user wrote them."""
    text = ast.unparse(method.args)
    return text.partition(", ")[2]


def _call(method: ast.FunctionDef) -> list[str]:
    """How the parameters are handed on to `reference_forward`."""
    arguments = method.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)][1:]
    names += [f"{a.arg}={a.arg}" for a in arguments.kwonlyargs]
    return names + ([f"**{arguments.kwarg.arg}"] if arguments.kwarg else [])


def _methods(forward: NewForward, signature: str, call: list[str], indent: str) -> list[str]:
    """`forward` and the guard, as lines of the class."""
    names = [name for name in call if "=" not in name and "*" not in name]
    ready = ", ".join(["self", *names])
    head = f"def forward(self, {signature}):" if signature else "def forward(self):"
    lines = [
        head,
        f'    """{forward.summary}"""',
        f"    if not self._fusewright_ready({', '.join(names)}):",
        f"        return self.reference_forward({', '.join(call)})",
        *(line for statement in forward.statements for line in _wrapped(statement)),
        "",
        f"def _fusewright_ready({ready}):",
        '    """Whether the kernels compute exactly what `reference_forward` would."""',
        "    return (",
        *(f"        {'and ' if k else ''}{c}" for k, c in enumerate(forward.conditions)),
        "    )",
    ]
    return [f"{indent}{line}" if line else "" for line in lines]


def _wrapped(statement: str) -> list[str]:
    """One statement, its call broken over lines when it is long."""
    if len(statement) + 8 <= WIDTH or "(" not in statement:
        return [f"    {statement}"]
    head, _, tail = statement.partition("(")
    inside, close, rest = tail.rpartition(")")
    return [f"    {head}(", *(f"        {a}," for a in _arguments(inside)), f"    {close}{rest}"]


def _arguments(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [p for p in [*parts, text[start:].strip()] if p]


def _rule(title: str) -> str:
    return f"# ---- {title} ".ljust(WIDTH - 1, "-")
