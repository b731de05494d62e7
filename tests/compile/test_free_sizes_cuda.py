"""Kernels for a GPU that take several free sizes: what their text says of them, and nvcc's view."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from fusewright.codegen.cuda_source import cuda_source
from fusewright.targets.target import TARGETS
from tests.support.compiled import Case, prepare
from tests.support.cuda_compilers import compile_text
from tests.support.emitting import compiled_text

# A packed product, a norm with its sum, rows as long as a free size, what passes through shared
# memory, and a scan along a free size.
TEXT = """
import torch
from torch import nn
from torch.nn import functional as F

rows, steps, width = 16, 512, 1024


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.eval()

    def forward(self, x, scores, turned):
        wide = F.gelu(self.up(self.norm(x)))
        return wide, torch.softmax(scores, -1), turned.t().contiguous() * 2, x.cumsum(1)


def get_inputs():
    scores = torch.randn(rows, 4, steps, steps)
    return [torch.randn(rows, steps, width), scores, torch.randn(steps, 96)]
"""


def case(target: str, folder: Path) -> Case:
    path = folder / f"sizes_{target}.py"
    path.write_text(TEXT, encoding="utf-8")
    return prepare(path, target=target, dynamic={"x": (0, 1), "scores": (0, 2, 3), "turned": (0,)})


def test_the_text(tmp_path: Path) -> None:
    made = case("sm_90a", tmp_path)
    text = compiled_text(made.text)
    names = ["batch", "length", "length_2"]  # scores need not have as many columns as rows
    assert [free.name for free in made.made.captured.graph.free] == names
    assert {body.free for body in made.made.texts} == {tuple(names)}
    assert "long batch, long length, long length_2, int device, void* stream" in text
    assert "if (length_2 != 512" in text  # a row of scores is kept at the example's length alone
    assert "batch != " not in text
    assert re.search(r"if \(length % \d+ == 0 && aligned<", text)  # what passes shared memory
    assert "batch * length, 2048, 1024" in text  # rows, columns and depth of a product


@pytest.mark.compiler
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
@pytest.mark.parametrize("arch", ["80", "90a"])
def test_its_text_compiles(arch: str, tmp_path: Path) -> None:
    target = TARGETS[f"sm_{arch}"]
    made = case(target.name, tmp_path).made
    options = ["-std=c++17", f"-gencode=arch=compute_{arch},code=sm_{arch}"]
    found = compile_text(cuda_source(made.texts, target), options, tmp_path)
    assert len(found) >= len(made.texts)
