"""The statements of the emitted forward: packing, aliasing, updates in order, memory given back."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.support.emitting import emit_text

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
TAIL = "\n\ndef get_init_inputs():\n    return []\n"


@pytest.fixture(scope="module", autouse=True)
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path_factory.mktemp("kernels")))
        yield


def problem(
    init: str, forward: str, inputs: str = "[torch.randn(6, 16), torch.randn(6, 16)]"
) -> str:
    """A problem file from the lines of the constructor and of forward(x, y)."""
    lines = ["super().__init__()", *init.splitlines()]
    constructor = "".join(f"        {line}\n" for line in lines)
    body = "".join(f"        {line}\n" for line in forward.splitlines())
    model = f"class Model(nn.Module):\n    def __init__(self):\n{constructor}\n"
    model += f"    def forward(self, x, y):\n{body}"
    return f"{HEAD}{model}\n\ndef get_inputs():\n    return {inputs}\n{TAIL}"


RUNNING = 'self.register_buffer("a", torch.zeros(16))\nself.register_buffer("b", torch.ones(16))'
# what -> the lines of the constructor and of forward
MODELS: dict[str, tuple[str, str]] = {
    "integers without dimensions": (
        "self.register_buffer('n', torch.tensor(2))",
        "self.n += 1\none = torch.ones(2, dtype=torch.int64)[0]\n"
        "return x * self.n.clamp(max=3), torch.full((), 3), self.n * one, 5 - self.n",
    ),
    "a class that PyTorch makes": (
        "self.l = nn.utils.parametrizations.weight_norm(nn.Linear(16, 8))",
        "return torch.relu(self.l(x)) * 2",
    ),
    "tuple": ("", "z = x * y\nreturn z + 1, z.sum(1)"),
    "list": ("", "return [torch.relu(x), x - y]"),
    "dictionary": ("", 'return {"sum": x + y, "more": (x * 2,)}'),
    "an argument as it is": ("", "return x, x + y"),
    "a view of an argument": ("", "return x.view(2, -1), (x * y).t()"),
    "the same tensor twice": ("", "z = x + y\nreturn z, z"),
    "a parameter": ("self.w = nn.Parameter(torch.randn(16))", "return self.w, x * self.w"),
    "a buffer updated": (RUNNING, "self.a.mul_(0.9).add_(x.mean(0), alpha=0.1)\nreturn x - self.a"),
    "buffers swapped": (
        RUNNING,
        (
            "a = self.a.clone()\nself.a.copy_(self.b + 1)\n"
            "self.b.copy_(a * 2)\nreturn x + self.a - self.b"
        ),
    ),
    "buffers exchanged": (
        RUNNING,
        ("a = self.a.clone()\nself.a.copy_(self.b)\nself.b.copy_(a)\nreturn x + 1"),
    ),
    "old value read late": (
        RUNNING,
        (
            "old = self.a * 1.0\nself.a.copy_(x.mean(0))\n"
            "z = torch.softmax(x * old, 1)\nreturn z.sum(0) * old"
        ),
    ),
    "an argument changed": ("", "x.mul_(2)\nreturn x + y"),
    "batch norm in train mode": ("self.n = nn.BatchNorm1d(16)", "return torch.relu(self.n(x)) * y"),
    "a counter": (
        'self.register_buffer("n", torch.zeros((), dtype=torch.long))',
        "self.n.add_(1)\nreturn x * y",
    ),
    "counters": (
        'self.register_buffer("n", torch.zeros((), dtype=torch.long))\n'
        'self.register_buffer("m", torch.ones((), dtype=torch.long))',
        "self.n.add_(1)\nself.m += 1\nreturn x * y",
    ),
    "shared parameter": (
        ("self.f = nn.Linear(16, 16)\nself.g = nn.Linear(16, 16)\nself.g.weight = self.f.weight"),
        "return torch.tanh(self.g(torch.relu(self.f(x)))) + y",
    ),
    "shared module": (
        (
            "self.f = nn.ReLU()\nself.g = self.f\n"
            "self.s = nn.Sequential(self.f, nn.Linear(16, 16), self.g)"
        ),
        "return self.s(x) * y",
    ),
    "a chain of library calls": (
        "self.f = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))",
        "for f in self.f:\n    x = torch.relu(f(x)) + x\nreturn x * y",
    ),
    "a constant of its own": ("", "return x * torch.tensor([1.0, 2.0] * 8) + y"),
    "no batch": ("", "return (x + y).sum() * 2"),
    "names that collide": (
        (
            "self.batch = nn.Linear(16, 16)\n"
            "self.run = nn.Parameter(torch.randn(16))\nself.threads = 2.0"
        ),
        "torch_ = torch.relu(self.batch(x))\nreturn torch_ * self.run * self.threads + y",
    ),
}


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, dict):
        return tensors(list(value.values()))
    return [value] if isinstance(value, torch.Tensor) else [t for v in value for t in tensors(v)]


def aliases(found: list[torch.Tensor], given: list[torch.Tensor]) -> list[list[bool]]:
    places = [t.untyped_storage().data_ptr() for t in (*given, *found)]
    return [[a == b for b in places] for a in places[len(given) :]]


@pytest.mark.compiler
@pytest.mark.parametrize("case", MODELS)
def test_same_as_eager(case: str, tmp_path: Any) -> None:
    emitted = emit_text(problem(*MODELS[case]), tmp_path).load()
    ours = emitted.ModelNew()
    eager = copy.deepcopy(ours)
    eager.forward = eager.reference_forward
    for batch in (6, 6, 9):
        given = [torch.randn(batch, 16) for _ in range(2)]
        mine, theirs = [t.clone() for t in given], [t.clone() for t in given]
        version = [[b._version for b in m.buffers()] for m in (ours, eager)]
        with torch.no_grad():
            found, wanted = ours(*mine), eager(*theirs)
        assert type(found) is type(wanted)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(mine, theirs)
        state = [[*m.parameters(), *m.buffers()] for m in (ours, eager)]
        for a, b in zip(*state, strict=True):
            torch.testing.assert_close(a, b)
        for a, b, old, before in zip(ours.buffers(), eager.buffers(), *version, strict=True):
            assert a._version > old or b._version == before, "autograd is told of every write"
        assert aliases(tensors(found), [*mine, *state[0]]) == aliases(
            tensors(wanted), [*theirs, *state[1]]
        )
        assert [t.stride() for t in tensors(found)] == [t.stride() for t in tensors(wanted)]
    assert emitted._FUSEWRIGHT_FUNCTIONS, "the kernels ran"


def test_without_anything_to_fuse_the_model_is_as_it_was(tmp_path: Any) -> None:
    text = problem("self.f = nn.Linear(16, 16)", "return self.f(x)")
    found = emit_text(text, tmp_path)
    assert not found.made.replaced
    code = [line for line in found.text.splitlines() if not line.startswith("#")]
    assert "\n".join(code) == text.strip().replace("class Model(", "class ModelNew(")
    assert "the same calls as in the model" in found.text
    assert emit_text(text.replace("self.f(x)", "self.f(x).relu()"), tmp_path).made.replaced


LAYOUTS = {
    "channels last": "torch.randn(6, 3, 4, 5).to(memory_format=torch.channels_last)",
    "a size of one": "torch.randn(6, 1, 5)",
    "no size at all": "torch.randn(())",
    "doubles": "torch.randn(6, 5, dtype=torch.float64)",
}


@pytest.mark.compiler
@pytest.mark.parametrize("layout", LAYOUTS)
def test_new_memory_is_laid_out_as_in_eager(
    layout: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By PyTorch's short way, and by the long one of PyTorch 2.1."""
    text = problem("", "return torch.relu(x) + y", f"[{LAYOUTS[layout]} for _ in range(2)]")
    emitted = emit_text(text, tmp_path)
    short = emitted.load()
    monkeypatch.delattr(torch._C._dynamo.guards, "_empty_strided_cpu")
    long = emitted.load()
    for file in (short, long):
        model, inputs = file.ModelNew(), file.get_inputs()
        with torch.no_grad():
            found, wanted = model(*inputs), model.reference_forward(*inputs)
        torch.testing.assert_close(found, wanted)
        assert (found.dtype, found.stride()) == (wanted.dtype, wanted.stride())
        assert file._FUSEWRIGHT_FUNCTIONS, "the kernels ran"
    kinds = [type(file._fusewright_empty).__name__ for file in (short, long)]
    assert kinds == ["builtin_function_or_method", "function"]


