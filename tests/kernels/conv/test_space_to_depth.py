"""Convolutions of few channels: which cells, what their kernels compute, and that these compile.

Fibers of the CPU run the CUDA text of sm_80 (warps.py), whose packing is that of sm_90a, too; so
none of this needs a GPU.
"""

from __future__ import annotations

import ctypes
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from fusewright.fusion.planner import plan
from fusewright.ir.specs import ConvSpec, spec_of
from fusewright.kernels.conv import match
from fusewright.kernels.conv.geometry import ConvGeometry, geometry
from fusewright.kernels.registry import ANCHORS
from tests.kernels.conv.test_conv import GPU, graphs
from tests.kernels.conv.test_conv import convolutions as found_in
from tests.kernels.conv.test_conv_sm80 import both, check, operands
from tests.support import conv_subjects as convolutions
from tests.support.conv_subjects import Problem, Subject
from tests.support.cuda_compilers import nvrtc_folder, nvrtc_log, strict_report, usages
from tests.support.emitting import emit_file
from tests.support.emulator.warps import library_of
from tests.support.graphs import check_meaning

BF16 = torch.bfloat16

FEW = Subject("copy", 64, False, 1, 16, cells=True)
MORE = Subject("bias_relu", 64, True, 4, 32, cells=True)
# Cells as wide as strides, as kernels, as both, as one pixel; padded, dilated, beyond the image.
VALUES = (
    (FEW, Problem(2, 3, 20, (13, 11), (7, 7), (2, 2), both(3, 3), cells=(1, 2, 2))),
    (FEW, Problem(2, 3, 9, (8, 70), (3, 3), pad=both(1, 1), cells=(1, 1, 3))),
    (FEW, Problem(1, 2, 70, (12, 9), (3, 2), (2, 3), ((1, 0), (2, 1)), cells=(1, 2, 2))),
    (MORE, Problem(2, 3, 12, (9, 14), (4, 4), (4, 4), cells=(1, 4, 4))),
    (MORE, Problem(1, 1, 40, (300,), (10,), (5,), both(2), cells=(1, 1, 5))),
    (MORE, Problem(1, 3, 8, (5, 9, 12), (3, 3, 5), (1, 2, 2), both(1, 1, 2), cells=(1, 2, 5))),
    (MORE, Problem(2, 5, 12, (9, 12), (3, 3), pad=both(2, 2), dilation=(1, 2), cells=(1, 1, 3))),
    (FEW, Problem(1, 3, 8, (4, 9, 9), (2, 3, 3), (3, 1, 2), both(0, 1, 1), cells=(2, 1, 2))),
    (
        replace(FEW, dtype=BF16),
        Problem(2, 3, 9, (9, 9), (3, 3), (2, 2), both(1, 1), cells=(1, 2, 2)),
    ),
    (replace(MORE, dtype=BF16), Problem(1, 6, 10, (8, 14), (3, 3), groups=2, cells=(1, 3, 3))),
)

# ---- which ---------------------------------------------------------------------------------------

