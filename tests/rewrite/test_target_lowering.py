"""Library calls that become nodes late: the graph means what eager computes, and so do the kernels.

The calls of the table are also compiled for the CPU, where `late` itself would keep PyTorch's: that
is how their guards and addresses are run without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import fusewright
from fusewright.compiler import passes
from fusewright.compiler.compilation import make
from fusewright.frontend.capture import capture
from fusewright.ir.graph import Graph, base, toposort
from fusewright.ir.interpreter import interpret
from fusewright.ir.strided_view import strided_view
from fusewright.rewrite.simplify import rewrite
from fusewright.rewrite.target_lowering import lower_for_target, written
from fusewright.targets.target import TARGETS
from tests.support.agreement import disagreements
from tests.support.compiled import Case, build, prepare, ready

GPU = TARGETS["sm_90a"]
# x: [6, 4, 20, 24] with a batch of 6; every row becomes one output
MOVED = [
    *("F.pad(x, (1, 2, 3, 4), value=2.0)", "F.pad(x, (-1, 2, 3, -2)) + 1", "F.pad(x > 0, (1, 1))"),
    *("F.pad(x, (2, 2), value=float('-inf'))", "F.pad(x.permute(0, 2, 3, 1), (1, 1, 2, 2)) * 2"),
    *("F.pad(x, (1, 2, 3, 4)).softmax(-1)", "F.pad(x, (1, 2, 3, 4), value=3.0).amax((1, 3))"),
    *("F.pad(F.pad(x, (1, 1)), (2, 0), value=1.0)", "F.pad(x, (0, 0, 0, 0, 1, 1)).sum(-1)"),
    *("F.pad(x[:, 1], (2, 3), mode='reflect')", "F.pad(x[:, 1], (2, 3), mode='replicate').exp()"),
    *("F.pad(x[:, 1], (2, 3), mode='circular')", "torch.cat([x, x * 2], 1)"),
    "torch.cat([x, x], -1) + 1",
    *("torch.cat([x, x[:, :2], x.relu()], 1).sigmoid()", "torch.cat([x[..., :3], x], -1)"),
    *(
        "torch.cat([x, x.double()], 1)",
        "torch.cat([x.sum(-1), x[..., 0]], 1)",
        "x.flip(-1, 2)",
        "x.sum().flip(0)",
    ),
    *("torch.stack([x, x + 1], 1)", "x.flip(1) * 2", "x.roll(3, -1)", "x.roll((1, 2), (2, 3))"),
    *(
        "x.roll((-3, 13), (1, 3)) * 2",
        "x.roll((1, 2, 12), (1, 2, 3)).mean((1, 3))",
        "x.roll((7, 4), (2, 3)).softmax(2)",
    ),
    *("x.roll(24, -1) + 1", "x.roll(1, 1).mean(-1)", "x.triu(1)", "torch.tril(x, -2) + 1"),
    *("x.flatten(1).tril(2) * 2", "x.flatten(1).triu(-1)", "x.flatten(1).mT.tril(1000) + 1"),
    *("x.tril(3).sum(-1)", "x.triu(-30)", "x.repeat(1, 2, 1, 3) + 1", "x.repeat(2, 1, 1, 1, 1)"),
    *("x.reshape(-1, 2, 2, 20, 24).unbind(1)[1] + 1", "x[:, 1:, 2:-1].flip(1) * 2"),
    *("F.pad(x.roll((1, 5), (1, 3)), (1, 2, 3, 0))", "x.roll(5, -1).flip(-1) + x.roll(-4, -1)"),
    *("F.pad(x, (2, 2)).roll(5, -1)", "x.roll(3, -1).relu().roll(4, -1)", "x.roll((2, 3), (2, 2))"),
    *(
        "x.permute(0, 3, 1, 2).contiguous().roll((3, 5), (1, 3)).permute(0, 2, 3, 1)",
        "x.mT.roll(3, 2)",
    ),
    *("F.pad(x.reshape(-1, 4, 480), (5, 0)) * 2", "(x > 0).tril()", "x.long().roll(2, 2)"),
]
REDUCED = [
    *("x.sum(1)", "x.mean((1, 2))", "x.amax(2)", "x.argmax(1)", "x.argmin(2, keepdim=True)"),
    *("x.softmax(1)", "x.log_softmax(2)", "torch.logsumexp(x, 1).relu()", "x.max(1)[0]"),
    *("x.min(2)[1]", "x.var(1)", "x.std((1, 2), keepdim=True)", "(x * 0.1 + 1).prod(1)"),
    *("(x > 2).any(1)", "x / x.norm(dim=1, keepdim=True)", "x.sum(0)", "x.softmax(0)"),
    "F.layer_norm(x.permute(0, 2, 3, 1), (4,)).permute(0, 3, 1, 2)",
]
POOLED = [
    *("F.max_pool2d(x, 3, 2, 1)", "F.avg_pool2d(x, 3, 2, 1, ceil_mode=True)"),
    "F.avg_pool2d(x, 3, 2, 1, count_include_pad=False) + 1",
]
KEPT = [
    *(
        "torch.stack([x, x], -1)",
        "F.pad(x, (1, 1, 1, 1), mode='reflect')",
        "x.flip(0)",
        "x.roll(5)",
        "x.sum().roll(-1)",
    ),
    *("torch.cat([x, x], 0)", "torch.cat([x] * 9, 1)", "torch.cat([x] * 5, -1)"),
    *(
        "x.sum(1, dtype=torch.float64)",
        "x.cumsum(1)",
        "F.max_pool2d(x.round().long().double(), 7, 5)",
    ),
]
MODEL = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        return (
            {results},
        )


def get_inputs():
    return [torch.randn(6, 4, 20, 24)]


def get_init_inputs():
    return []
"""


