"""Graph -> Graph: products that a kernel of ours computes become `matmul` nodes.

    linear(x, w, b)     ->  matmul(x, w) + b
    matmul(a, b)        ->  copy(matmul(a, transposed b))
    addmm(c, a, b)      ->  alpha * matmul(a, transposed b) + beta * c

A `matmul` sums over the last dimension of both operands and is never stored: what follows is
computed on its tiles. Where no factor lies as the kernels read it, a copy does, filled up with
zeros to a multiple of 4 k. A product that stays a library call says why, in its `call`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from types import MappingProxyType

import torch

from fusewright.common.dtypes import HALF
from fusewright.errors import InternalError
from fusewright.frontend.library_calls import because, without_bias
from fusewright.ir.builder import TensorExpr, copy, narrow, pad
from fusewright.ir.graph import (
    BatchSize,
    Graph,
    Node,
    Size,
    base,
    node,
    numel,
    parts_of,
    rebuild_from,
    size_text,
    slots_text,
    times,
    toposort,
)
from fusewright.ir.placement import OwnCopy, Placement
from fusewright.ir.specs import GemmSpec, ViewFill, spec_of
from fusewright.ir.strided_view import strided_view, strides
from fusewright.kernels.tensor_core.support import why_unsupported
from fusewright.kernels.tensor_core.variant import K_SCALE_BLOCK, GemmShape
from fusewright.rewrite.contraction import (
    FORMS,
    Contraction,
    apply_contraction,
    contraction_of,
    even_strides,
)
from fusewright.targets.arch import KernelName
from fusewright.targets.target import Target

# The type of a product -> which kernel it needs. Whoever has one of 16 bits has one of float32.
KERNEL_OF: Mapping[torch.dtype, KernelName] = MappingProxyType(
    {torch.float32: "gemm.packed", **dict.fromkeys(HALF, "gemm.half")}
)

# Below, a launch takes longer than the product [m: gemm-0048]; for 16 bits that is a prediction.
LEAST_FLOPS = {torch.float32: 1 << 28, **dict.fromkeys(HALF, 1 << 30)}
# With so many rows, PyTorch's linear layer takes less time without its bias [m: gemm-0052,
# gemm-0053, gemm-0056]; with others it takes as long, or longer [m: gemm-0054, gemm-0055].
BIAS_BESIDE = {"cuda": range(64, 129), "cpp": range(1, sys.maxsize)}
# Matrices of a batch with fewer results and multiply-adds are faster in PyTorch [m: gemm-0012,
# gemm-0013, gemm-0014, gemm-0015, gemm-0016, gemm-0018].
LEAST_RESULTS, LEAST_MATRIX = 12_000, 1 << 20
LEAST_HALF_ROWS = 256  # with fewer, PyTorch's product is faster [m: gemm-0019, gemm-0023]
# k that are packed together: kernels/tensor_core/cuda/split_float32.cuh
K_BLOCK = 32
PACK_ROWS = 64
SPLIT_STEP = 4  # k of a row that is split start at multiples of 16 bytes
# Copies of factors that lie otherwise pay from here on (a prediction): operations, and
# rows * columns / (rows + columns), which is the products that each copied element is used for.
COPY_FLOPS, COPY_USES = 1 << 31, 128
COPY_RULES = frozenset({"no-prepack", "no-workspace"})


@dataclass(frozen=True)
class Operand:
    """One factor of a product as its kernel walks it: [batches, rows, depth], strides in elements.

    tensor: the node whose memory that is. A factor that is shared by all batches has one batch.
    A factor of 16 bits has lines, which are its rows or, `turned`, hold one k of all rows.
    """

    tensor: Node
    batches: Size
    rows: Size
    depth: Size
    batch_stride: Size
    row_stride: Size
    depth_stride: Size

    @property
    def splits(self) -> bool:
        """Whether the kernel can split it on its way to the tensor cores: whole aligned vectors."""
        return self.depth_stride == 1 and _whole(self.strides[:2], 4)

    @property
    def turned(self) -> bool:
        """Whether neighbours in memory are rows and not k."""
        return self.depth_stride != 1

    @property
    def line_stride(self) -> Size:
        """From one line to the next."""
        return self.depth_stride if self.turned else self.row_stride

    @property
    def streams(self) -> bool:
        """Whether the tensor cores can take 16 bits as they are: every line starts at 16 bytes."""
        dense = 1 in (self.row_stride, self.depth_stride)
        return dense and _whole((self.batch_stride, self.line_stride), 8)

    @property
    def strides(self) -> tuple[Size, Size, Size]:
        return self.batch_stride, self.row_stride, self.depth_stride

    @property
    def packed_bytes(self) -> str:
        """The size of its packed form, as Python text with slots for free sizes; `packed_in`
        of the device text needs it."""
        assert isinstance(self.depth, int), "the depth of a product is known"
        each = -(-self.depth // K_BLOCK) * K_BLOCK * 4 + 4 + -(-self.depth // K_SCALE_BLOCK) * 4
        if isinstance(self.rows, int):
            rows = -(-self.rows // PACK_ROWS) * PACK_ROWS
            return slots_text(times(self.batches, rows * each))
        rounded = f"({slots_text(self.rows)} + {PACK_ROWS - 1}) // {PACK_ROWS}"
        return f"{rounded} * {slots_text(times(self.batches, PACK_ROWS * each))}"


def product(graph: Graph, target: Target, rules: frozenset[str] = frozenset()) -> Graph:
    """Rewrite the library matmuls for which `target` has a kernel.

    rules: of `optimize --rules`; factors are not copied where these forbid scratch memory.
    """
    instances = count()
    written = "gemm.packed" in target.arch.kernels
    absent = "" if written else why_unsupported(target.arch, "gemm.packed")

    joined, beside = _joined(graph), BIAS_BESIDE[target.language]

    def change(old: Node, n: Node) -> Node:
        if n.called not in FORMS:
            return n
        if absent:
            return _left(n, absent, graph, beside if id(old) in joined else range(0))
        form = contraction_of(n)
        if form and not rules & COPY_RULES:
            form = _laid(form, n, graph)
        why = (
            "it is no plain matrix product" if form is None else _complaint(form, n, graph, target)
        )
        if form is None or why:
            return _left(n, why, graph, beside if id(old) in joined else range(0))
        flat, spec = len(form.right.shape) == 2, GemmSpec(next(instances))
        both = [gathered(f, flat) for f in (form.left, form.right)]
        return apply_contraction(
            form, node("matmul", both, shape=n.shape, dtype=n.dtype, spec=spec)
        )

    return rebuild_from(graph, change)


def _joined(graph: Graph) -> frozenset[int]:
    """The `id`s of nodes that maps and reductions read, or views of them, and nothing else."""
    nodes = [n for n in toposort((*graph.inputs, *graph.roots)) if n.row.kind != "view"]
    elsewhere = [a for n in nodes if not n.row.computed for a in n.args]
    elsewhere += [*graph.outputs, *(update.value for update in graph.updates)]
    others = {id(base(a)) for a in elsewhere}
    return frozenset(id(base(a)) for n in nodes if n.row.computed for a in n.args) - others


def _left(n: Node, why: str, graph: Graph, beside: range) -> Node:
    """PyTorch's own. A bias may take it a pass of its own, so with so many rows what reads the
    result adds it."""
    bias = n.args[-1]
    added = n.called == "aten.linear" and len(n.args) == 3 and n.dtype is torch.float32
    if not added or len(bias.shape) != 1 or n.order:
        return because(n, why)
    if graph.hint(numel(n.shape[:-1])) not in beside:
        return because(n, why)
    return (TensorExpr(without_bias(n, why)) + TensorExpr(bias)).node


def batches(n: Node) -> Size:
    """How many matrix products a matmul node is."""
    return 1 if len(n.args[1].shape) == 2 else numel(n.shape[:-2])


def is_half(n: Node) -> bool:
    """Whether the operands of a matmul node have 16 bits: nothing is split then, nothing packed."""
    return n.dtype in HALF


def matrix(n: Node) -> GemmShape:
    """The sizes of a matmul node."""
    left, right = operands(n)
    return GemmShape(batches(n), left.rows, right.rows, left.depth)


def operands(n: Node) -> tuple[Operand, Operand]:
    """The left and right operand of a matmul node."""
    return _both(*n.args)


# ---- copies of factors ---------------------------------------------------------------------------


def _laid(form: Contraction, n: Node, graph: Graph) -> Contraction:
    """The same product, of copies of factors where it needs them and they pay."""
    left, right = form.left, form.right
    if n.dtype != torch.float32 or min(len(left.shape), len(right.shape)) < 2:
        return form
    depth = left.shape[-1]
    if isinstance(depth, BatchSize):
        return form
    rows, columns = (graph.hint(f.rows) for f in _both(form.left, form.right))
    enough = 2 * graph.hint(numel(n.shape)) * depth >= COPY_FLOPS
    if not enough or rows * columns < COPY_USES * (rows + columns):
        return form
    both = [left, right]
    if not _any_splits(form):
        extra = -depth % SPLIT_STEP  # the larger one is split then: who packs reads any rows
        sizes = [graph.hint(numel(f.shape)) for f in both]
        chosen = sizes.index(max(sizes) if extra else min(sizes))
        both[chosen] = _copied(both[chosen], extra)
    return replace(form, left=both[0], right=both[1])


def _copied(factor: Node, extra: int) -> Node:
    """A row-major copy whose rows go on with `extra` zeros, without them. It is marked as memory of
    its own, so that nobody reads through it."""
    last, depth = len(factor.shape) - 1, factor.shape[-1]
    assert isinstance(depth, int), "who asks for a copy knows the depth"
    padded = pad(TensorExpr(factor), [(0, 0)] * last + [(0, extra)])
    own = Placement(own_copy=OwnCopy("operand", last))
    whole = node("copy", [padded.node], shape=padded.shape, dtype=factor.dtype, placement=own)
    return narrow(TensorExpr(whole), last, 0, depth).node


def _goes_on(n: Node) -> bool:
    """Whether behind each row of a piece lie the zeros that a copy put there."""
    whole = n.args[0]
    made = whole.op == "copy" and not whole.order and whole.args[0].op == "pad"
    padded = whole.args[0] if made else n
    if not made or padded.args[0].shape != n.shape:
        return False
    spec = spec_of(padded, ViewFill)
    return spec.value == 0 and spec.pads[-1][0] == 0 and n["start"] == 0


# ---- whether it is worth a kernel ----------------------------------------------------------------


def _complaint(form: Contraction, n: Node, graph: Graph, target: Target) -> str:
    """Why the product stays a library call; "" if it does not."""
    left, right = form.left.shape, form.right.shape
    kinds = [dtype for dtype, kernel in KERNEL_OF.items() if kernel in target.arch.kernels]
    if n.dtype not in kinds or {form.left.dtype, form.right.dtype} != {n.dtype}:
        names = [str(t).removeprefix("torch.") for t in (*kinds, n.dtype)]
        return f"our kernels take {' or '.join(names[:-1])}, not {names[-1]}"
    if unfit := why_unsupported(target.arch, KERNEL_OF[n.dtype]):
        return unfit
    if len(left) < 2 or len(right) < 2 or right[-2] == 1:
        return "one operand is a vector"
    if len(right) > 2 and left[:-2] != right[:-2]:
        return "the batches of its operands differ"
    depth = left[-1]
    step = 1 if is_half(n) or _any_splits(form) else SPLIT_STEP
    if isinstance(depth, BatchSize) or depth % step or depth < K_BLOCK:
        multiple = f", a multiple of {step}" if step > 1 else ""
        return f"our kernels need {K_BLOCK} or more k{multiple}, not {size_text(depth)}"
    flops = 2 * graph.hint(numel(n.shape)) * depth
    if flops < LEAST_FLOPS[n.dtype]:
        return f"{flops / 1e6:.3g} MFLOP are too few for a kernel of ours"
    rows = left[-2] if len(right) > 2 else numel(left[:-1])
    each = graph.hint(rows) * graph.hint(n.shape[-1])
    thin = each < LEAST_RESULTS and each * depth < LEAST_MATRIX
    if thin and len(right) > 2 and not is_half(n):
        return "matrices of a batch as small as these are faster in PyTorch"
    if is_half(n) and min(graph.hint(rows), graph.hint(n.shape[-1])) < LEAST_HALF_ROWS:
        return f"fewer than {LEAST_HALF_ROWS} rows or columns are faster in PyTorch"
    return _misplaced(form, n)


def _misplaced(form: Contraction, n: Node) -> str:
    """What about its tensors' places in memory keeps a product from a kernel; "" if nothing."""
    if n.order:
        return "its result does not lie row by row"
    if form.added is not None and memory_of_operand(form.added) is None:
        return "what it adds does not lie evenly in memory"
    if is_half(n):
        good = all(f.streams for f in _both(form.left, form.right))
        return "" if good else "the rows of an operand do not start at multiples of 16 bytes"
    return "" if _any_splits(form) else "no operand lies row by row along k"


