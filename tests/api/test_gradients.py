"""Calls that record gradients: kernels forward and backward, as far from float64 as eager is."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import checkpoint

import fusewright
from fusewright.errors import CaptureFailed
from fusewright.frontend.capture import capture
from fusewright.frontend.joint_graph import capture_joint
from tests.support.gradients import changed, check, counts, fused, tensors

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
pytestmark = pytest.mark.compiler


class Rows(nn.Module):
    """Linear, norm of rows, and what is pointwise."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 40)
        self.norm = nn.LayerNorm(40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.norm(torch.relu(self.linear(x)))) * 1.5


class Images(nn.Module):
    """A convolution with statistics of the batch, dropout, and two results in a dict."""

    def __init__(self, share: float = 0.0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(share)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor, *, scale: float = 2.0) -> dict[str, torch.Tensor]:
        h = torch.relu(self.norm(self.conv(x)))
        h = self.drop(h).mean((2, 3)) * scale
        return {"logits": self.head(h), "features": h}


class Tied(nn.Module):
    """One weight twice, a parameter by itself, and one that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(16, 12)
        self.scale = nn.Parameter(torch.full((16,), 0.5))
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.nn.functional.silu(self.down(x))
        return torch.sigmoid(h @ self.down.weight) * self.scale + x


class Deep(nn.Module):
    """More modules than a guard asks one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Rows() for _ in range(6))
        self.back = nn.ModuleList(nn.Linear(40, 24) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block, back in zip(self.blocks, self.back, strict=True):
            x = x + back(block(x))
        return x


class Loss(nn.Module):
    """Several arguments, one of which is a container and one integer; a number comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.head = nn.Linear(16, 11)

    def forward(self, pair: tuple[torch.Tensor, torch.Tensor], wanted: torch.Tensor) -> Any:
        words, shift = pair
        logits = self.head(torch.nn.functional.gelu(self.embed(words) + shift))
        return torch.nn.functional.cross_entropy(logits, wanted), logits


def rows() -> list[Any]:
    return [torch.randn(9, 24)]


def loss_inputs() -> list[Any]:
    words, wanted = torch.randint(11, (7,)), torch.randint(11, (7,))
    return [(words, torch.randn(7, 16)), wanted]


CASES: dict[str, tuple[Any, Any]] = {
    "rows": (Rows, rows),
    "images": (Images, lambda: [torch.randn(3, 4, 10, 9)]),
    "tied": (Tied, lambda: [torch.randn(6, 16)]),
    "deep": (Deep, rows),
    "loss": (Loss, loss_inputs),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_eagers(name: str, device: str) -> None:
    make, draw = CASES[name]
    torch.manual_seed(1)
    module, inputs = make().to(device), changed(draw(), lambda x: x.to(device))
    faster, calls = fused(module, inputs), 0
    assert "as written" not in faster.fusewright.explain()
    for wanted in (False, True):  # gradients of the inputs
        for x in tensors(inputs):
            x.requires_grad_(wanted and x.is_floating_point())
        for training in (True, False):
            module.train(training)
            faster.train(training)
            check(faster, module, inputs)
            calls += 1
    assert counts(faster) == {"kernels": calls, "reference_forward": 0, "because": {}}
    with torch.no_grad():
        for mine, its in zip(tensors(faster(*inputs)), tensors(module(*inputs)), strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)
    assert counts(faster)["kernels"] == calls + 1


@pytest.fixture(scope="module")
def pair() -> tuple[Rows, Any]:
    torch.manual_seed(0)
    module = Rows()
    return module, fused(module, rows())


def fresh(pair: tuple[Rows, Any]) -> tuple[Rows, Any, torch.Tensor]:
    module, faster = map(copy.deepcopy, pair)
    return module, faster, torch.randn(9, 24, requires_grad=True)


def test_a_training_step_is_eagers(pair: tuple[Rows, Any]) -> None:
    module, faster, x = fresh(pair)
    for one in (module, faster):
        step = torch.optim.SGD(one.parameters(), lr=0.1)
        for _ in range(3):
            step.zero_grad()
            one(x.detach()).square().sum().backward()  # a gradient that is one number, expanded
            step.step()
    for mine, its in zip(faster.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)


def test_what_autograd_does_with_a_graph(pair: tuple[Rows, Any]) -> None:
    """Twice through one graph, sums of gradients, hooks, checkpoints, a part of the gradients."""
    module, faster, x = fresh(pair)
    found = []
    for one in (module, faster):
        seen: list[torch.Tensor] = []
        y = one(x)
        y.register_hook(seen.append)
        y.sum().backward(retain_graph=True)
        y.square().sum().backward()
        checkpoint.checkpoint(one, x, use_reentrant=False).sum().backward()
        (part,) = torch.autograd.grad(one(x).sum(), [one.norm.bias])
        found.append([*seen, part, *(p.grad for p in one.parameters())])
    for mine, its in zip(*found, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-4)


def test_frozen_parameters_get_no_gradient(pair: tuple[Rows, Any]) -> None:
    module, faster, x = fresh(pair)
    for one in (module, faster):
        one.linear.requires_grad_(False)
    check(faster, module, [x])
    assert faster.linear.weight.grad is None
    for one in (module, faster):
        one.requires_grad_(False)
    check(faster, module, [x])
    assert not faster(x.detach()).requires_grad


def test_a_result_may_be_changed_in_place(pair: tuple[Rows, Any]) -> None:
    """As eager's may, or autograd notices that backward reads what was there."""
    module, faster, x = fresh(pair)
    wanted = torch.autograd.grad(module(x).mul_(2.0).sum(), list(module.parameters()))
    y = faster(x).mul_(2.0).sum()
    noticed = ""
    try:
        found = torch.autograd.grad(y, list(faster.parameters()))
    except RuntimeError as error:
        noticed = str(error)
    if noticed:
        assert "modified by an inplace operation" in noticed
        return
    for mine, its in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)


