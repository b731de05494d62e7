"""A model that cannot be captured as a whole -> its largest submodules that can.

One eager run shows which submodules are called, and with what: only sizes, strides and types are
kept. From the root downwards, a submodule whose calls can be captured is taken, and of one whose
calls cannot, its children are tried. Submodules of one class with the same attributes and sizes
share what was made for the first of them; who is never called (an expert that no row went to) is
taken along with those like it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fusewright.common.call_arguments import Inputs, as_called, signature_of, takes
from fusewright.errors import CaptureFailed
from fusewright.frontend.attribute_reads import INTERNAL, is_plain
from fusewright.frontend.forward_trace import put_back
from fusewright.frontend.memory_places import Laid, laid

T = TypeVar("T")


@dataclass(frozen=True)
class Signature:
    """Arguments of one call, as leaves and the containers that they are in.

    Every tensor among the leaves is a `Laid`. The containers are built for tensors only: one with
    a constructor of its own, such as a packed sequence, takes nothing else. names: of the last
    arguments, which go by name. why_not: what no graph takes.
    """

    leaves: tuple[object, ...] = ()
    spec: pytree.TreeSpec | None = None
    names: tuple[str, ...] = ()
    why_not: str = ""

    @property
    def laid(self) -> list[Laid]:
        return [v for v in self.leaves if isinstance(v, Laid)]

    @property
    def rows(self) -> int:
        """The leading size of the first tensor that has one."""
        return next((t.shape[0] for t in self.laid if t.shape), 0)

    def pattern(self) -> str:
        """The same for calls that differ in their leading sizes only."""
        tails = [(t.shape[1:], len(t.shape), t.dtype, t.has_gaps) for t in self.laid]
        rest = ["tensor" if isinstance(v, Laid) else v for v in self.leaves]
        return repr((tails, rest, self.spec, self.names, self.why_not))

    def inputs(self) -> Inputs:
        if self.spec is None:
            return Inputs()
        leaves = [v.tensor() if isinstance(v, Laid) else v for v in self.leaves]
        return Inputs(pytree.tree_unflatten(leaves, self.spec), self.names)


@dataclass(frozen=True)
class Taken(Generic[T]):
    """Submodules that share what was `made` for the first of them."""

    module: nn.Module
    paths: tuple[str, ...]
    made: T


@dataclass(frozen=True)
class Left:
    """A submodule that runs as it was written; the root's path is ""."""

    path: str
    kind: str
    why: str


@dataclass(frozen=True)
class Chosen(Generic[T]):
    taken: tuple[Taken[T], ...]
    left: tuple[Left, ...]


Calls = dict[int, list[Signature]]  # by the id of the submodule


def observed(module: nn.Module, run: Callable[[], object]) -> Calls:
    """What every submodule is called with while `run` runs the model; all state is put back."""
    calls: Calls = {}
    wanted = {id(child): child for child in module.modules() if child is not module}
    with _kept(module), _watched(wanted, calls), torch.no_grad():
        before = _hooked(module)
        run()
        hooked = _hooked(module) - before
    for child in wanted.values():
        if named := sorted(type(c).__name__ for c in child.modules() if id(c) in hooked):
            why = f"sets forward hooks on {named[0]} while it runs"
            calls[id(child)] = [replace(s, why_not=why) for s in calls.get(id(child), [])]
    return calls


def _hooked(module: nn.Module) -> set[int]:
    """The ids of modules in it that have forward hooks."""
    return {id(c) for c in module.modules() if c._forward_hooks or c._forward_pre_hooks}


def choose(
    module: nn.Module, calls: Calls, attempt: Callable[[nn.Module, Inputs, bool], T | None]
) -> Chosen[T]:
    """The largest submodules that `attempt` makes something of.

    attempt: takes a submodule, example inputs, and whether its rows vary from call to call. It
    returns None where there is nothing to gain, and raises CaptureFailed where it cannot.
    """
    return _Choice(module, calls, attempt).run()


@contextmanager
def _kept(module: nn.Module) -> Iterator[None]:
    """Random state, tensors and plain attributes are behind the block as they were before."""
    tensors = [*module.parameters(), *module.buffers()]
    copies = [t.detach().clone() for t in tensors]
    with torch.random.fork_rng(devices=[]), put_back(module):
        try:
            yield
        finally:
            with torch.no_grad():
                for t, copy in zip(tensors, copies, strict=True):
                    if not torch.equal(t, copy):
                        t.copy_(copy)


@contextmanager
def _watched(wanted: dict[int, nn.Module], calls: Calls) -> Iterator[None]:
    """Within the block, calls of the wanted submodules are noted."""
    original = nn.Module.__call__

    def watch(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if id(self) in wanted:
            calls.setdefault(id(self), []).append(_signature(self, args, kwargs))
        return original(self, *args, **kwargs)

    nn.Module.__call__ = watch  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]


