"""Depthwise convolutions -> maps of pieces: the same values, in one kernel with what follows.

Threads of the CPU run the CUDA text (tests/support/emulator/threads.py), so values need no GPU;
speed does.
"""

from __future__ import annotations

import copy
import ctypes
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fusewright.codegen.cuda_source import cuda_source
from fusewright.codegen.kernel_symbols import entry
from fusewright.compiler.compilation import Compilation, make
from fusewright.fusion.planner import plan
from fusewright.ir.graph import Graph, toposort
from fusewright.ir.interpreter import interpret
from fusewright.kernels.conv.match import convolution
from fusewright.kernels.pointwise.strategy import SlidingWindowMap
from fusewright.kernels.registry import ANCHORS
from fusewright.rewrite.target_lowering import lower_for_target
from fusewright.targets.compile_flags import cuda_flags
from fusewright.targets.target import TARGETS
from tests.kernels.conv.test_conv import Tailed
from tests.support.cuda_compilers import compile_text, nvrtc_folder, nvrtc_log
from tests.support.emulator.threads import library_of
from tests.support.graphs import check_meaning, staged

GPU, AMPERE = TARGETS["sm_90a"], TARGETS["sm_80"]
IMAGE = (3, 8, 20, 24)


def conv2d(*arguments: object, **more: object) -> nn.Module:
    return nn.Conv2d(8, *arguments, groups=8, **more)  # type: ignore[arg-type]


# name -> the layer, the image's sizes
LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "padded": (conv2d(8, 3, padding=1), IMAGE),
    "without bias": (conv2d(8, 3, bias=False), IMAGE),
    "strided": (conv2d(8, 3, stride=2, padding=1), IMAGE),
    "dilated": (conv2d(8, 3, padding=2, dilation=2), IMAGE),
    "uneven": (conv2d(8, (2, 5), stride=(1, 3), padding=(1, 0), dilation=(3, 1)), IMAGE),
    "same": (conv2d(8, (4, 2), padding="same"), IMAGE),
    "5 x 5": (conv2d(8, 5, padding=2), IMAGE),
    "7 x 7": (conv2d(8, 7, padding=3), IMAGE),
    "several results": (conv2d(24, 3, padding=1), IMAGE),
    "one tap": (conv2d(16, 1), IMAGE),
    "taps that no window has inside": (conv2d(8, 3, padding=8, dilation=8), (3, 8, 7, 5)),
    "1 dimension": (nn.Conv1d(6, 6, 4, padding=3, groups=6), (4, 6, 50)),
    "1 dimension, long": (nn.Conv1d(6, 6, 31, padding="same", groups=6), (4, 6, 50)),
    "3 dimensions": (nn.Conv3d(4, 8, 3, padding=1, stride=(1, 1, 2), groups=4), (2, 4, 6, 7, 10)),
    "one channel": (nn.Conv2d(1, 4, 3, padding=1), (3, 1, 20, 24)),
    "one image": (conv2d(8, 3, padding=1), (1, *IMAGE[1:])),
}
KEPT: dict[str, tuple[nn.Module, Tensor]] = {
    "many taps": (conv2d(8, 9), torch.randn(IMAGE)),
    "one channel, many taps": (nn.Conv2d(1, 4, 5), torch.randn(3, 1, 20, 24)),
    "two channels in a group": (nn.Conv2d(8, 8, 3, groups=4), torch.randn(IMAGE)),
    "channels last": (
        conv2d(8, 3).to(memory_format=torch.channels_last),
        torch.randn(IMAGE).to(memory_format=torch.channels_last),
    ),
    "no batch": (conv2d(8, 3), torch.randn(IMAGE[1:])),
    "double": (conv2d(8, 3).double(), torch.randn(IMAGE).double()),
    "transposed": (nn.ConvTranspose2d(8, 8, 3, groups=8), torch.randn(IMAGE)),
}
HALVES = (torch.float16, torch.bfloat16)


def graphs(module: nn.Module, x: Tensor) -> tuple[Graph, Graph]:
    return staged(module, (x,), lambda g: convolution(g, GPU), "convolution")


def library_calls(graph: Graph) -> list[object]:
    return [n.called for n in toposort(graph.roots) if n.op == "library"]


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_it_is_one_kernel_of_the_same_meaning(name: str) -> None:
    layer, shape = LAYERS[name]
    module, x = nn.Sequential(layer, nn.SiLU()), torch.randn(shape)
    before, after = graphs(module, x)
    check_meaning(before, after, module, (x,))
    made = plan(after, GPU, ANCHORS)
    (kernel,) = made.kernels
    assert not made.libraries
    assert all(leaf.row.kind == "leaf" for leaf in kernel.leaves), "nothing is stored in between"


