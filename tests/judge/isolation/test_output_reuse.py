"""Whoever hands out memory that somebody holds, or keeps it for later, is seen; others are not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy
import pytest
import torch
from torch import Tensor

from fusewright.judge.isolation.output_reuse import OLD, Kept

CALLS = 60
WEIGHT = torch.ones(4, 3)


def _ring(length: int) -> Callable[[int], object]:
    buffers = [torch.empty(3) for _ in range(length)]
    return lambda n: buffers[n % length].fill_(n)


def _arrays(length: int) -> Callable[[int], object]:
    buffers = [numpy.empty(3, "float32") for _ in range(length)]
    return lambda n: torch.from_numpy(buffers[n % length]).fill_(n)


def _slices(length: int) -> Callable[[int], object]:
    buffer = torch.empty(length, 3)
    return lambda n: buffer[n % length].fill_(n)


def _remembering(length: int) -> Callable[[int], object]:
    seen: deque[Tensor] = deque(maxlen=length)

    def call(n: int) -> Tensor:
        seen.append(torch.full((3,), float(n)))
        return seen[-1]

    return call


WRONG = {
    "two buffers": _ring(2), "a ring": _ring(40), "a ring longer than all calls": _ring(1000),
    "a ring of arrays": _arrays(40), "slices of one buffer": _slices(1000),
    "all of its answers": _remembering(1000),
}  # fmt: skip
HONEST = {
    "fresh memory": lambda n: torch.full((3,), float(n)),
    "views of fresh memory": lambda n: torch.ones(4, 5).t()[1:],
    "two views of one memory": lambda n: torch.ones(2, 4).unbind(0),
    "what was given": lambda n: WEIGHT[1:],
    "a fresh array": lambda n: torch.from_numpy(numpy.ones(3)),
    "its last few answers": _remembering(OLD // 2),
    "nothing": lambda n: torch.empty(0),
}


def said(call: Callable[[int], object]) -> str:
    kept = Kept([WEIGHT])
    with torch.no_grad():
        for number in range(CALLS):
            out = call(number)
            kept.add([out] if isinstance(out, Tensor) else list(out))  # type: ignore[call-overload]
            del out
    return kept.says()


@pytest.mark.parametrize("name", WRONG)
def test_memory_that_is_not_its_callers(name: str) -> None:
    assert said(WRONG[name])


@pytest.mark.parametrize("name", HONEST)
def test_memory_that_is(name: str) -> None:
    assert said(HONEST[name]) == ""
