"""nn.Module + example inputs -> a forward graph that leaves what a backward graph reads.

AOTAutograd differentiates the model and cuts it in two where least is kept between
(`joint_program.py`). Both graphs are then captured like any other, with the sizes free that are
free without gradients, or, where that cannot be, with the example's. What cannot be had so is
refused with its reason, and the original records gradients.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
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
from fusewright.frontend.batch_of_one import Values, lying_otherwise, other_examples, provable
from fusewright.frontend.call_words import call_word
from fusewright.frontend.capture import (
    Captured,
    ForwardArgument,
    argument_names,
    captured_program,
    own_hooks_off,
)
from fusewright.frontend.eager_strides import laid_with_numbers
from fusewright.frontend.export import Exported, run_fake, silence, traced_as_eager
from fusewright.frontend.flat_module import flattened
from fusewright.frontend.forward_trace import ForwardTrace, no_attribute_changes
from fusewright.frontend.joint_program import (
    JointProgram,
    copied,
    joint_program,
    plain_autograd,
)
from fusewright.frontend.memory_places import apart
from fusewright.frontend.program import TracedProgram
from fusewright.frontend.refusals import cannot_capture, why_not_free
from fusewright.ir.graph import FreeSize, Sizes

NEW_MEMORY = ("non_alias", "unsafe_view_alias")  # of AOTAutograd's OutputType
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
    repeatable: whether the original can run again, and does the same.  fixed: why sizes that are
    free without gradients are not; "" where they are."""

    forward: Captured
    results: int
    differentiable: tuple[int, ...]
    leaves: tuple[Leaf, ...]
    backward: tuple[BackwardGraph, ...]
    repeatable: bool
    fixed: str = ""


def capture_joint(
    module: nn.Module,
    inputs: Sequence[object],
    given: Captured,
    device: str = "cpu",
    fixed: str = "",
) -> JointGraph:
    """The model as it is, with gradients; raises CaptureFailed where they cannot be had so.

    given: the same without gradients.  device: "cpu" or "cuda", where the graphs will run.  fixed:
    why no size is to be free, though some are without gradients.
    """
    if given.replaced:
        raise CaptureFailed("forward replaces an attribute by a tensor, which gradients go through")
    if given.graph.free and not fixed:
        try:
            return _captured(module, inputs, given, device)
        except Exception as error:  # noqa: BLE001 - with fixed sizes, less can go wrong
            fixed = str(error) if isinstance(error, CaptureFailed) else why_not_free(error)
    if fixed:
        given = _with_fixed_sizes(given, fixed)
    try:
        return replace(_captured(module, inputs, given, device), fixed=fixed)
    except CaptureFailed:
        raise
    except Exception as error:
        raise cannot_capture(error, type(module)) from error


def _with_fixed_sizes(given: Captured, why: str) -> Captured:
    """The same, of which nothing is free any more."""
    fixed = {**dict.fromkeys(given.asked, f"with gradients, {why}"), **given.fixed}
    return replace(given, graph=replace(given.graph, free=()), fixed=fixed)


def _captured(
    module: nn.Module, inputs: Sequence[object], given: Captured, device: str
) -> JointGraph:
    moved = _on_its_device(module, device)
    with no_attribute_changes(moved), own_hooks_off(moved), plain_autograd():
        with flattened(moved, inputs) as flat:
            place = device if moved is not module else ""
            tensors = apart([_at(t, place) for t in flat.tensors])
            split = joint_program(moved, tensors, given.graph.free, given.asked, device)
        if device == "cuda" and not torch.cuda.is_available():
            _check_elsewhere(split)
    return _Joint(module, given, split, device).graphs()


def _on_its_device(module: nn.Module, device: str) -> nn.Module:
    """The module, or a copy of it on the GPU that it is for: which routines there are, and how
    their results lie, differ between devices."""
    cpu = all(t.device.type == "cpu" for t in (*module.parameters(), *module.buffers()))
    if device == "cpu" or not cpu or not torch.cuda.is_available():
        return module
    return copy.deepcopy(module).to(device)


def _at(tensor: torch.Tensor, device: str) -> torch.Tensor:
    return tensor.to(device) if device else tensor


def _check_elsewhere(split: JointProgram) -> None:
    """Raise CaptureFailed where PyTorch differentiates otherwise on a GPU than on this CPU."""
    for n in (*split.forward.graph.nodes, *split.backward.graph.nodes):
        if "_for_cpu" in str(n.target):
            raise CaptureFailed("PyTorch chooses how to differentiate attention by the GPU")
        values = [v for v in pytree.tree_leaves(n.meta.get("val")) if isinstance(v, torch.Tensor)]
        if any(v.dtype in (torch.float16, torch.bfloat16) for v in values):
            raise CaptureFailed(
                "PyTorch differentiates with 16 bits otherwise on a GPU than on this machine"
            )


@dataclass(frozen=True)
class _Laid:
    """A graph whose results lie as eager's do, and what a run of it has shown."""

    program: TracedProgram
    shown: ForwardTrace


