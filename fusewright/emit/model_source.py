"""Problem source + kernels + `forward` -> the emitted file: the user's text, Model made ModelNew.

Only three things change in the user's text: the name, `forward` (kept as `reference_forward`), and
the block of kernels in front of the class. Everything else stays as it is. What is added is laid
out as `ruff format` would, in the indentation of the user's class.
"""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fusewright.errors import CaptureFailed

WIDTH = 100
OPEN, CLOSE = "([{", ")]}"
RESERVED = re.compile(r"ModelNew|_fusewright\w*|_FUSEWRIGHT\w*|reference_forward")


@dataclass(frozen=True)
class GeneratedForward:
    """What replaces `forward`: statements before the guard, its conditions, and the rest.

    signature: the parameters behind self, as text.  call: how they are handed on.
    """

    signature: str
    call: str
    summary: str
    prelude: tuple[str, ...]
    conditions: tuple[str, ...]
    statements: tuple[str, ...]


@dataclass(frozen=True)
class NewClass:
    """A class with a new `forward` for submodules. base: their own class, as text.  paths: where
    they are in the model."""

    name: str
    base: str
    paths: tuple[str, ...]
    forward: GeneratedForward


def emit_file(
    source: str, path: str, header: Sequence[str], runtime: str, forward: GeneratedForward
) -> str:
    """The text of the emitted file; raises CaptureFailed where Model is not a plain class."""
    source = _own_line_body(_renamed(source, path))
    model = _class(ast.parse(source), path)
    method = _method(model, path)
    lines = source.split("\n")
    start, end = (
        _first_line(lines, model),
        _last_line(model) if method is None else _last_line(method),
    )
    added = _added(lines, model, method, forward)
    if method:
        lines = _keep_reference(lines, method)
    text = [*_before(lines[:start]), *_block(runtime), *lines[start:end], *added, *lines[end:]]
    text[_import_line(source) : _import_line(source)] = _import_torch(source)
    return _under(header, text)


def rename_only(source: str, path: str, header: Sequence[str]) -> str:
    """The user's text with no other change than the name of its class; raises as `emit_file`."""
    source = _renamed(source, path)
    _class(ast.parse(source), path)
    return _under(header, source.split("\n"))


def emit_parts(
    source: str, path: str, header: Sequence[str], runtime: str, parts: Sequence[NewClass]
) -> str:
    """The user's text as it is, then kernels, classes for some submodules, and ModelNew, whose
    constructor gives these submodules their classes."""
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    check_names(source, path)
    lines = source.rstrip().split("\n")
    lines[_import_line(source) : _import_line(source)] = _import_torch(source)
    classes = [line for part in parts for line in _subclass(part)]
    table = [line for part in parts for line in _places(part)]
    paths = ["_FUSEWRIGHT_PARTS = {  # class -> where its instances are", *table, "}"]
    return _under(header, [*lines, "", "", *_block(runtime), *classes, *paths, *_MODEL_NEW])


def alias(source: str, path: str, header: Sequence[str]) -> str:
    """The user's text as it is, for a Model that is no plain class of the file."""
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    check_names(source, path)
    return _under(header, [*source.rstrip().split("\n"), "", "ModelNew = Model"])


def emit_bare_class(runtime: str, forward: GeneratedForward) -> str:
    """Runtime and a bare `class ModelNew` with the new `forward`, for a module that has no file."""
    return emit_classes(runtime, [NewClass("ModelNew", "", (), forward)])


def emit_classes(runtime: str, parts: Sequence[NewClass]) -> str:
    """Runtime and bare classes with a new `forward`."""
    lines = ["import torch", "", *_block(runtime)]
    for part in parts:
        methods = _methods(part.forward, part.forward.signature, "")
        lines += [f"class {part.name}:", *(_indented(line, "    ") for line in methods), ""]
    return "\n".join(lines).rstrip() + "\n"


