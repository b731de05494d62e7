"""Library products of 16 bits -> kernels: on which target, with which tile, under which rules."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from test_product import RELU, kernel_of, model, planned, products

from fusewright.capture import capture
from fusewright.codegen.cuda import workspace
from fusewright.pipeline import optimize_file
from fusewright.plan import plan
from fusewright.product import product
from fusewright.rewrite import rewrite
from fusewright.target import TARGETS
from fusewright.tile import Tile
from fusewright.waves import fastest


def test_only_hopper_has_kernels_for_16_bits() -> None:
    inputs = torch.randn(2048, 512).half(), torch.randn(512, 512).half()
    graph, _ = rewrite(capture(model("return x @ y", 2), inputs).graph)
    for name, count in {"sm_80": 0, "sm_90a": 1}.items():
        made = plan(product(graph, TARGETS[name]), TARGETS[name])
        assert len(products(made.graph)) == count
        reasons = [s.reason for s in made.libraries]
        assert reasons == (
            [] if count else ["PyTorch's own routine: our kernels take float32, not float16"]
        )


HALF_TILES = [
    # left, right; the tile
    ((4096, 1024), (4096, 1024), Tile(256, False)),
    ((1024, 1024), (8192, 1024), Tile(256, False)),
    ((256, 8192), (8192, 8192), Tile(128, False)),
    ((8192, 8192), (256, 8192), Tile(128, False)),
    # 288 couples for 66 clusters: 24 are cut into 66 ranges of 35 steps
    ((3072, 6144), (6144, 6144), Tile(256, False, parts=2 * (66 + 24))),
]


@pytest.mark.parametrize(("left", "right", "wanted"), HALF_TILES)
def test_the_tile_of_16_bits(left: tuple[int, int], right: tuple[int, int], wanted: Tile) -> None:
    """Nothing is packed: the waves of couples of tiles alone decide."""
    inputs = torch.empty(left).bfloat16(), torch.empty(right).bfloat16()
    _, layout, chosen = kernel_of(RELU, *inputs)
    assert chosen.tile == wanted
    room = wanted.parts * (128 * wanted.width * 4 + 8)
    assert workspace(layout, chosen) == (str(room) if room else "")


@pytest.mark.parametrize("rule", ["no-workspace", "no-prepack"])
def test_nobody_shares_a_tile_where_rules_forbid_scratch_memory(rule: str) -> None:
    inputs = torch.empty(3072, 6144).bfloat16(), torch.empty(6144, 6144).bfloat16()
    graph = planned(RELU, *inputs).graph
    (made,) = products(graph)
    target = TARGETS["sm_90a"]
    assert fastest(made, 0, target, graph)[0].parts > 0
    assert {tile.parts for tile in fastest(made, 0, target, graph, frozenset({rule}))} == {0}


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


@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
def test_a_file_for_16_bits_keeps_every_rule(tmp_path: Path) -> None:
    problem = tmp_path / "half.py"
    problem.write_text(HALF_PROBLEM, encoding="utf-8")
    outcome = optimize_file(
        problem, out=tmp_path / "new.py", target="sm_90a",
        rules=frozenset({"no-library", "no-workspace", "no-prepack"}),
    )  # fmt: skip
    (kernel,) = outcome.kernels
    assert (kernel.kind, kernel.operators) == ("product", ("product", "add", "relu"))
    assert kernel.bytes == 2 * (2048 * 2048 + 2 * 256 * 2048 + 2048)
    text = (tmp_path / "new.py").read_text(encoding="utf-8")
    assert '_FUSEWRIGHT_KERNELS = {"fused_0": 4}' in text
    assert "_fusewright_full_float32" not in text
    assert text.partition("def forward(")[2].count("_fusewright_empty(") == 1
    assert {f"{name} = _fusewright_aligned({name[:-8]})" in text for name in ALIGNED} == {True}
    assert "its product as bf16 with" in text.partition("import torch")[0]
