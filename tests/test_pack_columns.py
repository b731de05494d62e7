"""A factor whose rows are neighbours in memory is packed as one whose k are: CUDA text, run here.

Fibers of the CPU run the text for sm_80 (warps.py), whose packing is that of sm_90a, too.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch
from test_product import model
from warps import library_of

import fusewright.product
from fusewright.codegen.cuda import cuda_source, workspace
from fusewright.pipeline import make
from fusewright.target import TARGETS

AMPERE = TARGETS["sm_80"]
ROWS, COLUMNS = 130, 70


@pytest.fixture(autouse=True)
def small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusewright.product, "LEAST_FLOPS", {torch.float32: 0})


def product(x: torch.Tensor, y: torch.Tensor, folder: Path) -> torch.Tensor:
    """x @ y, as the kernels for sm_80 compute it."""
    made = make(model("return x @ y", 2), (x, y), AMPERE)
    ((_, nest, schedule),) = made.kernels
    text = cuda_source(made.kernels, AMPERE)
    assert "pack_columns" in text
    library = library_of(text, folder)
    room = torch.empty(eval(workspace(nest, schedule), {"batch": len(x)}), dtype=torch.uint8)
    out = torch.full((*x.shape[:-1], y.shape[-1]), -77.0)
    addresses = [ctypes.c_void_p(t.data_ptr()) for t in (x, y, out, room)]
    assert library.run_fused_0(*addresses, ctypes.c_long(len(x)), 0, ctypes.c_void_p(None)) == 0
    return out


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float(((found.double() - wanted).norm(dim=0) / wanted.norm(dim=0)).max())


@pytest.mark.parametrize("depth", [64, 332, 2100])  # the last one in three rounds of 16 x 64 k
def test_every_depth(depth: int, tmp_path: Path) -> None:
    torch.manual_seed(depth)
    x, y = torch.randn(ROWS, depth), torch.randn(depth, COLUMNS)
    assert error(product(x, y, tmp_path), x.double() @ y.double()) < 4e-7


def test_sizes_far_apart_and_what_is_not_finite(tmp_path: Path) -> None:
    """Columns 2^-100 to 2^100, one with k of very different size, zeros, an infinity, a NaN."""
    torch.manual_seed(0)
    x, y = torch.randn(ROWS, 1100), torch.randn(1100, COLUMNS)
    y *= 2.0 ** torch.linspace(-100, 100, COLUMNS).round()
    y[:, 5] = 0
    y[64:128, 7] *= 2.0**20
    y[1030, 9], y[3, 11] = float("inf"), float("nan")
    found, wanted = product(x, y, tmp_path), x.double() @ y.double()
    strange = ~wanted.isfinite()
    assert strange.any(0).nonzero().flatten().tolist() == [9, 11]
    torch.testing.assert_close(found[strange], wanted[strange].float(), equal_nan=True)
    assert not found[:, 5].any()
    plain = [c for c in range(COLUMNS) if c not in (5, 9, 11)]
    assert error(found[:, plain], wanted[:, plain]) < 4e-7


def test_batches(tmp_path: Path) -> None:
    x, y = torch.randn(3, ROWS, 100), torch.randn(3, 100, COLUMNS)
    found, wanted = product(x, y, tmp_path), x.double() @ y.double()
    assert error(found.flatten(0, 1), wanted.flatten(0, 1)) < 4e-7
