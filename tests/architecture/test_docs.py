"""Pages of docs/ and README.md: lines that fit a screen, links and paths that lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WIDEST = 120
CODE = re.compile(r"^ {4}[^\n]*$|^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# `fusewright/...`, and what lies below it: the paths that pages write between backticks.
QUOTED = re.compile(r"`([\w./-]+/[\w.-]+\.(?:py|cuh|cu|h|md|jinja))`")
# Pages whose paths are those of another time: what is gone is named there on purpose.
OF_THE_PAST = {"glossary.md", "measurements.md"}
# What a how-to page asks its reader to write.
PLACEHOLDERS = re.compile(r"NAME|XX|^\.\./")


def pages() -> list[str]:
    return [p.relative_to(ROOT).as_posix() for p in PAGES]


@pytest.mark.parametrize("page", pages())
def test_lines_fit_a_screen(page: str) -> None:
    lines = (ROOT / page).read_text(encoding="utf-8").split("\n")
    assert not [n for n, line in enumerate(lines, 1) if len(line) > WIDEST]


@pytest.mark.parametrize("page", pages())
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for target in LINK.findall(CODE.sub("", path.read_text(encoding="utf-8"))):
        if target.startswith("http"):
            continue
        name, _, heading = target.partition("#")
        found = path.parent / name if name else path
        assert found.is_file(), f"{page} links {target}"
        assert not heading or heading in headings(found), f"{page} links {target}"


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them of its headings."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", [p for p in pages() if Path(p).name not in OF_THE_PAST])
def test_paths_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    every = {path for path in QUOTED.findall(text) if not PLACEHOLDERS.search(path)}
    missing = [p for p in every if not any((base / p).is_file() for base in bases(page))]
    assert not missing


def bases(page: str) -> tuple[Path, ...]:
    """Where the paths of a page begin: here, in the package, or in the family that it is about."""
    family = ROOT / "fusewright" / "kernels" / Path(page).stem
    return ROOT, ROOT / "fusewright", family, (ROOT / page).parent


def test_every_page_is_in_the_index() -> None:
    linked = LINK.findall((ROOT / "docs/index.md").read_text(encoding="utf-8"))
    here = {p.relative_to(ROOT / "docs").as_posix() for p in PAGES[1:]} - {"index.md"}
    assert here - set(linked) == set()
