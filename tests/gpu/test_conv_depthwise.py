"""Depthwise convolutions as maps: whole models on a GPU, against eager and float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import fusewright

pytestmark = pytest.mark.gpu
TYPES = (torch.float32, torch.float16, torch.bfloat16)
IMAGE = (6, 24, 33, 41)


class Block(nn.Module):
    """A convolution, what often follows it, and what it adds that to."""

    def __init__(self, conv: nn.Module, channels: int) -> None:
        super().__init__()
        self.conv = conv
        self.scale = nn.Parameter(torch.linspace(0.5, 2, channels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return nn.functional.silu(y * self.scale.reshape(-1, *(1,) * (x.dim() - 2)))


def block(channels: int, kernel: object, out: int | None = None, **more: object) -> nn.Module:
    conv = nn.Conv2d(channels, out or channels, kernel, groups=channels, **more)  # type: ignore[arg-type]
    return Block(conv, out or channels)


MODELS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "alone": (nn.Conv2d(24, 24, 3, padding=1, groups=24), IMAGE),
    "3 x 3": (block(24, 3, padding=1), IMAGE),
    "many threads": (block(96, 3, padding=1), (8, 96, 56, 58)),
    "strided": (block(24, 3, padding=1, stride=2, bias=False), IMAGE),
    "5 x 5, strided": (block(24, 5, padding=2, stride=(2, 1)), IMAGE),
    "7 x 7": (block(24, 7, padding=3), IMAGE),
    "dilated": (block(24, 3, padding="same", dilation=(3, 2)), IMAGE),
    "without padding": (block(24, (2, 4)), IMAGE),
    "several results": (block(24, 3, 72, padding=1), IMAGE),
    "small images": (block(320, 5, padding=2), (16, 320, 7, 7)),
    "1 dimension": (
        Block(nn.Conv1d(48, 48, 4, padding=3, groups=48), 48),
        (5, 48, 1021),
    ),
    "3 dimensions": (
        Block(nn.Conv3d(8, 8, 3, padding=1, groups=8), 8),
        (3, 8, 14, 15, 17),
    ),
    "mean of channels": (
        nn.Sequential(block(24, 3, padding=1), nn.AdaptiveAvgPool2d(1)),
        IMAGE,
    ),
    "group norm": (nn.Sequential(block(24, 5, padding=2), nn.GroupNorm(4, 24)), IMAGE),
    "twice": (nn.Sequential(block(24, 3, padding=1), block(24, 5, padding=2)), IMAGE),
    "a pool": (nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.ReLU()), IMAGE),
    "a pool, strided": (nn.Sequential(nn.AvgPool2d(3, 2, 1), nn.ReLU()), IMAGE),
}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_whole_models_are_as_good_as_eager(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    module, shape = copy.deepcopy(MODELS[name])
    module, x = module.to(dtype).cuda(), torch.randn(shape, device="cuda").to(dtype)
    new = fusewright.optimize(module, x, options={"target": "cuda"}).cuda()
    exact = copy.deepcopy(module).double()
    for given in (x, x[:3] * 3, x[:2], x[:1], x[:0]):
        truth, theirs, ours = exact(given.double()), module(given), new(given)
        assert ours.stride() == theirs.stride()
        error, allowed = (ours.double() - truth).norm(), (theirs.double() - truth).norm()
        if dtype is torch.float32:  # few results: half a unit each is as good as any other
            assert error <= max(1.1 * allowed, 2.0**-24 * truth.norm()) + 1e-12
        else:
            assert error <= 1.01 * allowed + 1e-12
    strange = x.clone()
    for place, value in ((0, torch.inf), (1, -torch.inf), (-1, torch.nan)):
        strange.view(len(x), -1)[:, place] = value
    theirs, ours = module(strange), new(strange)
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert torch.equal(ours.isinf(), theirs.isinf())


@torch.no_grad()
@pytest.mark.parametrize("name", ["alone", "strided", "several results", "1 dimension"])
def test_infinite_weights_matter_where_they_do_in_eager(name: str) -> None:
    torch.manual_seed(4)
    module, shape = copy.deepcopy(MODELS[name])
    module, x = module.cuda(), torch.rand(shape, device="cuda") + 1
    new = fusewright.optimize(module, x, options={"target": "cuda"}).cuda()
    weight = next(p for p in module.parameters() if p.dim() > 2).flatten(1)
    weight[:, 0], weight[:, -1] = torch.inf, torch.nan
    theirs, ours = module(x), new(x)
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert torch.equal(ours.isinf(), theirs.isinf())
    finite = theirs.isfinite()
    torch.testing.assert_close(ours[finite], theirs[finite])
