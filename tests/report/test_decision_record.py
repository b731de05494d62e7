"""The decision record: what is said of calls that stay PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fusewright.compiler.compilation import make
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


class Attention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("shared", [False, True])
def test_operations_of_attention_are_those_of_its_two_products(shared: bool) -> None:
    wide = torch.randn(3, 8, 20, 64)
    given = (
        (wide, wide, wide)
        if shared
        else (wide, torch.randn(3, 8, 50, 64), wide.new_ones(3, 8, 50, 16))
    )
    made = make(Attention(), given, TARGETS["cpu"])
    (call,) = step_reports(made.plan, made.descriptions)
    flops = 2 * 3 * 8 * 20 * (20 * 128 if shared else 50 * (64 + 16))
    assert call.flops == made.captured.calls[0].flops == flops
    assert call.predicted_s >= flops / TARGETS["cpu"].machine.matmul_flops


class Sorted(nn.Module):
    """The first `taken` results of a call that has two, last one first."""

    def __init__(self, taken: int) -> None:
        super().__init__()
        self.taken = taken

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        found = torch.sort(x, 1)
        return tuple(found[k] + 1 for k in reversed(range(self.taken)))


@pytest.mark.parametrize("taken", [1, 2])
def test_several_results_of_a_call_are_told_as_far_as_they_are_used(taken: int) -> None:
    made = make(Sorted(taken), [torch.randn(16, 32)], TARGETS["cpu"])
    reports = step_reports(made.plan, made.descriptions)
    (call,) = [r for r in reports if r.name == "sort"]
    assert (call.bytes, call.flops) == (16 * 32 * (4 + 4 + 8 * (taken - 1)), 16 * 32)
    record = made.record("sorted.py")
    assert f"library  sort -> {', '.join(['[batch, 32]'] * taken)}: " in record
    assert f"fused:  {1 + taken} steps" in record
