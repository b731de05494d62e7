"""What get_inputs() or get_init_inputs() returns -> one call: values in order, the last by name.

`[a, b]` are positional arguments and `{"x": a}` named ones. `[[a], {"y": b}]`, a list of exactly a
list and a dict with names, is both at once: a common convention. Where the callee could also take a
list and a dict as two arguments, and only so, it gets those; a tuple in place of either list says
the same in any case.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fusewright.common.containers import PLAIN_TYPES

NOTHING = inspect.Parameter.empty


class Inputs(list[Any]):
    """The arguments of one call in order; the last ones, as many as `names`, go by name.

    places: attributes of the callee, `cell.h`, that have a value before the call: those behind the
    arguments. Only the judge calls so.
    """

    def __init__(
        self,
        values: Iterable[object] = (),
        names: Iterable[str] = (),
        places: Iterable[str] = (),
    ) -> None:
        super().__init__(values)
        self.names, self.places = tuple(names), tuple(places)

    def __deepcopy__(self, memo: dict[int, object]) -> Inputs:
        import copy

        return Inputs((copy.deepcopy(v, memo) for v in self), self.names, self.places)


class Absent:
    """Stands for the value of an attribute that does not exist."""


def names_of(inputs: Sequence[object]) -> tuple[str, ...]:
    """The names of the last arguments; those of a plain list all go by position."""
    return inputs.names if isinstance(inputs, Inputs) else ()


def places_of(inputs: Sequence[object]) -> tuple[str, ...]:
    """The attributes whose values stand behind the arguments; none for a plain list."""
    return inputs.places if isinstance(inputs, Inputs) else ()


def split(inputs: Sequence[object]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments."""
    names = names_of(inputs)
    end = len(inputs) - len(places_of(inputs))
    count = end - len(names)
    return tuple(inputs[:count]), dict(zip(names, inputs[count:end], strict=True))


def call(function: Callable[..., Any], inputs: Sequence[object]) -> Any:
    """`function(*positional, **named)`."""
    positional, named = split(inputs)
    return function(*positional, **named)


def like(inputs: Sequence[object], values: Iterable[object]) -> Inputs:
    """Other values for the same call."""
    return Inputs(values, names_of(inputs), places_of(inputs))


def signature_of(function: Callable[..., Any], *, bound: bool) -> inspect.Signature | None:
    """The signature, without self if that is yet to be bound; None where Python knows none."""
    try:
        found = inspect.signature(function)
    except (ValueError, TypeError):
        return None
    every = [*found.parameters.values()]
    return found if bound else found.replace(parameters=every[1:])


def read(returned: object, signature: inspect.Signature | None) -> Inputs | None:
    """The call that a returned value stands for; None if it is no list, tuple or dict of names.

    Raises TypeError for a dict with names that the callee does not take.
    """
    if isinstance(returned, Inputs):
        return returned
    if type(returned) is dict and all(isinstance(name, str) for name in returned):
        if signature is None:
            return Inputs(returned.values(), returned)
        signature.bind(**returned)
        return arranged(signature, (), returned)
    if not isinstance(returned, list | tuple):
        return None
    if type(returned) is list and [*map(type, returned)] == [list, dict]:
        positional, named = returned
        if signature is not None and takes(signature, positional, named):
            return arranged(signature, positional, named)
    return Inputs(returned)


def bound(signature: inspect.Signature, inputs: Sequence[object]) -> Mapping[str, Any]:
    """Parameter -> what it gets, a tuple for `*these` and a dict for `**those`."""
    positional, named = split(inputs)
    return signature.bind(*positional, **named).arguments


def takes(signature: inspect.Signature, positional: Any, named: Any) -> bool:
    """Whether such a call can be made."""
    try:
        signature.bind(*positional, **named)
    # Names that are no text are no names either.
    except TypeError:
        return False
    return True


def as_called(
    function: Callable[..., Any], positional: Sequence[object], named: Mapping[str, object]
) -> Inputs:
    """The call of a function whose signature takes it: arranged, unless a wrapper might notice."""
    signature = signature_of(function, bound=False)
    if signature is None or is_wrapped(function):
        return Inputs([*positional, *named.values()], named)
    return arranged(signature, positional, named)


def is_wrapped(function: Callable[..., Any]) -> bool:
    """Whether it only takes what another function has in its signature, as a decorator's does. What
    goes by position there need not do the same by name."""
    return hasattr(function, "__wrapped__")


def arranged(
    signature: inspect.Signature, positional: Sequence[object], named: Mapping[str, object]
) -> Inputs:
    """By position whatever can be, with plain defaults in the gaps; the rest by name."""
    values, left = list(positional), dict(named)
    for p in [*signature.parameters.values()][len(values) :]:
        wanted = p.kind is p.POSITIONAL_OR_KEYWORD and bool(left)
        if not wanted or (p.name not in left and not isinstance(p.default, PLAIN_TYPES)):
            break
        values.append(left.pop(p.name, p.default))
    return Inputs([*values, *left.values()], left)