def _any_splits(form: Contraction) -> bool:
    return any(f.splits for f in _both(form.left, form.right))


def _both(left: Node, right: Node) -> tuple[Operand, Operand]:
    flat = len(right.shape) == 2  # all leading dimensions of the left one are rows
    return factor_of(left, flat), factor_of(right, flat)


# ---- how a factor lies in memory -----------------------------------------------------------------


def memory_of_operand(n: Node) -> tuple[Node, tuple[Size, ...]] | None:
    """The tensor that a chain of views shows, and the stride of each of n's dimensions in it."""
    if n.row.kind != "view" or (n.op == "narrow" and not _goes_on(n)):  # a piece comes as a copy
        return n, strides(n.shape, n.order)
    found = memory_of_operand(n.args[0])
    if found is None or n.op == "narrow":
        return found
    tensor, steps = found
    if n.op == "permute":
        permutation = n["permutation"]
        assert isinstance(permutation, tuple)
        return tensor, tuple(steps[int(i)] for i in permutation)  # type: ignore[arg-type]
    shape = n.args[0].shape
    if n.op == "expand":
        return tensor, tuple(0 if a == 1 else step for a, step in zip(shape, steps, strict=True))
    dense = all(a == 1 or s == d for a, s, d in zip(shape, steps, strides(shape), strict=True))
    return (tensor, strides(n.shape)) if dense else None


