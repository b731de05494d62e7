"""Counters of calls, as `num_batches_tracked`: which kernels count beside their rows, and when not.

The test marked `gpu` runs whole emitted models.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import fusewright
from fusewright.codegen.cuda_source import cuda_source
from fusewright.compiler.compilation import Compilation, make
from fusewright.targets.target import TARGETS
from tests.support.agreement import disagreements
from tests.support.compiled import ready
from tests.support.numbered import numbered

COUNT = "if (row == 0) *count0 += "


class State(nn.Module):
    """A mean of the rows as state, and a counter beside it."""

    def __init__(self, change: Callable[[State, Tensor], Tensor]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("n", torch.zeros((), dtype=torch.int64))
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        self.mean.copy_(x.mean((0, 2)))
        return self.change(self, x)


def adds_three(m: State, x: Tensor) -> Tensor:
    m.n.add_(3)
    return x + 1


def adds_the_batch(m: State, x: Tensor) -> Tensor:
    m.n.add_(x.shape[0])
    return x + 1


def shows(m: State, x: Tensor) -> Tensor:
    return m.n.add_(1)


def reads_before(m: State, x: Tensor) -> Tensor:
    before = x * m.n
    m.n.add_(1)
    return before


def reads_behind(m: State, x: Tensor) -> Tensor:
    m.n.add_(1)
    return x * m.n


def norms(**options: object) -> nn.Module:
    first, last = nn.BatchNorm2d(8, **options), nn.BatchNorm2d(16, **options)  # type: ignore[arg-type]
    return nn.Sequential(first, nn.Conv2d(8, 16, 3), last, nn.ReLU())


def planned(model: nn.Module, target: str = "sm_90a", size: int = 6) -> Compilation:
    dims = (4, 8, size, size) if not isinstance(model, State) else (4, 8, size)
    return make(model, [torch.empty(dims)], TARGETS[target])


def counted(made: Compilation) -> list[list[str]]:
    """The counters of each kernel, by name."""
    return [[str(n.args[0]["name"]) for n in nest.kernel.counters] for _, nest, _ in made.kernels]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_each_norm_counts_its_own_calls(target: str) -> None:
    made = planned(norms(), target)
    assert [c for c in counted(made) if c] == [["0.num_batches_tracked"], ["2.num_batches_tracked"]]
    text = cuda_source(numbered(made).texts, TARGETS[target])
    assert COUNT + "1;" in text


def test_a_norm_alone_is_its_own_module() -> None:
    assert counted(planned(nn.BatchNorm2d(8))) == [["num_batches_tracked"]]


@pytest.mark.parametrize("model", [norms(track_running_stats=False), norms().eval()])
def test_no_state_that_changes(model: nn.Module) -> None:
    assert not any(counted(planned(model)))


def test_a_cpu_counts_apart() -> None:
    assert not any(counted(planned(norms(), "cpu")))


@pytest.mark.parametrize(
    ("change", "expected"),
    [(adds_three, 1), (adds_the_batch, 0), (shows, 0), (reads_before, 0), (reads_behind, 0)],
)
def test_what_counts(change: Callable[[State, Tensor], Tensor], expected: int) -> None:
    made = planned(State(change))
    assert sum(map(len, counted(made))) == expected
    assert (COUNT + "3;" in cuda_source(numbered(made).texts, TARGETS["sm_90a"])) == expected


class Grown(nn.Module):
    """What changes in place is the input, of any batch size, also of none."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        x.copy_(torch.softmax(x, 1))
        self.n.add_(1)
        return x


def test_rows_that_need_not_be_count_nothing() -> None:
    made = make(Grown(), [torch.empty(4, 64)], TARGETS["sm_90a"])
    assert not any(counted(made))


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("shape", [(4, 8, 6, 6), (64, 8, 28, 28), (4, 8, 640, 640), (3, 8, 2, 2)])
def test_gpu_counts_as_eager(shape: tuple[int, ...]) -> None:
    model = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), nn.BatchNorm2d(8)).cuda()
    x = torch.randn(shape, device="cuda")
    ours = fusewright.optimize(model, x, options={"target": "cuda"})
    assert ready(ours, [x])
    for given in (x, x, torch.randn(2, *shape[1:], device="cuda")):
        assert disagreements(ours, model, [given], roundings=4) == []
    before = int(ours[0].num_batches_tracked)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ours(x)
    for _ in range(3):
        graph.replay()
    assert [int(ours[k].num_batches_tracked) for k in (0, 2)] == [before + 3] * 2
