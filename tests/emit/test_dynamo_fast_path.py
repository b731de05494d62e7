"""Short ways of emitted files: C++ asks what Python asks where there are no kernels to build."""

from __future__ import annotations

import enum
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
from tests.support.emitting import Emitted, built_once, emit_text

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
    yield from built_once(SOURCE, tmp_path_factory)


class Ways:
    """A fresh module that ran once: both ways of asking, and how often the original ran."""

    def __init__(self, built: Emitted) -> None:
        self.emitted: Any = built.load()
        names = vars(self.emitted)
        nobody_knows, matches = self.asking()
        assert nobody_knows(4, ()) is False, "before the build"
        in_python = dict(names)  # as a file has it that has no kernels
        exec(GUARD_HIT_IN_PYTHON, in_python)
        in_python["_FUSEWRIGHT_GUARD_CACHE"] = names["_FUSEWRIGHT_GUARD_CACHE"]
        self.python = in_python["_fusewright_guard_hit"], matches
        self.x = torch.randn(4, 8)
        self.model = self.emitted.ModelNew()
        with torch.no_grad():
            self.model(self.x)
        self.compiled = self.asking()
        self.model.reference_forward = lambda x: "the original"

    def asking(self) -> tuple[Callable[..., bool], Callable[..., bool]]:
        return self.emitted._fusewright_guard_hit, self.emitted._fusewright_module_matches

    def seen(self, key: Any, x: Any, *state: Any) -> bool:
        """Tensors of the model are looked at by who gives them, or here."""
        python, compiled = (ways[0](key, (), x, *state) for ways in (self.python, self.compiled))
        known = {id(parameter) for parameter in self.model.parameters()}
        if {id(tensor) for tensor in state} <= known:
            assert self.compiled[0](key, state, x) is self.python[0](key, state, x) is python
        assert python is compiled
        return python

    def plain(self, module: Any, kind: type) -> bool:
        python, compiled = (ways[1](module, kind) for ways in (self.python, self.compiled))
        assert python is compiled
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


MODULES: dict[str, Callable[[Any], object]] = {
    "a hook": lambda m: m.register_forward_hook(lambda *given: None),
    "a pre-hook": lambda m: m.register_forward_pre_hook(lambda *given: None),
    "its own forward": lambda m: setattr(m, "forward", torch.relu),
    "another class": lambda m: setattr(m, "__class__", nn.GroupNorm),
}


@pytest.mark.compiler
@pytest.mark.parametrize("case", MODULES)
def test_modules(ways: Ways, case: str) -> None:
    norm = ways.model.norm
    assert ways.plain(norm, nn.LayerNorm)
    assert not ways.plain(None, nn.LayerNorm)
    assert not ways.original()
    MODULES[case](norm)
    assert not ways.plain(norm, nn.LayerNorm)
    assert ways.original()


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
