"""Convolutions of images that lie channels last: which join, on which tiles, what their kernels do.

None of this needs a GPU; those that do are in tests/gpu/test_conv_channels_last.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusewright.codegen.cuda_source import cuda_source
from fusewright.frontend.float32_precision import CONV_USES_TF32
from fusewright.fusion.planner import plan
from fusewright.ir.graph import Graph, times, toposort
from fusewright.kernels.conv import match
from fusewright.kernels.conv.channels_last import lies_last
from fusewright.kernels.conv.geometry import geometry
from fusewright.kernels.conv.match import convolution
from fusewright.kernels.conv.prologue import prologue
from fusewright.kernels.conv.tf32_probe import probe_expression
from fusewright.kernels.conv.variants import variant_of
from fusewright.kernels.interface import StrategyContext
from fusewright.kernels.registry import ANCHORS, default_strategy, kernel_text
from fusewright.loopnest.nest import nest
from fusewright.targets.target import TARGETS
from tests.kernels.conv.test_conv import GPU, LEAST_FLOPS, Tailed, graphs
from tests.kernels.conv.test_conv import convolutions as found_in
from tests.support import conv_subjects as convolutions
from tests.support.conv_subjects import CHUNKS, LAST
from tests.support.cuda_compilers import check_registers, nvrtc_folder, nvrtc_log, strict_report
from tests.support.emitting import emit_file
from tests.support.graphs import check_meaning, staged

needs_nvcc = pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
BOTH_TYPES = (torch.float32, torch.bfloat16)


@pytest.fixture(autouse=True, scope="module")
def small_ones_too() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(match, "LEAST_FLOPS", LEAST_FLOPS)
        yield


class Tail(nn.Module):
    """Batch norm's formula, an activation and a residual: all of it may follow a convolution."""

    def __init__(self, conv: nn.Module, channels: int) -> None:
        super().__init__()
        self.conv, self.norm = conv, nn.BatchNorm2d(channels).eval()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x))) + x


