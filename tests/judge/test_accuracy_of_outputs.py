"""The report tells the errors of each output, and they are those of that output."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusewright.judge.environment import accuracy_table
from fusewright.judge.judging import judge_request
from fusewright.judge.request import Request

PROBLEM = """
import torch
import torch.nn as nn

class {name}(nn.Module):
    def forward(self, x):
        return torch.relu(x), torch.exp({x}).sum(-1)

def get_inputs():
    return [torch.randn(32, 64)]

def get_init_inputs():
    return []
"""


def test_the_worst_of_all_is_the_worst_of_each() -> None:
    numbers = {0: {"rel_l2_candidate": 1.0}, 1: {"rel_l2_candidate": 3.0, "ulp_max": 2.0}}
    table = accuracy_table({"rel_l2_candidate": 3.0}, numbers)
    outputs = table["outputs"]
    assert isinstance(outputs, dict)
    assert [*outputs] == ["output 0", "output 1"]
    assert outputs["output 0"]["candidate"] == {"rel_l2": 1.0}
    assert outputs["output 1"]["ulp"] == {"max": 2.0}
    assert "outputs" not in accuracy_table({}, {0: numbers[0]}), "one is all"


@pytest.mark.judged
def test_an_exact_output_beside_one_that_rounds(tmp_path: Path) -> None:
    for name, x in (("Model", "x"), ("ModelNew", "x.flip(-1)")):
        (tmp_path / f"{name}.py").write_text(PROBLEM.format(name=name, x=x))
    paths = tmp_path / "Model.py", tmp_path / "ModelNew.py"
    request = Request(*paths, timing=False, seed="5a" * 16, only=("fresh",))
    accuracy = judge_request(request, lambda _: None).accuracy
    outputs = accuracy["outputs"]
    assert isinstance(outputs, dict)
    errors = [outputs[f"output {k}"]["candidate"]["rel_l2"] for k in (0, 1)]
    assert errors[0] == 0.0
    assert 0.0 < errors[1] < 1e-6
    whole = accuracy["candidate"]
    assert isinstance(whole, dict)
    assert whole["rel_l2"] == errors[1]
