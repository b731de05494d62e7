"""Pieces of maps: cat, pad and slices of what is computed are one kernel with it, mean the same."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn

import fusewright
from fusewright.compiler import passes
from fusewright.compiler.compilation import make
from fusewright.frontend.capture import capture
from fusewright.ir.graph import Graph, toposort
from fusewright.ir.interpreter import interpret
from fusewright.ir.specs import ViewFill, spec_of
from fusewright.rewrite import sink_views
from fusewright.rewrite.simplify import rewrite
from fusewright.rewrite.sink_views import through
from fusewright.rewrite.target_lowering import lower_for_target, written
from fusewright.targets.target import TARGETS
from tests.support.agreement import disagreements
from tests.support.compiled import Case, build, prepare, ready

GPU, CPU = TARGETS["sm_90a"], TARGETS["cpu"]
# x, y: [6, 4, 20, 24] with a batch of 6. Each row is one kernel, and reads x and y only.
ONE = [
    *(
        "torch.cat([x, x.relu()], 1)",
        "torch.cat([x * 2, y.exp() + x], 2)",
        "F.pad(x.relu(), (1, 3))",
    ),
    *("torch.cat([x.abs(), x[:, :2] - 1, y.relu()], 1).softmax(-1)", "torch.cat([x * 2, -y], -1)"),
    *(
        "torch.cat([torch.cat([x + 1, y], 1), x.neg()], 1)",
        "torch.cat([x / y, x.relu()], 1).mean(-1)",
    ),
    *("F.pad(x.relu() + 1, (1, 3), value=2.0)", "F.pad((x > y), (1, 3))", "(x * y).flip(-1) * 2"),
    *("(x + y).roll((3, -2), (2, 3))", "(x.abs() + 1).tril(2) * y", "(x - y).triu() + 1"),
    *("(x + y)[:, :2] * (x + y)[:, 2:]", "(x * 2).permute(0, 2, 3, 1)[..., 1:].abs()"),
    *(
        "F.pad(F.pad(x.abs() + 1, (1, 1)), (2, 0), value=1.5)",
        "(x * 2).reshape(-1, 80, 24)[:, 7:70] + 1",
    ),
    "torch.stack([x + 1, -x], 1)",
    *("torch.cat([x.half() * 2, x.half().relu()], 1)", "torch.cat([x.half() * 2, y + 1], 1)"),
    *("torch.cat([x.long() * 2, y.long() + 1], 1)", "torch.cat([x > 0, ~(y > 0)], 1)"),
    "torch.cat([x.double().relu(), x.double()], 2)",
    "torch.cat([x[:, :1] * 2, x[:, 1:] + 1, x.relu(), y * y, y[:, :3].abs(), x], 1)",
    "x * y + torch.cat([-x[..., 12:], x[..., :12]], -1)",
    "torch.cat([x.relu(), y[:, :1]], 1).amax(1)",
    *(
        "torch.cat([x.roll(3, -1), y], 1)",
        "torch.cat([F.pad(x, (2, 0), value=3.0)[..., 2:], y], 2)",
    ),
]
# What costs more than it saves, or somebody needs as a whole, is stored.
STORED = [
    *(
        "torch.cat([x.tanh().tan().tan(), y], 1)",
        "F.pad(x.reshape(-1, 4, 20, 12, 2).sum(-1).relu(), (1, 1))",
    ),
]
RUN = [
    *ONE,
    *STORED,
    "torch.cat([x * x.amax((1, 2, 3), True).relu() * 0 + x, y], 3)[:, :, :4]",
    "F.max_pool2d(x.relu(), 2)",
    "F.max_pool2d(x.abs() + 1, 3, 2, 1)",
]
MODEL = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x, y):
        return (
            {results},
        )


def get_inputs():
    return [torch.randn(6, 4, 20, 24), torch.randn(6, 4, 20, 24)]


def get_init_inputs():
    return []
"""


class Called(nn.Module):
    def __init__(self, row: str) -> None:
        super().__init__()
        self.function = eval(f"lambda x, y: {row}", {"torch": torch, "F": nn.functional})

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.function(x, y)  # type: ignore[no-any-return]


