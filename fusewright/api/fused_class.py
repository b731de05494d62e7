"""Emitted text -> classes whose instances run kernels, and their pickles.

A class is made of a text, a class of the user's, and names. A pickle has these, never compiled
code: where it is loaded, the text runs again, and its kernels are found or compiled at the first
call. A text is for the code of the user's classes as it was; where that has changed since, the
instance is of the user's class itself.
"""

from __future__ import annotations

import copyreg
import hashlib
import itertools
import linecache
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from torch import nn

from fusewright.api.about import DISPLAYS, About, Told, module_html
from fusewright.api.names import Names

ATTRIBUTE = "fusewright"  # of the result
MADE = "_fusewright_made"  # in a class: the name of what it is, and what it is made of
_numbers = itertools.count()


@dataclass(frozen=True)
class Text:
    """All that classes with kernels are made of.

    body: Python, without imports of the user's.  bases: class of the body -> that of the user's,
    whose `forward` it replaces.  names: those that the body uses.  root: the class of the module
    itself, as it was.  own: its new class, in the body or, of a module of which only parts are new,
    beside it.  The rest is what `About` says.
    """

    body: str
    bases: Mapping[str, type]
    names: Names
    root: type
    own: str
    told: Told
    file: str
    no_file: str


class FusedType(type):
    """The class of classes with kernels, by which pickles know them."""


@dataclass(eq=False)
class Classes:
    """What a text made, by the names there, and that of the module itself."""

    text: Text
    made: dict[str, type[nn.Module]] = field(default_factory=dict)

    def calls(self) -> dict[str, object]:
        """What each class with kernels says of its calls."""
        counted = {name: self.made[name] for name in self.text.bases}
        return {name: vars(kind)["fusewright_status"]() for name, kind in counted.items()}

    @property
    def about(self) -> About:
        t = self.text
        return About(t.told, t.file, t.no_file, self.calls, t.body)


_alive: weakref.WeakValueDictionary[str, Classes] = weakref.WeakValueDictionary()


def classes_of(text: Text) -> Classes:
    """Run a text; what it defines become classes of their own, derived from the user's."""
    found = Classes(text)
    scope = text.names.bound()
    filename = f"<fusewright {next(_numbers)}: {text.root.__name__}>"
    lines = text.body.splitlines(keepends=True)
    linecache.cache[filename] = (len(text.body), None, lines, filename)
    exec(compile(text.body, filename, "exec"), scope)
    for name, base in text.bases.items():
        written = {k: v for k, v in vars(scope[name]).items() if not k.startswith("__")}
        scope[name] = found.made[name] = _derived(name, base, written, found)
    if text.own not in found.made:
        found.made[text.own] = _derived(text.own, text.root, {}, found)
    kind, about = found.made[text.own], found.about
    setattr(kind, ATTRIBUTE, about)
    if not any(hasattr(text.root, name) for name in DISPLAYS):
        kind._repr_html_ = _html_of(about)  # type: ignore[attr-defined]
    _alive[_key(text)] = found
    return found


def _html_of(about: About) -> Callable[[nn.Module], str]:
    def _repr_html_(self: nn.Module) -> str:
        return module_html(about, self)

    return _repr_html_


def as_written(kind: type) -> type:
    """The user's class behind a class with kernels; any other is itself."""
    name, found = vars(kind).get(MADE, ("", None))
    if found is None:
        return kind
    base: type = found.text.bases.get(name, found.text.root)
    return base


def _derived(
    name: str, base: type, written: Mapping[str, object], found: Classes
) -> type[nn.Module]:
    """A class with kernels. It has the name of the user's class, which libraries look up in tables
    of theirs; modules show the other one.
    """

    def _get_name(_self: nn.Module) -> str:
        return name

    shown = base._get_name is nn.Module._get_name  # type: ignore[attr-defined]
    members = {
        **written,
        **({"_get_name": _get_name} if shown else {}),
        **({"reference_forward": base.forward} if written else {}),  # type: ignore[attr-defined]
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        MADE: (name, found),
    }
    made: type[nn.Module] = _type_of(base)(base.__name__, (base,), members)
    return made


def _type_of(base: type) -> type:
    """The class of a class that derives from a user's, whose class may have a class of its own."""
    theirs = type(base)
    if issubclass(FusedType, theirs):
        return FusedType
    both = type("FusedType", (FusedType, theirs), {})
    copyreg.pickle(both, _reduced)
    return both


# ---- pickles -------------------------------------------------------------------------------------


def _reduced(kind: type) -> Any:
    """A class with kernels as its text; one that a user derived from it as any class, by name."""
    name, found = vars(kind).get(MADE, ("", None))
    if found is None:
        return kind.__qualname__
    return restored, (found.text, name, digest_of(found.text.names))


copyreg.pickle(FusedType, _reduced)


def restored(text: Text, name: str, digest: str) -> type:
    """The class that a pickle means, or, where its text is for other code, the user's own."""
    if digest != digest_of(text.names):
        warnings.warn(
            f"{name} is loaded without its kernels: {text.root.__name__} or a class in it has "
            "other code than the one they were made for, or this is another version of Python. "
            "Call fusewright.optimize again.",
            stacklevel=2,
        )
        return text.bases.get(name, text.root)
    found = _alive.get(_key(text))
    return (found or classes_of(text)).made[name]


def _key(text: Text) -> str:
    """Equal for texts that make the same classes of the same classes."""
    kinds = [id(kind) for kind in (text.root, *text.names.classes.values())]
    return f"{text.own} {kinds} {text.body}"


def digest_of(names: Names) -> str:
    """What changes with the code of the user's classes, or with the version of Python."""
    kinds = dict.fromkeys(c for kind in names.classes.values() for c in kind.__mro__)
    own = [c for c in kinds if not f"{c.__module__}.".startswith(("torch.", "builtins."))]
    codes = [(name, _code(value)) for kind in own for name, value in sorted(vars(kind).items())]
    return hashlib.sha256(repr(codes).encode()).hexdigest()


def _code(value: object) -> object:
    """What a method, a property or a function inside one was compiled to; None of anything else."""
    value = getattr(value, "fget", None) or getattr(value, "__func__", value)
    value = getattr(value, "__code__", value)
    if not isinstance(value, CodeType):
        return None
    constants = [_code(c) or _constant(c) for c in value.co_consts]
    return value.co_code, value.co_names, value.co_varnames, constants


def _constant(value: object) -> str:
    """The same text in every process."""
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)
