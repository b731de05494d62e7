"""Models for PyTorch's compiler, and what a call of one said: what the tests of it share."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from tests.support.emitting import Emitted, emit_text

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n\n\n"
# what -> the lines of the constructor, the signature, the lines of forward, the inputs
MODELS: Mapping[str, tuple[str, str, str, str]] = {
    "perceptron": (
        "self.a, self.norm, self.b = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 8)",
        "x",
        "return self.b(F.gelu(self.norm(self.a(x)))) + 1",
        "[torch.randn(6, 16)]",
    ),
    "convolution": (
        "self.conv = nn.Conv2d(4, 8, 3, padding=1)",
        "x",
        "return torch.relu(self.conv(x)) * 2 + x.mean()",
        "[torch.randn(3, 4, 9, 9)]",
    ),
    "attention": (
        "self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)",
        "x, mask=None, scale=2.0",
        (
            "s = self.q(x) @ self.k(x).transpose(1, 2) / scale\n"
            "return torch.softmax(s + mask, -1) @ self.v(x)"
        ),
        "[torch.randn(3, 5, 16), torch.randn(5, 5), 4.0]",
    ),
    "norm in eval mode": (
        "self.a, self.norm = nn.Linear(16, 32), nn.BatchNorm1d(32)\nself.eval()",
        "x",
        "return F.silu(self.norm(self.a(x))).softmax(-1)",
        "[torch.randn(6, 16)]",
    ),
    "many modules": (
        "self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU())"
        " for _ in range(6))\nself.eval()",
        "x",
        "for block in self.blocks:\n    x = x + block(x) * 0.5\nreturn x",
        "[torch.randn(6, 16)]",
    ),
    "results by name": (
        "self.a = nn.Linear(16, 16)",
        "x, more",
        (
            "y = torch.tanh(self.a(x) + more['bias'][0])\n"
            "return {'y': y, 'view': y.t(), 'sums': (y.sum(1), x), 'n': 3}"
        ),
        "[torch.randn(6, 16), {'bias': [torch.randn(6, 16)], 'flag': True}]",
    ),
    "dropout in eval mode": (
        "self.a, self.drop = nn.Linear(16, 16), nn.Dropout(0.5)\nself.eval()",
        "x",
        "return torch.softmax(self.drop(self.a(x)) * 2, -1)",
        "[torch.randn(6, 16)]",
    ),
    "tied weights": (
        "self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)\nself.b.weight = self.a.weight",
        "x",
        "return torch.sigmoid(self.b(torch.relu(self.a(x)))) * 2",
        "[torch.randn(6, 16)]",
    ),
}


def problem(init: str, signature: str, forward: str, inputs: str) -> str:
    return (
        f"{HEAD}class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        + textwrap.indent(init, " " * 8)
        + f"\n\n    def forward(self, {signature}):\n"
        + textwrap.indent(forward, " " * 8)
        + f"\n\n\ndef get_inputs():\n    return {inputs}\n"
        + "\n\ndef get_init_inputs():\n    return []\n"
    )


@dataclass
class Subject:
    """An emitted model, its inputs, and what its calls said."""

    emitted: Any
    model: nn.Module
    inputs: list[Any]

    @property
    def emitted_text(self) -> str:
        return Path(self.emitted.__file__).read_text(encoding="utf-8")

    def compiled(self, backend: str = "aot_eager") -> Callable[..., Any]:
        torch._dynamo.reset()
        made: Callable[..., Any] = torch.compile(self.model, backend=backend, fullgraph=True)
        return made

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.emitted.ModelNew.fusewright_status()
        return found

    def ran(self, call: Callable[[], Any]) -> tuple[int, list[str]]:
        """How often a call ran kernels, and why it was the original."""
        before = self.status()
        call()
        after = self.status()
        why = [k for k, n in after["because"].items() if n > before["because"].get(k, 0)]
        return after["kernels"] - before["kernels"], why

    def right(self, compiled: Callable[..., Any], *inputs: Any) -> tuple[int, list[str]]:
        """As `ran`, of a call whose result is that of the original."""
        inputs = inputs or tuple(self.inputs)
        wanted = self.model.reference_forward(*inputs)
        return self.ran(lambda: same(compiled(*inputs), wanted))


def same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        assert found.stride() == wanted.stride()
    elif isinstance(wanted, dict):
        assert [*found] == [*wanted]
        same([*found.values()], [*wanted.values()])
    elif isinstance(wanted, tuple | list):
        assert len(found) == len(wanted)
        for mine, theirs in zip(found, wanted, strict=True):
            same(mine, theirs)
    else:
        assert found == wanted


@contextmanager
def written(folder: Path, target: str = "cpu") -> Iterator[Callable[[str], Emitted]]:
    """Each model's file, written once; its kernels are compiled there, too."""
    made = dict[str, Emitted]()

    def file(what: str) -> Emitted:
        if what not in made:
            made[what] = emit_text(problem(*MODELS[what]), folder, target)
        return made[what]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_EXTENSIONS_DIR", str(folder / "kernels"))
        yield file


@contextmanager
def subjects(
    files: Callable[[str], Emitted], device: str = "cpu"
) -> Iterator[Callable[[str], Subject]]:
    """Models of these files, without gradients, and their inputs."""

    def made(what: str) -> Subject:
        torch.manual_seed(0)
        emitted = files(what).load()
        model = emitted.ModelNew().requires_grad_(False).to(device)
        moved = tree_map_only(torch.Tensor, lambda x: x.to(device), emitted.get_inputs())
        return Subject(emitted, model, moved)

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield made