def factor_of(n: Node, flat: bool) -> Operand:
    """`n` where it lies, if its batches and its rows lie evenly there; else as a row-major copy.

    flat: all of its leading dimensions are rows.
    """
    copied = n.row.kind == "view" or not n.order
    both = (memory_of_operand(n), (n, strides(n.shape)) if copied else None)
    for factor in (_factor(n, flat, *lies) for lies in both if lies):
        if factor:
            return factor
    raise InternalError(f"{n!r} is a factor that does not lie evenly, and no copy.")


def gathered(n: Node, flat: bool) -> Node:
    """`n`, or a copy of a view that does not lie evenly: PyTorch's takes twice as long, or more."""
    return copy(TensorExpr(n)).node if scattered(n, flat) else n


def scattered(n: Node, flat: bool) -> bool:
    """Whether the memory that a factor is read from is a view, and no row-major one."""
    memory = factor_of(n, flat).tensor
    found = strided_view(memory) if memory.row.kind == "view" else None
    if found is None:
        return False
    both = zip(memory.shape, found[1].form.strides, strides(memory.shape), strict=True)
    return any(size != 1 and step != dense for size, step, dense in both)


def _factor(n: Node, flat: bool, tensor: Node, steps: tuple[Size, ...]) -> Operand | None:
    """`n` as it lies in `tensor`, if that is evenly. steps: the stride of each dimension."""
    found = even_strides(n.shape, steps, flat)
    if found is None:
        return None
    batched = 0 if flat else len(n.shape) - 2
    batches = 1 if found[0] == 0 else numel(n.shape[:batched])
    return Operand(tensor, batches, numel(n.shape[batched:-1]), n.shape[-1], *found)


def _whole(steps: tuple[Size, ...], elements: int) -> bool:
    """Whether all steps are multiples of so many elements, whatever the free sizes are."""
    return all(parts_of(s)[0] % elements == 0 for s in steps)
