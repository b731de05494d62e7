"""Nested arguments and results <-> their tensors and a tree that says how they are held.

A row of KINDS is one kind of container: how it is recognised, taken apart and put together again,
and how emitted code writes it, reaches into it and asks for it. Importing this file does not import
torch.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

PLAIN_TYPES = (bool, int, float, complex, str, NoneType)
# A container that holds itself would never end.
DEEPEST = 24


class Unknown(Exception):
    """A value that is no tensor, no plain value and no container that could be rebuilt."""

    def __init__(self, value: object, path: str, why: str = "") -> None:
        super().__init__(why or f"a value of type {type(value).__name__}")
        self.value, self.path, self.why = value, path, why


@dataclass(frozen=True)
class Kind:
    """One kind of container.

    parts: key and value of all that it holds.  make: from type, extra, keys and values.
    extra: what else makes it what it is.
    text: how it is written; `{type}`, `{extra}`, and what it holds as `{items}`, `{list}`,
    `{tuple}`, `{dict}` or `{named}`.  reach: the text of one part.  asks: what holds for containers
    that are built alike, given the type; `{0}` is the container.
    """

    name: str
    fits: Callable[[Any], bool]
    parts: Callable[[Any], list[tuple[Any, Any]]]
    make: Callable[[Any, tuple[Any, ...], Sequence[Any], Sequence[Any]], Any]
    text: str
    reach: str
    asks: tuple[str, ...] = ()
    extra: Callable[[Any], tuple[Any, ...]] = lambda _: ()

    @property
    def keyed(self) -> bool:
        """Whether its parts have names of their own, not numbers."""
        return self.parts is not _numbered


@dataclass(frozen=True)
class Slot:
    """A tensor, by its number in the order in which a walk meets them."""

    number: int


@dataclass(frozen=True)
class Plain:
    """A number, text, None, or a type of PyTorch."""

    value: Any


@dataclass(frozen=True)
class Container:
    """What a container holds, in order. extra: as `Kind` has it.  loose: it has attributes beside
    what it holds, or could have."""

    kind: Kind
    type: type
    keys: tuple[Any, ...]
    inside: tuple[Tree, ...]
    extra: tuple[Any, ...] = ()
    loose: bool = False


Tree = Slot | Plain | Container


def flatten(value: object, path: str = "") -> tuple[Tree, list[Tensor]]:
    """The tree of a value and its tensors; raises Unknown, which names the place behind `path`."""
    tensors: list[Tensor] = []
    return _tree(value, path, tensors, 0), tensors


def rebuild(tree: Tree, tensors: Sequence[Any]) -> Any:
    """The value again, with other tensors (or whatever takes their places)."""
    if isinstance(tree, Slot):
        return tensors[tree.number]
    if isinstance(tree, Plain):
        return tree.value
    inside = [rebuild(t, tensors) for t in tree.inside]
    return tree.kind.make(tree.type, tree.extra, tree.keys, inside)


def taken(values: Sequence[object]) -> tuple[tuple[Tree, ...], tuple[Tensor, ...]]:
    """One tree for each value, numbering the tensors of all; raises Unknown."""
    tree, tensors = flatten(list(values))
    assert isinstance(tree, Container), "a list is one"
    return tree.inside, tuple(tensors)


def rebuilt(trees: Sequence[Tree], tensors: Sequence[object]) -> list[Any]:
    """One value for each tree."""
    return [rebuild(tree, tensors) for tree in trees]


def shifted(tree: Tree, by: int) -> Tree:
    """The tree with other numbers for its tensors."""
    if isinstance(tree, Container):
        return dataclasses.replace(tree, inside=tuple(shifted(t, by) for t in tree.inside))
    return Slot(tree.number + by) if isinstance(tree, Slot) else tree


def leaves(tree: Tree) -> Iterator[Slot | Plain]:
    """Tensors and plain values, in order."""
    if isinstance(tree, Container):
        for t in tree.inside:
            yield from leaves(t)
    else:
        yield tree


def containers(value: object) -> Iterator[tuple[object, list[tuple[object, object]]]]:
    """Every container with what it holds now, itself included."""
    kind = kind_of(value)
    if kind is not None:
        held = kind.parts(value)
        yield value, held
        for _, item in held:
            yield from containers(item)


def changed(before: Sequence[tuple[object, list[tuple[object, object]]]]) -> object | None:
    """The first of these containers that no longer holds the same objects."""
    for value, held in before:
        kind = kind_of(value)
        now = kind.parts(value) if kind else []
        if len(now) != len(held) or any(
            k is not key or v is not item for (k, v), (key, item) in zip(now, held, strict=True)
        ):
            return value
    return None


def kind_of(value: object) -> Kind | None:
    """The kind of container that a value is; None for tensors and everything else."""
    if isinstance(value, PLAIN_TYPES):
        return None
    return next((kind for kind in KINDS if kind.fits(value)), None)


def _tree(value: object, path: str, tensors: list[Tensor], depth: int) -> Tree:
    import torch

    if isinstance(value, torch.Tensor):
        if value.is_nested:
            raise Unknown(value, path, "a nested tensor")
        tensors.append(value)
        return Slot(len(tensors) - 1)
    symbols = (torch.SymInt, torch.SymFloat, torch.SymBool)
    if isinstance(value, (*PLAIN_TYPES, torch.dtype, *symbols)):
        return Plain(value)
    kind = kind_of(value)
    if kind is None:
        raise Unknown(value, path)
    if depth > DEEPEST:
        raise Unknown(value, path, "containers within containers without an end")
    held = kind.parts(value)
    if not _is_rebuilt(kind, value, held):
        name = type(value).__name__
        raise Unknown(
            value, path, f"a {name} that {name}(...) does not make again from what it holds"
        )
    inside = tuple(
        _tree(item, path + kind.reach.format("", key=repr(key), name=key), tensors, depth + 1)
        for key, item in held
    )
    keys = tuple(key for key, _ in held)
    loose = bool(getattr(value, "__dict__", None)) and "vars" not in "".join(kind.asks)
    return Container(kind, type(value), keys, inside, kind.extra(value), loose)


def _is_rebuilt(kind: Kind, value: Any, held: Sequence[tuple[Any, Any]]) -> bool:
    """Whether the constructor makes the same container again; built-in ones always do."""
    if type(value).__module__ in ("builtins", "collections"):
        return True
    try:
        keys, items = [key for key, _ in held], [item for _, item in held]
        again = kind.make(type(value), kind.extra(value), keys, items)
        attributes = [getattr(x, "__dict__", {}) for x in (value, again)]
        contents = [dict(x) if isinstance(x, dict) else {} for x in (value, again)]
        return type(again) is type(value) and all(
            _alike(*pair) for pair in (attributes, contents, [dict(held), dict(kind.parts(again))])
        )
    # The constructor is the user's code, and may raise anything.
    except Exception:  # noqa: BLE001
        return False


def _alike(a: Mapping[Any, Any], b: Mapping[Any, Any]) -> bool:
    """The same names and objects in the same order."""
    return [*a] == [*b] and all(a[k] is b[k] or _equal(a[k], b[k]) for k in a)


def _equal(a: object, b: object) -> bool:
    """Plain values of one type that are equal."""
    return type(a) is type(b) and isinstance(a, PLAIN_TYPES) and a == b


# ---- the kinds -----------------------------------------------------------------------------------


def _exactly(kind: type) -> Callable[[Any], bool]:
    return lambda value: type(value) is kind


def _is_size(value: Any) -> bool:
    import torch

    return type(value) is torch.Size


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _numbered(value: Any) -> list[tuple[Any, Any]]:
    return list(enumerate(value))


def _paired(value: Any) -> list[tuple[Any, Any]]:
    return list(value.items())


def _fields(value: Any) -> list[tuple[Any, Any]]:
    return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value) if f.init]


def _mapping(kind: Any, _: Any, keys: Sequence[Any], items: Sequence[Any]) -> Any:
    return kind(dict(zip(keys, items, strict=True)))


def _named(kind: Any, _: Any, keys: Sequence[Any], items: Sequence[Any]) -> Any:
    return kind(**dict(zip(keys, items, strict=True)))


def _listed(kind: Any, _: Any, __: Sequence[Any], items: Sequence[Any]) -> Any:
    return kind(list(items))


_IS, _LONG = "type({0}) is {type}", "len({0}) == {count}"
_KEYS, _ATTRIBUTES = "tuple({0}) == {keys}", "tuple(vars({0})) == {keys}"
_AT, _DOT = "{0}[{key}]", "{0}.{name}"

# The first row that fits counts.
KINDS = (
    Kind("tuple", _exactly(tuple), _numbered, _listed, "{tuple}", _AT, (_IS, _LONG)),
    Kind("list", _exactly(list), _numbered, _listed, "{list}", _AT, (_IS, _LONG)),
    Kind("dict", _exactly(dict), _paired, _mapping, "{dict}", _AT, (_IS, _KEYS)),
    Kind("size", _is_size, _numbered, _listed, "{type}({list})", _AT, (_IS, _LONG)),
    # What torch.max(x, dim) and others return.
    Kind(
        "record",
        lambda v: isinstance(v, tuple) and type(v).__module__ == "torch.return_types",
        _numbered,
        _listed,
        "{type}({tuple})",
        _AT,
        (_IS,),
    ),
    Kind(
        "named tuple",
        lambda v: isinstance(v, tuple) and hasattr(v, "_fields"),
        lambda v: list(zip(v._fields, v, strict=True)),
        lambda kind, _, __, items: kind(*items),
        "{type}({items})",
        _DOT,
        (_IS,),
    ),
    # The ordered-dict kind of model libraries: a dataclass, whose fields are its items, too.
    Kind(
        "dict with fields",
        lambda v: _is_dataclass(v) and isinstance(v, dict),
        _fields,
        _named,
        "{type}({named})",
        _DOT,
        (_IS, "tuple({0}) == {extra}", _ATTRIBUTES),
        lambda v: (tuple(v),),
    ),
    Kind("dataclass", _is_dataclass, _fields, _named, "{type}({named})", _DOT, (_IS, _ATTRIBUTES)),
    Kind(
        "namespace",
        _exactly(SimpleNamespace),
        lambda v: list(vars(v).items()),
        _named,
        "{type}({named})",
        _DOT,
        (_IS, _ATTRIBUTES),
    ),
    Kind(
        "defaultdict",
        _exactly(collections.defaultdict),
        _paired,
        lambda kind, extra, keys, items: kind(*extra, dict(zip(keys, items, strict=True))),
        "{type}({extra}, {dict})",
        _AT,
        (_IS, "{0}.default_factory is {extra}", _KEYS),
        lambda v: (v.default_factory,),
    ),
    Kind(
        "deque",
        _exactly(collections.deque),
        _numbered,
        lambda kind, extra, _, items: kind(list(items), *extra),
        "{type}({list}, {extra})",
        _AT,
        (_IS, _LONG, "{0}.maxlen == {extra}"),
        lambda v: (v.maxlen,),
    ),
    Kind(
        "mapping",
        lambda v: isinstance(v, dict),
        _paired,
        _mapping,
        "{type}({dict})",
        _AT,
        (_IS, _KEYS),
    ),
    Kind(
        "sequence",
        lambda v: isinstance(v, (list, tuple)),
        _numbered,
        _listed,
        "{type}({list})",
        _AT,
        (_IS, _LONG),
    ),
)  # fmt: skip
BY_NAME: Mapping[str, Kind] = {kind.name: kind for kind in KINDS}
