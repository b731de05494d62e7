"""Words that decide -> the styles in which a terminal shows them. Nothing else is coloured."""

from __future__ import annotations

STYLES = {
    "pass": "green",
    "fail": "bold red",
    "skip": "dim",
    "note": "yellow",
    "verified": "bold green",
    "refuted": "bold red",
    "not-verified": "bold yellow",
}
