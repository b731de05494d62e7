"""Tensors that go round (roll) read where they lie: one load for each element, in vectors where
those do not wrap in their middle. How they are computed is in
tests/rewrite/test_target_lowering.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fusewright.codegen.cuda_source import cuda_source
from fusewright.compiler.compilation import make
from fusewright.targets.target import TARGETS
from tests.support.cuda_compilers import compile_text, nvrtc_folder, nvrtc_log
from tests.support.numbered import numbered

ARCHS = ["-std=c++17", *(f"-gencode=arch=compute_{a},code=sm_{a}" for a in ("80", "90a"))]


class Rolled(nn.Module):
    def __init__(
        self, shifts: tuple[int, ...], dims: tuple[int, ...], reduction: bool = False
    ) -> None:
        super().__init__()
        self.shifts, self.dims, self.reduction = shifts, dims, reduction

    def forward(self, x: Tensor) -> Tensor:
        y = x.roll(self.shifts, self.dims) * 2
        return y.softmax(-1) if self.reduction else y


def text_of(model: nn.Module, *shape: int, target: str = "sm_90a") -> str:
    made = make(model, [torch.empty(shape)], TARGETS[target])
    assert len(made.kernels) == 1
    return cuda_source(numbered(made).texts, TARGETS[target])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shifts", "dims", "row", "map"),
    [
        ((5,), (3,), "wrapped<int, 1>(load(in0, -5 + row * 32), 32, ", "run_map<4>"),
        ((8,), (3,), "wrapped<int, 8>(load(in0, -8 + row * 32), 32, ", "run_map<4>"),
        ((-6,), (3,), "wrapped<int, 2>(load(in0, 6 + row * 32), -32, ", "run_map<4>"),
        ((3,), (2,), "load(in0, -96 + row * 32 + wrap(-3 + r1, 24, 768))", "run_map<4>"),
        ((23, 28), (2, 3), "wrapped<int, 4>(load(in0, 36 + row * 32 + wrap(1 + r1, 24, -768)), -32",
         "run_map<4>"),
    ],
)  # fmt: skip
def test_one_load_for_an_element(
    shifts: tuple[int, ...], dims: tuple[int, ...], row: str, map: str
) -> None:
    text = text_of(Rolled(shifts, dims), 6, 4, 24, 32)
    body = text.rpartition("namespace {")[2]
    assert row in body
    assert len(re.findall(r"\bload\(", body)) == 1
    assert map in body


@pytest.mark.compiler
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_it_compiles_without_spills(target: str, tmp_path: Path) -> None:
    for shifts, reduction in (((3, 5), False), ((3, 8), True)):
        text = text_of(Rolled(shifts, (2, 3), reduction), 6, 4, 24, 32, target=target)
        found = compile_text(text, ARCHS, tmp_path)
        assert found
        assert [u for u in found if u.spill_bytes or u.stack_bytes] == []
        folder = nvrtc_folder()
        assert folder is None or nvrtc_log(folder, text, "compute_80") == (0, "")
