"""The classes of a module -> the names that emitted text has for them, and how a file imports them.

One text runs in this process and stands in a file that is saved. Here its names are handed to it;
in a file they are imported, if every class can be.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from torch import nn

from fusewright.emit.formatter import WIDTH
from fusewright.emit.module_table import class_text
from fusewright.emit.python_text import NameScope
from fusewright.emit.same_files import DIGITS
from fusewright.emit.scope import EmitScope
from fusewright.errors import BadUsage

RESERVED = ("torch", "ModelNew")


class Space:
    """Module-level values of a text that nobody can import, as attributes."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass(frozen=True)
class Names:
    """classes: name in the text -> class.  spaces: name in the text -> a class of which the text
    reads what stands at the top level of the file with its `forward`."""

    classes: Mapping[str, type]
    spaces: Mapping[str, type]

    def scope(self, kind: type, own: str) -> EmitScope:
        """What the text for a module of a class can name. own: the name of its new class."""
        name = space_name(kind, self.classes)
        texts = {found: text for text, found in self.classes.items()}
        return EmitScope(texts, values_of(kind), reach=f"{name}.{{0}}", own=own)

    def bound(self) -> dict[str, Any]:
        """The names with what they mean."""
        return {**self.classes, **{name: _space(kind) for name, kind in self.spaces.items()}}

    def used_by(self, text: str) -> Names:
        """Those that a text uses."""
        used = {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}
        every = self.classes, self.spaces
        return Names(*({n: kind for n, kind in some.items() if n in used} for some in every))

    def imports(self) -> list[str]:
        """The lines by which a file has the names; raises BadUsage."""
        lines = [_import_of_space(name, kind) for name, kind in self.spaces.items()]
        taken: dict[str, dict[str, None]] = {}  # from where -> what
        inner = list[str]()
        for name, kind in self.classes.items():
            outer, _, inside = _place(kind).partition(".")
            known = f"_fusewright_{outer}" if inside else name
            what = outer if outer == known else f"{outer} as {known}"
            taken.setdefault(kind.__module__, {})[what] = None
            inner += [f"{name} = {known}.{inside}"] * bool(inside)
        for place, words in taken.items():
            lines += _import_from(place, sorted(words))
        return [*lines, *[""] * bool(inner), *inner]

    def files(self) -> dict[str, str]:
        """Module -> digest of its file, of all that the user's classes are made of."""
        every = dict.fromkeys(c for kind in self.classes.values() for c in kind.__mro__)
        own = [c.__module__ for c in every if not f"{c.__module__}.".startswith("torch.")]
        places = {name: getattr(sys.modules.get(name), "__file__", None) for name in own}
        return {name: _digest(Path(place)) for name, place in places.items() if place}


def _digest(path: Path) -> str:
    text = path.read_bytes().replace(b"\r\n", b"\n") if path.is_file() else b""
    return hashlib.sha256(text).hexdigest()[:DIGITS]


def names_of(module: nn.Module) -> Names:
    """The names for the classes of a module and of all modules in it that are not PyTorch's."""
    every = [*dict.fromkeys(type(child) for child in module.modules())]
    forwards = [inspect.unwrap(kind.forward) for kind in every]
    arguments = {name for f in forwards for name in _argument_names(f)}
    scope = NameScope({*RESERVED, *dir(builtins), *arguments})
    own = [kind for kind in every if not f"{kind.__module__}.".startswith("torch.")]
    root = every[0]  # also one that PyTorch has made for a parametrization
    own += [root] * (root not in own and not class_text(root, EmitScope({}, {})))
    classes = {scope.fresh(kind.__name__): kind for kind in own}
    return Names(classes, {space_name(kind, classes): kind for kind in every})


def values_of(kind: type) -> dict[str, Any]:
    """The module-level names that `forward` of a class reads."""
    found: dict[str, Any] = inspect.unwrap(kind.forward).__globals__  # type: ignore[attr-defined]
    return found


def space_name(kind: type, classes: Mapping[str, type]) -> str:
    """The name in the text for what stands at the top level of the file of a class's `forward`."""
    found = _importable(values_of(kind))
    if found:
        return f"_fusewright_{found.replace('.', '_')}"
    alike = [name for name, other in classes.items() if values_of(other) is values_of(kind)]
    return f"_fusewright_values_of_{alike[0] if alike else kind.__name__}"


def _argument_names(function: Callable[..., Any]) -> Iterable[str]:
    return function.__code__.co_varnames if isinstance(function, FunctionType) else ()


def _space(kind: type) -> ModuleType | Space:
    values = values_of(kind)
    found = _importable(values)
    return sys.modules[found] if found else Space(values)


def _importable(values: Mapping[str, Any]) -> str:
    """The name of the module whose namespace this is; "" if no other process could import it."""
    name = str(values.get("__name__", ""))
    module = sys.modules.get(name)
    return name if module is not None and vars(module) is values and _has_a_place(module) else ""


def _has_a_place(module: ModuleType) -> bool:
    """Whether another process can import it: not a script, a notebook, or a text that was run."""
    return module.__name__ != "__main__" and getattr(module, "__spec__", None) is not None


def _import_of_space(name: str, kind: type) -> str:
    found = _importable(values_of(kind))
    if not found:
        raise BadUsage(_no_file(kind, "what its forward reads at module level"))
    return f"import {found} as {name}"


def _import_from(place: str, words: Sequence[str]) -> list[str]:
    line = f"from {place} import {', '.join(words)}"
    return (
        [line]
        if len(line) <= WIDTH
        else [f"from {place} import (", *(f"    {word}," for word in words), ")"]
    )


def _place(kind: type) -> str:
    """Where a class is in its module; raises BadUsage if a file could not import it from there."""
    module = sys.modules.get(kind.__module__)
    found: object = module
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    if module is None or found is not kind or not _has_a_place(module):
        raise BadUsage(_no_file(kind, "it"))
    return kind.__qualname__


def _no_file(kind: type, what: str) -> str:
    where = f"in {kind.__module__}"
    if "<locals>" in kind.__qualname__:
        where = "inside a function"
    return (
        f"There is no file to write: {kind.__name__} is defined {where}, and a file could not "
        f"import {what} from there. Define the class at the top level of a Python file that can be "
        "imported, and optimize a module of that."
    )
