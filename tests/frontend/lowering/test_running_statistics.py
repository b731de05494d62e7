"""Running statistics of batch norms in train mode are rounded once for each call."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fusewright.frontend.capture import capture, state_of
from fusewright.ir.interpreter import interpret

LAYERS = (
    nn.BatchNorm1d(96),
    nn.BatchNorm1d(96, momentum=0.3),
    nn.BatchNorm2d(96, momentum=1 / 3),
    nn.BatchNorm2d(96, momentum=1.0),
    nn.BatchNorm3d(96, momentum=1e-3),
    nn.BatchNorm2d(96, dtype=torch.bfloat16),
    nn.BatchNorm3d(96, dtype=torch.float16),
)


class Repeated(nn.Module):
    def __init__(self, norm: nn.Module, times: int) -> None:
        super().__init__()
        self.norm, self.times = norm, times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = self.norm(x)
        return x


@pytest.mark.slow
@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("times", [1, 2])
@torch.no_grad()
def test_running_statistics_are_rounded_once_for_each_call(layer: nn.Module, times: int) -> None:
    """Channels of equal elements: their means are exact, and what is normalised is 0."""
    torch.manual_seed(times)
    norm = copy.deepcopy(layer)
    start = {"running_mean": torch.randn(96), "running_var": torch.rand(96) + 0.5}
    start = {name: value.to(layer.weight.dtype) for name, value in start.items()}
    norm.load_state_dict(start, strict=False)
    means = torch.randn(96).bfloat16().to(layer.weight.dtype)  # few bits, so sums are exact
    rank = int(type(layer).__name__[-2])
    x = means.reshape(1, 96, *(1,) * rank).expand(4, 96, *(2,) * rank).contiguous()
    model = Repeated(norm, times)
    captured = capture(model, (x,))
    targets = [str(u.target["name"]).rpartition(".")[2] for u in captured.graph.updates]
    found = interpret(captured.graph, [x], state_of(captured, model))[-len(targets) :]
    made = dict(zip(targets, found, strict=True))
    nothing = torch.zeros(96)
    for name, seen in {"running_mean": (means, nothing), "running_var": (nothing,) * 2}.items():
        value = start[name]
        for new in seen[:times]:
            moved = norm.momentum * new.double() + (1 - norm.momentum) * value.double()
            value = moved.to(value.dtype)
        assert made[name].dtype is value.dtype
        assert torch.equal(made[name], value), name