def test_tied_after_the_capture(tmp_path: Any) -> None:
    """Two norms that now share their statistics: eager updates them twice."""
    init = "self.m = nn.BatchNorm1d(16)\nself.n = nn.BatchNorm1d(16)"
    emitted = emit_text(problem(init, "return self.m(x) * self.n(y)"), tmp_path).load()
    ours = emitted.ModelNew()
    eager = copy.deepcopy(ours)
    eager.forward = eager.reference_forward
    for model in (ours, eager):
        model.n.running_mean = model.m.running_mean
        model.n.running_var = model.m.running_var
    x, y = torch.randn(6, 16), torch.randn(6, 16)
    with torch.no_grad():
        torch.testing.assert_close(ours(x, y), eager(x, y))
    torch.testing.assert_close(ours.m.running_mean, eager.m.running_mean)


def test_untied_after_the_capture(tmp_path: Any) -> None:
    init, forward = MODELS["shared parameter"]
    emitted = emit_text(problem(init, forward), tmp_path).load()
    model = emitted.ModelNew()
    model.g.weight = torch.nn.Parameter(torch.randn(16, 16))
    x, y = torch.randn(6, 16), torch.randn(6, 16)
    with torch.no_grad():
        torch.testing.assert_close(model(x, y), model.reference_forward(x, y))


