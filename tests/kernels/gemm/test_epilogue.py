"""What follows a product, compiled as C++: the same struct, on a product that comes from memory."""

from __future__ import annotations

import ctypes
import random
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import fusewright.kernels.gemm.match
from fusewright.codegen.device_library import sections_for
from fusewright.codegen.kernel_text import KernelText, words
from fusewright.fusion.planner import Kernel, Plan
from fusewright.ir.graph import Graph, Node, Sizes, numel
from fusewright.ir.interpreter import interpret
from fusewright.kernels.interface import StrategyContext
from fusewright.kernels.registry import default_strategy, kernel_text
from fusewright.kernels.tensor_core.launch import segment
from fusewright.loopnest.nest import Nest, nest
from tests.kernels.gemm.test_gemm import (
    BATCHED,
    GPU,
    GROUPS,
    HALF_FORMS,
    JOINED,
    TALL,
    Y,
    model,
    planned,
)
from tests.loopnest.test_nest import offsets

X = torch.randn(512, 512)
FLAGS = ("-O0", "-std=c++17", "-fopenmp", "-fwrapv", "-Wno-psabi", "-shared", "-fPIC")
State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Tail:
    """A kernel with a product, what its tensors hold, and what it must compute."""

    kernel: Kernel
    layout: Nest
    printed: KernelText
    product: torch.Tensor
    tensors: list[torch.Tensor]
    wanted: dict[int, torch.Tensor]  # by position among the tensors
    sizes: Sizes


def tails(made: Plan, inputs: tuple[torch.Tensor, ...], state: State) -> list[Tail]:
    """Every kernel with a product; all values by PyTorch."""
    found = []
    for kernel in made.kernels:
        if kernel.anchor is not None:
            layout = nest(kernel, made.graph)
            printed = kernel_text(
                layout, default_strategy(layout, StrategyContext(GPU, made.graph))
            )
            nodes = [p.node for p in printed.pointers]
            product, *values = interpreted([kernel.anchor, *nodes], made.graph, inputs, state)
            written = [p.written for p in printed.pointers]
            given = [torch.zeros_like(v) if w else v for v, w in zip(values, written, strict=True)]
            wanted = {k: values[k] for k, w in enumerate(written) if w}
            found.append(Tail(kernel, layout, printed, product, given, wanted, made.graph.example))
    return found


def interpreted(
    nodes: list[Node], graph: Graph, inputs: tuple[torch.Tensor, ...], state: State
) -> list[torch.Tensor]:
    """The values of some nodes, laid out as kernels assume."""
    with torch.no_grad():
        values = interpret(Graph(graph.inputs, tuple(nodes), free=graph.free), inputs, state)
    return [v.detach().contiguous().clone() for v in values]


