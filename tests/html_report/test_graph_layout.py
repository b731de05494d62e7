"""Layers: edges go down, nothing lies on anything else."""

from __future__ import annotations

import itertools
import random

import pytest

from fusewright.html_report.graph_layout import HEIGHT, WIDTH, layout

Reads = list[list[int]]


def chain(length: int) -> Reads:
    return [[k - 1] if k else [] for k in range(length)]


def anything(seed: int, nodes: int) -> Reads:
    draw = random.Random(seed)
    return [
        sorted(draw.sample(range(k), min(k, draw.choice([0, 1, 1, 1, 2, 3])))) for k in range(nodes)
    ]


GRAPHS: dict[str, Reads] = {
    "one": [[]],
    "chain": chain(5),
    "residual": [[], [0], [1], [0, 2]],
    "late input": [[], [0], [1], [], [2, 3]],
    "wide": [[], *[[0] for _ in range(9)], [*range(1, 10)]],
    **{f"any {seed}": anything(seed, 60) for seed in range(6)},
    "large": anything(7, 150),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_boxes_are_apart_and_edges_go_down(name: str) -> None:
    reads = GRAPHS[name]
    found = layout(reads)
    assert len(found.places) == len(reads)
    for (x, y), (a, b) in itertools.combinations(found.places, 2):
        assert abs(x - a) >= WIDTH or abs(y - b) >= HEIGHT
    for x, y in found.places:
        assert x >= 0
        assert x + WIDTH <= found.size[0]
        assert 0 <= y <= found.size[1] - HEIGHT
    assert len(found.routes) == sum(map(len, reads))
    for route in found.routes:
        assert all(above[1] < below[1] for above, below in itertools.pairwise(route))


@pytest.mark.parametrize("name", GRAPHS)
def test_edges_begin_and_end_at_their_nodes_and_pass_by_others(name: str) -> None:
    reads = GRAPHS[name]
    found = layout(reads)
    wanted = [(source, k) for k, sources in enumerate(reads) for source in sources]
    for (source, k), route in zip(wanted, found.routes, strict=True):
        x, y = found.places[source]
        assert route[0] == pytest.approx((x + WIDTH / 2, y + HEIGHT))
        x, y = found.places[k]
        assert route[-1] == pytest.approx((x + WIDTH / 2, y))
        for x, y in route[1:-1]:  # in lanes of layers between
            assert not any(
                a < x < a + WIDTH and b < y + 1e-6 and y - 1e-6 < b + HEIGHT
                for n, (a, b) in enumerate(found.places)
                if n not in (source, k)
            )


def test_an_input_stands_above_its_first_reader() -> None:
    places = layout(GRAPHS["late input"]).places
    assert places[3][1] == places[2][1], "and not at the top"


def test_a_chain_is_straight() -> None:
    assert len({x for x, _ in layout(chain(30)).places}) == 1


def test_two_rows_do_not_cross_without_need() -> None:
    """Two chains from the inputs on, whose nodes come in turn in other orders."""
    reads: Reads = [[], [], [1], [0], [3], [2]]
    places = layout(reads).places
    left = places[0][0] < places[1][0]
    assert [places[3][0] < places[2][0], places[4][0] < places[5][0]] == [left, left]