@pytest.mark.slow
@pytest.mark.parametrize("name", KEPT)
def test_others_stay_library_calls(name: str) -> None:
    layer, x = KEPT[name]
    assert len(library_calls(graphs(Tailed(layer), x)[1])) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_image_that_is_computed_is_stored_once(dtype: torch.dtype) -> None:
    layer, shape = LAYERS["padded"]
    module = nn.Sequential(nn.ReLU(), copy.deepcopy(layer), nn.SiLU()).to(dtype)
    _, after = graphs(module, torch.randn(shape).to(dtype))
    found = plan(after, GPU, ANCHORS)
    assert [m.op for m in found.kernels[0].members] == ["relu"]
    assert [[n.dtype for n in k.outputs] for k in found.kernels] == [[dtype], [dtype]]


class Causal(nn.Module):
    """As in state-space models: what the padding adds behind the end is cut off."""

    def __init__(self, tail: nn.Module) -> None:
        super().__init__()
        self.conv = nn.Conv1d(6, 6, 4, padding=3, groups=6)
        self.tail = tail

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.tail(self.conv(x)[..., 2 : 2 + x.shape[-1] : 2])
        return y


def test_a_piece_of_it_is_computed_alone() -> None:
    module, x = Causal(nn.SiLU()), torch.randn(4, 6, 50)
    before, after = graphs(module, x)
    check_meaning(before, after, module, (x,))
    (kernel,) = plan(after, GPU, ANCHORS).kernels
    assert [n.shape[1:] for n in kernel.outputs] == [(6, 25)]


def test_a_piece_that_is_returned_stays_a_view() -> None:
    _, after = graphs(Causal(nn.Identity()), torch.randn(4, 6, 50))
    (kernel,) = plan(after, GPU, ANCHORS).kernels
    assert [n.shape[1:] for n in kernel.outputs] == [(6, 53)]


def test_on_the_cpu_it_stays_a_library_call() -> None:
    layer, shape = LAYERS["padded"]
    before, _ = graphs(Tailed(layer), torch.randn(shape))
    assert library_calls(convolution(before, TARGETS["cpu"]))


@torch.no_grad()
@pytest.mark.parametrize("name", ["padded", "strided", "same", "1 dimension", "3 dimensions"])
def test_taps_outside_of_the_image_do_not_exist(name: str) -> None:
    """Eager's CUDA kernel skips them: infinite weights matter only where they meet an element."""
    layer, shape = LAYERS[name]
    state = {"weight": layer.state_dict()["weight"].clone(), "bias": layer.state_dict()["bias"]}
    _, after = graphs(layer, torch.randn(shape))
    for place, value in ((0, torch.inf), (-1, torch.nan)):
        state["weight"].flatten(1)[:, place] = value
    (found,) = interpret(after, (torch.rand(shape) + 1,), state, dtype=torch.float64)

    def meets(place: int) -> Tensor:
        """Which windows have that tap inside."""
        weight = torch.zeros_like(state["weight"])
        weight.flatten(1)[:, place] = 1
        given = {"weight": weight, "bias": torch.zeros_like(state["bias"])}
        counted: Tensor = torch.func.functional_call(layer, given, (torch.ones(shape),))
        return counted > 0.5

    assert torch.equal(found.isnan(), meets(-1))
    assert torch.equal(found.isinf(), meets(0) & ~meets(-1))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_sums_of_16_bits_are_float32_and_rounded_once(dtype: torch.dtype) -> None:
    layer, shape = LAYERS["5 x 5"]
    module, x = layer.to(dtype), torch.randn(shape).to(dtype)
    _, after = graphs(module, x)
    layer.float()
    casts = [n for n in toposort(after.roots) if n.op == "cast" and n.dtype is dtype]
    assert len(casts) == 1
    assert all(n.dtype is torch.float32 for n in toposort(after.roots) if n.op == "masked_fma")


