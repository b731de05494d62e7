"""Snapshots of a model: C++ and Python find the same, notice every change, and keep nothing alive.

A file asks by a table where its model has many modules (`fusewright/emit/model_guard.py`).
"""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from fusewright.emit.guard_snapshot import LOOK_IN_PYTHON
from fusewright.emit.model_guard import MOST_IN_FORWARD
from tests.support.emitting import Emitted, built_once

SOURCE = f"""
    import torch
    from torch import nn


    class Scale(nn.Module):
        shift = 2

        def __init__(self):
            super().__init__()
            self.power = 2
            self.factors = [1.0, 2.0]
            self._offset = 1.0
            self.shape = (8, (2, 4))
            self.gain = nn.Parameter(torch.ones(8))

        @property
        def offset(self):
            return self._offset

        def squash(self, x):
            return torch.tanh(x)

        def forward(self, x):
            x = self.squash(x) ** self.power * self.factors[1] * self.gain
            return x + self.shape[1][0] + self.shift + self.offset


    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.act, self.scale = nn.LayerNorm(8), nn.ReLU(), Scale()
            self.again, self.nothing = self.act, None
            self.register_module("empty", None)
            self.rest = nn.Sequential(*[nn.Identity() for _ in range({MOST_IN_FORWARD})])

        def forward(self, x):
            return self.rest(self.again(self.scale(self.act(self.norm(x)))))


    def get_inputs():
        return [torch.randn(4, 8)]


    def get_init_inputs():
        return []
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emitted]:
    yield from built_once(SOURCE, tmp_path_factory)


class Ways:
    """A fresh module that ran once: both ways of asking, and whether the original ran."""

    def __init__(self, built: Emitted) -> None:
        self.emitted: Any = built.load()
        assert self.emitted._fusewright_state is self.emitted._fusewright_look, "before the build"
        in_python = dict(vars(self.emitted))  # as a file has it that has no kernels
        exec(LOOK_IN_PYTHON, in_python)
        self.x = torch.randn(4, 8)
        self.model = self.emitted.ModelNew()
        with torch.no_grad():
            self.model(self.x)
        self.ways = in_python["_fusewright_state"], self.emitted._fusewright_state
        assert type(self.ways[1]).__name__ == "builtin_function_or_method"
        self.emitted.ModelNew.reference_forward = lambda model, x: "the original"

    def state(self) -> Any:
        """The tensors that both find, or what they say."""
        python, compiled = self.ask()
        if isinstance(python, str):
            assert python == compiled
        else:
            assert same_objects(python, compiled)
        return python

    def ask(self) -> list[Any]:
        return [ask(self.model, self.emitted._fusewright_modules) for ask in self.ways]

    def looks(self) -> bool:
        """Whether something is not as it was seen: all is looked at again."""
        before = self.model.__dict__["_fusewright_looked"]
        self.ask()
        return self.model.__dict__["_fusewright_looked"] is not before

    def tensors(self) -> tuple[torch.Tensor, ...]:
        norm = self.model.norm
        return norm.weight, norm.bias, self.model.scale.gain

    def original(self) -> bool:
        with torch.no_grad():
            return isinstance(self.model(self.x), str)


@pytest.fixture
def ways(built: Emitted) -> Ways:
    return Ways(built)


def same_objects(one: Any, other: Any) -> bool:
    return isinstance(one, tuple) and [*map(id, one)] == [*map(id, other)]


@pytest.mark.compiler
def test_what_was_seen_is_not_looked_at_again(ways: Ways) -> None:
    assert same_objects(ways.state(), ways.tensors())
    assert not ways.looks()
    ways.model.norm.weight.data = torch.full((8,), 3.0)  # tensors are asked for otherwise
    ways.model.note = "of somebody else"
    assert not ways.looks()
    assert not ways.original()


def replaced(path: str, name: str, value: Any) -> Callable[[Any], None]:
    return lambda model: setattr(model.get_submodule(path), name, value)


def removed(path: str, name: str) -> Callable[[Any], None]:
    return lambda model: delattr(model.get_submodule(path), name)


def reordered(model: Any) -> None:
    for name in ("0", "1", "7"):
        model.rest._modules[name] = model.rest._modules.pop(name)


def hooked(model: Any) -> None:
    model.norm.register_forward_hook(lambda *given: None)


def pre_hooked(model: Any) -> None:
    model.rest[3].register_forward_pre_hook(lambda *given: None)


# What the state is not, and how.
CHANGES: dict[str, tuple[str, Callable[[Any], None]]] = {
    "a hook": ("norm._forward_hooks", hooked),
    "a pre-hook": ("rest.3._forward_pre_hooks", pre_hooked),
    "other hooks": ("norm._forward_hooks", replaced("norm", "_forward_hooks", {1: None})),
    "forward of an object": ("norm.forward", replaced("norm", "forward", torch.relu)),
    "a method of an object": ("scale.squash", replaced("scale", "squash", torch.relu)),
    "another class": ("norm.__class__", replaced("norm", "__class__", nn.GroupNorm)),
    "one more module": ("norm._modules", lambda m: m.norm.add_module("more", nn.ReLU())),
    "one more that is None": ("norm._modules", lambda m: m.norm.add_module("more", None)),
    "no longer None": ("empty", replaced("", "empty", nn.ReLU())),
    "another order": ("rest._modules", reordered),
    "a module that was shared": ("again", replaced("", "again", nn.ReLU())),
    "a module of another class": ("norm.__class__", replaced("", "norm", nn.Identity())),
    "a value": ("norm.eps", replaced("norm", "eps", 1)),
    "a value of another type": ("scale.power", replaced("scale", "power", 2.0)),
    "a value of the class": ("scale.shift", lambda m: setattr(type(m.scale), "shift", 3)),
    "what a property gives": ("scale._offset", replaced("scale", "_offset", 2.0)),
    "another property": ("scale.offset", lambda m: setattr(type(m.scale), "offset", 2.0)),
    "no value": ("norm.eps", removed("norm", "eps")),
    "a list in place": ("scale.factors", lambda m: m.scale.factors.__setitem__(1, 5.0)),
    "another list": ("scale.factors", replaced("scale", "factors", [1.0, 2])),
    "a tuple": ("scale.shape", replaced("scale", "shape", (8, (2.0, 4)))),
    "a weight without strides": (
        "norm.weight",
        replaced("norm", "weight", nn.Parameter(torch.ones(8).to_sparse())),
    ),
    "a nested weight": (
        "norm.weight",
        lambda m: m.norm._parameters.update(weight=torch.nested.nested_tensor([torch.ones(8)])),
    ),
    "no weight": ("norm.weight", replaced("norm", "weight", None)),
    "weight of an object": ("norm.weight", lambda m: m.norm.__dict__.update(weight="mine")),
    "no registry": ("norm.weight", replaced("norm", "_parameters", {})),
}


@pytest.mark.compiler
@pytest.mark.parametrize("case", CHANGES)
def test_changes_are_noticed(ways: Ways, case: str) -> None:
    why, change = CHANGES[case]
    assert same_objects(ways.state(), ways.tensors())
    assert not ways.original()
    change(ways.model)
    assert ways.state() == why
    assert ways.original()


@pytest.mark.compiler
def test_a_property_that_fails(ways: Ways) -> None:
    """What cannot be asked is not as it was, and the error is the model's."""

    def fails(module: Any) -> float:
        raise ValueError("not now")

    ways.state()
    type(ways.model.scale).offset = property(fails)
    for ask in ways.ways:
        with pytest.raises(ValueError, match="not now"):
            ask(ways.model, ways.emitted._fusewright_modules)


