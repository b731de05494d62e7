"""The decision record: operations of calls that are given one tensor more than once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fusewright.compiler.pipeline import make
from fusewright.report.decision_record import step_reports
from fusewright.targets.target import TARGETS


class Squared(nn.Module):
    """A product of a tensor with itself, and a kernel behind it."""

    def __init__(self, call: str) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = getattr(torch, self.call)(x, x, x)
        return found.relu()


@pytest.mark.parametrize(
    ("call", "shape", "flops"),
    [("addmm", (16, 16), 2 * 16**3), ("baddbmm", (4, 16, 16), 4 * 2 * 16**3)],
)
def test_operations_of_a_tensor_with_itself(call: str, shape: tuple[int, ...], flops: int) -> None:
    made = make(Squared(call), [torch.randn(shape)], TARGETS["cpu"])
    (product,) = [r for r in step_reports(made.plan, made.descriptions) if r.name == call]
    assert product.flops == flops
    assert f"library  {call}" in made.record("squared.py")
