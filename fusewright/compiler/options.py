"""Options by name, as Python's callers give them -> a record that every stage may trust.

`fusewright.optimize(module, x, options={"target": "cpu"})` and
`torch.compile(model, backend="fusewright", options={...})` take these; the command line has an
option for each. Importing this file does not import torch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

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

    target: a name of `fusewright optimize --target`; None: this machine's GPU, else its CPU.
    precision: "eager", as precise as PyTorch's flags ask for, or "ieee", full float32.
    mode: "train" or "eval", the mode that kernels are for, or "both", where forward is not the
    same in them.  rules: restrictions, as of `--rules`, and "no-algebra".
    """

    target: str | None = None
    precision: str = "eager"
    mode: str = "both"
    rules: frozenset[str] = frozenset()

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
        )


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise BadUsage(f"options: {name} is text, not {value!r}.")
    return value


def _one_of(name: str, value: object, known: Collection[str]) -> str:
    if value not in known:
        raise BadUsage(f"options: {name} {value!r} is none of {', '.join(known)}.")
    return _text(name, value)


def _rules(value: object) -> frozenset[str]:
    """Names in a collection, or in one text with commas between them, as on the command line."""
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, Collection):
        raise BadUsage(f"options: rules are names in a list or a set, not {value!r}.")
    return frozenset(_one_of("rule", name, (*RULES, NO_ALGEBRA)) for name in names if name != "")
