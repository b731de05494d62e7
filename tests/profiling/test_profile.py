"""Sides that are really profiled, in the judge's processes; and what goes wrong there.

The machine may be busy: of times only what is certain is asserted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fusewright.errors import BadUsage, NotVerifiable
from fusewright.judge.session import Session
from fusewright.judge.timing.sides import Side
from fusewright.profiling import profile as made
from fusewright.profiling.profile import Profiled, profile
from fusewright.profiling.side_profile import SideProfile

pytestmark = [pytest.mark.judged, pytest.mark.slow]

PROBLEM = """import torch
from torch import nn

rows = 64


class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 256)

    def forward(self, x):
{body}


def get_inputs():
    return [torch.randn(rows, 64)]


def get_init_inputs():
    return []
"""
HONEST = "return torch.softmax(self.linear(x), -1)"
EXTENSION = """
import torch as _torch
from torch.utils.cpp_extension import load_inline

extension = load_inline(
    "profiled_by_hand",
    "#include <torch/extension.h>\\n"
    "torch::Tensor last(torch::Tensor x) { return torch::softmax(x, -1); }",
    functions=["last"],
)
"""
PROFILER_ON = "torch.autograd._profiler_enabled()"


def text(body: str, name: str = "ModelNew") -> str:
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    return PROBLEM.format(name=name, body=lines)


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "problem.py"
    path.write_text(text(HONEST, "Model"))
    return path


def profiled(problem: Path, source: str, against: Sequence[str] = ("eager",)) -> Profiled:
    """A candidate with this text, beside baselines."""
    candidate = problem.with_name("candidate.py")
    candidate.write_text(source)
    return profile(problem, candidate, against=tuple(against), budget_s=0.5)


def rows(side: SideProfile) -> dict[str, Any]:
    return {row.name: row for row in side.rows}


@pytest.mark.compiler
def test_three_sides(problem: Path) -> None:
    source = EXTENSION + text("return extension.last(self.linear(x))")
    found = profiled(problem, source, ("eager", "compile"))
    mine, eager, compiled = found.profile.sides
    assert [side.name for side in (mine, eager, compiled)] == [
        "candidate", "eager", "torch.compile",
    ]  # fmt: skip
    assert {"last", "aten::addmm", "aten::_softmax"} <= rows(mine).keys()
    assert rows(mine)["last"].kind == "kernel"
    assert not rows(mine)["last"].is_step, "nobody says what it moves"
    assert {"aten::addmm", "aten::_softmax"} <= rows(eager).keys()
    assert [name for name in rows(compiled) if name.startswith("cpp_fused")]
    for side in (mine, eager, compiled):
        assert side.calls == len(found.calls[side.name]) >= 3
        assert sum(row.us for row in side.rows) > 0
        assert side.busy_us <= side.profiled_us
        assert side.between_us > 0
        assert side.unaccounted_us == pytest.approx(side.call_us - side.busy_us)
        shares = sum(row.share for row in side.rows) * side.profiled_us
        assert shares == pytest.approx(sum(row.us for row in side.rows))
    assert found.profile.missing == {}
    assert found.profile.step_times == {}


@pytest.mark.compiler
@pytest.mark.parametrize("size", ["64", "32"])
def test_an_emitted_file(problem: Path, tmp_path: Path, size: str) -> None:
    """Its steps are known by name; what they move is said for the sizes of the file only."""
    from fusewright.compiler.pipeline import emit_only

    candidate = tmp_path / "candidate.py"
    emit_only(problem, out=candidate, target="cpu")
    overrides = {"rows": size}
    found = profile(problem, candidate, against=(), overrides=overrides, budget_s=0.5).profile
    (mine,) = found.sides
    (step,) = (row for row in mine.rows if row.is_step)
    assert found.step_times == {step.name: step.us}
    assert "softmax" in str(step.places)
    if size == "64":
        assert step.bytes == pytest.approx((2 * 64 + 1) * 256 * 4, rel=5e-3)  # and a bias
        assert step.limiter == "memory"
        assert not mine.note
    else:
        assert step.bytes is None
        assert "these sizes are others than" in mine.note


def test_calls_without_kernels_are_told(problem: Path) -> None:
    status = (
        "\n    @staticmethod\n    def fusewright_status():\n"
        "        return {'kernels': 1, 'because': {'the dtype of x': 5}}\n"
    )
    source = text(HONEST).replace("\n\n\ndef get_inputs", f"\n{status}\n\ndef get_inputs")
    (mine,) = profiled(problem, source, ()).profile.sides
    assert mine.note == "5 of 6 calls ran the original forward: the dtype of x (5)"


def test_baselines_alone(problem: Path) -> None:
    found = profile(problem, against=("eager",), budget_s=0.5).profile
    assert [side.name for side in found.sides] == ["eager"]
    assert found.step_times == {}


def test_torch_compile_can_be_missing(problem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside others; alone, there is nothing to be told."""
    becomes_ready = made.ready

    def ready(session: Session, side: Side) -> str:
        return "no compiler here" if side.name == "torch.compile" else becomes_ready(session, side)

    monkeypatch.setattr(made, "ready", ready)
    found = profile(problem, against=("eager", "compile"), budget_s=0.5).profile
    assert [side.name for side in found.sides] == ["eager"]
    assert found.missing == {"torch.compile": "no compiler here"}
    with pytest.raises(NotVerifiable, match="does not run: no compiler here"):
        profile(problem, against=("compile",), budget_s=0.5)