class Swapped(nn.Module):
    """The image and the result are views."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(64, 128, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))


# name -> the layer, the input's sizes, whether weights lie channels last, too
LAYERS: dict[str, tuple[nn.Module, tuple[int, ...], bool]] = {
    "plain": (nn.Conv2d(64, 128, 3, padding=1), (4, 64, 36, 36), True),
    "other weights": (nn.Conv2d(64, 128, 3, padding=(1, 0)), (4, 64, 36, 36), False),
    "odd channels": (nn.Conv2d(61, 127, 3, stride=(1, 2), dilation=2), (8, 61, 36, 36), True),
    "one image": (nn.Conv2d(64, 128, 3, bias=False), (1, 64, 68, 68), True),
    "one line": (nn.Conv2d(64, 128, (1, 5)), (4, 64, 1, 2048), True),
    "groups": (nn.Conv2d(120, 132, 3, padding=1, groups=2), (4, 120, 36, 36), True),
}


def laid_out(layer: nn.Module, shape: tuple[int, ...], weights: bool) -> tuple[nn.Module, Tensor]:
    form = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    layer = layer.to(memory_format=form if weights else torch.contiguous_format)
    return layer, torch.randn(shape).to(memory_format=form)


def kernels(graph: Graph) -> list[str]:
    made = plan(graph, GPU, ANCHORS)
    views = ("reshape", "permute", "expand")
    named = [[m.op for m in k.members if m.op not in views] for k in made.kernels]
    return [" ".join(ops) for ops in named]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", BOTH_TYPES, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_what_follows_joins_its_kernel(name: str, dtype: torch.dtype) -> None:
    layer, x = laid_out(*LAYERS[name])
    module = Tailed(layer).to(dtype)
    before, after = graphs(module, x.to(dtype))
    tail = "copy" if layer.bias is None else "add"
    assert kernels(after) == ["mul", f"conv {tail} relu add"]
    (n,) = found_in(after)
    g, m = geometry(n), variant_of(n).matrix(n)
    each = g.out_channels // g.groups
    assert (g.last, g.joined, m.columns) == (True, dtype.itemsize == 2, each)
    assert m.batches == times(1 if g.joined else g.images, g.groups)
    odd = g.in_channels // g.groups % 16 != 0
    whole = "other" not in name
    assert g.packs == ((True, True) if odd or not g.joined else (False, not whole))
    check_meaning(before, after, module, (x.to(dtype),))
    layer.float()


@pytest.mark.parametrize("dtype", BOTH_TYPES, ids=str)
def test_three_dimensions(dtype: torch.dtype) -> None:
    conv = nn.Conv3d(32, 64, 3, padding=1)
    layer, x = laid_out(conv, (4, 32, 6, 24, 24), True)
    module, x = Tailed(layer).to(dtype), x.to(dtype)
    if not layer(x).is_contiguous(memory_format=torch.channels_last_3d):
        pytest.skip("eager lays such results out otherwise on this processor")
    before, _ = staged(module, (x,), lambda g: g, "nothing")
    after = convolution(before, GPU, probe=lambda _: True)
    assert kernels(after) == ["mul", "conv add relu add"]
    check_meaning(before, after, module, (x,))


# The layer, whether weights lie channels last, and the launch in float32 that rounds as TF32 does.
BACK = {
    "even": (nn.ConvTranspose2d(64, 96, 4, 2, 1), True, "<256, true, 0, 4, 64, 1, true>"),
    "odd": (nn.ConvTranspose2d(66, 135, 3, 2, groups=3), False, "<64, false, 0, 1, 32, 2, false>"),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", BOTH_TYPES, ids=str)
@pytest.mark.parametrize("name", BACK)
def test_phases_of_transposed_ones_have_products_of_their_own(
    name: str, dtype: torch.dtype
) -> None:
    given, weights, launch = BACK[name]
    layer, x = laid_out(given, (8, given.in_channels, 28, 26), weights)
    module, x = Tailed(layer).to(dtype), x.to(dtype)
    before, after = graphs(module, x)
    assert kernels(after) == ["mul", "conv_transpose add relu add"]
    (n,) = found_in(after)
    g, m = geometry(n), variant_of(n).matrix(n)
    assert g.phases is not None
    assert (g.phases.stacked, g.joined) == ((1, 1, 1), False)
    assert m.batches == times(g.images, 4 * g.groups)
    assert (m.rows, m.columns) == (g.pixels, g.out_channels // g.groups)
    assert g.packs == (name == "odd" or dtype is torch.float32, True)
    if dtype is torch.float32:
        kernel = plan(after, GPU, ANCHORS).kernels[-1]
        chosen = default_strategy(nest(kernel, after), StrategyContext(GPU, after))
        layout = nest(kernel, after)
        entry = cuda_source([kernel_text(layout, chosen)], GPU)
        assert (
            f"run_conv_transpose_channels_last{launch}(body, left, right, shape, workspace" in entry
        )
    check_meaning(before, after, module, (x,))
    layer.float()


@pytest.mark.parametrize("dtype", BOTH_TYPES, ids=str)
def test_batch_norm_and_a_residual_join(dtype: torch.dtype) -> None:
    layer, x = laid_out(nn.Conv2d(64, 64, 3, padding=1, bias=False), (8, 64, 36, 36), True)
    module = Tail(layer, 64).to(dtype)
    before, after = graphs(module, x.to(dtype))
    (members,) = kernels(after)
    assert members.startswith("conv copy ")
    assert after.outputs[0].order == (0, 2, 3, 1)
    check_meaning(before, after, module, (x.to(dtype),))


@pytest.mark.parametrize("dtype", BOTH_TYPES, ids=str)
def test_views_are_read_where_they_lie(dtype: torch.dtype) -> None:
    module, x = Swapped().to(dtype), torch.randn(16, 36, 36, 64).to(dtype)
    before, after = graphs(module, x)
    assert kernels(after) == ["conv add sigmoid"]
    (n,) = found_in(after)
    assert [plan.tensor.op for plan in prologue(n).operands] == ["input", "parameter"]
    check_meaning(before, after, module, (x,))


@pytest.mark.parametrize("shape", [(8, 256, 20, 18), (8, 256, 37, 7)])
def test_single_pixels_of_16_bits_are_a_product(shape: tuple[int, ...]) -> None:
    layer, x = laid_out(nn.Conv2d(256, 512, 1), shape, True)
    module = Tailed(layer).bfloat16()
    before, after = graphs(module, x.bfloat16())
    assert kernels(after) == ["mul", "matmul add relu add"]
    kernel = plan(after, GPU, ANCHORS).kernels[-1]
    layout = nest(kernel, after)
    chosen = default_strategy(layout, StrategyContext(GPU, after))
    entry = cuda_source([kernel_text(layout, chosen)], GPU)
    assert (
        "half_gemm_operand<bfloat_t>{left, 0, 256}, half_gemm_operand<bfloat_t>{right, 0, 256}"
        in entry
    )
    check_meaning(before, after, module, (x.bfloat16(),))


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (nn.ConvTranspose2d(64, 96, 2, stride=3).bfloat16(), "some of its results see no pixel"),
        (nn.Conv2d(64, 128, 3, bias=False).bfloat16(), "without a tail, PyTorch's own is as fast"),
    ],
    ids=["no taps", "no tail"],
)
def test_what_stays_with_the_library(layer: nn.Module, why: str) -> None:
    x = laid_out(layer, (8, 64, 36, 36), True)[1].to(next(layer.parameters()).dtype)
    _, after = graphs(layer, x)
    (call,) = (n for n in toposort(after.roots) if n.op == "library")
    assert why in str(call.call.why_library)


# The layer, whether PyTorch's own rounds, and what its launch is.
LAUNCHES = (
    (nn.Conv2d(256, 512, 3), False, "<128, false, 0, 4, 64, 1, true, 2>"),
    (nn.Conv2d(256, 512, 1), False, "<128, false, 0, 4, 64, 1, true, 2>"),
    (nn.Conv2d(256, 130, 3, groups=2), False, "<64, false, 0, 1, 64, 1, true, 2, true>"),
    (nn.Conv2d(256, 264, 3, groups=2), True, "<128, false, 0, 4, 64, 1, true, 1, true>"),
)


@pytest.mark.slow
@pytest.mark.parametrize(("layer", "rounds", "launch"), LAUNCHES, ids=str)
def test_groups_and_full_float32(layer: nn.Module, rounds: bool, launch: str) -> None:
    layer, x = laid_out(layer, (8, 256, 20, 18), True)
    before, after = graphs(Tailed(layer), x, lambda _: rounds)
    kernel = plan(after, GPU, ANCHORS).kernels[-1]
    layout = nest(kernel, after)
    chosen = default_strategy(layout, StrategyContext(GPU, after))
    entry = cuda_source([kernel_text(layout, chosen)], GPU)
    assert f"run_conv_channels_last{launch}(body, left, right, shape, workspace" in entry
    assert after.outputs[0].order == (0, 2, 3, 1)
    check_meaning(before, after, Tailed(layer), (x,))


def test_other_targets_keep_the_library() -> None:
    layer, x = laid_out(*LAYERS["plain"])
    before, _ = graphs(layer, x)
    after = convolution(before, TARGETS["sm_80"])
    (call,) = (n for n in toposort(after.roots) if n.op == "library")
    assert "does not lie channel by channel" in str(call.call.why_library)


class Reduced(nn.Module):
    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.conv(x), 1)


@pytest.mark.parametrize("dtype", BOTH_TYPES, ids=str)
def test_reductions_over_channels_have_kernels_of_their_own(dtype: torch.dtype) -> None:
    layer, x = laid_out(*LAYERS["plain"])
    module = Reduced(layer).to(dtype)
    before, after = graphs(module, x.to(dtype))
    assert [ops.split()[0] for ops in kernels(after)] == ["conv", "max"]
    assert variant_of(found_in(after)[0]).reduces_over is None
    check_meaning(before, after, module, (x.to(dtype),))
    layer.float()


def test_an_image_of_another_order_stays() -> None:
    layer = nn.Conv2d(64, 128, 3).to(memory_format=torch.channels_last)
    x = torch.randn(64, 36, 8, 36).permute(2, 0, 1, 3)
    _, after = graphs(Tailed(layer), x)
    (call,) = (n for n in toposort(after.roots) if n.op == "library")
    assert "neither channel by channel nor channels last" in str(call.call.why_library)


def test_what_lies_channels_last() -> None:
    module, x = Swapped(), torch.randn(16, 36, 36, 64)
    nodes = toposort(graphs(module, x)[0].roots)
    view, plain = (next(n for n in nodes if n.op == op) for op in ("permute", "input"))
    assert lies_last(view)
    assert not lies_last(plain)


def test_the_question_about_rounding_has_their_layout() -> None:
    for name, weights in (("plain", True), ("other weights", False)):
        layer, x = laid_out(*LAYERS[name])
        (n,) = found_in(graphs(Tailed(layer), x)[1])
        assert probe_expression(n).endswith(f", device, last=(True, {weights}))")


@pytest.mark.parametrize("last", [(True, True), (True, False), (False, False)])
def test_the_answer_is_of_that_layout(
    last: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    scope: dict[str, Any] = {"torch": torch}
    exec(CONV_USES_TF32, scope)
    seen = []

    def convolve(x: Tensor, weight: Tensor, *more: Any) -> Tensor:
        form = {"memory_format": torch.channels_last}
        seen.append((x.is_contiguous(**form), weight.is_contiguous(**form)))
        return nn.functional.conv2d(x, weight, *more)

    shapes, settings = ((2, 4, 8, 8), (6, 4, 3, 3)), ((1, 1), (0, 0), (1, 1), 1, "cpu")
    assert scope["_fusewright_conv_uses_tf32"](convolve, *shapes, *settings, last=last) is False
    assert seen == [last, last]


PROBLEM = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        conv = nn.Conv2d(64, 128, 3, padding=1, dtype=torch.{dtype})
        self.conv = conv.to(memory_format=torch.{form})

    def forward(self, x):
        return torch.relu(self.conv(x))


def get_inputs():
    x = torch.randn(8, 64, 36, 36, dtype=torch.{dtype})
    return [x.to(memory_format=torch.channels_last)]


def get_init_inputs():
    return []
"""
EMITTED = {
    ("bfloat16", "channels_last"): ("64, 1, true>(body, left, right, shape, nullptr", False),
    ("bfloat16", "contiguous_format"): ("64, 1, false>(body, left, right, shape, workspace", True),
    ("float32", "channels_last"): ("64, 1, true>(body, left, right, shape, workspace", True),
}