def wrap(line: str, indent: int) -> list[str]:
    """One statement, broken at its brackets where it is too long, as `ruff format` does."""
    whole = " " * indent + line
    pair = _last_brackets(line) if len(whole) > WIDTH else None
    if pair is None:
        return [whole]
    head, inside, tail = line[: pair[0] + 1], line[pair[0] + 1 : pair[1]], line[pair[1] :]
    first, last = " " * indent + head, " " * indent + tail
    parts, inner = _split(inside, ","), indent + 4
    if len(" " * inner + inside) <= WIDTH:
        return [first, " " * inner + inside, last]
    if len(parts) > 1:
        broken = [part for p in parts for part in wrap(f"{p},", inner)]
        return [first, *broken, last]
    word = "and" if len(_split(inside, " and ")) > 1 else "or"
    terms = _split(inside, f" {word} ")
    joined = [terms[0], *(f"{word} {term}" for term in terms[1:])]
    return [first, *(part for t in joined for part in wrap(t, inner)), last]


def tidy(statement: str) -> str:
    """A statement as one line in the spelling of `ruff format`: double quotes, no stray commas."""
    return _double_quotes(ast.unparse(ast.parse(statement)))


# ---- the user's text -----------------------------------------------------------------------------


def _renamed(source: str, path: str) -> str:
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    check_names(source, path)
    return _rename(source, path)


def check_names(source: str, path: str) -> None:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and RESERVED.fullmatch(token.string):
            raise CaptureFailed(
                f"{path}:{token.start[0]}: the name {token.string} is used for what is generated. "
                "Rename it, or give the original problem file."
            )


def _rename(source: str, path: str) -> str:
    """Every use of the class `Model` becomes `ModelNew`; attributes, strings and comments stay."""
    lines = source.split("\n")
    edits = sorted(set(_uses(ast.parse(source), lines, path)), reverse=True)
    for row, column in edits:
        line = lines[row]
        lines[row] = f"{line[:column]}ModelNew{line[column + len('Model') :]}"
    return "\n".join(lines)


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


def _first_line(lines: Sequence[str], model: ast.ClassDef) -> int:
    """The index of the first line of the class, its decorators and the comments right above."""
    start = min([model.lineno, *(d.lineno for d in model.decorator_list)]) - 1
    while start and lines[start - 1].startswith("#"):
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


_MODEL_NEW = """

class ModelNew(Model):
    \"\"\"Model, where some submodules run kernels.\"\"\"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        children = dict(self.named_modules())
        for kind, paths in _FUSEWRIGHT_PARTS.items():
            for child in map(children.get, paths):
                if type(child) is kind.__base__:
                    child.__class__ = kind
""".rstrip().split("\n")


def _subclass(part: NewClass) -> list[str]:
    methods = [
        _indented(line, "    ") for line in _methods(part.forward, part.forward.signature, "")
    ]
    kept = f"    reference_forward = {part.base}.forward"
    return [f"class {part.name}({part.base}):", kept, "", *methods, "", ""]


def _places(part: NewClass) -> list[str]:
    return wrap(f"{part.name}: ({', '.join(map(_quoted, part.paths))},),", 4)


def _quoted(text: str) -> str:
    return f'"{text}"'


# ---- what is added -------------------------------------------------------------------------------


def _added(
    lines: Sequence[str], model: ast.ClassDef, method: ast.FunctionDef | None, new: GeneratedForward
) -> list[str]:
    """The new methods, in the indentation of the class."""
    first = lines[model.body[-1].lineno - 1]
    unit = first[: len(first) - len(first.lstrip())]
    if method is None:
        text = [
            "",
            "def reference_forward(self, *args, **kwargs):",
            "    return super().forward(*args, **kwargs)",
            "",
            *_methods(new, new.signature, ""),
        ]
    else:
        returns = f" -> {ast.unparse(method.returns)}" if method.returns else ""
        text = ["", *_methods(new, _signature(method), returns)]
    return [_indented(line, unit) for line in text]


