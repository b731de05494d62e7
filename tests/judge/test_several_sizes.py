"""A file whose kernels take several free sizes is judged at other ones of both."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusewright.compiler.pipeline import optimize_file

PROBLEM = '''
"""A norm, and weights of a mask with as many rows as columns."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x, mask):
        scores = (x @ x.transpose(1, 2)).masked_fill(~mask, -1e4)
        return self.norm(torch.relu(x)), torch.softmax(scores, -1)


def get_inputs():
    return [torch.randn(3, 6, 8), torch.rand(3, 6, 6) > 0.2]


def get_init_inputs():
    return []
'''


@pytest.mark.compiler
def test_it_is_verified(tmp_path: Path) -> None:
    path = tmp_path / "weights.py"
    path.write_text(PROBLEM, encoding="utf-8")
    wanted = {"x": (0, 1), "mask": (0, 1, 2)}
    outcome = optimize_file(
        path, out=tmp_path / "new.py", target="cpu", timing=False, dynamic=wanted
    )
    assert "x:0, mask:0 is free, as `batch` (1 or more)" in outcome.decisions
    assert "x:1, mask:1, mask:2 is free, as `length` (1 or more)" in outcome.decisions
    assert outcome.verdict is not None
    assert outcome.verdict.verdict == "verified", outcome.verdict.reason