def images(batch: int = 6) -> list[Tensor]:
    x, y = torch.randn(2, batch, 4, 20, 24)
    x[1, 1, 2, :4] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])
    y[1, 1, 2, :2] = 0.0
    return [x, y]


@cache
def graph_of(row: str) -> Graph:
    graph, _ = rewrite(capture(Called(row), images()).graph)
    return lower_for_target(graph, GPU)


@pytest.mark.slow
@pytest.mark.parametrize("row", ONE)
def test_what_is_joined_is_computed_where_it_is_joined(row: str) -> None:
    made = make(Called(row), images(), GPU)
    (kernel,) = made.plan.steps
    assert {leaf.op for leaf in made.plan.kernels[0].leaves} == {"input"}, kernel


@pytest.mark.parametrize("row", STORED)
def test_what_is_dear_or_read_as_a_whole_is_stored(row: str) -> None:
    graph = graph_of(row)
    assert through(graph, GPU) is graph


@pytest.mark.slow
@pytest.mark.parametrize("row", [*ONE, *STORED])
def test_the_graph_has_the_same_meaning(row: str) -> None:
    x = [t.double() if "half" not in row else t for t in images()]
    for target in (GPU, CPU):
        (found,) = interpret(through(graph_of(row), target), x, {}, dtype=torch.float64)
        (wanted,) = interpret(graph_of(row), x, {}, dtype=torch.float64)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


def test_integers_are_not_divided_by_what_is_not_there() -> None:
    graph = through(graph_of("torch.cat([x.long() * y.long(), y.long() + 1], 1)"), GPU)
    pads = [n for n in toposort(graph.roots) if n.op == "pad" and n.args[0].op == "input"]
    assert {spec_of(n, ViewFill).value for n in pads} == {1}


def test_a_product_keeps_its_tail() -> None:
    square = [torch.randn(512, 512), torch.randn(512, 512)]
    made = make(Called("torch.cat([(x @ y.mT).relu(), x], 1)"), square, GPU)
    assert [k.anchor is None for k in made.plan.kernels] == [False, True]


@pytest.mark.parametrize("target", [GPU, CPU])
def test_only_a_gpu_takes_pieces_that_skip_elements(target: object) -> None:
    row = "F.max_pool2d(x.relu(), 2)"
    graph = graph_of(row)
    assert (through(graph, target) is graph) == (target is CPU)  # type: ignore[arg-type]


def test_windows_that_overlap_read_one_tensor_only() -> None:
    steps = [len(make(Called(f"F.max_pool2d({x}, 3, 2, 1)"), images(), GPU).plan.steps)
             for x in ("x.relu()", "x + y")]  # fmt: skip
    assert steps == [1, 2]


def test_an_output_and_what_is_read_as_a_whole_stay() -> None:
    class Both(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            z = x.relu()
            return z, torch.cat([z, y], 1)

    graph, _ = rewrite(capture(Both(), images()).graph)
    graph = lower_for_target(graph, GPU)
    assert through(graph, GPU) is graph


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, nn.Module]:
    folder = tmp_path_factory.mktemp("through")
    path = folder / "rows.py"
    path.write_text(MODEL.format(results=",\n            ".join(RUN)), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "lower_for_target", lambda graph, _: written(graph))
        patch.setattr(sink_views, "PRICES", {"cpp": sink_views.PRICES["cuda"]})
        case = prepare(path)
    (emitted,) = build([case], folder)
    return case, emitted.ModelNew()


@pytest.mark.compiler
@pytest.mark.parametrize("batch", [2, 6, 7])
def test_kernels_compute_it(compiled: tuple[Case, nn.Module], batch: int) -> None:
    case, ours = compiled
    x = images(batch)
    assert ready(ours, x)
    found = disagreements(ours, case.model, x)
    assert [f"{RUN[int(t.split(':')[0])]}: {t}" if t[0].isdigit() else t for t in found] == []


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("row", RUN)
def test_gpu_kernels_compute_it(row: str) -> None:
    model = Called(row)
    ours = fusewright.optimize(model, *images(), options={"target": "cuda"}).cuda()
    for batch in (2, 6, 37):
        assert disagreements(ours, model, [x.cuda() for x in images(batch)]) == []
