"""Products with diagonal matrices: numbers times rows or columns, NaN where eager makes it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import fusewright
from fusewright.compiler.compilation import make
from fusewright.ir.interpreter import interpret
from fusewright.targets.target import TARGETS

SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-42, 1e38]
# forward of v [24], x [24, 24] and y [3, 24, 24]; how many products are left
CASES = {
    "torch.diag(v) @ x": 0,
    "x @ torch.diag(v)": 0,
    "torch.diag_embed(v) @ x.mT": 0,
    "v.diag() @ x + x": 0,
    "torch.mm(torch.diag(v), x) * 2": 0,
    "torch.addmm(x, torch.diag(v), x, beta=0.5, alpha=2)": 0,
    "F.linear(x, torch.diag(v))": 0,
    "torch.diag_embed(y[:, 0]) @ y": 0,
    "y @ torch.diag_embed(y[:, 0])": 0,
    "torch.diag(v) @ y": 0,
    "y @ torch.diag(v)": 0,
    "torch.diag(v) @ torch.diag(v[:24] * 2)": 0,
    "x[:, 5:6] @ torch.diag(v[:1])": 0,
    "torch.addmm(x, torch.diag(v), x, beta=0.5, alpha=0)": 1,
    "torch.diag(v[:-1], 1) @ x": 1,
    "torch.diag(x) @ x": 1,
    "torch.diag(v) @ v": 1,
}


def model(text: str) -> nn.Module:
    scope: dict[str, object] = {"torch": torch, "nn": nn, "F": nn.functional}
    exec(f"class M(nn.Module):\n    def forward(self, v, x, y):\n        return {text}", scope)
    return scope["M"]()  # type: ignore[operator, no-any-return]


def special(*shape: int) -> torch.Tensor:
    """Columns and rows with none, one and several of the values that are not finite."""
    x = torch.randn(shape)
    for k in range(0, x.numel(), 41):
        x.view(-1)[k] = SPECIAL[k % len(SPECIAL)]
    return x


def draws() -> list[tuple[torch.Tensor, ...]]:
    plain = torch.randn(24), torch.randn(24, 24), torch.randn(3, 24, 24)
    once = plain[1].clone()
    once[5, 7], once[9, 3] = math.inf, math.nan
    return [
        plain,
        (plain[0], once, torch.stack([plain[1], once, once.mT])),
        (special(24), special(24, 24), special(3, 24, 24)),
        (torch.tensor(SPECIAL * 4)[:24], none_is_small(plain[1]), none_is_small(plain[2])),
    ]


def none_is_small(x: torch.Tensor) -> torch.Tensor:
    """Negative numbers, and zeros of that sign. None is so small that its product with the smallest
    special value underflows: to a zero whose sign depends on whether it is rounded before a sum."""
    return torch.where(x > 0, -0.1 - x, -0.0)


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Equal, zeros of one sign; what is added and scaled is rounded in another order."""
    rounding = 1e-6 if found.dtype is torch.float32 else torch.finfo(found.dtype).eps
    near = torch.isclose(found, wanted, rtol=rounding, atol=1e-43, equal_nan=True)
    return bool((near & ((found.signbit() == wanted.signbit()) | wanted.isnan())).all())


def test_both_sides() -> None:
    eager, inputs = model(", ".join(CASES)), draws()
    made = make(eager, inputs[0], TARGETS["cpu"])
    products = ("aten.matmul", "aten.addmm")
    left = [n for n in (s.node for s in made.plan.libraries) if n.called in products]
    assert len(left) == sum(CASES.values())
    assert made.used.count("diagonal") == len(CASES) - len(left) - 1  # two products are one
    for given in inputs:
        every = interpret(made.captured.graph, given, {}, sizes=made.captured.graph.example)
        for text, found, wanted in zip(CASES, every, eager(*given), strict=True):
            assert same(found, wanted), text


def test_the_rule_can_be_switched_off() -> None:
    eager, inputs = model("torch.diag(v) @ x"), draws()[0]
    made = make(eager, inputs, TARGETS["cpu"], rules=frozenset({"no-algebra"}))
    assert not made.replaced
    assert "--no-algebra keeps it): diagonal" in make(eager, inputs, TARGETS["cpu"]).record("x")


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gpu_both_sides(dtype: torch.dtype) -> None:
    texts = [t for t, left in CASES.items() if not left]
    eager = model(", ".join(texts))
    every = [[x.to(dtype) for x in given] for given in draws()]
    ours = fusewright.optimize(eager, *every[0], options={"target": "cuda"}).cuda()
    for given in every:
        there = [x.cuda() for x in given]
        for text, found in zip(texts, ours(*there), strict=True):
            wanted = model(text)(*[x.float() for x in given])  # rounded once, as ours
            assert same(found.cpu(), wanted.to(dtype)), text