def build(found: list[Tail], folder: Path) -> ctypes.CDLL:
    """All tails in one library, as tail_0, tail_1, …"""
    source = folder / "tails.cpp"
    source.write_text("\n".join(map(text_of, range(len(found)), found)), encoding="utf-8")
    library = folder / "tails.so"
    command = ["g++", *FLAGS, str(source), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr[:3000]
    return ctypes.CDLL(str(library))


def text_of(number: int, tail: Tail) -> str:
    """The skeleton and the struct in a namespace of their own, and a loop over the rows."""
    sections = sections_for("cpp", {*words(tail.printed.text), "load", "box", "solo"})
    columns = tail.product.shape[-1]
    piece = f"box{{0, 1, 0, {columns}, {columns}}}, " if tail.printed.is_map else ""
    product = f"load(product, row * {segment(tail.layout.kernel) or columns})"
    fields = ", ".join([*(p.name for p in tail.printed.pointers), "batch"])
    pointers = ", ".join(p.declaration for p in tail.printed.pointers)
    whole = f"""{sections}
{tail.printed.text}
extern "C" void tail_{number}(const float* product, {pointers}, long batch) {{
  const {tail.printed.name} body{{{fields}}};
  for (long row = 0; row < body.rows(); ++row) body(row, {piece}solo(), {product});
}}
}}  // namespace fusewright
"""
    return re.sub(r"\bnamespace fusewright\b", f"namespace n{number}", whole)


def check(found: list[Tail], folder: Path) -> None:
    library = build(found, folder)
    for number, tail in enumerate(found):
        function = getattr(library, f"tail_{number}")
        function.argtypes = [ctypes.c_void_p] * (1 + len(tail.tensors)) + [ctypes.c_long]
        function.restype = None
        addresses = [t.data_ptr() for t in tail.tensors]
        product = tail.product.float()  # as the tensor cores sum it
        function(product.data_ptr(), *addresses, *(tail.sizes.values() or [0]))
        for k, wanted in tail.wanted.items():
            # In 16 bits PyTorch rounds after every step.
            rounding = 4 * torch.finfo(wanted.dtype).eps if tail.product.itemsize < 4 else 0
            rtol, atol = max(rounding, 1e-4), max(rounding, 1e-5)
            torch.testing.assert_close(tail.tensors[k], wanted, rtol=rtol, atol=atol)


@pytest.mark.compiler
def test_every_tail_that_joins(tmp_path: Path) -> None:
    cases = {
        **JOINED,
        "two results": (
            "z = self.narrow(x)\nreturn z.amax(-1), z * 2", (torch.randn(2048, 1024),)),
        "means of heads": ("return (x @ y).reshape(8, 256, 8, 64).mean(-1)", BATCHED),
        "16 bits": ("return torch.relu(F.linear(x, y, z)) * 0.5", HALF_FORMS["linear"][1]),
        "16 bits, a result in float32": (
            "return torch.softmax((x @ y).float() * 0.05, -1)",
            (TALL.repeat(2, 1), Y[:, :256].bfloat16())),
        "groups, twice normed": (f"{GROUPS} * torch.sigmoid(z)", (X,)),
    }  # fmt: skip
    found = []
    for text, inputs in cases.values():
        module, made = model(text, len(inputs)), planned(text, *inputs)
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        found += tails(made, inputs, state)
    assert len(found) == len(cases)
    check(found, tmp_path)


# ---- random tails --------------------------------------------------------------------------------

STARTS = [
    "z = F.linear(x, self.w, self.b)",
    "z = F.linear(x, self.w)",
    "z = torch.addmm(y, x, self.w.t(), beta=0.5, alpha=2)",
    "z = x @ self.w.t()",
]
STEPS = [
    "z = torch.relu(z)",
    "z = z * torch.sigmoid(z)",
    "z = z + y",
    "z = z * self.b + 0.5",
    "z = z * z.reshape(-1, 2, 32).mean(-1, keepdim=True).expand(-1, 2, 32).reshape(-1, 64)",
    "z = F.group_norm(z, 4)",
    "z = F.group_norm(z, 16, self.b)",
    "z = torch.softmax(z, -1)",
    "z = F.layer_norm(z, (64,), self.b)",
    "z = z - z.amax(-1, keepdim=True)",
    "z = (z.reshape(-1, 4, 16) + self.b[:16]).reshape(-1, 64)",
    "z = z.t().contiguous().t() * 2",
    "z = F.linear(z, self.v)",
    "z = z + torch.cumsum(y, 0)",
]
ENDS = [
    "return z",
    "return z, z.sum(-1)",
    "return z.reshape(-1, 8, 8).amax(2), z.t()",
    "return z > 0.1",
]
SETUP = """self.w = nn.Parameter(torch.randn(64, 36))
self.v = nn.Parameter(torch.randn(64, 64))
self.b = nn.Parameter(torch.randn(64))"""


def random_plan(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[Plan, tuple[torch.Tensor, ...], State]:
    """A small model with products, for which even small products get kernels."""
    least = dict.fromkeys(fusewright.kernels.gemm.match.LEAST_FLOPS, 0)
    monkeypatch.setattr(fusewright.kernels.gemm.match, "LEAST_FLOPS", least)
    monkeypatch.setattr("tests.kernels.gemm.test_gemm.SETUP", SETUP)
    draw = random.Random(seed)
    lines = [draw.choice(STARTS), *draw.choices(STEPS, k=draw.randint(1, 5)), draw.choice(ENDS)]
    torch.manual_seed(seed)
    inputs = torch.randn(6, 36), torch.randn(6, 64)
    text = "\n".join(lines)
    module, made = model(text, 2), planned(text, *inputs)
    return made, inputs, dict(module.named_parameters())


@pytest.mark.compiler
def test_random_tails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [t for seed in range(40) for t in tails(*random_plan(seed, monkeypatch))]
    assert len(found) >= 40
    assert {bool(t.kernel.reductions) for t in found} == {True, False}
    check(found, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, 40, 4))
def test_every_element_is_written_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made, inputs, state = random_plan(seed, monkeypatch)
    for tail in tails(made, inputs, state):
        rows, columns = (made.graph.hint(s) for s in (tail.layout.rows, tail.layout.columns))
        assert rows * columns == tail.product.numel()
        for n in tail.kernel.outputs:
            touched = offsets(tail.layout.writes[id(n)], tail.layout, made.graph)
            assert sorted(set(touched)) == list(range(made.graph.hint(numel(n.shape))))
