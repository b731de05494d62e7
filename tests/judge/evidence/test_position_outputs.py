"""A position is right if the value there is as good as the best one; and only then."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.judge_in_one_process import failures, honest, judged

NEAR = """
class Model(nn.Module):
    def forward(self, x):
        return {}

def get_inputs():
    return [torch.randn(8, 20000) * 1.5]

def get_init_inputs():
    return []
"""
# A sine that rounds otherwise, and operators that return positions.
OTHER_SINE = "(torch.sin(x.double()).float() * 0.99999994)"
OPERATORS = (
    "{}.argmin(1)", "torch.argmax({}, dim=1, keepdim=True)", "torch.max({}, 1)[1]", "{}.argmax()",
    "{}.topk(3, dim=1)[1]", "torch.sort({}[:, :2000], dim=1)[1]", "{}.t().min(0)[1]",
)  # fmt: skip


@pytest.mark.parametrize("operator", OPERATORS)
def test_near_ties_are_right(operator: str, tmp_path: Path) -> None:
    problem = NEAR.format(operator.format("torch.sin(x)"))
    other = honest(NEAR.format(operator.format(OTHER_SINE)))
    assert not failures(judged(tmp_path, problem, other, ("fresh", "probes")))


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("wrong", ["torch.sin(x).bfloat16().float()", "torch.sin(x).roll(1, -1)"])
def test_a_position_of_another_value_is_refuted(operator: str, wrong: str, tmp_path: Path) -> None:
    problem = NEAR.format(operator.format("torch.sin(x)"))
    other = honest(NEAR.format(operator.format(wrong)))
    assert failures(judged(tmp_path, problem, other, ("fresh", "probes")))


@pytest.mark.parametrize(
    ("own", "other"),
    [
        # Exact ties: the first one, as eager; the last one is refuted.
        ("torch.relu(x - 9).argmax(1)", "x.shape[1] - 1 - torch.relu(x - 9).flip(1).argmax(1)"),
        # Nothing was computed: there are no near ties.
        ("x.argmax(1)", "x.round().argmax(1)"),
        # One position for two places.
        ("torch.sin(x).topk(2, 1)[1]", "torch.sin(x).topk(1, 1)[1].expand(-1, 2).contiguous()"),
        # NaN: the first one, as eager.
        ("torch.log(x).argmax(1)", "torch.log(x).nan_to_num(-9.0).argmax(1)"),
    ],
)
def test_where_eager_decides(own: str, other: str, tmp_path: Path) -> None:
    problem = NEAR.format(own)
    assert not failures(judged(tmp_path, problem, honest(problem), ("fresh", "probes")))
    assert failures(judged(tmp_path, problem, honest(NEAR.format(other)), ("fresh", "probes")))
