"""Options by name, as Python's callers give them -> a record that every stage may trust.

`fusewright.optimize(module, x, options={"target": "cpu"})` and
`torch.compile(model, backend="fusewright", options={...})` take these; the command line has an
option for each. Importing this file does not import torch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from fusewright.errors import BadUsage
from fusewright.targets.target import target as known_target

PRECISIONS = ("eager", "ieee")
MODES = ("both", "train", "eval")
RULES = ("no-library", "no-workspace", "no-prepack")
NO_ALGEBRA = "no-algebra"  # on the command line: --no-algebra
NO_OPTIONS: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True)
class Options:
    """What kernels are made for, and how.

    target: a name of `fusewright optimize --target`; None: where the module's tensors lie.
    precision: "eager", as precise as PyTorch's flags ask for, or "ieee", full float32.
    mode: "train" or "eval", the mode that kernels are for, or "both", where forward is not the
    same in them.  rules: restrictions, as of `--rules`, and "no-algebra".  dynamic_shapes: sizes
    that are to be free, as of `--dynamic`: names of arguments, and dimensions of each.  gradients:
    whether calls that record gradients get kernels, too, and these a derivative.
    """

    target: str | None = None
    precision: str = "eager"
    mode: str = "both"
    rules: frozenset[str] = frozenset()
    dynamic_shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    gradients: bool = False

    @classmethod
    def of(cls, mapping: Mapping[str, object] | None) -> Options:
        """The options that a mapping names, all others by default; raises BadUsage."""
        given = dict(mapping or {})
        names = [field.name for field in fields(cls)]
        if unknown := [name for name in given if name not in names]:
            raise BadUsage(
                f"options: there is no {' or '.join(map(repr, unknown))}; choose among "
                f"{', '.join(names)}."
            )
        name = given.get("target")
        if name not in (None, "cuda"):
            known_target(_text("target", name))
        return cls(
            target=None if name is None else str(name),
            precision=_one_of("precision", given.get("precision", cls.precision), PRECISIONS),
            mode=_one_of("mode", given.get("mode", cls.mode), MODES),
            rules=_rules(given.get("rules", cls.rules)),
            dynamic_shapes=_sizes(given.get("dynamic_shapes", {})),
            gradients=_flag("gradients", given.get("gradients", cls.gradients)),
        )


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise BadUsage(f"options: {name} is text, not {value!r}.")
    return value


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise BadUsage(f"options: {name} is True or False, not {value!r}.")
    return value


def _one_of(name: str, value: object, known: Collection[str]) -> str:
    if value not in known:
        raise BadUsage(f"options: {name} {value!r} is none of {', '.join(known)}.")
    return _text(name, value)


def _sizes(value: object) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Names of arguments, each with a dimension or several."""
    found: list[tuple[str, tuple[int, ...]]] = []
    for name, dims in value.items() if isinstance(value, Mapping) else [("", value)]:
        each: Collection[Any] = dims if isinstance(dims, Collection) else [dims]
        if not (isinstance(name, str) and name and all(type(d) is int for d in each)):
            raise BadUsage(
                'options: dynamic_shapes are names of arguments and their dimensions, {"x": (1,)}, '
                f"not {value!r}."
            )
        found.append((name, tuple(each)))
    return tuple(found)


def _rules(value: object) -> frozenset[str]:
    """Names in a collection, or in one text with commas between them, as on the command line."""
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, Collection):
        raise BadUsage(f"options: rules are names in a list or a set, not {value!r}.")
    return frozenset(_one_of("rule", name, (*RULES, NO_ALGEBRA)) for name in names if name != "")
