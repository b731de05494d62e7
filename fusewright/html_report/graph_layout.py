"""A graph without circles -> places for its nodes and routes for its edges, in layers.

The way of Sugiyama: layers by the longest path, an order in each of them that crosses few edges,
then places as near to the neighbours' as the order allows. An edge that passes a layer has a lane
of its own there, so that it does not run behind a node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

WIDTH, HEIGHT = 228.0, 46.0  # of a node
LANE, GAP, RISE, MARGIN = 14.0, 20.0, 36.0, 8.0
SWEEPS = 8  # over the order of layers
SETTLING = 40  # over places
Point = tuple[float, float]


@dataclass(frozen=True)
class Layout:
    """places: of the upper left corner of each node.  routes: of each edge the points where it
    leaves, enters and leaves layers, from the end of one node to the top of another."""

    size: tuple[float, float]
    places: tuple[Point, ...]
    routes: tuple[tuple[Point, ...], ...]


def layout(reads: Sequence[Sequence[int]]) -> Layout:
    """reads: of each node the nodes that it reads, all before its own."""
    layer_of = _layers(reads)
    layers: list[list[int]] = [[] for _ in range(max(layer_of, default=-1) + 1)]
    for k, layer in enumerate(layer_of):
        layers[layer].append(k)
    chains, count = list[list[int]](), len(reads)
    for k, sources in enumerate(reads):
        for source in sources:
            between = range(layer_of[source] + 1, layer_of[k])
            lanes = [*range(count, count + len(between))]
            count += len(lanes)
            for lane, layer in zip(lanes, between, strict=True):
                layers[layer].append(lane)
            chains.append([source, *lanes, k])
    above: dict[int, list[int]] = {k: [] for k in range(count)}
    below: dict[int, list[int]] = {k: [] for k in range(count)}
    for chain in chains:
        for one, other in pairwise(chain):
            below[one].append(other)
            above[other].append(one)
    _order(layers, above, below)
    centres = _centres(layers, above, below, len(reads))
    top = {k: MARGIN + n * (HEIGHT + RISE) for n, layer in enumerate(layers) for k in layer}
    size = (
        max((x + WIDTH / 2 for x in centres.values()), default=0.0) + MARGIN,
        max(len(layers) * (HEIGHT + RISE) - RISE, 0.0) + 2 * MARGIN,
    )
    places = tuple((centres[k] - WIDTH / 2, top[k]) for k in range(len(reads)))
    return Layout(size, places, tuple(tuple(_route(chain, centres, top)) for chain in chains))


def _layers(reads: Sequence[Sequence[int]]) -> list[int]:
    """Below all that it reads; what reads nothing, just above the first that reads it."""
    found = list[int]()
    for sources in reads:
        found.append(1 + max((found[k] for k in sources), default=-1))
    first: dict[int, int] = {}
    for k, sources in enumerate(reads):
        for source in sources:
            first[source] = min(found[k], first.get(source, found[k]))
    return [max(0, first[k] - 1) if not reads[k] and k in first else found[k]
            for k in range(len(reads))]  # fmt: skip


def _order(
    layers: Sequence[list[int]], above: Mapping[int, list[int]], below: Mapping[int, list[int]]
) -> None:
    """Each layer by the middle of its neighbours, down and up in turn."""
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        near, others = (above, layers) if down else (below, layers[::-1])
        for before, layer in pairwise(others):
            place = {k: n for n, k in enumerate(before)}
            own = {k: n for n, k in enumerate(layer)}
            middle = {k: _mean([place[n] for n in near[k]], own[k]) for k in layer}
            layer.sort(key=middle.__getitem__)


def _centres(
    layers: Sequence[Sequence[int]],
    above: Mapping[int, list[int]],
    below: Mapping[int, list[int]],
    nodes: int,
) -> dict[int, float]:
    """Where each node and lane has its middle, from the left."""
    half = {k: (WIDTH if k < nodes else LANE) / 2 for layer in layers for k in layer}
    centres: dict[int, float] = {}
    for layer in layers:
        spread = _spread([0.0] * len(layer), [half[k] for k in layer])
        centres |= dict(zip(layer, spread, strict=True))
    for sweep in range(SETTLING):
        for layer in layers if sweep % 2 == 0 else layers[::-1]:
            wanted = [_mean([centres[n] for n in above[k] + below[k]], centres[k]) for k in layer]
            spread = _spread(wanted, [half[k] for k in layer])
            centres |= dict(zip(layer, spread, strict=True))
    left = min((centres[k] - half[k] for k in centres), default=0.0) - MARGIN
    return {k: x - left for k, x in centres.items()}


def _spread(wanted: Sequence[float], half: Sequence[float]) -> list[float]:
    """As near as possible to where they want to be, in this order and apart: by pools of adjacent
    violators, which gives the least squares."""
    offsets = [0.0]
    for one, other in pairwise(half):
        offsets.append(offsets[-1] + one + GAP + other)
    pools = list[tuple[float, int]]()  # the mean, and of how many
    for want, offset in zip(wanted, offsets, strict=False):
        pools.append((want - offset, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (one, many), (other, more) = pools.pop(-2), pools.pop()
            pools.append(((one * many + other * more) / (many + more), many + more))
    means = [mean for mean, many in pools for _ in range(many)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=False)]


def _route(
    chain: Sequence[int], centres: Mapping[int, float], top: Mapping[int, float]
) -> Iterator[Point]:
    first, *lanes, last = chain
    yield centres[first], top[first] + HEIGHT
    for lane in lanes:
        yield centres[lane], top[lane]
        yield centres[lane], top[lane] + HEIGHT
    yield centres[last], top[last]


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
