"""Convolutions whose tiles go on from image to image: when they do, and what they store.

Threads of the CPU run the text behind the tensor cores (joined.py), so values need no GPU.
"""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fusewright.codegen.cuda_source import cuda_source
from fusewright.compiler.compilation import make
from fusewright.kernels.conv.tile import ConvTile
from fusewright.targets.target import TARGETS, Target
from tests.support import conv_subjects as subjects
from tests.support.conv_subjects import JOINED, Problem
from tests.support.cuda_compilers import check_registers, nvrtc_folder, nvrtc_log, strict_report
from tests.support.emitting import tiles
from tests.support.emulator.multi_image_tiles import Handed, library

GPU = TARGETS["sm_90a"]
SUSPECT, UNEVEN = 1 << 20, 1 << 21


def both(*pads: int) -> tuple[tuple[int, int], ...]:
    return tuple((pad, pad) for pad in pads)


PROBLEMS = (
    Problem(3, 8, 20, (16, 20), (3, 3), pad=both(1, 1)),
    Problem(4, 8, 140, (14, 14), (3, 3), pad=both(1, 1)),
    Problem(3, 8, 20, (5, 6, 7), (3, 3, 3), pad=both(1, 1, 1)),
    Problem(4, 8, 40, (11, 13), (3, 3), pad=both(1, 1), groups=2),
)
TILES = (
    Handed("bias_relu", 64, False, 1),
    Handed("residual", 128, False, 4),
    Handed("bias_relu", 192, False, 4),
    Handed("residual", 256, False, 1),
    Handed("bias_relu", 256, False, 4),
    Handed("residual", 64, True, 1),
    Handed("bias_relu", 64, True, 4),
    Handed("bias_relu", 160, False, 4),
    Handed("residual", 224, False, 4),
)
# Of each image: that of its scale, and what is said of it.
EXPONENTS = {
    "one": (3, 3, 3, 3),
    "apart": (-7, 12, -20, 5),
    "far apart": (-80, 20, -15, 70),
    "suspect": (-7, SUSPECT + 12, 4, SUSPECT + 4),
    "uneven": (UNEVEN, 5, UNEVEN, -9),
}


def fits(tile: Handed, problem: Problem) -> bool:
    pixels = torch.Size(problem.out_size).numel()
    side = 128 if tile.swapped else tile.width
    return pixels >= side and (tile.vector == 1 or pixels % 4 == 0)


def unmarked(exponent: int) -> int:
    return exponent - SUSPECT if exponent >= SUSPECT // 2 else exponent