def _indented(line: str, unit: str) -> str:
    plain = line.lstrip(" ")
    return unit + unit * ((len(line) - len(plain)) // 4) + plain if plain else ""


def _signature(method: ast.FunctionDef) -> str:
    """The parameters behind the first one, as the user wrote them."""
    return _double_quotes(ast.unparse(method.args)).partition(", ")[2]


def _methods(new: GeneratedForward, signature: str, returns: str) -> list[str]:
    """`forward`, as lines at the left margin; widths count the indentation of a method."""
    head = (
        f"def forward(self, {signature}){returns}:" if signature else f"def forward(self){returns}:"
    )
    guard = f"if not ({' and '.join(new.conditions)}):"
    body = [
        f'"""{new.summary}"""',
        *new.prelude,
        guard,
        f"    return self.reference_forward({new.call})",
        *map(tidy, new.statements),
    ]
    lines = wrap(head, 4)
    for line in body:
        plain = line.lstrip()
        lines += wrap(plain, 8 + len(line) - len(plain))
    return [line[4:] for line in lines]


def _block(runtime: str) -> list[str]:
    rule = "# ---- kernels of ModelNew ".ljust(WIDTH - 1, "-")
    return [rule, "", *runtime.strip("\n").split("\n"), "", ""]


def _before(lines: list[str]) -> list[str]:
    """The lines in front of the class, with the distance to a comment that ruff wants."""
    kept = "\n".join(lines).rstrip().split("\n")
    imports = re.match(r"(import|from)\s|\)", kept[-1])
    return [*kept, *([""] if imports else ["", ""])] if kept != [""] else []


def _under(header: Sequence[str], text: Sequence[str]) -> str:
    comments = [wrapped for line in header for wrapped in _comment(line)]
    return "\n".join([*comments, *text]).rstrip() + "\n"


def _comment(line: str) -> list[str]:
    """A line of the header as comment lines that are not too long."""
    indent = len(line) - len(line.lstrip())
    hanging = " " * (indent + 4)
    wrapped = textwrap.wrap(line, WIDTH - 2, initial_indent="", subsequent_indent=hanging)
    return [f"# {part}" for part in wrapped] or ["#"]


def _last_brackets(line: str) -> tuple[int, int] | None:
    """Where the last pair of outer brackets with something inside opens and closes."""
    found, stack = None, []
    for i, c in _code(line):
        if c in OPEN:
            stack.append(i)
        elif c in CLOSE:
            start = stack.pop()
            if not stack and line[start + 1 : i].strip():
                found = (start, i)
    return found


def _split(text: str, separator: str) -> list[str]:
    """Split at the separators outside brackets and strings."""
    parts, depth, start = [], 0, 0
    for i, c in _code(text):
        depth += (c in OPEN) - (c in CLOSE)
        if depth == 0 and text.startswith(separator, i):
            parts.append(text[start:i].strip())
            start = i + len(separator)
    return [p for p in [*parts, text[start:].strip()] if p]


def _code(text: str) -> Iterator[tuple[int, str]]:
    """The characters outside strings, with their positions."""
    quote = ""
    for i, c in enumerate(text):
        if quote:
            quote = "" if c == quote and text[i - 1] != "\\" else quote
        elif c in "\"'":
            quote = c
        else:
            yield i, c


def _double_quotes(text: str) -> str:
    """Strings in double quotes where that needs no more escapes."""
    pieces, end = [], 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        plain = token.string.startswith("'") and not token.string.startswith("'''")
        if token.type == tokenize.STRING and plain and '"' not in token.string:
            start = token.start[1]
            inner = token.string[1:-1].replace("\\'", "'")
            pieces += [text[end:start], f'"{inner}"']
            end = token.end[1]
    return "".join([*pieces, text[end:]])
