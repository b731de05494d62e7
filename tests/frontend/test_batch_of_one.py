"""The smallest free batch: 1 where eager does the same there, 2 where it does not."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fusewright.frontend.capture import Captured, capture
from tests.frontend.test_capture import captured


def least(made: Captured) -> int:
    (free,) = made.graph.free
    return free.least


# What eager does at a batch of 1 as at any other.
AS_EVER: dict[str, Callable[..., object]] = {
    "a map": lambda m, x: torch.relu(x) + 1,
    "new dimensions": lambda m, x: x[:, None] * x[..., None],
    "a number of the batch": lambda m, x: (x * 2, x.shape[0] * 3, x.sum() / x.shape[0]),
    "a variance of one": lambda m, x: x.std(0),
    "one row of others, for each": lambda m, x: torch.cat(
        [torch.ones(1, 1).expand(x.shape[0], 1), x], 1
    ),
    "a view of the input": lambda m, x: x.view(-1, 3),
    "a permuted image": lambda m, x: torch.relu(x.view(-1, 2, 3, 1).permute(0, 2, 3, 1)),
    "attention": lambda m, x: F.scaled_dot_product_attention(*[x.view(-1, 1, 3, 2)] * 3),
}
# What eager does otherwise there.
OTHERWISE: dict[str, Callable[..., object]] = {
    "another way of the model": lambda m, x: x if x.shape[0] == 1 else -x,
    "another number": lambda m, x: x * (4 if x.shape[0] > 1 else 1),
    "another constant": lambda m, x: x * torch.tensor([1.0 if x.shape[0] > 1 else 2.0]),
    "another attribute": lambda m, x: x * (m.one if x.shape[0] == 1 else m.many),
    "text": lambda m, x: (x.shape[0] == 1 and sys.stdout.write("one"), x + 1)[1],
    "another shape": lambda m, x: torch.relu(x).squeeze(),
    "the input itself": lambda m, x: x.t().contiguous(),
    "a change of the input": lambda m, x: x.t().contiguous().add_(1),
    "other strides": lambda m, x: torch.relu(x.t()),
    "another number of results": lambda m, x: x if x.shape[0] == 1 else (x, x + 1),
}


@pytest.mark.parametrize("name", AS_EVER)
def test_one_row_is_proved(name: str) -> None:
    assert least(captured(AS_EVER[name])) == 1


@pytest.mark.parametrize("name", OTHERWISE)
def test_one_row_is_not_proved(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert least(captured(OTHERWISE[name], one=2.0, many=2.0)) == 2
    assert capfd.readouterr().out == ""


def test_a_norm_that_raises_at_one_row() -> None:
    norm = nn.BatchNorm1d(6)
    assert least(capture(norm.train(), [torch.randn(4, 6)])) == 2
    assert least(capture(norm.eval(), [torch.randn(4, 6)])) == 1


def test_a_size_that_is_another_tensors() -> None:
    """[1, 6] broadcasts against [4, 6], as no other batch but 4 does: it was never free."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rows", torch.randn(4, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.rows

    assert capture(Model(), [torch.randn(4, 6)]).graph.free == ()


def test_a_state_has_the_batch_that_it_was_left_with() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h = torch.zeros(4, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.h = torch.tanh(x + self.h)
            return self.h

    graph = capture(Model(), [torch.randn(4, 6)]).graph
    assert all(free.least == 2 for free in graph.free)
