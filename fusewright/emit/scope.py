"""Types and plain values of arguments and results -> Python text that the emitted file can run.

A class is reached by a name of PyTorch's, a name at the top level of the user's file, or an import
of its own; a class that only a function knows cannot be written down.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fusewright.common.containers import PLAIN_TYPES, Container, Plain, Slot, Tree
from fusewright.emit.python_text import literal
from fusewright.errors import CaptureFailed
from fusewright.frontend.attribute_reads import is_plain
from fusewright.ir.graph import BatchSize, size_text


@dataclass(frozen=True)
class EmitScope:
    """What emitted code can name: the class of each user module as text, and module-level values.

    values: the namespace of the user's file.  reach: how a value of it is read, `{0}` its name.
    own: the class that is written.  part: the number of a part of a model; 0 for a whole one.
    second: whether what is written is for its second mode.  records: whether it is for calls that
    record gradients.  traced: whether PyTorch's compiler may come to see it.  elsewhere: namespaces
    of other files with classes of modules, by how a value of each is read.
    """

    classes: Mapping[type, str]
    values: Mapping[str, object]
    reach: str = "{0}"
    own: str = "ModelNew"
    part: int = 0
    second: bool = False
    records: bool = False
    traced: bool = True
    elsewhere: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """Keeps what guards remember apart; 0 for the first."""
        return 4 * self.part + 2 * self.records + self.second


@dataclass
class Containers:
    """How emitted code writes containers and asks for them.

    hidden: names that mean something else inside `forward`.  imports: lines that it needs.
    """

    scope: EmitScope
    hidden: frozenset[str]
    model: str
    imports: list[str] = field(default_factory=list)

    def words(self, trees: Iterable[Tree]) -> set[str]:
        """Names that the text of these containers uses."""
        types = (self.type_text(kind) for tree in trees for kind in _types(tree))
        return {text.partition(".")[0] for text in types}

    def type_text(self, kind: type) -> str:
        """The name of a class or function; raises CaptureFailed if there is none."""
        if getattr(builtins, kind.__name__, None) is kind:
            return str(kind.__name__)
        for text in self._names(kind):
            if text.partition(".")[0] not in self.hidden:
                return text
        module, name = kind.__module__, kind.__qualname__
        if _found(sys.modules.get(module), name) is kind and not _is_private(module):
            alias = f"_fusewright_{module.replace('.', '_')}"
            line = f"import {module} as {alias}"
            self.imports += [line] * (line not in self.imports)
            return f"{alias}.{name}"
        raise CaptureFailed(
            f"{self.model}.forward takes or returns a {kind.__name__}, and the emitted file has no "
            "name for that class: define it at the top level of the file, or in a module that can "
            "be imported."
        )

    def _names(self, kind: type) -> Iterator[str]:
        module, name = kind.__module__, kind.__qualname__
        known = _found(sys.modules.get(module), name) is kind
        if known and module.partition(".")[0] == "torch":
            yield f"{module}.{name}"
        if kind in self.scope.classes:
            yield self.scope.classes[kind]
        outer, _, inner = name.partition(".")
        for owner, text in self.scope.classes.items():
            if inner and owner.__qualname__ == outer and _found(owner, inner) is kind:
                yield f"{text}.{inner}"
        for found, value in self.scope.values.items():
            if value is kind:
                yield self.scope.reach.format(found)

    # -- results

    def written(self, tree: Tree, tensors: Sequence[str], sizes: Mapping[str, str]) -> str:
        """The text that makes a value; sizes: the variables of the free ones."""
        if isinstance(tree, Slot):
            return tensors[tree.number]
        if isinstance(tree, Plain):
            return self._plain(tree.value, sizes)
        inside = [self.written(t, tensors, sizes) for t in tree.inside]
        named = "{named}" in tree.kind.text
        keys = list(tree.keys) if named else [self._key(key) for key in tree.keys]
        items = ", ".join(inside)
        pairs = list(zip(keys, inside, strict=True))
        return tree.kind.text.format(
            type=self.type_text(tree.type),
            extra=", ".join(map(self._extra, tree.extra)),
            items=items,
            list=f"[{items}]",
            tuple=f"({items}{',' if len(inside) == 1 else ''})",
            dict="{" + ", ".join(f"{key}: {text}" for key, text in pairs) + "}",
            named=", ".join(f"{key}={text}" for key, text in pairs),
        )

    def _plain(self, value: Any, sizes: Mapping[str, str]) -> str:
        if isinstance(value, BatchSize):
            return size_text(value, sizes)
        if type(value) is complex:
            return f"complex({literal(value.real)}, {literal(value.imag)})"
        if type(value) in PLAIN_TYPES or isinstance(value, torch.dtype):
            return literal(value)
        raise CaptureFailed(
            f"{self.model}.forward returns a {type(value).__name__}, which the emitted file could "
            "not make again. Return a plain number."
        )

    def _key(self, key: object) -> str:
        if not is_plain(key):
            raise CaptureFailed(
                f"{self.model}.forward takes or returns a dict with a {type(key).__name__} among "
                "its keys, which the emitted file has no text for. Use text or numbers."
            )
        return literal(key)

    def _extra(self, value: object) -> str:
        if isinstance(value, tuple):
            return self._keys(value)
        return self.type_text(value) if callable(value) else literal(value)  # type: ignore[arg-type]

    def _keys(self, keys: Sequence[object]) -> str:
        texts = [self._key(key) for key in keys]
        return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"

    # -- arguments

    def asks(self, path: str, tree: Container) -> Iterator[str]:
        """Conditions under which a value is a container like this one, without what it holds."""
        if tree.loose:
            raise CaptureFailed(
                f"{self.model}.forward is given a {tree.type.__name__} with attributes beside what "
                "it holds, and the emitted file could not notice a change of them. Use a plain "
                "dict, list or tuple."
            )
        facts = {
            "type": self.type_text(tree.type),
            "count": len(tree.keys),
            "keys": self._keys(tree.keys),
            "extra": ", ".join(map(self._extra, tree.extra)),
        }
        for ask in tree.kind.asks:
            if "{keys}" in ask and not all(type(key) is str for key in tree.keys):
                left = ask.partition(" == ")[0].format(path)  # 1 == True, but not as text
                yield f"repr({left}) == {literal(repr(tree.keys))}"
            else:
                yield ask.format(path, **facts)
        if tree.type.__dictoffset__ and "vars" not in "".join(tree.kind.asks):
            yield f"not vars({path})"


def reached(tree: Container, path: str, number: int) -> str:
    """The text of one part of the container at `path`."""
    key = tree.keys[number]
    return tree.kind.reach.format(path, key=literal(key), name=key)


def _types(tree: Tree) -> Iterator[type]:
    if isinstance(tree, Container):
        yield tree.type
        yield from (value for value in tree.extra if callable(value))
        for t in tree.inside:
            yield from _types(t)


def _is_private(module: str) -> bool:
    """Whether no other process could import it: a problem file, a notebook."""
    return module == "__main__" or module.startswith("_fusewright_")


def _found(place: object, name: str) -> object:
    """What a dotted name means inside a module or class."""
    for part in name.split("."):
        place = getattr(place, part, None)
    return place
