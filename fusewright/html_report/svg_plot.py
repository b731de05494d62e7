"""A figure of matplotlib -> SVG that stands inside a page and takes its colours from there.

Figures are drawn in colours that mean something; what a reader sees in their place, the page's
style says, which knows whether it is light or dark.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from markupsafe import Markup

from fusewright.errors import BadUsage
from fusewright.html_report.page import HUES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
FONT = 13  # pixels
# A colour of a figure -> the variable of the page's style.
INK, FAINT, PAPER, GOOD, BAD, LIBRARY = (
    "#0a0001", "#0a0002", "#0a0003", "#0a0004", "#0a0005", "#0a0006",
)  # fmt: skip
HUE_COLOURS = tuple(f"#0b000{k}" for k in range(HUES))
VARIABLES: Mapping[str, str] = {
    INK: "--ink",
    FAINT: "--line",
    PAPER: "--paper",
    GOOD: "--good",
    BAD: "--bad",
    LIBRARY: "--library",
    **{colour: f"--hue{k}" for k, colour in enumerate(HUE_COLOURS)},
}
STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: it can be read, found and copied
    "svg.hashsalt": "fusewright",  # the same figure is the same text
    "font.size": FONT,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 1.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
PACKAGE = "matplotlib"


def require_plots() -> None:
    """Raises BadUsage where the library that plots is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise BadUsage(
            f"--html needs the package {PACKAGE}: pip install 'fusewright[report]'."
        ) from error


@contextmanager
def axes_of(width: int, height: int) -> Iterator[Axes]:
    """The axes of a figure of so many pixels, in this file's style."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(width / 72, height / 72), dpi=72, layout="constrained")
        yield figure.add_subplot()


def svg_of(axes: Axes, label: str, titles: Mapping[str, str]) -> Markup:
    """The figure of some axes, inside `axes_of`.

    label: what it shows, for who does not see it.  titles: of what has such a group id, what is
    said of it where a pointer rests.
    """
    file = io.StringIO()
    figure: Any = axes.figure
    figure.savefig(file, format="svg", metadata=NO_METADATA)
    root = ElementTree.fromstring(file.getvalue())
    _, _, width, height = root.attrib["viewBox"].split()
    for name in [*root.attrib]:
        if name != "viewBox":
            del root.attrib[name]
    root.attrib |= {"width": width, "height": height, "role": "img", "aria-label": label}
    for parent in [*root.iter()]:
        for child in [*parent]:
            if child.tag in (f"{{{SVG}}}metadata", f"{{{SVG}}}style"):
                parent.remove(child)
    for element in root.iter():
        _settle(element, titles)
    return Markup(_text(root))


def _settle(element: ElementTree.Element, titles: Mapping[str, str]) -> None:
    """Without names of an own document: several plots stand on one page."""
    element.tag = element.tag.removeprefix(f"{{{SVG}}}")
    if (link := element.attrib.pop(f"{{{XLINK}}}href", None)) is not None:
        element.attrib["href"] = link
    if element.tag == "g" and (name := element.attrib.pop("id", None)) is not None:
        element.attrib["class"] = name
        if name in titles:
            title = ElementTree.Element(f"{{{SVG}}}title")
            title.text = titles[name]
            element.insert(0, title)


def _text(root: ElementTree.Element) -> str:
    text = ElementTree.tostring(root, encoding="unicode")
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    return text
