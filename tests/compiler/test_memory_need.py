"""Memory on paper: what a model's tensors take, and who waits for how much of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fusewright.common.timing_lock import HOST, TimingLock
from fusewright.compiler.memory_need import Sizes, need, sizes_observed, sizes_of
from fusewright.frontend.capture import capture

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


@pytest.mark.parametrize(
    ("model", "size"),
    [(nn.Conv2d(3, 4, 3), (2, 3, 8, 8)), (nn.ConvTranspose1d(3, 4, 3), (2, 3, 8))],
    ids=["convolution", "transposed"],
)
def test_a_gpus_convolutions_need_room_of_their_own(model: nn.Module, size: list[int]) -> None:
    sizes = sizes_of(capture(model, [torch.randn(size)]).graph)
    assert sizes.convolves
    assert sizes_observed(model, [torch.randn(size)], 0).convolves
    plain = replace(sizes, outputs=10**9, convolves=False)
    more = replace(plain, convolves=True)
    assert need(more, "cuda").gpu > need(plain, "cuda").gpu
    assert need(more, "cpu") == need(plain, "cpu")


def test_larger_models_need_more() -> None:
    small, large = Sizes(10, 10, 10, 10), Sizes(10**9, 10**9, 10**9, 10**9)
    for device in ("cpu", "cuda"):
        assert need(large, device).host > need(small, device).host > 10**8
    assert need(large, "cpu").gpu == 0
    assert need(large, "cuda").gpu > need(small, "cuda").gpu > 10**8


def until(holds: Callable[[], bool]) -> None:
    """Wait for what other threads do, but not for ever."""
    end = time.monotonic() + 10
    while not holds() and time.monotonic() < end:
        time.sleep(0.005)


class Runs:
    """Runs of a suite in threads: each settles, notes it, and stays until it may go."""

    def __init__(self, limits: dict[str, int]) -> None:
        self.machine, self.inside = TimingLock(limits), list[str]()
        self.may_go: dict[str, threading.Event] = {}
        self.threads: list[threading.Thread] = []

    def start(self, name: str, **wants: int) -> None:
        self.may_go[name] = threading.Event()
        self.threads.append(threading.Thread(target=self._run, args=(name, wants), daemon=True))
        self.threads[-1].start()
        asked = self.machine._claims
        until(lambda: name in self.inside or any(claim.run == name for claim in asked))

    def end(self, *names: str) -> None:
        for name in names:
            self.may_go[name].set()
            until(lambda name=name: name not in self.inside)

    def are(self, *names: str) -> bool:
        """Whether these come to be inside, and no others soon after."""
        until(lambda: sorted(self.inside) == sorted(names))
        time.sleep(0.05)
        return sorted(self.inside) == sorted(names)

    def over(self) -> bool:
        for thread in self.threads:
            thread.join(10)
        return not any(thread.is_alive() for thread in self.threads)

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
    assert runs.are("a", "b"), "nobody overtakes who waits for the same"
    runs.end("a")
    assert runs.are("b")
    runs.end("b")
    assert runs.are("large", "small")
    runs.end("large", "small")
    assert runs.over()


def test_each_gpu_has_a_queue() -> None:
    runs = Runs({HOST: 100, "0": 10, "1": 10})
    runs.start("a", host=1, **{"0": 8})
    runs.start("b", host=1, **{"0": 8})
    runs.start("c", host=1, **{"1": 8})
    assert runs.are("a", "c")
    runs.end("a", "b", "c")
    assert runs.over()


def test_what_does_not_fit_has_it_alone() -> None:
    runs = Runs({HOST: 10})
    runs.start("a", host=3)
    runs.start("huge", host=30)
    assert runs.are("a")
    runs.end("a")
    assert runs.are("huge")
    runs.start("b", host=1)
    assert runs.are("huge")
    runs.end("huge", "b")
    assert runs.over()


def test_who_waits_for_memory_lets_others_time() -> None:
    """One that has memory, and waits for its turn, must not wait for one that waits for memory."""
    machine, order = TimingLock({HOST: 10}), list[str]()
    has_it = threading.Event()

    def has() -> None:
        with machine.working():
            machine.settle("has", {HOST: 8})
            has_it.set()
            until(lambda: bool(machine._claims))
            with machine.alone():
                order.append("timed")
            machine.leave("has")

    def wants() -> None:
        with machine.working():
            has_it.wait(10)
            machine.settle("wants", {HOST: 8})
            order.append("settled")

    threads = [threading.Thread(target=f, daemon=True) for f in (has, wants)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert order == ["timed", "settled"]