class _Joint:
    def __init__(
        self,
        module: nn.Module,
        given: Captured,
        split: JointProgram,
        device: str,
    ) -> None:
        self.module, self.given, self.device, self.split = module, given, device, split
        self.specs = split.program.graph_signature.input_specs
        self.changed: list[int] = list(split.about.mutated_inp_runtime_indices)
        self.kinds = split.about.output_info
        self.keys = self._keys()
        self.made = {n.name: n for n in split.forward.graph.nodes}

    def graphs(self) -> JointGraph:
        self._check()
        keys = self.keys
        laid, behind = self._laid_forward(), self._laid_backward()
        self.free = self._free(laid.program.graph, behind.program.graph)
        forward = self._forward(laid)
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
            tuple(self._backwards(of, chosen, behind)),
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

    def _laid_forward(self) -> _Laid:
        graph = copied(self.split.forward.graph)
        places = [n for n in graph.nodes if n.op == "placeholder"]
        inputs = [
            InputSpec(s.kind, TensorArgument(n.name), s.target, s.persistent)
            for s, n in zip(self.specs, places, strict=True)
        ]
        (output,) = (n for n in graph.nodes if n.op == "output")
        output.args = (tuple(n for n in output.args[0] if not _is_size(n)),)
        returned = output.args[0]
        outputs = [
            OutputSpec(OutputKind.BUFFER_MUTATION, TensorArgument(n.name), self.specs[k].target)
            for k, n in zip(self.changed, returned, strict=False)
        ]
        rest = returned[len(self.changed) :]
        outputs += [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(n.name), None) for n in rest]
        program = TracedProgram(graph, self.split.program.constants, inputs, outputs)
        shown = _of_results(
            self._shown(program, self.keys), range(len(self.changed), len(returned))
        )
        return _Laid(program, replace(shown, settings=self.given.settings))

    def _laid_backward(self) -> _Laid:
        graph = copied(self.split.backward.graph)
        (output,) = (n for n in graph.nodes if n.op == "output")
        output.args = (tuple(n for n in output.args[0] if isinstance(n, Node)),)
        program = TracedProgram(graph)
        return _Laid(program, self._shown(program, ()))

    def _forward(self, laid: _Laid) -> Captured:
        count = len(laid.shown.memories)
        return self._as_captured(self.given.arguments, laid.program, count, laid.shown)

    def _backwards(
        self, of: Sequence[Leaf], chosen: Sequence[Sequence[int]], laid: _Laid
    ) -> Iterator[BackwardGraph]:
        """A graph for each choice among what there are gradients of."""
        graph = laid.program.graph
        places = [n for n in graph.nodes if n.op == "placeholder" and not _is_size(n)]
        names = map(self._name_of, places)
        arguments = tuple(ForwardArgument(name, Slot(k)) for k, name in enumerate(names))
        for n in graph.nodes:
            _as_derivative(n)
        for some in chosen:
            part = copied(graph, some)
            _without_unread(part)
            shown = _of_results(laid.shown, some)
            one = self._as_captured(arguments, TracedProgram(part), len(some), shown)
            yield BackwardGraph(one, tuple(of[k] for k in some))

    def _as_captured(
        self,
        arguments: tuple[ForwardArgument, ...],
        program: TracedProgram,
        count: int,
        shown: ForwardTrace,
    ) -> Captured:
        """count: of what it returns."""
        exported = Exported(
            program,
            self.free,
            (),
            _tuple(count),
            symbols=self.split.symbols,
            asked=self.given.asked,
            fixed=self.given.fixed,
        )
        return captured_program(self.module, arguments, exported, shown)

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
        graph, free = program.graph, bool(self.split.free)
        given = [n.meta["val"] for n in graph.nodes if n.op == "placeholder"]
        said = {n: n.meta.get("val") for n in graph.nodes}
        run = partial(run_on_fakes, GraphModule(self.split.forward, graph), given, keys)
        with silence(), torch.no_grad(), traced_as_eager(self.device):
            _, shown = run_fake(run)
            for n, value in said.items() if free else ():
                made, n.meta["val"] = n.meta.get("val"), value
                n.meta["val"] = laid_with_numbers(n, made)
            lie_as_eager(program, self.device)
        return shown

    # -- free sizes

    def _free(self, forward: Graph, backward: Graph) -> tuple[FreeSize, ...]:
        """The free sizes; those are not 1 at which a result would lie otherwise, or anything would
        have another size."""
        (output,) = (n for n in forward.nodes if n.op == "output")
        results = output.args[0][: len(self.changed) + len(self.kinds)]

        def lies(sizes: Sizes) -> bool:
            otherwise = self._lying_otherwise(forward, sizes)
            if otherwise is None or not otherwise.isdisjoint(results):
                return False
            return self._lying_otherwise(backward, sizes) is not None

        def is_proved(names: frozenset[str]) -> bool:
            ones = dict.fromkeys(names, 1)
            return all(lies({**each, **ones}) for each in other_examples(self.split.free))

        ones = provable([size.name for size in self.split.free if size.least == 1], is_proved)
        return tuple(replace(s, least=1 if s.name in ones else 2) for s in self.split.free)

    def _lying_otherwise(self, graph: Graph, sizes: Sizes) -> set[Node] | None:
        values, module = (
            Values.at(self.split.symbols, sizes),
            GraphModule(self.split.forward, graph),
        )
        run = partial(lying_otherwise, module, frozenset(), values, self.device)
        with silence(), torch.no_grad(), traced_as_eager(self.device):
            try:
                return run_fake(run)
            except Exception:  # noqa: BLE001 - what eager says there, the original will say
                return None


def _is_size(n: object) -> bool:
    """Whether a node is a number."""
    return isinstance(n, Node) and isinstance(n.meta.get("val"), torch.SymInt)


def _output(graph: Graph) -> Sequence[Any]:
    (output,) = (n for n in graph.nodes if n.op == "output")
    found: Sequence[Any] = output.args[0]
    return found


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
