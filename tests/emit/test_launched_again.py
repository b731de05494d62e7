"""A call that is like an earlier one in everything is launched at once by C++ alone, and no other.

CUDA is stood in for: a copy is one of the processor, and a graph is a function of this file.
"""

from __future__ import annotations

import ast
import copy
import ctypes
import gc
import shutil
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fusewright.emit.runtime import ANSWERS, calls_text
from fusewright.emit.runtime_snippets import Snippet
from tests.support.emitting import emit_text

pytestmark = pytest.mark.compiler

MODEL = """
    import torch
    import torch.nn as nn


    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
            self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(3))

        def forward(self, x{more}):
            for conv, norm in zip(self.convs, self.norms):
                x = x + torch.relu(norm(conv(x)))
            return x


    def get_inputs():
        return [torch.randn(4, 8, 12, 12)]


    def get_init_inputs():
        return []
"""
# What the text calls of CUDA. A graph is the address of a function, which is called.
CUDA = """
#include <cstring>
using cudaStream_t = void*;
using cudaGraph_t = void*;
using cudaGraphExec_t = void*;
enum { cudaSuccess, cudaStreamNonBlocking, cudaStreamCaptureModeThreadLocal };
enum { cudaMemcpyDeviceToDevice };
int cudaGetDevice(int*) { return 0; }
int cudaSetDevice(int) { return 0; }
int cudaStreamCreateWithFlags(cudaStream_t*, int) { return 0; }
int cudaStreamBeginCapture(cudaStream_t, int) { return 0; }
int cudaStreamEndCapture(cudaStream_t, cudaGraph_t*) { return 0; }
int cudaGraphInstantiate(cudaGraphExec_t*, cudaGraph_t, int) { return 0; }
int cudaGraphDestroy(cudaGraph_t) { return 0; }
int cudaGraphExecDestroy(cudaGraphExec_t) { return 0; }
int cudaGetLastError() { return 0; }
int cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  return ((int (*)(void*))graph)(stream);
}
int cudaMemcpyAsync(void* to, const void* from, long bytes, int, cudaStream_t) {
  std::memcpy(to, from, bytes);
  return 0;
}
"""
STREAM = 7


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return emit_text(MODEL.format(more=""), tmp_path_factory.mktemp("emitted"), "sm_90a").text


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.PyDLL:
    if not shutil.which("g++"):
        pytest.skip("no g++ here")
    folder = tmp_path_factory.mktemp("library")
    source, built = folder / "again.cpp", folder / "again.so"
    source.write_text(CUDA + calls_text([], [Snippet.AGAIN]), encoding="utf-8")
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    subprocess.run(["g++", *flags, str(source), "-o", str(built)], check=True)
    return ctypes.PyDLL(str(built))


def written(text: str) -> tuple[int, ...]:
    """The places of what the model changes."""
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    (call,) = (c for c in calls if getattr(c.func, "id", "") == Snippet.REPLAYED)
    return tuple(ast.literal_eval(call.args[5]))


