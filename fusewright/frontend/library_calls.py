"""A call that we have no kernel for -> a library node: a call of PyTorch, visible in the plan.

The node's attribute `call` is a record, a `LibraryCall`, whose tensors are the node's arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from fusewright.errors import CaptureFailed
from fusewright.frontend.data_scalars import Number
from fusewright.ir.builder import TensorExpr
from fusewright.ir.graph import Attribute, BatchSize, Node, Shape, Sizes, node, numel, size_at
from fusewright.ir.library_call import (
    FUNCTIONS,
    Arg,
    DeviceRef,
    DtypeRef,
    LayoutRef,
    LibraryCall,
    ListArg,
    Scalar,
    SizeRef,
    TensorRef,
    call_name,
    function_of,
    with_tensors,
)

if TYPE_CHECKING:
    from fusewright.frontend.lowering.call import AtenCall

# Of the functions that have a name, those whose results may show their argument's memory.
VIEWS_OR_SHARED = ("aten.select", "aten.embedding", "aten.view.dtype")
NEW_MEMORY = frozenset(name for name in FUNCTIONS if name not in VIEWS_OR_SHARED)
PLAIN_MATMULS = ("aten.linear", "aten.mm", "aten.matmul", "aten.bmm")
CONVOLUTION_CALLS = tuple(
    f"aten.conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3)
)
CONCATENATION = "aten.cat"
BATCH_NORM = "aten._native_batch_norm_legit_functional"
ADDED_MATMULS = ("aten.addmm", "aten.baddbmm")
FUSED_ATTENTION = "aten.scaled_dot_product_attention"
MATMULS = (*PLAIN_MATMULS, *ADDED_MATMULS, "aten.einsum", FUSED_ATTENTION)
# What a product is written as -> the ATen name with the same arguments.
WRITTEN_MATMULS = {FUNCTIONS[name]: name for name in (*PLAIN_MATMULS, *ADDED_MATMULS)}
RANDOM = (
    *("dropout", "rand", "bernoulli", "normal", "multinomial", "uniform", "rrelu", "exponential"),
    *("geometric", "cauchy", "poisson", "binomial", "gamma", "dirichlet"),
)


def library_call(
    call: AtenCall, effects: list[Node], *, alone: bool, used: Collection[int] = (0,)
) -> TensorExpr | tuple[TensorExpr | None, ...]:
    """The library node of `call`, or its items when it has several results.

    alone: nobody else sees running statistics before it, so it may change them in place.
    used: the positions of results that somebody reads.
    """
    special = call.name in SPECIAL and WITHOUT[call.name].isdisjoint(used)
    if special and (alone or call.name != BATCH_NORM):
        return SPECIAL[call.name](call, effects)
    if call.name == BATCH_NORM and alone:
        return _batch_norm_with_statistics(call, effects)
    if _updates_statistics(call) and not alone:
        raise CaptureFailed(
            "The running statistics of an InstanceNorm are changed or read before its call. "
            "Read a copy that is a buffer of its own, or leave them to the norm."
        )
    tensors: list[Node] = []
    runs_anyway = any(word in call.name for word in RANDOM) or _updates_statistics(call)
    record = LibraryCall(
        call.name,
        call.overload,
        function_of(call.name, call.overload),
        tuple(argument(a, tensors) for a in call.args),
        tuple((k, argument(v, tensors)) for k, v in call.kwargs.items() if k != "pin_memory"),
        new_memory=call_name(call.name, call.overload) in NEW_MEMORY,
        effect=len(effects) if runs_anyway else None,
    )
    first = call.results[0]
    several = len(call.results) > 1 or _packed(call) or bool(call.places)
    shape, order = ((), ()) if several else (first.shape, first.order)
    made = node("library", tensors, shape=shape, dtype=first.dtype, order=order, call=record)
    if runs_anyway:
        effects.append(made)
    if not several:
        return TensorExpr(made)
    places = call.places or range(len(call.results))
    items = {
        k: TensorExpr(node("getitem", [made], shape=r.shape, dtype=r.dtype, order=r.order, index=k))
        for k, r in zip(places, call.results, strict=True)
    }
    return tuple(items.get(k) for k in range(max(items) + 1))


def is_float32_contraction(n: Node) -> bool:
    """Whether a library node is a product in float32, which TF32 could make less precise."""
    name = n.called or ""
    sums = "conv" in name or name in MATMULS
    return sums and n.dtype is torch.float32


def writes_itself(n: Node) -> bool:
    """Whether a library call is a write to its first argument, which it returns."""
    return n.op == "library" and n.call.operator.endswith("_")


def because(n: Node, why: str) -> Node:
    """The same library call, with the reason why no kernel of ours takes its place."""
    return with_call(n, n.call.because(why))


def without_bias(n: Node, why: str) -> Node:
    """`because` without the last of its tensors."""
    *args, _ = n.args
    return with_call(n, n.call.without(len(args)).because(why), args)


def with_call(n: Node, call: LibraryCall, args: Sequence[Node] | None = None) -> Node:
    """A library node with another call, of the same arguments or of others."""
    attributes: Mapping[str, Attribute] = {**dict(n.attributes), "call": call}
    given = n.args if args is None else args
    return node(n.op, given, shape=n.shape, dtype=n.dtype, order=n.order, **attributes)


def shape_argument(shape: Shape) -> ListArg:
    """A shape as an argument of a method or a function."""
    return ListArg(tuple(argument(size, []) for size in shape), is_tuple=True)


def call_flops(n: Node, at: Sizes) -> int:
    """`contraction_flops` of a step that stays PyTorch's, as it is written: a linear layer may be
    called as a product whose arguments come in another order. A lone operator is no call."""
    if n.called is None:
        return 0
    name = WRITTEN_MATMULS.get(n.call.function, n.call.name)
    tensors = [n.args[a.position].shape for a in n.call.args if isinstance(a, TensorRef)]
    return contraction_flops(name, tensors, n.shape, at)


def contraction_flops(name: str, tensors: Sequence[Shape], result: Shape, at: Sizes) -> int:
    """Floating-point operations of matrix products and convolutions, 2 per multiply-add; else 0.

    tensors: of the call's arguments.  at: the free sizes. Attention is two products, masked or not.
    """
    elements = size_at(numel(result), at)
    if name in PLAIN_MATMULS:
        return 2 * elements * size_at(tensors[0][-1], at) if tensors[0] else 0
    if name in ADDED_MATMULS:
        return 2 * elements * size_at(tensors[1][-1], at)
    if name == FUSED_ATTENTION and len(tensors) > 2:
        sizes = numel(result[:-1]), tensors[1][-2], tensors[0][-1], result[-1]
        rows, keys, depth, columns = (size_at(size, at) for size in sizes)
        return 2 * rows * keys * (depth + columns)
    if "conv_transpose" in name:
        pixels = size_at(numel(tensors[0]), at)
        return 2 * pixels * size_at(numel(tensors[1][1:]), at)
    if "conv" in name and len(tensors) > 1:
        return 2 * elements * size_at(numel(tensors[1][1:]), at)
    return 0


def _updates_statistics(call: AtenCall) -> bool:
    """Instance norm updates the running statistics itself, so it must run, and in order."""
    return call.name == "aten.instance_norm" and call.args[3] is not None and bool(call.args[5])


def _packed(call: AtenCall) -> bool:
    """A list or tuple of one tensor is still a list."""
    return call.name in ("aten.split", "aten.split_with_sizes", "aten.chunk", "aten.unbind")


def argument(value: Any, tensors: list[Node]) -> Arg:
    """An argument of an ATen call. tensors: the node's arguments, to which its own are added."""
    if isinstance(value, Number):
        refs = [argument(TensorExpr(t.node), tensors) for t in value.tensors]
        return with_tensors(value.number, lambda tensor: refs[tensor.position])
    if isinstance(value, TensorExpr):
        if not any(t is value.node for t in tensors):
            tensors.append(value.node)
        return TensorRef(next(i for i, t in enumerate(tensors) if t is value.node))
    if isinstance(value, BatchSize):
        return SizeRef(value.multiple, value.names)
    if isinstance(value, torch.device):
        return DeviceRef()
    if isinstance(value, torch.dtype):
        return DtypeRef(value)
    if isinstance(value, torch.layout | torch.memory_format):
        return LayoutRef(value)
    if isinstance(value, list | tuple):
        items = tuple(argument(v, tensors) for v in value)
        return ListArg(items, is_tuple=isinstance(value, tuple))
    return Scalar(value)


