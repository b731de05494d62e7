"""`torch.compile(model, backend="fusewright")`, found through the package's entry point.

A graph without gradients is compiled as Dynamo gives it, in PyTorch's composite operators. Where
gradients are recorded, AOTAutograd makes a forward and a backward graph of it, each of which is
compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import GraphModule

from fusewright.backend.compiled_graph import CompiledGraph
from fusewright.compiler.options import Options
from fusewright.errors import BadUsage
from fusewright.frontend.export import compositions
from fusewright.frontend.gradient_decompositions import gradient_decompositions


def fusewright(
    graph: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, object] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """A graph of Dynamo as a function with kernels, made when it is first called.

    options: by name, as `fusewright.compiler.options.Options` has them. Raises BadUsage for others,
    and for a `mode` of `torch.compile`, which are those of PyTorch's own backend.
    What has no kernels runs as the graph has it; see `CompiledGraph`.
    """
    if mode is not None:
        raise BadUsage(
            f"torch.compile(mode={mode!r}): modes are those of PyTorch's own backend. Leave it "
            f"out; options={{...}} takes {', '.join(vars(Options()))}."
        )
    asked = Options.of(options)
    if asked.dynamic_shapes:
        raise BadUsage(
            "options: dynamic_shapes is one of fusewright.optimize; torch.compile has dynamic=True "
            "and torch._dynamo.mark_dynamic."
        )
    if not _records_gradients(graph, example_inputs):
        run: Callable[..., Any] = torch.compiler.disable(  # type: ignore[no-untyped-call]
            CompiledGraph(graph, asked, "inference")
        )
        return run
    compiler = aot_autograd(
        fw_compiler=partial(_compile, asked, "forward"),
        bw_compiler=partial(_compile, asked, "backward"),
        inference_compiler=partial(_compile, asked, "inference"),
        decompositions=_decompositions,
        partition_fn=min_cut_rematerialization_partition,
    )
    trained: Callable[..., Any] = compiler(graph, example_inputs)
    return trained


def _decompositions() -> dict[Any, Any]:
    return {**compositions(), **gradient_decompositions()}


def _compile(
    options: Options, kind: str, graph: GraphModule, _inputs: Sequence[Any]
) -> Callable[..., Any]:
    run: Callable[..., Any] = make_boxed_func(CompiledGraph(graph, options, kind))
    return run


def _records_gradients(graph: GraphModule, example_inputs: Sequence[Any]) -> bool:
    tensors = [*example_inputs, *graph.parameters(), *graph.buffers()]
    return torch.is_grad_enabled() and any(
        isinstance(t, torch.Tensor) and t.requires_grad for t in tensors
    )
