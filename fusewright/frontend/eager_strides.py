"""An exported program -> the same, where PyTorch's fake tensors say otherwise how results lie.

Kernels and calls behind a result read it where it lies, and what is returned has eager's strides.
`bench/strides.py` asks every operator of PyTorch which of them are said wrongly.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils import _pytree as pytree

from fusewright.errors import CaptureFailed
from fusewright.frontend.program import Program

PADS = ("reflection", "replication")


def lay_as_eager(program: Program, device: str = "cpu") -> None:
    """Give results the strides that eager's have: torch.export turns cuDNN off, whose convolutions
    lie channels last if their image or their weights do; with free sizes, PyTorch's fake tensors
    lay some results otherwise than with numbers; its own formulas lay some results of the CPU
    otherwise; a comparison with a parameter is the parameter's; and what changes in place stays
    so; and while it exports, it lays some results of what is not row-major otherwise. Only these
    calls, and those that read what they make, are asked again, with the example's sizes: of all
    others export has said it well, which knows what reads a tensor changed in place and what reads
    the new value.

    device: where it will run. The program's own tensors are the CPU's.
    """
    lay_calls(program.graph, frozenset(program.graph_signature.inputs_to_parameters), device)


def lay_calls(graph: torch.fx.Graph, parameters: Collection[str], device: str) -> None:
    """The same of a graph. parameters: names of the arguments that are parameters."""
    rules = RULES[device]
    nodes = list(graph.nodes)
    numbers = FakeTensorMode()
    numbers.cache_enabled = False  # it remembers what was said without cuDNN
    fixed, anew = dict[torch.fx.Node, Any](), set[torch.fx.Node]()
    with numbers:
        for n in nodes:
            fixed[n] = pytree.tree_map(with_numbers, n.meta.get("val"))
            if n.op != "call_function" or "val" not in n.meta or UNKNOWN in _leaves(fixed[n]):
                continue
            reflected = _as_parameters_compare(n, parameters)
            read = [v for a in n.all_input_nodes for v in _leaves(fixed[a])]
            ruled = _rule(n, rules) and any(map(_lies, read))
            asked = reflected or any(map(_lies, read)) or ".conv" in str(n.target) or _in_place(n)
            if not asked and anew.isdisjoint(n.all_input_nodes):
                continue
            anew.add(n)
            args, kwargs = torch.fx.map_arg((n.args, n.kwargs), fixed.__getitem__)
            if UNKNOWN in _leaves((args, kwargs)):
                n.meta["val"] = _made_free(n)
                fixed[n] = pytree.tree_map(with_numbers, n.meta["val"])
                if ruled and UNKNOWN not in _leaves((args[0], fixed[n])):
                    fixed[n] = _as_there(n, args, fixed[n], rules)
                    n.meta["val"] = _laid(n, fixed[n])
                continue
            fixed[n] = made_anew(n, args, kwargs, fixed[n], device)
            n.meta["val"] = _laid(n, fixed[n])
            if _in_place(n) and _moved(args[0], fixed[n]):
                copy = _copied(n)
                fixed[copy] = torch.empty_like(args[0], dtype=fixed[n].dtype)
                copy.meta["val"] = _laid(copy, fixed[copy])
                anew.add(copy)


UNKNOWN = "a size that only the data know"
FROM_DATA = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def _leaves(value: object) -> list[Any]:
    return pytree.tree_leaves(value)


def with_numbers(value: object) -> object:
    """A tensor as large as the example's, which lies as it does; the number of a free size."""
    if isinstance(value, FakeTensor):
        shape: list[Any] = [with_numbers(s) for s in value.shape]
        strides: list[Any] = [with_numbers(s) for s in value.stride()]
        if UNKNOWN in (*shape, *strides):
            return UNKNOWN
        return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)
    if isinstance(value, torch.SymInt):
        return int(value.node.hint) if value.node.has_hint() else UNKNOWN
    return value


