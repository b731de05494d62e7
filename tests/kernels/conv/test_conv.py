"""Library convolutions -> convolution nodes -> kernels: which join, what they mean, their text."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fusewright.codegen.cuda_source import cuda_source
from fusewright.frontend.capture import capture
from fusewright.fusion.planner import plan
from fusewright.ir.graph import Graph, Node, show, toposort
from fusewright.kernels.conv import match
from fusewright.kernels.conv.geometry import CONVOLUTIONS, ConvGeometry, geometry
from fusewright.kernels.conv.launch import shape_statement
from fusewright.kernels.conv.match import convolution
from fusewright.kernels.conv.subpixel_phases import SubpixelPhases
from fusewright.kernels.conv.tf32_probe import probe_expression
from fusewright.kernels.conv.variants import variant_of
from fusewright.kernels.interface import StrategyContext, Tf32Probe
from fusewright.kernels.registry import ANCHORS, default_strategy, kernel_text
from fusewright.loopnest.nest import nest
from fusewright.rewrite.simplify import rewrite
from fusewright.targets.target import TARGETS
from tests.support.conv_subjects import check_rooms
from tests.support.emitting import Emitted, emit_file
from tests.support.folders import GOLDEN_FOLDER, ROOT
from tests.support.graphs import check_meaning, staged

GPU = TARGETS["sm_90a"]
# So that the layers here may be small.
MEASURED = match.LEAST_FLOPS
LEAST_FLOPS = dict.fromkeys(MEASURED, 1 << 28)


@pytest.fixture(autouse=True, scope="module")
def small_ones_too() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(match, "LEAST_FLOPS", LEAST_FLOPS)
        yield


class Tailed(nn.Module):
    """A convolution with something before and behind it."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x * 2)) + 1


# name -> the layer, the input's sizes; every one is large enough for a kernel
LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "plain": (nn.Conv2d(64, 128, 3), (4, 64, 36, 36)),
    "without bias": (nn.Conv2d(64, 128, 3, bias=False), (4, 64, 36, 36)),
    "padded, strided": (nn.Conv2d(64, 128, 3, stride=(2, 1), padding=(1, 2)), (8, 64, 36, 36)),
    "dilated": (nn.Conv2d(64, 128, 3, dilation=2), (4, 64, 38, 38)),
    "same": (nn.Conv2d(64, 128, 3, padding="same"), (4, 64, 34, 34)),
    "same, even": (nn.Conv2d(64, 128, (4, 2), padding="same"), (4, 64, 34, 34)),
    "valid": (nn.Conv2d(64, 128, 3, padding="valid"), (4, 64, 36, 36)),
    "groups": (nn.Conv2d(128, 128, 3, groups=2), (4, 128, 36, 36)),
    "1 dimension": (nn.Conv1d(64, 128, 5, padding=2), (4, 64, 2048)),
    "3 dimensions": (nn.Conv3d(32, 64, 3, stride=(1, 2, 1), padding=1), (4, 32, 6, 24, 24)),
    "one pixel": (nn.Conv2d(256, 512, 1), (4, 256, 18, 18)),
    "fixed batch": (nn.Conv2d(64, 128, 3), (1, 64, 68, 68)),
    "transposed": (nn.ConvTranspose2d(64, 48, 4, stride=2, padding=1), (4, 64, 36, 36)),
    "transposed, odd": (
        nn.ConvTranspose2d(64, 96, 3, stride=(2, 3), padding=(1, 0), output_padding=(1, 2)),
        (4, 64, 36, 33),
    ),
    "transposed, groups": (
        nn.ConvTranspose2d(128, 96, 5, stride=2, padding=3, dilation=(1, 3), groups=2, bias=False),
        (4, 128, 30, 30),
    ),
    "transposed, 1 dimension": (nn.ConvTranspose1d(64, 96, 8, stride=4, padding=2), (8, 64, 700)),
    "transposed, 3 dimensions": (
        nn.ConvTranspose3d(48, 48, (4, 2, 3), stride=(2, 2, 4)),
        (4, 48, 6, 14, 14),
    ),
    "transposed, stride 1": (nn.ConvTranspose2d(64, 96, 3, padding=1), (4, 64, 36, 36)),
}
LIBRARY: dict[str, tuple[nn.Module, tuple[int, ...], str]] = {
    "few channels": (
        nn.Conv2d(6, 128, 7, groups=2),
        (8, 6, 128, 128),
        "3 input channels fill too little",
    ),
    "depthwise, many taps": (
        nn.Conv2d(128, 128, 9, groups=128),
        (8, 128, 96, 96),
        "1 input channels fill too little",
    ),
    "transposed, few channels": (
        nn.ConvTranspose2d(4, 512, 4, stride=2),
        (8, 4, 196, 196),
        "4 input channels fill too little",
    ),
    "transposed, far": (
        nn.ConvTranspose3d(32, 64, 3, dilation=24, stride=2),
        (2, 32, 24, 24, 24),
        "does not fit a tensor map",
    ),
    "small": (nn.Conv2d(64, 64, 3), (1, 64, 6, 6), "1.18 MFLOP are too few"),
    "double": (nn.Conv2d(64, 128, 3).double(), (4, 64, 36, 36), "our kernels take no float64"),
    "large stride": (
        nn.Conv2d(64, 512, 9, stride=9, groups=2),
        (4, 64, 90, 90),
        "a stride above 8",
    ),
    "reach": (nn.Conv3d(32, 64, 3, dilation=12), (2, 32, 44, 44, 44), "does not fit a tensor map"),
    "no batch": (nn.Conv2d(64, 128, 3), (64, 70, 70), "it has no batch"),
}