@pytest.mark.compiler
def test_a_class_that_decides_what_its_attributes_are(ways: Ways) -> None:
    """What lies in its dictionary is not what `forward` reads."""
    told: dict[str, float] = {}

    def look(module: Any, name: str) -> Any:
        return told[name] if name in told else object.__getattribute__(module, name)

    type(ways.model.scale).__getattribute__ = look
    ways.model = ways.emitted.ModelNew()
    assert same_objects(ways.state(), ways.tensors())
    told["power"] = 3.0
    assert ways.state() == "scale.power"


@pytest.mark.compiler
def test_hooks_of_all_modules(ways: Ways) -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda *given: None)
    try:
        assert ways.state() == "hooks of all modules"
    finally:
        handle.remove()
    assert not isinstance(ways.state(), str)


def plain_weight(norm: Any) -> None:
    del norm.weight
    norm.weight = torch.full((8,), 2.0)


NEW: dict[str, Callable[[Any], object]] = {
    "a weight": lambda m: setattr(m.norm, "weight", nn.Parameter(torch.ones(8))),
    "a plain weight": lambda m: plain_weight(m.norm),
    "a module": lambda m: setattr(m, "norm", nn.LayerNorm(8)),
    "registries": lambda m: setattr(m.norm, "_parameters", dict(m.norm._parameters)),
    "modules": lambda m: setattr(m, "_modules", dict(m._modules)),
    "equal values": lambda m: setattr(m.norm, "eps", float("1e-05")),
    "a dictionary": lambda m: setattr(m.norm, "__dict__", dict(m.norm.__dict__)),
}


@pytest.mark.compiler
@pytest.mark.parametrize("case", NEW)
def test_another_object_of_the_same_kind(ways: Ways, case: str) -> None:
    """What was seen is not what is there: it is found, and the kernels run."""
    ways.state()
    NEW[case](ways.model)
    assert ways.looks()
    assert same_objects(ways.state(), ways.tensors())
    assert not ways.original()


@pytest.mark.compiler
@pytest.mark.parametrize("kept", ["weight", "module"])
def test_nothing_is_kept_alive(ways: Ways, kept: str) -> None:
    """Neither what was replaced nor the model, without a collection of cycles."""
    gc.disable()
    try:
        ways.state()
        old = weakref.ref(ways.model.norm.weight)
        if kept == "weight":
            ways.model.norm.weight = nn.Parameter(torch.ones(8))
        else:
            ways.model.norm = nn.LayerNorm(8)
        assert old() is None
        ways.state()
        model = weakref.ref(ways.model)
        del ways.model
        assert model() is None
    finally:
        gc.enable()


@pytest.mark.compiler
def test_a_copy_looks_for_itself(ways: Ways) -> None:
    ways.state()
    for twin in (copy.deepcopy(ways.model), pickled(ways.model), copy.copy(ways.model)):
        ways.model = twin
        assert same_objects(ways.state(), ways.tensors())


def pickled(model: Any) -> Any:
    """A model as pickle would make it again; its class is of no module that can be imported."""
    twin: Any = object.__new__(type(model))
    twin.__dict__.update(pickle.loads(pickle.dumps(model.__dict__)))
    assert type(twin._fusewright_looked) is list
    return twin
