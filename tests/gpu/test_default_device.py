"""On a GPU: models that make tensors without naming a device are optimized, judged and timed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from fusewright.compiler.pipeline import optimize_file
from fusewright.judge import judge
from fusewright.judge.findings import Verdict

pytestmark = pytest.mark.gpu

PROBLEM = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.places = nn.Embedding(64, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x):
        n = x.shape[1]
        x = self.norm(x + self.places(torch.arange(n))) * torch.tensor([0.5] * 16)
        hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
        scores = (x @ x.mT).masked_fill(hidden, float("-inf"))
        return torch.softmax(scores, -1) @ x

def get_inputs():
    return [torch.randn(64, 48, 16)]

def get_init_inputs():
    return []
"""
AS_IT_WAS = PROBLEM.replace("class Model(", "class ModelNew(")
NAMED = (
    AS_IT_WAS.replace("arange(n)", "arange(n, device=x.device)")
    .replace("[0.5] * 16", "[0.5] * 16, device=x.device")
    .replace("bool)", "bool, device=x.device)")
)
IS_SET = 'torch.get_default_device().type == "cuda"'


def changed(when: str) -> str:
    return NAMED.replace(
        "return torch.soft", f"x = x + 1 if {when} else x\n        return torch.soft"
    )


@dataclass(frozen=True)
class Judged:
    """word: the verdict.  note: what the row of the default device says."""

    source: str
    word: str
    note: str = ""


CANDIDATES = {
    "as it was": Judged(AS_IT_WAS, "verified", "the candidate raises, as eager does"),
    "names its devices": Judged(NAMED, "verified", "the candidate is right, where eager raises"),
    "wrong without a default": Judged(changed(f"not {IS_SET}"), "refuted"),
    "wrong under a default": Judged(changed(IS_SET), "refuted"),
}


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def row_of(verdict: Verdict, check: str) -> str:
    return next((row.evidence for row in verdict.checks if row.check == check), "")


@pytest.mark.parametrize("name", CANDIDATES)
def test_candidates(name: str, tmp_path: Path) -> None:
    wanted, problem = CANDIDATES[name], written(tmp_path, "problem.py", PROBLEM)
    candidate = written(tmp_path, "candidate.py", wanted.source)
    verdict = judge(problem, candidate, device="cuda", timing=False)
    said = row_of(verdict, "default-device")
    assert verdict.verdict == wanted.word, (verdict.reason, verdict.findings)
    assert "torch.set_default_device('cuda')" in said
    assert f"{problem}:13 and 1 more line:" in said
    assert wanted.note in said


def test_who_names_its_devices_is_judged_in_plain(tmp_path: Path) -> None:
    problem = written(tmp_path, "problem.py", NAMED.replace("ModelNew", "Model"))
    candidate = written(tmp_path, "candidate.py", NAMED)
    verdict = judge(problem, candidate, device="cuda", timing=False)
    assert verdict.verdict == "verified", (verdict.reason, verdict.findings)
    assert not row_of(verdict, "default-device")


def test_the_emitted_file_needs_no_default(tmp_path: Path) -> None:
    """Tuned and timed, too: eager and its second process run. torch.compile does where it minds the
    default: before PyTorch 2.13 it makes tensors on the CPU (pytorch/pytorch#151202)."""
    problem = written(tmp_path, "problem.py", PROBLEM)
    outcome = optimize_file(problem, out=tmp_path / "fused.py")
    verdict = outcome.verdict
    assert verdict is not None
    assert verdict.verdict == "verified", (verdict.reason, verdict.findings)
    assert "the candidate is right, where eager raises" in row_of(verdict, "default-device")
    assert verdict.timing is not None
    assert {"eager", "eager again"} <= set(verdict.timing["sides"])
    for side, why in verdict.timing["missing"].items():
        assert (side, "two different devices" in why) == ("torch.compile", True), why
    assert outcome.tuning is not None
    assert outcome.tuning["tried"], outcome.tuning


RETURNS = """
import torch
import torch.nn as nn

class Inner(nn.Module):
    def forward(self, x):
        return torch.softmax(torch.tanh(x) * 2 + 1, -1)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        return self.inner(x), torch.arange(x.shape[0]), torch.tensor(0.0), x[:1].cpu()

def get_inputs():
    return [torch.randn(512, 1024)]

def get_init_inputs():
    return []
"""


def test_what_eager_returns_on_the_cpu_lies_there(tmp_path: Path) -> None:
    problem = written(tmp_path, "problem.py", RETURNS)
    outcome = optimize_file(problem, out=tmp_path / "fused.py", timing=False)
    verdict = outcome.verdict
    assert verdict is not None
    assert verdict.verdict == "verified", (verdict.reason, verdict.findings)
    assert not row_of(verdict, "default-device")
    assert outcome.kernels, outcome.decisions


def test_the_line_of_what_no_default_reaches(tmp_path: Path) -> None:
    text = PROBLEM.replace("torch.arange(n)", "torch.arange(n, device='cpu')")
    problem = written(tmp_path, "problem.py", text)
    candidate = written(tmp_path, "candidate.py", NAMED)
    verdict = judge(problem, candidate, device="cuda", timing=False)
    assert verdict.verdict == "not-verified"
    assert f"{problem}:13 makes a tensor" in verdict.reason
    assert "device=x.device" in verdict.reason
