"""Who does not pass with the sensitivity of another draw is judged with that of his own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fusewright.judge.evidence import trial
from fusewright.judge.evidence.oracle import Oracle
from fusewright.judge.evidence.trial import Trial
from fusewright.judge.isolation.pinned_memory import Pinned, map_pinned
from fusewright.judge.isolation.protocol import Region
from fusewright.judge.isolation.tensor_transport import describe, pack, put_results

# A row that begins with 1 jumps where it is smaller by one rounding; no draw has such rows.
PROBLEM = """
import torch
from torch import nn

rows, width = 32, 40


class Model(nn.Module):
    def forward(self, x):
        return x + 64.0 * (x[:, :1] * 3.0 >= 3.0)


def get_inputs():
    return [torch.randn(rows, width)]
"""
NEAR = 8  # rows that begin with 1


@pytest.fixture
def region() -> Iterator[Pinned]:
    made = Region("test", 1 << 24)
    yield map_pinned(made.fd, writable=True)
    made.close()


@pytest.mark.parametrize(("row", "right"), [(0, True), (NEAR + 1, False)])
def test_nobody_is_refuted_with_a_borrowed_one(
    row: int, right: bool, region: Pinned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer has jumped in a row: where that is no further than a rounding, it is right."""
    monkeypatch.setattr(trial.secrets, "randbelow", lambda _: 1)  # it borrows
    problem = tmp_path / "problem.py"
    problem.write_text(PROBLEM)
    order = {"device": "cpu", "accuracy": "contract", "seed": "17" * 16, "overrides": {}}
    lab = Oracle({**order, "problem": str(problem)})
    lab.examine()
    x = torch.randn(32, 40).clamp_(-0.9, 0.9)
    x[:NEAR, 0] = 1.0
    answered = lab.model(x.clone())
    answered[row] += -64.0 if row < NEAR else 64.0
    records = put_results([answered], region, "cpu", [])
    answer = {"text": describe(answered, []), "tensors": [vars(record) for record in records]}
    judging = Trial(lab, region, region, {})
    judging.judge_timed(pack([x], 1), answer, lab.state, lab.typical, hazard=False)
    assert any(outcome == "fail" for _, outcome, _ in judging.rows) != right
