"""Losses as formulas: the same meaning as PyTorch's in float64, on the CPU the same numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fusewright
from fusewright.frontend.capture import capture
from fusewright.ir.graph import Graph, toposort
from fusewright.ir.interpreter import interpret
from fusewright.rewrite.simplify import rewrite
from fusewright.rewrite.target_lowering import lower_for_target
from fusewright.targets.target import TARGETS

CPU = TARGETS["cpu"]
# x, y: [6, 300]; t: classes
WRITTEN = [
    *("F.l1_loss(x, y)", "F.triplet_margin_loss(x, y, y + 1)", "F.hinge_embedding_loss(x, y)"),
    *("F.binary_cross_entropy_with_logits(x, y)", "F.margin_ranking_loss(x, y, y)", "F.glu(x)"),
    *("F.cosine_embedding_loss(x, y, y[:, 0].sign())", "F.smooth_l1_loss(x, y, beta=0.0)"),
    *(
        "F.mse_loss(x, y)",
        "F.mse_loss(x, y, reduction='sum')",
        "F.mse_loss(x, y, reduction='none')",
    ),
    *("F.smooth_l1_loss(x, y)", "F.smooth_l1_loss(x, y, beta=0.5)", "F.huber_loss(x, y)"),
    *("F.huber_loss(x, y, delta=0.3)", "F.mse_loss(x[:, :20], y[:, :20])"),
    *("F.kl_div(x.log_softmax(1), y.softmax(1), reduction='batchmean')", "F.kl_div(x, y.relu())"),
    *("F.kl_div(x, y, reduction='sum', log_target=True)", "F.cosine_similarity(x, y)"),
    *("F.cosine_similarity(x * 0, y)", "F.cosine_similarity(x, y, dim=-1, eps=30.0)"),
]
CLASSES = [
    *("F.cross_entropy(x, t)", "F.cross_entropy(x, t, reduction='sum')"),
    "F.cross_entropy(x * 100, t.clamp_min(0), ignore_index=3)",
    *("F.cross_entropy(x * 3, t, reduction='none')", "F.cross_entropy(x[None].mT, t[None] % 6)"),
    "F.cross_entropy(x.reshape(6, 15, 20), torch.arange(120).reshape(6, 20) % 15, ignore_index=4)",
]
KEPT = [
    "F.cosine_similarity(x, y, dim=0)",
    *("F.cross_entropy(x, t, label_smoothing=0.1)", "F.cross_entropy(x, y.softmax(1))"),
]


class Called(nn.Module):
    def __init__(self, row: str) -> None:
        super().__init__()
        self.function = eval(f"lambda x, y, t: {row}", {"torch": torch, "F": F})

    def forward(self, x: Tensor, y: Tensor, t: Tensor) -> Tensor:
        return self.function(x, y, t)  # type: ignore[no-any-return]


def inputs() -> list[Tensor]:
    return [torch.randn(6, 300), torch.randn(6, 300), torch.tensor([3, 0, 299, 3, -100, 7])]


def planned(row: str) -> Graph:
    return lower_for_target(rewrite(capture(Called(row), inputs()).graph)[0], CPU)


def calls(row: str) -> list[object]:
    return [n.called for n in toposort(planned(row).roots) if n.op == "library"]


@pytest.mark.compiler
@pytest.mark.parametrize("row", WRITTEN)
def test_the_formula_has_the_meaning_of_the_call(row: str) -> None:
    given = inputs()
    given[0][1, 2] = float("nan")
    given[1][2, 5:8] = torch.tensor([float("inf"), 0.0, -1.0])
    assert not calls(row)
    for x, y in ((given[0], given[1]), (inputs()[0], inputs()[1])):
        (found,) = interpret(planned(row), [x, y, given[2]], {}, dtype=torch.float64)
        exact = Called(row)(x.double(), y.double(), given[2])
        torch.testing.assert_close(found.to(exact), exact, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("row", CLASSES)
def test_classes_are_looked_up_by_pytorch(row: str) -> None:
    assert "aten.nll_loss" in calls(row)
    assert "aten.cross_entropy_loss" not in calls(row)


@pytest.mark.parametrize("row", KEPT)
def test_what_has_no_formula_stays(row: str) -> None:
    assert len(calls(row)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("row", [*WRITTEN, *CLASSES])
@torch.no_grad()
def test_kernels_agree_with_float64(row: str) -> None:
    model, given = Called(row), inputs()
    ours = fusewright.optimize(model, *given, options={"target": "cpu"})
    exact = model(given[0].double(), given[1].double(), given[2])
    torch.testing.assert_close(ours(*given).double(), exact, rtol=3e-6, atol=3e-6)


@pytest.mark.compiler
@torch.no_grad()
def test_a_target_that_is_no_class_is_an_error() -> None:
    given = inputs()
    model = Called(CLASSES[0])
    ours = fusewright.optimize(model, *given, options={"target": "cpu"})
    given[2][0] = 300
    with pytest.raises(IndexError) as theirs:
        model(*given)
    with pytest.raises(IndexError, match=str(theirs.value)):
        ours(*given)
