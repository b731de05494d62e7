"""Rows whose reductions are longer than what is stored of them: pools and slices of norms."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import pytest
import torch

import fusewright
from fusewright.codegen.cuda_source import cuda_source
from fusewright.compiler.compilation import Compilation, make
from fusewright.targets.target import TARGETS
from tests.rewrite.test_sink_views import GPU, Called, images
from tests.support.agreement import disagreements
from tests.support.emulator.warps import library_of

# x, y: [6, 4, 20, 24]. Each row is one kernel that reads x, or both.
SHORT = (
    "F.avg_pool2d(F.layer_norm(x, (24,)), 2)",
    "F.gelu(F.max_pool2d(F.layer_norm(x, (24,)), (2, 3)))",
    "(x - x.mean(-1, True))[:, :, ::4, 5:20] * 2 + y[:, :, ::4, :15]",
    "(x / x.abs().amax(-1, True))[:, 1:, :, 1::2]",
    "x.sum(-1)[:, :, ::2].relu()",
    "F.layer_norm(x, (24,))[:, ::2, 1:].exp()",
)
# Rows are reduced twice, or something else wants to know their reductions: these stay in memory.
OTHERS = {
    "F.avg_pool2d(F.layer_norm(x, (24,)), 3, 2)": 2,
    "F.max_pool2d(x.softmax(-1), 2)": 2,
    "F.avg_pool2d(F.layer_norm(x, (24,)), 2).softmax(-1)": 2,
    "F.avg_pool2d(F.layer_norm(x, (20, 24)), 2)": 2,
}


def made(row: str, name: str = "sm_90a") -> Compilation:
    return make(Called(row), images(), TARGETS[name])


@pytest.mark.slow
@pytest.mark.parametrize("row", SHORT)
def test_it_is_one_kernel(row: str) -> None:
    (kernel,) = made(row).plan.kernels
    assert {leaf.op for leaf in kernel.leaves} == {"input"}


@pytest.mark.parametrize("row", OTHERS)
def test_other_rows_are_reduced_once(row: str) -> None:
    assert len(made(row).plan.steps) == OTHERS[row]


def test_a_transposed_convolution_is_read_once() -> None:
    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = torch.nn.ConvTranspose2d(64, 48, 3, stride=2)
            self.norm = torch.nn.LayerNorm(97)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.avg_pool2d(self.norm(self.convolution(x)), 2)

    planned = make(Pooled(), [torch.randn(64, 64, 48, 48)], GPU).plan
    assert [len(k.reductions) for k in planned.kernels] == [0, 4]


def test_what_is_as_long_as_its_reductions_has_its_own_kernel() -> None:
    """Though it has as many rows as the others have columns."""

    class Both(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            z = x[:, :, ::2] * 2
            return z, y + z.mean(-1, True) + x[:, :, 1::2].mean(-1, True)

    inputs = [torch.randn(6, 4, 24, 24), torch.randn(6, 4, 12, 12)]
    for kernel in make(Both(), inputs, GPU).plan.kernels:
        assert not kernel.loops.stored_length or all(n.shape[-1] == 12 for n in kernel.outputs)


def test_nothing_is_kept_from_longer_rows() -> None:
    ((body, nest, chosen),) = made(SHORT[0]).kernels
    assert (nest.kernel.loops.stored_length, chosen.keep) == (12, True)
    assert "keep" not in body.text
    assert "team.each(fixed<12>" in body.text


@pytest.mark.slow
def test_a_cpu_has_none() -> None:
    assert all(
        k.loops.stored_length is None for row in SHORT for k in made(row, "cpu").plan.kernels
    )


@pytest.mark.compiler
@pytest.mark.skipif(not shutil.which("g++"), reason="no g++ here")
@pytest.mark.parametrize("row", [row for row in SHORT if "max" not in row])
def test_threads_compute_it(row: str, tmp_path: Path) -> None:
    """Their text for a GPU, shuffles included, by threads of this CPU."""
    whole = made(row, "sm_80")
    library = library_of(cuda_source(whole.texts, TARGETS["sm_80"]), tmp_path)
    given = dict(zip(map(id, whole.captured.graph.inputs), images(), strict=True))
    wanted = Called(row)(*given.values())
    out = torch.full_like(wanted, 7e7)
    (body,) = (b for b, _, _ in whole.kernels)
    tensors = [given.get(id(p.node), out) for p in body.pointers]
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
    assert library[f"run_{body.name}"](*pointers, ctypes.c_long(6), 0, None) == 0
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("row", [*SHORT, *OTHERS])
def test_gpu_kernels_compute_it(row: str) -> None:
    model = Called(row)
    ours = fusewright.optimize(model, *images(), options={"target": "cuda"}).cuda()
    for batch in (2, 6, 37):
        assert disagreements(ours, model, [x.cuda() for x in images(batch)]) == []
