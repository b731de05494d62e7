"""Costly problems are asked most of their questions with fewer rows, and float64 not always."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch

from fusewright.judge.counts import Counts
from fusewright.judge.evidence import contract, hazard_cases
from fusewright.judge.evidence.oracle import Oracle
from fusewright.judge.timing.timed_answers import in_turn
from tests.support.corpus import judged
from tests.support.folders import PROBLEMS

PROBLEM = PROBLEMS / "linear_relu.py"
ROWS, FEW = 32, 3
# As if a call took a minute: every experiment makes the fewest of full size.
COSTLY = Counts("cpu", 60.0, 30.0, 1.0, 30.0, 60.0, few=FEW)
TEXT = """import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.calls, self.seen = 0, {{}}

    def forward(self, x):
        rows, self.calls = x.shape[0], self.calls + 1
{body}
        return torch.relu(self.proj(x))
"""
WRONG = "            return torch.relu(self.proj(x)) * 1.01"
# What a candidate does before it answers -> the word, and a check or a note.
BODIES = {
    "nothing": ("        pass", "verified", ""),
    "refuses fewer rows": (
        f"        if rows != {ROWS}:\n            raise ValueError('32 rows')",
        "verified",
        "specialised",
    ),
    "wrong with few rows": (f"        if rows == {FEW}:\n{WRONG}", "refuted", "hazard-shapes"),
    "wrong with one row": (f"        if rows == 1:\n{WRONG}", "refuted", "hazard-shapes"),
    "wrong at full size": (f"        if rows == {ROWS}:\n{WRONG}", "refuted", "accuracy"),
    "wrong in one row at full size": (
        f"        if rows == {ROWS}:\n"
        "            made = torch.relu(self.proj(x))\n"
        "            made[19] *= 1 + 2e-5\n"
        "            return made",
        "refuted",
        "accuracy",
    ),
    "wrong at full size, later": (
        f"        if rows == {ROWS} and self.calls > 14:\n{WRONG}",
        "refuted",
        "",
    ),
    "answers again at full size": (
        f"        key = x.data_ptr()\n        if rows == {ROWS} and key in self.seen:\n"
        "            return self.seen[key].clone()\n"
        "        self.seen[key] = torch.relu(self.proj(x)).detach()\n"
        "        return self.seen[key].clone()",
        "refuted",
        "stale-cache",
    ),
    "keeps its weights at full size": (
        f"        if rows == {ROWS}:\n"
        "            w = self.seen.setdefault('w', self.proj.weight.clone())\n"
        "            return torch.relu(torch.nn.functional.linear(x, w, self.proj.bias))",
        "refuted",
        "weight-change",
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_what_is_wrong_at_one_size_is_refuted(name: str, tmp_path: Path) -> None:
    body, word, found = BODIES[name]
    candidate = tmp_path / "candidate.py"
    candidate.write_text(TEXT.format(body=body), encoding="utf-8")
    outcome = judged(PROBLEM, candidate, {"timing": False, "counts": COSTLY.written()})
    assert outcome.verdict == word, str(outcome)
    assert not found or found in (*outcome.failing, *outcome.notes), str(outcome)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_what_is_close_to_eager_is_within_the_limits_whatever_float64_says(
    dtype: torch.dtype,
) -> None:
    """Eager's errors from none to enormous, the candidate's around what is half of the limits."""
    info, accepted = torch.finfo(dtype), 0
    for seed in range(120):
        draws = torch.Generator().manual_seed(seed)

        def noise(size: float, draws: torch.Generator = draws) -> torch.Tensor:
            return size * info.eps * torch.randn(7, 150, generator=draws, dtype=torch.float64)

        truth = torch.randn(7, 150, generator=draws, dtype=torch.float64)
        truth *= torch.randn(7, 1, generator=draws, dtype=torch.float64).exp()
        eager = (truth * (1 + noise(2.0 ** (seed % 12 - 2)))).to(dtype)
        some = torch.rand(7, 150, generator=draws) < 0.1 * (seed % 11)
        apart = noise(2.0 ** (seed % 17 - 2)) * some
        candidate = (eager.double() * (1 + apart)).to(dtype)
        borrowed = (0.0, 1.0, 8.0)[seed % 3] * info.eps
        kappa = truth.abs() * info.eps / 2 + borrowed
        other = (truth.flip(0) * (1 + noise(2.0 ** (seed % 12 - 2)))).to(dtype)
        usual = contract.usual_errors(other, truth.flip(0), borrowed) if seed % 2 else {}
        if contract.close(candidate, eager, borrowed, usual):
            accepted += 1
            found = contract.compare(candidate, eager, truth, kappa)
            assert found.passed, (seed, found.detail)
    assert 20 <= accepted <= 110


def test_what_is_not_finite_or_of_another_type_is_never_close() -> None:
    x = torch.randn(5, 70)
    assert contract.close(x, x)
    for other in (x.double(), x[:4], x.clone().fill_(float("nan"))):
        assert not contract.close(other, x)
    lost = x.clone()
    lost[2, 3] = float("inf")
    assert not contract.close(lost, lost)
    assert not contract.close(torch.arange(4), torch.arange(4))


REFERENCES = {
    "rows alone": ("torch.relu(self.proj(x))", True),
    "softmax of rows": ("torch.softmax(self.proj(x), -1)", True),
    "two outputs": ("(self.proj(x), x.sin())", True),
    "minus the mean of the batch": ("torch.relu(self.proj(x)) - x.mean(0)[:48]", False),
    "a running sum along the batch": ("self.proj(x).cumsum(0)", False),
    "another row": ("self.proj(x).roll(1, 0)", False),
    "a number for the batch": ("torch.relu(self.proj(x)).sum()", False),
    "one output of the batch": ("(self.proj(x), x.sum(0))", False),
    "turned": ("self.proj(x).T", False),
    "more rows": ("self.proj(x).repeat(2, 1)", False),
}


def examined(text: str, folder: Path) -> Oracle:
    """What the judge knows of a costly problem of 640 rows."""
    problem = folder / "problem.py"
    problem.write_text(text, encoding="utf-8")
    lab = Oracle({
        "device": "cpu", "accuracy": "contract", "truth": "rows", "seed": "17" * 16,
        "problem": str(problem), "overrides": {"rows": "640"}, "counts": COSTLY.written(),
    })  # fmt: skip
    lab.examine()
    return lab


@pytest.mark.parametrize("name", REFERENCES)
def test_rows_are_judged_alone_where_none_depends_on_others(name: str, tmp_path: Path) -> None:
    returned, apart = REFERENCES[name]
    lab = examined(PROBLEM.read_text().replace("torch.relu(self.proj(x))", returned), tmp_path)
    assert lab.few == FEW
    assert lab.part == (40 if apart else 0)
    assert lab.apart == ({"train", "eval"} if apart else set())


INPUTS = {
    "one": ("torch.randn(rows, width)", True),
    "not contiguous": ("torch.randn(width, rows).t()", False),
    "whole numbers": ("torch.arange(rows * width).reshape(rows, width)", False),
}


@pytest.mark.parametrize("name", INPUTS)
def test_a_draw_that_is_used_again_begins_elsewhere(name: str, tmp_path: Path) -> None:
    drawn, again = INPUTS[name]
    text = PROBLEM.read_text().replace("torch.randn(rows, width)", drawn)
    assert drawn in text
    lab = examined(text.replace("self.proj(x)", "self.proj(x.float())"), tmp_path)
    (own,) = lab.own_values
    assert isinstance(own, torch.Tensor)
    places = set()
    for tag in (("soak", 0), ("late",), ("again", 0), ("instances", 1)):
        (found,) = lab.inputs(*tag)
        assert isinstance(found, torch.Tensor)
        assert found.shape == own.shape
        turned = [k for k in range(640) if torch.equal(found.roll(-k, 0), own)]
        assert bool(turned) == (again or name == "whole numbers"), tag
        places |= {*turned}
        assert torch.equal(found, lab.inputs(*tag)[0])  # type: ignore[arg-type]
    assert len(places) == (4 if again else name == "whole numbers")
    for tag in (("fresh", 1), ("changed", 0), ("mode", 0), ("weights", "data")):
        (found,) = lab.inputs(*tag)
        assert not again or not any(torch.equal(found.roll(-k, 0), own) for k in range(640))


def test_of_few_cases_between_timed_calls_one_is_nan_and_none_is_of_a_kind_twice() -> None:
    inputs = [torch.randn(64, 32)]
    for seed in range(20):
        found = in_turn(hazard_cases.matrix(inputs, seed=seed), Random(seed))[:5]
        assert found[0].name == "special-nan-0"
        kinds = [c.name.rpartition("-")[0] if c.family == "special" else c.family for c in found]
        assert len(set(kinds)) == len(kinds)
