"""The page model: what a page says, in the order in which it says it; templates only write it down.

Page = heading, tiles, Section...      Section = notes, graph, plot, table, kernels, text
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

Tone = Literal["", "good", "bad", "warn"]
WORD_TONES: Mapping[str, Tone] = {"verified": "good", "refuted": "bad", "not-verified": "warn"}
CLAIM_TONES: Mapping[str, Tone] = {"faster": "good", "slower": "bad"}
OUTCOME_TONES: Mapping[str, Tone] = {"pass": "good", "fail": "bad", "note": "warn"}
HUES = 8  # colours of kernels; a ninth kernel has the first one's, and its own number


@dataclass(frozen=True)
class Tile:
    """What is seen first. details: in lines."""

    label: str
    value: str
    details: tuple[str, ...] = ()
    tone: Tone = ""


@dataclass(frozen=True)
class Column:
    """meaning: of its name, in a sentence.  number: of its cells, which stand at the right."""

    name: str
    meaning: str = ""
    number: bool = False


@dataclass(frozen=True)
class Cell:
    """key: what it is sorted by, "" where it has no place and stands at the end; its text, where
    nobody gives one.  href: of a page or a place on this one."""

    text: str
    key: str | None = None
    tone: Tone = ""
    href: str = ""


@dataclass(frozen=True)
class Table:
    """sortable: by any of its columns, where scripts run."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    sortable: bool = False


@dataclass(frozen=True)
class Box:
    """A node of a drawn graph, in pixels from its upper left corner.

    hue: the class of its colour.  mark: the number of its kernel.  title: all that is said of it.
    href: where more is said; "" for nowhere.
    """

    x: float
    y: float
    hue: str
    mark: str
    name: str
    detail: str
    title: str
    href: str


@dataclass(frozen=True)
class Drawing:
    """A graph. size: width and height in pixels.  box_size: of each box.  lines: paths in SVG's
    words.  heads: of arrows, as points of polygons."""

    label: str
    size: tuple[float, float]
    box_size: tuple[float, float]
    boxes: tuple[Box, ...]
    lines: tuple[str, ...]
    heads: tuple[str, ...]


@dataclass(frozen=True)
class KernelBlock:
    """A kernel. anchor: where links lead.  places: of the model.  facts: (what, how much).  source:
    of the model, and code: of the kernel; both coloured."""

    anchor: str
    hue: str
    mark: str
    name: str
    places: str
    facts: tuple[tuple[str, str], ...]
    source: Markup
    code: Markup


@dataclass(frozen=True)
class Section:
    """notes: paragraphs, that say in words what is not there.  plot: SVG.  text: as it stands.
    folded: whether only its title is seen at first."""

    title: str
    notes: tuple[str, ...] = ()
    graph: Drawing | None = None
    plot: Markup | None = None
    table: Table | None = None
    kernels: tuple[KernelBlock, ...] = ()
    text: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Page:
    """title: of the window.  tone: of the summary."""

    title: str
    summary: str
    tone: Tone
    tiles: tuple[Tile, ...]
    sections: tuple[Section, ...]


def hue_of(number: int) -> str:
    """The class of the colour of a kernel; 0: a call of PyTorch's."""
    return f"hue{(number - 1) % HUES}" if number else "hue-library"


def facts_table(facts: Mapping[str, object], heading: str = "fact") -> Table:
    """Names and what they are."""
    rows = tuple((Cell(name), Cell(str(value))) for name, value in facts.items())
    return Table((Column(heading), Column("is")), rows)
