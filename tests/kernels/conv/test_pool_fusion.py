"""Pools in kernels of convolutions: which join, what they mean, what they compute, their text.

Threads of the CPU run the text behind the tensor cores (tiles.py), so values need no GPU.
"""

from __future__ import annotations

import ctypes
import math
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusewright.codegen.cuda_source import cuda_source
from fusewright.codegen.kernel_text import KernelText
from fusewright.compiler.compilation import make
from fusewright.fusion.epilogue import NoReduction
from fusewright.fusion.planner import Kernel, Plan, plan
from fusewright.ir.graph import Graph, Node, toposort
from fusewright.ir.specs import ConvSpec, spec_of
from fusewright.kernels.conv import match, pool_fusion
from fusewright.kernels.conv.geometry import CONVOLUTIONS, ConvGeometry, geometry
from fusewright.kernels.conv.match import convolution
from fusewright.kernels.conv.pool_fusion import pooled
from fusewright.kernels.conv.strategy import tile_of
from fusewright.kernels.conv.tile import ConvTile
from fusewright.kernels.conv.variants import variant_of
from fusewright.kernels.interface import StrategyContext
from fusewright.kernels.registry import ANCHORS, default_strategy, kernel_text
from fusewright.kernels.tensor_core.tile import TileShape
from fusewright.kernels.tensor_core.tile_options import tiles
from fusewright.loopnest.nest import nest
from fusewright.report.decision_record import step_reports
from fusewright.rewrite.target_lowering import lower_for_target
from fusewright.targets.target import TARGETS
from tests.support.cuda_compilers import nvrtc_folder, nvrtc_log, strict_report, usages
from tests.support.emulator.pool_windows import Sizes, library
from tests.support.folders import GOLDEN_FOLDER
from tests.support.graphs import check_meaning, staged

GPU = TARGETS["sm_90a"]


