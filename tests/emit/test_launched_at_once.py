"""Which emitted files launch their steps at once, and what such a file has for that."""

from __future__ import annotations

import ast
import copy
import ctypes
import gc
import pickle
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fusewright.emit.replay_support import REPLAYED
from fusewright.frontend.library_calls import RANDOM
from fusewright.fusion.replay import FEWEST_LAUNCHES
from fusewright.ir.library_call import RECORDED_CALLS
from fusewright.targets.compile_flags import cuda_flags
from fusewright.targets.target import TARGETS
from tests.support.emitting import Emitted, emit_text

CALL = "_fusewright_replayed("
SAID = "launched at once"
MODEL = """
    import torch
    import torch.nn as nn


    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range({depth}))
            self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range({depth}))
            self.drop = nn.Dropout({dropout})

        def forward(self, x{more}):
            {first}
            for conv, norm in zip(self.convs, self.norms):
                x = x + torch.relu(norm(conv(x)))
            {last}
            return {result}


    def get_inputs():
        return [torch.randn(4, 8, 12, 12){given}]


    def get_init_inputs():
        return []
"""
PLAIN = {
    "depth": "4", "dropout": "0.0", "more": "", "given": "", "first": "pass", "last": "pass",
    "result": "x",
}  # fmt: skip
# What differs from the model that is launched at once, and why it cannot be.
OTHERS: Mapping[str, Mapping[str, str]] = {
    "few steps": {"depth": "1"},
    "large results": {"depth": "2", "last": "x = x.repeat(64, 64, 1, 1)"},
    "random numbers": {"dropout": "0.5", "last": "x = self.drop(x)"},
    "random numbers of attention": {
        "last": "x = nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.25)"
    },
    "a routine that is not known": {"last": "x = torch.linalg.inv(x + 9 * torch.eye(12))"},
    "an argument is written": {"last": "pass", "first": "x.add_(1.0)"},
    "a tensor is made of a list": {"last": "x = x * torch.tensor([1.0, 2.0, 3.0] * 4)"},
    "a complex argument": {
        "more": ", z",
        "given": ", torch.randn(4, dtype=torch.complex64)",
        "last": "x = x + torch.view_as_real(z).sum()",
    },
}


def emitted(folder: Path, target: str = "sm_90a", **others: str) -> Emitted:
    return emit_text(MODEL.format(**{**PLAIN, **others}), folder, target)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Emitted:
    return emitted(tmp_path_factory.mktemp("plain"))


def test_many_steps_are(plain: Emitted) -> None:
    assert CALL in plain.text
    assert SAID in plain.text.split("import torch")[0]
    assert len(plain.made.plan.steps) >= FEWEST_LAUNCHES


def test_the_record_says_so(plain: Emitted) -> None:
    assert SAID in plain.made.record("model.py")


@pytest.mark.parametrize("why", OTHERS)
def test_others_are_not(why: str, tmp_path: Path) -> None:
    text = emitted(tmp_path, **OTHERS[why]).text
    assert CALL not in text
    assert SAID not in text
    assert "_fusewright_steps" not in text or "_fusewright_in_graph" in text


def test_attention_that_drops_nothing_is(tmp_path: Path) -> None:
    last = "x = nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.0)"
    assert CALL in emitted(tmp_path, last=last).text


def test_attention_that_drops_out_is_no_operator_of_pytorchs_compiler(tmp_path: Path) -> None:
    few = {"depth": "0", "target": "cpu"}
    attention = "x = torch.relu(nn.functional.scaled_dot_product_attention(x, x, x, dropout_p={}))"
    for share, traced in ((0.0, True), (0.25, False)):
        text = emitted(tmp_path, **few, last=attention.format(share)).text
        assert ("_fusewright_in_graph(" in text) is traced


def test_a_value_that_the_host_would_read_stays_on_the_gpu(tmp_path: Path) -> None:
    text = emitted(tmp_path, last="x = torch.clamp(x, max=x.mean().item())").text
    assert CALL in text
    assert ".item()" not in ast.unparse(steps_of(text))


def test_no_file_for_a_cpu_is(tmp_path: Path) -> None:
    assert CALL not in emitted(tmp_path, "cpu").text


def test_what_is_written_is_known_by_its_place(plain: Emitted) -> None:
    """In train mode these are the buffers of the norms, each once."""
    (call,) = [
        node
        for node in ast.walk(ast.parse(plain.text))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == CALL[:-1]
    ]
    written, unpacked = ast.literal_eval(call.args[5]), steps_of(plain.text).body[1]
    assert isinstance(unpacked, ast.Assign)
    names = [name.strip() for name in ast.unparse(unpacked.targets[0]).strip("[]").split(",")]
    changed = {names[k] for k in written}
    kinds = ("running_mean", "running_var", "num_batches_tracked")
    assert changed == {f"norms_{k}_{kind}" for k in range(4) for kind in kinds}


