"""Library convolutions of full float32 -> kernels: which, their text, and how precise they are.

The arithmetic of the skeleton is told again here, step by step, and compared with plain float32
sums. None of this needs a GPU.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fusewright.codegen.cuda_source import cuda_source
from fusewright.codegen.device_library import select_sections
from fusewright.compiler.compilation import make
from fusewright.fusion.planner import plan
from fusewright.ir.graph import Node, toposort
from fusewright.kernels.conv import match
from fusewright.kernels.conv.geometry import geometry
from fusewright.kernels.conv.match import convolution
from fusewright.kernels.conv.tile import ConvTile
from fusewright.kernels.conv.variants import CONV_FLOAT32, FEW_CHANNELS, FLOAT32_WIDTHS, variant_of
from fusewright.kernels.gemm import variants as gemm
from fusewright.kernels.interface import StrategyContext, Tf32Probe
from fusewright.kernels.registry import ANCHORS, default_strategy, kernel_text
from fusewright.loopnest.nest import nest
from fusewright.report.decision_record import step_reports
from fusewright.targets.target import TARGETS, Target
from tests.kernels.conv.test_conv import GPU, LAYERS, LEAST_FLOPS, Tailed, convolutions, graphs
from tests.support import conv_subjects as subjects
from tests.support.conv_subjects import FULL
from tests.support.cuda_compilers import check_registers, nvrtc_folder, nvrtc_log, strict_report
from tests.support.emitting import emit_file
from tests.support.folders import EXAMPLES
from tests.support.graphs import check_meaning, staged


@pytest.fixture(autouse=True, scope="module")
def small_ones_too() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(match, "LEAST_FLOPS", LEAST_FLOPS)
        yield


MEASURED = dict(match.LEAST_FLOPS)


def never(_: object) -> bool:
    """As a GPU answers whose convolutions do not round."""
    return False


# ---- which, and their text -----------------------------------------------------------------------

PACKED = ("plain", "same, even", "groups", "3 dimensions", "transposed, odd", "transposed, groups")
# What cuDNN mostly computes in full float32.
UNROUNDED: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "one pixel, strided": (nn.Conv2d(64, 512, 1, stride=2), (8, 64, 96, 96)),
    "groups": (nn.Conv2d(128, 128, 3, groups=2), (4, 128, 36, 36)),
    "few channels": (nn.Conv2d(12, 48, 5), (8, 12, 64, 64)),
    "transposed, far apart": (nn.ConvTranspose2d(64, 512, 2, stride=3), (8, 64, 96, 96)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKED)
def test_what_follows_joins_its_kernel(name: str) -> None:
    layer, shape = LAYERS[name]
    _, after = graphs(Tailed(layer), torch.randn(shape), never)
    made = plan(after, GPU, ANCHORS)
    (n,) = convolutions(after)
    names = ["mul", f"{n.op} {'copy' if layer.bias is None else 'add'} relu add"]
    assert [" ".join(m.op for m in k.members) for k in made.kernels] == names
    kernel = made.kernels[-1]
    layout = nest(kernel, after)
    chosen = default_strategy(layout, StrategyContext(GPU, after))
    assert isinstance(chosen, ConvTile)
    assert chosen.width in (*FLOAT32_WIDTHS, FEW_CHANNELS)
    entry = cuda_source([kernel_text(layout, chosen)], GPU)
    g = geometry(n)
    last = f"{g.phases.stacked[2]}, 2" if g.phases else "2"
    assert f", {g.chunk}, 1, {last}>(body, left, right, shape" in entry


@pytest.mark.parametrize("name", UNROUNDED)
def test_what_eager_does_not_round(name: str) -> None:
    layer, shape = UNROUNDED[name]
    _, after = graphs(layer, torch.randn(shape), None)
    (n,) = convolutions(after)
    assert variant_of(n).numeric == CONV_FLOAT32.numeric == gemm.GEMM_PACKED.numeric
    assert not plan(after, GPU, ANCHORS).libraries


def one_of(layer: nn.Module, shape: tuple[int, ...], target: Target) -> list[Node]:
    """What of the products' kind a layer becomes, whose meaning stays."""
    x = torch.randn(shape)
    before, after = staged(layer, (x,), lambda g: convolution(g, target, probe=never), "full")
    check_meaning(before, after, layer, (x,))
    return [n for n in toposort(after.roots) if n.row.kind == "contraction"]


def test_single_pixels_are_packed_where_a_kernel_packs() -> None:
    layer, shape = LAYERS["one pixel"]
    (packed,), (read,) = (one_of(layer, shape, TARGETS[name]) for name in ("sm_90a", "sm_80"))
    assert variant_of(packed) is CONV_FLOAT32
    assert gemm.variant_of(read) is gemm.GEMM_PACKED


