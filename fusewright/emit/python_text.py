"""Names, plain values and signatures -> Python text, as the emitted file spells them."""

from __future__ import annotations

import inspect
import keyword
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from fusewright.ir.graph import Shape, size_text


@dataclass
class NameScope:
    """Names of local variables, each given out once."""

    taken: set[str] = field(default_factory=set)

    def fresh(self, wanted: str) -> str:
        """`wanted`, made an identifier and unique."""
        plain = re.sub(r"\W", "_", wanted)
        plain = f"at_{plain}" if not plain[:1].isalpha() or keyword.iskeyword(plain) else plain
        name, k = plain, 1
        while name in self.taken:
            k += 1
            name = f"{plain}_{k}"
        self.taken.add(name)
        return name


def parameters(module: nn.Module) -> tuple[inspect.Parameter, ...]:
    """The parameters of forward after self."""
    return tuple(inspect.signature(type(module).forward).parameters.values())[1:]


def signature_text(found: Sequence[inspect.Parameter], *, wrapped: bool = False) -> tuple[str, str]:
    """The parameters as text without annotations, and how they are handed on in a call.

    wrapped: whether to a wrapper, which is given by name what nobody need give.
    """
    words: list[str] = []
    calls: list[str] = []
    only, bare = 0, True  # how many go by position only; no star yet, which names behind it need
    wrapped = wrapped and not any(p.kind is p.VAR_POSITIONAL for p in found)
    for p in found:
        default = "" if p.default is p.empty else f"={literal(p.default)}"
        if p.kind is not p.POSITIONAL_ONLY and only == len(words) > 0 and "/" not in words:
            words.append("/")
        only += p.kind is p.POSITIONAL_ONLY
        if p.kind is p.KEYWORD_ONLY and bare:
            words.append("*")
        bare = bare and p.kind not in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        star = "*" * (p.kind is p.VAR_POSITIONAL) or "**" * (p.kind is p.VAR_KEYWORD)
        words.append(f"{star}{p.name}{default}")
        optional = p.kind is p.POSITIONAL_OR_KEYWORD and p.default is not p.empty
        named = p.kind is p.KEYWORD_ONLY or (wrapped and optional)
        calls.append(f"{p.name}={p.name}" if named else f"{star}{p.name}")
    if words and only == len(words):
        words.append("/")
    return ", ".join(words), ", ".join(calls)


def literal(value: object) -> str:
    """A plain value as Python text, strings in double quotes."""
    if isinstance(value, str):
        text = repr(value)
        plain = text.startswith("'") and '"' not in value
        return '"' + text[1:-1].replace("\\'", "'") + '"' if plain else text
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def shape_tuple(shape: Shape, variables: Mapping[str, str] | None = None) -> str:
    """A shape as Python text. variables: as `size_text` has them."""
    inside = ", ".join(size_text(size, variables) for size in shape)
    return f"({inside},)" if len(shape) == 1 else f"({inside})"


def strings_tuple(names: Iterable[str]) -> str:
    """A tuple of strings as Python text."""
    strings = [literal(name) for name in names]
    return f"({strings[0]},)" if len(strings) == 1 else f"({', '.join(strings)})"


def tuple_text(texts: Sequence[str]) -> str:
    """A tuple of expressions."""
    return f"({', '.join(texts)}{',' * (len(texts) == 1)})"
