"""Where the guard refuses a call, that is said in words and counted, or an error if so asked.

In every situation: which calls ran kernels, which ran the original, and why.
"""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import nn

from fusewright.emit.model_guard import MOST_IN_FORWARD
from tests.support.emitting import FEW_AND_MANY, Emitted, built_few_and_many

FEW = """
    import torch
    from torch import nn

    scale = 1.5


    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.drop, self.slope = nn.LayerNorm(8), nn.Dropout(0.5), 2.0
            self.tied = nn.LayerNorm(8)
            self.tied.weight = self.norm.weight
            self.register_buffer("seen", torch.zeros(8))
            self.eval()

        def forward(self, x, pair, flag=False):
            x = self.tied(self.drop(torch.tanh(self.norm(x)))) * self.slope * scale
            self.seen.add_(1.0)
            return x + pair[0]


    def get_inputs():
        x = torch.randn(4, 8)
        return [x, [x * 2]]


    def get_init_inputs():
        return []
"""
MANY = FEW.replace(
    "self.eval()",
    f"self.rest = nn.Sequential(*[nn.Identity() for _ in range({MOST_IN_FORWARD})]).eval()\n"
    + " " * 12
    + "self.eval()",
)


@pytest.fixture(scope="module", params=FEW_AND_MANY)
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Emitted]:
    yield from built_few_and_many(FEW, MANY, request, tmp_path_factory)


@pytest.fixture
def emitted(built: Emitted) -> Any:
    return built.load()


EVAL_ONLY = ", and these kernels are for eval mode (fusewright optimize --mode)"


