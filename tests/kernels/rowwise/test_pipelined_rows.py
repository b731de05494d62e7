"""Very long rows whose blocks meet while the next row is at work: which, and their values.

The tests marked `gpu` run whole emitted models.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fusewright
from fusewright.codegen.cuda_source import cuda_source
from fusewright.compiler.compilation import Compilation, make
from fusewright.kernels.interface import StrategyContext
from fusewright.kernels.registry import neighbours
from fusewright.kernels.rowwise.strategy import GridResidentRow, PipelinedRow, ResidentRow
from fusewright.targets.compile_flags import cuda_flags
from fusewright.targets.target import TARGETS
from tests.kernels.rowwise.test_cluster_rows import (
    Called,
    Function,
    check_accuracy_and_bits,
    check_two_streams_and_a_graph,
    drawn,
    planned,
    softmax,
    strategy_of,
    with_specials,
)
from tests.support.agreement import disagreements
from tests.support.cuda_compilers import compile_text, nvrtc_folder, nvrtc_log
from tests.support.numbered import numbered

HOPPER = TARGETS["sm_90a"]
MILLION, ROWS = 1 << 20, 70


class Scaled(nn.Module):
    """Weights of another type than the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(MILLION, dtype=torch.float16))

    def forward(self, x: Tensor) -> Tensor:
        return x.softmax(1) * self.weight


def normalized(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x, 2.0, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "rows", "columns", "dtype", "blocks"),
    [
        (softmax, 64, MILLION, torch.float32, 64),
        (lambda x: torch.log_softmax(x, 1), 64, MILLION, torch.bfloat16, 32),
        (normalized, 8, 1 << 21, torch.float32, 128),  # one row in flight
        (softmax, 95, 300_004, torch.float32, 17),  # the last block has less
        (lambda x: torch.exp(x - x.mean(1, keepdim=True)), 64, MILLION, torch.float16, 32),
    ],
)
def test_which_rows_are_deferred(
    function: Function, rows: int, columns: int, dtype: torch.dtype, blocks: int
) -> None:
    found = strategy_of(planned(function, torch.empty(rows, columns, dtype=dtype)))
    assert isinstance(found, PipelinedRow)
    assert (found.blocks, found.threads) == (blocks, 512)
    assert blocks <= HOPPER.machine.processors


@pytest.mark.parametrize(
    ("function", "rows", "columns", "dtype"),
    [
        (softmax, 6, MILLION, torch.float32),  # too few rows to go on with
        (softmax, 64, MILLION, torch.float64),  # every exponential twice
        (softmax, 64, 300_001, torch.float32),  # no vectors
        (softmax, 64, 5 << 19, torch.float32),  # more than all shared memory
        (lambda x: (x - x.mean(1, keepdim=True)).half(), 64, MILLION, torch.float32),
        (lambda x: x - x.softmax(1).amax(1, keepdim=True), 64, MILLION, torch.float32),
        (lambda x: x[:, :MILLION].softmax(1) + x[:, MILLION:], 64, 2 * MILLION, torch.float32),
    ],
)
def test_other_rows_are_not(
    function: Function, rows: int, columns: int, dtype: torch.dtype
) -> None:
    made = planned(function, torch.empty(rows, columns, dtype=dtype))
    assert not any(isinstance(s, PipelinedRow) for _, _, s in made.kernels)


def test_other_machines_have_none() -> None:
    found = strategy_of(planned(softmax, torch.empty(64, MILLION), "sm_80"))
    assert not isinstance(found, PipelinedRow)


def text_of(made: Compilation) -> tuple[str, str]:
    """The struct of the only kernel, and its entry."""
    (kernel,) = numbered(made).texts
    _, found = cuda_source(numbered(made).texts, HOPPER).split(f"struct {kernel.name} ")
    body, entry = found.split('extern "C"')
    return body, entry


def test_the_text_says_what_is_near() -> None:
    body, entry = text_of(planned(softmax, torch.empty(64, MILLION)))
    assert body.count("staged_row(load(in0, row * 1048576))") == 2
    assert body.count("staged_row(store(out0, row * 1048576))") == 1
    assert "staged_row" not in body.split("_again")[1]
    scratch = "body, batch, workspace, device, stream"
    assert "if (!aligned<4>(in0, out0) || !fits_pipeline<64>(device)) {" in entry
    assert f"run_rows_split<512, 4, 4>({scratch})" in entry
    assert f"run_rows_pipelined<64, 512, 4, 65536>({scratch})" in entry


