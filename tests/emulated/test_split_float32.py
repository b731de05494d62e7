"""A factor whose rows are neighbours in memory is packed to the bytes of one whose k are.

Fibers of the CPU run the text of both ways (warps.py), which is that of Ampere and of Hopper; and a
whole product of a turned factor, for sm_80.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

import fusewright.kernels.gemm.match
from fusewright.codegen.cuda_source import cuda_source
from fusewright.codegen.device_library import select_sections
from fusewright.codegen.kernel_symbols import entry
from fusewright.compiler.compilation import make
from fusewright.targets.target import TARGETS
from tests.kernels.gemm.test_gemm import model
from tests.support.emulator.warps import library_of

AMPERE = TARGETS["sm_80"]
UNIT, FILLED = 32, 64  # k of a unit; rows are filled up to a multiple
ENTRY = r"""
extern "C" int packed_bytes(const float* data, long batch_stride, long row_stride, long depth_stride, long batches,
                            int rows, int depth, bool quads, unsigned* zeroed, int zeroes, void* room) {
  using namespace fusewright;
  const gemm_operand from{data, batch_stride, row_stride, depth_stride};
  packed to = packed_in(room, from, batches, rows, depth);
  to.quads = quads, to.zeroed = zeroed, to.zeroes = zeroes;
  return pack(from, rows, depth, to, nullptr);
}
"""  # noqa: E501


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("pack")
    return library_of(select_sections("sm90", ["pack"]) + "\n}\n" + ENTRY, folder)


def packed(library: ctypes.CDLL, x: torch.Tensor, *, quads: bool) -> torch.Tensor:
    """The packed form of [batches, rows, depth], with 5,000 counters that packing sets to 0."""
    batches, rows, depth = x.shape
    filled, counters = -(-rows // FILLED) * FILLED, torch.ones(5000, dtype=torch.int32)
    size = batches * filled * (-(-depth // UNIT) * 128 + 4 + -(-depth // (2 * UNIT)) * 4)
    room = torch.full((size,), 77, dtype=torch.uint8)
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (x, counters, room)]
    strides = map(ctypes.c_long, (*x.stride(), batches))
    found = library.packed_bytes(
        pointers[0], *strides, rows, depth, quads, pointers[1], len(counters), pointers[2]
    )
    assert found == 0
    assert not counters.any()
    return room


@pytest.mark.parametrize("quads", [False, True])
@pytest.mark.parametrize(
    ("batches", "rows", "depth"),
    [(1, 70, 40), (1, 64, 64), (3, 33, 129), (1, 130, 1000), (2, 20, 2100)],
)
def test_the_same_bytes(
    batches: int, rows: int, depth: int, quads: bool, library: ctypes.CDLL
) -> None:
    """Rows 2^-100 to 2^100, one with k of very different size, zeros, an infinity, a NaN."""
    torch.manual_seed(depth)
    x = torch.randn(batches, rows, depth)
    x *= 2.0 ** torch.linspace(-100, 100, rows).round()[:, None]
    x[:, 5] = 0
    x[:, 7, : depth // 2] *= 2.0**20
    x[0, 9, depth - 1], x[-1, 11, 3] = float("inf"), float("nan")
    turned = x.transpose(1, 2).contiguous().transpose(1, 2)
    assert packed(library, turned, quads=quads).equal(packed(library, x, quads=quads))


def test_a_product_of_a_turned_factor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusewright.kernels.gemm.match, "LEAST_FLOPS", {torch.float32: 0})
    torch.manual_seed(0)
    x, y = torch.randn(130, 332), torch.randn(332, 70)
    made = make(model("return x @ y", 2), (x, y), AMPERE)
    (kernel,) = made.texts
    found = library_of(cuda_source(made.texts, AMPERE), tmp_path)
    room = torch.empty(eval(kernel.launch.workspace.format(batch=len(x))), dtype=torch.uint8)
    out = torch.full((130, 70), -77.0)
    addresses = [ctypes.c_void_p(t.data_ptr()) for t in (x, y, out, room)]
    run = getattr(found, entry(kernel.name))
    assert run(*addresses, ctypes.c_long(len(x)), 0, ctypes.c_void_p(None)) == 0
    wanted = x.double() @ y.double()
    assert float((out.double() - wanted).norm() / wanted.norm()) < 4e-7