def _signature(child: nn.Module, args: Sequence[object], kwargs: dict[str, Any]) -> Signature:
    signature = signature_of(type(child).forward, bound=False)
    if signature is None or not takes(signature, args, kwargs):
        return Signature(why_not="is called with arguments that its forward does not name")
    given = as_called(type(child).forward, args, kwargs)
    leaves, spec = pytree.tree_flatten([*given])
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            plain = type(leaf) in (torch.Tensor, nn.Parameter) and leaf.layout is torch.strided
            if not plain or leaf.is_nested:
                return Signature(why_not=f"is called with a {type(leaf).__name__}")
        elif not is_plain(leaf):
            return Signature(why_not=f"is called with a {type(leaf).__name__}")
    shown = tuple(laid(v) if isinstance(v, torch.Tensor) else v for v in leaves)
    return Signature(shown, spec, given.names)


@dataclass
class _Choice(Generic[T]):
    module: nn.Module
    calls: Calls
    attempt: Callable[[nn.Module, Inputs, bool], T | None]
    shared: dict[str, list[Signature]] = field(default_factory=dict)
    outcomes: dict[str, T | CaptureFailed | None] = field(default_factory=dict)
    first: dict[str, nn.Module] = field(default_factory=dict)
    paths: dict[str, list[str]] = field(default_factory=dict)
    inside: set[int] = field(default_factory=set)
    left: list[Left] = field(default_factory=list)

    def run(self) -> Chosen[T]:
        for child in self.module.modules():
            self.shared.setdefault(_likeness(child), []).extend(self.calls.get(id(child), []))
        for name, child in self.module.named_children():
            self._visit(name, child)
        taken = [
            Taken(self.first[key], tuple(paths), made)
            for key, paths in self.paths.items()
            if (made := self.outcomes[key]) is not None and not isinstance(made, CaptureFailed)
        ]
        return Chosen(tuple(taken), tuple(self.left))

    def _visit(self, path: str, child: nn.Module) -> None:
        if id(child) in self.inside:
            return
        key = _likeness(child)
        calls = self.shared[key]
        if calls and not any(id(c) in self.inside for c in child.modules()):
            outcome = self._outcome(key, child, calls)
            if not isinstance(outcome, CaptureFailed):
                self.inside |= {id(c) for c in child.modules()}
                self.first.setdefault(key, child)
                self.paths.setdefault(key, []).append(path)
                return
            self.left.append(Left(path, type(child).__name__, str(outcome)))
        self.inside.add(id(child))
        for name, grandchild in child.named_children():
            self._visit(f"{path}.{name}", grandchild)

    def _outcome(
        self, key: str, child: nn.Module, calls: Sequence[Signature]
    ) -> T | CaptureFailed | None:
        if key not in self.outcomes:
            try:
                self.outcomes[key] = self._tried(child, calls)
            except CaptureFailed as error:
                self.outcomes[key] = error
        return self.outcomes[key]

    def _tried(self, child: nn.Module, calls: Sequence[Signature]) -> T | None:
        """Of all calls, those of the commonest kind count, and of these the one with most rows."""
        (most, _), *_ = Counter(s.pattern() for s in calls).most_common()
        same = [s for s in calls if s.pattern() == most]
        example = max(same, key=lambda s: s.rows)
        name = type(child).__name__
        if example.why_not:
            raise CaptureFailed(f"{name} {example.why_not}.")
        if any(t.has_gaps for t in example.laid):
            raise CaptureFailed(f"{name} is called with a tensor whose elements lie apart.")
        if isinstance(child, torch.jit.ScriptModule):
            raise CaptureFailed(f"{name} is a TorchScript module.")
        hooked = [c for c in child.modules() if c._forward_hooks or c._forward_pre_hooks]
        if hooked:
            raise CaptureFailed(f"{name} has forward hooks on {type(hooked[0]).__name__}.")
        if "forward" in vars(child):
            raise CaptureFailed(f"{name} has a forward that was set on the object.")
        return self.attempt(child, example.inputs(), len({s.rows for s in same}) > 1)


def _likeness(child: nn.Module) -> str:
    """The same text for submodules that one graph may serve; the guard asks for everything."""
    said: list[object] = []
    for path, c in child.named_modules():
        tensors = [*c._parameters.items(), *c._buffers.items()]
        sizes = [(n, None if t is None else (tuple(t.shape), t.dtype)) for n, t in tensors]
        own = {n: v for n, v in vars(c).items() if n not in INTERNAL and is_plain(v)}
        said.append((path, id(type(c)), sizes, c.training, sorted(own.items(), key=str)))
    return repr(said)