def graphs(
    module: nn.Module, x: Tensor, rounds: Tf32Probe | None = lambda _: True
) -> tuple[Graph, Graph]:
    return staged(module, (x,), lambda g: convolution(g, GPU, probe=rounds), "convolution")


def convolutions(graph: Graph) -> list[Node]:
    return [n for n in toposort(graph.roots) if n.op in CONVOLUTIONS]


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_the_rewritten_graph_has_the_same_meaning(name: str) -> None:
    layer, shape = LAYERS[name]
    module, x = Tailed(layer), torch.randn(shape)
    before, after = graphs(module, x)
    assert len(convolutions(after)) == 1
    assert not [n for n in toposort(after.roots) if n.op == "library"]
    check_meaning(before, after, module, (x,))


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_what_follows_joins_its_kernel(name: str) -> None:
    layer, shape = LAYERS[name]
    _, after = graphs(Tailed(layer), torch.randn(shape))
    made = plan(after, GPU, ANCHORS)
    (n,) = convolutions(after)
    names = ["mul", f"{n.op} {'copy' if layer.bias is None else 'add'} relu add"]
    assert [" ".join(m.op for m in k.members) for k in made.kernels] == names
    assert not made.libraries


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_the_geometry_finds_every_pixel(name: str) -> None:
    """A convolution written out from the sizes alone, tap by tap."""
    layer, shape = LAYERS[name]
    module, x = Tailed(layer), torch.randn(shape, dtype=torch.float64)
    _, after = graphs(module, x.float())
    (n,) = convolutions(after)
    g = geometry(n)
    weight = module.conv.weight.detach().double()  # type: ignore[union-attr, operator]
    image = x.reshape(shape[0], shape[1], *g.in_size)
    if g.phases is not None:
        found = phase_by_phase(image, weight, g, g.phases)
        wanted = layer.double()(x)
        if layer.bias is not None:
            wanted -= layer.bias.detach().view(-1, *(1,) * (wanted.dim() - 2))  # type: ignore[operator]
        layer.float()
    else:
        found = by_hand(image, weight, g)
        wanted = type(layer)._conv_forward(layer, x, weight, None)  # type: ignore[attr-defined]
    torch.testing.assert_close(found.reshape(wanted.shape), wanted, rtol=1e-10, atol=1e-10)


def by_hand(x: Tensor, weight: Tensor, g: ConvGeometry) -> Tensor:
    weight = weight.reshape(g.out_channels, -1, *g.kernel)
    each, rows = g.in_channels // g.groups, g.out_channels // g.groups
    found = torch.zeros(x.shape[0], g.out_channels, *g.out_size, dtype=x.dtype)
    for tap in torch.cartesian_prod(*map(torch.arange, g.kernel)).reshape(-1, 3).tolist():
        places = [
            torch.arange(o) * s - p + t * d
            for o, s, p, t, d in zip(g.out_size, g.stride, g.pad, tap, g.dilation, strict=True)
        ]
        inside = [(at >= 0) & (at < i) for at, i in zip(places, g.in_size, strict=True)]
        a, b, c = (at.clamp(0, i - 1) for at, i in zip(places, g.in_size, strict=True))
        patch = x[:, :, a][:, :, :, b][:, :, :, :, c]
        there = inside[0][:, None, None] & inside[1][:, None] & inside[2]
        for group in range(g.groups):
            part = (patch * there)[:, group * each : (group + 1) * each]
            wanted = weight[group * rows : (group + 1) * rows, :, tap[0], tap[1], tap[2]]
            found[:, group * rows : (group + 1) * rows] += torch.einsum(
                "kc,ncdhw->nkdhw", wanted, part
            )
    return found


