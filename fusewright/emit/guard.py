"""Captured + module -> the guard of the emitted `forward`, as lines of Python: the conditions under
which the kernels compute exactly what the original `forward` would.

Whatever is not listed here runs `reference_forward`, so a missing condition would be a wrong
answer. Conditions are evaluated in order: a module is known to be there before anything is read
from it, and what was found gets a local name, which the rest of `forward` uses.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter

import torch
from torch import nn

from fusewright.common.containers import Plain, Slot, Tree, rebuild
from fusewright.emit.guard_condition import GuardCondition, all_of
from fusewright.emit.guard_values import (
    ValueConditions,
    is_only_plain,
    values_read,
    values_read_elsewhere,
)
from fusewright.emit.model_guard import held, model_guard, tensor_condition
from fusewright.emit.module_table import ModuleTable
from fusewright.emit.python_text import NameScope, literal, parameters, tuple_text
from fusewright.emit.runtime_snippets import Snippet
from fusewright.emit.scope import Containers, EmitScope, reached
from fusewright.errors import CaptureFailed
from fusewright.frontend.capture import Captured
from fusewright.frontend.layer_fast_paths import WITH_FAST_PATH
from fusewright.fusion.planner import Plan
from fusewright.fusion.replay import is_replayed
from fusewright.ir.graph import BatchSize, FreeSize, Graph, Node, numel, toposort
from fusewright.kernels.interface import Condition, FullFloat32, RoundsAsTf32

ONE_LINE = 84  # what fits behind `alike = ` in a method
ON_A_GPU = "device >= 0"


@dataclass(frozen=True)
class ForwardGuard:
    """prelude: statements before the conditions.  conditions: each as text, joined by `and`.

    locals: path of a parameter or buffer -> the local variable that holds it, or is to hold it.
    tensors: these variables, each once.  state: the variable of a tuple of them, which is still to
    be unpacked, or "".  holds: the variable of what the conditions say.
    names: the local names in use.  sizes: the variables of the free sizes, by name.
    inputs: the variables of the tensors among the arguments, then of those in replaced attributes.
    containers: how others are written.  modules: path of a submodule whose attributes are
    replaced -> its variable.  table: what modules have to be like.  snippets: those that the
    conditions call.  beside: conditions on arguments but for what tensors are like; None where some
    cannot be given by name.  others: conditions on all but tensors, modules, and what PyTorch says
    of itself.  replayed: whether calls that come back are launched at once, for which the model is
    compared as a whole.
    """

    prelude: tuple[str, ...]
    conditions: tuple[str, ...]
    locals: Mapping[str, str]
    tensors: tuple[str, ...]
    state: str
    holds: str
    names: NameScope
    sizes: Mapping[str, str]
    inputs: tuple[str, ...]
    containers: Containers
    modules: Mapping[str, str]
    table: ModuleTable | None
    snippets: frozenset[Snippet]
    beside: tuple[str, ...] | None
    others: tuple[str, ...]
    replayed: bool


def guard(
    captured: Captured,
    module: nn.Module,
    scope: EmitScope,
    plan: Plan,
    asked: Sequence[Condition] = (),
    *,
    records: bool = False,
) -> ForwardGuard:
    """The guard for `forward` of `module` as it was captured and planned.

    asked: the conditions of kernels.  records: whether gradients of all parameters are recorded,
    and the guard is asked where nothing else is.
    """
    return _Guard(captured, module, scope, plan, asked, records=records).guard()


class _Guard:
    def __init__(
        self,
        captured: Captured,
        module: nn.Module,
        scope: EmitScope,
        plan: Plan,
        asked: Sequence[Condition],
        *,
        records: bool,
    ) -> None:
        self.records = records
        self.captured, self.module, self.scope, self.target = captured, module, scope, plan.target
        self.free = captured.graph.free
        self.precision, self.asked = plan.precision, asked
        self.parameters = parameters(module)
        self.leaves = [n for n in captured.graph.leaves if n.row.state]
        self.globals = values_read(module, scope)
        given = frozenset(p.name for p in self.parameters)
        self.containers = Containers(scope, given, type(module).__name__)
        trees = [t for r in captured.replaced for t in (r.before, r.after)]
        trees += [*(a.tree for a in captured.arguments), captured.results]
        words = self.containers.words(trees)
        taken = {*given} | set(self.globals) | set(scope.classes.values()) | words
        self.names = NameScope(taken | {"self", "torch", "type", "repr", "globals", scope.own})
        self.names.taken |= {"alike", *dir(builtins), *scope.values}
        self.values = ValueConditions(type(module).__name__, scope, self.names)
        self.trees = {a.parameter: a.tree for a in captured.arguments}
        self.alike: list[str] = []  # what is asked of containers
        self.parts: list[tuple[str, str]] = []  # variables of the tensors in them, and their places
        self.plain: list[tuple[str, object]] = []  # texts of plain values in arguments
        self.inputs: dict[int, str] = {}
        for name, tree in self.trees.items():
            self._take(name, name, tree)
        self.given = len(self.inputs)  # behind them are tensors of replaced attributes
        self.reached: dict[int, str] = {}
        self.replayed = scope.traced and not records and is_replayed(captured, plan)
        self.model = model_guard(captured, module, scope, self.values, whole=self.replayed)
        self.snippets: set[Snippet] = set()
        self.sizes = {size.name: self.names.fresh(size.name) for size in self.free}
        cuda = self.target.language == "cuda"
        self.anywhere = _read_by_calls_alone(captured.graph) if cuda else frozenset()

    def guard(self) -> ForwardGuard:
        if self.target.language == "cuda":
            self.names.taken |= {"device", "stream"}
        own = GuardCondition(
            f"type(self) is {self.scope.own}", f"its class is not {self.scope.own} itself"
        )
        arguments = [*self._arguments()]
        kinds = {p.kind for p in self.parameters if p.name in self.trees}
        by_name = kinds <= {Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY}
        beside = [*arguments, *(_within(self.sizes[s.name], s) for s in self.free)]
        conditions = [
            *arguments,
            own,
            *self.model.modules(),
            *self._replaced(),
            *self._all_tensors(),
            *self.model.tied(),
            *self.model.values(),
            *(values := [*self._values()]),
            *self._default_dtype(),
            *self._fast_paths(),
            *(gradients := [*self._gradients()]),
            *self._no_shared_memory(),
            *self._precision(),
        ]
        inputs = tuple(self.inputs[k] for k in range(len(self.inputs)))
        return ForwardGuard(
            prelude=tuple(self._prelude()),
            conditions=tuple(map(str, conditions)),
            locals=self.model.locals,
            tensors=tuple(self.model.tensors),
            state=self.model.state,
            holds=self.names.fresh("holds"),
            names=self.names,
            sizes=self.sizes,
            inputs=inputs,
            containers=self.containers,
            modules=self.model.variables,
            table=self.model.table,
            snippets=frozenset(self.snippets | self.model.snippets),
            beside=tuple(condition.text for condition in beside) if by_name else None,
            others=tuple(c.text for c in (*arguments, *values, *gradients) if c.text != ON_A_GPU),
            replayed=self.replayed,
        )

    # -- arguments

    def _take(self, path: str, name: str, tree: Tree) -> None:
        """Note what is asked of an argument, and the variables of the tensors in it."""
        if isinstance(tree, Slot) and path == name:
            self.inputs[tree.number] = path
        elif isinstance(tree, Slot):
            self.inputs[tree.number] = self.names.fresh(name)
            self.parts.append((self.inputs[tree.number], path))
        elif isinstance(tree, Plain):
            self.plain.append((path, tree.value))
        elif path.isidentifier() and is_only_plain(tree):
            self.plain.append((path, rebuild(tree, ())))
        else:
            self.alike += self.containers.asks(path, tree)
            for k, inside in enumerate(tree.inside):
                self._take(reached(tree, path, k), f"{name}_{tree.keys[k]}", inside)

    def _tensors(self) -> list[tuple[str, Node]]:
        """The tensor arguments: name and leaf."""
        leaves = self.captured.graph.inputs[: self.given]
        return [(self.inputs[k], leaf) for k, leaf in enumerate(leaves)]

    def _replaced(self) -> Iterator[GuardCondition]:
        """Attributes that forward replaces are built like those that it was captured with; their
        tensors are asked for with all others."""
        for r in self.captured.replaced:
            yield from self.model.owner(r.place.path)
            owner = self.model.variables[r.place.path]
            text = held(owner, self.module.get_submodule(r.place.path), r.place.name)
            yield from self._built_alike(text, str(r.place).replace(".", "_"), r.before)

    def _built_alike(self, text: str, name: str, tree: Tree) -> Iterator[GuardCondition]:
        """text: of the value.  name: for its tensors."""
        if isinstance(tree, Slot):
            self.inputs[tree.number] = self.names.fresh(name)
            self.reached[tree.number] = text
        elif isinstance(tree, Plain):
            yield from self.values.unchanged(text, tree.value, f"attribute {name}")
        else:
            own = self.names.fresh(name)
            asked = [f"({own} := {text}) is not None", *self.containers.asks(own, tree)]
            yield all_of(asked, f"attribute {name} is built otherwise")
            for k, inside in enumerate(tree.inside):
                yield from self._built_alike(
                    reached(tree, own, k), f"{name}_{tree.keys[k]}", inside
                )

    def _prelude(self) -> Iterator[str]:
        if self.alike:
            asked = " and ".join(self.alike)
            yield f"alike = ({asked})" if len(asked) > ONE_LINE else f"alike = {asked}"
        for name, path in self.parts:
            yield f"{name} = {path} if alike else None"
        if self.target.language == "cuda":
            there = (name for name, leaf in self._tensors() if id(leaf) not in self.anywhere)
            x = next(there, "None")
            known = f"isinstance({x}, torch.Tensor) and {x}.is_cuda"
            yield f"device = {x}.get_device() if {known} else -1"
        for name, variable in self.sizes.items():
            yield f"{variable} = {self._size_source(name)} else 0"

    def _size_source(self, free: str) -> str:
        """A free size from a tensor that has it, and when: from all elements, or from a size."""
        size = BatchSize(1, (free,))
        for name, leaf in self._tensors():
            whole, known = numel(leaf.shape), f"isinstance({name}, torch.Tensor)"
            if size in leaf.shape and isinstance(whole, BatchSize) and whole.names == (free,):
                others = f" // {whole.multiple}" if whole.multiple > 1 else ""
                return f"{name}.numel(){others} if {known}"
            if size in leaf.shape:
                d = leaf.shape.index(size)
                return f"{name}.size({d}) if {known} and {name}.dim() > {d}"
        raise CaptureFailed(f"No argument of forward has the free size {free} as one of its sizes.")

    def _arguments(self) -> Iterator[GuardCondition]:
        if self.target.language == "cuda":
            yield GuardCondition(ON_A_GPU, "its first tensor is on no GPU")
        if self.alike:
            yield GuardCondition("alike", "arguments are built otherwise")
        for p in self.parameters:
            if p.name not in self.trees and p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
                yield GuardCondition(f"not {p.name}", f"arguments are given in {p.name}")
            elif p.name not in self.trees:
                yield from self.values.unchanged(p.name, p.default, f"the default of {p.name}")
        for path, value in self.plain:
            yield from self.values.unchanged(path, value, f"argument {path}")

    def _call(self, snippet: Snippet, *arguments: str) -> str:
        self.snippets.add(snippet)
        return f"{snippet}({', '.join(arguments)})"

    # -- tensors and values of modules

    def _all_tensors(self) -> Iterator[GuardCondition]:
        """Nobody looks on, and the tensors are like some that were right before, or each is."""
        leaves, found = dict(self._tensors()), [name for name, _ in self._tensors()]
        places = dict(self.parts)
        for k, text in self.reached.items():
            leaves[self.inputs[k]] = self.captured.graph.inputs[k]
            found.append(f"{self.inputs[k]} := {text}")
        device = "device" if self.target.language == "cuda" else ""
        state = self.model.state if self.model.tensors else ""
        found += [] if state else self.model.found()
        given = [*leaves, *self.model.given()]
        asked = [GuardCondition("_fusewright_eager()")]
        key = self._key()
        asked += [
            _single(name, leaf)
            if id(leaf) in self.anywhere
            else tensor_condition(places.get(name, name), name, leaf, self.sizes, device)
            for name, leaf in leaves.items()
        ]
        for size in self.free:  # behind the tensors, which say why it is unknown
            asked.append(_within(self.sizes[size.name], size))
        asked += self.model.like(device)
        if given:
            asked.append(GuardCondition(f"_fusewright_cache_guard({', '.join([key, *given])})"))
            known = self._call(Snippet.GUARD_HIT, key, state or "()", *found)
        each = " and ".join(map(str, asked))
        yield GuardCondition(f"({known} or ({each}))") if given else asked[0]

    def _key(self) -> str:
        """What calls have in common whose tensors are alike; parts, and modes, remember apart."""
        sizes, number = [*self.sizes.values()] or ["0"], self.scope.number
        several = len(sizes) > 1 or number > 0
        return f"({', '.join(sizes)}, {number})" if several else sizes[0]

    def _values(self) -> Iterator[GuardCondition]:
        """The top level of the user's file is what it was."""
        for name, value in self.globals.items():
            hidden = any(p.name == name for p in self.parameters)
            reach = "globals()[{0!r}]" if hidden and self.scope.reach == "{0}" else self.scope.reach
            yield from self.values.unchanged(reach.format(name), value, name)
        for text, value in values_read_elsewhere(self.module, self.scope).items():
            yield from self.values.unchanged(text, value, text.rpartition(".")[2])

    def _default_dtype(self) -> Iterator[GuardCondition]:
        if self._reads_default_dtype():
            default = torch.get_default_dtype()
            text = f"torch.get_default_dtype() is {default}"
            yield GuardCondition(text, f"PyTorch's default dtype is not {default}")

    def _fast_paths(self) -> Iterator[GuardCondition]:
        """Layers of PyTorch that have one take it or not as they did: they are other functions."""
        if any(isinstance(module, WITH_FAST_PATH) for module in self.module.modules()):
            enabled = torch.backends.mha.get_fastpath_enabled()
            asked = "torch.backends.mha.get_fastpath_enabled()"
            told = 'hasattr(torch.backends, "mha")'  # PyTorch 2.0 cannot be told otherwise
            text = f"(not {told} or {asked})" if enabled else f"({told} and not {asked})"
            yield GuardCondition(text, f"PyTorch's fast paths are {'off' if enabled else 'on'}")

    def _precision(self) -> Iterator[GuardCondition]:
        """Of float32, kernels are as precise as eager: in full, or, convolutions, with TF32."""
        if self.precision == "eager" and FullFloat32() in self.asked:
            text = self._call(Snippet.FULL_FLOAT32)
            yield GuardCondition(text, "float32 products are to be rounded to TF32")
        for one in dict.fromkeys(self.asked):
            if isinstance(one, RoundsAsTf32):
                arguments = (text.format(**self.sizes) for text in one.arguments)
                text = self._call(Snippet.CONV_USES_TF32, *arguments)
                yield GuardCondition(text, "cuDNN would not round a convolution to TF32")

    def _reads_default_dtype(self) -> bool:
        """Whether a floating type came from nothing but PyTorch's default."""
        floating = [c for c in self.captured.constants.values() if c.is_floating_point()]
        return bool(floating) or any(
            n.dtype.is_floating_point
            and n.row.kind != "leaf"
            and not any(a.dtype.is_floating_point and a.op != "constant" for a in n.args)
            for n in toposort(self.captured.graph.roots)
        )

    # -- what ties tensors together

    def _gradients(self) -> Iterator[GuardCondition]:
        """Parameters that a rewrite removed from the graph still make eager record a gradient.
        Where gradients of parameters are recorded, other tensors of the model need none."""
        if self.records:
            yield from self._parameters_alone()
            return
        kept = {str(n["name"]) for n in self.leaves}
        if any(name not in kept for name, _ in self.module.named_parameters()):
            wanted = "any(p.requires_grad for p in self.parameters())"
            text = f"not (torch.is_grad_enabled() and {wanted})"
            yield GuardCondition(text, "a parameter needs a gradient")

    def _parameters_alone(self) -> Iterator[GuardCondition]:
        trained = {name for name, _ in self.module.named_parameters(remove_duplicate=False)}
        state, place = self.model.state, {name: k for k, name in enumerate(self.model.tensors)}
        others = [
            self.model.locals[str(n["name"])]
            for n in self.leaves
            if n.dtype.is_floating_point
            and str(n["name"]) not in trained
            and str(n["name"]) in self.model.locals
        ]
        if not others:
            return
        each = ", ".join(f"{state}[{place[t]}]" if state else t for t in dict.fromkeys(others))
        text = f"not any(t.requires_grad for t in ({each},))"
        yield GuardCondition(text, "a buffer needs a gradient")

    def _no_shared_memory(self) -> Iterator[GuardCondition]:
        """What is written shares no memory with anything else."""
        graph = self.captured.graph
        if not graph.written:
            return
        place = {name: k for k, name in enumerate(self.model.tensors)}
        names = ((n, str(n["name"])) for n in self.leaves)
        at = {
            id(n): place[self.model.locals[name]] for n, name in names if name in self.model.locals
        }
        at |= {id(leaf): len(place) + k for k, leaf in enumerate(graph.inputs)}
        inputs = [self.inputs[k] for k in range(len(self.inputs))]
        positions = tuple(sorted(at[id(n)] for n in graph.written if id(n) in at))
        given = [
            self.model.state or tuple_text(self.model.tensors),
            tuple_text(inputs),
            literal(positions),
        ]
        text = self._call(Snippet.NO_SHARED_MEMORY, self._key(), *given)
        yield GuardCondition(text, "a tensor that it changes shares memory with another one")