def test_a_derivative_of_a_derivative_is_the_originals(pair: tuple[Rows, Any]) -> None:
    module, faster, x = fresh(pair)

    def second(one: nn.Module) -> tuple[torch.Tensor, ...]:
        (first,) = torch.autograd.grad(one(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), [x, *one.parameters()])

    before = counts(faster)["reference_forward"]
    with pytest.warns(UserWarning, match="a derivative of its derivative"):
        found = second(faster)
    for mine, its in zip(found, second(module), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-4)
    assert counts(faster)["reference_forward"] == before + 1


def test_a_derivative_of_a_derivative_is_refused_where_forward_cannot_run_again() -> None:
    module, x = Images(), torch.randn(3, 4, 10, 9, requires_grad=True)
    faster = fused(module, [x.detach()], mode="train")
    with pytest.raises(RuntimeError, match="changes buffers or draws random numbers"):
        torch.autograd.grad(faster(x)["logits"].sum(), x, create_graph=True)


def test_autocast_around_backward_alone(pair: tuple[Rows, Any]) -> None:
    """It was off in forward: kernels run, and the original for a derivative of a derivative is in
    full precision."""
    module, faster, x = fresh(pair)
    before = counts(faster)
    found = []
    for one in (module, faster):
        y = one(x).square().sum()
        with torch.autocast("cpu"):
            found.append(torch.autograd.grad(y, [x, *one.parameters()]))
    for mine, its in zip(*reversed(found), strict=True):
        torch.testing.assert_close(mine, its, rtol=3e-2, atol=3e-2 * float(its.abs().max()))
    after = counts(faster)
    assert after["kernels"] == before["kernels"] + 1
    assert after["reference_forward"] == before["reference_forward"]
    y = faster(x).square().sum()
    with torch.autocast("cpu"), pytest.warns(UserWarning, match="a derivative of its derivative"):
        (first,) = torch.autograd.grad(y, x, create_graph=True)
    (plain,) = torch.autograd.grad(module(x).square().sum(), x)
    torch.testing.assert_close(first, plain, rtol=1e-4, atol=1e-5)


def test_what_was_changed_since_is_noticed(pair: tuple[Rows, Any]) -> None:
    """What backward reads, by autograd; what only the original would read, by us."""
    _, faster, x = fresh(pair)
    y = faster(x).sum()
    with torch.no_grad():
        faster.linear.weight.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    y = faster(x).sum()
    with torch.no_grad():
        faster.norm.bias.mul_(2.0)
    with (
        pytest.warns(UserWarning, match="a derivative of its derivative"),
        pytest.raises(RuntimeError, match="has been changed in place"),
    ):
        torch.autograd.grad(y, x, create_graph=True)


def test_dropout_draws_what_eager_draws() -> None:
    module, x = Images(0.5).train(), torch.randn(3, 4, 10, 9)
    faster = fused(module, [x], mode="train")
    check(faster, module, [x])
    assert counts(faster)["kernels"] == 1


def test_a_call_that_is_different_runs_the_original(pair: tuple[Rows, Any]) -> None:
    """Rows that are longer; a mode."""
    module, faster, _ = fresh(pair)
    x, before = torch.randn(5, 9, 24), counts(faster)["kernels"]
    with pytest.warns(UserWarning, match="shape of x"):
        check(faster, module, [x])
    assert counts(faster)["kernels"] == before
    with torch.autocast("cpu"), pytest.warns(UserWarning, match="autocast"):
        faster(torch.randn(9, 24)).sum().backward()


def test_without_the_option_the_original_records(pair: tuple[Rows, Any]) -> None:
    module, _, x = fresh(pair)
    faster = fusewright.optimize(module, x.detach(), options={"mode": "train"})
    with pytest.warns(UserWarning, match="needs a gradient, which kernels do not record"):
        check(faster, module, [x])


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class StraightThrough(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(Own.apply(self.linear(x)))


class Hooked(StraightThrough):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        if h.requires_grad:
            h.register_hook(lambda g: g * 2)
        return torch.tanh(h)


class Recurrent(StraightThrough):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.gru(self.linear(x))[0])


class Same(StraightThrough):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tanh(self.linear(x)), x.flatten()


class Constant(StraightThrough):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x)).detach() + 1


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (StraightThrough, "calls a torch.autograd.Function"),
        (Hooked, "calls Tensor.register_hook"),
        (Recurrent, "aten.gru"),
        (Same, "result 1 of forward shows memory of another tensor"),
        (Constant, "no result of forward has a gradient"),
    ],
)
def test_what_a_trace_would_get_wrong_stays_as_written(kind: Any, why: str) -> None:
    module, inputs = kind(), rows()
    with pytest.raises(CaptureFailed, match=why):
        capture_joint(module, inputs, capture(module, inputs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        faster = fused(module, inputs)
        assert why in faster.fusewright.explain()
        if kind is not Constant:
            check(faster, module, [inputs[0].requires_grad_()])
