"""Pools -> maps of pieces or reductions: the same values, in one kernel with what follows."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fusewright.codegen.cuda_source import cuda_source
from fusewright.compiler.compilation import make
from fusewright.frontend.capture import capture
from fusewright.fusion.planner import plan
from fusewright.ir.graph import Graph, check, toposort
from fusewright.ir.interpreter import interpret
from fusewright.kernels.pointwise.strategy import SlidingWindowMap
from fusewright.kernels.registry import ANCHORS
from fusewright.rewrite.simplify import rewrite
from fusewright.rewrite.target_lowering import lower_for_target, written
from fusewright.targets.target import TARGETS
from tests.support.emitting import emit_text
from tests.support.emulator.threads import library_of

GPU = TARGETS["sm_90a"]
IMAGE = (4, 5, 12, 14)
# name -> the pool, the image's sizes
POOLS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "max 1d": (nn.MaxPool1d(3), (4, 5, 31)),
    "max 2d": (nn.MaxPool2d(2), IMAGE),
    "max 2d, overlapping": (nn.MaxPool2d(3, 2), (4, 5, 13, 16)),
    "max 2d, uneven": (nn.MaxPool2d((2, 3), (3, 1)), (4, 5, 11, 9)),
    "max 3d": (nn.MaxPool3d(2), (2, 3, 6, 8, 5)),
    "average 1d": (nn.AvgPool1d(4, 2), (4, 5, 31)),
    "average 2d": (nn.AvgPool2d(2), (4, 5, 13, 14)),
    "average 2d, overlapping": (nn.AvgPool2d(3, 1), IMAGE),
    "average 3d": (nn.AvgPool3d(3), (2, 3, 6, 9, 9)),
    "one image": (nn.MaxPool2d(2), (5, 12, 14)),
    "ceil, but even": (nn.MaxPool2d(2, ceil_mode=True), IMAGE),
    "padded": (nn.MaxPool2d(3, 2, 1), IMAGE),
    "padded 1d": (nn.MaxPool1d(3, 2, 1), (4, 5, 31)),
    "padded 3d": (nn.MaxPool3d(3, 2, 1), (2, 3, 6, 8, 5)),
    "dilated": (nn.MaxPool2d(2, dilation=2), IMAGE),
    "dilated and padded": (nn.MaxPool2d(3, 1, 1, 2), IMAGE),
    "ceil": (nn.MaxPool2d(2, ceil_mode=True), (4, 5, 13, 15)),
    "ceil, whose last window would begin behind the image": (
        nn.MaxPool2d(2, 3, 1, ceil_mode=True),
        (4, 5, 12, 13),
    ),
    "average, padded": (nn.AvgPool2d(3, 2, 1), IMAGE),
    "average, padding not counted": (nn.AvgPool2d(3, 2, 1, count_include_pad=False), IMAGE),
    "average, ceil": (nn.AvgPool2d(3, 2, 1, ceil_mode=True), IMAGE),
    "average, ceil, padding not counted": (
        nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
        IMAGE,
    ),
    "average, uneven padding": (
        nn.AvgPool2d((3, 2), (2, 1), (1, 0), count_include_pad=False),
        IMAGE,
    ),
    "average 3d, padded": (nn.AvgPool3d(3, 2, 1, count_include_pad=False), (2, 3, 6, 8, 5)),
    "divisor": (nn.AvgPool2d(2, divisor_override=3), IMAGE),
    "divisor, padded": (nn.AvgPool2d(3, 1, 1, divisor_override=5), IMAGE),
    "large tiles": (nn.AvgPool2d(6), (4, 5, 12, 18)),
    "large tiles, divisor": (nn.AvgPool2d(6, divisor_override=7), (4, 5, 12, 18)),
    "largest of large tiles": (nn.MaxPool2d(6), (4, 5, 12, 18)),
    "adaptive": (nn.AdaptiveAvgPool2d((4, 2)), IMAGE),
    "adaptive, one side": (nn.AdaptiveAvgPool2d((None, 7)), IMAGE),
    "adaptive 1d": (nn.AdaptiveAvgPool1d(4), (4, 5, 32)),
    "adaptive 3d": (nn.AdaptiveAvgPool3d(2), (2, 3, 6, 8, 4)),
    "adaptive max": (nn.AdaptiveMaxPool2d((4, 2)), IMAGE),
}
KEPT: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "large and overlapping": (nn.AvgPool2d(6, 5), (4, 5, 12, 18)),
    "ragged": (nn.AdaptiveAvgPool2d((5, 3)), IMAGE),
    "with indices": (nn.MaxPool2d(2, return_indices=True), IMAGE),
}


class Tailed(nn.Module):
    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.pool(x) + 1)


class Pair(nn.Module):
    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor] | Tensor:
        result = self.pool(x)
        return (result[0], result[1]) if isinstance(result, tuple) else result


def graph_of(module: nn.Module, x: Tensor) -> Graph:
    graph, _ = rewrite(capture(module, [x]).graph)
    return graph


def library_calls(graph: Graph) -> list[object]:
    return [n.called for n in toposort(graph.roots) if n.op == "library"]


@pytest.mark.slow
@pytest.mark.parametrize("name", POOLS)
def test_the_rewritten_graph_has_the_same_meaning(name: str) -> None:
    pool, shape = POOLS[name]
    x = torch.randn(shape)
    x[..., 1, :3] = torch.tensor([float("nan"), float("inf"), -float("inf")])
    module = Tailed(pool)
    after = check(written(graph_of(module, x)), "late")
    assert not library_calls(after)
    (found,) = interpret(after, [x], {}, dtype=torch.float64)
    torch.testing.assert_close(found, module(x.double()), rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", POOLS)
def test_it_shares_a_kernel_with_what_follows(name: str) -> None:
    pool, shape = POOLS[name]
    made = plan(lower_for_target(graph_of(Tailed(pool), torch.randn(shape)), GPU), GPU, ANCHORS)
    (kernel,) = made.kernels
    assert not made.libraries
    assert kernel.members[-1].op == "sigmoid"
    assert all(leaf.row.kind == "leaf" for leaf in kernel.leaves), "nothing is stored in between"


@pytest.mark.parametrize("name", KEPT)
def test_other_windows_stay_library_calls(name: str) -> None:
    pool, shape = KEPT[name]
    assert len(library_calls(lower_for_target(graph_of(Pair(pool), torch.randn(shape)), GPU))) == 1


def test_the_cpu_has_maps_of_pieces_too() -> None:
    before = graph_of(nn.MaxPool2d(2), torch.randn(IMAGE))
    assert library_calls(before)
    assert not library_calls(lower_for_target(before, TARGETS["cpu"]))


class Overlapping(nn.Module):
    """Windows whose vectors are whole at their second place, at their first, and nowhere."""

    POOLS = (
        nn.MaxPool2d(3, 1, 1),
        nn.AvgPool2d(3, 1, 1, count_include_pad=False),
        nn.AvgPool2d(3, 1),
        nn.MaxPool2d((4, 3), (2, 1), 1),
        nn.MaxPool2d(3, 1, (1, 0), 2),
        nn.AvgPool2d(3, 2, 1, ceil_mode=True),
    )

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(pool(x) for pool in self.POOLS)


@pytest.mark.compiler
@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_threads_compute_the_values_of_windows_that_overlap(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    """Of an image that begins at a multiple of 16 bytes, and of one that does not."""
    idle = replace(GPU, machine=replace(GPU.machine, busy_threads=0))  # whose threads take more
    memory = torch.randn(1 + 2 * 3 * 11 * 16).to(dtype)
    memory[torch.tensor([20, 300, 500])] = torch.tensor([torch.nan, torch.inf, -torch.inf]).to(
        dtype
    )
    made = make(Overlapping(), [memory[1:].view(2, 3, 11, 16)], idle)
    library = library_of(cuda_source(made.texts, GPU), tmp_path)
    vectors = [s.vector for _, _, s in made.kernels if isinstance(s, SlidingWindowMap)]
    assert {2, 8 if dtype.itemsize == 2 else 4} <= set(vectors)
    for x in (memory[1:].view(2, 3, 11, 16), memory[:-1].view(2, 3, 11, 16)):
        for body, _, _ in made.kernels:
            ours = {
                id(p.node): torch.empty(2, *p.node.shape[1:], dtype=dtype)
                for p in body.pointers
                if p.written
            }
            tensors = [ours.get(id(p.node), x) for p in body.pointers]
            entry = getattr(library, f"run_{body.name}")
            assert (
                entry(
                    *(ctypes.c_void_p(t.data_ptr()) for t in tensors),
                    ctypes.c_long(2),
                    0,
                    ctypes.c_void_p(0),
                )
                == 0
            )
            for k, output in enumerate(made.plan.graph.outputs):
                if id(output) in ours:
                    wanted = Overlapping.POOLS[k](x.double())
                    close = 1e-6 if dtype is torch.float32 else 1e-2
                    torch.testing.assert_close(
                        ours[id(output)].double(), wanted, rtol=close, atol=close, equal_nan=True
                    )


# Sixteen bytes for a thread, but no more than four vectors.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "launch"),
    [
        ("torch.max_pool2d(x, 3, 1, 1)", "run_map_sliding_window<2, 1>"),
        ("x.relu()", "run_map<4>"),
        ("x[..., :6].relu()", "run_map<2, 2>"),
        ("x.double().relu()", "run_map<2>"),
        ("x.half().relu()", "run_map<4>"),
        ("x > 1", "run_map<4>"),
        ("x.permute(0, 2, 3, 1).contiguous()", "run_map_transposed<4, 2>"),
        ("x[:, :7].permute(0, 2, 3, 1).contiguous()", "run_map_transposed<1, 8>"),
        ("(x.relu(), self.number * 3)", "run_map<16>"),  # one number needs no vector, and has one
    ],
)
def test_a_thread_of_a_map_takes_sixteen_bytes(row: str, launch: str, tmp_path: Path) -> None:
    source = f"""
        import torch


        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.number = torch.nn.Parameter(torch.tensor(2.0))

            def forward(self, x):
                return {row}


        def get_inputs():
            return [torch.randn(4, 8, 12, 16)]


        def get_init_inputs():
            return []
    """
    assert f"return {launch}(body" in emit_text(source, tmp_path, "sm_90a").text
