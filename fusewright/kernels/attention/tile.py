"""The strategy of attention's kernel: its tile."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AttentionTile:
    """width: columns that a block has room for, of a row of queries and of one of the result.
    vector: elements of an access behind attention."""

    width: int
    vector: int
