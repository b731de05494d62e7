"""Norms on a CPU are as exact as PyTorch's over many draws, and equal elements become the bias."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.support.compiled import Case, build, prepare

NORMS = {
    "batch_norm": "F.batch_norm(x, None, None, training=True)",
    "batch_norm_affine": "F.batch_norm(x, None, None, w, b, training=True)",
    "batch_norm_eval": "F.batch_norm(x, b, w * w, w, b)",
    "group_norm": "F.group_norm(x, 2)",
    "group_norm_affine": "F.group_norm(x, 2, w, b)",
    "instance_norm": "F.instance_norm(x)",
    "instance_norm_affine": "F.instance_norm(x, weight=w, bias=b)",
    "layer_norm_affine": "F.layer_norm(x, (6,), w, b)",
    "var_across": "x.var(1)",
    "var_along": "x.var((2, 3), correction=0)",
    "var_piece": "x.var(-1)[1:3].cumsum(0)",
    "std": "x.std(-1)",
    "group_norm_piece": "F.group_norm(x, 3)[1:].cumsum(1)",
    "group_norm_short": "F.group_norm(x.flatten(0, 1)[8:, 0].contiguous()[:, :6], 2)",
    "batch_norm_piece": "F.batch_norm(x, None, None, w, b, training=True)[:, 2:5].cumsum(0)",
    "layer_norm_piece": "F.layer_norm(x, (5, 6)).narrow(0, 1, 3).cumsum(0)",
    "hardswish": "F.hardswish(x)",
    "silu": "F.silu(x)",
    "sigmoid_times": "torch.sigmoid(x) * x",
}
TEXT = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x, w, b):
        return {results}


def get_inputs():
    return [torch.randn(4, 6, 5, 6) + 1, torch.randn(6), torch.randn(6)]


def get_init_inputs():
    return []
"""
MOST, HALF = 1.05, 6e-8  # times eager's error, or half a rounding of the result


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, ModuleType]:
    folder: Path = tmp_path_factory.mktemp("once")
    path = folder / "norms.py"
    path.write_text(TEXT.format(results=", ".join(NORMS.values())), encoding="utf-8")
    case = prepare(path)
    return case, build([case], folder, "-O2")[0]


@pytest.fixture(scope="module")
def errors(built: tuple[Case, ModuleType]) -> dict[str, list[float]]:
    """Of each norm, over 200 draws: the squared errors of ours and of eager, the squared result."""
    case, module = built
    ours, sums = module.ModelNew(), {name: [0.0, 0.0, 0.0] for name in NORMS}
    for seed in range(200):
        torch.manual_seed(seed)
        given = [torch.randn(4, 6, 5, 6) + 1, torch.randn(6), torch.randn(6)]
        exact = case.model(*(t.double() for t in given))
        for k, found in enumerate((ours(*given), case.model(*given))):
            for name, a, x in zip(NORMS, found, exact, strict=True):
                sums[name][k] += float((a.double() - x).square().sum())
                sums[name][2] += float(x.square().sum()) / 2
    return sums


@pytest.mark.compiler
@pytest.mark.parametrize("name", NORMS)
def test_no_norm_is_less_exact_than_eager(name: str, errors: dict[str, list[float]]) -> None:
    mine, eager, size = errors[name]
    assert mine <= max(MOST**2 * eager, HALF**2 * size)


@pytest.mark.compiler
def test_equal_elements_become_the_bias(built: tuple[Case, ModuleType]) -> None:
    w, b = torch.randn(6), torch.randn(6)
    found = dict(zip(NORMS, built[1].ModelNew()(torch.full((4, 6, 5, 6), 0.3), w, b), strict=True))
    for name in ("batch_norm", "group_norm", "instance_norm"):
        assert not found[name].any(), name
        assert torch.equal(found[f"{name}_affine"], b[:, None, None].expand(4, 6, 5, 6)), name
