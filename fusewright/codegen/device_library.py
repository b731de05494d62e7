"""Words -> the sections of the hand-written skeletons that an emitted file needs, in file order.

A skeleton file is cut by lines `//@ name: needs a, b`; a section runs to the next such line, and
`//@` alone ends the last one. Text outside sections only serves to compile the file alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fusewright.errors import InternalError

_CUDA_NAMES = (
    "math", "operand", "team", "folds", "scan", "launch", "down", "split", "in_parts", "gathered",
    "chunks",
)  # fmt: skip
_CUDA = tuple(f"cuda/{name}.cuh" for name in _CUDA_NAMES)
_PRODUCT_NAMES = ("pack", "product", "band", "ampere", "planes", "attention_exact", "attention")
_PRODUCT = tuple(f"cuda/{name}.cuh" for name in _PRODUCT_NAMES)
_AMPERE = tuple(
    f"cuda/{name}.cuh"
    for name in (
        "tile_sm80", "product_sm80", "product_inline_sm80", "pack_image", "pack_half_image",
        "convolution", "convolution_sm80", "transposed", "cells",
    )
)  # fmt: skip
_HOPPER = tuple(
    f"cuda/{name}.cuh"
    for name in (
        "cluster_sm90", "hopper", "runs_sm90", "tile_sm90", "band_sm90", "parts_sm90",
        "rings_sm90", "product_sm90", "product_inline_sm90", "product_half_sm90", "deferred_sm90",
        "pack_image", "pack_half_image", "convolution", "convolution_turned_sm90",
        "convolution_sm90", "convolution_launch_sm90", "transposed", "phases_sm90", "cells",
        "convolution_last_sm90", "transposed_last_sm90", "convolution_windows_sm90",
        "convolution_sums_sm90", "convolution_joined_sm90",
    )
)  # fmt: skip
# A language, or the product kernels that a CUDA target has (`Target.product`).
FILES = {
    "cpp": ("cpp/math.h", "cpp/team.h", "cpp/scan.h", "cpp/launch.h", "cpp/abreast.h"),
    "cuda": _CUDA,
    "sm80": (*_CUDA, *_PRODUCT, *_AMPERE),
    "sm90": (*_CUDA, *_PRODUCT, *_HOPPER),
}


@dataclass(frozen=True)
class Section:
    """One piece of a skeleton: its name, the names of those it calls, its text."""

    name: str
    needs: tuple[str, ...]
    text: str


@cache
def sections(language: str) -> tuple[Section, ...]:
    """All sections of a language, in order."""
    found: list[Section] = []
    for name in FILES[language]:
        text = (files("fusewright") / "skeletons" / name).read_text(encoding="utf-8")
        found.extend(_cut(text))
    return tuple(found)


def _cut(text: str) -> list[Section]:
    found: list[Section] = []
    name, lines = "", list[str]()
    needs: tuple[str, ...] = ()
    for line in [*text.splitlines(), "//@"]:
        if not line.startswith("//@"):
            lines.append(line)
            continue
        if name:
            found.append(Section(name, needs, "\n".join(lines).strip("\n")))
        head, _, tail = line.removeprefix("//@").partition(":")
        name = head.strip()
        words = tail.replace("needs", "").replace(",", " ").split()
        needs, lines = tuple(words), []
    return found


def select(language: str, words: Iterable[str]) -> str:
    """The text of the sections called `words` and of all they need; unknown words are an error."""
    table = {s.name: s for s in sections(language)}
    wanted: set[str] = set()
    queue = ["begin", *words]
    while queue:
        word = queue.pop()
        if word not in table:
            raise InternalError(f"The {language} skeletons have no section {word!r}.")
        if word not in wanted:
            wanted.add(word)
            queue.extend(table[word].needs)
    return "\n\n".join(s.text for s in sections(language) if s.name in wanted)


def text_for(language: str, words: Iterable[str]) -> str:
    """`select`, where not every word is a section."""
    return select(language, sorted({s.name for s in sections(language)} & set(words)))
