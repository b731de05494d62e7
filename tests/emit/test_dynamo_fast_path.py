"""Short ways of emitted files: C++ asks what Python asks where there are no kernels to build."""

from __future__ import annotations

import copy
import enum
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from fusewright.emit.dynamo_fast_path import GUARD_HIT_IN_PYTHON
from fusewright.emit.guard_snapshot import LOOK_IN_PYTHON
from tests.support.emitting import Emitted, emit_text

SOURCE = """
    import torch
    from torch import nn


    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.act = nn.LayerNorm(8), nn.ReLU()

        def forward(self, x):
            return self.act(self.norm(x))


    def get_inputs():
        return [torch.randn(4, 8)]


    def get_init_inputs():
        return []
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emitted]:
    folder = tmp_path_factory.mktemp("quick")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_EXTENSIONS_DIR", str(folder / "kernels"))
        yield emit_text(SOURCE, folder)


class Ways:
    """A fresh module that ran once: both ways of asking, and how often the original ran."""

    def __init__(self, built: Emitted) -> None:
        self.emitted: Any = built.load()
        names = vars(self.emitted)
        nobody_knows, _ = self.asking()
        assert nobody_knows(4) is False, "before the build"
        in_python = dict(names)  # as a file has it that has no kernels
        exec(GUARD_HIT_IN_PYTHON + LOOK_IN_PYTHON, in_python)
        in_python["_FUSEWRIGHT_GUARD_CACHE"] = names["_FUSEWRIGHT_GUARD_CACHE"]
        self.python = in_python["_fusewright_guard_hit"], in_python["_fusewright_state"]
        self.x = torch.randn(4, 8)
        self.model = self.emitted.ModelNew()
        with torch.no_grad():
            self.model(self.x)
        self.compiled = self.asking()
        self.emitted.ModelNew.reference_forward = lambda model, x: "the original"

    def asking(self) -> tuple[Callable[..., bool], Callable[..., Any]]:
        return self.emitted._fusewright_guard_hit, self.emitted._fusewright_state

    def seen(self, *given: Any) -> bool:
        python, compiled = (ways[0](*given) for ways in (self.python, self.compiled))
        assert python is compiled
        return python

    def state(self) -> Any:
        """The tensors that both find, or what they say."""
        table = self.emitted._fusewright_modules
        python, compiled = (ways[1](self.model, table) for ways in (self.python, self.compiled))
        assert type(python) is type(compiled)
        same = python == compiled if isinstance(python, str) else same_objects(python, compiled)
        assert same
        return python

    def original(self) -> bool:
        with torch.no_grad():
            return isinstance(self.model(self.x), str)


@pytest.fixture
def ways(built: Emitted) -> Ways:
    return Ways(built)


@pytest.mark.compiler
def test_the_ways_are_two(ways: Ways) -> None:
    """And modules that share a library remember for themselves."""
    assert all(type(f).__name__ == "function" for f in ways.python)
    assert all(type(f).__name__ == "builtin_function_or_method" for f in ways.compiled)
    cache = ways.emitted._FUSEWRIGHT_GUARD_CACHE[False]
    other = cache.copy()
    cache.clear()
    assert not ways.original(), "each condition is asked again"
    assert cache.keys() == other.keys()


@pytest.mark.compiler
def test_two_files_of_one_library(built: Emitted) -> None:
    first, second = Ways(built), Ways(built)
    second.emitted._FUSEWRIGHT_GUARD_CACHE[False].clear()
    tensors = (first.x, first.model.norm.weight, first.model.norm.bias)
    with torch.no_grad():
        assert first.seen(4, *tensors)
        assert not second.seen(4, *tensors)


@pytest.mark.compiler
@pytest.mark.filterwarnings("ignore")
def test_tensors(ways: Ways) -> None:
    weight, bias, x = ways.model.norm.weight, ways.model.norm.bias, ways.x
    nested = torch.nested.nested_tensor([torch.ones(8), torch.ones(8)])
    others: list[Any] = [
        *(None, "x", 3, x.double(), x.t(), x[:3], nested, x.to_sparse(), x.to_sparse_csr()),
        *(x.to_mkldnn(), nn.Parameter(x), torch.empty(4, 8, device="meta"), x.clone()[:, :7]),
    ]
    with torch.no_grad():
        assert ways.seen(4, x, weight, bias)
        assert ways.seen(4, x.clone(), nn.Parameter(weight.clone()), bias)
        assert not ways.seen(3, x, weight, bias)
        assert not ways.seen("4", x, weight, bias)
        for other in others:
            assert not ways.seen(4, other, weight, bias)
            assert not ways.seen(4, x, weight, other)
    assert not ways.seen(4, x, weight, bias), "gradients"


class Watcher(TorchFunctionMode):
    pass


LOOKING_ON: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "nobody": nullcontext,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "derivatives forward": forward_ad.dual_level,
    "fake tensors": lambda: FakeTensorMode(allow_non_fake_inputs=True),
    "a mode": Watcher,
    "a default device": lambda: torch.device("cpu"),
    "inference": torch.inference_mode,
}


@pytest.mark.compiler
@pytest.mark.parametrize("case", LOOKING_ON)
def test_who_looks_on(ways: Ways, case: str) -> None:
    with torch.no_grad(), LOOKING_ON[case]():
        found = ways.seen(4, ways.x, ways.model.norm.weight, ways.model.norm.bias)
    assert found is (case in ("nobody", "a default device"))


@pytest.mark.compiler
def test_transforms_and_tracing_look_on(ways: Ways) -> None:
    found = []

    def ask(x: torch.Tensor) -> torch.Tensor:
        found.append(ways.seen(4, ways.x, ways.model.norm.weight, ways.model.norm.bias))
        return x

    with torch.no_grad():
        torch.vmap(ask)(ways.x)
        torch.jit.trace(ask, ways.x, check_trace=False)
        ask(ways.x)
    assert found[:2] == [False, False]
    assert found[-1] is True


MODULES: dict[str, tuple[str, Callable[[Any], object]]] = {
    "a hook": ("norm has no hooks", lambda m: m.register_forward_hook(lambda *given: None)),
    "a pre-hook": ("norm has no hooks", lambda m: m.register_forward_pre_hook(lambda *given: None)),
    "other hooks": ("norm has no hooks", lambda m: setattr(m, "_forward_hooks", {1: None})),
    "its own forward": (
        "norm.forward is as its class says",
        lambda m: setattr(m, "forward", torch.relu),
    ),
    "another class": (
        "norm is a <class 'torch.nn.modules.normalization.LayerNorm'>",
        lambda m: setattr(m, "__class__", nn.GroupNorm),
    ),
    "a module in it": ("norm holds []", lambda m: m.add_module("more", nn.ReLU())),
    "no module in it": ("norm holds []", lambda m: m.add_module("more", None)),
    "another value": ("norm.eps is 1e-05", lambda m: setattr(m, "eps", 1)),
    "no value": ("norm.eps is 1e-05", lambda m: delattr(m, "eps")),
    "a value of the class": (
        "norm.eps is 1e-05",
        lambda m: (setattr(m, "__class__", Lax), delattr(m, "eps")),
    ),
    "no weight": ("norm.weight is a tensor", lambda m: setattr(m, "weight", None)),
    "weight of the object": (
        "norm.weight is a tensor",
        lambda m: m.__dict__.update(weight="mine"),
    ),
}


class Lax(nn.LayerNorm):
    eps = 0.5


@pytest.mark.compiler
@pytest.mark.parametrize("case", MODULES)
def test_modules(ways: Ways, case: str) -> None:
    why, change = MODULES[case]
    assert same_objects(ways.state(), (ways.model.norm.weight, ways.model.norm.bias))
    assert not ways.original()
    change(ways.model.norm)
    found = ways.state()
    assert found == why or (case == "a value of the class" and "norm is a" in found)
    assert ways.original()


NEW: dict[str, Callable[[Any], object]] = {
    "a weight": lambda m: setattr(m.norm, "weight", nn.Parameter(torch.ones(8))),
    "a plain weight": lambda m: (
        delattr(m.norm, "weight"),
        setattr(m.norm, "weight", torch.full((8,), 2.0)),
    ),
    "a module": lambda m: setattr(m, "norm", nn.LayerNorm(8)),
    "registries": lambda m: setattr(m.norm, "_parameters", dict(m.norm._parameters)),
    "modules": lambda m: setattr(m, "_modules", dict(m._modules)),
    "equal values": lambda m: setattr(m.norm, "eps", float("1e-05")),
    "a dictionary": lambda m: setattr(m.norm, "__dict__", dict(m.norm.__dict__)),
    "an attribute": lambda m: setattr(m.norm, "note", [1]),
}


@pytest.mark.compiler
@pytest.mark.parametrize("case", NEW)
def test_another_object_of_the_same_kind(ways: Ways, case: str) -> None:
    """What was seen is not what is there: it is found, and the kernels run."""
    ways.state()
    NEW[case](ways.model)
    assert same_objects(ways.state(), (ways.model.norm.weight, ways.model.norm.bias))
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
        assert same_objects(ways.state(), (twin.norm.weight, twin.norm.bias))


def pickled(model: Any) -> Any:
    """A model as pickle would make it again; its class is of no module that can be imported."""
    twin = type(model).__new__(type(model))
    twin.__dict__.update(pickle.loads(pickle.dumps({**model.__dict__, "_fusewright_looked": []})))
    return twin


def same_objects(one: Any, other: Any) -> bool:
    return isinstance(one, tuple) and [*map(id, one)] == [*map(id, other)]


@pytest.mark.compiler
def test_a_hook_that_left(ways: Ways) -> None:
    handle = ways.model.act.register_forward_hook(lambda *given: None)
    assert ways.original()
    handle.remove()
    assert not ways.original()


class Eight(enum.IntEnum):
    EIGHT = 8


@pytest.mark.compiler
@pytest.mark.parametrize(
    "shape", [(8.0,), [8], torch.Size([8]), (4, 2), (), 8, (Eight.EIGHT,), (True,), None, ("8",)]
)
def test_another_normalized_shape(ways: Ways, shape: Any) -> None:
    ways.model.norm.normalized_shape = shape
    assert ways.original()
    ways.model.norm.normalized_shape = (8,)
    assert not ways.original()


@pytest.mark.compiler
@pytest.mark.parametrize("eps", [1, "1e-05", 1e-6, torch.tensor(1e-5)])
def test_another_eps(ways: Ways, eps: Any) -> None:
    ways.model.norm.eps = eps
    assert ways.original()
    ways.model.norm.eps = 1e-5
    assert not ways.original()


@pytest.mark.compiler
@pytest.mark.parametrize("rows", [2, 4, 126, 127, 128, 129, 1000])
def test_threads_where_there_is_work(ways: Ways, rows: int) -> None:
    """Rows are shared by threads from some size on, and come out the same."""
    assert "enough(threads, batch * 64 + 64)" in ways.emitted._FUSEWRIGHT_CPP
    x = torch.randn(rows, 8)
    with torch.no_grad():
        torch.testing.assert_close(ways.model(x), torch.relu(nn.LayerNorm(8)(x)))


@pytest.mark.compiler
def test_no_tensors_at_all(tmp_path: Path) -> None:
    """Where no tensor can have been seen, who looks on is asked all the same."""
    emitted = emit_text(
        """
        import torch
        from torch import nn


        class Model(nn.Module):
            def forward(self):
                return torch.arange(8.0) * 2


        def get_inputs():
            return []


        def get_init_inputs():
            return []
        """,
        tmp_path,
    )
    assert "_fusewright_eager()" in emitted.text.partition("class ModelNew")[2]
    torch.testing.assert_close(emitted.load().ModelNew()(), torch.arange(8.0) * 2)
