"""The elements of a matrix between two diagonals, and which tiles hold some of them."""

from __future__ import annotations

from dataclasses import dataclass

FAR = 1 << 30  # beyond all columns


@dataclass(frozen=True)
class DiagonalBand:
    """The elements with least <= column - row <= most."""

    least: int = -FAR
    most: int = FAR

    def __or__(self, other: DiagonalBand) -> DiagonalBand:
        """The least band that holds both."""
        if NONE in (self, other):
            return other if self == NONE else self
        return DiagonalBand(min(self.least, other.least), max(self.most, other.most))

    def __and__(self, other: DiagonalBand) -> DiagonalBand:
        both = DiagonalBand(max(self.least, other.least), min(self.most, other.most))
        return both if both.least <= both.most else NONE

    @property
    def turned(self) -> DiagonalBand:
        """The same of the transpose."""
        return DiagonalBand(-self.most, -self.least)

    def columns(self, row: int, high: int, wide: int, across: int) -> range:
        """The wanted tiles of `high` x `wide` in a row of tiles: `tiles_of` of the device text."""
        ends = ((self.least + row * high) // wide, (self.most + row * high + high - 1) // wide + 1)
        return range(*(min(max(end, 0), across) for end in ends))

    def share(self, rows: int, columns: int) -> float:
        """How much of a matrix it is."""
        if self == ALL:
            return 1.0
        return sum(len(self.columns(row, 1, 1, columns)) for row in range(rows)) / (rows * columns)


ALL, NONE = DiagonalBand(), DiagonalBand(FAR, -FAR)
