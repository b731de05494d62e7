"""A report of `optimize` as the HTML page gets it: planned for real, with a verdict and times that
are made up, so that a test knows what should stand on the page."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fusewright.compiler.pipeline import explain_file
from fusewright.html_report.problem_page import ProblemPage
from fusewright.judge.findings import Row, Verdict
from fusewright.report.run_report import OptimizeResult, outcome_report

# Two outputs, three kernels and a call of PyTorch's on the CPU; names and texts that would be tags.
SOURCE = '''"""A model </title><script>alert("docstring")</script>."""
import torch
import torch.nn as nn

rows = 64


class Model(nn.Module):
    """<img src=x onerror=alert(1)>"""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({"<script>alert(2)</script>": nn.LayerNorm(128)})
        self.up = nn.Linear(128, 256)

    def forward(self, x):
        y = self.parts["<script>alert(2)</script>"](torch.relu(x) + x)  # <b onclick="alert(3)">
        z = torch.softmax(self.up(y), -1)
        return y, z * torch.tanh(z)


def get_inputs():
    return [torch.randn(rows, 128)]


def get_init_inputs():
    return []
'''
CHECKS = (
    Row("values", "pass", "5 draws <script>alert(4)</script>", 40),
    Row("accuracy", "fail", "output 1: error 3.1e-04", 12),
    Row("gradients", "skip", "not asked for"),
    Row("more-accurate", "note", "less than half of eager's error"),
)
RATIOS = {
    "eager": {"median": 1.5, "low": 1.4, "high": 1.6, "claim": "faster"},
    "torch.compile": {"median": 0.8, "low": 0.75, "high": 0.85, "claim": "slower"},
}
TIMING = {
    "sides": {
        "candidate": {"p50_s": 0.002},
        "eager": {"p50_s": 0.003},
        "torch.compile": {"p50_s": 0.0016},
    },
    "ratios": RATIOS,
}
ERRORS = {"rel_l2": 2.2e-07, "max_abs": 6.8e-07}, {"rel_l2": 2.1e-07, "max_abs": 7.9e-07}
ACCURACY = {
    "candidate": ERRORS[0],
    "eager": ERRORS[1],
    "outputs": {
        "output 0": {"candidate": {"rel_l2": 6.5e-08, "max_abs": 6.8e-07}, "eager": ERRORS[1]},
        "output 1": {"candidate": ERRORS[0], "eager": {"rel_l2": 1.9e-07, "max_abs": 3e-08}},
    },
}
VERDICT = Verdict("refuted", CHECKS, (), "failed: accuracy", ACCURACY, TIMING)


@cache
def planned(source: str = SOURCE, target: str = "cpu") -> OptimizeResult:
    """What `explain` says of a problem file with this text, called `<b>model.py`."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "<b>model.py"
        path.write_text(source)
        return explain_file(path, target=target)


def problem_page(**changes: Any) -> ProblemPage:
    """changes: of the fields of the page."""
    made = planned()
    report = outcome_report(replace(made, verdict=VERDICT))
    page = ProblemPage(report, "<b>model.py on cpu", SOURCE, made.text)
    return replace(page, **changes)
