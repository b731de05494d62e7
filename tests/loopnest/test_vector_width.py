"""Where memory starts that kernels walk by vectors."""

from __future__ import annotations

import pytest
import torch

from fusewright.compiler.compilation import make
from fusewright.ir.graph import BatchSize, Node, node
from fusewright.ir.placement import Inside, Placement
from fusewright.loopnest.vector_width import starts_aligned
from fusewright.targets.target import TARGETS


def piece(shape: tuple[int | BatchSize, ...], place: Inside | None, dtype: torch.dtype) -> Node:
    attributes = {"placement": Placement(place)} if place else {}
    return node("constant", shape=shape, dtype=dtype, value=0.0, **attributes)


@pytest.mark.parametrize(
    ("place", "dtype", "expected"),
    [
        (None, torch.float32, True),
        (Inside(1, 8, 24), torch.float32, True),  # 8 x 3 numbers of 4 bytes
        (Inside(1, 2, 24), torch.float32, False),  # 24 bytes
        (Inside(1, 2, 24), torch.float64, True),  # 48 bytes
        (Inside(1, 2, 24), torch.float16, False),
        (Inside(1, 0, 24), torch.float16, True),
    ],
)
def test_a_place_in_a_joined_tensor(
    place: Inside | None, dtype: torch.dtype, expected: bool
) -> None:
    assert starts_aligned(piece((5, 4, 3), place, dtype)) is expected


class Twice(torch.nn.Module):
    """Two layers, of which the second adds an input of the model to its result."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 1024)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x))) + residual


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_products_ask_for_aligned_tensors(target: str) -> None:
    inputs = [torch.randn(4096, 1024), torch.randn(4096, 1024)]
    made = make(Twice(), inputs, TARGETS[target], rules=frozenset({"no-library"}))
    assert len(made.texts) == 2
    for text in made.texts:
        walked = {id(p.node) for p in text.pointers}
        assert text.launch.scalar is None
        assert text.launch.vector > 1
        assert text.launch.aligned_tensors >= walked
