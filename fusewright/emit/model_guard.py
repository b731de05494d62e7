"""Captured + module -> what the guard asks of the model: of its modules, their tensors and values.

Small models are asked condition by condition, within `forward`, where a reader sees them. Of larger
ones a table says what they have to be like (`module_table`), which is compared as a whole: its
length goes with the kinds of modules, not with their number, and its cost with what changes. What
that takes is text of its own, some 6 KB, so few modules are shorter as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from torch import nn

from fusewright.emit.guard_condition import GuardCondition
from fusewright.emit.guard_values import ATTRIBUTE, ValueConditions
from fusewright.emit.module_table import (
    ModuleTable,
    class_text,
    joined,
    module_table,
    tied_paths,
    user_methods,
)
from fusewright.emit.python_text import NameScope, literal, shape_tuple, strings_tuple
from fusewright.emit.runtime_snippets import Snippet
from fusewright.emit.scope import EmitScope
from fusewright.frontend.capture import Captured
from fusewright.ir.graph import Node

MOST_IN_FORWARD = 16  # modules below the model


class ModelGuard(Protocol):
    """What is asked of a model, as conditions, and what they bind.

    locals: name of a parameter or buffer in the graph -> the variable that holds it, or is to.
    tensors: these variables, each once.  variables: path of a module -> its variable, if any.
    table, state: the table, and the variable of the tuple of tensors, where there are such.
    snippets: those that the conditions call.
    """

    locals: dict[str, str]
    tensors: list[str]
    variables: dict[str, str]
    table: ModuleTable | None
    state: str
    snippets: set[Snippet]

    def modules(self) -> Iterator[GuardCondition]:
        """Every submodule is there, of its class, without hooks; containers hold nothing else."""

    def owner(self, path: str) -> Iterator[GuardCondition]:
        """The module at a path has a variable."""

    def found(self) -> list[str]:
        """The tensors, as arguments of a call that binds them."""

    def given(self) -> list[str]:
        """The same, where they are bound."""

    def like(self, device: str) -> Iterator[GuardCondition]:
        """Each of the tensors is what the kernels were written for."""

    def tied(self) -> Iterator[GuardCondition]:
        """Tensors that were one still are."""

    def values(self) -> Iterator[GuardCondition]:
        """Attributes are what they were."""


def model_guard(
    captured: Captured,
    module: nn.Module,
    scope: EmitScope,
    values: ValueConditions,
    *,
    whole: bool = False,
) -> ModelGuard:
    """What is asked of a model. values: for conditions within `forward`, with its names.
    whole: whether it is to be compared as a whole, however small it is."""
    if whole or len([*module.modules()]) > 1 + MOST_IN_FORWARD:
        return _ByTable(module_table(captured, module, scope), values.names)
    return _InForward(captured, module, scope, values)


class _ByTable:
    """One condition, on all that the table has."""

    def __init__(self, table: ModuleTable, names: NameScope) -> None:
        self.table: ModuleTable | None = table
        self.function, self.names = table.function, names
        self.state = names.fresh("state")
        self.snippets: set[Snippet] = {Snippet.STATE}
        self.variables = {"": "self"}
        self.tensors = [names.fresh(tied[0].replace(".", "_")) for tied in table.tensors]
        self.locals = {
            name: self.tensors[k] for k, tied in enumerate(table.tensors) for name in tied
        }

    def modules(self) -> Iterator[GuardCondition]:
        looked = f"{self.state} := {Snippet.STATE}(self, {self.function})"
        yield self._as_it_was(looked)

    def _as_it_was(self, looked: str) -> GuardCondition:
        """The table holds; else there is the name of what is different in place of a tuple."""
        other = f"_fusewright_other(self, {self.state})"
        return GuardCondition(f"(type({looked}) is tuple or {other})")

    def owner(self, path: str) -> Iterator[GuardCondition]:
        above, _, name = path.rpartition(".")
        if path not in self.variables:
            yield from self.owner(above)
            self.variables[path] = self.names.fresh(path.replace(".", "_"))
            found = f"{self.variables[above]}._modules[{literal(name)}]"
            text = f"({self.variables[path]} := {found}) is not None"
            yield GuardCondition(text, f"there is no {path}")

    def found(self) -> list[str]:
        return [f"*{self.state}"] * bool(self.tensors)

    def given(self) -> list[str]:
        return self.found()

    def like(self, device: str) -> Iterator[GuardCondition]:
        if self.tensors:
            look = f"_fusewright_look(self, {self.function}, {device or literal('cpu')})"
            yield self._as_it_was(f"{self.state} := {look}")

    def tied(self) -> Iterator[GuardCondition]:
        yield from ()

    def values(self) -> Iterator[GuardCondition]:
        yield from ()


class _InForward:
    """Conditions one by one: a module is known to be there before anything is read from it, and
    what was found gets a local name, which the rest of `forward` uses."""

    def __init__(
        self, captured: Captured, module: nn.Module, scope: EmitScope, values: ValueConditions
    ) -> None:
        self.captured, self.module, self.scope = captured, module, scope
        self.conditions, self.names = values, values.names
        self.table: ModuleTable | None = None
        self.state = ""
        self.snippets: set[Snippet] = set()
        self.variables = {"": "self"}
        state = (n for n in captured.graph.leaves if n.row.state)
        self.leaves: dict[str, Node] = {
            str(n["name"]): n for n in state if str(n["name"]) not in captured.constants
        }
        self.locals = {path: self.names.fresh(path.replace(".", "_")) for path in self.leaves}
        self.tensors = [*self.locals.values()]

    # -- modules

    def modules(self) -> Iterator[GuardCondition]:
        first: dict[int, str] = {}
        needed = self._owners()
        if len([*self.module.modules()]) > 1:
            text = "not (_FUSEWRIGHT_HOOKS or _FUSEWRIGHT_PRE_HOOKS)"
            yield GuardCondition(text, "there are hooks of all modules")
        for path, child in self.module.named_modules(remove_duplicate=False):
            parent, _, name = path.rpartition(".")
            found = f"{self.variables.get(parent)}._modules.get({literal(name)})"
            if id(child) in first:
                if parent in self.variables:
                    known = self.variables[path] = self.variables[first[id(child)]]
                    text = f"{found} is {known}"
                    yield GuardCondition(text, f"{path} and {first[id(child)]} are no longer one")
                continue
            first[id(child)] = path
            if path:
                yield from self._module(path, child, found, path in needed)
            yield from self._contents(path, child)

    def _module(
        self, path: str, child: nn.Module, found: str, named: bool
    ) -> Iterator[GuardCondition]:
        kind = class_text(type(child), self.scope)
        if named or not kind:
            self.variables[path] = self.names.fresh(path.replace(".", "_"))
            found = f"{self.variables[path]} := {found}"
        if not kind:
            text = f"str(type({found})) == {literal(str(type(child)))}"
            yield GuardCondition(text, f"{path} is of another class")
            found, kind = self.variables[path], f"type({self.variables[path]})"
        self.snippets.add(Snippet.MODULE_MATCHES)
        yield GuardCondition(
            f"{Snippet.MODULE_MATCHES}({found}, {kind})",
            f"{path} has another class, or hooks, or its own forward",
        )

    def _contents(self, path: str, child: nn.Module) -> Iterator[GuardCondition]:
        methods = sorted(user_methods(type(child)) - {"forward"})
        if child._modules:
            text = f"tuple({self.variables[path]}._modules) == {strings_tuple(child._modules)}"
            yield GuardCondition(text, f"{path or 'the model'} has other submodules")
        if methods:
            text = f"{self.variables[path]}.__dict__.keys().isdisjoint({strings_tuple(methods)})"
            yield GuardCondition(text, f"an attribute of {path or 'the model'} hides a method")

    def _owners(self) -> set[str]:
        """Paths of modules that conditions read from, and so have a local name."""
        paths = list(self.module.named_modules(remove_duplicate=False))
        first = {id(child): path for path, child in reversed(paths)}
        return {
            *(path.rpartition(".")[0] for path in self.leaves),
            *(s.path for s in self.captured.settings),
            *(r.place.path for r in self.captured.replaced),
            *(path for path, child in paths if child._modules or user_methods(type(child))),
            *(path.rpartition(".")[0] for group in tied_paths(self.module) for path in group),
            *(first[id(child)] for path, child in paths if first[id(child)] != path),
        }

    def owner(self, path: str) -> Iterator[GuardCondition]:
        assert path in self.variables, "whose attributes are replaced has a variable"
        yield from ()

    # -- tensors and values

    def found(self) -> list[str]:
        return [f"{name} := {self._reached(path)}" for path, name in self.locals.items()]

    def _reached(self, path: str) -> str:
        """The text of a tensor."""
        owner, _, name = path.rpartition(".")
        return held(self.variables[owner], self.module.get_submodule(owner), name)

    def given(self) -> list[str]:
        return self.tensors

    def like(self, device: str) -> Iterator[GuardCondition]:
        for path, leaf in self.leaves.items():
            yield tensor_condition(path, self.locals[path], leaf, {}, device)

    def tied(self) -> Iterator[GuardCondition]:
        for group in tied_paths(self.module):
            known = next((path for path in group if path in self.locals), "")
            for path in group if known else ():
                if path not in self.locals:
                    text = f"{self._reached(path)} is {self.locals[known]}"
                    yield GuardCondition(text, f"{path} is no longer tied to {known}")

    def values(self) -> Iterator[GuardCondition]:
        for s in self.captured.settings:
            text, what = f"{self.variables[s.path]}.{s.name}", joined(s.path, s.name)
            yield from self.conditions.unchanged(text, s.value, f"{ATTRIBUTE}{what}")


def held(variable: str, module: nn.Module, name: str) -> str:
    """The text of what a module holds: from the dictionary that has it; only this is not slow."""
    places = (p for p in ("_parameters", "_buffers") if name in getattr(module, p))
    return f"{variable}.{next(places, '__dict__')}.get({literal(name)})"


def tensor_condition(
    name: str, text: str, leaf: Node, sizes: Mapping[str, str], device: str
) -> GuardCondition:
    """A tensor is what the kernels were written for. name: as users know it.  sizes:
    variables of the free ones.  device: a variable, or ""."""
    shape = shape_tuple(leaf.shape, sizes)
    order = [f"order={leaf.order}"] * bool(leaf.order)
    inside = [literal(name), text, shape, str(leaf.dtype), *[device] * bool(device), *order]
    return GuardCondition(f"_fusewright_tensor_matches({', '.join(inside)})")
