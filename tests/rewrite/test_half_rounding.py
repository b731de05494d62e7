"""docs/numerics.md: where a value of a half type is the rounded one, over all pairs of types.

Each row is one rounding in eager, too, so its bits are compared; values are drawn so that float32
keeps digits, or a range, that the half type has not.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusewright.ir.builder import TensorExpr, cast, constant, pointwise, rounded, where
from fusewright.ir.graph import Graph, Node, node, toposort
from fusewright.ir.library_call import LibraryCall, TensorRef
from fusewright.rewrite.half_rounding import halves
from tests.support.compiled import Case, build, prepare, ready

HALVES = ("float16", "bfloat16")
EVERY = (
    *("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"),
    *("uint8", "int8", "int16", "int32", "int64", "bool"),
)
# One rounding each, of half values h and g: in eager it is stored, in a kernel it is not.
MADE = ("h * g", "h + g", "h - g", "-h * g", "h * 0.1", "h / 3", "(h * g).reshape(8, 8).t()")
MODEL = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x, y, i):
        h, g = x.to(torch.{kind}), y.to(torch.{kind})
        return (
            {results},
        )


def get_inputs():
    torch.manual_seed(5)
    x, y = torch.randn(4, 16) * 20, torch.randn(4, 16) * 20
    x[0, :8], y[0, :8] = 4e4, torch.tensor([3e-9, -3e-9, 2.0, -2.0, 0.5, 1e-4, 0.0, -0.0])
    return [x, y, torch.arange(64).reshape(4, 16)]


def get_init_inputs():
    return []
"""


def rows_of(kind: str) -> list[str]:
    other = HALVES[kind == HALVES[0]]
    rows = [f"({made}).to(torch.{to})" for made in MADE for to in EVERY if to != kind]
    for made in MADE:
        rows += [
            f"({made}).float() * 3", f"({made}).to(torch.{other}).float()",
            f"{made} + x.reshape(({made}).shape)",
            f"torch.where(({made}) > 0, ({made}), 1.5).float()", f"torch.abs({made}).double()",
            f"({made}) == ({made}).float()", f"({made}) > 400.125", f"({made}).isinf()",
            f"({made}).isfinite()", f"({made}).eq(({made}).to(torch.{other}))", f"({made}).bool()",
            f"torch.sign({made})", f"torch.floor({made})", f"torch.round({made}).float()",
            f"F.threshold({made}, 0.05, 9.0)", f"({made}).view(torch.int16) + 1",
            f"({made}).view(torch.{other}).float()", f"({made}).argmax(-1)", f"({made}).max(-1)[1]",
            f"({made}).amax(-1).float()", f"({made}).clamp(-3, 3).float()", f"({made})",
            f"torch.empty(({made}).shape).copy_({made})", f"torch.maximum({made}, {made}).float()",
            f"(({made}).float() - ({made})).abs()", f"({made}).sum(-1, dtype=torch.float64)",
            f"({made}).any(-1)", f"torch.cat([({made}), ({made}).float()], 1)",
        ]  # fmt: skip
    rows += [
        f"torch.full((3,), 0.1, dtype=torch.{kind}).float()", "(h * 0 + 0.1).float()",
        "torch.full((3,), 0.1).double()",
        f"torch.where(i > 5, h * g, torch.tensor(0.1, dtype=torch.{kind})).float()",
    ]  # fmt: skip
    return rows


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    folder = tmp_path_factory.mktemp("halves")
    found = {}
    for kind in HALVES:
        path = folder / f"{kind}.py"
        results = ",\n            ".join(rows_of(kind))
        path.write_text(MODEL.format(kind=kind, results=results), encoding="utf-8")
        found[kind] = prepare(path)
    return found


@pytest.fixture(scope="module")
def emitted(
    cases: dict[str, Case], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[torch.Tensor]]:
    modules = build(list(cases.values()), tmp_path_factory.mktemp("emitted"))
    results = {}
    for (kind, case), module in zip(cases.items(), modules, strict=True):
        new = module.ModelNew()
        assert ready(new, case.inputs), kind
        results[kind] = list(new(*case.inputs))
    return results


@pytest.mark.compiler
@pytest.mark.parametrize("kind", HALVES)
def test_what_is_seen_of_a_half_value_is_the_rounded_one(
    kind: str, cases: dict[str, Case], emitted: dict[str, list[torch.Tensor]]
) -> None:
    eager = cases[kind].model(*cases[kind].inputs)
    wrong = {}
    for row, ours, theirs in zip(rows_of(kind), emitted[kind], eager, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), row
        a, b = (t.double() if t.dtype.is_floating_point else t for t in (ours, theirs))
        if not torch.equal(a.nan_to_num(7e77), b.nan_to_num(7e77)):
            wrong[row] = (ours, theirs)
    assert not wrong


# ---- no rounding where nobody sees it ------------------------------------------------------------


def leaf(position: int = 0, dtype: torch.dtype = torch.float16) -> TensorExpr:
    return TensorExpr(node("input", position=position, shape=(4, 6), dtype=dtype))


def call(x: TensorExpr) -> TensorExpr:
    relu = LibraryCall("aten.relu", "default", "torch.relu", (TensorRef(0),), new_memory=True)
    return TensorExpr(node("library", [x.node], shape=x.shape, dtype=x.dtype, call=relu))


def roundings(x: TensorExpr) -> int:
    graph = halves(Graph((), (cast(rounded(x), torch.float32).node,)))
    return sum(_rounds(n) for n in toposort(graph.roots))


def _rounds(n: Node) -> bool:
    return n.op == "cast" and n.dtype is torch.float16 and n.args[0].dtype is torch.float16


@pytest.mark.parametrize(
    ("made", "count"),
    [
        (lambda x, _: x, 0),
        (lambda x, _: call(x), 0),
        (lambda x, _: where(x > 0.0, x, 0.5), 0),
        (lambda x, _: where(x > 0.0, x, 0.1), 1),
        (lambda x, y: pointwise("maximum", x, -y), 0),
        (lambda x, _: cast(cast(x, torch.float32) * 3.0, torch.float16, rounds=True), 0),
        (lambda x, _: cast(cast(x, torch.float32) * 3.0, torch.float16), 1),
        (lambda x, y: x * y, 1),
        (lambda x, y: pointwise("floor", x * y), 1),
        (lambda x, y: pointwise("relu", x + y), 1),
        (lambda x, _: x + constant(0.1, torch.float16), 1),
    ],
)
def test_a_rounding_stays_where_it_changes_something(made: object, count: int) -> None:
    assert roundings(made(leaf(0), leaf(1))) == count  # type: ignore[operator]


CHAINS = (
    "torch.softmax(x * y, -1) * y",
    "F.layer_norm(x * y, (16,)) * x",
    "F.gelu(x + y) * x + y",
    "(x * y).sum(-1) * 2",
    "F.batch_norm(x * y, None, None, training=True) + x",
)


@pytest.mark.parametrize("kind", HALVES)
def test_a_chain_of_one_half_type_is_not_rounded(kind: str, tmp_path: Path) -> None:
    """Its values stay as they are computed until they are stored."""
    path = tmp_path / "chains.py"
    text = MODEL.format(kind=kind, results=",\n            ".join(CHAINS))
    text = text.replace("return [x, y,", f"return [x.to(torch.{kind}), y.to(torch.{kind}),")
    path.write_text(text, encoding="utf-8")
    assert "round_to<" not in "".join(b.text for b, _, _ in prepare(path).made.kernels)