def made_anew(n: torch.fx.Node, args: Any, kwargs: Any, said: Any, device: str) -> Any:
    """What a call makes of arguments that may lie otherwise.

    What export has said of it stands where it cannot be asked again, since only the data know it.
    """
    rules = RULES[device]
    if FROM_DATA & set(getattr(n.target, "tags", ())):
        return _as_there(n, args, said, rules)
    single = any(_lies_singly(v) for v in _leaves((args, kwargs)))
    try:
        alike = rules is ON_CPU or str(n.target) not in ON_CPU  # kernels of both lay it alike
        if single and alike and is_cheap(n, args, kwargs, said):
            made = _really_made(n, args, kwargs)
            if _sizes(made) == _sizes(said):
                return made
        made = n.target(*args, **kwargs)  # type: ignore[operator]
    except RuntimeError:
        made = said
    return _as_there(n, args, made if _sizes(made) == _sizes(said) else said, rules)


def _made_free(n: torch.fx.Node) -> object:
    """What a call makes in free sizes, where some have no number in the example."""
    said = n.meta["val"]
    modes = [v.fake_mode for v in _leaves(said) if isinstance(v, FakeTensor)]
    if not modes or FROM_DATA & set(getattr(n.target, "tags", ())):
        return said
    args, kwargs = torch.fx.map_arg((n.args, n.kwargs), lambda a: a.meta["val"])
    kept, modes[0].cache_enabled = modes[0].cache_enabled, False
    try:
        with modes[0], _unguarded(modes[0]):
            made = n.target(*args, **kwargs)  # type: ignore[operator]
            return made if _sizes(made) == _sizes(said) else said
    except RuntimeError:
        return said
    finally:
        modes[0].cache_enabled = kept


def _sizes(value: object) -> list[object]:
    return [v.shape if isinstance(v, torch.Tensor) else None for v in _leaves(value)]


def laid_with_numbers(n: torch.fx.Node, fixed: object) -> object:
    """What is said of a call in its free sizes, laid as it lies with the example's. Raises
    CaptureFailed where it has other sizes there."""
    leaves, made = pytree.tree_leaves(n.meta.get("val")), _leaves(fixed)
    with FakeTensorMode():
        said = [with_numbers(leaf) for leaf in leaves]
        if _sizes(said) != _sizes(made):
            raise CaptureFailed(f"{n.target} gives other sizes with free ones")
        return _laid(n, fixed) if "val" in n.meta else None


def _laid(n: torch.fx.Node, fixed: object) -> object:
    """What is said of a call in its free sizes, laid as it lies with the example's."""
    leaves, form = pytree.tree_flatten(n.meta["val"])
    pairs = zip(leaves, _leaves(fixed), strict=True)
    return pytree.tree_unflatten([_leaf_laid(n, said, made) for said, made in pairs], form)


def _leaf_laid(n: torch.fx.Node, said: object, made: object) -> object:
    if not (isinstance(said, FakeTensor) and isinstance(made, FakeTensor)):
        return said
    if with_numbers(said).stride() == made.stride():  # type: ignore[attr-defined]
        return said
    free = any(isinstance(s, torch.SymInt) for s in said.shape)
    with said.fake_mode, _unguarded(said.fake_mode):
        if not free:
            return torch.empty_strided(
                said.shape, made.stride(), dtype=made.dtype, device=made.device
            )
        if _is_view(n):
            args, kwargs = torch.fx.map_arg((n.args, n.kwargs), lambda a: a.meta["val"])
            return n.target(*args, **kwargs)  # type: ignore[operator]
        order = sorted(range(made.dim()), key=made.stride, reverse=True)
        return torch.empty_permuted(said.shape, order, dtype=made.dtype, device=made.device)


def _unguarded(mode: FakeTensorMode) -> AbstractContextManager[None]:
    """What is asked within says nothing of the free sizes."""
    return mode.shape_env.suppress_guards() if mode.shape_env is not None else nullcontext()


def _is_view(n: torch.fx.Node) -> bool:
    schema = getattr(n.target, "_schema", None)
    return schema is not None and any(r.alias_info is not None for r in schema.returns)


# ---- what kernels do otherwise -----------------------------------------------------------------

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


