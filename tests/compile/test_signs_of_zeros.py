"""Zeros have the signs that eager gives them, where it gives one: bounds, windows, activations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.compiled import build, prepare

# 35 elements: eager takes vectors, and what is left behind them.
HEAD = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        return {results}


def get_inputs():
    return [torch.where(torch.rand(4, 35) < 0.5, 0.0, -0.0).to({dtype})]


def get_init_inputs():
    return []
"""
# What eager answers in one way in vectors and in another behind them (bounds that are tensors,
# maxima of two tensors) is not here.
LINES = (
    *("x.clamp(max=0)", "x.clamp(min=0)", "x.clamp(0, 1)", "x.clamp(-1, 0)", "x.clamp(max=-0.0)"),
    *("x.clamp(min=-0.0)", "torch.clamp_min(x, 0)", "torch.clamp_max(x, 0)", "F.relu6(x)"),
    *("F.hardtanh(x, 0.0, 1.0)", "F.hardtanh(x, -1.0, 0.0)", "torch.relu(x)", "F.leaky_relu(x)"),
    *("F.threshold(x, 0.0, 0.0)", "F.avg_pool1d(x, 1)", "F.avg_pool1d(x, 2)", "F.hardswish(x)"),
    *("F.avg_pool1d(x, 3, 1, 1)", "F.avg_pool1d(-x.abs(), 2)", "F.avg_pool2d(-x.abs()[None], 2)"),
    *("F.adaptive_avg_pool1d(-x.abs(), 7)", "F.avg_pool2d(-x.abs()[None], 1)", "-x.abs()"),
    *("F.adaptive_avg_pool1d(-x.abs(), 1)", "F.avg_pool2d(-x.abs()[None], (4, 35))"),
    *("(-x.abs()).sum(1)", "(-x.abs()).mean(1)", "(-x.abs()).sum(0)", "(-x.abs()).cumsum(1)"),
)


@pytest.mark.parametrize("dtype", ["torch.float32", "torch.float16"])
def test_zeros_have_eagers_signs(dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "zeros.py"
    path.write_text(HEAD.format(results=", ".join(LINES), dtype=dtype))
    case = prepare(path)
    (module,) = build([case], tmp_path)
    ours, eager = module.ModelNew()(*case.inputs), case.model(*case.inputs)
    for line, a, b in zip(LINES, ours, eager, strict=True):
        assert torch.equal(a, b), line
        assert torch.equal(torch.signbit(a), torch.signbit(b)), line
