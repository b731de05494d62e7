"""nn.Module + example inputs -> Captured: the graph, and what it assumes about the module.

The model as ATen calls (`export.py`) is walked once: each call is written with our operators
(`lowering/`) or becomes a library node (`library_calls.py`). Composite operators are kept whole.
Outputs keep eager's memory: what is one tensor for us but two for eager is copied, and what eager
changes in place is returned as the tensor that changed.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from fusewright.common.call_arguments import bound, like, signature_of
from fusewright.common.containers import BY_NAME, Container, Plain, Slot, Tree, leaves, shifted
from fusewright.errors import CaptureFailed
from fusewright.frontend.asked_size import AskedSize
from fusewright.frontend.batch_of_one import provable
from fusewright.frontend.call_origins import CallOrigins
from fusewright.frontend.carried_state import Place, Unsettled
from fusewright.frontend.data_scalars import computed, item, takes_numbers
from fusewright.frontend.export import Exported, export
from fusewright.frontend.forward_trace import (
    ForwardTrace,
    ReadAttribute,
    no_attribute_changes,
    trace_forward,
)
from fusewright.frontend.library_calls import contraction_flops, library_call
from fusewright.frontend.lowering import lower, with_memory_order
from fusewright.frontend.lowering.call import AtenCall, AtenResult
from fusewright.frontend.program import SYMBOLS, Program
from fusewright.frontend.refusals import unknown_size
from fusewright.frontend.side_effects import HasEffects
from fusewright.frontend.size_symbols import runtime_number
from fusewright.ir.builder import TensorExpr
from fusewright.ir.graph import (
    BufferUpdate,
    Graph,
    Node,
    Size,
    Sizes,
    check,
    claim,
    fresh_copy,
    memory_of,
    node,
    numel,
    on_other_memory,
    own_memory_copy,
    size_at,
)
from fusewright.ir.origin import Origin
from fusewright.ir.placement import OwnCopy


@dataclass(frozen=True)
class ForwardArgument:
    """What one parameter of `forward` gets: a tensor (its position among the graph's inputs), a
    plain value, or a container of them."""

    parameter: str
    tree: Tree


@dataclass(frozen=True)
class Replaced:
    """An attribute that forward replaces. before: how it holds inputs of the graph.  after: how it
    holds outputs."""

    place: Place
    before: Tree
    after: Tree


@dataclass(frozen=True)
class Captured:
    """A model as a graph.

    arguments: one per parameter that gets something.  settings: the module's values that forward
    read.  results: how the outputs are held.  constants: small tensors that forward made itself.
    replaced: attributes, whose tensors are inputs and outputs behind the others.  placeless: a line
    that makes an output which lies where no input does, if there is one.  asked: the sizes that
    are to be free.  fixed: why those are not that are not.
    """

    graph: Graph
    arguments: tuple[ForwardArgument, ...]
    settings: tuple[ReadAttribute, ...]
    results: Tree
    constants: Mapping[str, torch.Tensor]
    calls: tuple[EagerStep, ...]
    replaced: tuple[Replaced, ...] = ()
    placeless: str = ""
    asked: tuple[AskedSize, ...] = ()
    fixed: Mapping[AskedSize, str] = field(default_factory=dict)


@dataclass(frozen=True)
class EagerStep:
    """One operator as eager runs it: bytes read and written, operations, 16-bit result or not."""

    name: str
    bytes: int
    flops: int
    half: bool


def capture(
    module: nn.Module,
    inputs: Sequence[object],
    device: str = "cpu",
    asked: Sequence[AskedSize] | None = None,
) -> Captured:
    """Turn `module` applied to `inputs` into a graph; raises CaptureFailed where it cannot.

    device: "cpu" or "cuda", where the graph will run: results lie as eager's do there.
    asked: as `export` has it.
    """
    with no_attribute_changes(module), own_hooks_off(module):
        found, run = _exported(module, inputs, device, asked)
    arguments = arguments_of(module, inputs, found.arguments)
    return captured_program(module, arguments, found, run)


def captured_program(
    module: nn.Module,
    arguments: tuple[ForwardArgument, ...],
    found: Exported,
    run: ForwardTrace,
) -> Captured:
    """The graph of a program that stands for `module`, called with `arguments`. run: of forward."""
    builder = _GraphBuilder(found, module, run)
    graph, calls = check(builder.build(found.program), "capture"), tuple(builder.calls)
    about = run.settings, found.results, builder.constants, calls, _replaced(found, run)
    about_size = found.asked, found.fixed
    return Captured(graph, arguments, *about, next(filter(None, run.placeless), ""), *about_size)


def _exported(
    module: nn.Module, inputs: Sequence[object], device: str, asked: Sequence[AskedSize] | None
) -> tuple[Exported, ForwardTrace]:
    """The program, and what a run has shown. Where both stop at something, torch.export says why:
    it knows more of it."""
    try:
        run = trace_forward(module, inputs)
    except (Unsettled, HasEffects):
        raise
    except CaptureFailed:
        export(module, inputs)
        raise
    found = export(module, inputs, run.state, device, asked)
    calls = {one.names: one.arguments for one in found.ones}

    def shows_the_same(names: frozenset[str]) -> bool:
        return names in calls and _shows_the_same(module, calls[names], run)

    ones = provable([size.name for size in found.free], shows_the_same)
    free = (replace(size, least=1) if size.name in ones else size for size in found.free)
    return replace(found, free=tuple(free)), run


def _shows_the_same(module: nn.Module, inputs: Sequence[object], run: ForwardTrace) -> bool:
    """Whether a run with other arguments reads the same attributes, shows the same memory in its
    results, and is as quiet."""
    try:
        other = trace_forward(module, inputs)
    except CaptureFailed:
        return False
    read = {(s.path, s.name) for s in run.settings}
    return all((s.path, s.name) in read for s in other.settings) and (
        (other.owners, other.memories, other.placeless) == (run.owners, run.memories, run.placeless)
    )


def _replaced(found: Exported, run: ForwardTrace) -> tuple[Replaced, ...]:
    inputs, outputs = (
        sum(isinstance(n, Slot) for tree in trees for n in leaves(tree))
        for trees in (found.arguments, [found.results])
    )
    return tuple(
        Replaced(place, shifted(before, inputs), shifted(after, outputs))
        for place, before, after in zip(run.state.places, run.state.trees, found.left, strict=True)
    )


@contextmanager
def own_hooks_off(module: nn.Module) -> Iterator[None]:
    """Within the block a call of the module is its forward: whoever calls the emitted one runs
    these hooks around it."""
    registries = (module._forward_hooks, module._forward_pre_hooks)
    kept = [dict(hooks) for hooks in registries]
    for hooks in registries:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, old in zip(registries, kept, strict=True):
            hooks.update(old)


def state_of(captured: Captured, module: nn.Module) -> dict[str, torch.Tensor]:
    """Every tensor that the graph's parameters and buffers stand for, by name."""
    state = dict(captured.constants)
    for n in captured.graph.leaves:
        if n.row.state and str(n["name"]) not in state:
            state[str(n["name"])] = operator.attrgetter(str(n["name"]))(module)
    return state


def argument_names(captured: Captured) -> Iterator[tuple[int, str]]:
    """The position of each input of the graph, and the argument or attribute that it comes from."""
    for a in captured.arguments:
        yield from _slots(a.tree, a.parameter)
    for r in captured.replaced:
        yield from _slots(r.before, str(r.place).replace(".", "_"))


def _slots(tree: Tree, name: str) -> Iterator[tuple[int, str]]:
    if isinstance(tree, Slot):
        yield tree.number, name
    elif not isinstance(tree, Plain):
        for key, inside in zip(tree.keys, tree.inside, strict=True):
            yield from _slots(inside, f"{name}_{key}")


def arguments_of(
    module: nn.Module, inputs: Sequence[object], trees: Sequence[Tree]
) -> tuple[ForwardArgument, ...]:
    """The trees by parameter; more than one for `*these` and `**those`."""
    signature = signature_of(type(module).forward, bound=False)
    assert signature is not None, "forward is a function of Python"
    try:
        found = bound(signature, like(inputs, trees))
    except TypeError as error:
        raise CaptureFailed(
            f"{type(module).__name__}.forward cannot be called with these inputs: {error}."
        ) from error
    return tuple(ForwardArgument(name, _one_tree(value)) for name, value in found.items())


def _one_tree(value: Any) -> Tree:
    """The tree of one parameter: of all that `*these` get, a tuple; of `**those`, a dict."""
    if isinstance(value, tuple | dict):
        kind = BY_NAME[type(value).__name__]
        keys, inside = zip(*kind.parts(value), strict=True)
        return Container(kind, type(value), keys, inside)
    tree: Tree = value
    return tree


# ---- graph ---------------------------------------------------------------------------------------


class _GraphBuilder:
    """Walks the exported program and builds our graph; one instance per capture."""

    def __init__(self, found: Exported, module: nn.Module, run: ForwardTrace) -> None:
        self.free, self.symbols, self.module, self.run = found.free, found.symbols, module, run
        self.sizes: Sizes = {size.name: size.example for size in self.free}
        self.values: dict[torch.fx.Node, Any] = {}
        self.effects: list[Node] = []
        self.constants: dict[str, torch.Tensor] = {}
        self.calls: list[EagerStep] = []
        self.origins: dict[Node, Origin] = {}

    def build(self, program: Program) -> Graph:
        inputs = self._leaves(program)
        self.in_place = _written_in_place(program)
        self.places = CallOrigins(self.module, program.graph.nodes)
        for n in program.graph.nodes:
            if n.op == "call_function":
                self.values[n] = self._call(n)
                self._note_origin(n)
        outputs, updates = self._results(program)
        return Graph(inputs, outputs, updates, tuple(self.effects), self.free, self.origins)

    # -- leaves

    def _leaves(self, program: Program) -> tuple[Node, ...]:
        inputs: list[Node] = []
        kinds = {
            s.arg.name: s for s in program.graph_signature.input_specs if hasattr(s.arg, "name")
        }
        for n in program.graph.nodes:
            if n.op != "placeholder":
                continue
            if not isinstance(n.meta.get("val"), torch.Tensor):
                self.values[n] = n.meta.get("val")
                continue
            leaf = self._leaf(n, kinds[n.name], len(inputs), program)
            self.values[n] = TensorExpr(leaf)
            if leaf.op == "input":
                inputs.append(leaf)
        return tuple(inputs)

    def _leaf(self, n: torch.fx.Node, spec: Any, position: int, program: Program) -> Node:
        result = self._result(n.meta["val"])
        shared: dict[str, Any] = {
            "shape": result.shape,
            "dtype": result.dtype,
            "order": result.order,
        }
        if spec.kind is InputKind.PARAMETER:
            return node("parameter", name=spec.target, **shared)
        if spec.kind is InputKind.BUFFER:
            return node("buffer", name=spec.target, **shared)
        if spec.kind is InputKind.CONSTANT_TENSOR:
            if not _is_attribute(self.module, spec.target):
                self.constants[spec.target] = program.constants[spec.target]
            return node("buffer", name=spec.target, **shared)
        return node("input", position=position, **shared)

    def _result(self, value: torch.Tensor) -> AtenResult:
        shape = tuple(self._size(s) for s in value.shape)
        return AtenResult(shape, value.dtype, _order(value))

    def _size(self, size: int | torch.SymInt) -> Size:
        if isinstance(size, torch.SymInt):
            found = self.symbols.size(size)
            assert found is not None, "export checked that sizes are products of free ones"
            return found
        return int(size)

    # -- calls

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            known = self.values[value]
            return self._size(known) if isinstance(known, torch.SymInt) else known
        if isinstance(value, torch.SymInt):
            return self._size(value)
        if isinstance(value, list | tuple):
            return type(value)(self._argument(v) for v in value)
        return value

    def _call(self, n: torch.fx.Node) -> Any:
        value = n.meta.get("val")
        if isinstance(value, SYMBOLS | int | float | bool):
            return self._number(n) if runtime_number(value) else value
        if n.target is operator.getitem:
            source, index = self._argument(n.args[0]), n.args[1]
            return source[index]
        if value is None:
            return None
        if _is_idle_dropout(n):
            return self._argument(n.args[0])
        call = self._as_call(n)
        self.calls.append(_eager_call(call, self.sizes))
        if n in self.in_place:
            return library_call(replace(call, name=f"{call.name}_"), self.effects, alone=False)
        lowered = lower(call) if takes_numbers(call.name, call.args, call.kwargs) else None
        if lowered is None or not _covers(lowered, n):
            lowered = library_call(call, self.effects, alone=_alone(n), used=_used(n))
        if isinstance(lowered, tuple):
            return lowered
        return with_memory_order(lowered, call.results[0].order)

    def _note_origin(self, n: torch.fx.Node) -> None:
        made = self.values[n]
        several = enumerate(made) if isinstance(made, list | tuple) else [(None, made)]
        for k, value in several:
            if isinstance(value, TensorExpr) and value.node not in self.origins:
                claim(self.origins, value.node, self.places.of(n, k))

    def _number(self, n: torch.fx.Node) -> object:
        """A number that only the data knows."""
        if isinstance(n.meta["val"], torch.SymBool):
            return None  # what export asserts of sizes
        operands = [self._argument(a) for a in n.args]
        if str(n.target) in ("aten.item.default", "aten._local_scalar_dense.default"):
            return item(operands[0])
        made = computed(n.target, operands, floating=isinstance(n.meta["val"], torch.SymFloat))
        if made is None:
            name = getattr(n.target, "__name__", n.target)
            raise CaptureFailed(
                f"forward computes {name} of a tensor's value as a number of Python (.item()). "
                "Keep the value in a tensor, and compute with tensors."
            )
        return made

    def _as_call(self, n: torch.fx.Node) -> AtenCall:
        value = n.meta["val"]
        made = [v for v in pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]
        if any(runtime_number(size) for v in made for size in v.shape):
            raise unknown_size(n, type(self.module))
        many = value if isinstance(value, tuple | list) else (value,)
        results = tuple(self._result(v) for v in many if isinstance(v, torch.Tensor))
        places = tuple(k for k, v in enumerate(many) if isinstance(v, torch.Tensor))
        gaps = places if len(places) < len(many) else ()
        name, _, overload = str(n.target).rpartition(".")
        kwargs = {k: self._argument(v) for k, v in n.kwargs.items()}
        args = tuple(self._argument(a) for a in n.args)
        return AtenCall(name, overload, args, kwargs, results, gaps)

    # -- results

    def _results(self, program: Program) -> tuple[tuple[Node, ...], tuple[BufferUpdate, ...]]:
        (output,) = (n for n in program.graph.nodes if n.op == "output")
        pairs = list(zip(program.graph_signature.output_specs, output.args[0], strict=True))
        updates: list[BufferUpdate] = []
        changed: dict[torch.fx.Node, list[Node]] = {}  # a new value -> the leaves that take it
        owner: dict[int, object] = {}  # our memory -> eager's
        given_outputs = [given for spec, given in pairs if spec.kind is OutputKind.USER_OUTPUT]
        taken: list[tuple[Node, torch.fx.Node]] = []
        for spec, given in pairs:
            if spec.kind is not OutputKind.USER_OUTPUT:
                taken.append((self._target(program, spec), given))
                changed.setdefault(given, []).append(taken[-1][0])
        shown = {  # the first output of each value's memory, but for leaves, is a name for it
            _memory(given): self.run.memories[k]
            for k, given in reversed([*enumerate(given_outputs)])
            if isinstance(given, torch.fx.Node) and self._leaf_of(given, k, changed) is None
        }
        for leaf, given in taken:
            value = self._argument(given).node
            if value is not leaf:  # a library call may have updated it itself
                memory = _memory(given)
                owner.setdefault(id(memory_of(value)), shown.get(memory, memory))
                updates.append(BufferUpdate(leaf, value))
        outputs = [self._output(given, k, changed, owner) for k, given in enumerate(given_outputs)]
        return tuple(outputs), tuple(updates)

    def _target(self, program: Program, spec: Any) -> Node:
        name = _name_of(program, spec)
        (found,) = (n for n in program.graph.nodes if n.op == "placeholder" and n.name == name)
        leaf: Node = self.values[found].node
        return leaf

    def _output(
        self,
        given: Any,
        position: int,
        changed: Mapping[torch.fx.Node, Sequence[Node]],
        owner: dict[int, object],
    ) -> Node:
        """An output in the memory that eager shows there, which a run has told."""
        value = self._argument(given)
        if not isinstance(value, TensorExpr):
            raise CaptureFailed(
                f"Output {position} of forward is {value!r}, not a tensor. Return tensors only "
                "(or a tuple, list or dict of tensors)."
            )
        memory, n, owners = self.run.memories[position], value.node, self.run.owners[position]
        if (found := self._leaf_of(given, position, changed)) is not None:
            inner, leaf = found
            return on_other_memory(n, self.values[inner].node, leaf)
        shared = owner.setdefault(id(memory_of(n)), memory) != memory
        exposed = memory_of(n).op in ("input", "parameter") and not owners
        order, own = _order(given.meta["val"]), OwnCopy("output", memory)
        if shared and not _moved(n, order):  # what is one tensor stays one
            whole = memory_of(n)
            return on_other_memory(n, whole, fresh_copy(whole, whole.order, own))
        if shared or exposed or n.op == "constant" or _moved(n, order):
            return own_memory_copy(n, order, own)
        return n

    def _leaf_of(
        self, given: Any, position: int, changed: Mapping[torch.fx.Node, Sequence[Node]]
    ) -> tuple[torch.fx.Node, Node] | None:
        """The changed leaf that an output shows, and the value that it took. A value that a leaf
        takes may be returned as well, and be no part of the leaf."""
        for inner in _shown(given):
            for leaf in changed.get(inner, ()):
                place = leaf["position" if leaf.op == "input" else "name"]
                if place in self.run.owners[position]:
                    return inner, leaf
        return None


# Calls that write to places of their first argument; `_` behind the name is the one that does.
WRITES = frozenset(
    f"aten.{name}" for name in ("index_put", "index_copy", "index_add", "scatter", "scatter_add")
)
VIEWS = frozenset(
    [
        *("aten.view", "aten.reshape", "aten.flatten", "aten.unflatten", "aten.unsqueeze"),
        *("aten.squeeze", "aten.transpose", "aten.t", "aten.permute", "aten.expand", "aten.alias"),
        *("aten.detach", "aten.select", "aten.slice", "aten.split", "aten.split_with_sizes"),
        *("aten.chunk", "aten.unbind", "aten.diagonal", "aten.unfold", "aten.as_strided"),
        *("aten._unsafe_view", "aten.narrow", "aten.broadcast_tensors", "aten.view_as"),
    ]
)


def _written_in_place(program: Program) -> frozenset[torch.fx.Node]:
    """Calls whose results an input or a buffer takes, and which may write to it themselves, as
    eager does: nobody reads what it was before."""
    (output,) = (n for n in program.graph.nodes if n.op == "output")
    found: set[torch.fx.Node] = set()
    for spec, given in zip(program.graph_signature.output_specs, output.args[0], strict=True):
        calls: list[torch.fx.Node] = []
        n = given
        while isinstance(n, torch.fx.Node) and str(n.target).rpartition(".")[0] in WRITES:
            calls.append(n)
            n = n.args[0]
            if not isinstance(n, torch.fx.Node) or len(n.users) != 1:
                break
        else:
            taken = (
                isinstance(n, torch.fx.Node)
                and n.op == "placeholder"
                and n.name == _name_of(program, spec)
            )
            found |= set(calls) if taken else set()
    return frozenset(found)


def _name_of(program: Program, spec: Any) -> str:
    """The placeholder that takes an output's value; "" if none does."""
    if spec.kind is OutputKind.USER_OUTPUT:
        return ""
    if spec.kind is OutputKind.USER_INPUT_MUTATION:
        return str(spec.target)
    inputs = {s.target: s.arg.name for s in program.graph_signature.input_specs if s.target}
    return str(inputs[spec.target])


def _is_attribute(module: nn.Module, name: str) -> bool:
    """Whether a constant of the program is a tensor that the module keeps as a plain attribute."""
    here: object = module
    for part in name.split("."):
        here = getattr(here, part, None)
    return isinstance(here, torch.Tensor)


def _is_idle_dropout(n: torch.fx.Node) -> bool:
    """Dropout that drops nothing returns its argument; torch.export writes it as a clone."""
    function = n.meta.get("torch_fn", ("", ""))[1]
    return str(n.target) == "aten.clone.default" and "dropout" in function


def _shown(n: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """A value, what it is a view of, and so on, to the call whose memory eager shows here."""
    inner: torch.fx.Node | None = n
    while inner is not None:
        yield inner
        inner = _viewed(inner)


def _memory(n: torch.fx.Node) -> torch.fx.Node:
    *_, memory = _shown(n)
    return memory


def _viewed(n: torch.fx.Node) -> torch.fx.Node | None:
    """What a view is a view of; None for everything else."""
    taken = n.target is operator.getitem
    call = n.args[0] if taken else n
    if not isinstance(call, torch.fx.Node) or call.op != "call_function" or not call.args:
        return None
    shown = call.args[0]
    if taken and isinstance(shown, list | tuple):  # each result is a view of its own argument
        shown = shown[int(n.args[1])]  # type: ignore[arg-type]
    viewed = str(call.target).rpartition(".")[0] in VIEWS or _is_idle_dropout(n)
    if not viewed or not isinstance(shown, torch.fx.Node):
        return None
    return call if taken and isinstance(call.args[0], torch.fx.Node) else shown


def _alone(n: torch.fx.Node) -> bool:
    """Whether running statistics, which a norm may change in place, are as they were until then,
    and nobody else reads them as they were."""
    functional = "functional" in str(n.target)  # what reads them behind the norm reads its results
    return all(
        a.op == "placeholder"
        and all(u is n or (not functional and (u > n or u.target is n.target)) for u in a.users)
        for a in n.args[3:5]
        if isinstance(a, torch.fx.Node)
    )


def _moved(n: Node, order: tuple[int, ...]) -> bool:
    """Whether a computed result would lie in memory in another order than eager's."""
    return n.row.kind in ("pointwise", "reduction") and n.order != order


def _eager_call(call: AtenCall, at: Sizes) -> EagerStep:
    if call.name in VIEWS:
        return EagerStep(call.name, 0, 0, False)
    tensors = [
        a for a in pytree.tree_leaves((call.args, dict(call.kwargs))) if isinstance(a, TensorExpr)
    ]
    read = sum(size_at(numel(t.shape), at) * t.dtype.itemsize for t in tensors)
    written = sum(size_at(numel(r.shape), at) * r.dtype.itemsize for r in call.results)
    results = sum(size_at(numel(r.shape), at) for r in call.results[:1])
    flops = contraction_flops(call.name, [t.shape for t in tensors], call.shape, at)
    half = any(r.dtype in (torch.float16, torch.bfloat16) for r in call.results[:1])
    return EagerStep(call.name, read + written, flops or results, half)


def _covers(lowered: object, n: torch.fx.Node) -> bool:
    """Whether every result that is used exists."""
    if not isinstance(lowered, tuple):
        return not isinstance(n.meta["val"], tuple | list)
    return all(lowered[k] is not None for k in _used(n))


def _used(n: torch.fx.Node) -> frozenset[int]:
    """Positions of the results that somebody reads, of a call that returns several."""
    items = (user for user in n.users if user.target is operator.getitem)
    return frozenset(int(user.args[1]) for user in items)  # type: ignore[arg-type]


def _order(value: torch.Tensor) -> tuple[int, ...]:
    """Dimensions from the outermost to the innermost in memory; () for row-major or overlapping."""
    shape, strides = value.shape, value.stride()
    sizes = [int(s) if not isinstance(s, torch.SymInt) else s.node.hint for s in shape]
    steps = [int(s) if not isinstance(s, torch.SymInt) else s.node.hint for s in strides]
    wide = [d for d in range(len(sizes)) if sizes[d] != 1]
    # At the same stride, what has one element lies inside: so it has that stride, as eager's has.
    order = tuple(sorted(range(len(sizes)), key=lambda d: (-steps[d], sizes[d] == 1)))
    by_stride = [d for d in order if d in wide]
    expected = 1
    for d in reversed(by_stride):
        if steps[d] != expected:
            return ()
        expected *= sizes[d]
    if by_stride == wide:
        return ()
    return order  # PyTorch's channels last keep their strides where an image is one line, too