# The layer, its images; the cells, and the convolution of these: channels, taps.
LAYERS: dict[str, tuple[nn.Module, tuple[int, ...], tuple[int, ...], tuple[int, int]]] = {
    "7 x 7 of stride 2": (nn.Conv2d(3, 64, 7, 2, 3), (16, 3, 224, 224), (1, 2, 2), (12, 16)),
    "3 x 3": (nn.Conv2d(3, 128, 3, padding=1), (16, 3, 224, 224), (1, 1, 3), (9, 3)),
    "3 x 3 of stride 2": (nn.Conv2d(4, 64, 3, 2, 1), (64, 4, 224, 224), (1, 2, 2), (16, 4)),
    "patches": (nn.Conv2d(3, 768, 16, 16), (16, 3, 224, 224), (1, 16, 16), (768, 1)),
    "far strides": (nn.Conv2d(64, 256, 9, 9), (16, 64, 90, 90), (1, 9, 9), (5184, 1)),
    "sound": (nn.Conv1d(1, 512, 40, 5), (64, 1, 64000), (1, 1, 40), (40, 1)),
    "video": (
        nn.Conv3d(3, 64, (3, 7, 7), (1, 2, 2), (1, 3, 3)),
        (4, 3, 8, 112, 112),
        (1, 2, 7),
        (42, 12),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_cells_are_those_with_the_least_to_move(name: str) -> None:
    layer, shape, cells, (channels, taps) = LAYERS[name]
    x = torch.randn(1).expand(shape)
    _, after = graphs(nn.Sequential(layer, nn.ReLU()), x)
    (kernel,) = plan(after, GPU, ANCHORS).kernels
    assert kernel.anchor is not None
    g = geometry(kernel.anchor)
    assert g.cells == cells
    assert (g.walk.in_channels, g.walk.taps) == (channels, taps)
    assert g.taps * g.in_channels == layer.weight[0].numel()  # type: ignore[index, operator]


def test_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    every = dict.fromkeys(match.LEAST_FLOPS, 0)
    monkeypatch.setattr(match, "LEAST_FLOPS", every)
    layer, x = nn.Conv2d(3, 64, 7, 2, 3), torch.randn(2, 3, 32, 32)
    before, after = graphs(layer, x)
    assert geometry(found_in(after)[0]).cells
    check_meaning(before, after, layer, (x,))


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("subject", "problem"), VALUES, ids=lambda x: getattr(x, "entry", ""))
def test_scratch_memory_has_room(subject: Subject, problem: Problem, parts: int) -> None:
    """That of the problems whose values are tried, where nothing else is written."""
    sizes = problem.numbers()
    triples = [(a, b, c) for a, b, c in zip(*(iter(sizes[4:22]),) * 3, strict=True)]
    g = ConvGeometry(problem.images, *sizes[1:4], *triples, parts=parts, cells=problem.cells)
    assert g.chunk <= subject.chunk
    need = problem.workspace_bytes(g.chunk, parts)
    assert need <= eval(g.packed_bytes) <= need + 256 * 10


@pytest.mark.parametrize("layer", [nn.Conv2d(8, 256, 7, 2), nn.Conv2d(6, 256, 7, 2, groups=2)])
def test_other_convolutions_have_none(layer: nn.Conv2d) -> None:
    _, after = graphs(layer, torch.randn(8, layer.in_channels, 128, 128))
    assert not [n for n in found_in(after) if n.op == "conv" and spec_of(n, ConvSpec).cell]


FIRST_LAYER = """import torch


class Model(torch.nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = torch.nn.Conv2d(channels, 64, 7, stride=2, padding=3)

    def forward(self, x):
        return torch.relu(self.conv(x))


def get_inputs():
    return [torch.randn(64, 3, 224, 224).bfloat16()]


def get_init_inputs():
    return [3]
"""


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_the_emitted_file(tmp_path: Path, target: str) -> None:
    problem = tmp_path / "first.py"
    text = FIRST_LAYER.replace("padding=3)", "padding=3).bfloat16()")
    problem.write_text(text, encoding="utf-8")
    text = emit_file(problem, tmp_path, target).text
    assert "pixels of a cell as channels" in text.partition('"""')[0]
    assert "(body, left, right, shape, {{1, 2, 2}}, workspace, device, stream)" in text
    assert f"workspace = torch.empty(batch * {115 * 115 * 16 * 2 + 20} + " in text


# ---- compilers -----------------------------------------------------------------------------------

# Packing differs by the chunk, and needs most registers in two parts.
COMPILED = {
    "90a": tuple(Subject("copy", 64, False, 1, k, cells=True, parts=2) for k in (16, 64)),
    "80": (Subject("copy", 64, False, 1, 16, cells=True),),
}


@pytest.mark.compiler
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
@pytest.mark.parametrize("arch", COMPILED)
def test_packing_stays_in_registers(tmp_path: Path, arch: str) -> None:
    text = convolutions.source(COMPILED[arch], f"sm_{arch}")
    kernels = usages(strict_report(text, tmp_path / "cells.cu", arch))
    assert sum("pack_image" in k.name and "space_to_depth_walk" in k.name for k in kernels) >= 2
    assert [k for k in kernels if k.stack_bytes or k.spill_bytes] == []


@pytest.mark.compiler
@pytest.mark.skipif(nvrtc_folder() is None, reason="no NVRTC 12.1.105 here")
def test_the_oldest_supported_compiler_takes_them() -> None:
    folder = nvrtc_folder()
    assert folder is not None
    text = convolutions.source(COMPILED["90a"][:1])
    assert nvrtc_log(folder, text, "compute_90a") == (0, "")


# ---- values --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    some = {s.entry: s for s, _ in VALUES}.values()
    return library_of(convolutions.source(some, "sm_80"), tmp_path_factory.mktemp("cells"))


@pytest.mark.compiler
@pytest.mark.parametrize(("subject", "problem"), VALUES, ids=lambda x: getattr(x, "entry", ""))
def test_values(emulated: ctypes.CDLL, subject: Subject, problem: Problem) -> None:
    given = operands(subject, problem)
    check(emulated, subject, problem, convolutions.exact(problem, *given[:2]), *given)


STRANGE = tuple(VALUES[k] for k in (0, 4, 8))


@pytest.mark.compiler
@pytest.mark.parametrize("name", ["spike", "huge", "infinities", "at the edge"])
@pytest.mark.parametrize(("subject", "problem"), STRANGE, ids=lambda x: getattr(x, "entry", ""))
def test_hazards(emulated: ctypes.CDLL, name: str, subject: Subject, problem: Problem) -> None:
    """What is not finite does not spread to taps that only cells have."""
    image, weight, in0 = operands(subject, problem)
    if name == "spike":
        image[0].view(-1)[7] = 1e6
    elif name == "huge":
        image, weight = image * 1e30, weight * 1e-30
    elif name == "infinities":
        image[0].view(-1)[7::90], image[-1].view(-1)[20] = float("nan"), float("-inf")
    else:
        image[..., -1], image[..., 0] = float("inf"), float("inf")
    truth = convolutions.exact(problem, image, weight)
    check(emulated, subject, problem, truth, image, weight, in0)
