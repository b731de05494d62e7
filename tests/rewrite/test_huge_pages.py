"""Products that write to huge pages: which calls do, with which bits, and into which memory."""

from __future__ import annotations

import mmap
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fusewright
from fusewright.compiler.compilation import make
from fusewright.frontend.capture import capture
from fusewright.frontend.library_calls import call_flops
from fusewright.ir.graph import toposort
from fusewright.ir.interpreter import interpret
from fusewright.ir.library_call import LibraryCall
from fusewright.rewrite.huge_pages import ON_HUGE_PAGES, pages
from fusewright.targets.target import TARGETS

CPU = TARGETS["cpu"]
ALWAYS = replace(CPU, machine=replace(CPU.machine, paged_bytes=1))
# x: [6, 4, 20, 24] with a batch of 6; w: [32, 24], b: [32]; what is written to huge pages
WRITTEN = {
    "torch.matmul(x, x.transpose(2, 3))": 1,
    "torch.matmul(x, x[:, :1].transpose(2, 3))": 1,
    "torch.matmul(torch.matmul(x, x.transpose(2, 3)), x)": 2,
    "torch.matmul(x[..., :20], x[..., :20])": 1,
    "torch.mm(x[:, 0, 0], w.t())": 1,
    "torch.bmm(x[:, 0], x[:, 1].transpose(1, 2))": 1,
    "torch.addmm(b, x[:, 0, 0], w.t(), beta=0.5, alpha=2)": 1,
    "torch.baddbmm(b[:20], x[:, 0], x[:, 1].transpose(1, 2))": 1,
    "F.linear(x[:, 0, 0], w, b)": 1,
    "F.linear(x[:, 0, 0], w)": 1,
    "torch.matmul(F.linear(x, w, b), F.linear(x, w, b).transpose(2, 3))": 2,
    "torch.matmul(F.linear(x, w), F.linear(x.transpose(1, 2), w, b).permute(0, 2, 3, 1))": 3,
}
KEPT = [
    "F.linear(x, w, b)",  # the caller gets it, and it would be a view
    "torch.matmul(x, w.t())",  # a view as well
    "torch.matmul(x[:, 0, 0], w[0])",
    "torch.matmul(x.double(), x.double().transpose(2, 3))",
    "torch.matmul(x.bfloat16(), x.bfloat16().transpose(2, 3))",
    "F.scaled_dot_product_attention(x, x, x)",
    "F.linear(x[0, 0, 0], w, b)",
    "F.linear(x, w[0])",
    "torch.cat([x, x], 1)",
]


class Called(nn.Module):
    """A row of the table as a model of its own."""

    def __init__(self, row: str) -> None:
        super().__init__()
        self.w, self.b = (nn.Parameter(torch.randn(shape)) for shape in ((32, 24), (32,)))
        scope = {"torch": torch, "F": nn.functional}
        self.function: Callable[..., Tensor] = eval(f"lambda x, w, b: {row}", scope)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.w, self.b)


def paged_calls(row: str, least: int = 1) -> list[LibraryCall]:
    machine = replace(CPU.machine, paged_bytes=least)
    made = make(Called(row), [torch.randn(6, 4, 20, 24)], replace(CPU, machine=machine))
    found = [n for n in toposort(made.captured.graph.roots) if n.op == "library"]
    return [n.call for n in found if n.call.out]


@pytest.mark.slow
@pytest.mark.parametrize("row", WRITTEN)
def test_the_emitted_calls_give_the_same_bits(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(paged_calls(row)) == WRITTEN[row]
    monkeypatch.setitem(TARGETS, "cpu", ALWAYS)
    model = Called(row)
    ours = fusewright.optimize(model, torch.randn(6, 4, 20, 24))
    scope = type(ours).forward.__globals__
    memory, shapes = scope["_fusewright_on_huge_pages"], []
    counted = lambda *given: shapes.append(given) or memory(*given)  # noqa: E731
    monkeypatch.setitem(scope, "_fusewright_on_huge_pages", counted)
    for batch in (6, 9):
        x = torch.randn(batch, 4, 20, 24)
        x[1, 1, 2, :4] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error")
            found, eager = ours(x), model(x)
        assert found.stride() == eager.stride()
        torch.testing.assert_close(found, eager, rtol=0, atol=0, equal_nan=True)
    assert len(shapes) == 2 * WRITTEN[row]


@pytest.mark.slow
@pytest.mark.parametrize("row", KEPT)
def test_other_calls_stay(row: str) -> None:
    assert not paged_calls(row)


def test_results_that_malloc_keeps_stay_there() -> None:
    row = "torch.matmul(x, x.transpose(2, 3))"
    size = 6 * 4 * 20 * 20 * 4
    assert paged_calls(row, size)
    assert not paged_calls(row, size + 1)


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "cpu"])
def test_gpus_have_no_such_pages(name: str) -> None:
    graph = capture(Called("x @ x.mT"), [torch.randn(6, 4, 20, 24)]).graph
    assert pages(graph, TARGETS[name]) is graph


@pytest.mark.slow
@pytest.mark.parametrize("row", WRITTEN)
def test_the_graph_means_the_same(row: str) -> None:
    model, x = Called(row), torch.randn(6, 4, 20, 24)
    graph = capture(model, [x]).graph
    state = dict(model.named_parameters())
    for dtype in (None, torch.float64):
        (found,) = interpret(pages(graph, ALWAYS), [x], state, dtype=dtype)
        (before,) = interpret(graph, [x], state, dtype=dtype)
        torch.testing.assert_close(found, before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("row", WRITTEN)
def test_operations_are_counted_alike(row: str) -> None:
    """A linear layer is written as a product whose arguments come in another order."""
    graph = capture(Called(row), [torch.randn(6, 4, 20, 24)]).graph
    before, after = (
        [call_flops(n, g.example) for n in toposort(g.roots) if n.op == "library"]
        for g in (graph, pages(graph, ALWAYS))
    )
    assert before == after
    assert all(before)


def test_the_record_says_so() -> None:
    row, x = "torch.matmul(x, x.transpose(2, 3))", torch.randn(6, 4, 20, 24)
    assert "it writes to huge pages" in make(Called(row), [x], ALWAYS).record("")
    assert "huge" not in make(Called(row), [x], CPU).record("")


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no huge pages")
@pytest.mark.parametrize("shape", [(3, 2 << 20), (1 << 21,), (5,), (0,)])
def test_large_memory_is_of_huge_pages(shape: tuple[int, ...]) -> None:
    scope = {"torch": torch}
    exec(ON_HUGE_PAGES, scope)
    tensor = scope["_fusewright_on_huge_pages"](shape, torch.float32)  # type: ignore[operator]
    assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == (shape, torch.float32, True)
    tensor.fill_(1.0)
    assert tensor.sum() == tensor.numel()
    if tensor.numel() > 1 << 20:
        assert "hg" in _flags(tensor.data_ptr() + tensor.numel() * 2)


def _flags(address: int) -> list[str]:
    """What the kernel knows of the mapping around an address: its VmFlags."""
    around = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        area = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if area:
            around = int(area[1], 16) <= address < int(area[2], 16)
        if around and line.startswith("VmFlags:"):
            return line.split()[1:]
    return []
