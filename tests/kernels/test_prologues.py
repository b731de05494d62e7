"""How kernels with tensor cores are fed: one record says it to launch, traffic, scratch memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusewright.compiler.compilation import Compilation, make
from fusewright.fusion.planner import nbytes
from fusewright.kernels.attention.prologue import prologue as of_attention
from fusewright.kernels.attention.tile import AttentionTile
from fusewright.kernels.conv.prologue import prologue as of_conv
from fusewright.kernels.conv.tile import ConvTile
from fusewright.kernels.gemm.prologue import prologue as of_gemm
from fusewright.kernels.gemm.tile import GemmTile, NoSplit
from fusewright.kernels.interface import StrategyContext
from fusewright.kernels.registry import family_of, kernel_text, neighbours
from fusewright.kernels.tensor_core.prologue import Prologue
from fusewright.targets.target import TARGETS

HOPPER = TARGETS["sm_90a"]
ON_THE_FLY, PACKED, HALF = "split on the fly", "packed hi+lo", "packed half"


class Product(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(x @ y.mT)


class Attention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT + bias, -1) @ v


def compiled(module: nn.Module, *inputs: Tensor) -> Compilation:
    return make(module, inputs, HOPPER)


def only(made: Compilation) -> tuple[Any, Any, Any]:
    ((text, nest, strategy),) = (k for k in made.kernels if k[1].kernel.anchor)
    return text, nest, strategy


def forms(found: Prologue) -> list[tuple[str, bool, int]]:
    return [(plan.form, plan.aligned, plan.passes) for plan in found.operands]


def check(made: Compilation, found: Prologue) -> None:
    """What launch and report say is what the record says."""
    text, nest, strategy = only(made)
    launch, operands = text.launch, found.operands
    assert [w.node for w in launch.whole_tensors] == [plan.tensor for plan in operands]
    assert [w.aligned for w in launch.whole_tensors] == [plan.aligned for plan in operands]
    assert launch.workspace == (found.packed_bytes or "")
    context = StrategyContext(HOPPER, made.plan.graph)
    said = family_of(nest.kernel).describe(nest.kernel, strategy, context)
    packed = any(plan.is_packed for plan in operands)
    assert ("nothing is packed" in said.why[1]) != packed
    assert said.nbytes == sum(p.passes * nbytes(p.tensor, context.graph) for p in operands)


@pytest.mark.parametrize("swap_operands", [False, True])
def test_one_factor_of_float32_is_packed(swap_operands: bool) -> None:
    x, y = torch.empty(8192, 1024), torch.empty(1024, 1024)
    made = compiled(Product(), *((y, x) if swap_operands else (x, y)))
    _, nest, tile = only(made)
    assert (tile.packing, tile.swap_operands) == ("packed", swap_operands)
    found = of_gemm(nest.kernel.anchor, "packed", swap_operands=swap_operands)
    both = [(ON_THE_FLY, True, 1), (PACKED, False, 3)]
    assert forms(found) == (both[::-1] if swap_operands else both)
    check(made, found)


def test_factors_of_16_bits_are_read_where_they_lie() -> None:
    x, y = torch.empty(4096, 4096).half(), torch.empty(4096, 4096).half()
    made = compiled(Product(), x, y)
    _, nest, tile = only(made)
    found = of_gemm(nest.kernel.anchor, tile.packing, swap_operands=tile.swap_operands)
    assert forms(found) == [("direct", True, 1)] * 2
    check(made, found)


def test_where_scratch_memory_is_forbidden_both_are_split() -> None:
    module, inputs = Product(), (torch.empty(8192, 1024), torch.empty(1024, 1024))
    made = make(module, inputs, HOPPER, rules=frozenset({"no-workspace"}))
    _, nest, tile = only(made)
    assert tile.packing == "unpacked"
    found = of_gemm(nest.kernel.anchor, tile.packing, swap_operands=tile.swap_operands)
    assert forms(found) == [(ON_THE_FLY, True, 1)] * 2
    check(made, found)


@pytest.mark.parametrize(("dtype", "passes"), [(torch.float32, 2), (torch.bfloat16, 3)])
def test_a_convolution_packs_its_image_and_its_weights(dtype: torch.dtype, passes: int) -> None:
    layer = nn.Sequential(nn.Conv2d(64, 128, 3, padding=1), nn.ReLU()).to(dtype)
    made = compiled(layer, torch.empty(16, 64, 56, 56, dtype=dtype))
    found = of_conv(only(made)[1].kernel.anchor)
    assert forms(found) == [(HALF, False, passes)] * 2
    check(made, found)


@pytest.mark.parametrize("channels", [64, 24])
def test_channels_last_of_16_bits_are_packed_where_chunks_are_not_whole(channels: int) -> None:
    """24 channels come as 32, so both are packed; else weights alone, which lie otherwise."""
    layer = nn.Sequential(nn.Conv2d(channels, 64, 3, padding=1), nn.ReLU()).bfloat16()
    x = torch.empty(16, channels, 56, 56, dtype=torch.bfloat16)
    made = compiled(layer, x.to(memory_format=torch.channels_last))
    found = of_conv(only(made)[1].kernel.anchor)
    packed, whole = (HALF, True, 3), ("direct", True, 1)
    assert forms(found) == [whole if channels == 64 else packed, packed]
    check(made, found)


def test_attention_packs_keys_and_values() -> None:
    q, k, v = (torch.empty(4, 8, 1024, 64) for _ in range(3))
    made = compiled(Attention(), q, k, v, torch.empty(1024, 1024))
    _, nest, tile = only(made)
    assert isinstance(tile, AttentionTile)
    found = of_attention(nest.kernel.anchor)
    first = [(ON_THE_FLY, False, 1), (PACKED, False, 3), (PACKED, False, 3)]
    assert forms(found) == [*first, ("direct", False, 1)]
    check(made, found)
    assert neighbours(tile, nest, StrategyContext(HOPPER, made.plan.graph)) == ()


# ---- what strategies are printed as --------------------------------------------------------------


def arguments(nest: Any, tile: GemmTile | ConvTile) -> str:
    chosen = kernel_text(nest, tile).launch.call.template_args
    return ", ".join(map(str, chosen))


def test_what_a_tile_of_a_product_is_called_with() -> None:
    x, y = torch.empty(12288, 5120).bfloat16(), torch.empty(5120, 5120).bfloat16()
    _, nest, tile = only(compiled(Product(), x, y))
    assert arguments(nest, tile) == "256, false, 0, 8, 204, false, 120, 18"
    whole = replace(tile, reduce=NoSplit())
    assert arguments(nest, whole) == "256, false, 0, 8"
    alone = replace(whole, width=128, epilogue_schedule="pingpong")
    assert arguments(nest, alone) == "128, false, 0, 8, 0, true"


def test_two_blocks_of_a_processor_have_narrow_tiles() -> None:
    layer = nn.Sequential(nn.Conv2d(64, 128, 3, padding=1), nn.ReLU())
    made = compiled(layer, torch.empty(16, 64, 56, 56))
    _, nest, default = only(made)
    tiles = [default, *neighbours(default, nest, StrategyContext(HOPPER, made.plan.graph))]
    for tile in tiles:
        narrow = tile.width <= 64
        assert tile.blocks_per_sm == (2 if narrow else 1)
        sharing = ", 2" * (narrow or tile.is_pingpong)
        assert arguments(nest, tile).endswith(f", 64{sharing}")
