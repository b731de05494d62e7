"""A call of PyTorch as a record: what a library node calls, with what, and what is known about it.

    LibraryCall("aten.linear", "default", "torch.nn.functional.linear", (TensorRef(0), …))

Who writes the call asks for its text (`render`), and who wants to know what it computes asks for
its arguments as values (`bind`). Nobody reads the text back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

# ATen name, of its plain overload -> how a person would write it (where the arguments are the same)
FUNCTIONS: Mapping[str, str] = MappingProxyType(
    {
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
        "aten.native_layer_norm": "torch.native_layer_norm",
        "aten.native_group_norm": "torch.native_group_norm",
        "aten.native_dropout": "torch.native_dropout",
        "aten.scatter.src": "torch.scatter",
        "aten.select": "torch.select",
        "aten.view.dtype": "torch.Tensor.view",
    }
)
PLAIN_OVERLOADS = ("default", "int", "input", "padding")
# Calls of PyTorch whose results always show the memory of their argument.
CALLED_VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        *("view", "view_as_real", "view_as_complex", "select", "slice", "narrow", "split"),
        *("split_with_sizes", "unbind", "chunk", "diagonal", "expand", "permute", "transpose", "t"),
        *("unsqueeze", "squeeze", "unfold", "alias", "detach", "as_strided", "imag", "_conj"),
        *("_neg_view", "unflatten"),
    )
)

# Calls that a CUDA graph can record: they read no value on the host, and draw no random numbers.
RECORDED_CALLS = CALLED_VIEWS | {
    f"aten.{name}"
    for name in (
        *("linear", "mm", "matmul", "bmm", "addmm", "baddbmm", "einsum"),
        *(f"conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3)),
        "scaled_dot_product_attention",
        *("native_layer_norm", "native_group_norm", "instance_norm"),
        *("_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training"),
        *(f"{kind}_pool{rank}d" for kind in ("max", "avg", "adaptive_avg") for rank in (1, 2, 3)),
        *("max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d"),
        *("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d", "grid_sampler_2d"),
        *("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "im2col", "col2im"),
        *("cat", "stack", "embedding", "gather", "index_select", "flip", "roll"),
        *("constant_pad_nd", "cumsum", "cumprod", "sort", "topk"),
    )
}


def product_text(multiple: int, names: Sequence[str], variables: Mapping[str, str]) -> str:
    """So many times these free sizes, as an expression of Python, C++ and English. variables: what
    they are called there, where that is not their name."""
    factors = [variables.get(name, name) for name in names]
    return " * ".join([*factors, str(multiple)] if multiple != 1 or not factors else factors)


# ---- arguments -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class MethodView:
    """A method of tensors that shows the same memory: `.flatten(0, -2)`."""

    method: str
    args: tuple[Arg, ...] = ()


@dataclass(frozen=True)
class TensorRef:
    """The node's argument at `position`, or a view of it."""

    position: int
    views: tuple[MethodView, ...] = ()


@dataclass(frozen=True, eq=False)
class Scalar:
    """A number, a truth value, a word or None. 0.0 is another one than -0.0, and 1 than True."""

    plain: bool | int | float | complex | str | None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scalar) and self._exactly() == other._exactly()

    def __hash__(self) -> int:
        return hash(self._exactly())

    def _exactly(self) -> tuple[type, str]:
        return type(self.plain), repr(self.plain)


@dataclass(frozen=True)
class SizeRef:
    """A size that only the running model knows: `multiple` times the free sizes of these names."""

    multiple: int
    names: tuple[str, ...] = ("batch",)


@dataclass(frozen=True)
class DtypeRef:
    """A type of elements."""

    dtype: torch.dtype


@dataclass(frozen=True)
class DeviceRef:
    """The device on which the model runs."""


@dataclass(frozen=True)
class LayoutRef:
    """How a tensor lies in memory, in PyTorch's words."""

    layout: torch.layout | torch.memory_format


@dataclass(frozen=True)
class ListArg:
    """Several arguments as one."""

    items: tuple[Arg, ...]
    is_tuple: bool = False


