"""Where in a model a node comes from, for the names and the records that people read.

Nothing that is computed, planned or compared depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Origin:
    """The call of the model that a node is part of.

    module: the path of the module that calls, as `layers.0.fc2`; "" for the model itself.
    call: what it calls, in PyTorch's word, as `linear` or `layer_norm`.
    line: of the file of the model's `forward`, where it says so; None where it is not known.
    variable: what the model's text calls the result, if it gives that name to nothing else.
    is_result: whether the node is what the call returns, and not computed on the way.
    """

    module: str
    call: str
    line: int | None = None
    variable: str = field(default="", compare=False)
    is_result: bool = field(default=True, compare=False)

    @property
    def inside(self) -> Origin:
        """That of what the call computes on the way."""
        return replace(self, variable="", is_result=False)


def calls_of_modules(origins: Iterable[Origin]) -> Mapping[str, AbstractSet[str]]:
    """What each module calls. A module that calls one thing, as a layer of PyTorch does, is named
    in that one's place."""
    found: dict[str, set[str]] = {}
    for origin in origins:
        found.setdefault(origin.module, set()).add(origin.call)
    return found
