"""Pools inside the image -> maps of pieces: the same values, in one kernel with what follows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fusewright.capture import capture
from fusewright.codegen.body import body
from fusewright.interpret import interpret
from fusewright.ir import check, toposort
from fusewright.nest import nest
from fusewright.plan import plan
from fusewright.rewrite import rewrite
from fusewright.schedule import schedule
from fusewright.target import TARGETS
from fusewright.window import windows

GPU = TARGETS["sm_90a"]
# name -> the pool, the image's sizes
INSIDE: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "max 1d": (nn.MaxPool1d(3), (4, 5, 31)),
    "max 2d": (nn.MaxPool2d(2), (4, 5, 12, 14)),
    "max 2d, overlapping": (nn.MaxPool2d(3, 2), (4, 5, 13, 16)),
    "max 2d, uneven": (nn.MaxPool2d((2, 3), (3, 1)), (4, 5, 11, 9)),
    "max 3d": (nn.MaxPool3d(2), (2, 3, 6, 8, 5)),
    "average 1d": (nn.AvgPool1d(4, 2), (4, 5, 31)),
    "average 2d": (nn.AvgPool2d(2), (4, 5, 13, 14)),
    "average 2d, overlapping": (nn.AvgPool2d(3, 1), (4, 5, 12, 14)),
    "average 3d": (nn.AvgPool3d(3), (2, 3, 6, 9, 9)),
    "one image": (nn.MaxPool2d(2), (5, 12, 14)),
    "ceil, but even": (nn.MaxPool2d(2, ceil_mode=True), (4, 5, 12, 14)),
}
OUTSIDE: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "padded": (nn.MaxPool2d(3, 2, 1), (4, 5, 12, 14)),
    "dilated": (nn.MaxPool2d(2, dilation=2), (4, 5, 12, 14)),
    "ceil": (nn.MaxPool2d(2, ceil_mode=True), (4, 5, 13, 14)),
    "divisor": (nn.AvgPool2d(2, divisor_override=3), (4, 5, 12, 14)),
    "large": (nn.AvgPool2d(6), (4, 5, 12, 18)),
    "with indices": (nn.MaxPool2d(2, return_indices=True), (4, 5, 12, 14)),
}


class Tailed(nn.Module):
    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.pool(x) + 1)


@pytest.mark.parametrize("name", INSIDE)
def test_the_rewritten_graph_has_the_same_meaning(name: str) -> None:
    pool, shape = INSIDE[name]
    x = torch.randn(shape)
    x[..., 1, :3] = torch.tensor([float("nan"), float("inf"), -float("inf")])
    module = Tailed(pool)
    before, _ = rewrite(capture(module, [x]).graph)
    after = check(windows(before, GPU), "windows")
    assert not [n for n in toposort(after.roots) if n.op == "library"]
    (found,) = interpret(after, [x], {}, dtype=torch.float64)
    torch.testing.assert_close(found, module(x.double()), rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", INSIDE)
def test_it_shares_a_kernel_with_what_follows(name: str) -> None:
    pool, shape = INSIDE[name]
    before, _ = rewrite(capture(Tailed(pool), [torch.randn(shape)]).graph)
    made = plan(windows(before, GPU), GPU)
    (kernel,) = made.kernels
    assert not made.libraries
    assert kernel.members[-1].op == "sigmoid"
    layout = nest(kernel, made.graph)
    text = body(layout, schedule(layout, GPU, made.graph)).text
    assert text.count("(in0, ") == len([a for a in layout.reads.values() if a.varies])


@pytest.mark.parametrize("name", OUTSIDE)
def test_other_windows_stay_library_calls(name: str) -> None:
    pool, shape = OUTSIDE[name]
    before, _ = rewrite(capture(pool, [torch.randn(shape)]).graph)
    assert windows(before, GPU) is before or not [
        n for n in toposort(windows(before, GPU).roots) if n.op == "narrow"
    ]


def test_the_cpu_keeps_pools_of_pytorch() -> None:
    before, _ = rewrite(capture(nn.MaxPool2d(2), [torch.randn(4, 5, 12, 14)]).graph)
    assert windows(before, TARGETS["cpu"]) is before
