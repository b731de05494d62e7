"""Stages keep what the graph says of its outputs, whatever they write otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from fusewright.compiler.passes import run_passes
from fusewright.frontend.capture import capture
from fusewright.ir.graph import memory_of, numel, times
from fusewright.kernels.interface import MatchContext
from fusewright.rewrite.simplify import rewrite
from fusewright.targets.target import TARGETS

# Outputs that are different tensors in eager, though some become the same value on the way.
SAME_VALUE = {
    "reductions of one element": "h = x[:1].relu(); return h.mean(0, keepdim=True), h.amin(0), h, "
    "h.sum(0, keepdim=True), h.amax(0), h.cumsum(0)",
    "half reductions of one": "h = x[:1].half().abs(); return h, h.mean(0), h.min(0).values",
    "one product": "return F.linear(x, self.w), x @ self.w.T, torch.mm(x, self.w.T), "
    "torch.einsum('ij,kj->ik', x, self.w)",
    "one product with a bias": "return torch.addmm(self.b, x, self.w.T), "
    "F.linear(x, self.w, self.b)",
    "one convolution": "return self.c(y), F.conv2d(y, self.c.weight, self.c.bias)",
    "one attention": "return F.scaled_dot_product_attention(y, y, y), "
    "torch.softmax(y @ y.mT * 0.25, -1) @ y",
    "conversions back": "h = x.half().float(); return h, h.half().float(), h.float().clone()",
    "equal bits": "h = x * 2; return h.view(torch.int32), h.clone().view(torch.int32), h, "
    "torch.nan_to_num(h).view(torch.uint8), torch.nan_to_num(h).view(torch.int16)",
    "what does nothing": "return x * 1, x + 0, x.clone(), F.avg_pool2d(y, 1), F.max_pool2d(y, 1), "
    "x, F.dropout(x, 0.5, False), F.pad(x, (0, 0)) * 1",
    "views of two": "h, g = x.relu(), F.relu(x); return h.mT, g[:2], h[1], g.mT",
    "beside views of an input": "return torch.aminmax(x, dim=0), x.chunk(2, 0), x.sort(0), x[:1], "
    "x.view(torch.int32), y.unbind(1), torch.max(x, 1), x.unfold(1, 2, 1), x.split([2, 5])",
    "views by numbers that the data knows": "h = x.relu(); g = torch.minimum(h, h); "
    "return h, g.select(-1, n.item()), g",
    "the same of what is spread": "h = x[0].exp(); g = h.expand(4, 6); "
    "return torch.maximum(g, g), torch.max(h[:2], h[:2])",
    "views of one": "h = x.relu(); return h.mT, h[:2], h[1], h",
}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
@pytest.mark.parametrize("name", SAME_VALUE)
def test_outputs_share_memory_only_where_eagers_do(name: str, target: str) -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.b = nn.Parameter(torch.randn(5, 6)), nn.Parameter(torch.randn(5))
            self.c = nn.Conv2d(3, 4, 3)

    scope: dict[str, Any] = {"torch": torch, "F": nn.functional}
    lines = "\n    ".join(SAME_VALUE[name].split("; "))
    exec(f"def forward(self, x, y, n):\n    {lines}", scope)
    Several.forward = scope["forward"]
    given = [torch.randn(7, 6), torch.randn(2, 3, 16, 16), torch.tensor(2)]
    with torch.no_grad():
        captured = capture(Several(), given).graph
        graph, _ = rewrite(captured)
        graph = run_passes(graph, MatchContext(TARGETS[target]))
        results = tree_leaves(Several()(*given))
    inputs = [t.untyped_storage().data_ptr() for t in given]
    eager = [r.untyped_storage().data_ptr() for r in results]
    ours = [id(memory_of(o)) for o in graph.outputs]
    for k, (own, memory, o) in enumerate(zip(eager, ours, graph.outputs, strict=True)):
        assert [m == own for m in eager] == [m == memory for m in ours], f"output {k}"
        assert (own in inputs) == (memory_of(o).op == "input"), f"output {k}"
        if results[k].nbytes == results[k].untyped_storage().nbytes():
            whole, own = (times(numel(n.shape), n.dtype.itemsize) for n in (memory_of(o), o))
            assert whole == own, f"output {k}"