@dataclass(frozen=True)
class ComputedNumber:
    """A number that Python computes when the model runs. template: its text, `{}` its operands."""

    template: str
    operands: tuple[Arg, ...]


Arg = TensorRef | Scalar | SizeRef | DtypeRef | DeviceRef | LayoutRef | ListArg | ComputedNumber


class Words(NamedTuple):
    """How tensors, the device and the free sizes are called where a call is written."""

    tensors: Sequence[str]
    device: str
    sizes: Mapping[str, str]


def arg_text(arg: Arg, words: Words) -> str:
    """An argument as Python text."""
    match arg:
        case TensorRef(position, views):
            return words.tensors[position] + _views_text(views, words)
        case Scalar(float(number)) if not math.isfinite(number):
            return f"float('{number}')"
        case Scalar(value) | DtypeRef(value) | LayoutRef(value):
            return repr(value)
        case SizeRef(multiple, names):
            return product_text(multiple, names, words.sizes)
        case DeviceRef():
            return words.device
        case ListArg(items, is_tuple):
            inside = _joined(items, words)
            rest = "," if len(items) == 1 else ""
            return f"({inside}{rest})" if is_tuple else f"[{inside}]"
        case ComputedNumber(template, operands):
            return template.format(*(arg_text(operand, words) for operand in operands))


def with_tensors(arg: Arg, change: Callable[[TensorRef], Arg]) -> Arg:
    """The same argument of other tensors."""
    match arg:
        case TensorRef():
            return change(arg)
        case ListArg(items):
            return replace(arg, items=tuple(with_tensors(item, change) for item in items))
        case ComputedNumber(_, operands):
            return replace(arg, operands=tuple(with_tensors(o, change) for o in operands))
        case _:
            return arg


def _joined(args: Sequence[Arg], words: Words) -> str:
    return ", ".join(arg_text(arg, words) for arg in args)


def _views_text(views: Sequence[MethodView], words: Words) -> str:
    return "".join(f".{view.method}({_joined(view.args, words)})" for view in views)


class _Unknown(Exception):
    """An argument has no value before the model runs."""


def _value(arg: Arg, tensors: Sequence[Any]) -> Any:
    """What an argument is; raises _Unknown where only the running model knows."""
    match arg:
        case TensorRef(position, ()):
            return tensors[position]
        case Scalar(plain):
            return plain
        case ListArg(items):
            return [_value(item, tensors) for item in items]
        case _:
            raise _Unknown


# ---- calls ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HugePages:
    """New memory of huge pages for a result of float32, which `_fusewright_on_huge_pages` makes."""

    shape: ListArg

    def text(self, words: Words) -> str:
        """How the memory is made, as Python text."""
        return f"_fusewright_on_huge_pages({arg_text(self.shape, words)}, torch.float32)"


