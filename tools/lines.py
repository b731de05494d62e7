"""The package's source -> files and functions that have outgrown a reader.

Every line counts: blanks, comments, Python, skeletons and templates. There is no total: a file is
as long as its subject, and a limit that is met asks whether it still has one subject.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = (".py", ".h", ".cuh", ".cpp", ".cu", ".jinja")

# Tables may be as long as their subject: path inside the package -> why it is a table.
TABLES: Mapping[str, str] = MappingProxyType(
    {"devicelib/cpp/team.h": "a table of operands and folds, one section each"}
)


@dataclass(frozen=True)
class Limits:
    file: int = 800
    function: int = 70
    tables: Mapping[str, str] = field(default_factory=lambda: TABLES)


@dataclass(frozen=True)
class Function:
    name: str
    line: int
    lines: int


@dataclass(frozen=True)
class File:
    path: str
    lines: int
    functions: tuple[Function, ...]


def measure(package: Path) -> tuple[File, ...]:
    """Every source file of the package, in order of its path."""
    paths = sorted(p for p in package.rglob("*") if p.suffix in SUFFIXES and p.is_file())
    return tuple(_file(package, path) for path in paths)


def complaints(files: tuple[File, ...], limits: Limits) -> list[str]:
    """What exceeds a limit, one sentence each; empty if all is well."""
    found = []
    for file in files:
        if file.lines > limits.file and file.path not in limits.tables:
            found.append(f"{file.path} has {file.lines} lines, the limit is {limits.file}")
        for function in file.functions:
            if function.lines > limits.function:
                found.append(
                    f"{file.path}:{function.line} {function.name} has {function.lines} lines, "
                    f"the limit is {limits.function}"
                )
    long_files = {f.path for f in files if f.lines > limits.file}
    for path in sorted(limits.tables.keys() - long_files):
        found.append(f"{path} is exempt without need: it is absent or within the limit")
    return found


def _file(package: Path, path: Path) -> File:
    text = path.read_text(encoding="utf-8")
    functions = tuple(_functions(text)) if path.suffix == ".py" else ()
    return File(path.relative_to(package).as_posix(), len(text.splitlines()), functions)


def _functions(source: str) -> Iterator[Function]:
    for n in ast.walk(ast.parse(source)):
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)):
            end = n.end_lineno or n.lineno
            yield Function(n.name, n.lineno, end - n.lineno + 1)


def main() -> int:
    limits = Limits()
    files = measure(ROOT / "fusewright")
    for file in files:
        longest = max((f.lines for f in file.functions), default=0)
        print(f"{file.lines:6}  {longest:3}  {file.path}")
    print("second column: the longest function")
    found = complaints(files, limits)
    for complaint in found:
        print(f"lines: {complaint}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