# Rows that do not start at 16 bytes; tiles that would be half empty.
@pytest.mark.slow
@pytest.mark.parametrize("channels", [(66, 512), (256, 64), (256, 144)])
def test_single_pixels_that_no_product_takes(channels: tuple[int, int]) -> None:
    assert not one_of(nn.Conv2d(*channels, 1), (8, channels[0], 64, 64), TARGETS["sm_80"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("channels", "results", "side", "images", "rounded", "bare", "full"),
    [
        (63, 64, 3, 4, 0, 0, 0),
        (64, 64, 3, 4, 1, 1, 1),
        (64, 32, 3, 8, 1, 1, 1),
        (64, 8, 3, 400, 1, 0, 0),  # tiles are empty
        (256, 96, 1, 8, 0, 0, 1),  # of many channels, few results
        (192, 96, 1, 8, 1, 0, 1),
        (192, 192, 1, 8, 1, 1, 1),
        (128, 32, 1, 64, 1, 1, 1),
        (96, 32, 1, 64, 0, 0, 1),  # of chunks that are not whole
        (64, 16, 1, 250, 0, 0, 1),
    ],
)
def test_the_smallest_that_pay(
    channels: int,
    results: int,
    side: int,
    images: int,
    rounded: int,
    bare: int,
    full: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Below and above 0.23 GFLOP, and, of single pixels that become fewer, 2^32."""
    monkeypatch.setattr(match, "LEAST_FLOPS", MEASURED)
    layer, x = nn.Conv2d(channels, results, side, padding=side // 2), (channels, 28, 28)

    def kernels(layer: nn.Module, images: int, rounds: Tf32Probe) -> int:
        return len(convolutions(graphs(layer, torch.empty(images, *x), rounds)[1]))

    assert kernels(Tailed(layer), images, bool) == rounded
    assert kernels(layer, images, bool) == bare
    assert kernels(Tailed(layer), images, never) == kernels(layer, images, never) == full
    assert kernels(layer, 3600, bool) == kernels(layer, 3600, never) == int(results > 8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layer", "shape", "bare", "rounded", "full"),
    [
        (nn.Conv2d(16, 32, 3, padding=1), (64, 16, 28, 28), True, 1, 0),  # nothing behind it
        (nn.Conv2d(16, 32, 3, padding=1), (64, 16, 28, 28), False, 1, 1),
        (nn.Conv1d(256, 8, 5), (16, 256, 1000), True, 1, 0),
        (nn.ConvTranspose3d(160, 8, 3, dilation=2), (1, 160, 24, 24, 24), True, 0, 0),
        (nn.Conv2d(160, 8, 4, dilation=2), (8, 160, 64, 64), False, 1, 0),
        (nn.Conv2d(12, 8, 5, dilation=2), (32, 12, 96, 96), False, 1, 1),  # few channels
        (nn.ConvTranspose2d(96, 192, 5, dilation=2), (4, 96, 14, 14), False, 0, 0),  # deep sums
        (nn.ConvTranspose2d(96, 192, 5, dilation=2), (8, 96, 14, 14), False, 1, 1),
        (nn.ConvTranspose2d(128, 16, 3, padding=1), (4, 128, 56, 56), True, 1, 0),
        (nn.ConvTranspose2d(24, 24, 3, padding=1), (16, 24, 56, 56), True, 1, 1),
        (nn.Conv2d(256, 96, 1, stride=2), (32, 256, 56, 56), False, 0, 0),
        (nn.Conv1d(160, 64, 1, stride=2), (8, 160, 4096), False, 1, 1),
    ],
)
def test_the_waste_that_pays(
    layer: nn.Module,
    shape: tuple[int, ...],
    bare: bool,
    rounded: int,
    full: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Random ones that were measured [m: conv-0026]."""
    monkeypatch.setattr(match, "LEAST_FLOPS", MEASURED)
    module, x = layer if bare else Tailed(layer), torch.empty(shape)
    taken = [len(convolutions(graphs(module, x, rounds)[1])) for rounds in (bool, never)]
    assert taken == [rounded, full]


def test_short_sums_stay() -> None:
    _, after = graphs(nn.Conv2d(24, 512, 1), torch.randn(8, 24, 80, 80), never)
    (step,) = plan(after, GPU, ANCHORS).libraries
    assert "sums of 24 are more precise in PyTorch" in step.reason


@pytest.fixture
def no_tf32() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.mark.usefixtures("no_tf32")
def test_the_flag_decides(tmp_path: Path) -> None:
    sizes = {"batch_size": "8", "height": "36", "width": "36"}
    path = EXAMPLES / "conv_relu_bias.py"
    text = emit_file(path, tmp_path, "sm_90a", sizes).text
    head = text.partition('"""')[0]
    assert "ieee: full float32 from float16 terms" in head
    assert "three products" in head
    assert "_fusewright_conv_uses_tf32(" not in text
    assert re.search(r"run_conv<\d+, \w+, 0, \d, 64, 1, 2>", text)


POINTWISE = """import torch


class Model(torch.nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = torch.nn.Conv2d(channels, 512, 1)

    def forward(self, x):
        return torch.relu(self.conv(x))


def get_inputs():
    return [torch.randn(4, 256, 18, 18)]


def get_init_inputs():
    return [256]
"""


@pytest.mark.parametrize(("target", "kernel"), [("sm_90a", "conv"), ("sm_80", "matmul")])
@pytest.mark.usefixtures("no_tf32")
def test_single_pixels_do_not_ask_about_products(tmp_path: Path, target: str, kernel: str) -> None:
    problem = tmp_path / "pointwise.py"
    problem.write_text(POINTWISE, encoding="utf-8")
    emitted = emit_file(problem, tmp_path, target)
    assert [r.numeric.name for r in emitted.made.notes.rows] == [f"float32, {kernel} as ieee"]
    assert "_fusewright_full_float32" not in emitted.text


@pytest.mark.parametrize("tf32", [True, False])
def test_predictions_know_how_pytorch_computes(*, tf32: bool) -> None:
    """A convolution that stays PyTorch's, in both plans that there are."""
    layer, x = nn.Conv2d(64, 128, 3), torch.randn(1, 64, 128, 128)[0]
    was = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = tf32
    try:
        found = [make(layer, [x], GPU, precision) for precision in ("eager", "ieee")]
        eager, ieee = (step_reports(m.plan, {})[0] for m in found)
    finally:
        torch.backends.cudnn.allow_tf32 = was
    rates = GPU.machine.matmul_flops, GPU.machine.tf32_flops
    assert eager.predicted_s == pytest.approx(eager.flops / rates[tf32])
    assert ieee.predicted_s == pytest.approx(ieee.flops / rates[0])


# ---- how it compiles -----------------------------------------------------------------------------

needs_nvcc = pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
# Chunks differ in constants only, and narrow tiles need fewer registers.
COMPILED = tuple(
    s
    for s in FULL
    if s.width == 128
    and (s.vector == 4 if s.chunk == 64 else s.chunk == 16 and s.body == "copy")
    and s.together in (0, 2)
    and s.body != "bias_sigmoid"
)


def test_every_tile_is_there() -> None:
    found = {(s.width, s.swapped, s.chunk, s.vector) for s in FULL if not s.together}
    of_any = {some for some in found if some[0] in FLOAT32_WIDTHS}
    assert len(of_any) == len(FLOAT32_WIDTHS) * 2 * len(subjects.CHUNKS) * 2
    assert {some[:3] for some in found - of_any} == {
        (FEW_CHANNELS, True, chunk) for chunk in subjects.CHUNKS
    }
    assert {s.together for s in FULL} == {0, *subjects.TOGETHER}


@pytest.mark.compiler
@needs_nvcc
def test_every_schedule_stays_in_registers(tmp_path: Path) -> None:
    report = strict_report(subjects.source(COMPILED), tmp_path / "full.cu")
    check_registers(report, "conv_kernel", len(COMPILED))


@pytest.mark.compiler
@pytest.mark.skipif(nvrtc_folder() is None, reason="no NVRTC 12.1.105 here")
def test_the_oldest_supported_compiler_takes_them() -> None:
    folder = nvrtc_folder()
    assert folder is not None
    some = [s for s in COMPILED if s.body == "bias_relu"]
    assert nvrtc_log(folder, subjects.source(some), "compute_90a") == (0, "")


# ---- how precise it is ---------------------------------------------------------------------------

LIFT, CHUNK, STEP, EVEN = 2048.0, 64, 16, 2.0**-11


def power_for(most: float, target: int) -> float:
    """`scale_exponent`: the power of two that brings `most` to 2^target."""
    return 2.0 ** min(127, target - math.frexp(most)[1] + 1) if most else 1.0


def split(x: Tensor, power: Tensor | float) -> tuple[Tensor, Tensor]:
    """Both parts of scaled float32 numbers, the second one lifted, as float64."""
    scaled = (x.double() * power).float()
    high = scaled.half().float()
    return high.double(), ((scaled - high) * LIFT).half().double()


def cut(x: Tensor, size: Tensor) -> Tensor:
    """What a tensor core keeps of a sum: bits from 2^-23 of the largest of its operands on."""
    step = torch.exp2(torch.floor(torch.log2(size.clamp(min=1e-300))) - 23)
    return torch.trunc(x / step) * step


def add_step(total: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """`total` and STEP products more."""
    products = left[:, :, None] * right[None]
    size = torch.maximum(products.abs().amax(1), total.abs())
    return cut(total + products.sum(1), size)


def kernels_sums(weight: Tensor, patches: Tensor, image_power: float) -> Tensor:
    """The kernel's sums of [rows, k] times [k, pixels]."""
    rows = torch.tensor([power_for(float(row.abs().max()), 14) for row in weight])[:, None]
    (w, lost_w), (x, lost_x) = split(weight, rows), split(patches, image_power)
    total = torch.zeros(len(weight), patches.shape[1])
    small = torch.zeros_like(total, dtype=torch.float64)
    for first in range(0, weight.shape[1], CHUNK):
        large = torch.zeros_like(small)
        for k in range(first, min(first + CHUNK, weight.shape[1]), STEP):
            here = slice(k, k + STEP)
            large = add_step(large, w[:, here], x[here])
            small = add_step(small, lost_w[:, here], x[here])
            small = add_step(small, w[:, here], lost_x[here])
        total = total + large.float()
    return ((total.double() + small / LIFT).float().double() / rows / image_power).float()


def plain_sums(weight: Tensor, patches: Tensor) -> Tensor:
    """In float32, with fused steps."""
    total = torch.zeros(len(weight), patches.shape[1])
    for w, x in zip(weight.double().T, patches.double(), strict=True):
        total = (total.double() + w[:, None] * x).float()
    return total


CHANNELS, SIZE, KERNEL = 64, 9, 3


def images() -> dict[str, Tensor]:
    torch.manual_seed(11)
    plain = torch.randn(1, CHANNELS, SIZE, SIZE)
    spike, fading, channels = (plain.clone() for _ in range(3))
    spike[0, 5, 4, 4] = 1e6
    fading *= torch.logspace(0, -6, SIZE)
    channels *= torch.logspace(0, -20, CHANNELS).view(-1, 1, 1)
    return {
        "plain": plain,
        "positive": plain.abs(),
        "relu": plain.relu(),
        "spike": spike,
        "fading": fading,
        "channels": channels,
        "huge": plain * 1e34,
        "tiny": plain * 1e-36,
        "subnormal": plain * 1e-40,
    }


@pytest.mark.parametrize("name", images())
@pytest.mark.parametrize("sampled", [False, True])
def test_sums_are_as_precise_as_plain_float32(name: str, *, sampled: bool) -> None:
    """Of every image that is not uneven, whether its scale is the one that a sample of it gave."""
    image = images()[name]
    weight = torch.randn(24, CHANNELS * KERNEL**2) / 24
    most = float(image.abs().max())
    power = power_for(most / 31, 10) if sampled else power_for(most, 14)
    assert most * power < 65504
    pixels = image.abs().amax(1)
    assert float(pixels[pixels > 0].min()) * power >= EVEN, "then plain sums would be taken"
    patches = functional.unfold(image, KERNEL)[0]
    exact = weight.double() @ patches.double()
    ours, theirs = (
        (made.double() - exact).norm(dim=0) / exact.norm(dim=0)
        for made in (kernels_sums(weight, patches, power), plain_sums(weight, patches))
    )
    # Pixel by pixel, over all channels: of each, and of most.
    assert bool((ours <= 1.5 * theirs).all())
    assert ours.median() <= theirs.median()


@pytest.mark.parametrize("depth", [64, 192, 1024])
def test_sums_of_sums_are_not_short(depth: int) -> None:
    """What a tensor core drops makes every sum smaller; the text gives it back."""
    text = select_sections("sm90", ["with_dropped_bits"])
    said = re.search(r"with_dropped_bits\(float x\) \{ return fmaf\(x, (\S+)f, x\)", text)
    assert said
    torch.manual_seed(16)
    weight, patches = torch.randn(96, depth), torch.randn(depth, 400)
    exact = weight.double() @ patches.double()
    sums = kernels_sums(weight, patches, power_for(float(patches.abs().max()), 14)).double()

    def larger(x: Tensor) -> float:
        return float(((x - exact) * exact).sum() / exact.square().sum())

    assert larger(sums) < -5e-8
    assert abs(larger((sums + sums * float.fromhex(said[1])).float().double())) < 3e-8


def test_what_two_parts_keep() -> None:
    """23 bits down to 2^-13, and what lies above 2^-36 of the rest."""
    sizes = torch.rand(10000) + 1
    for exponent in range(-30, 15):
        x = sizes * 2.0**exponent
        high, lost = split(x, 1.0)
        error = (high + lost / LIFT - x.double()).abs().max()
        assert error <= max(2.0 ** (exponent - 23), 2.0**-36)
