"""Library products of 16 bits -> kernels: on which target, with which tile, under which rules."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fusewright.compiler.pipeline import optimize_file
from fusewright.frontend.capture import capture
from fusewright.fusion.epilogue import NoReduction, Reduction, Segment
from fusewright.fusion.planner import plan
from fusewright.kernels.gemm.match import product
from fusewright.kernels.gemm.split_cost import STREAM_K
from fusewright.kernels.gemm.strategy import rank_tiles
from fusewright.kernels.gemm.tile import NO_SPLIT, DepthSplit, GemmTile, StreamK
from fusewright.kernels.gemm.tile_cost import (
    LARGE_ENDING,
    LIGHT_ENDING,
    REDUCTION_ENDING,
    ending,
)
from fusewright.kernels.interface import StrategyContext
from fusewright.kernels.registry import ANCHORS
from fusewright.kernels.tensor_core.tile import EpilogueSchedule
from fusewright.rewrite.simplify import rewrite
from fusewright.targets.target import TARGETS
from tests.kernels.gemm.test_gemm import RELU, kernel_of, model, planned, products


def test_only_hopper_has_kernels_for_16_bits() -> None:
    inputs = torch.randn(2048, 512).half(), torch.randn(512, 512).half()
    graph, _ = rewrite(capture(model("return x @ y", 2), inputs).graph)
    float32_only, none = (
        "our kernels take float32, not float16",
        "there is no kernel of ours for it on",
    )
    whys = {"cpu": [f"{none} cpu"], "sm_80": [float32_only], "sm_89": [float32_only], "sm_90a": []}
    for name, why in whys.items():
        made = plan(product(graph, TARGETS[name]), TARGETS[name], ANCHORS)
        assert len(products(made.graph)) == (not why)
        assert [s.reason for s in made.libraries] == [f"PyTorch's own routine: {w}" for w in why]


def half(
    width: int, schedule: EpilogueSchedule = "cooperative", reduce: DepthSplit = NO_SPLIT
) -> GemmTile:
    """The tile of a product of 16 bits, with accesses of single elements."""
    return GemmTile(width, False, schedule, packing="half", reduce=reduce)


HALF_TILES = [
    # left, right; the tile
    ((4096, 4096), (4096, 4096), half(256)),
    ((1024, 1024), (8192, 1024), half(256)),
    # what follows few k is hidden behind another tile's
    ((32768, 1024), (4096, 1024), half(192, "pingpong")),
    ((256, 8192), (8192, 8192), half(128, "pingpong")),
    ((8192, 8192), (256, 8192), half(128, "pingpong")),
    # 6 waves of couples of 192 columns; of 256, 24 of 288 couples would be left for 66 clusters
    ((3072, 6144), (6144, 6144), half(192, "pingpong")),
    # 960 couples for 66 clusters: 36 are cut into 66 ranges of 44 steps
    ((12288, 5120), (5120, 5120), half(256, reduce=StreamK(2 * (66 + 36)))),
]


@pytest.mark.slow
@pytest.mark.parametrize(("left", "right", "wanted"), HALF_TILES)
def test_the_tile_of_16_bits(
    left: tuple[int, int], right: tuple[int, int], wanted: GemmTile
) -> None:
    """Nothing is packed: the waves of couples of tiles alone decide."""
    inputs = torch.empty(left).bfloat16(), torch.empty(right).bfloat16()
    printed, _, chosen = kernel_of(RELU, *inputs)
    assert isinstance(chosen, GemmTile)
    assert replace(chosen, vector=1) == wanted
    parts = wanted.reduce.parts if isinstance(wanted.reduce, StreamK) else 0
    room = parts * (128 * wanted.width * 4 + 8)
    assert printed.launch.workspace == (str(room) if room else "")
    # Whoever shares tiles is told what adding their parts up takes.
    told = [parts, "false", *STREAM_K] if parts else [0, "true"] * wanted.is_pingpong
    assert list(printed.launch.call.template_args[4:]) == told


ENDINGS = [
    # after 1024 k, the more there is to do for each element, the fewer columns
    ((32768, 1024), (4096, 1024), NoReduction(), LARGE_ENDING, half(128, "pingpong")),
    ((8192, 2048), (6144, 2048), NoReduction(), LARGE_ENDING, half(160, "pingpong")),
    ((4096, 4096), (4096, 4096), NoReduction(), LARGE_ENDING, half(256)),
    ((4096, 4096), (4096, 4096), Segment(64), REDUCTION_ENDING, half(128, "pingpong")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("left", "right", "reduction", "ending", "wanted"), ENDINGS)
def test_what_follows_a_product_chooses_its_tile(
    left: tuple[int, int],
    right: tuple[int, int],
    reduction: Reduction,
    ending: float,
    wanted: GemmTile,
) -> None:
    """Measured [m: gemm-0032, gemm-0035, gemm-0036, gemm-0037]."""
    graph = planned(RELU, torch.empty(left).bfloat16(), torch.empty(right).bfloat16()).graph
    (made,) = products(graph)
    context = StrategyContext(TARGETS["sm_90a"], graph)
    assert rank_tiles(made, reduction, context, ending=ending)[0] == wanted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("return torch.relu(x @ y)", LIGHT_ENDING),
        ("return x + x @ y", LARGE_ENDING),
        ("return (x @ y).float()", LARGE_ENDING),
        ("return torch.softmax((x @ y).view(1024, 16, 64), -1)", REDUCTION_ENDING),
    ],
)
def test_what_follows_a_product(body: str, wanted: float) -> None:
    inputs = torch.empty(1024, 1024).bfloat16(), torch.empty(1024, 1024).bfloat16()
    _, layout, _ = kernel_of(body, *inputs)
    assert ending(layout) == wanted


@pytest.mark.parametrize("rule", ["no-workspace", "no-prepack"])
def test_nobody_shares_a_tile_where_rules_forbid_scratch_memory(rule: str) -> None:
    inputs = torch.empty(12288, 5120).bfloat16(), torch.empty(5120, 5120).bfloat16()
    graph = planned(RELU, *inputs).graph
    (made,) = products(graph)
    free = StrategyContext(TARGETS["sm_90a"], graph)
    assert isinstance(rank_tiles(made, NoReduction(), free)[0].reduce, StreamK)
    restricted = replace(free, rules=frozenset({rule}))
    assert {tile.reduce for tile in rank_tiles(made, NoReduction(), restricted)} == {NO_SPLIT}


ALIGNED = ("x_aligned", "gemm_weight_aligned")
HALF_PROBLEM = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.gemm = nn.Linear(size, size, dtype=torch.bfloat16)

    def forward(self, x):
        return torch.relu(self.gemm(x))


def get_inputs():
    return [torch.randn(256, 2048, dtype=torch.bfloat16)]


def get_init_inputs():
    return [2048]
"""


@pytest.mark.compiler
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
def test_a_file_for_16_bits_keeps_every_rule(tmp_path: Path) -> None:
    problem = tmp_path / "half.py"
    problem.write_text(HALF_PROBLEM, encoding="utf-8")
    outcome = optimize_file(
        problem, out=tmp_path / "new.py", target="sm_90a",
        rules=frozenset({"no-library", "no-workspace", "no-prepack"}),
    )  # fmt: skip
    (kernel,) = outcome.kernels
    assert (kernel.kind, kernel.operators) == ("contraction", ("matmul", "add", "relu"))
    assert kernel.bytes == 2 * (2048 * 2048 + 2 * 256 * 2048 + 2048)
    text = (tmp_path / "new.py").read_text(encoding="utf-8")
    assert '_FUSEWRIGHT_KERNELS = {"gemm_bias_relu": 4}' in text
    assert "_fusewright_full_float32" not in text
    forward = text.partition("def forward(")[2].partition("# ---- kernels")[0]
    assert forward.count("_fusewright_empty(") == 1
    assert {f"{name} = _fusewright_aligned({name[:-8]})" in text for name in ALIGNED} == {True}
    assert "bf16 with float32 sums" in text.partition("import torch")[0]
