"""Convolutions whose kernels reduce channels: whole models, as good as eager. They need sm_90a."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import fusewright
from fusewright.kernels.conv import match
from fusewright.kernels.tensor_core import epilogue
from tests.kernels.conv.test_channel_reduction import layer_norm, split

pytestmark = pytest.mark.gpu

IN = 64
# name -> channels, what follows the convolution
TAILS: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "logsumexp": (128, lambda z: torch.logsumexp(z * 4, 1)),
    "logsumexp, then maps": (40, lambda z: F.mish(torch.logsumexp(z, 1, keepdim=True) * 0.5)),
    "softmax": (96, lambda z: torch.softmax(z, 1)),
    "softmax of few": (32, lambda z: torch.softmax(z * 8, 1) * 2),
    "softmax of all that fit": (256, lambda z: torch.softmax(z, 1)),
    "minimum": (48, lambda z: torch.tanh(torch.tanh(z.amin(1, keepdim=True)))),
    "maximum": (128, lambda z: z.amax(1)),
    "mean beside itself": (64, lambda z: z - z.mean(1, keepdim=True)),
    "sum of an odd number": (33, lambda z: torch.relu(z).sum(1)),
    "three quarters": (160, lambda z: torch.softmax(z, 1)),
    "almost as many": (250, lambda z: torch.logsumexp(z, 1)),
    "layer norm": (64, lambda z: F.gelu(layer_norm(z))),
    "groups of channels": (128, lambda z: split(z, 8, 16).amax(2)),
    "odd groups of channels": (60, lambda z: torch.softmax(split(z, 5, 12), 2)),
}  # fmt: skip


class All(nn.Module):
    """Every tail behind a convolution of its own."""

    def __init__(self, kernel: int, **more: int) -> None:
        super().__init__()
        counts = [channels for channels, _ in TAILS.values()]
        self.layers = nn.ModuleList(nn.Conv2d(IN, n, kernel, **more) for n in counts)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        every = zip(self.layers, TAILS.values(), strict=True)
        return tuple(tail(layer(x)) for layer, (_, tail) in every)


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU for sm_90a here")
    every = dict.fromkeys(match.LEAST_FLOPS, 0)
    monkeypatch.setattr(match, "LEAST_FLOPS", every)
    monkeypatch.setattr(epilogue, "_check_worth", lambda *_: None)


def kernels(new: nn.Module, x: Tensor) -> int:
    """How many convolutions of ours a call runs."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        new(x)
        torch.cuda.synchronize()
    return sum("conv_kernel" in event.name for event in profiled.events() or ())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("size", "kernel", "more"), [
    ((24, 24), 3, {"padding": 1}),
    ((21, 27), 3, {}),
    ((33, 17), 5, {"stride": 2, "padding": 3}),
])  # fmt: skip
@torch.no_grad()
def test_whole_models_are_as_good_as_eager(
    size: tuple[int, ...], kernel: int, more: dict[str, int], dtype: torch.dtype
) -> None:
    torch.manual_seed(9)
    module, shape = All(kernel, **more).to(dtype), (6, IN, *size)
    new = fusewright.optimize(
        module, torch.randn(shape).to(dtype), options={"target": "cuda"}
    ).cuda()
    module = module.cuda()
    exact = copy.deepcopy(module).double()
    x = torch.randn(shape, device="cuda").to(dtype)
    # In float32, only where PyTorch rounds, too.
    assert kernels(new, x) >= (1 if dtype is torch.float32 else len(TAILS))
    for batch in (shape[0], 7, 2, 1, 0):
        x = torch.randn(batch, *shape[1:], device="cuda").to(dtype)
        for name, truth, theirs, ours in zip(
            TAILS, exact(x.double()), module(x), new(x), strict=True
        ):
            assert ours.shape == truth.shape
            assert ours.dtype == theirs.dtype
            wrong, eager = ((t.double() - truth).norm() for t in (ours, theirs))
            least = 3.2e-4 * truth.norm() if dtype is torch.float32 else 0
            assert wrong <= max(1.1 * eager, least) + 1e-12, name
    x = torch.randn(shape, device="cuda").to(dtype)
    x.flatten()[:: x.numel() // 3 - 5] = float("inf")
    x.flatten()[x.numel() // 5] = float("nan")
    for name, truth, ours in zip(TAILS, exact(x.double()), new(x), strict=True):
        assert torch.equal(ours.isfinite(), truth.isfinite()), name
        assert torch.equal(ours.isnan(), truth.isnan()), name


@torch.no_grad()
def test_images_of_any_size() -> None:
    """Sums whose scales differ from channel to channel, and that have none in common."""
    torch.manual_seed(10)
    module, shape = All(3, padding=1), (3, IN, 24, 24)
    new = fusewright.optimize(module, torch.randn(shape), options={"target": "cuda"}).cuda()
    module = module.cuda()
    plain = torch.randn(shape, device="cuda")
    spike = plain.clone()
    spike[1, 5, 20, 20] = 1e6
    sizes = torch.tensor([1.0, 1e-12, 1e12], device="cuda").view(3, 1, 1, 1)
    for x in (plain * 1e30, plain * 1e-30, spike, plain * sizes, torch.zeros_like(plain)):
        exact = copy.deepcopy(module).double()
        for name, truth, theirs, ours in zip(
            TAILS, exact(x.double()), module(x), new(x), strict=True
        ):
            if "softmax" in name:  # which of two large numbers is larger, a rounding decides
                continue
            for image in range(3):
                wrong, eager = ((t[image] - truth[image]).double().norm() for t in (ours, theirs))
                least = 6e-4 * truth[image].norm() + 1e-30
                assert wrong <= max(1.1 * eager, least) or not eager.isfinite(), name