def phase_by_phase(x: Tensor, weight: Tensor, g: ConvGeometry, p: SubpixelPhases) -> Tensor:
    """Every phase from its own offsets, which have to lie within `reach` of `lowest`."""
    weight = weight.reshape(g.in_channels, -1, *g.kernel)
    each, rows = g.in_channels // g.groups, g.out_channels // g.groups
    found = torch.full((x.shape[0], g.out_channels, *g.out_size), torch.nan, dtype=x.dtype)
    shifts = (g.pad[0] % g.stride[0], g.pad[1] % g.stride[1], p.shift)
    for phase in torch.cartesian_prod(*map(torch.arange, g.stride)).reshape(-1, 3).tolist():
        # of each dimension: which pixels of the result, and their sum over taps as a matrix
        pixels, sums = [], list[list[tuple[int, Tensor]]]()
        for d in range(3):
            places = torch.arange(p.places[d])
            at = places * g.stride[d] + phase[d] - shifts[d]
            here = (at >= 0) & (at < g.out_size[d])
            pixels.append(at[here])
            sums.append([])
            for tap in range(g.kernel[d]):
                far = phase[d] - shifts[d] + g.pad[d] - tap * g.dilation[d]
                if far % g.stride[d] == 0:
                    offset = far // g.stride[d]
                    assert p.lowest[d] <= offset <= p.lowest[d] + p.reach[d]
                    sums[d].append((tap, places[here] + offset))
            assert len(sums[d]) <= p.taps[d]
        part = torch.zeros(x.shape[0], g.out_channels, *map(len, pixels), dtype=x.dtype)
        for (a, u), (b, v), (c, w) in product(*sums):
            inside = [(i >= 0) & (i < n) for i, n in zip((u, v, w), g.in_size, strict=True)]
            i, j, k = (i.clamp(0, n - 1) for i, n in zip((u, v, w), g.in_size, strict=True))
            patch = x[:, :, i][:, :, :, j][:, :, :, :, k]
            patch = patch * (inside[0][:, None, None] & inside[1][:, None] & inside[2])
            for group in range(g.groups):
                mine = slice(group * each, (group + 1) * each)
                part[:, group * rows : (group + 1) * rows] += torch.einsum(
                    "ck,ncdhw->nkdhw", weight[mine, :, a, b, c], patch[:, mine]
                )
        found[:, :, *torch.meshgrid(*pixels, indexing="ij")] = part
    return found


def test_what_the_emitted_file_asks_of_a_transposed_one() -> None:
    layer, shape = LAYERS["transposed, odd"]
    _, after = graphs(layer, torch.randn(shape))
    (n,) = convolutions(after)
    settings = "(2, 3), (1, 0), (1, 2), 1, (1, 1)"
    assert probe_expression(n) == (
        "_fusewright_conv_uses_tf32(torch.nn.functional.conv_transpose2d, (batch, 64, 36, 33), "
        f"(64, 96, 3, 3), {settings}, device)"
    )
    x, weight = torch.randn(shape), torch.randn(64, 96, 3, 3)
    asked = torch.nn.functional.conv_transpose2d(x, weight, None, *eval(settings))
    assert asked.shape == layer(x).shape