class Called(nn.Module):
    """A row of the table as a model of its own."""

    def __init__(self, row: str) -> None:
        super().__init__()
        scope = {"torch": torch, "F": nn.functional}
        self.function: Callable[[Tensor], Tensor] = eval(f"lambda x: {row}", scope)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def image(batch: int = 6, device: str = "cpu") -> Tensor:
    x = torch.randn(batch, 4, 20, 24, device=device)
    x[1, 1, 2, :4] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])
    return x


def graph_of(row: str) -> Graph:
    graph, _ = rewrite(capture(Called(row), [image()]).graph)
    return graph


def calls(graph: Graph) -> list[object]:
    return [n.called for n in toposort(graph.roots) if n.op == "library"]


@pytest.mark.slow
@pytest.mark.parametrize("row", [*MOVED, *REDUCED])
def test_the_rewritten_graph_has_the_same_meaning(row: str) -> None:
    after = lower_for_target(graph_of(row), GPU)
    assert not calls(after)
    x = image()
    (found,) = interpret(after, [x], {}, dtype=torch.float64)
    exact = Called(row)(x.double())
    torch.testing.assert_close(found.to(exact), exact, rtol=1e-11, atol=1e-11, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("row", KEPT)
def test_what_has_no_map_or_no_fast_one_stays(row: str) -> None:
    assert len(calls(lower_for_target(graph_of(row), GPU))) == 1


@pytest.mark.parametrize(
    ("row", "beside", "dtype", "stays"),
    [
        ("x.var(1)", 16, torch.float32, False),
        ("x.var(1)", 15, torch.float32, True),
        ("x.var(1)", 16, torch.float64, True),
        ("x.argmax(1)", 16, torch.int64, True),
        ("x.sum(1)", 2048, torch.float32, False),
        ("x.sum(1)", 2047, torch.float32, True),
        ("x.relu().sum(1)", 16, torch.float32, False),
    ],
)
def test_the_cpu_reduces_floats_across_memory_where_it_pays(
    row: str, beside: int, dtype: torch.dtype, stays: bool
) -> None:
    x = torch.ones(4, 6, beside, dtype=dtype)
    graph, _ = rewrite(capture(Called(row), [x]).graph)
    assert bool(calls(lower_for_target(graph, TARGETS["cpu"]))) == stays


@pytest.mark.parametrize("row", ["F.max_pool2d(x, 1)", "F.avg_pool2d(x, 1, 2)", "x.roll(24, -1)"])
def test_what_moves_nothing_is_still_new_memory(row: str) -> None:
    (output,) = lower_for_target(graph_of(row), GPU).outputs
    assert output.row.kind == "pointwise"


def test_a_piece_of_a_padded_tensor_needs_no_padded_tensor() -> None:
    made = make(Called("F.pad(x, (1, 1))[..., 2:] - F.pad(x, (1, 1))[..., :-2]"), [image()], GPU)
    (kernel,) = made.plan.kernels
    assert [leaf.op for leaf in kernel.leaves] == ["input"]


def test_equal_results_are_two_tensors() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x.argmin(1, keepdim=True), x.min(1)[1]

    graph, _ = rewrite(capture(Twice(), [image()]).graph)
    first, second = lower_for_target(graph, GPU).outputs
    assert base(first) is not base(second)


def test_both_results_of_a_call_are_ours() -> None:
    class Both(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            values, places = x.max(1)
            return values, places

    made = make(Both(), [image()], GPU)
    assert [len(kernel.reductions) for kernel in made.plan.kernels] == [2]
    assert not made.plan.libraries


# ---- kernels -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, nn.Module]:
    folder = tmp_path_factory.mktemp("late")
    path = folder / "rows.py"
    rows = [*MOVED, *REDUCED, *POOLED]
    path.write_text(MODEL.format(results=",\n            ".join(rows)), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "lower_for_target", lambda graph, _: written(graph))
        case = prepare(path)
    (module,) = build([case], folder)
    return case, module.ModelNew()


@pytest.mark.compiler
@pytest.mark.parametrize("batch", [2, 6, 7])
def test_kernels_compute_it(compiled: tuple[Case, nn.Module], batch: int) -> None:
    case, ours = compiled
    assert not [s for s in case.made.plan.libraries if s.node.op == "library"]
    x = image(batch)
    with torch.no_grad():
        assert ready(ours, [x])
    rows = [*MOVED, *REDUCED, *POOLED]
    found = disagreements(ours, case.model, [x])
    assert [f"{rows[int(t.split(':')[0])]}: {t}" if t[0].isdigit() else t for t in found] == []


@pytest.mark.compiler
def test_pieces_are_read_where_they_lie(compiled: tuple[Case, nn.Module]) -> None:
    """No kernel asks PyTorch for a padded, turned or cut tensor."""
    case, _ = compiled
    views = [n for k in case.made.plan.kernels for n in k.leaves if n.row.kind == "view"]
    assert [n for n in views if strided_view(n)] == []


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("row", [*MOVED, *REDUCED, *POOLED])
def test_gpu_kernels_compute_it(row: str) -> None:
    model = Called(row)
    ours = fusewright.optimize(model, image(), options={"target": "cuda"}).cuda()
    for batch in (2, 6, 37):
        assert disagreements(ours, model, [image(batch, "cuda")]) == []


# Sizes at which rows lie across memory in every way: kept, too long to be kept, shared by blocks.
ACROSS = [(3, 7, 50), (5, 33, 40), (2, 600, 33), (2, 3000, 20), (40_000, 19), (300, 100)]


def peculiar(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Rows along the last but one dimension, or the last of two: all kinds that a reduction may
    meet."""
    x = torch.randn(shape, dtype=torch.float64) * 20
    rows = x.movedim(-2, -1).flatten(0, -2) if len(shape) > 2 else x
    rows[0::7] = rows[0::7].sort(-1)[0]
    rows[1::7] = float("-inf")
    rows[2::7, : rows.shape[1] // 2] = float("-inf")
    rows[3::7, -1:] = float("inf")
    rows[4::7, rows.shape[1] // 3 :: 5] = float("nan")
    rows[5::7] = 0.0
    rows[5::7, ::2] = -0.0
    back = rows.unflatten(0, (shape[0], shape[-1])).movedim(-1, -2) if len(shape) > 2 else rows
    return back.to(dtype).contiguous()


# Rows that no team keeps: of one block, of several, of an odd length, across memory.
UNKEPT = [(9, 100_001), (8, 262_144), (200, 40_000), (2, 3000, 20), (2, 40_000, 19), (64, 1027, 33)]


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("shape", UNKEPT)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_gpu_one_sweep_for_exponentials_and_positions(dtype: str, shape: tuple[int, ...]) -> None:
    d, x = 1, peculiar(shape, getattr(torch, dtype))
    rows = ("x.softmax({d})", "x.logsumexp({d})", "x.log_softmax({d})", "x.argmax({d})")
    for row in (*rows, "x.argmin({d})", "(x.logsumexp({d}), x.amax({d}))"):
        model = Called(row.format(d=d))
        ours = fusewright.optimize(model, x, options={"target": "cuda"}).cuda()
        assert disagreements(ours, model, [x.cuda()], roundings=2) == [], row


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("shape", [(37, 61), (5, 4096), (9, 100_001), (2, 3000, 20), (2, 33, 40)])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "int32", "int64"])
def test_gpu_first_positions_of_integers(dtype: str, shape: tuple[int, ...]) -> None:
    kind = getattr(torch, dtype)
    low, high = (0, 1) if kind is torch.bool else (torch.iinfo(kind).min, torch.iinfo(kind).max)
    x = torch.randint(low, high, shape).to(kind)
    few = torch.tensor([low, low + 1, high]).to(kind)[torch.randint(0, 3, shape)]
    for row in ("x.argmax(1)", "x.argmin(1)"):
        model = Called(row)
        ours = fusewright.optimize(model, x, options={"target": "cuda"}).cuda()
        for values in (x, few, torch.full_like(x, low), torch.full_like(x, high)):
            theirs = torch.from_numpy(getattr(values.numpy(), row[2:8])(1))
            assert torch.equal(ours(values.cuda()).cpu(), theirs), row


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("shape", ACROSS)
@pytest.mark.parametrize("row", ["x.sum({d})", "x.softmax({d})", "x.argmax({d})", "x.var({d})"])
def test_gpu_rows_across_memory(row: str, shape: tuple[int, ...]) -> None:
    model = Called(row.format(d=len(shape) - 2))
    x = torch.randn(shape)
    ours = fusewright.optimize(model, x, options={"target": "cuda"}).cuda()
    for scale in (1.0, 100.0):
        assert disagreements(ours, model, [(x * scale + 1).cuda()], roundings=2) == []