def _rolled(given: Sequence[Any], made: torch.Tensor) -> torch.Tensor:
    """Along one dimension two pieces are joined; along several, one after the other."""
    x: torch.Tensor = given[0]
    shifts, dims = (*given[1:], ())[:2]
    if not dims:
        return _row_major(given, made)
    for d, shift in zip(dims, shifts, strict=True):
        size = x.shape[d]
        start = -shift % size if size else 0
        x = torch.cat([x.narrow(d, start, size - start), x.narrow(d, 0, start)], d)
    return x


def _as_first(given: Sequence[Any], made: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(given[0], dtype=made.dtype) if made.dim() else made


def _copied_first(given: Sequence[Any], made: torch.Tensor) -> torch.Tensor:
    """As the first tensor, dimensions of size 1 too, where that has no gaps and no overlaps."""
    x: torch.Tensor = given[0]
    order = sorted((d for d in range(x.dim()) if x.shape[d] != 1), key=x.stride)
    steps = [prod(x.shape[d] for d in order[:k]) for k in range(len(order))]
    dense = steps == [x.stride(d) for d in order]
    return torch.empty_strided(x.shape, x.stride(), dtype=made.dtype) if dense else made


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
            *("aten._native_batch_norm_legit_no_training.default", "aten.pixel_shuffle.default"),
            *("aten._native_batch_norm_legit.default", "aten.native_batch_norm.default"),
            *("aten._native_batch_norm_legit_functional.default", "aten.channel_shuffle.default"),
            *("aten.max_unpool2d.default", "aten.pixel_unshuffle.default"),
            *("aten.group_norm.default", "aten.native_group_norm.default"),  # PyTorch 2.14
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
    **dict.fromkeys(("aten.index_put.default", "aten.index_put_.default"), _copied_first),
    "aten.pad.default": _padded,
    "aten.roll.default": _rolled,
    "aten.ldexp.Tensor": _scaled,
    "aten.cross_entropy_loss.default": _of_labels,
    "aten.binary_cross_entropy.default": _as_first,
}


def _scaled_and_shifted(given: Sequence[Any], made: torch.Tensor) -> torch.Tensor:
    """cuDNN takes norms with weights and biases, in two formats; PyTorch's own lie as is said.

    It takes no bfloat16, and float16 only with weights of float32.
    """
    x, *numbers = (t.dtype for t in given[:3] if isinstance(t, torch.Tensor))
    taken = len(numbers) == 2 and torch.bfloat16 not in (x, *numbers)
    taken &= x is not torch.float16 or torch.float16 not in numbers
    return _in_format(given, made) if taken else made


# What fake tensors of the CPU say otherwise than the kernels of a GPU.
ON_CUDA: Mapping[str, Rule] = {
    **{
        name: ON_CPU[name]
        for name in (
            *("aten.nll_loss_nd.default", "aten.nll_loss2d.default", "aten.one_hot.default"),
            *("aten.logical_and.default", "aten.logical_or.default", "aten.logical_xor.default"),
            *("aten.copysign.Tensor", "aten.floor_divide.default", "aten.div.Tensor_mode"),
            *("aten.heaviside.default", "aten.logaddexp.default", "aten.logaddexp2.default"),
            *("aten.ldexp.Tensor", "aten.normal.Tensor_Tensor", "aten.cross_entropy_loss.default"),
            *("aten.pow.Scalar", "aten.rrelu.default", "aten.isin.Tensor_Tensor"),
            *("aten.xlogy.Tensor", "aten.binary_cross_entropy.default"),
        )
    },
    **dict.fromkeys(("aten.pixel_shuffle.default", "aten.pixel_unshuffle.default"), _row_major),
    **dict.fromkeys(
        (
            *("aten.batch_norm.default", "aten._native_batch_norm_legit.no_stats"),
            *(
                "aten._native_batch_norm_legit_no_training.default",
                "aten.native_batch_norm.default",
            ),
            *("aten._native_batch_norm_legit.default",),
            *("aten._native_batch_norm_legit_functional.default",),
        ),
        _scaled_and_shifted,
    ),
}
RULES = {"cpu": ON_CPU, "cuda": ON_CUDA}


def _rule(n: torch.fx.Node, rules: Mapping[str, Rule]) -> Rule | None:
    return rules.get(str(n.target)) if n.op == "call_function" else None