def _effect(
    call: AtenCall, function: str, args: Sequence[Arg], tensors: Sequence[Node], effects: list[Node]
) -> TensorExpr:
    """One result, and an effect: it must run, once, in the model's order."""
    record = _effect_call(call, f"torch.nn.functional.{function}", args, effects)
    first = call.results[0]
    made = node(
        "library", tensors, shape=first.shape, dtype=first.dtype, order=first.order, call=record
    )
    effects.append(made)
    return TensorExpr(made)


def _effect_call(
    call: AtenCall, function: str, args: Sequence[Arg], effects: Sequence[Node]
) -> LibraryCall:
    return LibraryCall(
        call.name, call.overload, function, tuple(args), new_memory=True, effect=len(effects)
    )


def _dropout(call: AtenCall, effects: list[Node]) -> tuple[TensorExpr | None, ...]:
    """torch.export writes dropout as native_dropout; the plain call draws eager's numbers."""
    tensors: list[Node] = []
    args = [argument(a, tensors) for a in call.args]
    return _effect(call, "dropout", args, tensors, effects), None


def _batch_norm(call: AtenCall, effects: list[Node]) -> tuple[TensorExpr | None, ...]:
    """Train-mode batch norm that updates the running statistics itself, as eager does."""
    x, weight, bias, mean, var, training, momentum, eps = call.args
    tensors: list[Node] = []
    args = []
    for t in (x, mean, var, weight, bias):
        args.append(Scalar(None) if t is None else TensorRef(len(tensors)))
        tensors += [] if t is None else [t.node]
    args += map(Scalar, (training, momentum, eps))
    return _effect(call, "batch_norm", args, tensors, effects), None, None, mean, var


def _batch_norm_with_statistics(
    call: AtenCall, effects: list[Node]
) -> tuple[TensorExpr | None, ...]:
    """The same where somebody reads the statistics of the batch, as its derivative does."""
    tensors: list[Node] = []
    args = [argument(a, tensors) for a in call.args]
    record = _effect_call(call, "torch.native_batch_norm", args, effects)
    made = node("library", tensors, shape=(), dtype=call.results[0].dtype, order=(), call=record)
    effects.append(made)
    found = (
        node("getitem", [made], shape=r.shape, dtype=r.dtype, order=r.order, index=k)
        for k, r in enumerate(call.results[:3])
    )
    return (*map(TensorExpr, found), call.args[3], call.args[4])


# Written as eager's functions, which do not return the results at these positions.
WITHOUT = {"aten.native_dropout": frozenset({1}), BATCH_NORM: frozenset({1, 2})}
SPECIAL: dict[str, Callable[[AtenCall, list[Node]], tuple[TensorExpr | None, ...]]] = {
    "aten.native_dropout": _dropout,
    BATCH_NORM: _batch_norm,
}