class Recorded:
    """A model one of whose calls is launched at once, and what is launched for it: twice its input,
    and once more in each buffer that the model changes."""

    def __init__(self, text: str, library: ctypes.PyDLL, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stream = STREAM
        for name, says in {
            "getDevice": lambda: 0,
            "isCurrentStreamCapturing": lambda: False,
            "getCurrentRawStream": lambda _: self.stream,
        }.items():
            monkeypatch.setattr(torch._C, f"_cuda_{name}", says, raising=False)
        self.file: dict[str, Any] = {"__name__": "emitted"}
        exec(text, self.file)
        self.written = written(text)
        self.file["_fusewright_empty_strided_cuda"] = torch._C._dynamo.guards._empty_strided_cpu  # type: ignore[attr-defined]
        bind = library.fusewright_function
        bind.restype = ctypes.py_object
        exec("def known():\n" + ANSWERS[Snippet.AGAIN].known + "\n    return known", self.file)
        self.again = bind(0, ctypes.py_object(self.file["known"]()))
        self.model: nn.Module = self.file["ModelNew"]()
        self.x = torch.randn(4, 8, 12, 12)
        self.launched, self.error = 0, 0
        self.expects()

    def expects(self) -> None:
        """The next call is to be launched at once, if it is like one with these tensors."""
        state = self.file["_fusewright_look"](self.model, self.table)
        self.state = [*map(weakref.ref, state)]
        graph = self.graph = self.file["_FusewrightGraph"].__new__(self.file["_FusewrightGraph"])
        graph.inputs, graph.made = [torch.empty_like(self.x)], torch.empty_like(self.x)
        graph.lock, graph.alike = self.file["_fusewright_lock"](), None
        graph.taken = [(one.data_ptr(), one.nbytes) for one in graph.inputs]
        like = tuple(self.x.shape), self.x.stride(), self.x.dtype, 0
        graph.given = [(graph.made.data_ptr(), graph.made.nbytes, like)]
        self.function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self.launch)
        graph.graph = ctypes.cast(self.function, ctypes.c_void_p).value
        graphs = self.model.__dict__["_fusewright_graphs"] = self.file["_FusewrightGraphs"]()
        known = graph.known(0, STREAM, (self.x,), state, self.written)
        graphs["last"] = self.model.__dict__["_fusewright_looked"][0], *known

    @property
    def table(self) -> Any:
        return self.file["_fusewright_modules"]

    def launch(self, stream: int) -> int:
        assert stream == STREAM
        self.launched += 1
        torch.mul(self.graph.inputs[0], 2, out=self.graph.made)
        return self.error

    def ask(self, *given: Any) -> Any:
        return self.again(self.model, self.table, *(given or (self.x,)))


