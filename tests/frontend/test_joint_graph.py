"""What forward and backward graphs call, which sizes are free in them, and which cannot be had for
a GPU that is elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fusewright.errors import CaptureFailed
from fusewright.frontend.capture import Captured, capture
from fusewright.frontend.joint_graph import JointGraph, capture_joint
from fusewright.ir.graph import Node, toposort


class Layers(nn.Module):
    """A convolution, statistics of the batch that stay PyTorch's, and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.head(self.norm(self.conv(x).mean((2, 3)))))


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(nn.functional.scaled_dot_product_attention(x, x, x))


def joint(module: nn.Module, inputs: list[Any], device: str = "cpu") -> JointGraph:
    return capture_joint(module, inputs, capture(module, inputs), device)


def calls(captured: Captured) -> dict[str, Node]:
    found = [n for n in toposort(captured.graph.roots) if n.op == "library"]
    return {n.called or "": n for n in found}


@pytest.fixture(scope="module")
def layers() -> JointGraph:
    torch.manual_seed(0)
    return joint(Layers(), [torch.randn(6, 3, 8, 8)])


def test_layers_are_called_as_models_call_them(layers: JointGraph) -> None:
    found = calls(layers.forward)
    assert {"aten.conv2d", "aten.linear"} <= found.keys()
    assert found.keys().isdisjoint({"aten.convolution", "aten.addmm"})


def test_transposed_convolutions_are_layers_too() -> None:
    for rank in (1, 2, 3):
        kind = getattr(nn, f"ConvTranspose{rank}d")
        module = nn.Sequential(kind(3, 4, 3, stride=2, output_padding=1, groups=1), nn.Tanh())
        found = calls(joint(module, [torch.randn(2, 3, *[5] * rank)]).forward)
        assert f"aten.conv_transpose{rank}d" in found


def test_a_batch_norm_updates_its_buffers_itself(layers: JointGraph) -> None:
    (norm,) = (n for n in layers.forward.graph.effects if "batch_norm" in (n.called or ""))
    assert norm.call.function == "torch.native_batch_norm"
    assert [str(u.target["name"]) for u in layers.forward.graph.updates] == [
        "norm.num_batches_tracked"
    ]


def test_derivatives_of_convolutions_leave_out_what_nobody_reads(layers: JointGraph) -> None:
    masks = []
    for one in layers.backward:
        (text,) = (
            n.call.render(["a", "b", "c"], "", {})
            for name, n in calls(one.captured).items()
            if name == "aten.convolution_backward"
        )
        masks.append(text.rpartition("[")[2])
    assert masks == ["True, True, True])", "False, True, True])"]
    assert [0 in one.of for one in layers.backward] == [True, False]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, which says how")
@pytest.mark.parametrize(
    ("module", "inputs", "why"),
    [
        (Attention(), [torch.randn(2, 2, 8, 16, requires_grad=True)], "differentiate attention"),
        (nn.LayerNorm(8).half(), [torch.randn(4, 8).half()], "with 16 bits otherwise"),
    ],
    ids=["attention", "16 bits"],
)
def test_a_gpu_elsewhere_may_differentiate_otherwise(
    module: nn.Module, inputs: list[Any], why: str
) -> None:
    assert joint(module, inputs).leaves
    with pytest.raises(CaptureFailed, match=why):
        joint(module, inputs, "cuda")


# ---- free sizes ----------------------------------------------------------------------------------


class Weights(nn.Module):
    """Products of matrices that PyTorch copies, or shows, by the batch: the same is computed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = x.view(x.shape[0], 6, 2, 8).transpose(1, 2)
        return torch.softmax(parts @ parts.transpose(-1, -2), -1) @ parts


class Columns(nn.Module):
    """A slice of all rows, whose derivative is written all over."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * x.sum(1)[:, None])


class Distance(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(torch.tanh(x), y)


class Shift(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.shift).sum()


class Deviation(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x / (x.std(0) + 1))


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(shape, requires_grad=True)


@pytest.mark.parametrize(
    ("module", "inputs", "least"),
    [
        (Layers(), [leaf(6, 3, 8, 8)], 2),  # statistics of a batch of one raise
        (Layers().eval(), [leaf(6, 3, 8, 8)], 1),
        (Weights(), [leaf(4, 6, 16)], 1),
        (Columns(), [leaf(5, 7)], 1),
        (Distance(), [leaf(5, 7), leaf(5, 7)], 1),
        (encoder(), [leaf(4, 7, 16)], 2),  # one row of it is another product
    ],
    ids=["train", "eval", "products", "slice", "mean", "encoder"],
)
def test_the_batch_is_free_with_gradients(module: nn.Module, inputs: list[Any], least: int) -> None:
    found = joint(module, inputs)
    assert found.fixed == ""
    for one in (found.forward, *(graph.captured for graph in found.backward)):
        (size,) = one.graph.free
        assert (size.name, size.example, size.least) == ("batch", len(inputs[0]), least)


def test_nothing_is_written_over_memory_that_is_new() -> None:
    (backward, *_) = joint(Columns(), [leaf(5, 7)]).backward
    assert not calls(backward.captured)


def test_backward_is_handed_an_argument_where_nothing_else_has_the_batch() -> None:
    module, x = Shift(), leaf(5, 8)
    found = joint(module, [x])
    for graph in found.backward:
        assert [a.parameter for a in graph.captured.arguments] == ["x", "gradient"]
    assert found.forward.graph.outputs[found.results :] == found.forward.graph.inputs


def test_a_derivative_that_is_not_free_is_made_at_the_examples_sizes() -> None:
    module, inputs = Deviation(), [leaf(5, 7)]
    given = capture(module, inputs)
    found = capture_joint(module, inputs, given)
    assert given.graph.free
    assert found.fixed == "a size or a number of the derivative is no product of free sizes"
    assert not found.forward.graph.free
    assert [*found.forward.fixed.values()] == [f"with gradients, {found.fixed}"]


def test_sizes_may_be_kept_fixed() -> None:
    module, inputs = Columns(), [leaf(5, 7)]
    found = capture_joint(module, inputs, capture(module, inputs), fixed="because")
    assert (found.fixed, found.forward.graph.free) == ("because", ())
    assert found.backward[0].captured.graph.inputs[0].shape == (5, 7)
