"""The size that a caller names: which tensors have it, and why it is not free."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn

from fusewright.errors import BadUsage
from fusewright.frontend.asked_size import asked_sizes
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
    return capture(model, inputs, asked=asked_sizes(model, inputs, wanted))


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
    ],
)
def test_what_names_no_size(wanted: Mapping[str, Sequence[int]], said: str) -> None:
    with pytest.raises(BadUsage, match=re.escape(said)):
        asked_sizes(Model(), [torch.randn(3, 7), [torch.randn(7)], 2.0], wanted)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x, _: torch.cat([x, x[:, :1]], 1), "another size of the model is no product"),
        (lambda x, _: x if x.shape[1] == 7 else -x, "torch.export says: "),
    ],
)
def test_why_it_is_fixed(function: Callable[..., object], said: str) -> None:
    made = captured(function, torch.randn(3, 7), x=(1,))
    (why,) = made.fixed.values()
    assert why.startswith(said)
    assert made.graph.free == ()


@pytest.mark.parametrize(
    "function",
    [
        lambda x, _: x @ x.transpose(0, 1),  # PyTorch's own product sums along it
        lambda x, _: (x[:, :, None] * x[:, None]).sum(2),
    ],
)
def test_squares_and_products_along_it(function: Callable[..., object]) -> None:
    made = captured(function, torch.randn(3, 7), x=(1,))
    assert made.graph.example == {"length": 7}


def test_a_size_of_one_is_fixed() -> None:
    made = captured(torch.add, torch.randn(3, 1), x=(1,))
    assert made.graph.free == ()
    assert [*made.fixed.values()] == ["it is 1 or less in the example"]


def test_a_largest_size() -> None:
    table = torch.randn(20, 4)
    made = captured(lambda x, _: x + table[: x.shape[1]], torch.randn(3, 7, 4), x=(1,))
    (free,) = made.graph.free
    assert (free.most, free.bounds) == (20, "2 to 20")


# ---- several sizes -------------------------------------------------------------------------------


def names(made: Captured) -> dict[str, str]:
    """The sizes that are asked for: as they were, and what they are called."""
    return {size.text: size.name for size in made.asked}


def test_two_sizes_of_one_argument() -> None:
    made = captured(torch.add, torch.randn(3, 7, 4), x=(0, 1))
    assert made.graph.example == {"batch": 3, "length": 7}
    assert made.graph.outputs[0].shape == (BatchSize(1), BatchSize(1, ("length",)), 4)
    assert names(made) == {"x:0": "batch", "x:1": "length"}
    assert [free.bounds for free in made.graph.free] == ["1 or more", "1 or more"]


def test_sizes_of_two_arguments() -> None:
    """What is equal is one size; leading ones that are not have names of their own."""
    made = captured(lambda x, y: (x * 2, y * 2), torch.randn(3, 7), [torch.randn(7, 3)],
                    x=(0, 1), y=(0, -1))  # fmt: skip
    assert names(made) == {"x:0, y:-1": "length", "x:1, y:0": "length_2"}
    made = captured(lambda x, y: (x * 2, y * 2), torch.randn(3, 7), [torch.randn(5)],
                    x=(0,), y=(0,))  # fmt: skip
    assert made.graph.example == {"batch": 3, "batch_2": 5}


def test_equal_sizes_of_one_argument_are_two() -> None:
    made = captured(lambda x, y: x * y[0], torch.randn(7, 7, 4), [torch.randn(7, 7, 1)],
                    x=(0, 1), y=(0, 1))  # fmt: skip
    assert names(made) == {"x:0, y:0": "batch", "x:1, y:1": "length"}
    assert made.graph.example == {"batch": 7, "length": 7}


def test_equal_sizes_that_must_be_one() -> None:
    """Of a mask with as many rows as columns."""

    def masked(x: Tensor, y: Tensor) -> Tensor:
        return (x @ x.transpose(1, 2)) * y

    made = captured(masked, torch.randn(3, 7, 4), [torch.rand(7, 7)], x=(0, 1), y=(0, 1))
    assert names(made) == {"x:0": "batch", "x:1, y:0, y:1": "length"}
    assert made.graph.example == {"batch": 3, "length": 7}


def test_those_that_can_be_free_are() -> None:
    made = captured(lambda x, _: torch.cat([x, x[:, :1]], 1), torch.randn(3, 7, 4), x=(0, 1, 2))
    assert made.graph.example == {"batch": 3, "length_2": 4}
    assert {size.text: why for size, why in made.fixed.items()} == {
        "x:1": "another size of the model is no product of free ones"
    }


@pytest.mark.parametrize(
    "function",
    [
        lambda x, _: x * 2 if x.shape[0] != x.shape[1] else -x,
        lambda x, _: x * 2 if x.shape[0] * x.shape[1] > 20 else -x,
        lambda x, _: x.flatten(0, 1).reshape(21, 4) * 2,
    ],
)
def test_sizes_that_a_model_compares(function: Callable[..., object]) -> None:
    assert captured(function, torch.randn(3, 7, 4), x=(0, 1)).graph.free == ()


def test_what_a_model_asks_of_two_sizes_together() -> None:
    """torch.export takes what relates them for granted; any batch of 7 rows each is sevens."""

    def asks(x: Tensor, _: object) -> Tensor:
        return x * 2 if x.shape[0] * x.shape[1] % 7 == 0 else -x

    made = captured(asks, torch.randn(3, 7, 4), x=(0, 1))
    assert made.graph.example == {"batch": 3}
    assert [*made.fixed.values()] == ["what the model does depends on Eq(Mod(batch*length, 7), 0)"]


def test_each_has_its_bounds() -> None:
    table = torch.randn(20, 4)

    def places(x: Tensor, _: object) -> Tensor:
        return (x if x.shape[0] > 1 else -x) + table[: x.shape[1]]

    made = captured(places, torch.randn(3, 7, 4), x=(0, 1))
    assert [free.bounds for free in made.graph.free] == ["2 or more", "2 to 20"]


def test_ones_are_proved_together() -> None:
    """Where both are 1, the model asks for something else: the second one stays at 2 or more."""

    def both(x: Tensor, _: object) -> Tensor:
        return -x if x.shape[0] * x.shape[1] == 1 else x * 2

    made = captured(both, torch.randn(3, 7, 4), x=(0, 1))
    assert [(free.name, free.least) for free in made.graph.free] == [("batch", 1), ("length", 2)]


def test_products_of_sizes() -> None:
    made = captured(lambda x, _: (x.flatten(0, 1) * 2, x.shape[0] * x.shape[1]),
                    torch.randn(3, 7, 4), x=(0, 1))  # fmt: skip
    assert made.graph.outputs[0].shape == (BatchSize(1, ("batch", "length")), 4)
    assert "BatchSize(multiple=1, names=('batch', 'length'))" in str(made.results)