@pytest.mark.parametrize(("dtype", "form"), EMITTED)
def test_the_emitted_file(dtype: str, form: str, tmp_path: Path) -> None:
    problem = tmp_path / "last.py"
    problem.write_text(PROBLEM.format(dtype=dtype, form=form), encoding="utf-8")
    text = emit_file(problem, tmp_path, "sm_90a", {}).text
    launch, scratch = EMITTED[dtype, form]
    assert launch in text
    assert ("workspace = torch.empty(" in text) is scratch
    assert ("_fusewright_aligned(x)" in text) is (dtype == "bfloat16")


# ---- compilation ---------------------------------------------------------------------------------

BODIES = ("bias_relu", "residual")
CHOSEN = [s for s in LAST if s.width == 256 and s.body in BODIES and s.dtype is not torch.float16]


@pytest.mark.compiler
@needs_nvcc
def test_the_widest_tiles_stay_in_registers(tmp_path: Path) -> None:
    report = strict_report(convolutions.source(CHOSEN), tmp_path / "last.cu")
    check_registers(report, "conv_kernel", len(CHOSEN))


@pytest.mark.compiler
@pytest.mark.skipif(nvrtc_folder() is None, reason="no NVRTC 12.1.105 here")
def test_the_oldest_supported_compiler_takes_them() -> None:
    folder = nvrtc_folder()
    assert folder is not None
    some = [s for s in CHOSEN if s.chunk == 64 and s.body == "bias_relu"]
    assert nvrtc_log(folder, convolutions.source(some), "compute_90a") == (0, "")