def _within(variable: str, free: FreeSize) -> GuardCondition:
    """A free size is one of those that the kernels are made for."""
    if free.most is not None:
        text = f"{free.least} <= {variable} <= {free.most}"
        return GuardCondition(text, f"{free.words} is not {free.bounds}")
    if free.least == 1:
        return GuardCondition(variable, f"{free.words} is 0")
    return GuardCondition(f"{variable} >= {free.least}", f"{free.words} is less than {free.least}")


def _read_by_calls_alone(graph: Graph) -> frozenset[int]:
    """Inputs of one element that only library calls read, which take it from the CPU, too: there
    PyTorch's attention leaves what its random numbers began with, for its derivative."""
    outside = {id(n) for n in (*graph.outputs, *(u.target for u in graph.updates))}
    for n in toposort(graph.roots):
        outside |= {id(a) for a in n.args if n.op != "library"}
    return frozenset(id(n) for n in graph.inputs if not n.shape and id(n) not in outside)


def _single(name: str, leaf: Node) -> GuardCondition:
    plain = f"type({name}) is torch.Tensor and not {name}.requires_grad"
    text = f"({plain} and {name}.dtype is {leaf.dtype} and not {name}.dim())"
    return GuardCondition(text, f"{name} is not one element of {leaf.dtype}")
