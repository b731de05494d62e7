"""Graph -> Graph: large results of PyTorch's float32 products go to memory of huge pages.

    matmul(a, b)  ->  matmul(a, b, out=new memory of huge pages)

Memory that malloc maps afresh comes in small pages, and making these takes about as long as the
product that fills them. The product is the same, and so is every bit of its result.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fusewright.frontend.library_calls import (
    ADDED_MATMULS,
    PLAIN_MATMULS,
    shape_argument,
    with_call,
)
from fusewright.ir.graph import Graph, Node, Shape, base, numel, rebuild
from fusewright.ir.library_call import HugePages, LibraryCall, MethodView, Scalar, TensorRef
from fusewright.targets.target import Target

# [m: cpu-0018, cpu-0019, cpu-0020, cpu-0021]
ON_HUGE_PAGES = '''
def _fusewright_on_huge_pages(shape, dtype):
    """New memory of huge pages: to make small ones takes as long as the product that fills them."""
    import ctypes
    import mmap

    tensor = torch.empty(shape, dtype=dtype, device="cpu")
    start = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    length = tensor.data_ptr() + tensor.numel() * tensor.element_size() - start
    if length >= 4 << 20 and hasattr(mmap, "MADV_HUGEPAGE"):
        whole = ctypes.c_size_t(length // mmap.PAGESIZE * mmap.PAGESIZE)
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), whole, mmap.MADV_HUGEPAGE)
    return tensor
'''
CALLS = frozenset({*PLAIN_MATMULS, *ADDED_MATMULS})
# The arguments of a linear layer that is written as a product and an addition.
LINEAR = (TensorRef(0), TensorRef(1), TensorRef(2))
TRANSPOSED = MethodView("t")
FLAT = MethodView("flatten", (Scalar(0), Scalar(-2)))


def pages(graph: Graph, target: Target) -> Graph:
    """Give the products whose results have `Machine.paged_bytes` or more such memory."""
    least = target.machine.paged_bytes
    if least is None:
        return graph
    shown = {id(base(r)) for r in graph.roots}

    def change(n: Node) -> Node:
        product = n.called in CALLS and n.dtype is torch.float32
        if not product or graph.hint(numel(n.shape)) * n.dtype.itemsize < least:
            return n
        call = _paged(n, whole=id(n) in shown)
        return with_call(n, call.because("it writes to huge pages")) if call else n

    return rebuild(graph, change)


def _paged(n: Node, *, whole: bool) -> LibraryCall | None:
    """The call that writes to huge pages, if there is one. whole: it must not be a view."""
    rank, ranks = len(n.shape), [len(a.shape) for a in n.args]
    if n.order or (n.called == "aten.matmul" and set(ranks) != {rank}):
        return None
    if n.called != "aten.linear":
        return replace(n.call, out=_memory(n.shape))
    bias = n.call.args == LINEAR
    if not (bias or n.call.args == LINEAR[:2]) or n.call.kwargs:
        return None
    if ranks[:2] != [max(rank, 2), 2] or (whole and rank > 2):
        return None
    back = MethodView("view", (shape_argument(n.shape),))
    factors = TensorRef(0, (FLAT,) * (rank > 2)), TensorRef(1, (TRANSPOSED,))
    return replace(
        n.call,
        function="torch.addmm" if bias else "torch.mm",
        args=(TensorRef(2), *factors) if bias else factors,
        result_views=(back,) * (rank > 2),
        out=_memory((numel(n.shape[:-1]), n.shape[-1])),
    )


def _memory(shape: Shape) -> HugePages:
    return HugePages(shape_argument(shape))
