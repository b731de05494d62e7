"""Where kernels of a GPU and of a CPU disagree about infinities, both answers are right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fusewright.judge.evidence.cpu_kernels import where_lost
from fusewright.judge.evidence.oracle import Oracle
from fusewright.judge.evidence.pytree import mapped, upcast
from fusewright.judge.judging import judge
from tests.support.judge_in_one_process import failures, honest, judged

# As PyTorch's kernel for rows without whole vectors has it on a GPU, and as the others have it.
BY_MOMENTS = (
    "x * torch.rsqrt(x.var(1, correction=0, keepdim=True) + x.mean(1, keepdim=True).square())"
)
BY_SQUARES = "x * torch.rsqrt(x.square().mean(1, keepdim=True))"
PROBLEM = """
class Model(nn.Module):
    def forward(self, x):
        return {}

def get_inputs():
    return [torch.randn(6, 23)]

def get_init_inputs():
    return []
"""


def by_squares(lab: Oracle, values: Sequence[object], state: object, mode: str) -> Sequence[Tensor]:
    (x,) = mapped(values, upcast)
    return [eval(BY_SQUARES, {"torch": torch, "x": x})]


def hazards(folder: Path, problem: str, candidate: str) -> list[str]:
    return failures(judged(folder, problem, candidate, ("hazards",)))


def test_an_answer_of_the_other_kernels_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, candidate = PROBLEM.format(BY_MOMENTS), honest(PROBLEM.format(BY_SQUARES))
    found = hazards(tmp_path, problem, candidate)
    assert found
    assert all("non-finite" in failure for failure in found)
    monkeypatch.setattr(Oracle, "_on_a_cpu", by_squares)
    assert not hazards(tmp_path, problem, candidate)
    other = honest(PROBLEM.format(f"({BY_SQUARES}).nan_to_num(1.0)"))
    assert hazards(tmp_path, problem, other)


def test_what_is_finite_for_eager_stays() -> None:
    nan, inf = float("nan"), float("inf")
    eager = torch.tensor([1.0, nan, nan, inf, nan, nan])
    other = torch.tensor([1.5, 2.0, 2.0, 3.0, nan, inf], dtype=torch.float64)
    output = torch.tensor([1.5, 2.0, 2.1, 3.0, 7.0, inf])
    found = where_lost(output, eager, other, 1e-4)
    wanted = torch.tensor([1.5, nan, 2.1, inf, 7.0, nan])
    assert torch.equal(found.nan_to_num(-1.0), wanted.nan_to_num(-1.0))


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [23, 24])
def test_rms_norm_is_right_either_way_on_a_gpu(columns: int, tmp_path: Path) -> None:
    text = f"import torch\nfrom torch import nn\n{PROBLEM.replace('23', str(columns))}"
    problem, candidate = tmp_path / "problem.py", tmp_path / "candidate.py"
    called = f"nn.functional.rms_norm(x, ({columns},), eps=1e-5)"
    problem.write_text(text.format(called), encoding="utf-8")
    spelled = "x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-5)"
    candidate.write_text(honest(text.format(spelled)), encoding="utf-8")
    verdict = judge(problem, candidate, device="cuda", timing=False)
    assert verdict.verdict == "verified", [c for c in verdict.checks if c.outcome == "fail"]
