"""How many calls an experiment makes."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from fusewright.judge.experiments import LEAK_CALLS, PART, affordable

EFFORT_S = 8.0


@pytest.mark.parametrize(
    ("cost", "each", "calls"),
    [
        (0.05, math.inf, int(PART["leak"] * EFFORT_S / 0.05)),  # as a judged call takes
        (0.05, 0.001, LEAK_CALLS),  # most of which is the judge's own work
        (0.05, 100.0, int(PART["leak"] * EFFORT_S / 0.05)),  # a claim that saves it calls
        (0.05, 0.0, LEAK_CALLS),
        (100.0, 50.0, 4),
    ],
)
def test_calls_that_nobody_judges_are_as_many_as_they_take(
    cost: float, each: float, calls: int
) -> None:
    lab = SimpleNamespace(share=lambda part: part * EFFORT_S)
    trial: Any = SimpleNamespace(lab=lab, cost=cost)
    assert affordable(trial, "leak", LEAK_CALLS, 4, each) == calls
