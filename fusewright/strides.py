"""An exported program -> the same, where PyTorch's fake tensors say otherwise how results lie.

Kernels and calls behind a result read it where it lies, and what is returned has eager's strides.
`bench/strides.py` asks every operator of PyTorch which of them are said wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

PADS = ("reflection", "replication")


def lay_as_eager(program: ExportedProgram) -> None:
    """Give results the strides that eager's have: torch.export turns cuDNN off, whose convolutions
    lie channels last if their image or their weights do; its own formulas lay some results of the
    CPU otherwise; and what changes in place stays so. Only these calls, and those that read what
    they make, are asked again; where one asks a free size for its number, the size stays free."""
    nodes = list(program.graph.nodes)
    values = {n: n.meta["val"] for n in nodes if n.op == "placeholder" and "val" in n.meta}
    given = [v for v in values.values() if isinstance(v, FakeTensor)]
    read = {a for n in nodes if ".conv" in str(n.target) for a in n.all_input_nodes}
    lying = any(not a.meta["val"].is_contiguous() for a in read)
    moved = any(_moved(n.args[0].meta.get("val"), n.meta["val"]) for n in nodes if _in_place(n))
    odd = any(_rule(n) and any(_lies(a.meta.get("val")) for a in n.all_input_nodes) for n in nodes)
    unknown = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    if not (lying or moved or odd):
        return
    mode, anew = given[0].fake_mode, set[torch.fx.Node]()
    guards = mode.shape_env.suppress_guards() if mode.shape_env is not None else nullcontext()
    kept, mode.cache_enabled = mode.cache_enabled, False  # it remembers what was said without cuDNN
    try:
        with mode, guards:
            for n in (n for n in nodes if n.op == "call_function"):
                said = values[n] = n.meta.get("val")
                ruled, says = _rule(n) is not None, not unknown & set(getattr(n.target, "tags", ()))
                if not (says or ruled) or "val" not in n.meta:
                    continue
                asked = ".conv" in str(n.target) or ruled or _in_place(n)
                if not asked and anew.isdisjoint(n.all_input_nodes):
                    continue
                anew.add(n)
                args, kwargs = torch.fx.map_arg((n.args, n.kwargs), values.__getitem__)
                made = _made_anew(n, args, kwargs, said) if says else said
                laid = _as_on_cpu(n, args, made)
                leaves, form = pytree.tree_flatten(laid)
                sized = map(_of_size, leaves, pytree.tree_leaves(said))
                values[n] = pytree.tree_unflatten(sized, form)
                if isinstance(made, FakeTensor) or laid is not made:
                    n.meta["val"] = values[n]
                if _in_place(n) and _moved(args[0], values[n]):
                    copy = _copied(n, torch.empty_like(args[0], dtype=values[n].dtype))
                    values[copy] = copy.meta["val"]
                    anew.add(copy)
    finally:
        mode.cache_enabled = kept


def _made_anew(n: torch.fx.Node, args: Any, kwargs: Any, said: object) -> object:
    """What a call makes of arguments that may lie otherwise.

    What export has said of it stands where it cannot be asked again: a pad of negative widths, for
    instance, asks for sizes as numbers.
    """
    try:
        return n.target(*args, **kwargs)  # type: ignore[operator]
    except RuntimeError:
        return said


def _of_size(made: object, said: object) -> object:
    """What a call has made, in the size that is said of it: of a free one it may know a number."""
    if not (isinstance(made, FakeTensor) and isinstance(said, FakeTensor)):
        return made
    if made.shape != said.shape:
        return said
    pairs = zip(made.shape, said.shape, strict=True)
    if all(isinstance(m, int) == isinstance(s, int) for m, s in pairs):
        return made
    order = sorted(range(made.dim()), key=made.stride, reverse=True)
    return torch.empty_permuted(said.shape, order, dtype=made.dtype, device=made.device)


# ---- what the CPU does otherwise -----------------------------------------------------------------

# Of a call's arguments, and of what is said of its (first) result: how that lies.
Rule = Callable[[Sequence[Any], torch.Tensor], torch.Tensor]


def _tensors(given: Sequence[Any]) -> list[torch.Tensor]:
    return [a for a in given if isinstance(a, torch.Tensor)]


def _row_major(_: Sequence[Any], made: torch.Tensor) -> torch.Tensor:
    return made.new_empty(made.shape)


def _in_format(given: Sequence[Any], made: torch.Tensor) -> torch.Tensor:
    """Channels last where the first tensor lies so, row-major where not."""
    return torch.empty_like(made, memory_format=suggest_memory_format(given[0]))


def _padded(given: Sequence[Any], made: torch.Tensor) -> torch.Tensor:
    return _row_major(given, made) if "circular" in given[2:3] else _in_format(given, made)


def _as_first(given: Sequence[Any], made: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(given[0], dtype=made.dtype) if made.dim() else made


def _as_maps(given: Sequence[Any], made: torch.Tensor) -> torch.Tensor:
    """As a comparison of these tensors lies, of which PyTorch says it well."""
    tensors = _tensors(given)
    if len(tensors) == 1:
        return torch.empty_like(tensors[0], dtype=made.dtype)
    return torch.empty_like(torch.eq(*tensors), dtype=made.dtype)


def _scaled(given: Sequence[Any], made: torch.Tensor) -> torch.Tensor:
    """As the product of a tensor and of 2 to the power of another one, which is row-major."""
    x, exponents = given
    return _as_maps((x, exponents.new_empty(exponents.shape)), made)


def _of_labels(given: Sequence[Any], made: torch.Tensor) -> torch.Tensor:
    """A loss of labels is row-major; one of probabilities is a composition, of which it is said."""
    return made if given[1].is_floating_point() else _row_major(given, made)


ON_CPU: Mapping[str, Rule] = {
    **dict.fromkeys(
        (
            *("aten.batch_norm.default", "aten._native_batch_norm_legit.no_stats"),
            *("aten._native_batch_norm_legit_no_training.default", "aten.roll.default"),
            *("aten._native_batch_norm_legit.default", "aten.native_batch_norm.default"),
            *("aten._native_batch_norm_legit_functional.default", "aten.channel_shuffle.default"),
            "aten.max_unpool2d.default",
            *(f"aten.{kind}_pad{n}d.default" for kind in PADS for n in (2, 3)),
        ),
        _in_format,
    ),
    **dict.fromkeys(
        (
            *("aten.log_sigmoid.default", "aten.rrelu.default", "aten.pow.Scalar"),
            *("aten.isin.Tensor_Tensor", "aten.one_hot.default", "aten.max_pool1d.default"),
            *("aten.nll_loss_nd.default", "aten.nll_loss2d.default", "aten.normal.Tensor_Tensor"),
        ),
        _row_major,
    ),
    **dict.fromkeys(
        (
            *("aten.logical_and.default", "aten.logical_or.default", "aten.logical_xor.default"),
            *("aten.copysign.Tensor", "aten.floor_divide.default", "aten.div.Tensor_mode"),
            *("aten.heaviside.default", "aten.logaddexp.default", "aten.logaddexp2.default"),
            "aten.xlogy.Tensor",
        ),
        _as_maps,
    ),
    "aten.pad.default": _padded,
    "aten.ldexp.Tensor": _scaled,
    "aten.cross_entropy_loss.default": _of_labels,
    "aten.binary_cross_entropy.default": _as_first,
}


def _rule(n: torch.fx.Node) -> Rule | None:
    return ON_CPU.get(str(n.target)) if n.op == "call_function" else None


def _lies(value: object) -> bool:
    """Whether a tensor of the CPU lies otherwise than row-major."""
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return False
    return not value.is_contiguous()


def _as_on_cpu(n: torch.fx.Node, args: Any, made: Any) -> Any:
    """What a call makes, laid as on the CPU; of several results, the first."""
    rule = _rule(n)
    if rule is None or any(t.device.type != "cpu" for t in _tensors(args)):
        return made
    if isinstance(made, tuple | list):
        return (_as_on_cpu(n, args, made[0]), *made[1:])
    return rule(args, made) if made.dim() else made


# ---- what changes in place -----------------------------------------------------------------------


def _in_place(n: torch.fx.Node) -> bool:
    """Whether the model makes this call in place, of which export says the result only."""
    sources = n.meta.get("from_node") or ()
    names = [str(t).rpartition(".")[0] for t in (n.target, *(s.target for s in sources[-1:]))]
    taken = len(names) == 2 and f"{names[0]}_" == names[1]
    return n.op == "call_function" and taken and isinstance(n.args[0], torch.fx.Node)


def _moved(before: object, made: object) -> bool:
    """Whether a call lays its result otherwise than what the model changes in place lies."""
    if not (isinstance(before, FakeTensor) and isinstance(made, FakeTensor)):
        return False
    with before.fake_mode:
        return before.shape == made.shape and torch.empty_like(before).stride() != made.stride()


def _copied(n: torch.fx.Node, laid: torch.Tensor) -> torch.fx.Node:
    """A copy of a result that lies otherwise, for all who read it."""
    with n.graph.inserting_after(n):
        copy = n.graph.call_function(torch.ops.aten.clone.default, (n,))
    n.replace_all_uses_with(copy, lambda user: user is not copy)
    copy.meta = {**n.meta, "val": laid}
    return copy