class Bound(NamedTuple):
    """The arguments of a call as values: by position and by name."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class LibraryCall:
    """A call of PyTorch.

    operator, overload: ATen's. function: what the text calls, which may be another function that
    computes the same. result_views: methods behind the call. out: memory that the call writes to.
    new_memory: nothing else can see the result's memory. effect: its place among the calls that
    draw random numbers or update statistics, so that it runs even if unused, and in the model's
    order. memory_of_pieces: it computes nothing, for its arguments are written into its memory.
    why_library: why no kernel of ours takes its place.
    """

    operator: str
    overload: str
    function: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...] = ()
    result_views: tuple[MethodView, ...] = ()
    out: HugePages | None = None
    new_memory: bool = False
    effect: int | None = None
    memory_of_pieces: bool = False
    why_library: str | None = None

    @property
    def name(self) -> str:
        """ATen's name, and behind it an overload that means something else than the plain one."""
        return call_name(self.operator, self.overload)

    @property
    def shows_argument(self) -> bool:
        """Whether its result always shows the memory of its argument."""
        return self.operator in CALLED_VIEWS

    @property
    def drops_out(self) -> bool:
        """Whether it is attention that draws random numbers, which its name does not say."""
        share = self.argument(4, "dropout_p")
        idle = share is None or (isinstance(share, Scalar) and not share.plain)
        return self.operator == "aten.scaled_dot_product_attention" and not idle

    @property
    def short_name(self) -> str:
        """The name as people read it."""
        return self.name.removeprefix("aten.")

    def render(self, tensors: Sequence[str], device: str, sizes: Mapping[str, str]) -> str:
        """The call as Python text. tensors: those of the node's arguments.  sizes: the variables of
        the free sizes, where they are not called by their names."""
        words = Words(tensors, device, sizes)
        given = [arg_text(arg, words) for arg in self.args]
        given += [f"{name}={arg_text(arg, words)}" for name, arg in self.kwargs]
        given += [f"out={self.out.text(words)}"] if self.out else []
        return f"{self.function}({', '.join(given)}){_views_text(self.result_views, words)}"

    def bind(self, tensors: Sequence[Any]) -> Bound | None:
        """The arguments as values, lists and tuples as lists. tensors: the values of the tensors.

        None where a value is missing: for a type, a layout, a device, a view, or for what depends
        on a free size or on data; and for a call that writes to given memory or is seen through
        views.
        """
        if self.out or self.result_views:
            return None
        try:
            return Bound(
                tuple(_value(arg, tensors) for arg in self.args),
                {name: _value(arg, tensors) for name, arg in self.kwargs},
            )
        except _Unknown:
            return None

    def argument(self, index: int, name: str) -> Arg | None:
        """The argument at `index`, or else the one called `name`."""
        return self.args[index] if index < len(self.args) else dict(self.kwargs).get(name)

    def without(self, position: int) -> LibraryCall:
        """The call with None in the place of one of its tensors."""

        def change(tensor: TensorRef) -> Arg:
            if tensor.position == position:
                return Scalar(None)
            return replace(tensor, position=tensor.position - (tensor.position > position))

        args = tuple(with_tensors(arg, change) for arg in self.args)
        kwargs = tuple((name, with_tensors(arg, change)) for name, arg in self.kwargs)
        return replace(self, args=args, kwargs=kwargs)

    def because(self, why: str) -> LibraryCall:
        """The same call, with the reason why no kernel of ours takes its place."""
        return replace(self, why_library=why)

    def __str__(self) -> str:
        """The call and what is known about it, for people; `{0}`, `{1}`, … are its tensors."""
        count = max((t.position for t in self._tensors()), default=-1) + 1
        text = self.render([f"{{{k}}}" for k in range(count)], "{device}", {})
        facts = [self.name]
        facts += ["new memory"] * self.new_memory
        facts += [f"effect {self.effect}"] * (self.effect is not None)
        facts += ["memory of its pieces"] * self.memory_of_pieces
        facts += [f"because {self.why_library}"] * (self.why_library is not None)
        return f"{text} [{', '.join(facts)}]"

    def _tensors(self) -> list[TensorRef]:
        found: list[TensorRef] = []

        def seen(tensor: TensorRef) -> Arg:
            found.append(tensor)
            return tensor

        for arg in (*self.args, *(arg for _, arg in self.kwargs)):
            with_tensors(arg, seen)
        return found


def call_name(operator: str, overload: str) -> str:
    """ATen's name, and behind it an overload that means something else than the plain one."""
    full = f"{operator}.{overload}"
    other = operator in FUNCTIONS and overload not in PLAIN_OVERLOADS
    return full if full in FUNCTIONS or other else operator


def function_of(operator: str, overload: str) -> str:
    """What the text of an ATen call calls."""
    return FUNCTIONS.get(call_name(operator, overload), f"torch.ops.{operator}.{overload}")


def clone_call(there: tuple[MethodView, ...], back: tuple[MethodView, ...]) -> LibraryCall:
    """The call of a copy in row-major order, seen through views on the way there and back."""
    return LibraryCall(
        "aten.clone",
        "default",
        "torch.clone",
        (TensorRef(0, there),),
        (("memory_format", LayoutRef(torch.contiguous_format)),),
        result_views=back,
        new_memory=True,
    )