def handed(
    every: ctypes.CDLL, number: int, problem: Problem, exponents: tuple[int, ...], in0: Tensor,
    image: Tensor, weight: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What is stored, and what should be."""
    truth = problem.torch(image.double(), weight.double())
    marks, rows = exponents[: problem.images], torch.arange(problem.out_channels) % 9 - 4
    powers = torch.tensor([0 if m >= UNEVEN else unmarked(m) for m in marks], dtype=torch.float64)
    ones = (1,) * (truth.dim() - 2)
    by = 2.0 ** -(powers.view(-1, 1, *ones) + rows.double().view(1, -1, *ones))
    sums = (truth * by).float()
    for n, mark in enumerate(marks):  # sums that are not finite, though they should be
        if mark >= SUSPECT // 2:
            sums[n].view(-1)[::37], sums[n].view(-1)[5::41] = float("nan"), float("inf")
    body = TILES[number].body
    out = torch.full(truth.shape, 3.5)
    images = torch.tensor(marks, dtype=torch.int32)
    weights = torch.cat([rows.int(), torch.zeros(256, dtype=torch.int32)])
    given = (image, weight, sums.contiguous(), images, weights, in0, out)
    sizes = problem.numbers()
    getattr(every, f"tile_{number}")(
        *(ctypes.c_void_p(t.data_ptr()) for t in given), (ctypes.c_int * len(sizes))(*sizes)
    )
    return out, subjects.meaning(body, truth, in0)


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return library(TILES, tmp_path_factory.mktemp("joined"))


@pytest.mark.parametrize("kind", EXPONENTS)
@pytest.mark.parametrize("number", range(len(TILES)), ids=lambda n: str(TILES[n]))
def test_tiles_reach_the_body(every: ctypes.CDLL, number: int, kind: str) -> None:
    torch.manual_seed(3)
    for problem in PROBLEMS:
        if not fits(TILES[number], problem):
            continue
        image = torch.randn(problem.images, problem.in_channels, *problem.in_size)
        depth = problem.in_channels // problem.groups
        weight = torch.randn(problem.out_channels, depth, *problem.kernel)
        shape = problem.result() if TILES[number].body == "residual" else (problem.out_channels,)
        out, expected = handed(
            every, number, problem, EXPONENTS[kind], torch.randn(shape), image, weight
        )
        torch.testing.assert_close(out, expected.float(), rtol=1e-5, atol=1e-5)


# ---- plans ---------------------------------------------------------------------------------------


class Layer(nn.Module):
    """A convolution, and what follows it."""

    def __init__(self, layer: nn.Module, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.layer, self.norm = layer, norm or nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x))  # type: ignore[no-any-return]


def tiles_of(
    module: nn.Module, *shape: int, target: Target = GPU, half: bool = False
) -> list[ConvTile]:
    dtype = torch.bfloat16 if half else torch.float32
    made = make(Layer(module).to(dtype), [torch.randn(shape).to(dtype)], target)
    return [tile for tile in tiles(made).values() if isinstance(tile, ConvTile)]


def test_small_images_fill_tiles_together() -> None:
    """28 x 28 pixels are 3 tiles of 256 and a bit: 392 tiles instead of 512, 3 rounds of 132. In
    float32, groups with tiles of their own are as fast without."""
    layer = nn.Conv2d(256, 256, 3, padding=1)
    shape = (64, 256, 28, 28)
    assert tiles_of(layer, *shape, half=True) == [
        ConvTile(256, False, blocks_per_sm=1, images="multi", vector=4)
    ]
    assert tiles_of(layer, *shape) == [ConvTile(160, False, "pingpong", blocks_per_sm=1, vector=4)]


def test_what_is_called() -> None:
    layer = Layer(nn.Conv2d(256, 256, 3, padding=1)).bfloat16()
    made = make(layer, [torch.randn(64, 256, 28, 28).bfloat16()], GPU)
    assert "run_conv_multi_image<256, false, 0, 4, 64>" in cuda_source(made.texts, GPU)


def test_in_full_float32_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    (tile,) = tiles_of(nn.Conv2d(256, 256, 3, padding=1), 64, 256, 28, 28)
    assert tile.images == "multi"


APART = {
    "large images": (nn.Conv2d(64, 128, 3, padding=1), (8, 64, 128, 128)),
    "smaller than a tile": (nn.Conv2d(512, 512, 3, padding=1), (64, 512, 7, 7)),
    "a tile in which two images meet would take longer": (
        nn.Conv2d(128, 128, 3, padding=1),
        (32, 128, 28, 28),
    ),
    "one image": (nn.Conv2d(256, 256, 3, padding=1), (1, 256, 28, 28)),
    "transposed": (nn.ConvTranspose2d(256, 256, 3, padding=1), (64, 256, 28, 28)),
    "cells": (nn.Conv2d(3, 64, 7, 2, 3), (256, 3, 56, 56)),
}


@pytest.mark.parametrize("name", APART)
def test_others_stay_apart(name: str) -> None:
    layer, shape = APART[name]
    assert not any(tile.images == "multi" for tile in tiles_of(layer, *shape))


def test_ampere_has_no_such_kernels() -> None:
    layer = nn.Conv2d(256, 256, 3, padding=1)
    every = tiles_of(layer, 64, 256, 28, 28, target=TARGETS["sm_80"])
    assert every
    assert not any(tile.images == "multi" for tile in every)


def test_reductions_over_channels_stay_within_an_image() -> None:
    module = Layer(nn.Conv2d(256, 64, 3, padding=1), nn.Softmax(1))
    made = make(module, [torch.randn(64, 256, 28, 28)], GPU)
    found = [tile for tile in tiles(made).values() if isinstance(tile, ConvTile)]
    assert not any(tile.images == "multi" for tile in found)


@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
def test_they_stay_in_registers(tmp_path: Path) -> None:
    widest = [s for s in JOINED if s.width == (128 if s.parts == 2 else 256)]
    some = [s for s in widest if s.chunk == 64 and s.vector == 4]
    report = strict_report(subjects.source(some), tmp_path / "joined.cu")
    check_registers(report, "conv_kernel", len(some))


@pytest.mark.skipif(nvrtc_folder() is None, reason="no NVRTC 12.1.105 here")
def test_the_oldest_supported_compiler_takes_them() -> None:
    folder = nvrtc_folder()
    assert folder is not None
    some = [s for s in JOINED if s.vector == 4 and s.width == (256 if s.swapped else 128)]
    assert nvrtc_log(folder, subjects.source(some), "compute_90a") == (0, "")
