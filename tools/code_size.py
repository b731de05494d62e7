"""The package's source -> what has outgrown a reader and no linter sees: `tools/code_size.py`.

Ruff counts branches, statements, returns and arguments. Here are counted lines of code: those that
are no blank line, comment or docstring, and no table at the top of a module, so that nobody saves
by saying less. There is no limit for the whole; `--packages` prints what each package has.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parent.parent
DEVICE_TEXT = (".h", ".cuh", ".cpp", ".cu")
SUFFIXES = (".py", ".jinja", *DEVICE_TEXT)
LAYOUT = (
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
)  # fmt: skip

# File, or file and function, inside the package -> why it may be longer.
EXCEPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "devicelib/cpp/team.h": "a table of operands and reductions, one section each",
        "devicelib/cuda/operand.cuh": "a table of operands, one section each",
        "judge/evidence/oracle.py": "one class: all of it asks one problem's two models",
    }
)


@dataclass(frozen=True)
class Limits:
    """Lines of code."""

    file: int = 500
    function: int = 60
    exceptions: Mapping[str, str] = field(default_factory=lambda: EXCEPTIONS)


@dataclass(frozen=True)
class Function:
    """code: its lines of code, those of functions inside it, too."""

    name: str
    line: int
    code: int


@dataclass(frozen=True)
class File:
    """lines: all of them.  code: those of code.  purpose: whether it says what it is for."""

    path: str
    lines: int
    code: int
    functions: tuple[Function, ...]
    purpose: bool


def measure(package: Path) -> tuple[File, ...]:
    """Every source file of the package, in order of its path."""
    paths = sorted(p for p in package.rglob("*") if p.suffix in SUFFIXES and p.is_file())
    return tuple(_file(package, path) for path in paths)


def complaints(files: Sequence[File], limits: Limits) -> list[str]:
    """What exceeds a limit, one sentence each; empty if all is well."""
    found, needed = [], set[str]()
    for file in files:
        sizes = [(file.path, file.path, file.code, limits.file)]
        sizes += [
            (f"{file.path} {f.name}", f"{file.path}:{f.line} {f.name}", f.code, limits.function)
            for f in file.functions
        ]
        for name, place, code, most in sizes:
            if code > most:
                needed.add(name)
                if name not in limits.exceptions:
                    found.append(f"{place} has {code} lines of code, the limit is {most}")
        if not file.purpose:
            found.append(f"{file.path} does not say what it is for: it has no docstring")
    for name in sorted(limits.exceptions.keys() - needed):
        found.append(f"{name} is an exception without need: it is absent or within the limit")
    return found


def packages(files: Sequence[File]) -> Iterator[str]:
    """A line for each package, the largest first: files, lines of code, lines."""
    sums = dict[str, list[int]]()
    for file in files:
        row = sums.setdefault(file.path.rpartition("/")[0] or ".", [0, 0, 0])
        for k, count in enumerate((1, file.code, file.lines)):
            row[k] += count
    yield "files   code  lines  package"
    for name, row in sorted(sums.items(), key=lambda item: -item[1][1]):
        yield f"{row[0]:5} {row[1]:6} {row[2]:6}  {name}"


def _file(package: Path, path: Path) -> File:
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(package).as_posix()
    lines = text.splitlines()
    if path.suffix != ".py":
        code = _device_code(text) if path.suffix in DEVICE_TEXT else sum(map(bool, lines))
        return File(name, len(lines), code, (), purpose=True)
    tree = ast.parse(text)
    code_lines = _code_lines(text, tree)
    functions = tuple(_functions(tree, code_lines))
    code = len(code_lines - _tables(tree))
    return File(name, len(lines), code, functions, purpose=bool(ast.get_docstring(tree)))


def _code_lines(text: str, tree: ast.Module) -> set[int]:
    """Numbers of the lines that hold code: no blank ones, comments and docstrings."""
    code = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            code |= {*range(token.start[0], token.end[0] + 1)}
    for n in ast.walk(tree):
        if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = n.body[0] if n.body else None
            if isinstance(first, ast.Expr) and ast.get_docstring(n, clean=False) is not None:
                code -= _lines_of(first)
    return code


def _tables(tree: ast.Module) -> set[int]:
    """Lines of literals at the top of a module, wrapped by a call or not."""
    found = set[int]()
    for n in tree.body:
        if isinstance(n, ast.Assign | ast.AnnAssign) and _is_table(n.value):
            found |= _lines_of(n)
    return found


def _is_table(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return len(value.args) == 1 and not value.keywords and _is_table(value.args[0])
    return isinstance(value, ast.Dict | ast.Tuple | ast.List | ast.Set)


def _functions(tree: ast.Module, code: set[int]) -> Iterator[Function]:
    for n in ast.walk(tree):
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Function(n.name, n.lineno, len(code & _lines_of(n)))


def _lines_of(n: ast.stmt) -> set[int]:
    return {*range(n.lineno, (n.end_lineno or n.lineno) + 1)}


def _device_code(text: str) -> int:
    """Lines of C++ or CUDA that are not blank without their comments."""
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL)
    return sum(bool(re.sub(r"//.*", "", line).strip()) for line in text.splitlines())


def main(words: Sequence[str] = ()) -> int:
    files = measure(ROOT / "fusewright")
    if "--packages" in words:
        print("\n".join(packages(files)))
        return 0
    found = complaints(files, Limits())
    for complaint in found:
        print(f"code_size: {complaint}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