@pytest.fixture
def recorded(text: str, library: ctypes.PyDLL, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return Recorded(text, library, monkeypatch)


@pytest.fixture(autouse=True)
def _nothing_needs_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def test_it_is(recorded: Recorded) -> None:
    for times in range(1, 4):
        x = recorded.x = torch.randn(4, 8, 12, 12)  # wherever it lies
        versions = [one()._version for one in recorded.state]  # type: ignore[union-attr]
        made = recorded.ask()
        assert type(made) is tuple
        torch.testing.assert_close(made[0], 2 * x, rtol=0, atol=0)
        assert made[0].data_ptr() != recorded.graph.made.data_ptr(), "a result is one's own"
        assert recorded.launched == times
        after = [one()._version for one in recorded.state]  # type: ignore[union-attr]
        more = {k for k, (old, new) in enumerate(zip(versions, after, strict=True)) if new > old}
        assert more == {*recorded.written}, "autograd is told what was written"


def norm(recorded: Recorded) -> Any:
    return recorded.model.norms[1]  # type: ignore[index]


def conv(recorded: Recorded) -> Any:
    return recorded.model.convs[1]  # type: ignore[index]


def cut(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with gaps."""
    return tensor.new_zeros(*tensor.shape[:-1], 2 * tensor.shape[-1])[..., ::2].copy_(tensor)


def tracked(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_()


class Marked(torch.Tensor):
    """A tensor that is not plain."""


# What is different -> what makes it so.
DIFFERENT: dict[str, Callable[[Recorded], object]] = {
    "new weights": lambda r: r.model.load_state_dict(
        copy.deepcopy(r.model.state_dict()), assign=True
    ),
    "another parameter": lambda r: setattr(conv(r), "weight", nn.Parameter(conv(r).weight.clone())),
    "a parameter's data": lambda r: setattr(conv(r).weight, "data", conv(r).weight.data.clone()),
    "a parameter's memory": lambda r: conv(r).weight.set_(conv(r).weight.clone()),
    "a parameter's gradient": lambda r: conv(r).weight.requires_grad_(False),
    "a parameter's strides": lambda r: setattr(conv(r).weight, "data", cut(conv(r).weight.data)),
    "another buffer": lambda r: setattr(norm(r), "running_var", norm(r).running_var.clone()),
    "another submodule": lambda r: r.model.norms.__setitem__(1, nn.BatchNorm2d(8)),  # type: ignore
    "one submodule less": lambda r: r.model.norms.__delitem__(2),  # type: ignore[union-attr, operator]
    "one submodule more": lambda r: r.model.add_module("more", nn.ReLU()),
    "another class": lambda r: setattr(norm(r), "__class__", nn.BatchNorm1d),
    "another class of the model": lambda r: setattr(
        r.model, "__class__", type("Other", (type(r.model),), {})
    ),
    "a hook": lambda r: conv(r).register_forward_hook(lambda *_: None),
    "a forward of its own": lambda r: setattr(conv(r), "forward", lambda x: x),
    "the mode": lambda r: r.model.eval(),
    "the mode of a submodule": lambda r: norm(r).eval(),
    "an attribute": lambda r: setattr(conv(r), "stride", (2, 2)),
    "a number": lambda r: setattr(norm(r), "eps", 1e-3),
    "no snapshot": lambda r: r.model.__dict__.pop("_fusewright_looked"),
    "no graphs": lambda r: r.model.__dict__.pop("_fusewright_graphs"),
    "another kind of call": lambda r: r.model.__dict__["_fusewright_graphs"].pop("last"),
    "the stream": lambda r: setattr(r, "stream", 8),
    "who uses the graph": lambda r: r.graph.lock.acquire(),
    "the batch": lambda r: setattr(r, "x", r.x[:3]),
    "the dtype of an argument": lambda r: setattr(r, "x", r.x.half()),
    "the strides of an argument": lambda r: setattr(r, "x", cut(r.x)),
    "the order of an argument": lambda r: setattr(
        r, "x", r.x.to(memory_format=torch.channels_last)
    ),
    "the device of an argument": lambda r: setattr(r, "x", r.x.to("meta")),
    "an argument's gradient": lambda r: setattr(r, "x", tracked(r.x)),
    "a sparse argument": lambda r: setattr(r, "x", r.x.to_sparse()),
    "a nested argument": lambda r: setattr(r, "x", torch.nested.nested_tensor([*r.x])),
    "a number for an argument": lambda r: setattr(r, "x", 3),
    "a subclass of tensors": lambda r: setattr(r, "x", r.x.as_subclass(Marked)),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_where_something_is_different(recorded: Recorded, what: str) -> None:
    assert recorded.ask()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        DIFFERENT[what](recorded)
    assert not recorded.ask()
    assert recorded.launched == 1


def test_an_argument_in_memory_that_is_written(recorded: Recorded) -> None:
    count = recorded.x.numel()
    whole = torch.zeros(count + 8)
    norm(recorded).running_mean.set_(whole[count:])
    recorded.expects()
    for begin, apart in ((0, True), (1, False), (0, True)):
        recorded.x = whole[begin : begin + count].view_as(recorded.x)
        assert bool(recorded.ask()) is apart


@contextmanager
def put(module: Any, name: str, value: object) -> Iterator[None]:
    before = getattr(module, f"get_{name}", None) or getattr(module, f"is_{name}")
    before = before()
    getattr(module, f"set_{name}")(value)
    try:
        yield
    finally:
        getattr(module, f"set_{name}")(before)


class Function(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*args, **(kwargs or {}))


class Dispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*args, **(kwargs or {}))


@contextmanager
def hooked() -> Iterator[None]:
    hook = register_module_forward_hook(lambda *_: None)
    yield
    hook.remove()


@contextmanager
def full_precision() -> Iterator[None]:
    before = torch._C._get_fp32_precision_getter("cuda", "conv")
    torch._C._set_fp32_precision_setter("cuda", "conv", "ieee")
    yield
    torch._C._set_fp32_precision_setter("cuda", "conv", before)


@contextmanager
def put_flag(owner: object, name: str, value: object) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, value)
        yield


@contextmanager
def put_attention() -> Iterator[None]:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        yield


# Where a call is another one -> how one gets there.
WITHIN: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "gradients": torch.enable_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: put(torch, "autocast_enabled", True),
    "another default dtype": lambda: put(torch, "default_dtype", torch.float64),
    "full precision": full_precision,
    "deterministic algorithms": lambda: put_flag(torch.backends.cudnn, "deterministic", True),
    "cuDNN that tries routines": lambda: put_flag(torch.backends.cudnn, "benchmark", True),
    "another attention": lambda: put_attention(),
    "no fast path": lambda: put(torch.backends.mha, "fastpath_enabled", False),
    "a mode for functions": Function,
    "a mode for operators": Dispatch,
    "derivatives forward": torch.autograd.forward_ad.dual_level,
    "hooks of all modules": hooked,
}


@pytest.mark.parametrize("where", WITHIN)
def test_where_others_have_a_say(recorded: Recorded, where: str) -> None:
    assert recorded.ask()
    with WITHIN[where]():
        assert not recorded.ask()
    assert recorded.ask()
    assert recorded.launched == 2


def test_a_launch_that_fails(recorded: Recorded) -> None:
    recorded.error = 9
    with pytest.raises(RuntimeError, match=r"A CUDA graph failed with CUDA error 9\."):
        recorded.ask()
    recorded.error = 0
    assert recorded.ask(), "and nobody is kept out"


def test_a_graph_lives_while_a_call_may_use_it(recorded: Recorded) -> None:
    """Others may drop it from the model's; it is kept with what is known of it."""
    graph, graphs = weakref.ref(recorded.graph), recorded.model.__dict__["_fusewright_graphs"]
    del recorded.graph
    gc.collect()
    assert graph() is not None
    graphs.clear()
    gc.collect()
    assert graph() is None


def test_no_memory_for_results(recorded: Recorded, library: ctypes.PyDLL) -> None:
    def fails(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    recorded.file["_fusewright_empty_strided_cuda"] = fails
    again = library.fusewright_function(0, ctypes.py_object(recorded.file["known"]()))
    with pytest.raises(torch.OutOfMemoryError):
        again(recorded.model, recorded.table, recorded.x)
    assert recorded.launched == 0
    assert recorded.ask()


def test_many_calls_leave_nothing_behind(recorded: Recorded) -> None:
    watched = [None, False, recorded.x, recorded.table, torch.is_grad_enabled]
    recorded.ask()
    before = [sys.getrefcount(one) for one in watched]
    for _ in range(1000):
        recorded.ask()
        recorded.again(recorded.model, recorded.table, recorded.x[:2])
    after = [sys.getrefcount(one) for one in watched]
    assert all(abs(new - old) < 100 for old, new in zip(before, after, strict=True)), (
        before,
        after,
    )


def test_only_a_kind_of_call_in_a_row_is_known(recorded: Recorded) -> None:
    """What others ask for in turn would be known anew at every call."""

    class Graph:
        known_times = 0

        def __init__(self, *_: object) -> None:
            self.lock = recorded.file["_fusewright_lock"]()

        def run(self, inputs: object, stream: object) -> str:
            return "made"

        def known(self, *_: object) -> tuple[str]:
            Graph.known_times += 1
            return ("known",)

    recorded.file["_FusewrightGraph"] = Graph
    recorded.model.__dict__.pop("_fusewright_graphs")
    state = tuple(one() for one in recorded.state)

    def called(kind: Callable[..., str]) -> str:
        replayed = recorded.file["_fusewright_replayed"]
        made: str = replayed(recorded.model, kind, (4, 0), (recorded.x,), state)
        return made

    def one(*_: object) -> str:
        return "one"

    def other(*_: object) -> str:
        return "other"

    kinds = [one] * 3 + [other] * 3 + [one, other] * 5
    made = [called(kind) for kind in kinds]
    assert made == ["one"] * 2 + ["made"] + ["other"] * 2 + ["made"] * 11
    assert Graph.known_times == 0
    assert [called(one), called(one)] == ["made"] * 2
    assert Graph.known_times == 1
    graphs = recorded.model.__dict__["_fusewright_graphs"]
    assert graphs["last"] == (recorded.model.__dict__["_fusewright_looked"][0], "known")
