"""nn.Module + tensors -> forward and backward graphs of ATen calls, as AOTAutograd cuts them.

The model is exported once more, with gradients, and AOTAutograd differentiates it. Sizes that are
free without gradients are free here, too: the derivative may ask nothing of them that is not so for
all. Where some are 1, AOTAutograd is asked again, and has to differentiate into the same calls.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._functorch._aot_autograd import graph_compile
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext, tracing
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec
from torch.fx import Graph, GraphModule, Node

from fusewright.errors import CaptureFailed
from fusewright.frontend.asked_size import AskedSize
from fusewright.frontend.batch_of_one import (
    Values,
    is_all,
    other_examples,
    provable,
    same_derivative,
)
from fusewright.frontend.export import (
    are_products,
    compositions,
    dimensions,
    silence,
)
from fusewright.frontend.gradient_decompositions import gradient_decompositions
from fusewright.frontend.size_symbols import (
    NO_SYMBOLS,
    SizeSymbols,
    asked_behind,
    guards_of,
    relations,
    symbols_of,
)
from fusewright.ir.graph import BatchSize, FreeSize

# PyTorch has routines for all steps of them, forward and backward.
RECURRENT = frozenset(f"aten.{name}" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"))
aten = torch.ops.aten


@dataclass(frozen=True)
class JointProgram:
    """A model and its derivative. program: the model.  joint: both, before they are cut apart.

    forward, backward: the two. The forward graph has new values of what it changes first, then the
    results, then what backward reads.  about: AOTAutograd's metadata.  free, symbols: its free
    sizes, and what stands for them.
    """

    program: ExportedProgram
    joint: GraphModule
    forward: GraphModule
    backward: GraphModule
    about: Any
    free: tuple[FreeSize, ...] = ()
    symbols: SizeSymbols = NO_SYMBOLS


def joint_program(
    module: nn.Module,
    tensors: Sequence[torch.Tensor],
    free: Sequence[FreeSize],
    asked: Sequence[AskedSize],
    device: str,
) -> JointProgram:
    """The model and its derivative; raises CaptureFailed, where they cannot be had with these sizes
    free, too, or whatever PyTorch raises.

    free: sizes that are free without gradients.  asked: where they are.  device: "cpu" or "cuda",
    where the graphs will run.
    """
    if not free:
        return _cut(_exported(module, tensors), NO_SYMBOLS)
    names = {size.name for size in free}
    chosen = [size for size in asked if size.name in names]
    given = _Given(module, tuple(tensors), tuple(free), tuple(chosen), device)
    with _sizes_left_open():
        made = _with_free(given)
        ones = _ones(given, made)
    return replace(made, free=tuple(replace(s, least=1 if s.name in ones else 2) for s in free))


@contextmanager
def plain_autograd() -> Iterator[None]:
    """Raise CaptureFailed within the block for what a trace would leave out: derivatives that the
    model writes itself, and hooks on tensors."""

    def refuse(what: str) -> Any:
        def called(*_: object, **__: object) -> Any:
            raise CaptureFailed(f"forward {what}, which a trace would leave out")

        return called

    function, tensor = torch.autograd.Function, torch.Tensor
    kept: list[tuple[type, str, Any]] = [(function, "apply", vars(function)["apply"])]
    kept += [(tensor, name, getattr(tensor, name)) for name in ("register_hook", "retain_grad")]
    function.apply = classmethod(refuse("calls a torch.autograd.Function"))  # type: ignore
    for _, name, _ in kept[1:]:
        setattr(tensor, name, refuse(f"calls Tensor.{name}"))
    try:
        yield
    finally:
        for owner, name, old in kept:
            setattr(owner, name, old)


def _exported(
    module: nn.Module, tensors: Sequence[torch.Tensor], shapes: object = None
) -> ExportedProgram:
    """shapes: the free sizes of each tensor, as torch.export is told of them."""
    free: Any = None if shapes is None else (shapes,)
    with silence(), torch.enable_grad():
        program = torch.export.export(module, (tuple(tensors),), dynamic_shapes=free, strict=False)
    names = (str(n.target).rpartition(".")[0] for n in program.graph.nodes)
    if (found := next((name for name in names if name in RECURRENT), None)) is not None:
        raise CaptureFailed(f"AOTAutograd takes {found} apart, step by step")
    return program


def _cut(program: ExportedProgram, symbols: SizeSymbols) -> JointProgram:
    """The program with its derivative."""
    places = [n for n in program.graph.nodes if n.op == "placeholder"]
    parameters = program.graph_signature.inputs_to_parameters
    state = {s.arg.name for s in program.graph_signature.input_specs if is_state(s)}
    fakes = [n.meta["val"] for n in places]
    found: list[tuple[GraphModule, GraphModule, GraphModule]] = []

    def partition(joint: GraphModule, given: Any, **settings: Any) -> Any:
        without_whole_slices(joint.graph)
        whole = GraphModule(joint, copied(joint.graph))
        divide_by_sizes(joint.graph, symbols)
        graphs = min_cut_rematerialization_partition(joint, given, **settings)
        found.append((whole, *graphs))
        return graphs

    def as_it_is(graph: GraphModule, _: object) -> Any:
        return graph

    compilers: dict[str, Any] = {"fw_compiler": as_it_is, "bw_compiler": as_it_is}

    modes = [f.fake_mode for f in fakes if hasattr(f, "fake_mode")]
    if not modes:
        raise CaptureFailed("forward takes no tensor, and has none")
    with modes[0], torch.enable_grad():
        arguments = [f.detach() if isinstance(f, torch.Tensor) else f for f in fakes]
        for n, one in zip(places, arguments, strict=True):
            if n.name in parameters or (isinstance(one, torch.Tensor) and n.name not in state):
                one.requires_grad_(one.is_floating_point() or one.is_complex())
    context = TracingContext(modes[0])
    table = {**compositions(), **gradient_decompositions()}
    with silence(), tracing(context), torch.enable_grad():
        aot_module_simplified(
            program.graph_module,
            arguments,
            decompositions=table,
            partition_fn=partition,
            **compilers,
        )
    if not found:
        raise CaptureFailed("no result of forward has a gradient")
    return JointProgram(program, *found[0], context.fw_metadata, symbols=symbols)


def is_state(spec: InputSpec) -> bool:
    """Whether an argument of a program is a buffer, or a tensor that it has written down."""
    return spec.kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def copied(graph: Graph, places: Sequence[int] | None = None) -> Graph:
    """The graph, or as much of it as some of its results need."""
    made = Graph()
    results: Any = made.graph_copy(graph, {})
    made.output(results if places is None else tuple(results[k] for k in places))
    made.eliminate_dead_code()
    return made


# ---- free sizes ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Given:
    """What is differentiated."""

    module: nn.Module
    tensors: tuple[torch.Tensor, ...]
    free: tuple[FreeSize, ...]
    asked: tuple[AskedSize, ...]
    device: str

    @property
    def most(self) -> Mapping[str, int]:
        """The largest of each size that has one."""
        return {size.name: size.most for size in self.free if size.most is not None}


@contextmanager
def _sizes_left_open() -> Iterator[None]:
    """Within the block, it says nothing of a size that PyTorch asks for it to choose a routine of
    convolutions, all of which give the same. Numbers that sizes make stay numbers: to make them
    tensors, PyTorch 2.13 looks for symbols that no node is."""
    steps: Any = graph_compile
    routines: Any = torch._C
    as_tensors, chosen = steps.tensorify_python_scalars, routines._select_conv_backend

    def choose(image: torch.Tensor, *given: object, **named: object) -> object:
        sizes: list[Any] = [s for s in image.shape if isinstance(s, torch.SymInt)]
        with sizes[0].node.shape_env.suppress_guards() if sizes else nullcontext():
            return chosen(image, *given, **named)

    steps.tensorify_python_scalars = lambda *_: None
    routines._select_conv_backend = choose
    try:
        yield
    finally:
        steps.tensorify_python_scalars = as_tensors
        routines._select_conv_backend = chosen


def _with_free(given: _Given) -> JointProgram:
    shapes = dimensions(given.tensors, given.asked, given.most)
    program = _exported(given.module, given.tensors, shapes)
    symbols = symbols_of(program, given.asked, len(given.tensors))
    if missing := [s.name for s in given.free if s.name not in symbols.names.values()]:
        raise CaptureFailed(f"with gradients, {missing[0]} is not free")
    known = len(guards_of(program))
    made = _cut(program, symbols)
    if asks := [*relations(program, symbols), *asked_behind(program, symbols, known)]:
        raise CaptureFailed(f"the derivative depends on {asks[0]}")
    most = 0 if any(size.text for size in given.asked) else 1
    for graph in (made.forward.graph, made.backward.graph):
        if not are_products(graph, symbols, most):
            raise CaptureFailed("a size or a number of the derivative is no product of free sizes")
    _size_for_backward(made)
    return made


def without_whole_slices(graph: Graph) -> None:
    """Slices of all of a free size (`x[:, None]`), and what their derivatives write all over, are
    what they show and what is written."""
    for n in [*graph.nodes]:
        if n.target is aten.slice_scatter.default:
            shown, place = n.args[1], (n.args[0], *n.args[2:])
        elif n.target is aten.slice.Tensor:
            shown, place = n.args[0], n.args
        else:
            continue
        if not n.kwargs and is_all(place[2:]):
            n.replace_all_uses_with(shown)
    graph.eliminate_dead_code()


def divide_by_sizes(graph: Graph, symbols: SizeSymbols) -> None:
    """x times a number that is one by a free size, as PyTorch's formulas of means have it, becomes
    x by that size: kernels take sizes, and no other numbers that these make."""
    for n in [*graph.nodes]:
        if n.target is not aten.mul.Tensor or not isinstance(n.args[1], Node):
            continue
        value = n.args[1].meta.get("val")
        quotient = symbols.quotient(value) if isinstance(value, torch.SymFloat) else None
        if quotient is None:
            continue
        number, size = quotient
        with graph.inserting_before(n):
            divided = graph.call_function(
                aten.div.Tensor, (n.args[0], _size_node(graph, size, symbols))
            )
            divided.meta = dict(n.meta)
            made = divided
            if number != 1:
                made = graph.call_function(aten.mul.Tensor, (divided, number))
                made.meta = dict(n.meta)
        n.replace_all_uses_with(made)
    graph.eliminate_dead_code()


def _size_node(graph: Graph, size: BatchSize, symbols: SizeSymbols) -> Node:
    """A new node that is this size."""
    found: Node | None = None
    for name in size.names:
        one = _read(graph, name, symbols)
        found = one if found is None else _times(graph, found, one)
    assert found is not None, "a BatchSize has names"
    return found if size.multiple == 1 else _times(graph, found, size.multiple)


def _times(graph: Graph, a: Node, b: Node | int) -> Node:
    made = graph.call_function(operator.mul, (a, b))
    made.meta["val"] = a.meta["val"] * (b.meta["val"] if isinstance(b, Node) else b)
    return made


def _read(graph: Graph, name: str, symbols: SizeSymbols) -> Node:
    """A node that reads a free size from an argument."""
    for place, dim, size in _sizes_of_arguments(graph, symbols):
        if size == BatchSize(1, (name,)):
            made = graph.call_function(aten.sym_size.int, (place, dim))
            made.meta["val"] = place.meta["val"].shape[dim]
            return made
    raise CaptureFailed(f"no argument has the free size {name} as one of its sizes")


def _sizes_of_arguments(
    graph: Graph, symbols: SizeSymbols
) -> Iterator[tuple[Node, int, BatchSize | None]]:
    """Free sizes of tensors that a graph takes: of which, and where."""
    for n in graph.nodes:
        value = n.meta.get("val") if n.op == "placeholder" else None
        for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt):
                yield n, dim, symbols.size(size)


def _size_for_backward(made: JointProgram) -> None:
    """Let backward read, for each free size, a tensor that has it: an argument of forward where
    nothing else does, as in the derivative of a sum."""
    forward, backward = made.forward.graph, made.backward.graph
    for name in dict.fromkeys(made.symbols.names.values()):
        read = _sizes_of_arguments(backward, made.symbols)
        if any(size is not None and size.names == (name,) for _, _, size in read):
            continue
        place = next(
            n
            for n, _, size in _sizes_of_arguments(forward, made.symbols)
            if size == BatchSize(1, (name,))
        )
        (output,) = (n for n in forward.nodes if n.op == "output")
        output.args = ((*output.args[0], place),)
        first = next(n for n in backward.nodes if n.name.startswith("tangents_"))
        with backward.inserting_before(first):
            backward.placeholder(place.name).meta = dict(place.meta)


# ---- sizes of 1 ----------------------------------------------------------------------------------


def _ones(given: _Given, made: JointProgram) -> frozenset[str]:
    """The free sizes that may be 1: they may without gradients, and the derivative is the same."""
    names = [size.name for size in given.free if size.least == 1]
    proved: Callable[[frozenset[str]], bool] = partial(_is_that_of_ones, given, made)
    return provable(names, proved)


def _is_that_of_ones(given: _Given, made: JointProgram, names: frozenset[str]) -> bool:
    """Whether the derivative of a call in which these sizes are 1 is the same, whatever the others
    are."""
    ones, count, symbols = dict.fromkeys(names, 1), len(given.tensors), made.symbols
    others = [size for size in given.asked if size.name not in names]
    known = [{**each, **ones} for each in other_examples(given.free)]
    tensors = Values.at(symbols, known[0]).inputs(made.program, count)
    shapes = dimensions(tensors, others, given.most) if others else None
    try:
        program = _exported(given.module, tensors, shapes)
        its = symbols_of(program, given.asked, count)
        single = _cut(program, its)
        return not relations(program, its) and same_derivative(
            (made.program, made.joint.graph, Values.at(symbols, ones)),
            (program, single.joint.graph, Values.as_in(its, symbols)),
        )
    except Exception:  # noqa: BLE001 - what eager says at 1, the original will say
        return False
