"""Where the files of this package lie."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[1]
