"""Graph -> Graph: convolutions whose pixels are wanted as pools take them come window by window.

    y = relu(convolution(x, w) + b)
    maximum(y[::2, ::2], y[::2, 1::2], ...)
                          ->   maximum(relu(c[0] + b), relu(c[1] + b), ...),  c[k] = window(c, k)

So a pool belongs to the convolution's kernel, where nothing in between is stored. A `window` node
is what all windows have at one of their places. To its kernel, an element of the convolution is a
whole window then; to the interpreter, the convolution stays what it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product as combinations
from math import isfinite, prod

from fusewright.ir.graph import (
    Attribute,
    Graph,
    Node,
    Shape,
    Size,
    broadcast,
    node,
    rebuild,
    toposort,
    with_args,
)
from fusewright.ir.specs import ConvSpec, spec_of
from fusewright.kernels.conv.geometry import geometry, known
from fusewright.kernels.conv.match import misfit
from fusewright.kernels.tensor_core.support import supports
from fusewright.targets.target import Target

# Pixels of a window: 64 columns of a tile have whole vectors of windows. Of 8 (2 x 2 x 2 behind 32
# channels), the kernel took 389 us, and without windows and a map behind it 215 and 43
# [m: conv-0051, conv-0052].
WINDOWS = (2, 4)
LEAST_WINDOWS = 64  # of an image, a prediction: below, tiles are not full

# Functions that keep the order of numbers: of their results, the largest is that of the largest.

Piece = dict[int, tuple[int, int]]  # dimension -> first element, step


def pooled(graph: Graph, target: Target) -> Graph:
    """Pull the pieces that pools take through the maps behind convolutions."""
    before = graph
    while supports(target.arch, "conv.pool_fusion"):
        found = (_moved(graph, n, target) for n in _convolutions(graph))
        moved = next((m for m in found if m), None)
        if moved is None:
            break
        graph = rebuild(graph, lambda n, moved=moved: moved.get(id(n), n))  # type: ignore[misc]
    return graph if graph is before else rebuild(graph, _later)


def _convolutions(graph: Graph) -> Iterator[Node]:
    each = (n for n in toposort(graph.roots) if n.op == "conv")
    whole = ((n, spec_of(n, ConvSpec)) for n in each if not n.order)
    return (n for n, spec in whole if spec.pool_window is None and spec.cell is None)


def _later(n: Node) -> Node:
    """The maximum of what rises is taken before it rises, so that is computed once."""
    if n.op != "maximum":
        return n
    left, right = n.args
    same = (left.op, left.attributes, left.args[1:]) == (right.op, right.attributes, right.args[1:])
    if left is right or not same or not _rises(left) or left.args[0].dtype is not n.dtype:
        return n
    first = (left.args[0], right.args[0])
    below = node("maximum", first, shape=broadcast([a.shape for a in first]), dtype=n.dtype)
    return with_args(left, (_later(below), *left.args[1:]))


def _rises(n: Node) -> bool:
    if n.row.monotonic_with and n.args[1].op == "constant":
        value = n.args[1]["value"]
        finite = isinstance(value, float) and isfinite(value)
        return finite and (n.row.monotonic_with == "finite" or value > 0)  # type: ignore[operator]
    return n.row.monotonic


@dataclass
class _PoolConsumers:
    """What depends on a convolution until pieces are taken: maps of its size, and those pieces.

    pieces: by id, the map that each is of, and where.  ends: pieces that others than pieces read.
    """

    maps: dict[int, Node]
    pieces: dict[int, tuple[Node, Piece]] = field(default_factory=dict)
    ends: dict[int, Node] = field(default_factory=dict)


def _moved(graph: Graph, convolution: Node, target: Target) -> dict[int, Node]:
    """What stands for each piece, by its id; nothing if something else is wanted, too."""
    behind = _behind(graph, convolution)
    if behind is None or (steps := _steps(behind, convolution)) is None:
        return {}
    all_sizes = known(convolution.shape[2:])
    sizes = tuple(s // w for s, w in zip(all_sizes, steps, strict=True))
    spec = replace(spec_of(convolution, ConvSpec), pool_window=steps, full_pixels=all_sizes)
    shape = (*convolution.shape[:2], *sizes)
    made = _reshaped(convolution, convolution.args, shape, spec=spec)
    if prod(sizes) < LEAST_WINDOWS or misfit(geometry(made), target.arch):
        return {}
    by_place = {
        places: _at_places(behind, convolution, made, places)
        for places in combinations(*map(range, steps))
    }
    every = ((key, *behind.pieces[key]) for key in behind.ends)
    return {key: by_place[_places(piece, steps)][id(of)] for key, of, piece in every}


def _behind(graph: Graph, convolution: Node) -> _PoolConsumers | None:
    """None if anything but maps and pieces reads it, or if maps have operands as large."""
    found = _PoolConsumers({id(convolution): convolution})
    for n in toposort(graph.roots):
        inside = [id(a) in found.maps for a in n.args]
        pieces = [a for a in n.args if id(a) in found.pieces]
        if n.op == "narrow" and (any(inside) or pieces):
            of, piece = found.pieces.get(id(n.args[0]), (n.args[0], {}))
            d, start, step = known((n["dim"], n["start"], n["step"]))
            if d < 2 or d in piece or step < 2 or start >= step:
                return None
            found.pieces[id(n)] = of, {**piece, d: (start, step)}
            continue
        found.ends.update({id(a): a for a in pieces})
        if any(inside):
            if n.row.kind != "pointwise" or n.shape != convolution.shape or n.order:
                return None
            others = (a for a, of_it in zip(n.args, inside, strict=True) if not of_it)
            if any(size != 1 for a in others for size in _spatial(a, convolution)):
                return None
            found.maps[id(n)] = n
    kept = {*found.maps, *found.pieces}
    return None if any(id(n) in kept for n in graph.roots) else found


def _spatial(operand: Node, convolution: Node) -> tuple[Size, ...]:
    """The sizes of an operand along the pixels of a convolution."""
    return operand.shape[-min(len(convolution.shape) - 2, len(operand.shape)) :]


def _steps(behind: _PoolConsumers, convolution: Node) -> tuple[int, ...] | None:
    """The size of the windows, if the pieces are all places of all whole windows."""
    rank = len(convolution.shape) - 2
    every = [behind.pieces[key][1] for key in behind.ends]
    steps = {tuple(p[d + 2][1] if d + 2 in p else 1 for d in range(rank)) for p in every}
    if len(steps) != 1 or prod(*steps) not in WINDOWS:
        return None
    (found,) = steps
    whole = tuple(s // w for s, w in zip(known(convolution.shape[2:]), found, strict=True))
    places = {_places(p, found) for p in every}
    if len(places) < prod(found) or any(n.shape[2:] != whole for n in behind.ends.values()):
        return None
    return found if all(w & (w - 1) == 0 for w in found) else None


def _places(piece: Piece, steps: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(piece.get(d + 2, (0, 1))[0] for d in range(len(steps)))


def _at_places(
    behind: _PoolConsumers, convolution: Node, made: Node, places: tuple[int, ...]
) -> dict[int, Node]:
    """Every map of the convolution at one place of all windows, by its id."""
    steps = spec_of(made, ConvSpec).pool_window
    assert steps is not None, "its elements are windows"
    number = 0
    for place, step in zip(places, steps, strict=True):
        number = number * step + place
    ends = tuple(s * w for s, w in zip(known(made.shape[2:]), steps, strict=True))
    new: dict[int, Node] = {}
    for n in behind.maps.values():
        if n is convolution:
            new[id(n)] = node(
                "window_element", [made], shape=made.shape, dtype=n.dtype,
                number=number, places=places, ends=ends, steps=steps,
            )  # fmt: skip
        else:
            args = [new.get(id(a), a) for a in n.args]
            new[id(n)] = _reshaped(n, args, made.shape)
    return new


def _reshaped(n: Node, args: Sequence[Node], shape: Shape, **more: Attribute) -> Node:
    """The same operator on other arguments, and a result of another shape."""
    attributes: Mapping[str, Attribute] = {**dict(n.attributes), **more}
    return node(n.op, args, shape=shape, dtype=n.dtype, order=(), **attributes)