@pytest.fixture(autouse=True, scope="module")
def small_ones_too() -> Iterator[None]:
    least = dict.fromkeys(match.LEAST_FLOPS, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(match, "LEAST_FLOPS", least)
        patch.setattr(pool_fusion, "LEAST_WINDOWS", 1)
        patch.setattr(pool_fusion, "WINDOWS", (2, 4, 8))  # right, but slow
        yield


class Pooled(nn.Module):
    """A convolution and what follows it."""

    def __init__(self, layer: nn.Module, tail: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.layer, self.tail = layer, tail

    def forward(self, x: Tensor) -> object:
        return self.tail(self.layer(x))


@dataclass(frozen=True)
class Case:
    """A layer of 12 channels, the size of its images, and its tail."""

    layer: nn.Module
    size: tuple[int, ...]
    tail: Callable[[Tensor], object]
    dtype: torch.dtype = torch.float32
    channels: int = 12

    def model(self) -> tuple[nn.Module, Tensor]:
        torch.manual_seed(0)
        x = torch.randn(3, self.channels, *self.size).to(self.dtype)
        return Pooled(self.layer, self.tail).to(self.dtype), x


def max2(z: Tensor) -> Tensor:
    return F.max_pool2d(z, 2)


torch.manual_seed(0)
JOINED: dict[str, Case] = {
    "plain": Case(nn.Conv2d(12, 20, 3, padding=1), (12, 16), lambda z: max2(torch.relu(z))),
    "odd sizes": Case(nn.Conv2d(12, 20, 3), (13, 19), lambda z: max2(torch.relu(z)) + 1),
    "without bias": Case(nn.Conv2d(12, 20, 3, bias=False), (11, 19), max2),
    "average": Case(nn.Conv2d(12, 33, 3), (12, 18), lambda z: F.avg_pool2d(torch.tanh(z) * 2, 2)),
    "strided, dilated": Case(
        nn.Conv2d(12, 20, (3, 2), stride=(2, 1), dilation=(1, 3), padding=(2, 1)),
        (23, 20),
        lambda z: max2(z * torch.sigmoid(z)),
    ),
    "lines of windows": Case(nn.Conv2d(12, 20, 3), (12, 19), lambda z: F.max_pool2d(z, (1, 4))),
    "eight": Case(nn.Conv2d(12, 20, 3), (19, 15), lambda z: F.avg_pool2d(z - 1, (4, 2))),
    "1 dimension": Case(nn.Conv1d(12, 140, 5, padding=2), (51,), lambda z: F.max_pool1d(z, 2) * 3),
    "3 dimensions": Case(
        nn.Conv3d(12, 20, 3, padding=1), (5, 6, 9), lambda z: F.max_pool3d(torch.relu(z), 2)
    ),
    "sheets": Case(
        nn.Conv3d(12, 20, (1, 3, 3)), (4, 9, 9), lambda z: F.avg_pool3d(z, (2, 1, 2), (2, 1, 2))
    ),
    "both pools": Case(nn.Conv2d(12, 20, 3), (12, 18), lambda z: max2(z) + F.avg_pool2d(z, 2)),
    "adaptive": Case(nn.Conv2d(12, 20, 3), (12, 18), lambda z: F.adaptive_avg_pool2d(z, (5, 8))),
    "groups": Case(nn.Conv2d(24, 40, 3, groups=2), (9, 9), max2, channels=24),
    "many": Case(nn.Conv2d(12, 150, 3), (42, 22), lambda z: max2(torch.relu(z))),
    "by hand": Case(
        nn.Conv2d(12, 20, 3),
        (10, 10),
        lambda z: z[..., ::2, ::2] - z[..., 1::2, 1::2] + z[..., ::2, 1::2] * z[..., 1::2, ::2],
    ),
    "16 bits": Case(nn.Conv2d(12, 20, 3), (12, 16), lambda z: max2(torch.relu(z)), torch.bfloat16),
}  # fmt: skip
APART: dict[str, Case] = {
    "three": Case(nn.Conv2d(12, 20, 3), (14, 14), lambda z: F.max_pool2d(z, 3)),
    "too many": Case(nn.Conv2d(12, 20, 3), (18, 18), lambda z: F.max_pool2d(z, 4)),
    "overlapping": Case(nn.Conv2d(12, 20, 3), (14, 14), lambda z: F.max_pool2d(z, 2, 1)),
    "gaps": Case(nn.Conv2d(12, 20, 3), (14, 14), lambda z: F.max_pool2d(z, 2, 4)),
    "padded": Case(nn.Conv2d(12, 20, 3), (14, 14), lambda z: F.max_pool2d(z, 2, padding=1)),
    "over the edge": Case(
        nn.Conv2d(12, 20, 3), (13, 13), lambda z: F.max_pool2d(z, 2, ceil_mode=True)
    ),
    "itself, too": Case(nn.Conv2d(12, 20, 3), (14, 14), lambda z: (max2(z), z)),
    "a whole tensor": Case(
        nn.Conv2d(12, 20, 3), (14, 14), lambda z: max2(z + torch.arange(12.0))
    ),
    "reduced first": Case(nn.Conv2d(12, 20, 3), (14, 14), lambda z: max2(torch.softmax(z, 1))),
    "far apart": Case(nn.Conv2d(12, 20, 3, stride=5), (60, 60), max2),
    "far reach": Case(
        nn.Conv3d(12, 20, 3, 2, 15, 15), (38, 38, 38), lambda z: F.max_pool3d(z, 2)
    ),
    "some places": Case(
        nn.Conv2d(12, 20, 3), (14, 14), lambda z: z[..., ::2, ::2] + z[..., ::2, 1::2]
    ),
}  # fmt: skip


def stage(graph: Graph, rounds: bool = True) -> Graph:
    return pooled(lower_for_target(convolution(graph, GPU, probe=lambda _: rounds), GPU), GPU)


def graphs(case: Case, rounds: bool = True) -> tuple[Graph, Graph]:
    module, x = case.model()
    return staged(module, (x,), lambda g: stage(g, rounds), "pooled")


def convolutions(graph: Graph) -> list[Node]:
    return [n for n in toposort(graph.roots) if n.op in CONVOLUTIONS]


def planned(case: Case, rounds: bool = True) -> Plan:
    return plan(graphs(case, rounds)[1], GPU, ANCHORS)


def kernel_of(made: Plan) -> Kernel:
    (kernel,) = made.kernels
    assert not made.libraries
    return kernel


@pytest.mark.slow
@pytest.mark.parametrize("name", [*JOINED, *APART])
def test_the_graph_means_what_it_meant(name: str) -> None:
    case = {**JOINED, **APART}[name]
    module, x = case.model()
    before, after = staged(module, (x,), stage, "pooled")
    (n,) = convolutions(after)
    assert (n.op == "conv" and bool(spec_of(n, ConvSpec).pool_window)) == (name in JOINED)
    if case.dtype is torch.float32:  # others round on the way
        check_meaning(before, after, module, (x,))


@pytest.mark.slow
@pytest.mark.parametrize("name", JOINED)
def test_pools_join(name: str) -> None:
    kernel = kernel_of(planned(JOINED[name]))
    assert kernel.anchor is not None
    assert [tuple(n.shape) for n in kernel.outputs] != []


@pytest.mark.parametrize(("tail", "count"), [
    (lambda z: max2(torch.tanh(z) * 2 + 1), 1),
    (lambda z: max2(torch.tanh(z) * -2), 4),
    (lambda z: max2(torch.relu(torch.tanh(z))) + torch.tanh(z.new_ones(1)), 2),
    (lambda z: F.avg_pool2d(torch.tanh(z), 2), 4),
])  # fmt: skip
def test_what_rises_is_computed_once(tail: Callable[[Tensor], Tensor], count: int) -> None:
    case = Case(nn.Conv2d(12, 20, 3), (14, 14), tail)
    module, x = case.model()
    before, after = staged(module, (x,), stage, "pooled")
    assert sum(n.op == "tanh" for n in toposort(after.roots)) == count
    check_meaning(before, after, module, (x,))


def test_images_of_few_windows_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_fusion, "LEAST_WINDOWS", 49)
    assert len(planned(JOINED["plain"]).kernels) == 2
    assert len(planned(JOINED["many"]).kernels) == 1


@pytest.mark.parametrize("case", ["plain", "mean"])
def test_ampere_has_no_such_kernels(case: str) -> None:
    module, x = {**JOINED, **SUMMED}[case].model()
    ampere = TARGETS["sm_80"]
    write = lambda g: lower_for_target(convolution(g, ampere, probe=lambda _: True), ampere)  # noqa: E731
    _, before = staged(module, (x,), write, "late")
    assert pooled(before, ampere) is before
    assert len(plan(before, ampere, ANCHORS).kernels) == 2


def test_the_record_counts_all_pixels() -> None:
    module, x = JOINED["without bias"].model()  # of 9 x 17 pixels, 8 x 16 are computed
    made = make(module, [x], GPU)
    assert len(made.kernels) == 1
    (report,) = step_reports(made.plan, made.descriptions)
    assert 2 * 3 * 20 * 8 * 16 * 9 * 12 <= report.flops < 2 * 3 * 20 * 8 * 17 * 9 * 12


# ---- values --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A kernel's body in one tile; sizes, and by PyTorch: its operands, all sums, the result."""

    body: KernelText
    chosen: str
    sizes: Sizes
    operands: list[Tensor]
    sums: Tensor
    out: Tensor


def runs_of(case: Case, number: int) -> Iterator[Run]:
    """In some tiles, so that a few cases have all of them, with single elements and vectors."""
    made = planned(case)
    kernel = kernel_of(made)
    assert kernel.anchor is not None
    layout = nest(kernel, made.graph)
    chosen = default_strategy(layout, StrategyContext(GPU, made.graph))
    module, x = case.model()
    layer = module.layer
    assert isinstance(layer, nn.Module)
    with torch.no_grad():
        out = module(x)
        bias = layer.bias
        sums = layer(x) if bias is None else layer(x) - bias.view(-1, *(1,) * len(case.size))
    g = geometry(kernel.anchor)
    printed = kernel_text(layout, chosen)
    bias_too = [] if bias is None else [bias.detach()]
    every = tiles(variant_of(kernel.anchor), kernel.anchor, NoReduction())
    for k, vector in ((0, chosen.vector), (3, 1), (5, 1), (6, chosen.vector)):
        tile = every[(number + k) % len(every)]
        windows = ", ".join(map(str, g.windows))
        how = f"{tile.width}, {str(tile.swap_operands).lower()}, {vector}, {windows}"
        operands = [x, layer.weight.detach(), *bias_too]
        yield Run(printed, how, numbers(g), operands, sums, out)


def numbers(g: ConvGeometry) -> Sizes:
    triples = (g.in_size, g.out_size, g.kernel, g.stride, g.pad, g.dilation)
    return (3, g.groups, g.in_channels, g.out_channels, *chain(*triples))


IN_TILES = ("odd sizes", "eight", "3 dimensions", "many")
IN_SUMS = ("mean", "pool")
SIDES = [(width, vector) for width in (0, 64, 256) for vector in (1, 4)]  # 0: boxes


@pytest.mark.compiler
def test_tiles_reach_the_body(tmp_path: Path) -> None:
    """From the pixels that the copy engine is told to bring to what is stored."""
    runs = [run for k, name in enumerate(IN_TILES) for run in runs_of(JOINED[name], k)]
    sums = [replace(next(runs_of(SUMMED[name], 0)), chosen=f"{width}, {vector}")
            for name in IN_SUMS for width, vector in SIDES]  # fmt: skip
    every = library([(run.body, run.chosen) for run in (*runs, *sums)], tmp_path)
    check_windows(runs, every)
    check_sums(sums, every, len(runs))


def check_windows(runs: Sequence[Run], every: ctypes.CDLL) -> None:
    """Sums that are not finite, though they should be, are computed again."""
    for k, run in enumerate(runs):
        wrong, out = run.sums.flatten(2).clone(), torch.full_like(run.out, math.pi)
        for image in wrong[::2]:  # the others are not suspect
            image.view(-1)[::37], image.view(-1)[5::41] = math.nan, math.inf
        x, weight, *bias = run.operands
        pointers = (ctypes.c_void_p(t.data_ptr()) for t in (x, weight, wrong, *bias, out))
        sizes = (ctypes.c_int * len(run.sizes))(*run.sizes)
        getattr(every, f"tile_{k}")(*pointers, sizes)
        torch.testing.assert_close(out, run.out, rtol=1e-4, atol=1e-5, msg=run.chosen)


def check_sums(runs: Sequence[Run], every: ctypes.CDLL, first: int) -> None:
    """Boxes leave their parts, and these are joined."""
    for k, run in enumerate(runs, first):
        sums, out = run.sums.flatten(2), torch.full_like(run.out, math.pi)
        parts = torch.full((*sums.shape[:2], -(-sums.shape[2] // 64)), math.nan)
        pointers = (ctypes.c_void_p(t.data_ptr()) for t in (sums, parts, *run.operands[2:], out))
        getattr(every, f"tile_{k}")(*pointers, (ctypes.c_int * len(run.sizes))(*run.sizes))
        torch.testing.assert_close(out, run.out, rtol=1e-5, atol=1e-6, msg=run.chosen)


SUMMED: dict[str, Case] = {
    "mean": Case(nn.Conv2d(12, 20, 3), (14, 43), lambda z: torch.relu(z).mean((2, 3)) * 2),
    "pool": Case(nn.Conv2d(12, 20, 3), (14, 44), lambda z: F.adaptive_avg_pool2d(torch.tanh(z), 1)),
    "largest": Case(nn.Conv3d(12, 33, 3), (7, 8, 9), lambda z: z.amax((2, 3, 4), keepdim=True) + 1),
    "sum of 16 bits": Case(
        nn.Conv1d(12, 20, 3, bias=False), (200,), lambda z: z.float().sum(2), torch.float16
    ),
}
UNSUMMED: dict[str, Case] = {
    "few pixels": Case(nn.Conv2d(12, 20, 3), (9, 9), lambda z: z.mean((2, 3))),
    "channels, too": Case(nn.Conv2d(12, 20, 3), (14, 14), lambda z: z.mean((1, 2, 3))),
    "itself, too": Case(nn.Conv2d(12, 20, 3), (14, 14), lambda z: z - z.mean((2, 3), keepdim=True)),
    "two reductions": Case(
        nn.Conv2d(12, 20, 3), (14, 14), lambda z: z.amax((2, 3)) + z.mean((2, 3))
    ),
    "lines": Case(nn.Conv2d(12, 20, 3), (14, 14), lambda z: z.mean(3)),
    "cells": Case(nn.Conv2d(3, 20, 7, 2), (35, 35), lambda z: z.mean((2, 3)), channels=3),
}


@pytest.mark.parametrize(("name", "rounds"), [*product(SUMMED, [True]), ("mean", False)])
def test_reductions_over_all_pixels_join(name: str, rounds: bool) -> None:
    made = planned(SUMMED[name], rounds)
    layout = nest(kernel_of(made), made.graph)
    chosen = default_strategy(layout, StrategyContext(GPU, made.graph))
    assert isinstance(chosen, ConvTile)
    assert chosen.output == "pixel_reduction"


@pytest.mark.slow
@pytest.mark.parametrize("name", UNSUMMED)
def test_other_reductions_over_pixels_do_not(name: str) -> None:
    made = planned(UNSUMMED[name])
    assert len(made.kernels) > 1


# ---- text ----------------------------------------------------------------------------------------


def source(cases: Sequence[tuple[Case, TileShape]], rounds: bool = True) -> str:
    """The kernels of some models, in some tiles."""
    kernels = []
    for case, shape in cases:
        made = planned(case, rounds)
        layout = nest(replace(kernel_of(made), name=f"conv_{len(kernels)}"), made.graph)
        chosen = default_strategy(layout, StrategyContext(GPU, made.graph))
        assert isinstance(chosen, ConvTile)
        assert layout.kernel.anchor is not None
        tile = tile_of(layout.kernel.anchor, shape, layout.kernel.reduction)
        kernels.append(kernel_text(layout, replace(tile, vector=chosen.vector)))
    return cuda_source(kernels, GPU)


def test_golden(update_golden: bool) -> None:
    made = planned(JOINED["plain"])
    layout = nest(replace(kernel_of(made), name="conv_0"), made.graph)
    chosen = default_strategy(layout, StrategyContext(GPU, made.graph))
    text = cuda_source([kernel_text(layout, chosen)], GPU)
    text = text[text.index("struct conv_0") :]
    path = GOLDEN_FOLDER / "convolution" / "pooled.txt"
    if update_golden:
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "pytest --update-golden"


HEAVY = Case(nn.Conv2d(64, 150, 3), (42, 22), lambda z: F.avg_pool2d(torch.tanh(z), 2), channels=64)
EIGHT = Case(nn.Conv3d(64, 20, 3), (9, 8, 7), lambda z: F.avg_pool3d(torch.tanh(z), 2), channels=64)


# Those that need most registers.
TIGHT = [
    (HEAVY, TileShape(256, False)), (EIGHT, TileShape(64, False)), (EIGHT, TileShape(128, True))
]  # fmt: skip
ALL = (SUMMED["pool"], TileShape(128, False))


@pytest.mark.compiler
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
@pytest.mark.parametrize(("some", "rounds"), [([*TIGHT, ALL], True), ([TIGHT[2], ALL], False)])
def test_they_stay_in_registers(
    some: list[tuple[Case, TileShape]], rounds: bool, tmp_path: Path
) -> None:
    report = strict_report(source(some, rounds), tmp_path / "windows.cu")
    kernels = [k for k in usages(report) if "conv_kernel" in k.name]
    assert {k.name for k in kernels if k.stack_bytes or k.spill_bytes} == set()
    assert len(kernels) >= len(some)
    assert re.findall(r"C75\d\d.*", report) == []  # ptxas made wgmma wait for each other


@pytest.mark.compiler
@pytest.mark.skipif(nvrtc_folder() is None, reason="no NVRTC 12.1.105 here")
def test_the_oldest_supported_compiler_takes_them() -> None:
    folder = nvrtc_folder()
    assert folder is not None
    text = source([(JOINED["plain"], TileShape(128, True)), ALL])
    assert nvrtc_log(folder, text, "compute_90a") == (0, "")
