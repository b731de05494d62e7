"""The page model -> HTML: a page of its own, or blocks in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fusewright.html_report.page import Page, Section

FOLDER = Path(__file__).parent


@cache
def _environment() -> Environment:
    """All that a template writes is escaped, but for what is Markup already."""
    return Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def page_text(page: Page) -> str:
    """One HTML page that needs nothing else: no network, no other file, no script to be read."""
    return _environment().get_template("page.html.jinja").render(page=page)


def blocks_text(title: str, sections: Sequence[Section]) -> str:
    """Sections for a page of somebody else's, whose styles they leave alone."""
    template = _environment().get_template("notebook.html.jinja")
    return template.render(title=title, sections=sections)
