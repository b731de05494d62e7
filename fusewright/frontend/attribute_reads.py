"""A run of forward -> the plain values that it reads from the module and from records of it.

A record is an attribute that is an object of a class of the user's (a configuration), or a dict of
such a class, whose entries or settings are attributes of its own, too. What forward asks of a
record by name is noted one by one, in records within records as well: the rest may differ from
process to process, such as a list made from a set. Where forward looks at a record as a dict, the
whole of it is noted; and whatever is plain in an object whose class cannot be watched.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import wraps
from keyword import iskeyword
from types import BuiltinFunctionType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn

PLAIN = (bool, int, float, str, type(None), torch.dtype)
FUNCTION = (FunctionType, BuiltinFunctionType)
# What torch.nn.Module keeps for itself.
INTERNAL = frozenset({*vars(nn.Module()), *dir(nn.Module)} - {"training"})
NAMESPACES = (SimpleNamespace, argparse.Namespace)  # Python's own records
LOOK = "__getattribute__"
# What Python asks of a dict without asking for an attribute of it.
AS_A_DICT = (
    "__getitem__", "__iter__", "__len__", "__contains__", "__reversed__", "__repr__", "__eq__",
    "__ne__", "__or__", "__ror__",
)  # fmt: skip
# Questions that say nothing of what a record holds.
ABOUT_ITS_CLASS = frozenset({"__class__", "__hash__", "__dir__", "__doc__", "__module__"})

Reads = dict[tuple[str, str], object]


@dataclass
class _Record:
    """A record that forward has reached. places: the module's path and the attribute's name."""

    value: Any
    places: list[tuple[str, str]] = field(default_factory=list)


class _Records:
    """The records that forward has reached so far, whose classes tell what is asked of them."""

    def __init__(self, reads: Reads, hooks: ExitStack) -> None:
        self.reads, self.hooks = reads, hooks
        self.known: dict[int, _Record] = {}
        self.classes: dict[type, bool] = {}

    def takes(self, value: object, place: tuple[str, str]) -> bool:
        """Whether what forward reads from now on is noted one by one; place: where it is held."""
        if id(value) not in self.known:
            if not _is_record(value):
                return False
            kind = type(value)
            if kind not in self.classes:
                self.classes[kind] = _is_users(kind) and self._hooked(kind)
            if not self.classes[kind]:
                if not isinstance(value, dict) and (_is_users(kind) or kind in NAMESPACES):
                    self._all_of(value, [place])
                return False
            self.known[id(value)] = _Record(value)
        places = self.known[id(value)].places
        if place not in places:
            places.append(place)
        return True

    def _hooked(self, kind: type) -> bool:
        """Whether the class lets itself be watched, as it is from now on."""
        look: Callable[[object, str], object] = getattr(kind, LOOK)

        def asked(record: object, name: str) -> object:
            value = look(record, name)
            if id(record) in self.known and name not in ABOUT_ITS_CLASS:
                self._note(record, name, value)
            return value

        replaced: dict[str, Any] = {LOOK: asked}
        if issubclass(kind, dict):
            replaced |= {name: self._whole(getattr(kind, name)) for name in AS_A_DICT}
        try:
            for name, function in replaced.items():
                before = vars(kind).get(name, _ABSENT)
                setattr(kind, name, function)
                self.hooks.callback(_put_back, kind, name, before)
        except (TypeError, AttributeError):  # a class that cannot be changed
            return False
        return True

    def _whole(self, function: Callable[..., object]) -> Callable[..., object]:
        @wraps(function)
        def asked(record: object, *args: object) -> object:
            if id(record) in self.known:
                self._note(record, "", None)
            return function(record, *args)

        return asked

    def _note(self, record: object, name: str, value: object) -> None:
        """The record's attribute of this name was read; or, if that is none of its own, all."""
        found = self.known.pop(id(record))  # nothing is noted of what is asked here
        named = name.isidentifier() and not iskeyword(name)
        if not isinstance(found.value, dict):
            if name == "__dict__":
                self._all_of(found.value, found.places)
            elif named:
                self._one_of(found.value, name, value, found.places)
        elif named and name in vars(found.value):
            self._one_of(found.value, name, value, found.places)
        elif is_plain(found.value):
            for place in found.places:
                self.reads.setdefault(place, copy.deepcopy(found.value))
        self.known[id(record)] = found

    def _all_of(self, record: object, places: Sequence[tuple[str, str]]) -> None:
        for name, value in [*vars(record).items()]:
            if name.isidentifier() and not iskeyword(name):
                self._one_of(record, name, value, places)

    def _one_of(
        self, record: object, name: str, value: object, places: Sequence[tuple[str, str]]
    ) -> None:
        """A value that an attribute of a record has, in all places that hold the record."""
        for path, held in places:
            place = path, f"{held}.{name}"
            if not self.takes(value, place) and is_noted(value, name, vars(record)):
                self.reads.setdefault(place, copy.deepcopy(value))


@contextmanager
def reading(module: nn.Module, reads: Reads) -> Iterator[None]:
    """Within the block, plain attributes read from `module` and its children land in `reads`."""
    paths = {id(child): path for path, child in module.named_modules()}
    original = vars(nn.Module).get(LOOK, _ABSENT)
    with ExitStack() as hooks:
        records = _Records(reads, hooks)

        def watch(self: nn.Module, name: str) -> object:
            value = object.__getattribute__(self, name)
            if id(self) not in paths or name in INTERNAL:
                return value
            place = paths[id(self)], name
            if not records.takes(value, place) and is_noted(value, name, self.__dict__):
                reads.setdefault(place, copy.deepcopy(value))
            return value

        hooks.callback(_put_back, nn.Module, LOOK, original)
        nn.Module.__getattribute__ = watch  # type: ignore[assignment,method-assign]
        yield


def is_noted(value: object, name: str, own: Mapping[str, object]) -> bool:
    """Whether an attribute's value decides what is computed: plain ones, and functions that are the
    object's own."""
    function = isinstance(value, FUNCTION) and name in own
    return is_plain(value) or function or isinstance(value, Enum)


def is_plain(value: object) -> bool:
    """Whether `repr` tells everything about the value."""
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(map(is_plain, (*value.keys(), *value.values())))
    return isinstance(value, PLAIN)


_ABSENT = object()


def _put_back(kind: type, name: str, value: object) -> None:
    if value is not _ABSENT:
        setattr(kind, name, value)
    elif name in vars(kind):
        delattr(kind, name)


def _is_record(value: object) -> bool:
    """A dict, or an object that has attributes of its own and is none of PyTorch's or Python's."""
    others = (torch.Tensor, nn.Module, type, ModuleType, Enum, *FUNCTION)
    return hasattr(value, "__dict__") and not isinstance(value, others)


def _is_users(kind: type) -> bool:
    """Whether neither Python nor PyTorch has brought the class."""
    return kind.__module__.partition(".")[0] not in {*sys.stdlib_module_names, "torch"}
