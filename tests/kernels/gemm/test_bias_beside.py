"""Where the bias of a linear layer that stays PyTorch's is added by what reads the result."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusewright.kernels.gemm.match import BIAS_BESIDE
from tests.support.emitting import emit_text

MODEL = """
    import torch
    import torch.nn as nn


    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(32, 48{options})

        def forward(self, x):
            return {result}


    def get_inputs():
        return [torch.randn({shape}, 32{dtype})]


    def get_init_inputs():
        return []
"""
READ = "torch.relu(self.first(x))"


def called(
    folder: Path, target: str, shape: str = "64", result: str = READ, options: str = ""
) -> str:
    """The call of PyTorch's linear layer in an emitted file."""
    dtype = f", {options}" if options else ""
    given = {"shape": shape, "result": result, "dtype": dtype, "options": dtype}
    text = emit_text(MODEL.format(**given), folder, target).text
    (line,) = (line for line in text.split("\n") if "torch.nn.functional.linear(" in line)
    return line.split("functional.linear")[1]


@pytest.mark.parametrize(
    ("target", "shape", "beside"),
    [
        ("cpu", "1", True),
        ("cpu", "4, 512", True),
        ("sm_90a", "16", False),
        ("sm_90a", "64", True),
        ("sm_90a", "2, 64", True),
        ("sm_90a", "2, 65", False),
        ("sm_80", "64", True),
        ("sm_80", "512", False),
    ],
)
def test_with_so_many_rows(target: str, shape: str, beside: bool, tmp_path: Path) -> None:
    assert ("first_bias" not in called(tmp_path, target, shape)) is beside


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
@pytest.mark.parametrize(
    "shown",
    [
        "(self.first(x), torch.relu(x))",
        "(lambda y: (y, torch.relu(y)))(self.first(x))",
        "(lambda y: torch.relu(y).sum() + torch.linalg.inv(y.mT @ y))(self.first(x))",
    ],
)
def test_only_where_nothing_but_kernels_reads_the_result(
    target: str, shown: str, tmp_path: Path
) -> None:
    """What has to be there with its bias would be written once more."""
    assert "first_bias" in called(tmp_path, target, result=shown)


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_halves_keep_theirs(target: str, tmp_path: Path) -> None:
    """Their sum would be rounded once more."""
    assert "first_bias" in called(tmp_path, target, options="dtype=torch.bfloat16")


@pytest.mark.parametrize("target", BIAS_BESIDE)
def test_every_language_has_its_rows(target: str) -> None:
    assert BIAS_BESIDE[target]


@pytest.mark.compiler
def test_the_sum_is_right(tmp_path: Path) -> None:
    loaded = emit_text(MODEL.format(shape="7", result=READ, dtype="", options=""), tmp_path).load()
    model, x = loaded.ModelNew(), torch.randn(7, 32)
    with torch.no_grad():
        wanted = model.double().reference_forward(x.double())
        torch.testing.assert_close(model.float()(x).double(), wanted, rtol=1e-6, atol=1e-6)
    assert loaded.ModelNew.fusewright_status()["kernels"] == 1
