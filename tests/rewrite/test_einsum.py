"""einsum of any number of tensors is planned: as a product of two, or as PyTorch's own call."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fusewright.compiler.compilation import make
from fusewright.frontend.capture import state_of
from fusewright.ir.interpreter import interpret
from fusewright.targets.target import TARGETS

# equation, sizes of its tensors, and the path that torch.einsum gives where opt_einsum is installed
TABLE = (
    ("ij->ji", ((4, 5),), None),
    ("ii->i", ((4, 4),), None),
    ("ij,jk->ik", ((4, 5), (5, 6)), [0, 1]),
    ("ij,jk,kl->il", ((4, 5), (5, 6), (6, 7)), None),
    ("ij,jk,kl->il", ((4, 5), (5, 6), (6, 7)), [1, 2, 0, 1]),
    ("i,j,k->ijk", ((4,), (5,), (6,)), [0, 1, 0, 1]),
    ("...ij,jk,k->...i", ((2, 4, 5), (5, 6), (6,)), [1, 2, 0, 1]),
    ("ij,ij,ij->", ((4, 5),) * 3, [0, 1, 0, 1]),
    ("bij,bjk,bkl,bl->bi", ((2, 4, 5), (2, 5, 6), (2, 6, 7), (2, 7)), [2, 3, 1, 2, 0, 1]),
)


class Contraction(nn.Module):
    def __init__(self, equation: str, path: list[int] | None) -> None:
        super().__init__()
        self.equation, self.path = equation, path

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        found = torch.ops.aten.einsum(self.equation, list(tensors), path=self.path)
        return found + 1  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "sm_80", "sm_90a"])
@pytest.mark.parametrize(("equation", "sizes", "path"), TABLE)
def test_einsum_is_planned(
    equation: str, sizes: tuple[tuple[int, ...], ...], path: list[int] | None, target: str
) -> None:
    module = Contraction(equation, path)
    inputs = [torch.randn(size) for size in sizes]
    made = make(module, inputs, TARGETS[target])
    (ours,) = interpret(made.captured.graph, inputs, state_of(made.captured, module))
    torch.testing.assert_close(ours, module(*inputs))
