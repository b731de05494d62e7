"""Very long rows that thread blocks keep together and that meet in memory: which, and their values.

The tests marked `gpu` run whole emitted models.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fusewright
from fusewright.codegen.cuda_source import cuda_source
from fusewright.compiler.compilation import make
from fusewright.kernels.interface import StrategyContext
from fusewright.kernels.registry import neighbours
from fusewright.kernels.rowwise.strategy import (
    GridResidentRow,
    PipelinedRow,
    ResidentRow,
    RowPerTeam,
    SplitRow,
)
from fusewright.targets.compile_flags import cuda_flags
from fusewright.targets.target import TARGETS
from tests.kernels.rowwise.test_cluster_rows import (
    Called,
    Function,
    Updated,
    check_accuracy_and_bits,
    check_two_streams_and_a_graph,
    drawn,
    planned,
    softmax,
    strategy_of,
    with_specials,
)
from tests.support.agreement import disagreements
from tests.support.cuda_compilers import compile_text
from tests.support.numbered import numbered

HOPPER = TARGETS["sm_90a"]
MILLION = 1 << 20


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "target", "blocks"),
    [
        (4, MILLION, torch.float32, "sm_90a", 64),  # four rows in flight
        (64, MILLION, torch.float64, "sm_90a", 128),
        (2, MILLION, torch.float32, "sm_90a", 128),  # few rows have more blocks each
        (1, MILLION, torch.float32, "sm_90a", 256),
        (16, 300_001, torch.float32, "sm_90a", 33),  # no vectors
        (1, 1 << 22, torch.float32, "sm_90a", 256),
        (64, 32_769, torch.float32, "sm_80", 3),  # no clusters there
        (64, 65_536, torch.float32, "sm_80", 6),
        (64, MILLION, torch.float32, "sm_80", 64),
    ],
)
def test_which_rows_are_gathered(
    rows: int, columns: int, dtype: torch.dtype, target: str, blocks: int
) -> None:
    found = strategy_of(planned(softmax, torch.empty(rows, columns, dtype=dtype), target))
    assert isinstance(found, GridResidentRow)
    assert (found.blocks, found.threads) == (blocks, 512)
    kept = columns * (2 if dtype is torch.float64 else 1)
    assert kept <= found.blocks * found.threads * 32
    assert blocks <= 2 * TARGETS[target].machine.processors


@pytest.mark.parametrize(
    ("function", "columns"),
    [
        (softmax, 9 << 19),  # more than all registers
        (lambda x: x.sum(1), MILLION),
        (lambda x: torch.logsumexp(x, 1), MILLION),  # one sweep finds both reductions
        (lambda x: torch.stack(torch.var_mean(x, 1)), MILLION),
        (lambda x: x.cumsum(1) - x.cumsum(1)[:, -1:], MILLION),
        (torch.relu, MILLION),
    ],
)
def test_other_rows_are_not(function: Function, columns: int) -> None:
    made = planned(function, torch.empty(3, columns))
    assert not any(isinstance(s, ResidentRow) for _, _, s in made.kernels)


def test_many_rows_have_a_block_each() -> None:
    found = strategy_of(planned(softmax, torch.empty(128, MILLION), "sm_90a"))
    assert isinstance(found, RowPerTeam)


def test_scratch_memory_that_is_forbidden() -> None:
    rows = [torch.empty(4, MILLION)]
    made = make(Called(softmax), rows, HOPPER, rules=frozenset({"no-workspace"}))
    ((_, nest, chosen),) = made.kernels
    assert isinstance(chosen, RowPerTeam)
    others = neighbours(
        chosen, nest, StrategyContext(HOPPER, made.plan.graph, frozenset({"no-workspace"}))
    )
    assert all(isinstance(s, RowPerTeam) for s in others)


def test_a_number_of_a_row_that_changes_in_place_has_one_block() -> None:
    chosen = strategy_of(make(Updated(), [torch.empty(128, 400_000)], HOPPER))
    assert isinstance(chosen, RowPerTeam)


def test_the_entry_says_where_rows_are_gathered() -> None:
    made = planned(softmax, torch.empty(64, MILLION), "sm_80")
    text = cuda_source(numbered(made).texts, TARGETS["sm_80"])
    entry = text.split('extern "C"')[1]
    scratch = "body, batch, workspace, device, stream"
    assert "if (!aligned<4>(in0, out0) || !fits_grid<64, 512>(device)) {" in entry
    assert f"run_rows_split<512, 4, 4>({scratch})" in entry
    assert f"run_rows_grid_resident<64, 512, 4>({scratch})" in entry
    assert f"run_rows_split<512, 1, 4>({scratch})" in entry
    assert re.search(r"struct softmax .*struct softmax_again ", text, re.DOTALL)


def test_rows_as_long_as_the_batch_are_kept_at_its_size() -> None:
    """The running numbers change in place, but only who writes them uses them."""
    made = make(nn.BatchNorm2d(4), [torch.empty(256, 4, 64, 64)], HOPPER)
    assert strategy_of(made) == GridResidentRow(64, 512, 4, fixed_sizes=(("batch", 256),))
    body, entry = (
        cuda_source(numbered(made).texts, HOPPER).rpartition("namespace {")[2].split('extern "C"')
    )
    assert "fixed<256, 4096>" in body
    assert "span(batch, 4096)" in body
    assert "if (batch != 256 || !aligned<4>(in2, out2) || !fits_grid<64, 512>(device)) {" in entry
    assert "run_rows_split<" in entry


def test_what_else_may_be_done() -> None:
    made = planned(softmax, torch.empty(4, MILLION))
    ((_, nest, default),) = made.kernels
    others = neighbours(default, nest, StrategyContext(HOPPER, made.plan.graph))
    assert default not in others
    some = [s for s in others if isinstance(s, ResidentRow)]
    assert some == [GridResidentRow(32, 1024, 4)]
    assert any(isinstance(s, SplitRow) for s in others)
    assert any(isinstance(s, RowPerTeam) and not s.keep for s in others)


class Long(nn.Module):
    """Every kind of long row, of lengths that give no block as much as another."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(400_004)
        self.rms = nn.RMSNorm(MILLION, eps=1e-5)
        self.groups = nn.GroupNorm(2, 6)
        self.batches = nn.BatchNorm2d(3)

    def forward(self, x: Tensor, y: Tensor, z: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        places = x - x.argmax(1, keepdim=True)
        norms = self.norm(y) + y, self.rms(w), self.groups(z) * 2, torch.relu(self.batches(v))
        return torch.softmax(x, 1), places, *norms, torch.nn.functional.normalize(w, 2.0, 1)


def inputs(batch: int, dtype: torch.dtype, offset: int = 0, device: str = "cuda") -> list[Tensor]:
    """offset: in elements; with 1, no vector can be used."""
    shapes = [(batch, 300_001), (batch, 400_004), (batch, 6, 100_003), (batch, MILLION)]
    return drawn([*shapes, (batch, 3, 200, 300)], dtype, offset, device)


@pytest.mark.compiler
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
@pytest.mark.parametrize(
    ("dtype", "target"),
    [
        (torch.float32, "sm_80"),
        (torch.float32, "sm_90a"),
        (torch.bfloat16, "sm_90a"),
        (torch.float64, "sm_80"),
    ],
)
def test_two_blocks_fit_a_processor(dtype: torch.dtype, target: str, tmp_path: Path) -> None:
    made = make(Long().to(dtype), inputs(6, dtype, device="cpu"), TARGETS[target])
    assert sum(isinstance(s, GridResidentRow | PipelinedRow) for _, _, s in made.kernels) >= 4
    found = compile_text(
        cuda_source(made.texts, TARGETS[target]), cuda_flags(TARGETS[target].arch), tmp_path
    )
    resident = [k for k in found if "grid_resident_kernel" in k.name]
    assert len(resident) >= 4
    assert max(k.registers for k in resident) <= 64
    # Single elements have an address each, and doubles come in pairs; nothing that is kept goes.
    vectors = [k for k in resident if "ELi512ELi1E" not in k.name and dtype != torch.float64]
    assert [k for k in vectors if k.spill_bytes] == []
    assert max(k.spill_bytes for k in resident) <= 64


# ---- on a GPU ------------------------------------------------------------------------------------


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_gpu_rows_are_no_less_accurate_than_eager(dtype: torch.dtype) -> None:
    cases = ((6, 0), (2, 0), (3, 1), (6, 1), (40, 0))
    check_accuracy_and_bits(Long(), inputs, dtype, cases)


@pytest.mark.gpu
@torch.no_grad()
def test_gpu_nan_and_infinity_stay_in_their_row() -> None:
    torch.manual_seed(0)
    model = Long().cuda()
    ours = fusewright.optimize(model, *inputs(6, torch.float32), options={"target": "cuda"})
    given = inputs(6, torch.float32)
    with_specials(given[:4])
    assert disagreements(ours, model, given, roundings=2) == []


@pytest.mark.gpu
@torch.no_grad()
def test_gpu_two_streams_and_a_graph() -> None:
    check_two_streams_and_a_graph(20, 700_000)