def _lies(value: object) -> bool:
    """Whether a tensor of the CPU lies otherwise than row-major, or its strides say so."""
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return False
    return not value.is_contiguous() or lies_both_ways(value)


def lies_both_ways(value: object) -> bool:
    """Whether a tensor is row-major, and its strides along dimensions of size 1 are others'."""
    if not isinstance(value, torch.Tensor) or 1 not in value.shape or not value.is_contiguous():
        return False
    steps = [prod(max(s, 1) for s in value.shape[d + 1 :]) for d in range(value.dim())]
    return steps != [*value.stride()]


def _as_there(n: torch.fx.Node, args: Any, made: Any, rules: Mapping[str, Rule]) -> Any:
    """What a call makes, laid as where it will run; of several results, the first."""
    rule = _rule(n, rules)
    if rule is None or any(t.device.type != "cpu" for t in _tensors(args)):
        return made
    if isinstance(made, tuple | list):
        return (_as_there(n, args, made[0], rules), *made[1:])
    return rule(args, made) if made.dim() else made


# ---- dimensions of size 1 ------------------------------------------------------------------------

CHEAP = 2**20  # elements that a call may read and make


def _lies_singly(value: object) -> bool:
    """Whether strides of dimensions of size 1 may decide how a call's result lies.

    No element is found by them; but PyTorch orders dimensions and recognises formats by them, and
    its fake tensors do so otherwise than its kernels."""
    return _lies(value) and 1 in value.shape  # type: ignore[attr-defined]


def is_cheap(n: torch.fx.Node, args: Any, kwargs: Any, said: Any) -> bool:
    """Whether it can be asked with memory: on the CPU, few elements, nothing drawn."""
    tensors = _tensors(_leaves((args, kwargs, said)))
    few = sum(t.numel() for t in tensors) <= CHEAP
    drawn = torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ())
    return few and not drawn and all(t.device.type == "cpu" for t in tensors)


def _really_made(n: torch.fx.Node, args: Any, kwargs: Any) -> Any:
    """What PyTorch's own kernel makes of zeros that lie so."""
    with unset_fake_temporarily(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args, kwargs = pytree.tree_map_only(FakeTensor, _of_zeros, (args, kwargs))
        made = n.target(*args, **kwargs)  # type: ignore[operator]
    return pytree.tree_map_only(torch.Tensor, _with_its_strides, made)


def _of_zeros(t: FakeTensor) -> torch.Tensor:
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).zero_()


def _with_its_strides(t: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)


# ---- comparisons with a parameter ----------------------------------------------------------------

REFLECTED = {"gt": "lt", "lt": "gt", "ge": "le", "le": "ge", "eq": "eq", "ne": "ne"}


def _as_parameters_compare(n: torch.fx.Node, parameters: Collection[str]) -> bool:
    """Whether it is written the other way round now.

    Python asks the right-hand side first where its class is derived from the left one's, as
    Parameter is from Tensor: `x > parameter` calls `parameter < x` in eager, and that lies as the
    parameter does where both are read in different orders."""
    name = str(n.target).removeprefix("aten.").removesuffix(".Tensor")
    kind, _, _ = n.meta.get("torch_fn", ("", ""))[1].partition(".")
    line = [t for t in (n.meta.get("stack_trace") or "").splitlines() if t.strip(" ^~")][-1:]
    named = any(f".{name}(" in t for t in line)
    if name not in REFLECTED or kind != "method_descriptor" or named:
        return False
    left, right = n.args
    names = [getattr(a, "name", "") in parameters for a in (left, right)]
    if names != [False, True]:
        return False
    n.target = getattr(torch.ops.aten, REFLECTED[name]).Tensor
    n.args = (right, left)
    return True


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
    return before.shape == made.shape and torch.empty_like(before).stride() != made.stride()


def _copied(n: torch.fx.Node) -> torch.fx.Node:
    """A copy of a result that lies otherwise, for all who read it."""
    with n.graph.inserting_after(n):
        copy = n.graph.call_function(torch.ops.aten.clone.default, (n,))
    n.replace_all_uses_with(copy, lambda user: user is not copy)
    copy.meta = dict(n.meta)
    return copy
