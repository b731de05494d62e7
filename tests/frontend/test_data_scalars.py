"""Numbers that only the data knows: `.item()` as a factor, an index, a part of other numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import fusewright
from fusewright.errors import CaptureFailed
from fusewright.frontend.capture import capture
from fusewright.ir.graph import toposort
from fusewright.ir.interpreter import interpret

X = torch.linspace(-2, 2, 24).reshape(4, 6)
T, N = torch.tensor(0.3), torch.tensor([2])
# name -> forward of (x, t, n): a float and an integer of one element
FORWARDS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "factor": lambda x, t, n: torch.relu(x) * t.item(),
    "weak type": lambda x, t, n: x.half() * t.double().item(),
    "of integers": lambda x, t, n: (x * 9).int() * t.item(),
    "integer factor": lambda x, t, n: (x * 9).to(torch.int32) * n.item(),
    "step": lambda x, t, n: x + (1.0 - t.item()) * torch.sin(x),
    "square": lambda x, t, n: x / (t.item() ** 2 + 1e-6),
    "quotient": lambda x, t, n: x * (1 / t.item()),
    "mixed": lambda x, t, n: x * (t.item() * n.item() - 3),
    "batch": lambda x, t, n: x * (t.item() / x.shape[0]),
    "compared": lambda x, t, n: torch.where(x.bfloat16() > t.item(), x, -x),
    "filled": lambda x, t, n: x.masked_fill(x > 0, t.item()),
    "clamped": lambda x, t, n: x.clamp(-t.item(), t.item()),
    "slope": lambda x, t, n: torch.nn.functional.leaky_relu(x, t.item()) * 2,
    "alpha": lambda x, t, n: torch.add(x, x * x, alpha=t.item()),
    "power": lambda x, t, n: x.abs() ** t.item(),
    "whole power": lambda x, t, n: x ** n.item(),
    "power of it": lambda x, t, n: t.abs().item() ** x,
    "power of a whole one": lambda x, t, n: (n.abs() + 1).item() ** (x * x.shape[0]),
    "at most": lambda x, t, n: x.clamp(max=t.item()),
    "at least": lambda x, t, n: x.clip(min=n.item()),
    "list": lambda x, t, n: x * x[1].tolist()[2],
    "index": lambda x, t, n: torch.exp(x[n.item()]) * 2,
    "index and factor": lambda x, t, n: x[:, n.item()] * n.item() + t.item(),
    "column in a bilinear form": lambda x, t, n: torch.nn.functional.bilinear(
        x[..., n.item()], x[..., n.item()], x[None, :, :4]
    ),
    "column in a similarity": lambda x, t, n: torch.cosine_similarity(x[..., n.item()], x[:, 0], 0),
    "rows": lambda x, t, n: torch.roll(x + 1, n.item(), 1),
    "made": lambda x, t, n: torch.full((4, 6), t.item()) + x,
}

BOUNDS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "above": lambda x, t, n: x.clamp(max=t.item()),
    "below": lambda x, t, n: x.clamp(min=t.item()),
    "clipped": lambda x, t, n: x.clip(max=t.item()),
    "in place": lambda x, t, n: x.clone().clamp_(min=t.item()),
    "both": lambda x, t, n: x.clamp(-1.0, t.item()),
    "a tensor": lambda x, t, n: x.clamp(max=t),
    "clamp_max": lambda x, t, n: x.clamp_max(t.item()),
    "clamp_min": lambda x, t, n: torch.clamp_min(x, t.item()),
    "a constant": lambda x, t, n: x.clamp(max=math.nan),
    "a constant of two": lambda x, t, n: x.clamp(math.nan, 1.0),
    "of integers": lambda x, t, n: x.nan_to_num(0, 0).int().clamp(max=t.item()),
    "a whole number": lambda x, t, n: x.clamp(max=n.item()),
}


class Numbers(nn.Module):
    def __init__(self, forwards: list[Callable[[Tensor, Tensor, Tensor], Tensor]]) -> None:
        super().__init__()
        self.forwards = forwards

    def forward(self, x: Tensor, t: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        return tuple(f(x, t, n) for f in self.forwards)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORWARDS)
def test_a_number_of_the_data_is_captured(name: str) -> None:
    made = capture(Numbers([FORWARDS[name]]), [X, T, N])
    for t, n in ((T, N), (torch.tensor(-1.7), torch.tensor([-1]))):
        if name == "power":
            t = t.abs()
        (found,) = interpret(made.graph, [X, t, n], {})
        wanted = FORWARDS[name](X, t, n)
        assert found.dtype is wanted.dtype
        torch.testing.assert_close(found, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_a_bound_that_is_nan_is_what_this_pytorch_makes_of_it(
    name: str, dtype: torch.dtype
) -> None:
    x = X.clone().to(dtype)
    x[1, 2], x[2, 3] = math.nan, math.inf
    t = torch.tensor(math.nan)
    (found,) = interpret(capture(Numbers([BOUNDS[name]]), [x, T, N]).graph, [x, t, N], {})
    torch.testing.assert_close(found, BOUNDS[name](x, t, N), equal_nan=True)


def test_a_power_says_nothing_of_the_sign() -> None:
    """PyTorch's own trace takes the base of a power for positive."""

    def forward(x: Tensor, t: Tensor, n: Tensor) -> Tensor:
        number = t.item()
        return x * number**2 if number >= 0 else x

    with pytest.raises(CaptureFailed, match="`if`"):
        capture(Numbers([forward]), [X, T, N])


def test_a_number_of_arithmetic_stays_a_tensor() -> None:
    """Nobody waits for its value."""
    graph = capture(Numbers([FORWARDS["step"]]), [X, T, N]).graph
    assert not [n for n in toposort(graph.roots) if n.op == "library"]


@pytest.mark.slow
def test_kernels_take_numbers_of_the_data() -> None:
    module = Numbers([*FORWARDS.values()])
    fused = fusewright.optimize(module, X, T, N, options={"target": "cpu"})
    for t, n in ((T, N), (torch.tensor(1.7), torch.tensor([-1]))):
        for name, a, b in zip(FORWARDS, fused(X, t, n), module(X, t, n), strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape), name
            torch.testing.assert_close(a, b, msg=name)
    with pytest.raises(ZeroDivisionError):  # of Python, as in eager
        fused(X, torch.tensor(0.0), N)
