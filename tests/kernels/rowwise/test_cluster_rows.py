"""Rows that a cluster of thread blocks keeps in its registers: which they are, and their values.

The tests marked `gpu` run whole emitted models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest
import torch
from torch import Tensor, nn

import fusewright
from fusewright.codegen.cuda_source import cuda_source
from fusewright.compiler.compilation import Compilation, make
from fusewright.kernels.interface import StrategyContext
from fusewright.kernels.registry import Strategy, neighbours
from fusewright.kernels.rowwise.strategy import (
    ClusterRow,
    CpuRows,
    GridResidentRow,
    PartialReduction,
    ResidentRow,
    RowPerTeam,
    SplitRow,
)
from fusewright.targets.target import TARGETS
from tests.support.agreement import disagreements, error
from tests.support.compiled import ready
from tests.support.numbered import numbered

HOPPER = TARGETS["sm_90a"]
Function = Callable[[Tensor], Tensor]


class Called(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, 1)


def planned(function: Function, x: Tensor, target: str = "sm_90a") -> Compilation:
    return make(Called(function), [x], TARGETS[target])


def strategy_of(made: Compilation) -> Strategy:
    ((_, _, strategy),) = made.kernels
    return strategy


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "wanted"),
    [
        (128, 32768, torch.float32, RowPerTeam(1024, 4, keep=True)),
        (128, 32769, torch.float32, ClusterRow(8, 256, 1)),  # four blocks of them fit a processor
        (33, 65536, torch.float32, ClusterRow(8, 256, 4)),
        (32, 65536, torch.float32, ClusterRow(8, 512, 4)),
        (128, 65537, torch.float32, ClusterRow(8, 512, 1)),
        (128, 131072, torch.bfloat16, ClusterRow(8, 512, 8)),
        (128, 131073, torch.float32, ClusterRow(8, 1024, 1)),
        (128, 262144, torch.float16, ClusterRow(8, 1024, 8)),
        (
            64,
            262145,
            torch.float32,
            GridResidentRow(20, 512, 1),
        ),  # tests/kernels/rowwise/test_grid_resident_rows.py
        (128, 65536, torch.float64, ClusterRow(8, 512, 2)),
        (64, 131073, torch.float64, GridResidentRow(20, 512, 1)),
        (4, 65536, torch.float32, ClusterRow(8, 512, 4)),  # few rows have more blocks each
        (1, 262144, torch.float32, ClusterRow(8, 1024, 4)),
    ],
)
def test_which_rows_have_a_cluster(
    rows: int, columns: int, dtype: torch.dtype, wanted: Strategy
) -> None:
    assert strategy_of(planned(softmax, torch.empty(rows, columns, dtype=dtype))) == wanted


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(1),
        lambda x: x.argmax(1),
        lambda x: torch.stack(torch.var_mean(x, 1)),
        lambda x: torch.softmax(x, 0),  # rows lie across memory
        lambda x: torch.relu(x),
    ],
)
def test_a_row_that_is_read_once_needs_no_cluster(function: Function) -> None:
    found = strategy_of(planned(function, torch.empty(128, 65536)))
    assert not isinstance(found, ResidentRow)


class Added(nn.Module):
    def __init__(self, columns: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(columns)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.norm(x + y) * x


@pytest.mark.parametrize(("columns", "blocks", "threads"), [(65536, 8, 512), (131072, 8, 1024)])
def test_two_kept_values_take_twice_the_registers(columns: int, blocks: int, threads: int) -> None:
    found = strategy_of(make(Added(columns), [torch.empty(100, columns)] * 2, HOPPER))
    assert (found.blocks, found.threads) == (blocks, threads)


def test_rows_as_long_as_the_batch_have_one_at_its_size() -> None:
    made = make(nn.BatchNorm2d(96), [torch.empty(4, 96, 100, 100)], HOPPER)
    found = strategy_of(made)
    assert found == ClusterRow(8, 256, 4, fixed_sizes=(("batch", 4),))
    entry = cuda_source(numbered(made).texts, HOPPER).split('extern "C"')[1]
    assert "if (batch != 4 || !aligned<4>(in2, out2)) {" in entry
    assert "run_rows<1024, 4>(body, 96, device, stream)" in entry
    assert "run_rows_cluster<8, 256, 4>(body, 96, device, stream)" in entry


@pytest.mark.parametrize(
    ("channels", "blocks", "threads"), [(512, 8, 128), (66, 8, 128), (65, 4, 512)]
)
def test_eight_small_blocks_where_they_make_a_gpu_busy(
    channels: int, blocks: int, threads: int
) -> None:
    made = make(nn.BatchNorm2d(channels), [torch.empty(32, channels, 28, 28)], HOPPER)
    found = strategy_of(made)
    assert found == ClusterRow(blocks, threads, 4, fixed_sizes=(("batch", 32),))


def test_other_machines_have_none() -> None:
    rows = torch.empty(64, 65536)
    cpu, ampere = (strategy_of(planned(softmax, rows, target)) for target in ("cpu", "sm_80"))
    assert isinstance(cpu, CpuRows)
    assert isinstance(ampere, GridResidentRow)


class Updated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("level", torch.zeros(128))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1)
        scaled = (x - mean[:, None]) * self.level[:, None]
        self.level.copy_(0.9 * self.level + 0.1 * mean)
        return scaled


def test_a_number_of_a_row_that_changes_in_place_has_one_block() -> None:
    made = make(Updated(), [torch.empty(128, 40000)], HOPPER)
    assert [len(pairs) for pairs in made.layout.in_place.values()] == [1]
    assert isinstance(strategy_of(made), RowPerTeam)


def test_a_cluster_needs_no_scratch_memory() -> None:
    made = planned(softmax, torch.empty(2, 65536))
    text = cuda_source(made.texts, HOPPER)
    assert "run_rows_cluster<8, 512, 4>(body, batch, device, stream)" in text
    assert "void* workspace" not in text.split('extern "C"')[1]


@pytest.mark.parametrize(("rows", "columns"), [(128, 65536), (8, 65536), (8, 16384), (8, 4096)])
def test_what_else_may_be_done(rows: int, columns: int) -> None:
    made = planned(softmax, torch.empty(rows, columns))
    ((_, nest, default),) = made.kernels
    others = neighbours(default, nest, StrategyContext(HOPPER, made.plan.graph))
    assert default not in others
    resident = [s for s in others if isinstance(s, ResidentRow)]
    assert all(s.keep for s in resident if isinstance(s, ClusterRow))
    assert all(columns <= 32 * s.blocks * s.threads for s in resident)
    assert bool(resident) == (columns > 4096)
    if isinstance(default, ResidentRow):
        assert any(isinstance(s, RowPerTeam) for s in others)
        assert any(isinstance(s, SplitRow) for s in others)


# ---- on a GPU ------------------------------------------------------------------------------------


class Rows(nn.Module):
    """Every kind of row, of lengths that give no block as much as another."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(40004)
        self.rms = nn.RMSNorm(131072, eps=1e-5)
        self.groups = nn.GroupNorm(2, 6)

    def forward(self, x: Tensor, y: Tensor, z: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        scores = torch.softmax(x, 1), torch.logsumexp(x, 1), x.argmax(1), x.amin(1)
        norms = self.norm(y) + y, self.rms(w), self.groups(z) * 2
        return *scores, *norms, torch.nn.functional.normalize(w, p=2.0, dim=1)


def inputs(batch: int, dtype: torch.dtype, offset: int = 0) -> list[Tensor]:
    """offset: in elements; with 1, no vector can be used."""
    shapes = [(batch, 50257), (batch, 40004), (batch, 6, 30001), (batch, 131072)]
    return drawn(shapes, dtype, offset)


def drawn(
    shapes: Iterable[Sequence[int]], dtype: torch.dtype, offset: int, device: str = "cuda"
) -> list[Tensor]:
    """Normal numbers times 3; offset: in elements, of each tensor in its memory."""
    found = []
    for shape in shapes:
        room = torch.randn(torch.Size(shape).numel() + offset, device=device) * 3
        found.append(room.to(dtype)[offset:].view(torch.Size(shape)))
    return found


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_gpu_rows_are_no_less_accurate_than_eager(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Rows().cuda().to(dtype)
    for p in model.parameters():
        p.normal_()
    ours = fusewright.optimize(model, *inputs(100, dtype), options={"target": "cuda"})
    for batch, offset in ((2, 0), (3, 1), (100, 0), (301, 0)):
        given = inputs(batch, dtype, offset)
        assert ready(ours, given)
        assert disagreements(ours, model, given, roundings=2) == []


def check_accuracy_and_bits(
    model: nn.Module,
    inputs: Callable[[int, torch.dtype, int], list[Tensor]],
    dtype: torch.dtype,
    cases: Sequence[tuple[int, int]],
) -> None:
    """Ours beside eager, and the same bits every time, at each batch size and offset in memory; the
    first batch size is the example's."""
    torch.manual_seed(0)
    model = model.cuda().to(dtype)
    for p in model.parameters():
        p.normal_()
    example, _ = cases[0]
    ours = fusewright.optimize(model, *inputs(example, dtype, 0), options={"target": "cuda"})
    for batch, offset in cases:
        given = inputs(batch, dtype, offset)
        # Some versions of PyTorch export this model with a fixed batch; others are eager's then.
        assert ready(ours, given) or batch != example
        assert disagreements(ours, model, given, roundings=2) == []
        first = [t.clone() for t in ours.eval()(*given)]
        for _ in range(10):
            again = ours(*given)
            assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        ours.train()


def with_specials(given: list[Tensor]) -> list[Tensor]:
    """Rows with a NaN, with infinities, and of zeros."""
    for x in given:
        x[1].flatten()[-1], x[2].flatten()[0] = float("nan"), float("inf")
        x[3], x[4] = float("-inf"), 0.0
    return given


@pytest.mark.gpu
@torch.no_grad()
def test_gpu_nan_and_infinity_stay_in_their_row() -> None:
    torch.manual_seed(0)
    model = Rows().cuda()
    ours = fusewright.optimize(model, *inputs(6, torch.float32), options={"target": "cuda"})
    given = with_specials(inputs(6, torch.float32))
    assert disagreements(ours, model, given, roundings=2) == []


def check_two_streams_and_a_graph(rows: int, columns: int, function: Function = softmax) -> None:
    """The function on two streams at a time, and in a graph."""
    torch.manual_seed(0)
    given = [torch.randn(rows, columns, device="cuda") for _ in range(2)]
    ours = fusewright.optimize(Called(function).cuda(), *given[:1], options={"target": "cuda"})
    wanted = [function(x.double()) for x in given]
    streams = [torch.cuda.Stream() for _ in given]
    torch.cuda.synchronize()
    for _ in range(20):
        found = []
        for stream, x in zip(streams, given, strict=True):
            with torch.cuda.stream(stream):
                found.append(ours(x))
        torch.cuda.synchronize()
        assert all(error(a, b) <= 1e-6 for a, b in zip(found, wanted, strict=True))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        last = ours(given[0])
    last.fill_(float("nan"))
    graph.replay()
    assert error(last, wanted[0]) <= 1e-6


@pytest.mark.gpu
@torch.no_grad()
def test_gpu_two_streams_and_a_graph() -> None:
    check_two_streams_and_a_graph(64, 70_000)


class Ratio(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x.sum() / y.sum()


def test_sums_of_as_many_elements_are_one_kernel() -> None:
    made = make(Ratio(), [torch.empty(65536), torch.empty(65536)], HOPPER)
    ((body, _, strategy),) = made.kernels
    assert (body.passes, strategy) == (2, ClusterRow(8, 1024, 1, keep=False))
    apart = make(Ratio(), [torch.empty(65536), torch.empty(65537)], HOPPER)
    assert len(apart.kernels) == 2


@pytest.mark.parametrize(("rows", "columns", "split"), [(4, 65536, False), (5, 65536, True)])
def test_few_elements_are_reduced_by_a_cluster(rows: int, columns: int, split: bool) -> None:
    found = strategy_of(planned(lambda x: x.sum(1), torch.empty(rows, columns)))
    assert isinstance(found, PartialReduction if split else ClusterRow)
    ampere = strategy_of(planned(lambda x: x.sum(1), torch.empty(rows, columns), "sm_80"))
    assert isinstance(ampere, PartialReduction)


@torch.no_grad()
@pytest.mark.parametrize("size", [7, 1000, 70_000])
def test_two_sums_in_one_kernel_on_the_cpu(size: int) -> None:
    torch.manual_seed(size)
    x, y = torch.randn(size), torch.rand(size)
    ours = fusewright.optimize(Ratio(), x, y, options={"target": "cpu"})
    assert disagreements(ours, Ratio(), [x, y]) == []


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("size", [65536, 100_001, 200_000])
def test_two_sums_in_a_cluster(size: int) -> None:
    torch.manual_seed(size)
    x, y = torch.randn(size), torch.rand(size)
    ours = fusewright.optimize(Ratio(), x, y, options={"target": "cuda"}).cuda()
    for count in (size, 2, 1000, 3 * size):
        given = [torch.randn(count).cuda(), torch.rand(count).cuda()]
        assert disagreements(ours, Ratio(), given) == []
