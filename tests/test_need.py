"""Memory on paper: what a model's tensors take, and who waits for how much of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fusewright.capture import capture
from fusewright.need import Sizes, need, sizes_of
from fusewright.turn import HOST, Machine

KB = 1024  # a [16, 16] tensor of float32
FORWARD: dict[str, tuple[Callable[[nn.Linear, torch.Tensor], object], int, int]] = {
    # outputs, live at most
    "a map": (lambda _, x: x.exp(), KB, KB),
    "a chain": (lambda _, x: x.exp().sin().exp().sin(), KB, 2 * KB),
    "a sum of two": (lambda _, x: x.exp() + x.sin(), KB, 3 * KB),
    "a view": (lambda _, x: x.t(), 0, 0),
    "of the input alone": (lambda _, x: (x.exp(), x.sin(), x.cos()), 3 * KB, 3 * KB),
    "the same twice": (lambda _, x: [x.exp()] * 2, KB, KB),
    "a sum": (lambda _, x: x.exp().sum(), 4, KB + 4),
    "a product": (lambda m, x: F.relu(m(x)), KB, 2 * KB),
}


@pytest.mark.parametrize("name", FORWARD)
def test_sizes(name: str) -> None:
    forward, outputs, live = FORWARD[name]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.proj = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> object:
            return forward(self.proj, x)

    state = KB + 64 if name == "a product" else 0
    found = sizes_of(capture(Model(), [torch.randn(16, 16)]).graph)
    assert found == Sizes(KB, outputs, state, live)


def test_larger_models_need_more() -> None:
    small, large = Sizes(10, 10, 10, 10), Sizes(10**9, 10**9, 10**9, 10**9)
    for device in ("cpu", "cuda"):
        assert need(large, device).host > need(small, device).host > 10**8
    assert need(large, "cpu").gpu == 0
    assert need(large, "cuda").gpu > need(small, "cuda").gpu > 10**8


class Runs:
    """Runs of a suite in threads: each settles, notes it, and stays until it may go."""

    def __init__(self, limits: dict[str, int]) -> None:
        self.machine, self.inside = Machine(limits), list[str]()
        self.may_go: dict[str, threading.Event] = {}
        self.threads: list[threading.Thread] = []

    def start(self, name: str, **wants: int) -> None:
        self.may_go[name] = threading.Event()
        self.threads.append(threading.Thread(target=self._run, args=(name, wants)))
        self.threads[-1].start()
        time.sleep(0.05)

    def end(self, *names: str) -> None:
        for name in names:
            self.may_go[name].set()
            time.sleep(0.05)

    def _run(self, name: str, wants: dict[str, int]) -> None:
        with self.machine.working():
            self.machine.settle(name, wants)
            self.inside.append(name)
            self.may_go[name].wait(10)
            self.inside.remove(name)
            self.machine.leave(name)


def test_runs_wait_for_memory() -> None:
    runs = Runs({HOST: 10, "0": 100})
    runs.start("a", host=4, **{"0": 10})
    runs.start("b", host=4, **{"0": 10})
    runs.start("large", host=8)
    runs.start("small", host=1)
    assert runs.inside == ["a", "b"], "nobody overtakes who waits for the same"
    runs.end("a")
    assert runs.inside == ["b"]
    runs.end("b")
    assert runs.inside == ["large", "small"]
    runs.end("large", "small")
    assert not any(thread.is_alive() for thread in runs.threads)


def test_each_gpu_has_a_queue() -> None:
    runs = Runs({HOST: 100, "0": 10, "1": 10})
    runs.start("a", host=1, **{"0": 8})
    runs.start("b", host=1, **{"0": 8})
    runs.start("c", host=1, **{"1": 8})
    assert runs.inside == ["a", "c"]
    runs.end("a", "b", "c")
    assert not any(thread.is_alive() for thread in runs.threads)


def test_what_does_not_fit_has_it_alone() -> None:
    runs = Runs({HOST: 10})
    runs.start("a", host=3)
    runs.start("huge", host=30)
    assert runs.inside == ["a"]
    runs.end("a")
    assert runs.inside == ["huge"]
    runs.start("b", host=1)
    assert runs.inside == ["huge"]
    runs.end("huge", "b")
    assert not any(thread.is_alive() for thread in runs.threads)


def test_who_waits_for_memory_lets_others_time() -> None:
    """One that has memory, and waits for its turn, must not wait for one that waits for memory."""
    machine, order = Machine({HOST: 10}), list[str]()
    waits = threading.Event()

    def has() -> None:
        with machine.working():
            machine.settle("has", {HOST: 8})
            waits.wait(10)
            time.sleep(0.1)
            with machine.alone():
                order.append("timed")
            machine.leave("has")

    def wants() -> None:
        with machine.working():
            time.sleep(0.05)
            waits.set()
            machine.settle("wants", {HOST: 8})
            order.append("settled")

    threads = [threading.Thread(target=f) for f in (has, wants)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert order == ["timed", "settled"]
