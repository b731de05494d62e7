"""The size that a caller names: which tensors have it, and why it is not free."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn

from fusewright.errors import BadUsage
from fusewright.frontend.asked_size import asked_size
from fusewright.frontend.capture import Captured, capture
from fusewright.ir.graph import BatchSize


class Model(nn.Module):
    def __init__(self, function: Callable[..., object] = torch.add) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Sequence[Tensor] = (), scale: float = 1.0) -> object:
        return self.function(x, y[0]) if y else self.function(x, scale)


def captured(function: Callable[..., object], *inputs: object, **wanted: Sequence[int]) -> Captured:
    model = Model(function)
    return capture(model, inputs, asked=asked_size(model, inputs, wanted))


def test_one_size_of_two_arguments() -> None:
    x, y = torch.randn(3, 7), [torch.randn(7)]
    graph = captured(torch.add, x, y, x=(1,), y=(0,)).graph
    assert graph.example == {"length": 7}
    assert graph.outputs[0].shape == (3, BatchSize(1, ("length",)))


def test_a_leading_size_is_the_batch_size() -> None:
    """Of the arguments that are named, and no others, though they have the same size."""
    made = captured(lambda x, y: x.relu(), torch.randn(4, 7), [torch.randn(4)], x=(-2,))
    assert made.graph.example == {"batch": 4}
    assert [n.shape for n in made.graph.inputs] == [(BatchSize(1), 7), (4,)]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"z": (0,)}, "z:0: forward is given no z; choose among x, y, scale"),
        ({"scale": (0,)}, "scale:0: scale is given no tensor"),
        ({"x": (2,)}, "x:2: x has 2 dimensions"),
        ({"x": (0,), "y": (0,)}, "x:0, y:0: one size can be free, and these are several: 3 and 7"),
        ({"x": (0, 1)}, "x:0,1: one size can be free, and these are several: 3 and 7"),
    ],
)
def test_what_names_no_size(wanted: Mapping[str, Sequence[int]], said: str) -> None:
    with pytest.raises(BadUsage, match=re.escape(said)):
        asked_size(Model(), [torch.randn(3, 7), [torch.randn(7)], 2.0], wanted)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x, _: x @ x.transpose(0, 1), "a matrix product sums along it"),
        (lambda x, _: x[:, :, None] * x[:, None], "another size of the model is no fixed multiple"),
        (lambda x, _: x if x.shape[1] == 7 else -x, "torch.export says: "),
    ],
)
def test_why_it_is_fixed(function: Callable[..., object], said: str) -> None:
    made = captured(function, torch.randn(3, 7), x=(1,))
    assert made.fixed.startswith(said)
    assert made.graph.free == ()


def test_a_size_of_one_is_fixed() -> None:
    made = captured(torch.add, torch.randn(3, 1), x=(1,))
    assert (made.graph.free, made.fixed) == ((), "it is 1 or less in the example")


def test_a_largest_size() -> None:
    table = torch.randn(20, 4)
    made = captured(lambda x, _: x + table[: x.shape[1]], torch.randn(3, 7, 4), x=(1,))
    (free,) = made.graph.free
    assert (free.most, free.bounds) == (20, "2 to 20")
