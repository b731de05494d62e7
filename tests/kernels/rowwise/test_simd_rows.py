"""Rows that a CPU takes side by side: which kernels do, and what each row comes to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fusewright
from fusewright.compiler.compilation import make
from fusewright.ir.operators import OPS
from fusewright.kernels.pointwise.strategy import CpuMap
from fusewright.kernels.rowwise.strategy import CpuSimdRows
from fusewright.targets.target import TARGETS
from tests.support.agreement import disagreements
from tests.support.compiled import build, prepare, ready

CPU = TARGETS["cpu"]
Shape = tuple[int, int, int]
HAZARDS = (float("nan"), float("inf"), -float("inf"), -0.0, 1e18, 1e-42)


class Called(nn.Module):
    """A row of the table as a model of its own, with a buffer along its reduced dimension."""

    def __init__(self, row: str, length: int = 1) -> None:
        super().__init__()
        self.register_buffer("w", torch.linspace(-1, 2, length).reshape(-1, 1))
        scope = {"torch": torch, "F": F}
        self.function: Callable[..., Any] = eval(f"lambda x, w: {row}", scope)

    def forward(self, x: Tensor) -> Any:
        return self.function(x, self.w)


def picture(length: int, beside: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(3, length, beside) * 5).to(dtype)


def abreast(model: nn.Module, x: Tensor) -> list[bool]:
    """Of each kernel of the model that reduces."""
    strategies = [s for _, _, s in make(model, [x], CPU).kernels]
    return [isinstance(s, CpuSimdRows) for s in strategies if not isinstance(s, CpuMap)]


# Every row reduces over dimension 1 of [3, length, beside].
ROWS = [
    *("x.sum(1)", "x.mean(1)", "x.amax(1)", "x.amin(1)", "(x * 0.01 + 1).prod(1)", "x.var(1)"),
    *("x.std(1, keepdim=True)", "x.argmax(1)", "x.argmin(1)", "torch.logsumexp(x, 1)"),
    *("x.softmax(1)", "F.log_softmax(x, 1)", "x / x.norm(dim=1, keepdim=True)", "x.sum((0, 1))"),
    *("(x.softmax(1) * x).sum(1)", "(x * w).sum(1) + 1", "(x + w).softmax(1) * w"),
    *("x.masked_fill(x > 2, -1.0).sum(1)", "torch.where(x.isnan(), w, x).amax(1)"),
    *("x.argmax(1) == 2", "x.argmax(1).float() * 2", "(x.sum(1) > 0).int()", "x.sum(1).double()"),
    *("F.pad(x, (0, 0, 2, 1), value=4.0).amin(1)", "torch.cat([x, x.relu()], 1).softmax(1)"),
    *("x.flip(1).argmax(1)", "x[:, 1:-1].mean(1)", "(x - x.mean(1, keepdim=True)).square().sum(1)"),
    *("F.layer_norm(x.transpose(1, 2), (x.shape[1],)).transpose(1, 2)", "x.flip(2).sum(1)"),
    "x.softmax(1).transpose(1, 2).contiguous()",
    "x.transpose(1, 2).contiguous().softmax(2) * w.mT",
    *("x.cumsum(1) * w", "(x * 0.01 + 1).cumprod(1)", "x.flip(1).cumsum(1).flip(1)"),
    *("x.softmax(1).cumsum(1)", "x.cumsum(1).amax(1)"),
    *("F.pad(x * x, (0, 0, 2, 1)).sum(1)", "F.local_response_norm(x.transpose(0, 1), 3).mean(0)"),
    "F.batch_norm(x, w[:, 0], w[:, 0].square(), w[:, 0] + 1, w[:, 0]).amin(1)",
]
# Every row reduces over dimension 2 of [3, beside, length], and stores only what that comes to.
TURNED = [
    *("x.sum(2)", "x.mean(2)", "x.amax(2)", "x.amin(2)", "x.var(2)", "x.argmax(2)", "x.argmin(2)"),
    *("torch.logsumexp(x, 2)", "x.norm(dim=2) + 1", "(x * w.mT).sum(2)", "x.tanh().exp().mean(2)"),
    *("(x.softmax(2) * x).sum(2)", "(x * w.mT).amax(2) - x.amin(2)", "x.tanh().prod(2)"),
]
PROBLEM = """import torch
import torch.nn.functional as F


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("w", torch.linspace(-1, 2, {length}).reshape(-1, 1))

    def forward(self, x):
        w = self.w
        return {row}


def get_inputs():
    return [(torch.randn({shape}) * 5).to({dtype})]


def get_init_inputs():
    return []
