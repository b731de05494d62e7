"""nn.Module + example inputs -> a forward graph that leaves what a backward graph reads.

The model is exported once more, with gradients and with the example's sizes; AOTAutograd
differentiates it and cuts it in two where least is kept between. Both graphs are then captured like
any other. What cannot be had so is refused with its reason, and the original records gradients.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext, tracing
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from fusewright.common.containers import BY_NAME, Container, Slot, Tree
from fusewright.errors import CaptureFailed
from fusewright.frontend.aten_graph import lie_as_eager, run_on_fakes
from fusewright.frontend.call_words import call_word
from fusewright.frontend.capture import (
    Captured,
    ForwardArgument,
    argument_names,
    captured_program,
    own_hooks_off,
)
from fusewright.frontend.export import (
    Exported,
    compositions,
    run_fake,
    silence,
    traced_as_eager,
)
from fusewright.frontend.flat_module import flattened
from fusewright.frontend.forward_trace import ForwardTrace, no_attribute_changes
from fusewright.frontend.gradient_decompositions import gradient_decompositions
from fusewright.frontend.memory_places import apart
from fusewright.frontend.program import TracedProgram
from fusewright.frontend.refusals import cannot_capture

NEW_MEMORY = ("non_alias", "unsafe_view_alias")  # of AOTAutograd's OutputType
# PyTorch has routines for all steps of them, forward and backward.
RECURRENT = frozenset(f"aten.{name}" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"))
aten = torch.ops.aten
SHOW = frozenset(  # show what another call has made
    (
        *(operator.getitem, aten.t.default, aten.view.default, aten.unsqueeze.default),
        *(aten.detach.default, aten.permute.default, aten.transpose.int, aten.squeeze.dim),
        *(aten.expand.default, aten._unsafe_view.default, aten.alias.default),
    )
)
Leaf = int | str  # a tensor argument by its position, a parameter by its name


@dataclass(frozen=True)
class BackwardGraph:
    """captured: takes what forward left, then a gradient of each result that has one; its arguments
    name these.  of: what its results are gradients of, in their order."""

    captured: Captured
    of: tuple[Leaf, ...]


@dataclass(frozen=True)
class JointGraph:
    """forward: returns the model's results, `results` of them, then what backward reads.
    differentiable: positions of results that have gradients.  leaves: what there are gradients
    of.  backward: of all of them; and of the parameters alone, where there are others, too.
    repeatable: whether the original can run again, and does the same."""

    forward: Captured
    results: int
    differentiable: tuple[int, ...]
    leaves: tuple[Leaf, ...]
    backward: tuple[BackwardGraph, ...]
    repeatable: bool


def capture_joint(
    module: nn.Module, inputs: Sequence[object], given: Captured, device: str = "cpu"
) -> JointGraph:
    """The model as it is, with gradients; raises CaptureFailed where they cannot be had so.

    given: the same without gradients.  device: "cpu" or "cuda", where the graphs will run.
    """
    if given.replaced:
        raise CaptureFailed("forward replaces an attribute by a tensor, which gradients go through")
    try:
        moved = _on_its_device(module, device)
        with no_attribute_changes(moved), own_hooks_off(moved), _plain_autograd():
            with flattened(moved, inputs) as flat:
                place = device if moved is not module else ""
                program = _exported(moved, apart([_at(t, place) for t in flat.tensors]))
            split = _split(program)
            if device == "cuda" and not torch.cuda.is_available():
                _check_elsewhere(split)
        return _Joint(module, given, program, split, device).graphs()
    except CaptureFailed:
        raise
    except Exception as error:
        raise cannot_capture(error, type(module)) from error


def _on_its_device(module: nn.Module, device: str) -> nn.Module:
    """The module, or a copy of it on the GPU that it is for: which routines there are, and how
    their results lie, differ between devices."""
    cpu = all(t.device.type == "cpu" for t in (*module.parameters(), *module.buffers()))
    if device == "cpu" or not cpu or not torch.cuda.is_available():
        return module
    return copy.deepcopy(module).to(device)


def _at(tensor: torch.Tensor, device: str) -> torch.Tensor:
    return tensor.to(device) if device else tensor


def _exported(module: nn.Module, tensors: Sequence[torch.Tensor]) -> ExportedProgram:
    with silence(), torch.enable_grad():
        program = torch.export.export(module, (tuple(tensors),), strict=False)
    names = (str(n.target).rpartition(".")[0] for n in program.graph.nodes)
    if (found := next((name for name in names if name in RECURRENT), None)) is not None:
        raise CaptureFailed(f"AOTAutograd takes {found} apart, step by step")
    return program


@contextmanager
def _plain_autograd() -> Iterator[None]:
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


@dataclass(frozen=True)
class _Split:
    """What AOTAutograd makes of a program. about: its metadata. The forward graph has new values of
    what it changes first, then the results."""

    forward: GraphModule
    backward: GraphModule
    about: Any


def _split(program: ExportedProgram) -> _Split:
    places = [n for n in program.graph.nodes if n.op == "placeholder"]
    parameters = program.graph_signature.inputs_to_parameters
    state = {s.arg.name for s in program.graph_signature.input_specs if _is_state(s)}
    fakes = [n.meta["val"] for n in places]
    found: list[tuple[GraphModule, GraphModule]] = []

    def partition(joint: GraphModule, given: Any, **settings: Any) -> Any:
        graphs = min_cut_rematerialization_partition(joint, given, **settings)
        found.append(graphs)
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
    return _Split(*found[0], context.fw_metadata)


def _check_elsewhere(split: _Split) -> None:
    """Raise CaptureFailed where PyTorch differentiates otherwise on a GPU than on this CPU."""
    for n in (*split.forward.graph.nodes, *split.backward.graph.nodes):
        if "_for_cpu" in str(n.target):
            raise CaptureFailed("PyTorch chooses how to differentiate attention by the GPU")
        values = [v for v in pytree.tree_leaves(n.meta.get("val")) if isinstance(v, torch.Tensor)]
        if any(v.dtype in (torch.float16, torch.bfloat16) for v in values):
            raise CaptureFailed(
                "PyTorch differentiates with 16 bits otherwise on a GPU than on this machine"
            )


def _is_state(spec: InputSpec) -> bool:
    return spec.kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


class _Joint:
    def __init__(
        self,
        module: nn.Module,
        given: Captured,
        program: ExportedProgram,
        split: _Split,
        device: str,
    ) -> None:
        self.module, self.given, self.device = module, given, device
        self.program, self.split = program, split
        self.specs = program.graph_signature.input_specs
        self.changed: list[int] = list(split.about.mutated_inp_runtime_indices)
        self.kinds = split.about.output_info
        self.keys = self._keys()
        self.made = {n.name: n for n in split.forward.graph.nodes}

    def graphs(self) -> JointGraph:
        self._check()
        keys = self.keys
        forward = self._forward()
        grads = _output(self.split.backward.graph)
        of = [key for key, grad in zip(keys, grads, strict=True) if isinstance(grad, Node)]
        named = [k for k, key in enumerate(of) if isinstance(key, str)]
        chosen = [[*range(len(of))], *[named] * (0 < len(named) < len(of))]
        differentiable = tuple(k for k, kind in enumerate(self.kinds) if kind.requires_grad)
        seeded = torch.Tag.nondeterministic_seeded
        calls = self.split.forward.graph.nodes
        draws = any(seeded in getattr(n.target, "tags", ()) for n in calls)
        return JointGraph(
            forward,
            len(self.kinds),
            differentiable,
            tuple(of),
            tuple(self._backwards(of, chosen)),
            repeatable=not (draws or self.changed),
        )

    def _check(self) -> None:
        """Raise CaptureFailed for what the cut would have to be told of otherwise."""
        for k, kind in enumerate(self.kinds):
            if kind.output_type.name not in NEW_MEMORY:
                raise CaptureFailed(f"result {k} of forward shows memory of another tensor")
        for k in self.changed:
            if self.specs[k].kind is not InputKind.BUFFER:
                raise CaptureFailed("forward changes a tensor that it is given")

    def _keys(self) -> list[Leaf]:
        """What each argument is called: a position among the tensors given, or a name."""
        keys, position = list[Leaf](), 0
        for spec in self.specs:
            given = spec.kind is InputKind.USER_INPUT
            keys.append(position if given else str(spec.target))
            position += given
        return keys

    # -- the two graphs

    def _forward(self) -> Captured:
        graph = _copied(self.split.forward.graph)
        places = [n for n in graph.nodes if n.op == "placeholder"]
        inputs = [
            InputSpec(s.kind, TensorArgument(n.name), s.target, s.persistent)
            for s, n in zip(self.specs, places, strict=True)
        ]
        (output,) = (n for n in graph.nodes if n.op == "output")
        returned = output.args[0]
        outputs = [
            OutputSpec(OutputKind.BUFFER_MUTATION, TensorArgument(n.name), self.specs[k].target)
            for k, n in zip(self.changed, returned, strict=False)
        ]
        rest = returned[len(self.changed) :]
        outputs += [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(n.name), None) for n in rest]
        program = TracedProgram(graph, self.program.constants, inputs, outputs)
        shown = self._shown(program, self.keys)
        shown = _of_results(shown, range(len(self.changed), len(returned)))
        shown = replace(shown, settings=self.given.settings)
        exported = Exported(program, (), (), _tuple(len(rest)))
        return captured_program(self.module, self.given.arguments, exported, shown)

    def _backwards(
        self, of: Sequence[Leaf], chosen: Sequence[Sequence[int]]
    ) -> Iterator[BackwardGraph]:
        """A graph for each choice among what there are gradients of."""
        graph = _copied(self.split.backward.graph)
        (output,) = (n for n in graph.nodes if n.op == "output")
        output.args = (tuple(n for n in output.args[0] if isinstance(n, Node)),)
        names = [self._name_of(n) for n in graph.nodes if n.op == "placeholder"]
        arguments = tuple(ForwardArgument(name, Slot(k)) for k, name in enumerate(names))
        for n in graph.nodes:
            _as_derivative(n)
        shown = self._shown(TracedProgram(graph), ())
        for places in chosen:
            part = _copied(graph, places)
            _without_unread(part)
            exported = Exported(TracedProgram(part), (), (), _tuple(len(places)))
            one = captured_program(self.module, arguments, exported, _of_results(shown, places))
            yield BackwardGraph(one, tuple(of[k] for k in places))

    def _name_of(self, n: Node) -> str:
        """What an argument of backward is called: as in the model, where that has a name for it."""
        if n.name.startswith("tangents_"):
            return "gradient"
        made = self.made[n.name]
        while made.target in SHOW and isinstance(made.args[0], Node):
            made = made.args[0]
        if made.op == "placeholder":
            key = self.keys[[*self.made].index(made.name)]  # arguments come first
            return dict(argument_names(self.given))[key] if isinstance(key, int) else key
        modules = [*(made.meta.get("nn_module_stack") or {}).values()]
        return (str(modules[-1][0]) if modules else "") or call_word(made)

    def _shown(self, program: TracedProgram, keys: Sequence[Leaf]) -> ForwardTrace:
        """What a run with tensors like those that it was traced with shows."""
        tensors = [n.meta["val"] for n in program.graph.nodes if n.op == "placeholder"]
        run = partial(run_on_fakes, GraphModule(self.split.forward, program.graph), tensors, keys)
        with silence(), torch.no_grad(), traced_as_eager(self.device):
            _, shown = run_fake(run)
            lie_as_eager(program, self.device)
        return shown


def _output(graph: Graph) -> Sequence[Any]:
    (output,) = (n for n in graph.nodes if n.op == "output")
    found: Sequence[Any] = output.args[0]
    return found


def _copied(graph: Graph, places: Sequence[int] | None = None) -> Graph:
    """The graph, or as much of it as some of its results need."""
    made = Graph()
    results: Any = made.graph_copy(graph, {})
    made.output(results if places is None else tuple(results[k] for k in places))
    made.eliminate_dead_code()
    return made


def _without_unread(graph: Graph) -> None:
    """Derivatives of convolutions leave out what nobody reads."""
    for n in graph.nodes:
        if n.target is aten.convolution_backward.default:
            read = {int(user.args[1]) for user in n.users if user.target is operator.getitem}
            mask = [bool(wanted) and k in read for k, wanted in enumerate(n.args[-1])]
            n.args = (*n.args[:-1], mask)
            n.meta["val"] = tuple(v if k in read else None for k, v in enumerate(n.meta["val"]))


def _of_results(shown: ForwardTrace, places: Sequence[int]) -> ForwardTrace:
    """What is said of some results."""
    memories = [shown.memories[k] for k in places]
    return replace(
        shown,
        owners=tuple(shown.owners[k] for k in places),
        memories=tuple(memories.index(m) for m in memories),
        placeless=tuple(shown.placeless[k] for k in places),
    )


def _tuple(count: int) -> Tree:
    """How a tuple of so many tensors holds them."""
    slots = tuple(Slot(k) for k in range(count))
    return Container(BY_NAME["tuple"], tuple, tuple(range(count)), slots)


def _as_derivative(n: Node) -> None:
    """Keep of where a call comes from what is true of a derivative: its module, not the variable
    that the model gives the value that it is the derivative of."""
    n.meta = {k: v for k, v in n.meta.items() if k not in ("stack_trace", "torch_fn")}
    if "fwd_nn_module_stack" in n.meta:
        n.meta["nn_module_stack"] = n.meta["fwd_nn_module_stack"]
