"""A functional graph of ATen calls, as AOTAutograd makes them -> Captured, without a trace.

`capture` runs a model's Python and exports it, of which nothing is needed where the graph is there
already: it is run once on fake tensors like those that it is given, which says how all results lie.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from fusewright.common.containers import flatten
from fusewright.errors import CaptureFailed
from fusewright.frontend.capture import Captured, arguments_of, captured_program
from fusewright.frontend.carried_state import NOTHING
from fusewright.frontend.eager_strides import lay_as_eager, with_numbers
from fusewright.frontend.export import Exported, run_fake, silence, traced_as_eager, type_as_eager
from fusewright.frontend.flat_module import flat_arguments
from fusewright.frontend.forward_trace import ForwardTrace
from fusewright.frontend.mask_counts import without_selections
from fusewright.frontend.program import TracedProgram, is_fixed
from fusewright.frontend.refusals import cannot_capture

aten = torch.ops.aten


def is_plain(graph: Graph) -> bool:
    """Whether a graph is what `capture_graph` takes: tensors of fixed sizes go in, and it calls
    nothing but ATen operators that change nothing."""
    return all(map(_is_plain, graph.nodes))


def _is_plain(n: Node) -> bool:
    if n.op == "placeholder":
        return isinstance(n.meta.get("val"), torch.Tensor) and is_fixed(n.meta["val"])
    if n.op == "output":
        return True
    if n.op != "call_function" or not is_fixed(n.meta.get("val")):
        return False
    if n.target is operator.getitem:
        return True
    return isinstance(n.target, OpOverload) and not n.target._schema.is_mutable


class _Values(Interpreter):
    """Notes what each call gives."""

    def run_node(self, n: Node) -> Any:
        made = super().run_node(n)
        if n.op != "output":
            n.meta["val"] = made
        return made


def capture_graph(
    module: nn.Module, given: GraphModule, inputs: Sequence[torch.Tensor], device: str = "cpu"
) -> Captured:
    """A graph, which `module` calls with its own arguments; raises CaptureFailed.

    given: has a graph that `is_plain`.  inputs: like those of later calls.  device: "cpu" or
    "cuda", where it will run.
    """
    copied = Graph()
    copied.output(copied.graph_copy(given.graph, {}))
    flat, program = flat_arguments(module, inputs), TracedProgram(copied)
    run = partial(run_on_fakes, GraphModule(given, copied), flat.tensors)
    try:
        with silence(), torch.no_grad(), traced_as_eager(device):
            results, shown = run_fake(run)
            tree = tensors_alone(copied, results)
            lie_as_eager(program, device)
    except CaptureFailed:
        raise
    except Exception as error:
        raise cannot_capture(error, type(module)) from error
    arguments = arguments_of(module, inputs, flat.trees)
    found = Exported(program, (), flat.trees, tree)
    return captured_program(module, arguments, found, shown)


def lie_as_eager(program: TracedProgram, device: str) -> None:
    """Rewrite the program in place, as exported ones are."""
    as_layers(program.graph)
    lay_as_eager(program, device)
    type_as_eager(program)
    without_selections(program)


def as_layers(graph: Graph) -> None:
    """Products with a transposed matrix, and convolutions, are called as models call them again."""
    for n in graph.nodes:
        if n.target in (aten.addmm.default, aten.mm.default) and not n.kwargs:
            _as_linear(n)
        elif n.target is aten.convolution.default:
            _as_convolution(n)
    graph.eliminate_dead_code()


def _as_linear(n: Node) -> None:
    *bias, x, factor = n.args
    vectors = [b for b in bias if isinstance(b, Node) and b.meta["val"].dim() == 1]
    transposed = isinstance(factor, Node) and factor.target is aten.t.default
    if transposed and len(vectors) == len(bias):
        assert isinstance(factor, Node)
        n.target, n.args = aten.linear.default, (x, factor.args[0], *vectors)


def _as_convolution(n: Node) -> None:
    x, weight, bias, stride, padding, dilation, turned, more, groups = n.args
    kind = f"conv{'_transpose' * bool(turned)}{len(stride)}d"  # type: ignore[arg-type]
    packet = getattr(aten, kind, None)
    if packet is None:
        return
    if turned:
        n.target = packet.input if len(stride) > 1 else packet.default  # type: ignore[arg-type]
        n.args = (x, weight, bias, stride, padding, more, groups, dilation)
    else:
        n.target, n.args = packet.default, (x, weight, bias, stride, padding, dilation, groups)


def run_on_fakes(
    given: GraphModule, inputs: Sequence[object], keys: Sequence[int | str] = ()
) -> tuple[Any, ForwardTrace]:
    """The results, and whose memory they show. inputs: tensors, or sizes; those that are free are
    the example's here.  keys: what the tensors are called there; by default their numbers."""
    with FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv()) as mode:
        fakes = [_fake(mode, x) for x in inputs]
        made: Any = _Values(given).run(*fakes, enable_io_processing=False)
    results = list(made) if isinstance(made, list) else made  # a graph's own lists are immutable
    memory = [t.untyped_storage()._cdata for t in fakes if isinstance(t, torch.Tensor)]
    named = list(zip(keys or range(len(memory)), memory, strict=True))
    tensors_made = [r for r in pytree.tree_leaves(results) if isinstance(r, torch.Tensor)]
    shown = [r.untyped_storage()._cdata for r in tensors_made]
    owners = tuple(frozenset[int | str](k for k, own in named if own == s) for s in shown)
    memories = tuple(shown.index(s) for s in shown)
    trace = ForwardTrace((), owners, memories, NOTHING, NOTHING, ("",) * len(memories))
    return results, trace


def _fake(mode: FakeTensorMode, value: Any) -> Any:
    if not is_fixed(value):
        return with_numbers(value)
    return mode.from_tensor(value.detach(), static_shapes=True)


def tensors_alone(graph: Graph, results: Any) -> Any:
    """How the results hold their tensors, of which the graph then returns nothing else."""
    tree, tensors = flatten(results)
    (output,) = (n for n in graph.nodes if n.op == "output")
    nodes = [n for n in pytree.tree_leaves(output.args[0]) if isinstance(n, Node)]
    if len(nodes) != len(tensors):
        raise CaptureFailed("A graph returns something other than tensors, numbers and None.")
    output.args = (tuple(nodes),)
    return tree