"""


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("rows", "length", "beside", "dtype"),
    # 64 rows at a time, 16, one by one; several buffers and a rest
    [
        (ROWS, 129, 211, torch.float32),
        (ROWS[::2], 66, 2131, torch.bfloat16),
        (ROWS[1::2], 5, 19, torch.float16),
    ],
    ids=["64", "16", "1"],
)
def test_rows_side_by_side_are_rows(
    rows: Sequence[str], length: int, beside: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    assert wrong(rows, length, (3, length, beside), dtype, tmp_path) == {}


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("length", "dtype"),
    # whole cache lines, and some with a rest; shorter ones are taken element by element
    [(32, torch.float32), (37, torch.bfloat16), (5, torch.float32), (1, torch.float16)],
)
def test_short_rows_are_turned(length: int, dtype: torch.dtype, tmp_path: Path) -> None:
    assert wrong(TURNED, length, (3, 107, length), dtype, tmp_path) == {}


def wrong(
    rows: Sequence[str], length: int, shape: Shape, dtype: torch.dtype, folder: Path
) -> dict[str, list[str]]:
    """What these rows of a table come to that eager does not."""
    cases = []
    for k, row in enumerate(rows):
        kind = torch.float32 if "w" in row else dtype
        path = folder / f"row_{k}.py"
        path.write_text(PROBLEM.format(row=row, length=length, shape=shape, dtype=kind))
        cases.append(prepare(path))
    found = {}
    for row, case, module in zip(rows, cases, build(cases, folder, "-O1"), strict=True):
        ours = module.ModelNew()
        (x,) = case.inputs
        assert isinstance(x, Tensor)
        assert ready(ours, [x]), row
        texts = disagreements(ours, case.model, [x], roundings=2)
        for j, value in enumerate(HAZARDS):  # in rows of every kind, early, late, and together
            x[j % 3, (j * 7) % shape[1], (j * 13) % shape[2]] = value
            x[1, -1 - j % shape[1], -1] = value
        texts += disagreements(ours, case.model, [x], roundings=2)
        found |= {row: texts} if texts else {}
    return found


@pytest.mark.slow
def test_every_one_of_these_runs_abreast() -> None:
    for row in ROWS:
        kernels = abreast(Called(row, 64), picture(64, 2055))
        assert kernels, row
        assert all(kernels), row


@pytest.mark.slow
def test_every_one_of_these_is_turned() -> None:
    for row in TURNED:
        kernels = make(Called(row, 37), [torch.randn(3, 300, 37)], CPU).kernels
        assert kernels, row
        assert all(isinstance(s, CpuSimdRows) and s.transposed for _, _, s in kernels), row


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "x"),
    [
        ("x.amax(2)", picture(300, 48)),  # longer
        ("x.mean(2)", picture(300, 32)),
        ("x.amax(2)", picture(300, 130)),
        ("x.amax(2)", picture(300, 8, torch.float64)),
        ("F.pad(x, (1, 1)).sum(2)", picture(300, 8)),
        ("x.var(1)", picture(64, 15)),  # too few
        ("x.var(1)", picture(64, 16, torch.float64)),  # half as many in a cache line
        ("x.argmax(1)", picture(64, 16, torch.int64)),
        ("x.softmax(-1)", picture(64, 16)),  # along memory
        ("x.amax(1)", picture(64, 64)),  # PyTorch is as fast where nothing fuses
        ("F.pad(x, (1, 1)).sum(1)", picture(64, 16)),  # rows at the edge have no elements
        ("x.cumsum(-1) / x.sum(-1, keepdim=True)", picture(64, 16)),
    ],
)
def test_others_run_one_by_one_or_stay_calls(row: str, x: Tensor) -> None:
    assert not any(abreast(Called(row), x))


@pytest.mark.slow
def test_functions_give_each_row_what_they_give_a_number() -> None:
    """A reduction over one element, so that the function's own bits come out."""
    maps = [op for op in OPS.values() if op.kind == "pointwise" and op.needs and op.name != "where"]
    names = [op.name for op in maps if op.domain not in ("int", "numbers", "shift")]
    unary = [n for n in names if OPS[n].arity == 1 and OPS[n].result == "same"]
    binary = [n for n in names if OPS[n].arity == 2]
    assert len(unary) > 30
    assert len(binary) > 5

    class Functions(nn.Module):
        def __init__(self, dim: int) -> None:
            super().__init__()
            self.dim = dim

        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            texts = [OPS[n].torch.format("x", "y") for n in (*unary, *binary)]
            made = [eval(text, {"torch": torch, "x": x, "y": y}) for text in texts]
            return tuple(m.amax(self.dim) for m in made)

    values = [torch.randn(160) * 3, torch.rand(96) * 2 - 1, torch.tensor(HAZARDS)]
    x = torch.cat([*values, -values[0], values[0].exp()]).reshape(1, 1, -1).repeat(2, 2, 1)
    y = torch.randn(1, 1, x.shape[-1]).repeat(2, 2, 1)
    ours = fusewright.optimize(Functions(1), x, y, options={"target": "cpu"})
    alone = fusewright.optimize(
        Functions(-1), x.mT.contiguous(), y.mT.contiguous(), options={"target": "cpu"}
    )
    results = ours(x, y), alone(x.mT.contiguous(), y.mT.contiguous())
    for name, a, b in zip((*unary, *binary), *results, strict=True):
        assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)), name
        assert torch.equal(a.isnan(), b.isnan()), name


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_share_rows_out(threads: int) -> None:
    before = torch.get_num_threads()
    model, x = Called("x.softmax(1)"), picture(40, 100)
    ours = fusewright.optimize(model, x, options={"target": "cpu"})
    try:
        torch.set_num_threads(threads)
        assert disagreements(ours, model, [x]) == []
        assert disagreements(ours, model, [x[:1]]) == []
    finally:
        torch.set_num_threads(before)


def test_another_batch_has_other_rows() -> None:
    """Rows side by side are counted at run time where the batch is among them."""

    class Down(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.transpose(0, 1).contiguous().var(0) + x.sum(1)

    x = torch.randn(70, 6, 24)
    ours = fusewright.optimize(Down(), x, options={"target": "cpu"})
    for batch in (70, 2, 5, 33):
        assert disagreements(ours, Down(), [torch.randn(batch, 6, 24)], roundings=2) == []


@pytest.mark.compiler
def test_the_mean_of_what_does_not_vary_is_that_number(tmp_path: Path) -> None:
    row = "F.layer_norm(x[:, :1, :1].logsumexp(1).expand(3, 5), (5,))"
    path = tmp_path / "row.py"
    path.write_text(PROBLEM.format(row=row, length=5, shape=(3, 5, 5), dtype=torch.float64))
    case = prepare(path)
    (module,) = build([case], tmp_path)
    assert not module.ModelNew()(*case.inputs).any()
