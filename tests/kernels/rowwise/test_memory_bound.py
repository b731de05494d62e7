"""Rows of which a thread does little: their threads, loads past L1, blocks that do not wait."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fusewright
from fusewright.codegen.cuda_source import cuda_source
from fusewright.compiler.compilation import Compilation, make
from fusewright.kernels.rowwise.strategy import RowPerTeam
from fusewright.targets.compile_flags import cuda_flags
from fusewright.targets.target import TARGETS
from tests.kernels.rowwise.test_cluster_rows import (
    Called,
    Function,
    check_two_streams_and_a_graph,
    planned,
    strategy_of,
)
from tests.support.agreement import disagreements
from tests.support.cuda_compilers import compile_text, nvrtc_folder, nvrtc_log
from tests.support.numbered import numbered

HOPPER = TARGETS["sm_90a"]
needs_nvcc = pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")


def made_of(function: Function, *shape: int) -> Compilation:
    return planned(function, torch.empty(shape))


def entry_of(made: Compilation) -> str:
    return cuda_source(numbered(made).texts, HOPPER).split('extern "C"')[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "columns", "threads", "once"),
    [
        (lambda x: x.sum(1), 4096, 512, True),
        (lambda x: (x * x).amax(1), 4096, 512, True),
        (lambda x: x.var(1), 65536, 1024, True),
        (lambda x: nn.functional.layer_norm(x, x.shape[1:]), 4096, 512, False),  # rows are stored
        (lambda x: x.argmax(1), 4096, 256, False),
        (lambda x: x.softmax(1), 4096, 256, False),
        (lambda x: torch.logsumexp(x, 1), 4096, 256, False),  # two reductions
        (lambda x: x.cumsum(1), 4096, 256, False),
        (lambda x: (x[:, 1:] * x[:, :-1]).sum(1), 4097, 512, False),  # each element twice
        (lambda x: x.sum(1), 1024, 64, False),
        (lambda x: x.sum(1), 32, 4, False),
    ],
)
def test_threads_of_light_rows(function: Function, columns: int, threads: int, once: bool) -> None:
    made = made_of(function, 1000, columns)
    found = strategy_of(made)
    assert (found.threads, isinstance(found, RowPerTeam) and found.load_once) == (threads, once)
    assert ("load_once(in0" in numbered(made).kernels[0][0].text) == once


@pytest.mark.parametrize(("rows", "threads"), [(64, 128), (1024, 128), (8192, 32)])
def test_kept_rows_of_which_there_are_few_have_more_threads(rows: int, threads: int) -> None:
    made = made_of(lambda x: nn.functional.layer_norm(x, x.shape[1:]), rows, 512)
    assert strategy_of(made).threads == threads


def test_two_large_tensors_are_not_light() -> None:
    made = make(Called(lambda x: (x[0] - x[1]).sum(1)), [torch.empty(2, 1000, 4096)], HOPPER)
    assert [s.load_once for _, _, s in made.kernels] == [False]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("channels", "side", "threads"),
    [(2048, 7, 128), (512, 7, 128), (256, 7, 256), (4, 7, 512), (1024, 14, 256), (512, 28, 1024)],
)
def test_rows_as_long_as_the_batch_have_as_few_threads_as_keep_a_gpu_busy(
    channels: int, side: int, threads: int
) -> None:
    made = make(nn.BatchNorm2d(channels), [torch.empty(32, channels, side, side)], HOPPER)
    found = strategy_of(made)
    assert getattr(found, "blocks", 1) * found.threads == threads


@pytest.mark.slow
@pytest.mark.parametrize(
    ("side", "dtype", "threads"),
    [
        (7, torch.float32, 128),
        (7, torch.bfloat16, 128),
        (8, torch.float32, 64),
        (11, torch.float32, 256),
    ],
)
def test_short_rows_as_long_as_the_batch_are_kept_at_its_size(
    side: int, dtype: torch.dtype, threads: int
) -> None:
    model = nn.BatchNorm2d(2048).to(dtype)
    made = make(model, [torch.empty(32, 2048, side, side, dtype=dtype)], HOPPER)
    found = strategy_of(made)
    assert found == RowPerTeam(threads, found.vector, keep=True, fixed_sizes=(("batch", 32),))
    text = cuda_source(made.texts, HOPPER)
    assert f"fixed<32, {side * side}>" in text
    assert f"span(batch, {side * side})" in text  # other batch sizes keep nothing
    assert "if (batch != 32" in entry_of(made)


class Added(nn.Module):
    """Two norms of two tensors, or one and a residual."""

    def __init__(self, *, residual: bool = False) -> None:
        super().__init__()
        self.norm, self.other = nn.BatchNorm2d(2048), nn.BatchNorm2d(2048)
        self.residual = residual

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.norm(x) + (y if self.residual else self.other(y))


def test_tensors_that_are_reduced_first_are_asked_for_together() -> None:
    given = [torch.empty(32, 2048, 7, 7) for _ in "xy"]
    made = numbered(make(Added(), given, HOPPER))
    name, text = made.texts[0].name, cuda_source(made.texts, HOPPER)
    body, again = text.split(f"struct {name} ")[1].split(f"struct {name}_again ")
    loads, *moments = body.split("team.moments(")
    both = re.search(
        r"team\.each\(.*?load\(in.*?store\(k0\), load\(in.*?store\(k1\)\);", loads, re.S
    )
    assert both
    assert [f"load(k{k}));" in moment for k, moment in enumerate(moments)] == [True, True]
    assert "team.each(" not in again.split("team.moments(")[0]  # nothing is kept there
    single = cuda_source(make(Added(residual=True), given, HOPPER).texts, HOPPER)
    own = single.rpartition("namespace {")[2]
    assert "team.each(" not in own.split("team.moments(")[0]
    cpu = make(Added(), [torch.empty(4, 2048, 2, 2) for _ in "xy"], TARGETS["cpu"]).kernels
    assert all("team.each(" not in b.text.split("team.moments(")[0] for b, _, _ in cpu)


def test_rows_as_long_as_the_batch_that_are_read_once_are_not_kept() -> None:
    made = make(Called(lambda x: x.sum((0, 2, 3))), [torch.empty(32, 2048, 7, 7)], HOPPER)
    assert strategy_of(made).fixed_sizes == ()


@pytest.mark.parametrize(
    ("function", "shape", "launch"),
    [
        (
            lambda x: x.sum(0),
            (65536, 1024),
            "run_column_panels_partial_reduction<16, 32, 8, 64, 4>(body, 1024, batch, workspace,",
        ),
        (
            lambda x: x.var(0),
            (65536, 1024),
            "run_column_panels_partial_reduction<16, 32, 16, 0, 12>",
        ),
        (
            lambda x: torch.logsumexp(x, 1),
            (64, 1 << 20),
            "run_rows_partial_reduction<256, 4, 4, 8, 8>(body, batch, 1048576, workspace,",
        ),
        (  # channels lie inside of each other: parts of all of them are read at the same time
            lambda x: x.mean((0, 2)),
            (256, 64, 4096),
            "run_rows_partial_reduction<512, 4, 2, 2, 4, true>(body, 64, batch * 4096,",
        ),
        (lambda x: x.softmax(0), (65536, 1024), "run_column_panels_split<16, 32, 16>"),
        (lambda x: x.sum(1) + x.amax(1), (64, 1 << 20), "run_rows_split<512, 4, 4>"),
    ],
)
def test_nobody_waits_behind_an_only_reduction(
    function: Function, shape: tuple[int, ...], launch: str
) -> None:
    assert launch in entry_of(made_of(function, *shape))


@pytest.mark.compiler
@needs_nvcc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_light_rows_stay_in_registers(arch: str, tmp_path: Path) -> None:
    """Four blocks of 512 threads fit a processor, or three: 32 registers for each thread, or 40."""
    folder = nvrtc_folder()
    for function, shape in ((lambda x: x.sum(1), (1000, 4096)), (lambda x: x.sum(0), (9999, 999))):
        text = cuda_source(made_of(function, *shape).texts, HOPPER)
        kernels = compile_text(text, cuda_flags(TARGETS[arch].arch), tmp_path)
        most = 32 if "load_once" in text else 40
        assert [k for k in kernels if k.stack_bytes or k.spill_bytes or k.registers > most] == []
        if folder:
            assert nvrtc_log(folder, text, f"compute_{arch[3:]}") == (0, "")
        if "load_once" in text:
            assert re.search(r"ld\.global\.nc\.L1::no_allocate", text)


REDUCTIONS: dict[str, Function] = {
    "sum": lambda x: x.sum(0),
    "max": lambda x: x.amax(0),
    "argmax": lambda x: x.argmax(0),
    "var": lambda x: x.var(0),
    "logsumexp": lambda x: torch.logsumexp(x, 0),
    "along": lambda x: x.sum(1),
}


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("side", [7, 8])
def test_gpu_short_rows_as_long_as_the_batch(side: int) -> None:
    torch.manual_seed(side)
    model = nn.Sequential(nn.BatchNorm2d(300), nn.ReLU()).cuda()
    given = [torch.randn(32, 300, side, side, device="cuda") * 3]
    ours = fusewright.optimize(model, *given, options={"target": "cuda"})
    for batch in (32, 2, 33, 90):
        x = torch.randn(batch, 300, side, side, device="cuda") + 5
        x[0, 3, 0, 0], x[1, 4], x[:, 5] = float("nan"), float("inf"), 7.0
        assert disagreements(ours, model, [x]) == []


@pytest.mark.gpu
@torch.no_grad()
def test_gpu_two_norms_whose_tensors_come_together() -> None:
    given = [torch.randn(32, 2048, 7, 7) * 3 + 1 for _ in "xy"]
    model = Added().cuda()
    ours = fusewright.optimize(Added(), *given, options={"target": "cuda"}).cuda()
    x, y = (t.cuda() for t in given)
    x[0, 3, 0, 0], y[:, 5] = float("nan"), 7.0
    for batch in (32, 7):
        assert disagreements(ours, model, [x[:batch], y[:batch]]) == []


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("shape", [(20_011, 33), (9_000, 4_096), (5_003, 4_100), (3, 70_001)])
def test_gpu_blocks_that_do_not_wait(name: str, shape: tuple[int, ...]) -> None:
    model, x = Called(REDUCTIONS[name]), torch.randn(shape).cuda() + 1
    ours = fusewright.optimize(model, x.cpu(), options={"target": "cuda"}).cuda()
    wild = x.clone()
    wild[1, 2], wild[2, 1] = float("inf"), float("nan")
    for given in (x, wild, x.repeat(2, 1)[1:]):
        assert disagreements(ours, model, [given], roundings=2) == []
    right = ours(x)
    assert all(torch.equal(ours(x), right) for _ in range(30))  # parts are joined in one order


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("name", ["max", "var", "logsumexp"])
def test_gpu_counters_of_two_streams_and_of_a_graph(name: str) -> None:
    check_two_streams_and_a_graph(9_000, 4_096, REDUCTIONS[name])
