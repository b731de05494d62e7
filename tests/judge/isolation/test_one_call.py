"""What fills an output in after its return comes too late, whatever calls it."""

from __future__ import annotations

import gc
import signal
import sys
import time
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from fusewright.judge.isolation.one_call import in_one_breath

Fill = Callable[[], object]


class _Rest:
    """A cycle that only the collector of garbage takes apart."""

    def __init__(self, fill: Fill) -> None:
        self.fill, self.itself = fill, self

    def __del__(self) -> None:
        gc.set_threshold(700, 10, 10)
        self.fill()


def _by_profile(fill: Fill) -> None:
    def hook(frame: object, event: str, argument: object) -> None:
        if event == "call":
            sys.setprofile(None)
            fill()

    sys.setprofile(hook)


def _by_trace(fill: Fill) -> None:
    before = sys.gettrace()

    def hook(frame: object, event: str, argument: object) -> None:
        sys.settrace(before)
        fill()

    sys.settrace(hook)


def _by_garbage(fill: Fill) -> None:
    _Rest(fill)
    gc.set_threshold(1, 1, 1)


def _by_timer(fill: Fill) -> None:
    signal.signal(signal.SIGVTALRM, lambda *_: fill())
    signal.setitimer(signal.ITIMER_VIRTUAL, 2e-3)


def _by_itself(fill: Fill) -> None:
    fill()


LATE: Mapping[str, Callable[[Fill], None]] = {
    "profile": _by_profile, "trace": _by_trace, "garbage": _by_garbage, "timer": _by_timer,
}  # fmt: skip


def _something() -> None:
    """What a caller does next: Python."""
    end = time.process_time() + 0.01
    while time.process_time() < end:
        [[] for _ in range(100)]


@pytest.mark.parametrize("how", [*LATE, "itself"])
def test_what_comes_later_is_not_in_the_copy(how: str) -> None:
    out = torch.zeros(3)

    def model() -> Tensor:
        LATE.get(how, _by_itself)(lambda: out.fill_(1.0))
        return out

    outputs, (said,), copies = in_one_breath(model, (time.perf_counter_ns,))
    _something()
    assert outputs is out
    assert 0 < said < time.perf_counter_ns()
    assert torch.equal(out, torch.ones(3)), "it was filled in, sooner or later"
    assert torch.equal(copies[id(out)], torch.full((3,), float(how == "itself")))
    assert gc.isenabled()


Pair = namedtuple("Pair", "a b")


@dataclass
class Fields:
    a: Tensor


def test_containers() -> None:
    a, b = torch.ones(2), torch.ones(3)
    for value, known in (
        (a, [a]), ((a, b), [a, b]), ([a, {"k": b}, None, 3, "text"], [a, b]),
        (Pair(a, b), [a, b]), ((), []), (Fields(a), []),
    ):  # fmt: skip
        outputs, _, copies = in_one_breath(lambda value=value: value, ())
        assert outputs is value
        assert all(torch.equal(copies[id(t)], t) and copies[id(t)] is not t for t in known)


def test_what_a_model_raises_and_leaves_is_its_own() -> None:
    def model() -> Tensor:
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        in_one_breath(model, ())
    assert gc.isenabled()
    try:
        in_one_breath(gc.disable, ())
        assert not gc.isenabled(), "what a call has left so stays so"
    finally:
        gc.enable()