class Watched:
    """A model, and what its calls said."""

    def __init__(self, emitted: Any) -> None:
        self.emitted, self.model = emitted, emitted.ModelNew().requires_grad_(False)
        self.x, (self.y,) = emitted.get_inputs()

    def said(self, *inputs: Any, model: nn.Module | None = None, **named: Any) -> list[str]:
        """The warnings of one call."""
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            (self.model if model is None else model)(*(inputs or (self.x, [self.y])), **named)
        return [str(one.message) for one in found]

    def status(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.emitted.ModelNew.fusewright_status()
        return found


def outside(change: Callable[[Watched], object]) -> Callable[[Watched], list[str]]:
    """A change of the model or of the file, then a call as before."""

    def case(w: Watched) -> list[str]:
        change(w)
        return w.said()

    return case


def in_autocast(w: Watched) -> list[str]:
    with torch.autocast("cpu"):
        return w.said()


def with_hooks_of_all(w: Watched) -> list[str]:
    with nn.modules.module.register_module_forward_hook(lambda *_: None):
        return w.said()


def with_other_default(w: Watched) -> list[str]:
    torch.set_default_dtype(torch.float64)
    try:
        return w.said()
    finally:
        torch.set_default_dtype(torch.float32)


def of_a_derived_class(w: Watched) -> list[str]:
    class Mine(w.emitted.ModelNew):
        pass

    return w.said(model=Mine())


# What a call meets -> what is said of it; models of many modules say less of some.
CASES: dict[str, tuple[Callable[[Watched], list[str]], str, str]] = {
    "no row": (lambda w: w.said(w.x[:0], [w.y[:0]]), "the batch size is 0", ""),
    "a width": (
        lambda w: w.said(torch.randn(4, 16), [torch.randn(4, 16)[:, :8]]),
        "shape of x is (4, 16), not (8, 8)",
        "",
    ),
    "a type": (
        lambda w: w.said(w.x.double(), [w.y]),
        "dtype of x is torch.float64, not torch.float32",
        "",
    ),
    "gaps": (
        lambda w: w.said(torch.randn(4, 16)[:, ::2], [w.y]),
        "order of x in memory: strides (16, 2)",
        "",
    ),
    "no plain tensor": (
        lambda w: w.said(nn.Buffer(w.x).as_subclass(Own), [w.y]),
        "x is no plain tensor but a Own",
        "",
    ),
    "an input that needs a gradient": (
        lambda w: w.said(w.x.clone().requires_grad_(), [w.y]),
        "x needs a gradient, which kernels do not record",
        "",
    ),
    "a parameter that needs a gradient": (
        outside(lambda w: w.model.requires_grad_()),
        "tied.weight needs a gradient, which kernels do not record",
        "norm.weight needs a gradient, which kernels do not record",
    ),
    "an argument": (lambda w: w.said(w.x, [w.y], True), "argument flag is not False", ""),
    "another container": (lambda w: w.said(w.x, (w.y,)), "arguments are built otherwise", ""),
    "train mode": (
        outside(lambda w: w.model.train()),
        f"training flag of drop is True{EVAL_ONLY}",
        f"training flag of drop is True{EVAL_ONLY}",
    ),
    "train mode of one module": (
        outside(lambda w: w.model.drop.train()),
        f"training flag of drop is True{EVAL_ONLY}",
        f"training flag of drop is True{EVAL_ONLY}",
    ),
    "an attribute": (
        outside(lambda w: setattr(w.model, "slope", 3.0)),
        "attribute slope is not 2.0",
        "slope is not what it was",
    ),
    "a global": (
        outside(lambda w: setattr(w.emitted, "scale", 2.0)),
        "scale is not 1.5",
        "",
    ),
    "a hook": (
        outside(lambda w: w.model.norm.register_forward_hook(lambda *_: None)),
        "norm has another class, or hooks, or its own forward",
        "norm._forward_hooks is not what it was",
    ),
    "hooks of all modules": (
        with_hooks_of_all,
        "there are hooks of all modules",
        "hooks of all modules is not what it was",
    ),
    "another module": (
        outside(lambda w: w.model.add_module("more", nn.ReLU())),
        "the model has other submodules",
        "_modules is not what it was",
    ),
    "no longer tied": (
        outside(lambda w: setattr(w.model.tied, "weight", nn.Parameter(torch.ones(8), False))),
        "norm.weight is no longer tied to tied.weight",
        "tied.weight is not what it was",
    ),
    "autocast": (in_autocast, "autocast looks on", ""),
    "a derived class": (of_a_derived_class, "its class is not ModelNew itself", ""),
    "memory that is written": (
        outside(lambda w: setattr(w.model, "seen", w.model.norm.weight.data)),
        "a tensor that it changes shares memory with another one",
        "",
    ),
}


class Own(torch.Tensor):
    """A user's own kind of tensor."""


@pytest.mark.compiler
@pytest.mark.parametrize("case", CASES)
def test_a_refusal_is_said_in_words(emitted: Any, case: str) -> None:
    act, few, many = CASES[case]
    wanted = (many or few) if hasattr(emitted, "_fusewright_modules") else few
    w = Watched(emitted)
    with torch.enable_grad():
        assert w.said() == []
        assert w.status() == {"kernels": 1, "reference_forward": 0, "because": {}}
        try:
            said = act(w)
        except RuntimeError:  # eager's own, for a width that does not fit
            said = None
    status = w.status()
    assert (status["kernels"], status["reference_forward"]) == (1, 1)
    (what,) = status["because"]
    assert wanted.startswith(what)
    if said is not None:
        assert said == [f"ModelNew runs its original forward, not its kernels: {wanted}."]


@pytest.mark.compiler
def test_once_for_each_model_and_reason(emitted: Any) -> None:
    w = Watched(emitted)
    none, other = (w.x[:0], [w.y[:0]]), (w.x, [w.y.double()])
    with torch.no_grad():
        assert [len(w.said(*given)) for given in (none, none, other, none, other)] == [
            1,
            0,
            1,
            0,
            0,
        ]
        twin = copy.deepcopy(w.model)
        assert [len(w.said(*none, model=twin)) for _ in range(2)] == [1, 0]
        assert w.said() == []
    because = {"the batch size is 0": 5, "dtype of pair[0]": 2}
    assert w.status() == {"kernels": 1, "reference_forward": 7, "because": because}


@pytest.mark.compiler
def test_what_was_said_keeps_no_model(emitted: Any) -> None:
    w = Watched(emitted)
    for _ in range(3):
        w.said(w.x[:0], [w.y[:0]], model=emitted.ModelNew())
    gc.collect()
    assert len(emitted._FUSEWRIGHT_TOLD[0]) == 0


@pytest.mark.compiler
def test_strict_is_an_error(emitted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    w = Watched(emitted)
    monkeypatch.setenv("FUSEWRIGHT_STRICT", "1")
    with torch.no_grad():
        assert w.said() == []
        for _ in range(2):
            with pytest.raises(
                RuntimeError, match=r"ModelNew runs its original .*FUSEWRIGHT_STRICT"
            ):
                w.model(w.x[:0], [w.y[:0]])
        monkeypatch.setenv("FUSEWRIGHT_STRICT", "0")
        assert len(w.said(w.x[:0], [w.y[:0]])) == 1
    assert w.status()["kernels"] == 1


@pytest.mark.compiler
def test_pytorchs_compiler_is_told_once_and_sees_the_original(emitted: Any) -> None:
    w = Watched(emitted)
    with torch.no_grad():
        compiled = torch.compile(w.model, backend="eager", fullgraph=True)
        said = w.said(model=compiled)
        assert said == [
            "ModelNew runs its original forward, not its kernels: PyTorch's compiler traces it."
        ]
        assert w.said(model=compiled) == []
        assert w.status()["because"] == {"PyTorch's compiler traces it": 1}
        torch.testing.assert_close(compiled(w.x, [w.y]), w.model.reference_forward(w.x, [w.y]))
