"""PyTorch's compiler sees emitted models as one operator that runs their kernels, without a graph
break; and the original, visibly, where a condition does not hold."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor.utils import run_and_get_code
from torch.overrides import TorchFunctionMode

import fusewright
from tests.support.emitting import Emitted
from tests.support.traced_subjects import MODELS, Subject, same, subjects, written

pytestmark = pytest.mark.compiler

KERNELS = (1, [])
TRACED = "PyTorch's compiler traces it, and "


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Emitted]]:
    with written(tmp_path_factory.mktemp("traced")) as file:
        yield file


@pytest.fixture
def subject(files: Callable[[str], Emitted]) -> Iterator[Callable[[str], Subject]]:
    with subjects(files) as made:
        yield made


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("what", MODELS)
def test_compiled(what: str, backend: str, subject: Callable[[str], Subject]) -> None:
    s = subject(what)
    compiled = s.compiled(backend)
    for _ in range(2):
        assert s.right(compiled) == KERNELS


@pytest.mark.parametrize("what", MODELS)
def test_exported(what: str, subject: Callable[[str], Subject]) -> None:
    s = subject(what)
    program = torch.export.export(s.model, tuple(s.inputs))
    called = [n for n in program.graph.nodes if n.op == "call_function"]
    names = [str(n.target) for n in called]
    assert sum("fusewright" in name for name in names) == 1, names
    assert s.right(program.module()) == KERNELS


# ---- what else it may be -------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
def test_exported_with_a_free_size(strict: bool, subject: Callable[[str], Subject]) -> None:
    s = subject("perceptron")
    free = {0: torch.export.Dim("rows", min=2, max=64)}
    program = torch.export.export(s.model, tuple(s.inputs), dynamic_shapes=(free,), strict=strict)
    assert "layer_norm" not in program.graph_module.code, "the original is gone"
    for rows in (3, 40):
        assert s.right(program.module(), torch.randn(rows, 16)) == KERNELS


def test_a_saved_program_finds_the_operator_of_the_file(
    subject: Callable[[str], Subject], tmp_path: Path
) -> None:
    s = subject("many modules")
    torch.export.save(torch.export.export(s.model, tuple(s.inputs)), tmp_path / "program.pt2")
    torch.save((s.inputs, s.model.reference_forward(*s.inputs)), tmp_path / "example.pt")
    done = subprocess.run(
        [sys.executable, "-c", _LOADED, s.emitted.__file__],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


_LOADED = """
import importlib.util, sys, torch
spec = importlib.util.spec_from_file_location("emitted", sys.argv[1])
emitted = importlib.util.module_from_spec(spec)
spec.loader.exec_module(emitted)
assert "torch._dynamo" not in sys.modules, "it takes seconds to import"
program, (inputs, wanted) = torch.export.load("program.pt2"), torch.load("example.pt")
torch.testing.assert_close(program.module()(*inputs), wanted, rtol=1e-4, atol=1e-5)
assert emitted.ModelNew.fusewright_status()["kernels"] == 1
"""


def test_inductor_has_the_operator_alone(subject: Callable[[str], Subject]) -> None:
    s = subject("perceptron")
    found: list[str] = []
    compiled = s.compiled("inductor")

    def call() -> None:
        result, codes = run_and_get_code(compiled, *s.inputs)
        same(result, s.model.reference_forward(*s.inputs))
        found.extend(codes)

    assert s.ran(call) == KERNELS
    (code,) = found
    assert "torch.ops.fusewright.ModelNew_" in code
    assert not re.search(r"addmm|layer_norm|cpp_fused", code), "the original is gone"


def test_free_sizes_stay_free(subject: Callable[[str], Subject]) -> None:
    s = subject("perceptron")
    compiled, graphs = s.compiled(), torch._dynamo.utils.counters["stats"]
    graphs.clear()
    for rows in (6, 9, 11, 40):
        assert s.right(compiled, torch.randn(rows, 16)) == KERNELS
    assert graphs["unique_graphs"] == 2, "the second is for any"
    marked = torch.randn(7, 16)
    torch._dynamo.mark_dynamic(marked, 0)
    compiled = s.compiled()
    graphs.clear()
    assert s.right(compiled, marked) == s.right(compiled, torch.randn(12, 16)) == KERNELS
    assert graphs["unique_graphs"] == 1
    assert s.right(compiled, torch.randn(1, 16)) == KERNELS


def hook(m: Any) -> Callable[[], None]:
    return m.a.register_forward_hook(lambda *given: given[2] * 2).remove  # type: ignore[no-any-return]


def hook_of_all(_: Any) -> Callable[[], None]:
    def twice(module: nn.Module, _: object, result: Any) -> Any:
        return result * 2 if isinstance(module, nn.Linear) else None

    return nn.modules.module.register_module_forward_hook(twice).remove


def value(m: Any) -> Callable[[], None]:
    m.norm.eps = 0.1
    return lambda: setattr(m.norm, "eps", 1e-5)


def other_class(m: Any) -> Callable[[], None]:
    class Twice(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 2

    old, m.a = m.a, Twice(16, 32).requires_grad_(False)
    return lambda: setattr(m, "a", old)


def own_forward(m: Any) -> Callable[[], None]:
    m.a.forward = lambda x: x.repeat(1, 2)
    return lambda: delattr(m.a, "forward")


def order(m: Any) -> Callable[[], None]:
    old = m.a.weight
    m.a.weight = nn.Parameter(torch.randn(16, 32).t(), requires_grad=False)
    return lambda: setattr(m.a, "weight", old)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (hook, "a has another class, or hooks, or its own forward"),
        (hook_of_all, "there are hooks of all modules"),
        (value, "attribute norm.eps is not 1e-05"),
        (other_class, "a has another class, or hooks, or its own forward"),
        (own_forward, "a has another class, or hooks, or its own forward"),
        (order, "order of a.weight in memory"),
    ],
)
def test_a_change_of_the_model_is_seen(
    change: Callable[[Any], Callable[[], None]], why: str, subject: Callable[[str], Subject]
) -> None:
    s = subject("perceptron")
    compiled = s.compiled()
    assert s.right(compiled) == KERNELS
    back = change(s.model)
    assert s.right(compiled) == (0, [TRACED + why])
    back()
    assert s.right(compiled) == KERNELS


def test_a_change_of_a_large_model_is_seen(subject: Callable[[str], Subject]) -> None:
    s = subject("many modules")
    compiled, block = s.compiled(), s.model.blocks[3]
    assert s.right(compiled) == KERNELS
    block[0].eps = 0.1
    assert s.right(compiled) == (0, [f"{TRACED}blocks.3.0.eps is not what it was"])
    block[0].eps = 1e-5
    assert s.right(compiled) == KERNELS
    seen = block[1].register_forward_hook(lambda *given: given[2] * 2)
    assert s.right(compiled) == (0, [f"{TRACED}blocks.3.1._forward_hooks is not what it was"])
    seen.remove()
    assert s.right(compiled) == KERNELS


def test_values_are_the_call_s(subject: Callable[[str], Subject]) -> None:
    s = subject("perceptron")
    compiled = s.compiled()
    assert s.right(compiled) == KERNELS
    s.model.a.weight.mul_(3)
    assert s.right(compiled) == KERNELS
    s.model.a.weight = nn.Parameter(torch.randn(32, 16), requires_grad=False)
    assert s.right(compiled) == KERNELS
    s.model.load_state_dict({k: v + 1 for k, v in s.model.state_dict().items()})
    assert s.right(compiled) == KERNELS


def test_instances_share_a_graph(subject: Callable[[str], Subject]) -> None:
    s = subject("perceptron")
    torch._dynamo.reset()
    call = torch.compile(lambda model, x: model(x), backend="aot_eager", fullgraph=True)
    again, other = copy.deepcopy(s.model), s.emitted.ModelNew().requires_grad_(False)
    again.a.weight.mul_(2)
    for model in (s.model, again, other, s.model):
        same(call(model, *s.inputs), model.reference_forward(*s.inputs))
    assert s.status() == {"kernels": 4, "reference_forward": 0, "because": {}}


def test_inside_a_larger_function(subject: Callable[[str], Subject]) -> None:
    s = subject("perceptron")
    torch._dynamo.reset()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(s.model(s.model.b(s.model.a(x * 2)).repeat(1, 2)))

    (x,) = s.inputs
    inner = s.model.b(s.model.a(x * 2)).repeat(1, 2)
    wanted = torch.relu(s.model.reference_forward(inner))
    assert s.ran(lambda: same(call(x), wanted)) == KERNELS


ARGUMENTS: Mapping[str, tuple[torch.Tensor, str]] = {
    "cut": (torch.randn(6, 20)[:, :16], "shape of x, or its order in memory"),
    "transposed": (torch.randn(16, 6).t(), "shape of x, or its order in memory"),
    "of more dimensions": (torch.randn(2, 3, 16), "shape of x, or its order in memory"),
    "empty": (torch.randn(0, 16), "arguments are others, or built otherwise"),
}


@pytest.mark.parametrize("what", ARGUMENTS)
def test_other_arguments(what: str, subject: Callable[[str], Subject]) -> None:
    s, (x, why) = subject("perceptron"), ARGUMENTS[what]
    assert s.right(s.compiled(), x) == (0, [TRACED + why])


def test_another_value_of_an_argument(subject: Callable[[str], Subject]) -> None:
    s = subject("attention")
    compiled = s.compiled()
    assert s.right(compiled) == KERNELS
    x, mask, _ = s.inputs
    why = "arguments are others, or built otherwise"
    assert s.right(compiled, x, mask, 2.0) == (0, [TRACED + why])
    assert s.right(compiled) == KERNELS


def in_autocast(call: Callable[..., Any], x: torch.Tensor) -> Any:
    with torch.autocast("cpu"):
        return call(x)


class Watching(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*args, **(kwargs or {}))


def in_a_mode(call: Callable[..., Any], x: torch.Tensor) -> Any:
    with Watching():
        return call(x)


def in_vmap(call: Callable[..., Any], x: torch.Tensor) -> Any:
    return torch.vmap(lambda row: call(row))(x[:, None])


def with_derivative(call: Callable[..., Any], x: torch.Tensor) -> Any:
    with torch.enable_grad():
        return torch.func.grad(lambda x: call(x).sum())(x)


@pytest.mark.parametrize(
    ("around", "why"),
    [
        (in_autocast, "autocast looks on"),
        (in_a_mode, "another mode looks on"),
        (in_vmap, "a function transform looks on"),
        (with_derivative, "a function transform looks on"),
    ],
)
def test_where_somebody_looks_on(
    around: Callable[..., Any], why: str, subject: Callable[[str], Subject]
) -> None:
    s = subject("perceptron")
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: around(s.model, x), backend="aot_eager", fullgraph=True)
    wanted = around(s.model.reference_forward, *s.inputs)
    assert s.ran(lambda: same(compiled(*s.inputs), wanted)) == (0, [TRACED + why])


def test_other_classes_of_tensors(subject: Callable[[str], Subject]) -> None:
    class Other(torch.Tensor):
        pass

    s = subject("perceptron")
    (x,), compiled = s.inputs, s.compiled("eager")
    wanted = s.model.reference_forward(x)
    other = x.as_subclass(Other)
    found = s.ran(lambda: same(compiled(other).as_subclass(torch.Tensor), wanted))
    assert found == (0, [f"{TRACED}x is no plain tensor"])
    assert s.right(compiled, nn.Parameter(x, requires_grad=False)) == KERNELS


def test_a_default_device_does_not_matter(subject: Callable[[str], Subject]) -> None:
    s = subject("perceptron")
    torch.set_default_device("cpu")
    try:
        assert s.right(s.compiled()) == KERNELS
    finally:
        torch.set_default_device(None)


def test_gradients_are_the_original_s(subject: Callable[[str], Subject]) -> None:
    s = subject("perceptron")
    with torch.enable_grad():
        s.model.requires_grad_(True)
        compiled, found = s.compiled(), list[torch.Tensor]()
        for call in (compiled, s.model.reference_forward):
            s.model.zero_grad()
            call(*s.inputs).square().sum().backward()
            found.append(s.model.a.weight.grad.clone())
        torch.testing.assert_close(*found)
        assert [*s.status()["because"]] == [f"{TRACED}a.weight needs a gradient"]
        with torch.no_grad():
            assert s.right(compiled) == KERNELS
        program = torch.export.export(s.model, tuple(s.inputs))
        assert not any("fusewright" in str(n.target) for n in program.graph.nodes)


def test_the_operator_takes_what_was_traced(subject: Callable[[str], Subject]) -> None:
    s = subject("perceptron")
    module = torch.export.export(s.model, tuple(s.inputs)).module()
    (x,) = s.inputs
    with torch.enable_grad(), pytest.raises(RuntimeError, match="records no gradients"):
        module(x.clone().requires_grad_())
    module.get_parameter("a.weight").data = torch.randn(16, 16)
    with pytest.raises(RuntimeError, match="are not what they were"):
        module(x)


def test_two_copies_of_a_file(subject: Callable[[str], Subject]) -> None:
    first, second = subject("perceptron"), subject("perceptron")
    assert second.right(second.compiled()) == KERNELS
    same(first.compiled()(*first.inputs), first.model.reference_forward(*first.inputs))
    name = second.emitted._FUSEWRIGHT_OPERATORS["ModelNew"].operator
    assert first.emitted._FUSEWRIGHT_OPERATORS["ModelNew"].operator == name


def test_the_original_can_be_an_error(
    subject: Callable[[str], Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEWRIGHT_STRICT", "1")
    s = subject("perceptron")
    assert s.right(s.compiled()) == KERNELS
    s.model.norm.eps = 0.1
    with pytest.raises(Exception, match="FUSEWRIGHT_STRICT is set"):
        s.compiled()(*s.inputs)


class Block(nn.Module):
    """A model with two modes that only computes in both."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(self.norm(self.a(x)), -1)
        return y * 2 if self.training else torch.tanh(y) + 1


class Stack(nn.Module):
    """What is taken in parts."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
            if x.sum() > 1e9:
                x = x * 2
        return x


@torch.no_grad()
def test_both_modes_and_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    x = torch.randn(6, 16)
    block = Block().requires_grad_(False)
    faster = fusewright.optimize(block, x)
    torch._dynamo.reset()
    compiled = torch.compile(faster, backend="aot_eager", fullgraph=True)
    for training in (True, False, True):
        block.train(training)
        faster.train(training)
        same(compiled(x), block(x))
    assert faster.fusewright.status()["FusedBlock"]["kernels"] == 3
    stack = Stack().requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        faster = fusewright.optimize(stack, x)
    torch._dynamo.reset()
    same(torch.compile(faster, backend="aot_eager")(x), stack(x))
    (status,) = faster.fusewright.status().values()
    assert status == {"kernels": 3, "reference_forward": 0, "because": {}}
