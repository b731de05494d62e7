"""Graph -> Graph: large results of PyTorch's float32 products go to memory of huge pages.

    matmul(a, b)  ->  matmul(a, b, out=new memory of huge pages)

Memory that malloc maps afresh comes in small pages, and making these takes about as long as the
product that fills them. The product is the same, and so is every bit of its result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from fusewright.emit.python_text import shape_tuple
from fusewright.frontend.library_calls import ADDED_PRODUCTS, PLAIN_PRODUCTS
from fusewright.ir.graph import Attribute, Graph, Node, Shape, base, node, numel, rebuild
from fusewright.targets.target import Target

PAGED = '''
def _fusewright_paged(shape, dtype):
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
WHY = "it writes to huge pages"
CALLS = frozenset({*PLAIN_PRODUCTS, *ADDED_PRODUCTS})
_LINEAR = re.compile(r"torch\.nn\.functional\.linear\(\{0\}, \{1\}(, \{2\})?\)")


def pages(graph: Graph, target: Target) -> Graph:
    """Give the products whose results have `Machine.paged_bytes` or more such memory."""
    least = target.machine.paged_bytes
    if least is None:
        return graph
    shown = {id(base(r)) for r in graph.roots}

    def change(n: Node) -> Node:
        product = n.op == "library" and n["name"] in CALLS and n.dtype is torch.float32
        if not product or graph.hint(numel(n.shape)) * n.dtype.itemsize < least:
            return n
        text = _text(n, whole=id(n) in shown)
        changed = {"call": text, "why": WHY}
        attributes: Mapping[str, Attribute] = {**dict(n.attributes), **changed}
        made = node(n.op, n.args, shape=n.shape, dtype=n.dtype, order=(), **attributes)
        return made if text else n

    return rebuild(graph, change)


def writes_to_huge_pages(n: Node) -> bool:
    """Whether a call is one whose result goes to such memory, made by `PAGED`."""
    return n.op == "library" and n.has("why") and n["why"] == WHY


def _text(n: Node, *, whole: bool) -> str:
    """The call that writes to huge pages; "" if there is none. whole: it must not be a view."""
    rank, ranks = len(n.shape), [len(a.shape) for a in n.args]
    if n.order or (n["name"] == "aten.matmul" and set(ranks) != {rank}):
        return ""
    if n["name"] != "aten.linear":
        return f"{str(n['call'])[:-1]}, out={_memory(n.shape)})"
    linear = _LINEAR.fullmatch(str(n["call"]))
    if linear is None or ranks[:2] != [max(rank, 2), 2] or (whole and rank > 2):
        return ""
    flat, back = (".flatten(0, -2)", f".view({shape_tuple(n.shape)})") if rank > 2 else ("", "")
    first = "torch.addmm({2}, " if linear[1] else "torch.mm("
    out = _memory((numel(n.shape[:-1]), n.shape[-1]))
    return f"{first}{{0}}{flat}, {{1}}.t(), out={out}){back}"


def _memory(shape: Shape) -> str:
    return f"_fusewright_paged({shape_tuple(shape)}, torch.float32)"