def room_check(name: str, dtype: torch.dtype) -> str:
    """C++ that returns 1 where the skeleton packs something else, or more."""
    layer, shape, weights = LAYERS[name]
    layer, x = laid_out(layer, shape, weights)
    g = geometry(found_in(graphs(Tailed(layer).to(dtype), x.to(dtype))[1])[0])
    layer.float()
    sizes = (g.in_size, g.out_size, g.kernel, g.stride, g.pad, g.dilation)
    triples = ", ".join(f"{{{', '.join(map(str, t))}}}" for t in sizes)
    numbers = f"{shape[0]}, {g.groups}, {g.in_channels}, {g.out_channels}, {triples}"
    kind = {torch.float32: "float", torch.bfloat16: "bfloat_t"}[dtype]
    need = eval(g.packed_bytes.format(batch=shape[0]) or "0")
    image, weight, groups = (str(some).lower() for some in (*g.packs, g.groups > 1))
    return f"""  {{
    const channels_last_shape<{g.chunk}, {str(weights).lower()}, {kind}, {groups}>
        shape{{{{{numbers}}}}};
    if (shape.packs_image() != {image} || shape.packs_weights() != {weight}) return 1;
    const long need = packed_image_in<{g.chunk}>(nullptr, shape, packed);
    if (shape.packs_weights() && (need > {need} || need + 2000 < {need})) return 1;
  }}
"""


@pytest.mark.compiler
@needs_nvcc
def test_python_and_the_skeleton_agree_on_the_workspace(tmp_path: Path) -> None:
    names = ("plain", "other weights", "odd channels", "groups")
    checks = "".join(room_check(name, dtype) for name in names for dtype in BOTH_TYPES)
    convolutions.check_rooms("run_conv_channels_last", checks, tmp_path)


def test_every_tile_and_chunk_is_compiled() -> None:
    for dtype in {s.dtype for s in LAST}:
        some = [s for s in LAST if s.dtype is dtype]
        assert {s.chunk for s in some} == set(CHUNKS)
        assert {s.last for s in some} == {1, 2}
        found = {(s.width, s.blocks, s.swapped) for s in some}
        sides = (False, True)
        assert found >= {(w, 1, side) for w in convolutions.WIDTHS for side in sides}
        assert found >= {(64, 2, side) for side in sides}
