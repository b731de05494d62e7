"""A graph of PyTorch's compiler -> a function that runs it with kernels.

The kernels are made when a call comes, from its tensors: PyTorch's compiler is done then. A graph
with free sizes gets kernels for each kind of call that its first kernels do not serve.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule
from torch.utils._python_dispatch import (
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)

from fusewright.backend.sized_graph import without_sizes
from fusewright.build.compilers import require_tools
from fusewright.compiler.compilation import Compilation, design, make
from fusewright.compiler.options import Options
from fusewright.compiler.pipeline import fused_as
from fusewright.errors import BadUsage, CaptureFailed, FusewrightError, UnusableProblem
from fusewright.frontend.aten_graph import capture_graph, is_plain
from fusewright.ir.graph import BatchSize
from fusewright.targets.detect import resolve_target
from fusewright.targets.target import Target

MOST_VARIANTS = 8  # of one graph, as often as Dynamo compiles a function again by default
DEVICES = ("cpu", "cuda")
Result = TypeVar("Result")
log = logging.getLogger("fusewright")


@dataclass(frozen=True)
class Variant:
    """Kernels for some calls. sizes: of every argument that changes; None where any will do.
    copied: positions of arguments that have gaps in memory, of which kernels get copies."""

    sizes: tuple[tuple[object, ...], ...]
    module: Callable[..., Any]
    copied: tuple[int, ...] = ()

    def run(self, arguments: list[Any]) -> Any:
        for k in self.copied:
            arguments[k] = arguments[k].contiguous()
        return self.module(*arguments)

    def serves(self, sizes: Sequence[Sequence[object]]) -> bool:
        return all(
            len(mine) == len(asked)
            and all(a is None or a == b for a, b in zip(mine, asked, strict=True))
            for mine, asked in zip(self.sizes, sizes, strict=True)
        )


class CompiledGraph:
    """A graph, called with what it takes, by position.

    Where no kernels can be made, or none would be faster, it runs as it is; the log of level INFO
    of the logger "fusewright" says which graphs do and why. Where a tool is missing, or making
    kernels failed otherwise, that is a warning.
    """

    def __init__(self, graph: GraphModule, options: Options, kind: str) -> None:
        """kind: "inference", "forward" or "backward", for the log."""
        self._given, self._graph = graph, without_sizes(graph)
        self._options, self._kind = options, kind
        self._variants: list[Variant] = []

    def __call__(self, *given: Any) -> Any:
        if FakeTensor in map(type, given):  # a tracer wants to see every operator
            return self._given(*given)
        arguments = self._graph.arguments(given)
        sizes = [_sizes(arguments[k]) for k in self._graph.changing]
        for variant in self._variants:
            if variant.serves(sizes):
                return variant.run(arguments)
        if len(self._variants) == MOST_VARIANTS:
            return self._given(*given)
        variant = self._variant(arguments, sizes)
        self._variants.append(variant)
        with _disable_current_modes() if _pytorch_looks_on() else nullcontext():
            return variant.run(arguments)

    def _variant(self, arguments: list[Any], sizes: Sequence[tuple[object, ...]]) -> Variant:
        module = self._graph.module
        name = f"{self._kind} graph of {len(module.graph.graph.nodes)} nodes"
        copied = self._with_gaps(arguments)
        arguments = [a.contiguous() if k in copied else a for k, a in enumerate(arguments)]
        device = next((a.device.type for a in arguments if isinstance(a, torch.Tensor)), "cpu")
        try:
            if device not in DEVICES:
                raise CaptureFailed(f"its tensors are on {device}, for which there are no kernels")
            machine, _ = resolve_target(self._options.target or device)
            made, fused = _in_own_thread(partial(self._made, arguments, machine))
        except UnusableProblem as error:
            log.info("%s runs as it is: %s", name, error)
            return Variant(tuple(sizes), module)
        except BadUsage:  # an option that cannot be kept
            raise
        except Exception as error:  # noqa: BLE001 - a graph that runs is not to fail for our sake
            kind = "" if isinstance(error, FusewrightError) else f"{type(error).__name__}: "
            why = f"{kind}{error}"
            warnings.warn(f"fusewright: {name} runs as it is: {why}", stacklevel=2)
            return Variant(tuple(sizes), module)
        if fused is None:
            log.info("%s runs as it is: no kernel would be faster", name)
            return Variant(tuple(sizes), module)
        log.info("%s: %d kernels", name, len(made.kernels))
        return Variant(self._free(made, arguments, sizes), fused, copied)

    def _made(self, arguments: list[Any], machine: Target) -> tuple[Compilation, nn.Module | None]:
        """What is made of the graph for these arguments, and what runs it."""
        require_tools(machine)
        module, precision, rules = self._graph.module, self._options.precision, self._options.rules
        if is_plain(self._given.graph):
            found = capture_graph(module, self._given, arguments, machine.device)
            made = design(found, machine, precision, rules)
        else:
            free = self._graph.free
            made = make(module, arguments, machine, precision, rules, asked=(free,))
        return made, fused_as(made, module, rules)

    def _with_gaps(self, arguments: Sequence[Any]) -> tuple[int, ...]:
        """Tensors with gaps, as parts of a packed projection are, that may be copied: gradients may
        lie as they like, where results of a forward pass lie as eager's."""
        if self._kind != "backward":
            return ()
        tensors = ((k, a) for k, a in enumerate(arguments) if isinstance(a, torch.Tensor))
        return tuple(k for k, t in tensors if not is_non_overlapping_and_dense_or_false(t))

    def _free(
        self, made: Compilation, arguments: Sequence[Any], sizes: Sequence[tuple[object, ...]]
    ) -> tuple[tuple[object, ...], ...]:
        """The sizes that the kernels ask for."""
        tensors = [k for k, a in enumerate(arguments) if isinstance(a, torch.Tensor)]
        shapes = {k: n.shape for k, n in zip(tensors, made.captured.graph.inputs, strict=True)}
        return tuple(
            tuple(
                None if isinstance(s, BatchSize) else here
                for s, here in zip(shapes.get(k, asked), asked, strict=True)
            )
            for k, asked in zip(self._graph.changing, sizes, strict=True)
        )


def _pytorch_looks_on() -> bool:
    """Whether nobody but AOTAutograd sees every call, which it does when a graph first runs."""
    modes = _get_current_dispatch_mode_stack()
    return all(type(mode).__module__.startswith("torch._functorch.") for mode in modes)


def _in_own_thread(work: Callable[[], Result]) -> Result:
    """The result, or what is raised. A call may come from within autograd, whose state of PyTorch's
    dispatcher stops every trace; a new thread has the state that programs start with."""
    initialized: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    device = torch.cuda.current_device() if initialized else None

    def alone() -> Result:
        if device is not None:
            torch.cuda.set_device(device)
        return work()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(alone).result()


def _sizes(argument: Any) -> tuple[object, ...]:
    """Of a tensor; of a number, itself."""
    return tuple(argument.shape) if isinstance(argument, torch.Tensor) else (argument,)