def test_nothing_at_all(problem: Path) -> None:
    with pytest.raises(BadUsage, match="name a candidate, or a baseline"):
        profile(problem, against=())


# What a candidate does -> what is said.
WRONG = {
    "wrong": ("return torch.softmax(self.linear(x), -1) * 1.5", "cannot be profiled: round 0"),
    "raises": ("raise ValueError('never')", "never"),
    "raises under it": (
        f"if {PROFILER_ON}: raise ValueError('seen')\n{HONEST}",
        "raised in a timed turn: .*seen",
    ),
    "wrong under it": (
        f"if {PROFILER_ON}: return torch.softmax(x, -1).repeat(1, 4)\n{HONEST}",
        "cannot be profiled: round",
    ),
    "gone": (f"import os\nif {PROFILER_ON}: os._exit(3)\n{HONEST}", "stopped answering"),
    "a profiler of its own": (
        "import torch.profiler\nwith torch.profiler.profile(): return "
        "torch.softmax(self.linear(x), -1)",
        "candidate.py cannot be profiled: candidate ",
    ),
    "forged": (
        f"if {PROFILER_ON}:\n    with torch._C._profiler._RecordFunctionFast('fusewright::call'):\n"
        f"        pass\n{HONEST}",
        "profile of candidate is not of the form.*overlap",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_goes_wrong_is_said(problem: Path, what: str) -> None:
    body, said = WRONG[what]
    with pytest.raises(NotVerifiable, match=said):
        profiled(problem, text(body))


def test_who_does_not_answer_is_ended(problem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collect, patience = Session.collect, 10.0

    def impatient(session: Session, worker: Any, seconds: float) -> Any:
        return collect(session, worker, min(seconds, patience))

    monkeypatch.setattr(Session, "collect", impatient)
    sleeps = f"import time\nif {PROFILER_ON}: time.sleep(1000)\n{HONEST}"
    with pytest.raises(NotVerifiable, match="stopped answering"):
        profiled(problem, text(sleeps))


@pytest.mark.gpu
def test_on_a_gpu(problem: Path) -> None:
    found = profile(problem, against=("eager", "compile"), device="cuda", budget_s=0.5)
    eager, compiled = found.profile.sides
    operators = {row.operator for row in eager.rows}
    assert "aten::addmm" in operators
    assert "aten::_softmax" in operators
    assert any(row.name.startswith("triton") for row in compiled.rows)
    for side in (eager, compiled):
        assert all(row.kind == "kernel" and row.symbols and row.us > 0 for row in side.rows)
        assert side.rows[0].count >= 1
        assert sum(row.gap_us for row in side.rows) > 0, "a launch takes its time"
        assert side.busy_us < side.profiled_us


@pytest.mark.gpu
@pytest.mark.compiler
def test_an_emitted_file_on_a_gpu(problem: Path, tmp_path: Path) -> None:
    from fusewright.compiler.pipeline import emit_only

    candidate = tmp_path / "candidate.py"
    outcome, _ = emit_only(problem, out=candidate, target="cuda")
    found = profile(problem, candidate, against=(), device="cuda", budget_s=0.5).profile
    steps = {report.name for report in outcome.kernels if report.kind != "library"}
    assert found.step_times.keys() == steps
    assert all(us > 0 for us in found.step_times.values())