def test_an_argument_that_aliases_what_is_written(tmp_path: Any) -> None:
    emitted = emit_text(problem("", "x.mul_(2)\nreturn x + y"), tmp_path).load()
    model = emitted.ModelNew()
    for view in (lambda t: (t, t), lambda t: (t[:4], t[2:])):
        first, second = torch.arange(96.0).view(6, 16), torch.arange(96.0).view(6, 16)
        with torch.no_grad():
            found, wanted = model(*view(first)), model.reference_forward(*view(second))
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(first, second)


@pytest.mark.compiler
def test_results_between_the_steps_are_given_back(tmp_path: Any) -> None:
    """Of a chain of layers, no more than two results are alive at a time, as in the original."""
    emitted = emit_text(problem(*MODELS["a chain of library calls"]), tmp_path).load()
    model, x = emitted.ModelNew(), torch.randn(6, 16)
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0
    linear = torch.nn.functional.linear

    def watched(*arguments: torch.Tensor) -> torch.Tensor:
        nonlocal most
        most = max(most, sum(r() is not None for r in alive))
        result = linear(*arguments)
        alive.append(weakref.ref(result))
        return result

    gc.disable()
    try:
        with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.nn.functional, "linear", watched)
            model(x, x)
    finally:
        gc.enable()
    assert len(alive) == 3
    assert most <= 1


@pytest.mark.compiler
def test_an_argument_called_batch(tmp_path: Any) -> None:
    """Views, calls, new memory and kernels mean the batch size, whatever the model's names."""
    lines = "y = torch.matmul(x.view(-1, 4, 4), x.view(-1, 4, 4))\nreturn y.flatten(1) * 2 + x, y"
    text = problem("", lines, "[torch.randn(6, 16)]").replace("(self, x, y)", "(self, batch)")
    text = text.replace("x.view", "batch.view").replace("+ x", "+ batch")
    model, x = emit_text(text, tmp_path).load().ModelNew(), torch.randn(6, 16)
    with torch.no_grad():
        torch.testing.assert_close(model(x), model.reference_forward(x))
