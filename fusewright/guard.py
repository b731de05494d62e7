"""Captured + Plan -> the guard of the emitted `forward`: the conditions under which the kernels compute
exactly what the original `forward` would, as lines of Python.

Whatever is not listed here runs `reference_forward`, so a missing condition would be a wrong answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from fusewright.capture import Captured
from fusewright.ir import Batch, Node, Shape, toposort
from fusewright.target import Target


def guard(
    captured: Captured, module: nn.Module, names: Sequence[str], target: Target
) -> tuple[str, ...]:
    """Conditions, to be joined by `and`. names: of the arguments of forward, in order."""
    leaves = [n for n in toposort(captured.graph.roots) if n.op in ("parameter", "buffer")]
    state = [n for n in leaves if str(n["name"]) not in captured.constants]
    return tuple(
        [
            *_inputs(captured, names, target),
            *_state(state, module, captured, names),
            *_no_gradients(captured, names, state, module),
            *_settings(captured, module),
            *_hooks(module),
            "_fusewright_plain_mode()",
        ]
    )


def place(module: nn.Module, path: str) -> str:
    """Python text that reaches parameter, buffer or submodule `path` from `self`."""
    text, here = "self", module
    for name in path.split(".") if path else []:
        indexed = name.isdigit() and hasattr(here, "__getitem__")
        if indexed:
            text = f"{text}[{name}]"
        else:
            text = f"{text}.{name}" if name.isidentifier() else f"getattr({text}, {name!r})"
        here = getattr(here, name)
    return text


def batch_source(captured: Captured, names: Sequence[str]) -> str:
    """Python text of the batch size, or ""."""
    for argument in captured.arguments:
        if argument.tensor is not None:
            shape = captured.graph.inputs[argument.tensor].shape
            for d, size in enumerate(shape):
                if size == Batch(1):
                    return f"{names[argument.index]}.shape[{d}]"
    return ""


def device_source(captured: Captured, names: Sequence[str], state: Sequence[str]) -> str:
    """Python text of a tensor whose device is the one to run on."""
    tensors = [names[a.index] for a in captured.arguments if a.tensor is not None]
    return (tensors or list(state))[0]


def _inputs(captured: Captured, names: Sequence[str], target: Target) -> Iterator[str]:
    batch = batch_source(captured, names)
    for argument in captured.arguments:
        name = names[argument.index]
        if argument.tensor is None:
            yield f"type({name}) is {type(argument.value).__name__} and {name} == {argument.value!r}"
            continue
        leaf = captured.graph.inputs[argument.tensor]
        yield f"type({name}) is torch.Tensor and {name}.is_{target.device}"
        yield f"{name}.dtype is {leaf.dtype} and {_shape_test(name, leaf.shape)}"
        yield f"{name}.layout is torch.strided and {_layout_test(name, leaf)}"
    if batch:
        yield f"{batch} >= 2"


def _shape_test(name: str, shape: Shape) -> str:
    """A free batch is the shape of whatever comes, as long as all agree."""
    if not any(isinstance(s, Batch) for s in shape):
        return f"{name}.shape == {_tuple(shape)}"
    fixed = [
        f"{name}.shape[{d}] == batch * {s.multiple}"
        for d, s in enumerate(shape)
        if isinstance(s, Batch) and s.multiple != 1
    ]
    rest = tuple(shape[1:])
    return " and ".join([f"{name}.dim() == {len(shape)}", f"{name}.shape[1:] == {_tuple(rest)}", *fixed])


def _layout_test(name: str, leaf: Node) -> str:
    if not leaf.order:
        return f"{name}.is_contiguous()"
    return f"{name}.permute({', '.join(map(str, leaf.order))}).is_contiguous()"


def _state(
    leaves: Sequence[Node], module: nn.Module, captured: Captured, names: Sequence[str]
) -> Iterator[str]:
    reached = [place(module, str(n["name"])) for n in leaves]
    device = f"{device_source(captured, names, reached)}.device" if leaves else ""
    for n, text in zip(leaves, reached, strict=True):
        yield f"_fusewright_is({text}, {_tuple(n.shape)}, {n.dtype}, {device})"


def _no_gradients(
    captured: Captured, names: Sequence[str], state: Sequence[Node], module: nn.Module
) -> Iterator[str]:
    inputs = [
        names[a.index]
        for a in captured.arguments
        if a.tensor is not None and captured.graph.inputs[a.tensor].dtype.is_floating_point
    ]
    parameters = [place(module, str(n["name"])) for n in state if n.op == "parameter"]
    tensors = [*inputs, *parameters]
    if tensors:
        wanted = " or ".join(f"{t}.requires_grad" for t in tensors)
        yield f"not (torch.is_grad_enabled() and ({wanted}))"


def _settings(captured: Captured, module: nn.Module) -> Iterator[str]:
    for setting in captured.settings:
        text = f"{place(module, setting.path)}.{setting.name}"
        value = setting.value
        if isinstance(value, bool) or value is None:
            yield f"{text} is {value}"
        else:
            yield f"{text} == {value!r}"


def _hooks(module: nn.Module) -> Iterator[str]:
    for path, child in module.named_modules():
        if path and not isinstance(child, nn.ModuleList | nn.ModuleDict):
            text = place(module, path)
            yield f"not ({text}._forward_hooks or {text}._forward_pre_hooks)"


def _tuple(shape: Shape) -> str:
    inside = ", ".join(str(s) for s in shape)
    return f"({inside},)" if len(shape) == 1 else f"({inside})"
