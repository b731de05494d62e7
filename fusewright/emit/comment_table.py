"""Rows of cells -> the lines of a table of some width: cells are broken within their columns.

A cell is made of pieces, which stay whole where they fit into a line; others are broken between
words, and words behind a mark, as paths at `.`. The widest columns give way first. Words of the
first column stay whole: they are looked for in the file.
"""

from __future__ import annotations

from collections.abc import Sequence

Cell = Sequence[str]  # its pieces
GAP = "  "
LONGEST = 20  # a word of another column that is not longer stays whole, if there is room
MARKS = "_.]"


def table(rows: Sequence[Sequence[Cell]], width: int) -> list[str]:
    """The lines; the first row is the heading."""
    widths = _widths([*zip(*rows, strict=True)], width)
    rule = [["-" * size] for size in widths]
    return [line for row in (rows[0], rule, *rows[1:]) for line in _lines(row, widths)]


def _widths(columns: Sequence[Sequence[Cell]], width: int) -> list[int]:
    widths = [max(len(" ".join(cell)) for cell in column) for column in columns]
    words = [[word for cell in column for word in " ".join(cell).split()] for column in columns]
    longest = [max(map(len, found), default=1) for found in words]
    least = [longest[0], *(min(LONGEST, size) for size in longest[1:])]
    while sum(widths) + len(GAP) * (len(widths) - 1) > width:
        loose = [k for k, size in enumerate(widths) if size > least[k]] or range(1, len(widths))
        widths[max(loose, key=lambda k: widths[k])] -= 1
    return widths


def _lines(row: Sequence[Cell], widths: Sequence[int]) -> list[str]:
    cells = [_broken(cell, size) for cell, size in zip(row, widths, strict=True)]
    high = max(map(len, cells))
    filled = [[*cell, *[""] * (high - len(cell))] for cell in cells]
    return [
        GAP.join(part.ljust(size) for part, size in zip(line, widths, strict=True)).rstrip()
        for line in zip(*filled, strict=True)
    ]


def _broken(cell: Cell, width: int) -> list[str]:
    """A cell's lines."""
    lines = [""]
    for piece in cell:
        for part in [piece] if len(piece) <= width else _parts(piece, width):
            fits = len(lines[-1]) + 1 + len(part) <= width
            lines[-1:] = [f"{lines[-1]} {part}"] if lines[-1] and fits else [lines[-1], part]
    return lines[1:] or lines


def _parts(piece: str, width: int) -> list[str]:
    """Its words, none longer than a line."""
    found = list[str]()
    for whole in piece.split():
        word = whole
        while len(word) > width:
            cut = 1 + max(word.rfind(mark, 1, width) for mark in MARKS) or width
            found.append(word[:cut])
            word = word[cut:]
        found.append(word)
    return found