def test_what_is_alike_in_every_row_stays_in_registers() -> None:
    rows = torch.empty(64, MILLION)
    made = make(nn.LayerNorm(MILLION), [rows], HOPPER)
    body, entry = text_of(made)
    again = body.index("_again")
    assert "register_resident<1>(load(in1, 0)), register_resident<0>(load(in0, 0))" in body[:again]
    assert "register_resident" not in body[again:]
    assert "run_rows_pipelined<64, 512, 4, 65536, 2>(" in entry
    # Longer parts leave no room for a second one, and vectors of halves are no 16 bytes.
    longer = make(nn.LayerNorm(9 << 17), [torch.empty(64, 9 << 17)], HOPPER)
    body, entry = text_of(longer)
    assert "load(in1, 0), register_resident<0>(load(in0, 0))" in body
    assert "run_rows_pipelined<64, 512, 4, 73728, 1>(" in entry
    mixed = make(Scaled(), [rows], HOPPER)
    assert all(isinstance(s, PipelinedRow) for _, _, s in mixed.kernels)
    assert "register_resident" not in text_of(mixed)[0].split("_again")[0]


def test_rows_as_long_as_the_batch_are_deferred_at_its_size() -> None:
    """Their runs of 4096 pixels come and go one by one."""
    made = make(nn.BatchNorm2d(32), [torch.empty(256, 32, 64, 64)], HOPPER)
    body, entry = text_of(made)
    assert strategy_of(made) == PipelinedRow(64, 512, 4, 65536, 0, fixed_sizes=(("batch", 256),))
    assert "fixed<256, 4096>" in body
    assert "staged_row(load(in2, row * 4096, 131072))" in body
    assert "if (batch != 256 || !aligned<4>(in2, out2) || !fits_pipeline<64>(device)) {" in entry
    short = make(nn.BatchNorm2d(32), [torch.empty(4096, 32, 16, 16)], HOPPER)
    assert not isinstance(strategy_of(short), PipelinedRow)


def test_what_else_may_be_done() -> None:
    made = planned(softmax, torch.empty(64, MILLION))
    ((_, nest, default),) = made.kernels
    others = neighbours(default, nest, StrategyContext(HOPPER, made.plan.graph))
    assert default not in others
    some = [s for s in others if isinstance(s, ResidentRow)]
    assert some == [GridResidentRow(64, 512, 4), GridResidentRow(32, 1024, 4)]


class Long(nn.Module):
    """Every kind of pipelined row, of lengths that give no block as much as another."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(400_008)
        self.rms = nn.RMSNorm(MILLION, eps=1e-5)
        self.batches = nn.BatchNorm2d(24)

    def forward(
        self, a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, g: Tensor
    ) -> tuple[Tensor, ...]:
        norms = self.norm(e) + e, self.rms(f), torch.relu(self.batches(g))
        places = d - d.argmax(1, keepdim=True)
        return torch.softmax(a, 1), torch.log_softmax(b * 2, 1), normalized(c), places, *norms


def inputs(batch: int, dtype: torch.dtype, offset: int = 0, device: str = "cuda") -> list[Tensor]:
    """offset: in elements; with 1, no vector can be used."""
    rows = [(batch, 300_008)] * 4 + [(batch, 400_008), (batch, MILLION)]
    return drawn([*rows, (batch, 24, 120, 80)], dtype, offset, device)


@pytest.mark.compiler
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_is_spilled(dtype: torch.dtype, tmp_path: Path) -> None:
    made = make(Long().to(dtype), inputs(ROWS, dtype, device="cpu"), HOPPER)
    assert sum(isinstance(s, PipelinedRow) for _, _, s in made.kernels) >= 7
    text = cuda_source(made.texts, HOPPER)
    found = compile_text(text, cuda_flags(HOPPER.arch), tmp_path)
    pipelined = [k for k in found if "pipelined_kernel" in k.name]
    assert len(pipelined) >= 7
    assert [k for k in pipelined if k.spill_bytes or k.registers > 128] == []
    if folder := nvrtc_folder():
        assert nvrtc_log(folder, text, "compute_90a") == (0, "")


# ---- on a GPU ------------------------------------------------------------------------------------


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_gpu_rows_are_no_less_accurate_than_eager(dtype: torch.dtype) -> None:
    cases = ((ROWS, 0), (2, 0), (3, 1), (ROWS, 1), (90, 0))
    check_accuracy_and_bits(Long(), inputs, dtype, cases)


@pytest.mark.gpu
@torch.no_grad()
def test_gpu_nan_and_infinity_stay_in_their_row() -> None:
    torch.manual_seed(0)
    model = Long().cuda()
    given = inputs(ROWS, torch.float32)
    ours = fusewright.optimize(model, *given, options={"target": "cuda"})
    with_specials(given[:6])
    assert disagreements(ours, model, given, roundings=2) == []


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 11])
def test_gpu_any_number_of_rows(rows: int) -> None:
    torch.manual_seed(rows)
    ours = fusewright.optimize(
        Called(softmax).cuda(), torch.randn(64, 300_008).cuda(), options={"target": "cuda"}
    )
    given = [torch.randn(rows, 300_008).cuda()]
    assert disagreements(ours, Called(softmax), given) == []


@pytest.mark.gpu
@torch.no_grad()
def test_gpu_two_streams_and_a_graph() -> None:
    check_two_streams_and_a_graph(60, 700_000)
