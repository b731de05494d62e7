"""The graph of the model -> a drawing: a box for each node, in the colour of its kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fusewright.html_report.graph_layout import HEIGHT, WIDTH, Point, layout
from fusewright.html_report.page import Box, Drawing, hue_of

LONGEST = 25  # characters of a name that a box has room for
HEAD = 4.0  # pixels of half an arrow's head
STAYS = "Py"  # the mark of a call of PyTorch's
INPUT = "hue-input"


def drawing(
    graph: Mapping[str, Any], number_of: Sequence[int], anchors: Mapping[int, str], label: str
) -> Drawing:
    """graph: a `ModelGraph`, as the report has it.  number_of: of each of its steps the number of
    its kernel, 0 of a call of PyTorch's.  anchors: where each kernel is told of, by its number."""
    nodes = graph["nodes"]
    found = layout([node["reads"] for node in nodes])
    outputs = {*graph["outputs"]}
    boxes = []
    for k, (node, (x, y)) in enumerate(zip(nodes, found.places, strict=True)):
        number = None if node["step"] is None else number_of[node["step"]]
        title = "\n".join(_told(node, number, is_output=k in outputs))
        mark = "in" if number is None else str(number or STAYS)
        hue = INPUT if number is None else hue_of(number)
        line = "" if node["line"] is None else f"line {node['line']} · "
        detail = _short(f"{line}{node['shape']}", LONGEST + 5)
        href = anchors.get(number or 0, "") if number is not None else ""
        boxes.append(Box(x, y, hue, mark, _short(node["name"]), detail, title, href))
    heads = tuple(_head(route[-1]) for route in found.routes)
    lines = tuple(_path(route) for route in found.routes)
    return Drawing(label, found.size, (WIDTH, HEIGHT), tuple(boxes), lines, heads)


def _told(node: Mapping[str, Any], number: int | None, *, is_output: bool) -> Iterator[str]:
    line = "" if node["line"] is None else f", line {node['line']}"
    yield f"{node['name']}{line}"
    if number is not None:
        yield f"kernel {number}" if number else "PyTorch's own call"
    counted = Counter(node["operators"]).items()
    if counted:
        yield ", ".join(f"{name} x{k}" if k > 1 else name for name, k in counted)
    yield f"{'output ' * is_output}{node['shape']}"


def _short(text: str, longest: int = LONGEST) -> str:
    """Its beginning says what is called, its end where."""
    begin = longest // 3
    return text if len(text) <= longest else f"{text[:begin]}…{text[begin + 1 - longest :]}"


def _path(route: Sequence[Point]) -> str:
    (x, y), *others = route
    parts = [f"M{x:.1f} {y:.1f}"]
    for k, (a, b) in enumerate(others):
        b -= 2 * HEAD * (k == len(others) - 1)
        bend = (b - y) / 2 if k % 2 == 0 else 0.0
        parts.append(
            f"C{x:.1f} {y + bend:.1f} {a:.1f} {b - bend:.1f} {a:.1f} {b:.1f}"
            if bend
            else f"L{a:.1f} {b:.1f}"
        )
        x, y = a, b
    return " ".join(parts)


def _head(end: Point) -> str:
    x, y = end
    return f"{x:.1f},{y:.1f} {x - HEAD:.1f},{y - 2 * HEAD:.1f} {x + HEAD:.1f},{y - 2 * HEAD:.1f}"
