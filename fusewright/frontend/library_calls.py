"""A call that we have no kernel for -> a library node: a call of PyTorch, visible in the plan.

The node's attribute `call` is the Python text of the call, `{0}`, `{1}`, … its tensor arguments and
`{device}` the device it runs on. `fresh`: the result is new memory that nothing else can see.
`random`: it draws random numbers or updates statistics, so it runs even if unused, and in the
model's order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from fusewright.errors import CaptureFailed
from fusewright.frontend.data_scalars import Number
from fusewright.ir.builder import TensorExpr
from fusewright.ir.graph import (
    Attribute,
    BatchSize,
    Node,
    Shape,
    node,
    numel,
    size_at_batch,
    size_text,
)

if TYPE_CHECKING:
    from fusewright.frontend.lowering.call import AtenCall

# ATen name, of its plain overload -> how a person would write it (where the arguments are the same)
NAMES = {
    "aten.linear": "torch.nn.functional.linear",
    "aten.conv1d": "torch.nn.functional.conv1d",
    "aten.conv2d": "torch.nn.functional.conv2d",
    "aten.conv3d": "torch.nn.functional.conv3d",
    "aten.conv_transpose1d": "torch.nn.functional.conv_transpose1d",
    "aten.conv_transpose2d": "torch.nn.functional.conv_transpose2d",
    "aten.conv_transpose3d": "torch.nn.functional.conv_transpose3d",
    "aten.matmul": "torch.matmul",
    "aten.mm": "torch.mm",
    "aten.bmm": "torch.bmm",
    "aten.addmm": "torch.addmm",
    "aten.baddbmm": "torch.baddbmm",
    "aten.cat": "torch.cat",
    "aten.stack": "torch.stack",
    "aten.cumsum": "torch.cumsum",
    "aten.embedding": "torch.embedding",
    "aten.select": "torch.select",
    "aten.view.dtype": "torch.Tensor.view",
}
PLAIN_OVERLOADS = ("default", "int", "input", "padding")
VIEWS_OR_SHARED = ("aten.select", "aten.embedding", "aten.view.dtype")
FRESH = frozenset(name for name in NAMES if name not in VIEWS_OR_SHARED)
PLAIN_PRODUCTS = ("aten.linear", "aten.mm", "aten.matmul", "aten.bmm")
BATCH_NORM = "aten._native_batch_norm_legit_functional"
ADDED_PRODUCTS = ("aten.addmm", "aten.baddbmm")
PRODUCTS = (*PLAIN_PRODUCTS, *ADDED_PRODUCTS, "aten.einsum", "aten.scaled_dot_product_attention")
RANDOM = (
    *("dropout", "rand", "bernoulli", "normal", "multinomial", "uniform", "rrelu", "exponential"),
    *("geometric", "cauchy", "poisson", "binomial", "gamma", "dirichlet"),
)


def library_call(
    call: AtenCall, effects: list[Node], *, alone: bool
) -> TensorExpr | tuple[TensorExpr | None, ...]:
    """The library node of `call`, or its items when it has several results.

    alone: nobody else sees running statistics before it, so it may change them in place.
    """
    if call.name in SPECIAL and (alone or call.name != BATCH_NORM):
        return SPECIAL[call.name](call, effects)
    if _updates_statistics(call) and not alone:
        raise CaptureFailed(
            "The running statistics of an InstanceNorm are changed or read before its call. "
            "Read a copy that is a buffer of its own, or leave them to the norm."
        )
    tensors: list[Node] = []
    text = _text(call, tensors)
    random = any(word in call.name for word in RANDOM) or _updates_statistics(call)
    first = call.results[0]
    name = _name(call)
    shared: dict[str, Any] = {
        "call": text,
        "name": name,
        "fresh": name in FRESH,
        "random": len(effects) if random else -1,
    }
    if len(call.results) == 1 and not _packed(call):
        single = node(
            "library", tensors, shape=first.shape, dtype=first.dtype, order=first.order, **shared
        )
        if random:
            effects.append(single)
        return TensorExpr(single)
    whole = node("library", tensors, shape=(), dtype=first.dtype, **shared)
    if random:
        effects.append(whole)
    return tuple(
        TensorExpr(node("item", [whole], shape=r.shape, dtype=r.dtype, order=r.order, index=i))
        for i, r in enumerate(call.results)
    )


def is_float_product(n: Node) -> bool:
    """Whether a library node is a product in float32, which TF32 could make less precise."""
    name = str(n["name"]) if n.op == "library" else ""
    product = "conv" in name or name in PRODUCTS
    return product and n.dtype is torch.float32


def writes_itself(n: Node) -> bool:
    """Whether a library call is a write to its first argument, which it returns."""
    return n.op == "library" and str(n["name"]).endswith("_")


def because(n: Node, why: str) -> Node:
    """The same library call, with the reason why no kernel of ours takes its place."""
    attributes: Mapping[str, Attribute] = {**dict(n.attributes), "why": why}
    return node(n.op, n.args, shape=n.shape, dtype=n.dtype, order=n.order, **attributes)


def without_bias(n: Node, why: str) -> Node:
    """`because` without the last of its tensors."""
    *args, _ = n.args
    call = str(n["call"]).replace(f"{{{len(args)}}}", "None")
    attributes: Mapping[str, Attribute] = {**dict(n.attributes), "call": call, "why": why}
    return node(n.op, args, shape=n.shape, dtype=n.dtype, order=n.order, **attributes)


def product_flops(name: str, tensors: Sequence[Shape], result: Shape, batch: int) -> int:
    """Floating-point operations of a matrix product or convolution: 2 per multiply-add; else 0."""
    elements = size_at_batch(numel(result), batch)
    if name in PLAIN_PRODUCTS:
        return 2 * elements * size_at_batch(tensors[0][-1], batch) if tensors[0] else 0
    if name in ADDED_PRODUCTS:
        return 2 * elements * size_at_batch(tensors[1][-1], batch)
    if "conv_transpose" in name:
        pixels = size_at_batch(numel(tensors[0]), batch)
        return 2 * pixels * size_at_batch(numel(tensors[1][1:]), batch)
    if "conv" in name and len(tensors) > 1:
        return 2 * elements * size_at_batch(numel(tensors[1][1:]), batch)
    return 0


def _updates_statistics(call: AtenCall) -> bool:
    """Instance norm updates the running statistics itself, so it must run, and in order."""
    return call.name == "aten.instance_norm" and call.args[3] is not None and bool(call.args[5])


def _packed(call: AtenCall) -> bool:
    """A list or tuple of one tensor is still a list."""
    return call.name in ("aten.split", "aten.split_with_sizes", "aten.chunk", "aten.unbind")


def _name(call: AtenCall) -> str:
    """The ATen name, and behind it an overload that means something else than the plain one."""
    full = f"{call.name}.{call.overload}"
    other = call.name in NAMES and call.overload not in PLAIN_OVERLOADS
    return full if full in NAMES or other else call.name


def _text(call: AtenCall, tensors: list[Node]) -> str:
    function = NAMES.get(_name(call), f"torch.ops.{call.name}.{call.overload}")
    words = [_argument(a, tensors) for a in call.args]
    words += [f"{k}={_argument(v, tensors)}" for k, v in call.kwargs.items() if k != "pin_memory"]
    return f"{function}({', '.join(words)})"


def _argument(value: Any, tensors: list[Node]) -> str:
    """Python text of one argument; tensors become {position}."""
    if isinstance(value, Number):
        return value.text.format(*(_argument(TensorExpr(t.node), tensors) for t in value.tensors))
    if isinstance(value, TensorExpr):
        if not any(t is value.node for t in tensors):
            tensors.append(value.node)
        return f"{{{next(i for i, t in enumerate(tensors) if t is value.node)}}}"
    if isinstance(value, BatchSize):
        return size_text(value)
    if isinstance(value, torch.device):
        return "{device}"
    if isinstance(value, list | tuple):
        return _sequence(value, tensors)
    if isinstance(value, float) and value != value:
        return "float('nan')"
    if isinstance(value, float) and value in (float("inf"), -float("inf")):
        return f"float('{value}')"
    return repr(value)


def _sequence(values: Sequence[Any], tensors: list[Node]) -> str:
    inside = ", ".join(_argument(v, tensors) for v in values)
    return f"[{inside}]" if isinstance(values, list) else f"({inside},)"


def _effect(
    call: AtenCall, text: str, tensors: Sequence[TensorExpr], effects: list[Node]
) -> TensorExpr:
    """One result, and an effect: it must run, once, in the model's order."""
    first = call.results[0]
    made = node(
        "library",
        [t.node for t in tensors],
        shape=first.shape,
        dtype=first.dtype,
        order=first.order,
        call=text,
        name=call.name,
        fresh=True,
        random=len(effects),
    )
    effects.append(made)
    return TensorExpr(made)


