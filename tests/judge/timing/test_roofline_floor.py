"""Floors under a time: operations are counted as by hand, and only those that are needed refute."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fusewright.judge.findings import Ledger
from fusewright.judge.session import Session
from fusewright.judge.timing import bench, roofline_floor
from fusewright.judge.timing.sides import AGAIN, CANDIDATE, EAGER, Side

NAMES = (CANDIDATE, EAGER, AGAIN)
X, W, IMAGE, FILTERS = (
    torch.rand(shape) for shape in ((8, 64), (32, 64), (2, 3, 10, 10), (5, 3, 3, 3))
)
COUNTED: dict[str, tuple[Callable[[], Tensor], int]] = {
    "linear": (lambda: functional.linear(X, W), 2 * 8 * 64 * 32),
    "two products": (lambda: (X @ W.t()) @ W, 2 * 2 * 8 * 64 * 32),
    "conv": (lambda: functional.conv2d(IMAGE, FILTERS), 2 * 2 * 5 * 8 * 8 * 27),
    "no product": (lambda: torch.softmax(X, 1) + X, 0),
}


V, BIAS = torch.rand(48, 32), torch.rand(32)
ONE = 2 * 8 * 64 * 32
# What nobody can do without: products of what is given, all of whose elements reach the output.
NEEDED: dict[str, tuple[Callable[[], Tensor], int]] = {
    "linear, bias, relu": (lambda: torch.relu(functional.linear(X, W, BIAS)), ONE),
    "in three dimensions": (lambda: torch.tanh(functional.linear(X.view(2, 4, 64), W)) + 1, ONE),
    "batched": (lambda: torch.bmm(X.view(2, 4, 64), W.view(2, 64, 16)) + 1, ONE // 2),
    "a sum of two is one": (lambda: X @ W.t() + (2 - X) @ W.t(), ONE),
    "a mean is smaller": (lambda: (X @ W.t()).mean(0), 0),
    "a part is smaller": (lambda: (X @ W.t())[:2] + 1, 0),
    "another order may be cheaper": (lambda: (X @ W.t()) @ V.t(), 0),
    "masked": (lambda: (X @ W.t()) * (W[:8, :32] > 0.5), 0),
    "expanded": (lambda: X[:1].expand(8, 64) @ W.t(), 0),
    "a convolution may be transformed": (lambda: functional.conv2d(IMAGE, FILTERS), 0),
}


@pytest.mark.parametrize("name", COUNTED)
def test_operations_are_counted(name: str) -> None:
    run, wanted = COUNTED[name]
    assert roofline_floor.operations(lambda: [run()])[0] == wanted


@pytest.mark.parametrize("name", NEEDED)
def test_only_what_nobody_can_avoid_is_needed(name: str) -> None:
    run, wanted = NEEDED[name]
    assert roofline_floor.operations(lambda: [run()], [X, W, V, BIAS, IMAGE, FILTERS])[1] == wanted


def test_a_product_with_zeros_is_not_needed() -> None:
    sparse = torch.tril(W)
    assert roofline_floor.operations(lambda: [X @ sparse.t()], [X, sparse])[1] == 0


def test_the_floors_grow_with_the_work() -> None:
    small, large = (roofline_floor.copying_s(n, "cpu") for n in (1 << 22, 1 << 26))
    assert 0 < small < large
    found = roofline_floor.floors(1 << 20, lambda: [X], [X], "cpu", 1e-3)
    assert found["needed_s"] == found["products_s"] == 0 < found["copying_s"]


def test_an_honest_product_is_slower_than_its_floor() -> None:
    a, b = torch.rand(512, 512), torch.rand(512, 512)
    seconds = roofline_floor._fastest(lambda: a @ b, "cpu")
    found = roofline_floor.floors(3 << 20, lambda: [torch.relu(a @ b)], [a, b], "cpu", seconds)
    assert 0 < found["needed_s"] == found["products_s"] < seconds


def test_a_machine_that_was_faster_before_has_a_higher_peak() -> None:
    usual = roofline_floor.peak("cpu", 1, 1.0, torch.float32)
    assert roofline_floor.peak("cpu", 10**15, 1e-3, torch.float32) > 1e3 * usual


LIMITS = {"copying_s": 1e-5, "needed_s": 1e-6, "products_s": 1e-3, "flops": 1e9}
SHOWN = bench.Unclear("too fast", (bench.FLOOR,))
OTHER = bench.Unclear("hidden", ("hidden",))


@pytest.mark.parametrize(
    ("seconds", "needed", "before", "crowded", "outcome", "notes"),
    [
        (1e-7, 1e-6, None, False, "fail", 1), (1e-7, 1e-6, None, True, "fail", 1),
        (1e-6, 1e-6, None, False, "unclear", 0), (1e-6, 1e-6, SHOWN, False, "fail", 1),
        (1e-6, 1e-6, SHOWN, True, "unclear", 0), (1e-6, 1e-6, OTHER, False, "unclear", 0),
        (1e-4, 1e-6, None, False, "pass", 1), (1e-2, 1e-6, SHOWN, False, "pass", 0),
        (1e-4, 1e-3, SHOWN, False, "fail", 1), (2e-3, 1e-3, None, False, "pass", 0),
    ],
)  # fmt: skip
def test_what_is_needed_refutes_if_it_shows_twice_and_other_operations_are_noted(
    seconds: float, needed: float, before: bench.Unclear | None, crowded: bool, outcome: str,
    notes: int,
) -> None:  # fmt: skip
    ledger = Ledger(("timing",))
    request = SimpleNamespace(ignored=())
    fake = cast("Session", SimpleNamespace(ledger=ledger, request=request))
    told = ""
    try:
        limits = LIMITS | {"needed_s": needed}
        bench._check_floors(fake, seconds, limits, before, crowded=crowded)
    except bench.Unclear:
        told = "unclear"
    found = {row.check: row.outcome for row in ledger.rows()}
    assert (told or found["timing-floor"]) == outcome
    assert list(found.values()).count("note") == notes


def test_a_floor_that_a_call_went_below_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy beside a busy neighbour takes long; the least of several looks counts."""
    monkeypatch.setattr(bench, "LOOK_AGAIN_S", 0.0)
    looks = [LIMITS | {"copying_s": s} for s in (9e-4, 8e-4, 2e-5, 7e-4)]
    sides = {name: Side(name, cast("Any", None), 0) for name in NAMES}
    for side in sides.values():
        side.clocks.claimed.append([1e-4])
    fake = cast("Session", SimpleNamespace(ask_reference=lambda **_: looks.pop(0)))
    mine = sides.pop(CANDIDATE)
    run = bench.Run(sides, {mine: ""}, 1, "", {})
    assert bench.floors_of(fake, run)["copying_s"] == 2e-5
    assert len(looks) == 1, "and not once more than it takes"
