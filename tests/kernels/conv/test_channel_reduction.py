"""Reductions over channels in kernels of convolutions: which join, what they compute, their text.

Threads of the CPU run the text (tiles.py), so values need no GPU.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusewright.codegen.cuda_source import cuda_source
from fusewright.codegen.kernel_text import KernelText
from fusewright.compiler.compilation import make
from fusewright.frontend.capture import capture, state_of
from fusewright.fusion.planner import Kernel, Plan, plan
from fusewright.kernels.conv import match
from fusewright.kernels.conv.geometry import CONVOLUTIONS
from fusewright.kernels.conv.match import convolution
from fusewright.kernels.conv.strategy import tile_of
from fusewright.kernels.conv.tile import ConvTile
from fusewright.kernels.conv.variants import variant_of
from fusewright.kernels.interface import StrategyContext
from fusewright.kernels.registry import ANCHORS, default_strategy, kernel_text
from fusewright.kernels.tensor_core import epilogue
from fusewright.kernels.tensor_core.launch import segment
from fusewright.kernels.tensor_core.tile import TileShape
from fusewright.kernels.tensor_core.tile_options import tiles
from fusewright.loopnest.nest import nest
from fusewright.rewrite.simplify import rewrite
from fusewright.rewrite.target_lowering import lower_for_target
from fusewright.targets.target import TARGETS
from tests.kernels.gemm.test_epilogue import interpreted
from tests.support.cuda_compilers import nvrtc_folder, nvrtc_log, strict_report, usages
from tests.support.emulator.tiles import library
from tests.support.folders import GOLDEN_FOLDER

GPU = TARGETS["sm_90a"]
CHECK_WORTH = epilogue._check_worth


@pytest.fixture(autouse=True, scope="module")
def small_ones_too() -> Iterator[None]:
    least = dict.fromkeys(match.LEAST_FLOPS, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(match, "LEAST_FLOPS", least)
        patch.setattr(epilogue, "_check_worth", lambda *_: None)
        yield


@dataclass(frozen=True)
class Case:
    """A convolution of 12 channels, and what follows it, with `y` of some shape."""

    channels: int
    tail: Callable[[Tensor, Tensor], object]
    y: tuple[int, ...] = (3, 1, 5, 7)
    size: tuple[int, ...] = (5, 7)
    dtype: torch.dtype = torch.float32
    groups: int = 1
    transposed: bool = False

    def model(self) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
        """Itself, and its inputs."""
        torch.manual_seed(0)
        kind = f"Conv{'Transpose' * self.transposed}{len(self.size)}d"
        layer = getattr(nn, kind)(12 * self.groups, self.channels, 1, groups=self.groups)
        x, y = torch.randn(3, 12 * self.groups, *self.size), torch.randn(self.y)
        return Tailed(layer, self.tail).to(self.dtype), (x.to(self.dtype), y.to(self.dtype))


class Tailed(nn.Module):
    def __init__(self, layer: nn.Module, tail: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.layer, self.tail = layer, tail

    def forward(self, x: Tensor, y: Tensor) -> object:
        return self.tail(self.layer(x), y)


def layer_norm(z: Tensor) -> Tensor:
    less = z - z.mean(1, keepdim=True)
    return less / torch.sqrt((less * less).mean(1, keepdim=True) + 1e-5)


def split(z: Tensor, *sizes: int) -> Tensor:
    return z.reshape(z.shape[0], *sizes, *z.shape[2:])


JOINED: dict[str, Case] = {
    "logsumexp": Case(128, lambda z, y: torch.logsumexp(z * 2, 1)),
    "logsumexp kept, then a residual": Case(
        40, lambda z, y: F.mish(torch.logsumexp(z, 1, keepdim=True) + y)
    ),
    "softmax": Case(96, lambda z, y: torch.softmax(z, 1)),
    "minimum twice bounded": Case(16, lambda z, y: torch.tanh(torch.tanh(z.amin(1, True)))),
    "maximum and its channel": Case(20, lambda z, y: (z.amax(1), z.argmax(1))),
    "mean beside itself": Case(36, lambda z, y: z - z.mean(1, keepdim=True) + y),
    "sum of an odd number": Case(33, lambda z, y: torch.relu(z).sum(1) * 0.5),
    "as many as fit": Case(256, lambda z, y: torch.softmax(z, 1) * 2),
    "a whole tensor added": Case(68, lambda z, y: torch.softmax(z + y, 1) * y, (3, 68, 5, 7)),
    "three quarters": Case(160, lambda z, y: torch.softmax(z, 1) + y),
    "almost as many": Case(250, lambda z, y: torch.sigmoid(z).sum(1, keepdim=True)),
    "layer norm": Case(64, lambda z, y: F.gelu(layer_norm(z))),
    "groups of channels": Case(128, lambda z, y: split(z, 8, 16).amax(2)),
    "more pixels than a tile": Case(64, lambda z, y: torch.logsumexp(z, 1), size=(10, 17)),
    "odd groups of channels": Case(60, lambda z, y: torch.softmax(split(z, 5, 12), 2)),
    "1 dimension": Case(24, lambda z, y: z.amax(1) + y, (3, 9), (9,)),
    "3 dimensions": Case(24, lambda z, y: torch.logsumexp(z, 1) * 2, (1,), (2, 3, 5)),
    "one pixel": Case(24, lambda z, y: torch.softmax(z, 1) + y, (1,), (1, 1, 1)),
    "16 bits": Case(48, lambda z, y: torch.softmax(z.float() * 0.05, 1), (1,), (2, 3, 5),
                    torch.bfloat16),
}  # fmt: skip
MANY_TILES = 128  # channels of the models that are tried in every tile
# name -> what starts a kernel of its own, and why
APART: dict[str, tuple[Case, str]] = {
    "too many channels": (Case(264, lambda z, y: z.amax(1)), "a row of 264 does not fit a tile"),
    "groups": (Case(64, lambda z, y: z.amax(1), groups=2), "does not fit the columns of a tile"),
    "transposed": (Case(64, lambda z, y: z.amax(1), transposed=True), "over other elements"),
    "pixels": (Case(64, lambda z, y: z.mean((2, 3))), "over other elements"),
    "channels and pixels": (Case(64, lambda z, y: z.mean((1, 2, 3))), "over other elements"),
    "a part of the channels": (Case(64, lambda z, y: split(z, 4, 16).amax(1)), "over other elem"),
}


def planned(case: Case) -> Plan:
    module, inputs = case.model()
    graph, _ = rewrite(capture(module, inputs).graph)
    rounds = lambda _: True  # noqa: E731
    return plan(lower_for_target(convolution(graph, GPU, probe=rounds), GPU), GPU, ANCHORS)


def kernel_of(made: Plan) -> Kernel:
    (kernel,) = made.kernels
    assert not made.libraries
    assert kernel.anchor is not None
    assert kernel.anchor.op in CONVOLUTIONS
    return kernel


@dataclass(frozen=True)
class Tail:
    """A kernel's body in some of its tiles, the sums of its conv as [images, pixels,
    channels], what its tensors hold, and what it must compute, by position among them."""

    bodies: list[tuple[KernelText, str]]
    sums: Tensor
    tensors: list[Tensor]
    wanted: dict[int, Tensor]


def tail_of(case: Case) -> Tail:
    """All values by PyTorch."""
    made = planned(case)
    kernel, graph = kernel_of(made), made.graph
    layout = nest(kernel, graph)
    chosen = default_strategy(layout, StrategyContext(GPU, graph))
    printed = kernel_text(layout, chosen)
    module, inputs = case.model()
    nodes = [p.node for p in printed.pointers]
    assert kernel.anchor is not None
    state = state_of(capture(module, inputs), module)
    product, *values = interpreted([kernel.anchor, *nodes], graph, inputs, state)
    written = [p.written for p in printed.pointers]
    given = [torch.zeros_like(v) if w else v for v, w in zip(values, written, strict=True)]
    wanted = {k: values[k] for k, w in enumerate(written) if w}
    assert isinstance(chosen, ConvTile)
    ways = {(chosen.width, 1), (chosen.width, chosen.vector)}
    if case.channels == MANY_TILES:
        every = tiles(variant_of(kernel.anchor), kernel.anchor, kernel.reduction)
        ways |= {(found.width, chosen.vector) for found in every}
    bodies = [(printed, f"{w}, {segment(kernel)}, {v}") for w, v in sorted(ways)]
    return Tail(bodies, product.flatten(2).mT.float().contiguous(), given, wanted)


@pytest.mark.compiler
def test_every_tail_that_joins(tmp_path: Path) -> None:
    """With sums that are not finite where they should be."""
    found = [tail_of(case) for case in JOINED.values()]
    every = library([each for tail in found for each in tail.bodies], tmp_path)
    numbers = itertools.count()
    for tail, chosen in [(case, way) for case in found for _, way in case.bodies]:
        function = getattr(every, f"tile_{next(numbers)}")
        wrong, tensors = tail.sums.clone(), [t.clone() for t in tail.tensors]
        wrong.view(-1)[::37], wrong.view(-1)[5::41] = math.nan, math.inf
        addresses = [ctypes.c_void_p(t.data_ptr()) for t in (wrong, tail.sums, *tensors)]
        images, pixels, channels = tail.sums.shape
        function(*addresses, ctypes.c_long(images), pixels, channels)
        for k, wanted in tail.wanted.items():
            torch.testing.assert_close(tensors[k], wanted, rtol=1e-4, atol=1e-5, msg=chosen)


@pytest.mark.parametrize("name", APART)
def test_what_does_not_join_says_why(name: str) -> None:
    case, why = APART[name]
    made = planned(case)
    assert len(made.kernels) == 2
    assert any(why in note for note in made.notes), made.notes


def source(cases: dict[str, Case], width: int = 0) -> str:
    """The kernels of some models; width: of their tiles, if not by default."""
    kernels = []
    for k, case in enumerate(cases.values()):
        made = planned(case)
        layout = nest(replace(kernel_of(made), name=f"conv_{k}"), made.graph)
        chosen = default_strategy(layout, StrategyContext(GPU, made.graph))
        if width:
            assert isinstance(chosen, ConvTile)
            assert layout.kernel.anchor is not None
            shape = TileShape(width, chosen.swap_operands)
            tile = tile_of(layout.kernel.anchor, shape, layout.kernel.reduction)
            chosen = replace(tile, vector=chosen.vector)
        kernels.append(kernel_text(layout, chosen))
    return cuda_source(kernels, GPU)


def test_golden(update_golden: bool) -> None:
    text = source({"softmax": JOINED["softmax"]})
    text = text[text.index("struct conv_0") :]
    path = GOLDEN_FOLDER / "convolution" / "softmax_of_channels.txt"
    if update_golden:
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "pytest --update-golden"


# One of each shape: whole boxes of 64, 128 and 256 columns, pieces of them, and what fills none.
SHAPES = ("logsumexp", "layer norm", "odd groups of channels", "as many as fit", "16 bits")


@pytest.mark.compiler
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
def test_they_stay_in_registers(tmp_path: Path) -> None:
    report = strict_report(
        source({name: JOINED[name] for name in SHAPES}), tmp_path / "reductions.cu"
    )
    kernels = [k for k in usages(report) if "conv_kernel" in k.name]
    assert {k.name for k in kernels if k.stack_bytes or k.spill_bytes} == set()
    assert len(kernels) >= len(SHAPES)
    assert re.findall(r"C75\d\d.*", report) == []  # ptxas made wgmma wait for each other


@pytest.mark.compiler
@pytest.mark.skipif(nvrtc_folder() is None, reason="no NVRTC 12.1.105 here")
def test_the_oldest_supported_compiler_takes_them() -> None:
    folder = nvrtc_folder()
    assert folder is not None
    some = {name: JOINED[name] for name in ("logsumexp", "odd groups of channels")}
    assert nvrtc_log(folder, source(some), "compute_90a") == (0, "")


class Reduced(nn.Module):
    def __init__(self, channels: int, reduction: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.reduction = nn.Conv2d(64, channels, 3), reduction

    def forward(self, x: Tensor) -> Tensor:
        return self.reduction(self.conv(x))


@pytest.mark.slow
@pytest.mark.parametrize(("channels", "reduction", "side", "kernels"), [
    (128, lambda z: z.logsumexp(1), 24, 1),
    (128, lambda z: z.softmax(1), 24, 1),
    (256, lambda z: z.amax(1), 24, 1),
    (256, lambda z: z.softmax(1), 24, 2),
    (96, lambda z: z.softmax(1), 24, 2),
    (128, lambda z: z.unflatten(1, (32, 4)).amax(2), 24, 2),
    (128, lambda z: z.logsumexp(1), 9, 2),
])  # fmt: skip
def test_reductions_join_where_that_was_measured_to_be_faster(
    channels: int,
    reduction: Callable[[Tensor], Tensor],
    side: int,
    kernels: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(epilogue, "_check_worth", CHECK_WORTH)
    module, x = Reduced(channels, reduction), torch.randn(4, 64, side, side)
    assert len(make(module, [x], GPU).kernels) == kernels