def _dropout(call: AtenCall, effects: list[Node]) -> tuple[TensorExpr | None, ...]:
    """torch.export writes dropout as native_dropout; the plain call draws eager's numbers."""
    text = f"torch.nn.functional.dropout({{0}}, {call.args[1]!r}, {call.args[2]!r})"
    return _effect(call, text, [call.args[0]], effects), None


def _batch_norm(call: AtenCall, effects: list[Node]) -> tuple[TensorExpr | None, ...]:
    """Train-mode batch norm that updates the running statistics itself, as eager does."""
    x, weight, bias, mean, var, training, momentum, eps = call.args
    tensors = [t for t in (x, mean, var, weight, bias) if t is not None]
    names = iter(f"{{{i}}}" for i in range(len(tensors)))
    words = ["None" if t is None else next(names) for t in (x, mean, var, weight, bias)]
    numbers = f"{training}, {momentum!r}, {eps!r}"
    text = f"torch.nn.functional.batch_norm({', '.join(words)}, {numbers})"
    return _effect(call, text, tensors, effects), None, None, mean, var


SPECIAL: dict[str, Callable[[AtenCall, list[Node]], tuple[TensorExpr | None, ...]]] = {
    "aten.native_dropout": _dropout,
    BATCH_NORM: _batch_norm,
}
