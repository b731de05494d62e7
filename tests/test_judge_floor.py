"""Floors under a time: operations are counted as by hand, and only bytes refute."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.nn import functional

from fusewright.judge import floor, timing
from fusewright.judge.findings import Ledger
from fusewright.judge.session import Session

X, W, IMAGE, FILTERS = (
    torch.rand(shape) for shape in ((8, 64), (32, 64), (2, 3, 10, 10), (5, 3, 3, 3))
)
COUNTED: dict[str, tuple[Callable[[], object], int]] = {
    "linear": (lambda: functional.linear(X, W), 2 * 8 * 64 * 32),
    "two products": (lambda: (X @ W.t()) @ W, 2 * 2 * 8 * 64 * 32),
    "conv": (lambda: functional.conv2d(IMAGE, FILTERS), 2 * 2 * 5 * 8 * 8 * 27),
    "no product": (lambda: torch.softmax(X, 1) + X, 0),
}


@pytest.mark.parametrize("name", COUNTED)
def test_operations_are_counted(name: str) -> None:
    run, wanted = COUNTED[name]
    assert floor.operations(run) == wanted


def test_the_floors_grow_with_the_work() -> None:
    small, large = (floor.floors(n, lambda: X, "cpu")["copying_s"] for n in (1 << 22, 1 << 26))
    assert 0 < small < large
    assert floor.products_s(0, "cpu") == 0
    few, many = (floor.products_s(n, "cpu") for n in (10**9, 10**12))
    assert 0 < few < many


def test_an_honest_product_is_slower_than_its_floor() -> None:
    a = torch.rand(512, 512)
    seconds = floor._fastest(lambda: a @ a, "cpu")
    assert floor.products_s(2 * 512**3, "cpu") < seconds


@pytest.mark.parametrize(
    ("seconds", "outcome", "notes"), [(1e-6, "fail", 1), (1e-4, "pass", 1), (1e-2, "pass", 0)]
)
def test_bytes_refute_and_operations_are_noted(seconds: float, outcome: str, notes: int) -> None:
    ledger = Ledger(("timing",))
    fake = cast("Session", SimpleNamespace(ledger=ledger))
    floors: Any = {"copying_s": 1e-5, "products_s": 1e-3, "flops": 1e9}
    timing._check_floors(fake, seconds, floors)
    found = {row.check: row.outcome for row in ledger.rows()}
    assert found["timing-floor"] == outcome
    assert list(found.values()).count("note") == notes
