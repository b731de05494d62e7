"""Convolutions whose kernels take pools, too: whole models, as good as eager. They need sm_90a."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fusewright
from fusewright.kernels.conv import match, pool_fusion
from tests.gpu.test_conv_channel_reduction import kernels

pytestmark = pytest.mark.gpu

IN = 64
# name -> channels, what follows the convolution
TAILS: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "largest": (128, lambda z: F.max_pool2d(torch.relu(z), 2)),
    "largest of few": (24, lambda z: F.max_pool2d(z, 2) + 1),
    "average": (64, lambda z: F.avg_pool2d(torch.tanh(z) * 2, 2)),
    "of a line": (150, lambda z: F.max_pool2d(torch.sigmoid(z), (1, 2))),
    "of four lines": (320, lambda z: F.max_pool2d(z * torch.sigmoid(z), (4, 1))),
    "of all": (72, lambda z: torch.relu(z).mean((2, 3)) * 2),
    "largest of all": (140, lambda z: F.adaptive_max_pool2d(torch.tanh(z), 1)),
    "of eight": (48, lambda z: F.avg_pool2d(torch.relu(z), (2, 4))),
}


class All(nn.Module):
    """Every tail behind a convolution of its own."""

    def __init__(self, kernel: int, channels: int = IN, **more: int) -> None:
        super().__init__()
        counts = [n for n, _ in TAILS.values()]
        self.layers = nn.ModuleList(nn.Conv2d(channels, n, kernel, **more) for n in counts)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        every = zip(self.layers, TAILS.values(), strict=True)
        return tuple(tail(layer(x)) for layer, (_, tail) in every)


class Volume(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv3d(32, 72, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (F.max_pool3d(torch.relu(self.layer(x)), 2),)


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU for sm_90a here")
    every = dict.fromkeys(match.LEAST_FLOPS, 0)
    monkeypatch.setattr(match, "LEAST_FLOPS", every)
    monkeypatch.setattr(pool_fusion, "LEAST_WINDOWS", 1)
    monkeypatch.setattr(pool_fusion, "WINDOWS", (2, 4, 8))


def compare(
    new: nn.Module, module: nn.Module, x: Tensor, least: float = 3.2e-4, but: tuple[int, ...] = ()
) -> None:
    """All results but some, against float64."""
    exact = copy.deepcopy(module).double()
    every = zip(exact(x.double()), module(x), new(x), strict=True)
    for truth, theirs, ours in (each for k, each in enumerate(every) if k not in but):
        assert ours.shape == truth.shape
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours.isnan(), truth.isnan())
        assert torch.equal(ours.isinf(), truth.isinf())
        size = truth.nan_to_num(0, 0, 0).norm() * (x.dtype is torch.float32)
        wrong, eager = ((t.double() - truth).nan_to_num(0, 0, 0).norm() for t in (ours, theirs))
        assert wrong <= max(1.1 * eager, least * size) + 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("size", "kernel", "channels", "more"), [
    ((24, 24), 3, IN, {"padding": 1}),
    ((21, 27), 3, 40, {}),
    ((37, 30), 5, 16, {"padding": 3, "dilation": 2}),
])  # fmt: skip
@torch.no_grad()
def test_whole_models_are_as_good_as_eager(
    size: tuple[int, ...], kernel: int, channels: int, more: dict[str, int], dtype: torch.dtype
) -> None:
    torch.manual_seed(9)
    module, shape = All(kernel, channels, **more).to(dtype), (6, channels, *size)
    new = fusewright.optimize(
        module, torch.randn(shape).to(dtype), options={"target": "cuda"}
    ).cuda()
    module = module.cuda()
    x = torch.randn(shape, device="cuda").to(dtype)
    assert kernels(new, x) >= (1 if dtype is torch.float32 else len(TAILS))
    for batch in (shape[0], 7, 2, 1, 0):
        compare(new, module, torch.randn(batch, *shape[1:], device="cuda").to(dtype))
    x = torch.randn(shape, device="cuda").to(dtype)
    x.flatten()[:: x.numel() // 3 - 5] = float("inf")
    x.flatten()[x.numel() // 5] = float("nan")
    compare(new, module, x)


@pytest.mark.parametrize("size", [(8, 10, 12), (5, 7, 9)])
@torch.no_grad()
def test_volumes(size: tuple[int, ...]) -> None:
    torch.manual_seed(10)
    module, shape = Volume(), (4, 32, *size)
    new = fusewright.optimize(module, torch.randn(shape), options={"target": "cuda"}).cuda()
    module, x = module.cuda(), torch.randn(shape, device="cuda")
    for n in (4, 3, 1):
        compare(new, module, x[:n])


@torch.no_grad()
def test_images_of_any_size() -> None:
    """Sums whose scales differ from channel to channel, and that have none in common."""
    torch.manual_seed(11)
    module, shape = All(3, padding=1), (3, IN, 24, 24)
    new = fusewright.optimize(module, torch.randn(shape), options={"target": "cuda"}).cuda()
    module = module.cuda()
    bounded = tuple(
        k for k, name in enumerate(TAILS) if name in ("average", "of a line", "largest of all")
    )
    plain = torch.randn(shape, device="cuda")
    spike = plain.clone()
    spike[1, 5, 20, 20] = 1e6
    sizes = torch.tensor([1.0, 1e-12, 1e12], device="cuda").view(3, 1, 1, 1)
    for x in (plain * 1e30, plain * 1e-30, spike, plain * sizes, torch.zeros_like(plain)):
        for image in x.split(1):  # of large numbers, a rounding decides between -1 and 1
            compare(new, module, image, 6e-4, bounded)


@torch.no_grad()
def test_full_float32() -> None:
    """Where PyTorch does not round, windows are as precise."""
    torch.manual_seed(12)
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        module, shape = All(3), (6, IN, 22, 26)
        new = fusewright.optimize(module, torch.randn(shape), options={"target": "cuda"}).cuda()
        x = torch.randn(shape, device="cuda")
        assert kernels(new, x) == len(TAILS)
        compare(new, module.cuda(), x, 2e-7)
    finally:
        torch.backends.cudnn.allow_tf32 = before