def steps_of(text: str) -> ast.FunctionDef:
    return next(
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name == "fusewright_steps"
    )


def test_steps_name_all_that_they_read(plain: Emitted) -> None:
    """So that a graph is told apart by where each of them lies."""
    steps = steps_of(plain.text)
    named = [n for line in steps.body for n in ast.walk(line) if isinstance(n, ast.Name)]
    read = {n.id for n in named}
    made = {n.id for n in named if isinstance(n.ctx, ast.Store)}
    given = {a.arg for a in [*steps.args.args, *([steps.args.vararg] if steps.args.vararg else [])]}
    support = {name for name in read if "fusewright" in name.lower()}
    assert read <= made | given | support | {"torch"}


def test_no_call_that_draws_random_numbers_is_recorded() -> None:
    assert not [name for name in RECORDED_CALLS if any(word in name for word in RANDOM)]


def test_recorded_calls_are_pytorchs() -> None:
    for name in RECORDED_CALLS:
        assert hasattr(torch.ops.aten, name.removeprefix("aten.")), name


class Recorded:
    """In place of a graph: what it was asked to record."""

    def __init__(self, *given: Any) -> None:
        if given == ("fails",):
            raise RuntimeError("CUDA does not record one of its steps\nand more")
        self.given = given


@pytest.fixture
def support() -> dict[str, Any]:
    scope: dict[str, Any] = {"torch": torch}
    exec(REPLAYED, scope)
    scope["_FusewrightGraph"] = Recorded
    return scope


def calls(support: Mapping[str, Any], graphs: Any, key: object, times: int) -> list[bool]:
    """Whether calls of a kind have a graph, one after the other."""
    return [
        (graphs.get(key) is not None and type(graphs[key]) is not int)
        or support["_fusewright_graph"]("ModelNew", graphs, key, (key,)) is not None
        for _ in range(times)
    ]


def test_a_kind_of_call_that_comes_back_has_a_graph(support: dict[str, Any]) -> None:
    graphs = support["_FusewrightGraphs"]()
    assert calls(support, graphs, "one", 4) == [False, False, True, True]
    assert graphs["one"].given == ("one",)


def test_calls_that_are_always_of_another_kind_are_not_recorded(support: dict[str, Any]) -> None:
    graphs = support["_FusewrightGraphs"]()
    recorded = sum(any(calls(support, graphs, key % 40, 1)) for key in range(4000))
    kept = sum(type(graph) is Recorded for graph in graphs.values())
    assert kept == 8
    assert graphs.dropped < 8, "each one that is dropped doubles the calls before the next"
    assert recorded > 0
    for key in range(1000):  # and where there is no end of kinds, their counts are forgotten
        calls(support, graphs, ("new", key), 1)
    assert len(graphs) <= 65


def test_what_is_known_of_a_graph_goes_when_one_is_dropped(support: dict[str, Any]) -> None:
    """It may be of that one, whose memory it would keep."""
    graphs = support["_FusewrightGraphs"]()
    for key in range(8):
        calls(support, graphs, key, 3)
    graphs["last"] = "known"
    calls(support, graphs, 7, 3)
    assert "last" in graphs
    calls(support, graphs, 8, 3)
    assert "last" not in graphs


def test_what_cannot_be_recorded_is_said_once(support: dict[str, Any]) -> None:
    graphs = support["_FusewrightGraphs"]()
    assert calls(support, graphs, "fails", 3) == [False] * 3
    assert graphs["fails"] is None
    said = support["_fusewright_launches"]("ModelNew")
    assert said == {"at once": 0, "one by one, because": ["CUDA does not record one of its steps"]}


