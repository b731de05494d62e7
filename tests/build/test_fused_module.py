"""nvcc's refusal is a paragraph; a fused module shares its tensors with the one it is made from."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import nn

from fusewright.build.fused_module import cross_compile, fused_module
from fusewright.emit.emitted_file import GeneratedForward, emit_bare_class
from fusewright.emit.runtime import Runtime
from fusewright.errors import BuildFailed
from fusewright.targets.target import TARGETS
from tests.support.emitting import BY_HAND


@pytest.mark.compiler
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
def test_nvcc_refuses() -> None:
    with pytest.raises(BuildFailed, match="nvcc refused the generated kernels for sm_80") as caught:
        cross_compile("__global__ void k(wrong* x) {}\n", TARGETS["sm_80"])
    assert "wrong" in str(caught.value)
    said = cross_compile("__global__ void k(int* x) { *x = 1; }\n", TARGETS["sm_80"])
    assert said.startswith("compiled for sm_80, but")


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = self.first
        self.absent = None
        self.register_module("empty", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def test_the_twin_keeps_the_shape_of_the_tree() -> None:
    part = Part()
    text = emit_bare_class(
        Runtime("", BY_HAND), GeneratedForward("x", "x", "By hand.", (), ("False",), ("return x",))
    )
    twin = fused_module(part, text)
    assert twin.first is twin.second
    assert twin.first is not part.first
    assert twin.first.weight is part.first.weight
    assert twin.empty is None
    assert list(twin._modules) == list(part._modules)
    x = torch.randn(3, 2)
    torch.testing.assert_close(twin(x), part(x))