@pytest.mark.slow
@pytest.mark.parametrize("name", LIBRARY)
def test_a_library_call_says_why(name: str) -> None:
    layer, shape, why = LIBRARY[name]
    x = torch.randn(shape, dtype=next(layer.parameters()).dtype)
    _, after = graphs(layer, x, None)
    (step,) = plan(after, GPU, ANCHORS).libraries
    assert why in step.reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layer", "shape", "taken"),
    [
        (nn.Conv1d(16, 8, 3, groups=2), (2, 16, 9), 1),
        (nn.Conv2d(64, 64, 3).bfloat16(), (2, 64, 6, 6), 1),
        (nn.ConvTranspose3d(8, 12, 2, stride=2), (2, 8, 4, 4, 4), 1),
        (nn.Conv2d(16, 16, 9, groups=16), (2, 16, 12, 12), 0),
        (nn.Conv2d(64, 64, 3, bias=False), (2, 64, 6, 6), 0),
        (nn.Conv2d(64, 64, 3).double(), (2, 64, 6, 6), 0),
        (nn.Conv2d(64, 64, 3), (64, 6, 6), 0),
    ],
)
def test_a_tail_adds_the_bias_of_a_library_call(
    layer: nn.Module, shape: tuple[int, ...], taken: int
) -> None:
    """PyTorch adds it in a kernel of its own, but for depthwise maps; alone, it stays there."""
    module, x = Tailed(layer), torch.randn(shape, dtype=next(layer.parameters()).dtype)
    before, after = graphs(module, x)
    made = plan(after, GPU, ANCHORS)
    assert made.kernels[-1].operators == (*["add"] * taken, "relu", "add")
    calls = [p.libraries[0].node for p in (made, plan(graphs(layer, x)[1], GPU, ANCHORS))]
    whole = 2 + (layer.bias is not None)
    assert [len(n.args) for n in calls] == [whole - taken, whole]
    check_meaning(before, after, module, (x,))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"rules": frozenset({"no-prepack"})}, "our kernels pack"),
        ({"rules": frozenset({"no-workspace"})}, "our kernels pack"),
    ],
)
def test_options_that_keep_the_library(options: dict[str, str], why: str) -> None:
    layer, shape = LAYERS["plain"]
    before, _ = rewrite(capture(layer, [torch.randn(shape)]).graph)
    after = convolution(before, GPU, **options)  # type: ignore[arg-type]
    (call,) = (n for n in toposort(after.roots) if n.op == "library")
    assert why in str(call.call.why_library)


def test_other_targets_keep_the_library() -> None:
    layer, shape = LAYERS["plain"]
    before, _ = rewrite(capture(layer, [torch.randn(shape)]).graph)
    after = convolution(before, TARGETS["cpu"])
    (call,) = (n for n in toposort(after.roots) if n.op == "library")
    assert call.call.why_library == "there is no kernel of ours for it on cpu"


# ---- text ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "3 dimensions", "transposed"])
def test_golden(name: str, update_golden: bool) -> None:
    layer, shape = LAYERS[name]
    _, after = graphs(Tailed(layer), torch.randn(shape))
    made = plan(after, GPU, ANCHORS)
    kernel = made.kernels[-1]
    layout = nest(kernel, after)
    chosen = default_strategy(layout, StrategyContext(GPU, after))
    entry = cuda_source([kernel_text(layout, chosen)], GPU)
    text = show(after) + "\n" + entry[entry.index(f"struct {kernel.name}") :]
    path = GOLDEN_FOLDER / "convolution" / f"{name.replace(' ', '_')}.txt"
    if update_golden:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "pytest --update-golden"


ROOM = """  {{
    {shape}
    const long needs[] = {{packed_image_in<{chunk}>(nullptr, {what}, packed),
                           packed_image_in<{chunk}, 2>(nullptr, {what}, packed)}};
    const long given[] = {{{given}}};
    for (int k = 0; k < 2; ++k)
      if (given[k] < needs[k] || given[k] > needs[k] + 2560) return {number};
  }}
"""
PHASES = """transposed_shape<{together}> phases;
  if (describe_phases(phases, shape, {stacked})) return {number};"""


def room_check(number: int, name: str) -> str:
    """C++ that returns `number` where the emitted file allocates too little, or much too much."""
    layer, shape = LAYERS[name]
    _, after = graphs(layer, torch.randn(shape))
    (n,) = convolutions(after)
    g = geometry(n)
    launcher = variant_of(n).launcher
    lines, what = shape_statement(n).replace("batch", str(shape[0])), "shape"
    if g.phases is not None:
        together, stacked = g.phases.stacked[2], launcher.arguments(n, "scratch")[-2]
        lines += "\n  " + PHASES.format(together=together, stacked=stacked, number=number)
        what = "phases"
    every = (replace(g, parts=parts).packed_bytes for parts in (1, 2))
    given = ", ".join(str(eval(text.format(batch=shape[0]))) for text in every)
    return ROOM.format(chunk=g.chunk, shape=lines, what=what, given=given, number=number)


