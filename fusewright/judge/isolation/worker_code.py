"""The worker's own program -> its functions, and which of them a candidate has replaced.

A candidate shares its process with the program that calls it, and could wrap what reads a clock,
hands over results, or looks for changes. `main` keeps this list in its own frame and compares it
there, without calling anything that could have been replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any, NamedTuple

PACKAGE = "fusewright."


class Own(NamedTuple):
    """One name of the program: where it stands, what it stood for, and the code of that."""

    holder: Mapping[str, Any]  # the living dictionary
    name: str
    value: Any
    code: Any  # of a function, which can be swapped in place; None of anything else


def own_code() -> tuple[Own, ...]:
    """Every module of this program, its functions and classes, and tables of functions."""
    return tuple(_everything())


def _everything() -> Iterator[Own]:
    for name, module in [*sys.modules.items()]:
        if name.startswith(PACKAGE):
            yield Own(sys.modules, name, module, None)
            yield from _held_by(vars(module))
            own = (v for v in vars(module).values() if isinstance(v, type))
            for kind in own:
                if kind.__module__ == name:
                    yield from _held_by(vars(kind))
            tables = (
                v for n, v in vars(module).items() if isinstance(v, Mapping) and n[:2] != "__"
            )
            for table in tables:
                yield from _held_by(table)


def _held_by(holder: Mapping[Any, Any]) -> Iterator[Own]:
    for name, value in [*holder.items()]:
        if callable(value) or isinstance(value, (staticmethod, classmethod, property)):
            code = value.__code__ if isinstance(value, FunctionType) else None
            yield Own(holder, name, value, code)