def test_the_environment_says_that_nothing_is(
    support: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEWRIGHT_GRAPHS", "0")
    assert not any(calls(support, support["_FusewrightGraphs"](), "one", 5))


@pytest.mark.parametrize("how", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_has_no_graphs(support: dict[str, Any], how: Callable[[Any], Any]) -> None:
    graphs = support["_FusewrightGraphs"](one=Recorded())
    assert how(graphs) == {}
    assert type(how(graphs)) is dict


class Machine:
    """In place of CUDA, of PyTorch's allocator and of the C++ of a file: says what it is asked."""

    def __init__(self, scope: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[str] = []
        self.starts, self.graph, self.pools = 0, 77, 0
        library = SimpleNamespace(
            fusewright_record=lambda _: self.says("record", self.starts),
            fusewright_end=Function(lambda _: self.says("end", self.graph)),
            fusewright_stream=Function(lambda _: 5),
            fusewright_forget=lambda graph: self.says(f"forget {graph.value}"),
        )
        monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
        events = {"wait_event": lambda _: None, "record_event": lambda: None}
        stream = SimpleNamespace(cuda_stream=3, **events)
        side = SimpleNamespace(cuda_stream=5, **events)
        cuda = SimpleNamespace(
            current_stream=lambda _: stream,
            ExternalStream=lambda address, device: side,
            graph_pool_handle=self.pool,
            stream=lambda _: nullcontext(),
            memory_reserved=lambda _: 0,
            get_device_properties=lambda _: SimpleNamespace(total_memory=1 << 36),
        )
        inner = SimpleNamespace(
            _cuda_beginAllocateCurrentThreadToPool=lambda _, pool: self.says(f"into {pool}"),
            _cuda_endAllocateToPool=lambda _, pool: self.says(f"out of {pool}"),
            _cuda_releasePool=lambda _, pool: self.says(f"release {pool}"),
        )
        plain = {name: getattr(torch, name) for name in ("Tensor", "inference_mode", "no_grad")}
        scope["torch"] = SimpleNamespace(
            cuda=cuda, _C=inner, ones=lambda *_, device: 1, mm=lambda *_: self.says("mm"), **plain
        )
        scope["_fusewright_library"] = lambda: "kernels.so"
        self.record = scope["_FusewrightGraph"]

    def says(self, what: str, answer: int = 0) -> int:
        self.said.append(what)
        return answer

    def pool(self) -> str:
        self.pools += 1
        return f"pool {self.pools}"

    def told(self) -> list[str]:
        said, self.said = self.said, []
        return said


class Function:
    """One of a library, which has a type of results."""

    restype: object = None

    def __init__(self, run: Callable[[Any], int]) -> None:
        self.run = run

    def __call__(self, given: Any) -> int:
        return self.run(given)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    scope: dict[str, Any] = {"torch": torch}
    exec(REPLAYED, scope)
    return Machine(scope, monkeypatch)


CUBLAS = ["into pool 1", "mm", "out of pool 1"]  # what it has for the stream is never released


def recorded(machine: Machine, steps: Callable[..., Any]) -> Any:
    return machine.record(steps, (4, 0), (torch.ones(3),), (torch.ones(2),))


def test_a_recording(machine: Machine) -> None:
    graph = recorded(machine, lambda batch, device, x, weight: x + 1)
    assert machine.told() == [*CUBLAS, "into pool 2", "record", "end", "out of pool 2"]
    second = recorded(machine, lambda batch, device, x, weight: [x + 1, x + 2])
    assert machine.told() == [*CUBLAS, "into pool 2", "record", "end", "out of pool 2"]
    assert (len(graph.given), len(second.given)) == (1, 2)
    del graph, second
    gc.collect()
    assert sorted(machine.told()) == ["forget 77"] * 2 + ["release pool 2"] * 2
    recorded(machine, lambda batch, device, x, weight: x)
    assert "into pool 3" in machine.told(), "PyTorch has forgotten a pool without graphs"


def failing(*_: object) -> None:
    raise torch.OutOfMemoryError("no memory")


@pytest.mark.parametrize("what", ["steps fail", "it does not start", "CUDA does not record a step"])
def test_recordings_that_fail(machine: Machine, what: str) -> None:
    """They end, and leave nothing behind."""
    machine.starts = 900 * (what == "it does not start")
    machine.graph = 77 * (what == "steps fail")
    steps = failing if what == "steps fail" else lambda batch, device, x, weight: x
    with pytest.raises(RuntimeError):
        recorded(machine, steps)
    gc.collect()
    forgotten = ["forget 77"] * (what == "steps fail")
    said = machine.told()
    assert said[:7] == [*CUBLAS, "into pool 2", "record", "end", "out of pool 2"]
    assert sorted(said[7:]) == [*forgotten, "release pool 2"]


@pytest.mark.compiler
@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_its_bindings_compile(target: str, tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc")
    text = emitted(tmp_path, target).text
    parts = [
        re.search(rf'_FUSEWRIGHT_{name} = r"""\n(.*?)"""', text, re.DOTALL)
        for name in ("DEVICE_LIBRARY", "CUDA", "BINDINGS")
    ]
    source = tmp_path / "whole.cu"
    source.write_text("".join(part[1] for part in parts if part), encoding="utf-8")
    flags = cuda_flags(TARGETS[target].arch)
    done = subprocess.run(
        [nvcc, *flags, "-c", str(source), "-o", str(tmp_path / "whole.o")],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