@pytest.mark.compiler
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
def test_the_scratch_memory_holds_what_is_packed(tmp_path: Path) -> None:
    """The skeleton's own count, run on the host, against what the emitted file allocates."""
    names = ["plain", "groups", "3 dimensions", *(n for n in LAYERS if n.startswith("transposed"))]
    checks = "".join(room_check(number, name) for number, name in enumerate(names, 1))
    check_rooms("run_conv_transpose", checks, tmp_path)


# ---- emitted files -------------------------------------------------------------------------------

SIZES = {"batch_size": "8", "height": "36", "width": "36"}


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> Emitted:
    folder = tmp_path_factory.mktemp("convolution")
    return emit_file(ROOT / "examples" / "conv_relu_bias.py", folder, "sm_90a", SIZES)


def test_the_emitted_file(emitted: Emitted) -> None:
    call = emitted.text.partition('run["conv_bias_relu_add"](')[2].partition(")\n        return")[0]
    words = [w.strip() for w in call.split(",") if w.strip()]
    assert words == [
        "x.data_ptr()", "conv_weight.data_ptr()", "bias.data_ptr()", "conv_bias.data_ptr()",
        "conv_bias_relu_add.data_ptr()", "workspace.data_ptr()", "batch", "device", "stream",
    ]  # fmt: skip
    assert "workspace = torch.empty(batch * " in emitted.text
    head = emitted.text.partition('"""')[0]
    (row,) = (row for row in emitted.made.notes.rows if row.operators[0] == "conv")
    assert (row.name, row.operators) == ("conv_bias_relu_add", ("conv", "add x2", "relu"))
    assert row.shapes == ("[batch, 128, 34, 34]",)
    assert row.numeric.name == "float32, conv as tf32"
    assert "tf32: operands rounded to 11 bits" in head
    assert re.search(r"the input .* and conv\.weight .* are packed first", head)


QUESTION = """_fusewright_conv_uses_tf32(
                    torch.nn.functional.conv2d,
                    (batch, 64, 36, 36),
                    (128, 64, 3, 3),
                    (1, 1),
                    (0, 0),
                    (1, 1),
                    1,
                    device,
                )"""


def rounded(x: Tensor) -> Tensor:
    """To 11 bits, as TF32 does; every value here is far from the end of the range."""
    bits = x.view(torch.int32)
    return ((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF).view(torch.float32)


def test_the_guard_asks_whether_operands_are_rounded(
    emitted: Emitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for each size and each setting of PyTorch's; never while a graph is captured."""
    capturing = [False]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    assert f"and (\n                {QUESTION}\n                or _fusewright_no(" in emitted.text
    module, cudnn, calls = emitted.load(), torch.backends.cudnn, []

    def full(x: Tensor, *more: object) -> Tensor:
        calls.append(x.shape)
        return torch.nn.functional.conv2d(x, *more)  # type: ignore[arg-type]

    def tf32(x: Tensor, *more: object) -> Tensor:
        return full(rounded(x), *more)

    def asks(convolve: Callable[..., Tensor], batch: int) -> bool:
        settings = (1, 1), (0, 0), (1, 1), 1, "cpu"
        found = module._fusewright_conv_uses_tf32(
            convolve, (batch, 4, 8, 8), (6, 4, 3, 3), *settings
        )
        assert isinstance(found, bool)
        return found

    assert [asks(full, 2), asks(tf32, 2)] == [False, True]
    assert len(calls) == 4
    assert [asks(tf32, 2), asks(tf32, 3), asks(tf32, 3)] == [True] * 3
    assert len(calls) == 6
    capturing[0] = True
    assert [asks(tf32, 2), asks(tf32, 4)] == [True, False]
    assert len(calls) == 6
    capturing[0] = False
    before = cudnn.allow_tf32
    try:
        cudnn.allow_tf32 = not before
        assert asks(tf32, 2)
        assert len(calls) == 8
    finally:
        cudnn.allow_tf32 = before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_small_groups_have_kernels(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own takes several kernels for each group."""
    monkeypatch.setattr(match, "LEAST_FLOPS", MEASURED)
    x = torch.randn(8, 64, 14, 14, dtype=dtype)
    for groups, kernels in ((1, 0), (4, 1)):
        layer = nn.Conv2d(64, 64, 3, padding=1, groups=groups, dtype=dtype)
        _, made = graphs(nn.Sequential(layer, nn.ReLU()), x)
        assert len(convolutions(made)) == kernels
