"""The sign of an extreme of zeros of both signs is free; of zeros of one sign it is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusewright.judge.evidence.pytree import mapped, upcast
from tests.support.judge_in_one_process import failures, honest, judged

PROBLEM = """
class Model(nn.Module):
    def forward(self, x):
        z = x * 0
        return {}

def get_inputs():
    return [torch.randn(6, 24)]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("extreme", ["amax(1)", "amin(1)", "max(1)[0]", "min(1, keepdim=True)[0]"])
def test_both_signs_are_right_where_a_row_has_both(extreme: str, tmp_path: Path) -> None:
    problem = PROBLEM.format(f"torch.signbit(z.{extreme})")
    turned = honest(PROBLEM.format(f"torch.signbit(z.flip(1).{extreme})"))
    other = honest(PROBLEM.format(f"~torch.signbit(z.{extreme})"))
    assert not failures(judged(tmp_path, problem, turned, ("fresh",)))
    assert not failures(judged(tmp_path, problem, other, ("fresh",)))


@pytest.mark.parametrize("extreme", ["amax(1)", "amin(1)", "max(1)[0]"])
def test_one_sign_is_the_sign(extreme: str, tmp_path: Path) -> None:
    problem = PROBLEM.format(f"torch.signbit((-z.abs()).{extreme})")
    wrong = honest(PROBLEM.format(f"torch.signbit(z.abs().{extreme})"))
    assert not failures(judged(tmp_path, problem, honest(problem), ("fresh",)))
    assert failures(judged(tmp_path, problem, wrong, ("fresh",)))


def test_copies_of_overlapping_arguments_overlap() -> None:
    whole, apart = torch.randn(4, 6), torch.randn(3)
    copies = mapped([whole, whole[1:], {"k": whole.t()}, apart], upcast)
    first, piece, named, other = copies
    assert isinstance(first, torch.Tensor)
    first.add_(1)
    assert first.dtype is torch.float64
    assert torch.equal(first, whole.double() + 1)
    assert torch.equal(piece, first[1:])  # type: ignore[arg-type]
    assert torch.equal(named["k"], first.t())  # type: ignore[index]
    assert torch.equal(other, apart.double())  # type: ignore[arg-type]


def test_copies_of_neighbours_are_apart() -> None:
    whole = torch.randn(4, 6)
    left, right = mapped([whole[:2], whole[2:]], torch.Tensor.clone)
    assert isinstance(left, torch.Tensor)
    assert isinstance(right, torch.Tensor)
    assert left.untyped_storage().data_ptr() != right.untyped_storage().data_ptr()
