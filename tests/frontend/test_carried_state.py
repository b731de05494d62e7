"""Attributes that `forward` replaces: read, used and written back as eager does, by kernels."""

from __future__ import annotations

import copy
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusewright.common.containers import flatten
from fusewright.errors import CaptureFailed
from fusewright.frontend.capture import capture
from fusewright.frontend.forward_trace import plain_attributes
from tests.support.emitting import emit_text

HEAD = """
import torch
from torch import nn

class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(6, 6)
        self.register_buffer("h", torch.zeros(4, 6), persistent=False)
        self.register_buffer("other", torch.ones(6))

    def forward(self, x):
        self.h = torch.tanh(self.w(x) + self.h * self.other)
        return self.h

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(6, 6)
"""
X = "\n\ndef get_inputs():\n    return [torch.randn(4, 6)]\n"
# What the constructor adds -> forward: all that stays behind a call, and what is returned.
MODELS = {
    "a plain tensor": (
        "self.h = torch.zeros(4, 6)",
        "self.h = torch.tanh(self.w(x) + self.h)\nreturn self.h * 2",
    ),
    "the very tensor that is returned": (
        "self.h = torch.zeros(4, 6)",
        "self.h = torch.tanh(self.w(x) + self.h)\nreturn self.h",
    ),
    "a view of what is returned": (
        "self.h = torch.zeros(4, 6)",
        "y = torch.tanh(self.w(x) + self.h)\nself.h = y.view(2, 2, 6).view(4, 6)\nreturn y",
    ),
    "a registered buffer": (
        "self.register_buffer('h', torch.zeros(4, 6))\nself.register_buffer('z', torch.zeros(6))",
        "self.h = torch.tanh(self.w(x) + self.h + self.z)\nreturn self.h * 2",
    ),
    "None at first": (
        "self.h = None",
        "h = torch.zeros_like(x) if self.h is None else self.h\n"
        "self.h = torch.tanh(self.w(x) + h)\nreturn self.h * 2",
    ),
    "a buffer that is None at first": (
        "self.register_buffer('h', None)",
        "h = torch.zeros_like(x) if self.h is None else self.h\n"
        "self.h = torch.tanh(self.w(x) + h)\nreturn self.h * 2",
    ),
    "not there at first": (
        "pass",
        "h = getattr(self, 'h', None)\nself.h = torch.tanh(self.w(x) + (0 if h is None else h))\n"
        "return self.h * 2",
    ),
    "a pair": (
        "self.h = (torch.zeros(4, 6), torch.ones(4, 6))",
        "h, c = self.h\nc = torch.sigmoid(h + x) * c + torch.tanh(self.w(x))\n"
        "self.h = (torch.tanh(c), c)\nreturn torch.tanh(c) * 2",
    ),
    "a dict with a number": (
        "self.h = {'a': torch.zeros(4, 6), 'n': 3}",
        "a = torch.tanh(self.w(x) + self.h['a'] * self.h['n'])\nself.h = {'a': a, 'n': 3}\n"
        "return a * 2",
    ),
    "of another size than the input": (
        "self.h = torch.zeros(6)",
        "self.h = self.h * 0.9 + self.w(x).mean(0) * 0.1\nreturn torch.tanh(x - self.h)",
    ),
    "the input itself": (
        "self.h = torch.zeros(4, 6)",
        "y = torch.tanh(self.w(x) - self.h)\nself.h = x\nreturn y",
    ),
    "two that change places": (
        "self.h = torch.zeros(4, 6)\nself.g = torch.ones(4, 6)",
        "self.h, self.g = torch.tanh(self.w(x) + self.g), self.h\nreturn self.h + self.g",
    ),
    "written to, then replaced": (
        "self.h = torch.zeros(4, 6)",
        "self.h.mul_(0.5).add_(x)\nself.h = torch.tanh(self.w(x) + self.h)\nreturn self.h * 2",
    ),
    "an integer tensor": (
        "self.h = torch.zeros((), dtype=torch.int64)",
        "self.h = self.h + 1\nreturn torch.tanh(self.w(x)) / self.h",
    ),
    "of a submodule": ("self.cell = Cell()", "return torch.tanh(self.cell(x) * 2)"),
    "of a submodule, from outside": (
        "self.cell = Cell()",
        "y = self.w(self.cell.h + x)\nself.cell.h = torch.tanh(y)\nreturn torch.tanh(y * 2)",
    ),
}


def problem(constructor: str, forward: str) -> str:
    given = textwrap.indent(constructor, "        ")
    body = textwrap.indent(forward, "        ")
    return f"{HEAD}{given}\n\n    def forward(self, x):\n{body}{X}"


def tensors(module: nn.Module) -> dict[str, Any]:
    """All that a call may have left on a module."""
    return {
        f"{path}.{name}": value
        for path, child in module.named_modules()
        for name, value in (*vars(child).items(), *child._buffers.items())
        if name in ("h", "g")
    }


