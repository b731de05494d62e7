"""The package as a tree of sources: its modules, what they import, what they hold in code.

Rules about who may do what are functions of such a tree, so that a small made-up one shows that a
rule which is broken is found.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

NAME = "fusewright"
PACKAGE = Path(__file__).resolve().parents[2] / NAME


@dataclass(frozen=True)
class Source:
    """A package's folder. Modules are named by their path in it, without the ending."""

    root: Path = PACKAGE

    def modules(self) -> list[str]:
        paths = sorted(self.root.rglob("*.py"))
        return [p.relative_to(self.root).with_suffix("").as_posix() for p in paths]

    def text(self, module: str) -> str:
        return (self.root / f"{module}.py").read_text(encoding="utf-8")

    def tree(self, module: str) -> ast.Module:
        return _parsed(self.text(module))

    def imported(self, module: str) -> Iterator[tuple[int, str]]:
        """Line and target of every import from the package, also inside functions and for types."""
        for n in ast.walk(self.tree(module)):
            if isinstance(n, ast.Import):
                names = [alias.name for alias in n.names]
            elif isinstance(n, ast.ImportFrom):
                # What is imported from a package may be a file or something in its __init__.
                names = [f"{n.module}.{alias.name}" for alias in n.names]
            else:
                continue
            for name in names:
                if name.partition(".")[0] == NAME:
                    yield n.lineno, self._resolve(name.split(".")[1:])

    def _resolve(self, parts: list[str]) -> str:
        while parts and not (self.root / f"{'/'.join(parts)}.py").is_file():
            if (self.root.joinpath(*parts) / "__init__.py").is_file():
                return "/".join([*parts, "__init__"])
            parts = parts[:-1]
        return "/".join(parts) or "__init__"


@cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def without_docstrings(text: str) -> ast.Module:
    """The code of a program, in which comments and texts that stand alone say nothing."""
    tree = ast.parse(text)
    for n in ast.walk(tree):
        if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant):
            n.value = ast.Constant(None)
    return tree


def made_up(root: Path, files: Mapping[str, str]) -> Source:
    """A package of these modules; those that it imports besides are there, and empty."""
    for module, text in files.items():
        path = root / f"{module}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return Source(root)
