"""Library convolutions of 16 bits -> kernels: which join, on which target, what the file asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from fusewright.codegen.cuda_source import cuda_source
from fusewright.common.dtypes import HALF
from fusewright.frontend.capture import capture
from fusewright.fusion.planner import plan
from fusewright.ir.graph import toposort
from fusewright.kernels.conv import match
from fusewright.kernels.conv.geometry import geometry
from fusewright.kernels.conv.match import convolution
from fusewright.kernels.conv.profitability import ConvThreshold
from fusewright.kernels.conv.prologue import prologue
from fusewright.kernels.conv.variants import CONV, variant_of
from fusewright.kernels.interface import StrategyContext
from fusewright.kernels.registry import ANCHORS, default_strategy, kernel_text
from fusewright.loopnest.nest import nest
from fusewright.rewrite.simplify import rewrite
from fusewright.targets.target import TARGETS
from tests.kernels.conv.test_conv import GPU, LAYERS, LEAST_FLOPS, Tailed, convolutions, graphs
from tests.support.emitting import emit_file
from tests.support.graphs import check_meaning


@pytest.fixture(autouse=True, scope="module")
def small_ones_too() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(match, "LEAST_FLOPS", LEAST_FLOPS)
        yield


VIEWS = ("reshape", "permute", "expand")


def never(_: object) -> bool:
    raise AssertionError("nobody asks whether 16 bits are rounded")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_what_follows_joins_its_kernel(name: str, dtype: torch.dtype) -> None:
    layer, shape = LAYERS[name]
    module = Tailed(layer).to(dtype)
    try:
        _, after = graphs(module, torch.randn(shape).to(dtype), never)
        made = plan(after, GPU, ANCHORS)
    finally:
        layer.float()
    (n,) = convolutions(after)
    assert n.dtype is dtype
    names = ["mul", f"{n.op} {'copy' if layer.bias is None else 'add'} relu add"]
    assert [" ".join(m.op for m in k.members) for k in made.kernels] == names
    kernel = made.kernels[-1]
    layout = nest(kernel, after)
    chosen = default_strategy(layout, StrategyContext(GPU, after))
    kind = {torch.float16: "half_t", torch.bfloat16: "bfloat_t"}[dtype]
    entry = cuda_source([kernel_text(layout, chosen)], GPU)
    assert (
        f"const {kind}* left, const {kind}* right" in entry[entry.index(f"struct {kernel.name}") :]
    )


def test_the_rewritten_graph_has_the_same_meaning() -> None:
    layer, shape = nn.Conv2d(64, 128, 3).half(), (4, 64, 36, 36)
    x = torch.randn(shape).half()
    before, after = graphs(layer, x, never)
    check_meaning(before, after, layer, (x,))


@pytest.mark.parametrize("precision", ["eager", "ieee"])
def test_what_it_is_called(precision: str) -> None:
    layer, x = nn.Conv2d(64, 128, 3).bfloat16(), torch.randn(4, 64, 36, 36).bfloat16()
    before, _ = rewrite(capture(layer, [x]).graph)
    (n,) = convolutions(convolution(before, GPU, precision, probe=never))
    kind = variant_of(n)
    assert (kind.launcher, kind.numeric) == (CONV.launcher, "{dtype} with float32 sums")
    # read, written, read again: as many bytes each time
    assert [plan.passes for plan in prologue(n).operands] == [3, 3]
    assert geometry(n).packed_bytes.startswith(f"{{batch}} * {36 * 36 * 64 * 2 + 20} + ")


def test_other_targets_keep_the_library() -> None:
    layer, x = nn.Conv2d(64, 128, 3).half(), torch.randn(4, 64, 36, 36).half()
    before, _ = rewrite(capture(layer, [x]).graph)
    after = convolution(before, TARGETS["cpu"])
    (call,) = (n for n in toposort(after.roots) if n.op == "library")
    assert call.call.why_library == "there is no kernel of ours for it on cpu"


def test_each_type_has_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LEAST_FLOPS, ConvThreshold.FLOAT16, 1 << 40)
    for dtype, stays in {torch.float16: True, torch.bfloat16: False}.items():
        layer, x = nn.Conv2d(64, 128, 3).to(dtype), torch.randn(4, 64, 36, 36).to(dtype)
        _, after = graphs(layer, x, never)
        calls = [n for n in toposort(after.roots) if n.op == "library"]
        assert bool(calls) is stays
        assert all("too few for a kernel of ours" in str(n.call.why_library) for n in calls)


POINTWISE = {
    "2 dimensions": (nn.Conv2d(256, 512, 1), (4, 256, 20, 18)),
    "without bias": (nn.Conv2d(256, 512, 1, bias=False), (4, 256, 20, 18)),
    "1 dimension": (nn.Conv1d(256, 512, 1), (4, 256, 360)),
    "one image": (nn.Conv3d(256, 512, 1), (1, 256, 5, 16, 18)),
}
PACKED = {
    "odd pixels": (nn.Conv2d(256, 512, 1), (4, 256, 17, 19)),
    "odd channels": (nn.Conv2d(252, 512, 1), (4, 252, 20, 18)),
    "padded": (nn.Conv2d(256, 512, 1, padding=(0, 1)), (4, 256, 20, 16)),
    "strided": (nn.Conv2d(256, 512, 1, stride=(1, 2)), (4, 256, 20, 32)),
    "groups": (nn.Conv2d(512, 512, 1, groups=2), (4, 512, 20, 18)),
    "transposed": (nn.ConvTranspose2d(256, 512, 1), (4, 256, 20, 18)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", POINTWISE)
def test_single_pixels_are_a_product_that_packs_nothing(name: str) -> None:
    layer, shape = POINTWISE[name]
    module, x = Tailed(layer).bfloat16(), torch.randn(shape).bfloat16()
    before, after = graphs(module, x, never)
    made = plan(after, GPU, ANCHORS)
    joined = f"matmul {'copy' if layer.bias is None else 'add'} relu add"
    found = [[m.op for m in k.members if m.op not in VIEWS] for k in made.kernels]
    assert [" ".join(ops) for ops in found] == ["mul", joined]
    assert not made.libraries
    kernel = made.kernels[-1]
    layout = nest(kernel, after)
    chosen = default_strategy(layout, StrategyContext(GPU, after))
    entry = cuda_source([kernel_text(layout, chosen)], GPU)
    assert "half_gemm_operand<bfloat_t, true>{right, " in entry
    assert "half_gemm_operand<bfloat_t>{left, 0, 256}" in entry
    check_meaning(before, after, module, (x,))


@pytest.mark.parametrize("name", PACKED)
def test_other_single_pixels_are_packed(name: str) -> None:
    layer, shape = PACKED[name]
    _, after = graphs(layer.half(), torch.randn(shape).half(), never)
    assert len(convolutions(after)) == 1


PROBLEM = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, 128, 3, padding=1, dtype=torch.bfloat16)

    def forward(self, x):
        return torch.relu(self.conv(x))


def get_inputs():
    return [torch.randn(8, 64, 36, 36, dtype=torch.bfloat16)]


def get_init_inputs():
    return [64]
"""


def test_the_emitted_file_asks_nothing_about_rounding(tmp_path: Path) -> None:
    problem = tmp_path / "half.py"
    problem.write_text(PROBLEM, encoding="utf-8")
    emitted = emit_file(problem, tmp_path, "sm_90a", {})
    text = emitted.text
    classes = [row.numeric.name for row in emitted.made.notes.rows]
    assert any(name.endswith("conv as bf16 with float32 sums") for name in classes)
    assert "_fusewright_conv_uses_tf32(" not in text
    assert "const bfloat_t* left, const bfloat_t* right" in text
    assert "workspace = torch.empty(batch * " in text
