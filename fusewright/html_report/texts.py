"""Files that a page shows -> their texts, as far as they are there."""

from __future__ import annotations

from pathlib import Path


def text_at(path: str | Path) -> str:
    """The text of a file; "" where there is none, or none that can be read."""
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
