"""Results whose sizes depend on values: float64 may select others than eager."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusewright.judge.evidence.legal_inputs import Illegal
from fusewright.judge.evidence.oracle import NotJudgeable, Oracle
from fusewright.judge.isolation import candidate_worker
from tests.support.judge_in_one_process import OneProcess, failures, honest, judged

NOTHING = "\n\ndef get_init_inputs():\n    return []\n"
# Where a number is selected depends on its last bits: each draw has elements about which eager and
# float64 are of two minds, or, seldom, none.
SELECTED = """
class Model(nn.Module):
    def forward(self, x):
        y = x * 3.0
        return x[y - x - x {than} x], y

def get_inputs():
    return [torch.randn({count})]
"""
SELDOM = """
class Model(nn.Module):
    def forward(self, x):
        y = torch.sigmoid(x)
        kept = y > y.mean()
        return y[kept], y

def get_inputs():
    return [torch.randn(4, 25)]
"""


EXPERIMENTS = ("fresh", "probes", "hazards")


def test_sizes_that_roundings_decide_on_own_inputs_cannot_be_judged(tmp_path: Path) -> None:
    problem = SELECTED.format(than=">", count=999)
    one = OneProcess(tmp_path, problem + NOTHING, honest(problem))
    with pytest.raises(NotJudgeable, match="float64 gives shape"):
        one.open()


def test_sizes_that_roundings_decide_elsewhere_are_no_case(tmp_path: Path) -> None:
    rows = judged(tmp_path, SELDOM + NOTHING, honest(SELDOM), EXPERIMENTS)
    assert not failures(rows)


@pytest.mark.parametrize(
    "wrong", ["y[kept] * 1.01, y", "y[kept][1:], y", "y[kept].flip(0), y", "y[kept], y * 1.01"]
)
def test_what_is_selected_is_still_compared(wrong: str, tmp_path: Path) -> None:
    cheat = honest(SELDOM).replace("y[kept], y", wrong)
    assert failures(judged(tmp_path, SELDOM + NOTHING, cheat, ("fresh",)))


def test_gradients_that_float64_does_not_have_are_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_sizes(*_: object) -> list[torch.Tensor]:
        raise Illegal("RuntimeError: Mismatch in shape: grad_output[0] has a shape of [3]")

    monkeypatch.setattr(Oracle, "true_gradients", other_sizes)
    monkeypatch.chdir(tmp_path)
    one = OneProcess(tmp_path, SELDOM + NOTHING, honest(SELDOM))
    one.open()
    host = candidate_worker.Host(*one._ends, "cpu")
    one._run(host, "setup")
    rows = one._run(host, "gradients")["over"]
    (outcome,) = [outcome for check, outcome, *_ in rows if check == "gradients"]
    assert outcome == "gap"


# ---- complex numbers -----------------------------------------------------------------------------

COMPLEX = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))
        self.register_buffer("last", torch.zeros(4, dtype=torch.complex64))

    def forward(self, z, x):
        y = (z @ self.w) * torch.polar(x.abs(), x)
        if self.training:
            self.last.copy_(y.detach().mean(0))
        return y, y.abs(), y.conj()

def get_inputs():
    return [torch.randn(3, 4, dtype=torch.complex64), torch.randn(3, 4)]
"""


def test_complex_arguments_buffers_and_results(tmp_path: Path) -> None:
    rows = judged(tmp_path, COMPLEX + NOTHING, honest(COMPLEX))
    assert not failures(rows)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("torch.polar(x.abs(), x)", "torch.polar(x.abs(), -x)"),
        ("mean(0)", "mean(0).conj().resolve_conj()"),
        ("y.conj()", "y + 0"),
    ],
)
def test_complex_numbers_are_compared_in_both_parts(
    before: str, after: str, tmp_path: Path
) -> None:
    cheat = honest(COMPLEX).replace(before, after)
    assert failures(judged(tmp_path, COMPLEX + NOTHING, cheat, ("fresh", "buffers")))