def same(ours: Any, theirs: Any) -> None:
    (our_tree, our_tensors), (their_tree, their_tensors) = flatten(ours), flatten(theirs)
    assert our_tree == their_tree
    for a, b in zip(our_tensors, their_tensors, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_it_is_read_used_and_written_back_by_kernels(name: str, tmp_path: Path) -> None:
    emitted = emit_text(problem(*MODELS[name]), tmp_path)
    assert emitted.made.kernels
    space = emitted.load()
    model = space.ModelNew().eval()
    theirs = copy.deepcopy(model)
    registered = [[*child._buffers] for child in model.modules()]
    kept: list[tuple[Tensor, Tensor]] = []
    with torch.no_grad():
        for number in range(4):
            x = torch.randn(4, 6)
            mine = x.clone()
            if number:  # the first call may find another kind of value
                space.ModelNew.reference_forward = None
            before = tensors(model)
            ours = model(mine)
            kept.append((ours, ours.clone()))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(space.ModelNew, "forward", forward_of(emitted.text))
                wanted = theirs(x)
            same(ours, wanted)
            after, wanted_after = tensors(model), tensors(theirs)
            same(after, wanted_after)
            for key, value in after.items():
                assert value is not before.get(key, model), "eager binds a new object"
                other = wanted_after[key]
                assert is_in(value, ours) is is_in(other, wanted)
                assert is_in(value, mine) is is_in(other, x)
    assert all(torch.equal(now, then) for now, then in kept), "a later call changed an output"
    assert [[*child._buffers] for child in model.modules()] == registered


def is_in(value: Any, other: Tensor) -> bool:
    """Whether two tensors have one memory."""
    return isinstance(value, Tensor) and value.data_ptr() == other.data_ptr()


def forward_of(text: str) -> Any:
    """The model's own forward."""
    space: dict[str, Any] = {}
    exec(text.replace("reference_forward(self", "own_forward(self"), space)
    return space["ModelNew"].own_forward


@pytest.mark.slow
@pytest.mark.parametrize(
    "state",
    [None, torch.zeros(1, 6), torch.zeros(4, 6).double(), torch.zeros(6, 4).t(), (1, 2), "text"],
)
def test_another_state_runs_the_original(state: Any, tmp_path: Path) -> None:
    space = emit_text(problem(*MODELS["None at first"]), tmp_path).load()
    model, x, calls = space.ModelNew(), torch.randn(4, 6), list[int]()
    original = space.ModelNew.reference_forward

    def noted(self: nn.Module, given: Tensor) -> Tensor:
        calls.append(1)
        result: Tensor = original(self, given)
        return result

    space.ModelNew.reference_forward = noted
    with torch.no_grad():
        for _ in range(2):
            model(x)
        assert calls == [1]
        model.h = state
        try:
            model(x)
        except (TypeError, RuntimeError):  # as eager says
            assert not isinstance(state, Tensor)
    assert calls == [1, 1]


@pytest.mark.compiler
def test_a_free_batch_carries_its_state(tmp_path: Path) -> None:
    space = emit_text(problem(*MODELS["None at first"]), tmp_path).load()
    model = space.ModelNew()
    with torch.no_grad():
        model(torch.randn(7, 6))
        space.ModelNew.reference_forward = None
        x, h = torch.randn(7, 6), model.h
        torch.testing.assert_close(model(x), torch.tanh(model.w(x) + h) * 2)


# Values that kernels could not take on -> the name that the error says.
UNSETTLED = {
    "grows": ("self.h = torch.zeros(4, 6)", "self.h = torch.cat([self.h, x])\nreturn self.h.sum()"),
    "alternates": (
        "self.h = None",
        "y = self.w(x) if self.h is None else self.h\nself.h = y if self.h is None else None\n"
        "return y",
    ),
}


@pytest.mark.parametrize("name", UNSETTLED)
def test_a_state_that_never_settles_is_refused_by_its_line(name: str) -> None:
    constructor, forward = UNSETTLED[name]
    space: dict[str, Any] = {}
    source = problem(constructor, forward)
    exec(compile(source, "the_file.py", "exec"), space)
    (line,) = (k for k, t in enumerate(source.splitlines(), 1) if "self.h = " in t and k > 22)
    model = space["Model"]()
    before = model.h
    with pytest.raises(CaptureFailed, match=rf"^the_file.py:{line}: Model.forward replaces h by a"):
        capture(model, [torch.randn(4, 6)])
    assert model.h is before


@pytest.mark.slow
def test_what_a_capture_replaces_is_put_back() -> None:
    for constructor, forward in MODELS.values():
        space: dict[str, Any] = {}
        exec(problem(constructor, forward), space)
        model = space["Model"]()
        before = [(held(c), list(c._buffers.items())) for c in model.modules()]
        capture(model, [torch.randn(4, 6)])
        for child, (attributes, buffers) in zip(model.modules(), before, strict=True):
            assert held(child) == attributes
            now = list(child._buffers.items())
            assert [(n, id(b)) for n, b in now] == [(n, id(b)) for n, b in buffers]


def held(child: nn.Module) -> dict[str, object]:
    """Plain attributes, and the very tensors in them."""
    found = {name: flatten(value) for name, value in plain_attributes(child).items()}
    return {name: (tree, [*map(id, tensors)]) for name, (tree, tensors) in found.items()}