class Squeezed(nn.Module):
    """An inverted bottleneck's middle: what it stores, and the means of its channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv2d(8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.nn.functional.silu(self.norm(self.conv(x)))
        return y, y.mean((2, 3), keepdim=True)


def test_what_reduces_starts_its_own_kernel() -> None:
    """A reduction takes its elements one by one: nothing would be shared by neighbouring
    windows."""
    _, after = graphs(Squeezed().eval(), torch.randn(IMAGE))
    made = plan(lower_for_target(after, GPU), GPU, ANCHORS)
    assert [len(k.reductions) for k in made.kernels] == [0, 1]
    assert "mean starts its own kernel: a reduction would read each window alone" in made.notes


@cache
def made(name: str, dtype: torch.dtype, arch: str) -> Compilation:
    """As for images large enough to keep a GPU busy with threads of many results."""
    layer, shape = LAYERS[name]
    module = nn.Sequential(copy.deepcopy(layer).to(dtype), nn.LeakyReLU())
    given = TARGETS[arch]
    target = replace(given, machine=replace(given.machine, busy_threads=0))
    return make(module, [torch.randn(shape).to(dtype)], target)


# layer -> results of a thread below each other, and beside each other in each of those; how
# often it loads: a window alone would be taps x results. 0: too little is shared.
DOWN = {
    "padded": (4, 4, 6 * 3),
    "without bias": (3, 2, 5 * 3),
    "strided": (5, 1, 6 * 3),
    "dilated": (4, 2, 8 * 3),
    "same": (4, 4, 7 * 2),
    "5 x 5": (4, 4, 8 * 5),
    "7 x 7": (2, 4, 8 * 7),
    "several results": (4, 4, 6 * 3),
    "3 dimensions": (3, 1, 9 * 5),
    "one tap": (0, 4, 0),
    "1 dimension, long": (0, 1, 0),
}


# What is left of the rows, weights and limits of every kind, and sums of 16 bits.
RUN = [
    *(
        (n, torch.float32)
        for n in ("strided", "dilated", "uneven", "several results", "3 dimensions")
    ),
    *((n, torch.float32) for n in ("1 dimension", "taps that no window has inside")),
    ("padded", torch.float16),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", DOWN)
def test_windows_below_each_other_are_loaded_once(name: str) -> None:
    ((_, nest, strategy),) = made(name, torch.float32, "sm_90a").kernels
    below = strategy.results if isinstance(strategy, SlidingWindowMap) else 0
    loads = nest.down.loads(below) if nest.down else 0
    assert (below, strategy.vector, loads) == DOWN[name]


@pytest.mark.compiler
@torch.no_grad()
@pytest.mark.parametrize(("name", "dtype"), RUN)
def test_threads_compute_its_values(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    layer, shape = LAYERS[name]
    x = torch.randn(shape).to(dtype)
    for place, value in ((0, torch.nan), (3, torch.inf), (-1, -torch.inf)):
        x.view(shape[0], -1)[:, place] = value
    found = made(name, dtype, "sm_90a")
    ((body, _, _),) = found.kernels
    run = getattr(library_of(cuda_source(found.texts, GPU), tmp_path), entry(body.name))
    state = {k.removeprefix("0."): v.to(dtype) for k, v in layer.state_dict().items()}
    exact = {k: v.double() for k, v in state.items()}
    wanted = torch.nn.functional.leaky_relu(torch.func.functional_call(layer, exact, (x.double(),)))
    ours = torch.empty(wanted.shape, dtype=dtype)
    given = {"0.weight": state["weight"], "0.bias": state.get("bias")}
    tensors = [
        ours if p.written else x if p.node.op == "input" else given[str(p.node["name"])]
        for p in body.pointers
    ]
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in tensors if t is not None]
    assert run(*pointers, ctypes.c_long(shape[0]), 0, ctypes.c_void_p(0)) == 0
    close = 2e-6 if dtype is torch.float32 else 1e-3
    torch.testing.assert_close(ours.double(), wanted, rtol=close, atol=close, equal_nan=True)


@pytest.mark.compiler
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_its_kernels_stay_in_registers(arch: str, tmp_path: Path) -> None:
    names = [("7 x 7", torch.float32), ("strided", torch.bfloat16)]
    for name, dtype in names:
        text = cuda_source(made(name, dtype, arch).texts, TARGETS[arch])
        found = compile_text(text, cuda_flags(TARGETS[arch].arch), tmp_path)
        assert [k for k in found if k.stack_bytes or k.spill_bytes] == []

        folder = nvrtc_folder()
        assert folder is None or nvrtc_log(folder, text, "compute_80") == (0, "")
