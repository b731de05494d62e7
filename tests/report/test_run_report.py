"""The JSON report and what `-v` shows."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from fusewright.errors import ToolMissing
from fusewright.judge.findings import Finding, Row, Verdict
from fusewright.judge.timing.statistics import Ratio, Side
from fusewright.report.full_view import show_outcome, show_timing, show_verdict
from fusewright.report.run_report import (
    OptimizeResult,
    Report,
    StepReport,
    error_report,
    outcome_report,
    profile_report,
    timing_report,
    to_json,
    verdict_report,
)

KEYS = {"verdict", "findings", "kernels", "accuracy", "timing", "environment"}
KERNELS = (
    StepReport("sigmoid_mul_group_norm", "fused", ("sigmoid", "mul", "group_norm"), 1024, 512),
    StepReport("linear_0", "library", ("linear",), 4096, 1 << 20),
)
TIMING = {
    "sides": {
        "eager": Side(300, 0.0015, 0.0018, 0.002, 0.0025, 0.0001, 3),
        "candidate": Side(300, 0.0000005, 0.0008, 0.00095, 0.001, 0.0001, 0),
    },
    "ratios": {
        "eager": {
            "median": 2.1051,
            "low": 2.05,
            "high": 2.15,
            "claim": "faster",
        }
    },
    "first call": 1.25,
}
VERDICT = Verdict(
    "refuted",
    checks=(
        Row("values", "pass", "5 draws, 40 cases"),
        Row("accuracy", "fail", "error 3.1e-4 against eager's 2e-7 [tile 3]"),
        Row("gradients", "skip", "not asked for"),
    ),
    findings=(Finding("accuracy", "error 3.1e-4 against eager's 2e-7 [tile 3]"),),
    reason="failed: accuracy",
    accuracy={"candidate": 3.1e-4, "eager": 2e-7, "worst": math.inf},
    timing=TIMING,
    environment={"tier": 1},
)


def shown(show: object, *arguments: object, terminal: bool = False) -> str:
    stream = io.StringIO()
    assert callable(show)
    show(Console(file=stream, force_terminal=terminal, width=80, highlight=False), *arguments)
    return stream.getvalue()


def parsed(report: Report) -> dict[str, object]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    result = json.loads(to_json(report), parse_constant=refuse)
    assert isinstance(result, dict)
    return result


@pytest.mark.parametrize(
    "report",
    [
        verdict_report(VERDICT),
        outcome_report(OptimizeResult(Path("out.py"), "why", KERNELS, VERDICT, "")),
        outcome_report(OptimizeResult(Path("out.py"), "why", KERNELS, None, "no sm_80 here")),
        timing_report(TIMING),
        profile_report({"sides": []}),
        error_report(ToolMissing("no compiler")),
    ],
)
def test_every_report_has_the_same_keys(report: Report) -> None:
    found = parsed(report)
    assert found.keys() >= KEYS
    environment = found["environment"]
    assert isinstance(environment, dict)
    assert environment.keys() >= {"fusewright", "python", "torch", "system", "processor"}


def test_verdict_as_json() -> None:
    found = parsed(outcome_report(OptimizeResult(Path("out.py"), "why", KERNELS, VERDICT, "")))
    assert found["verdict"] == "refuted"
    assert found["findings"] == [
        {"check": "accuracy", "detail": "error 3.1e-4 against eager's 2e-7 [tile 3]"}
    ]
    assert found["kernels"] == [
        {
            "name": "sigmoid_mul_group_norm",
            "kind": "fused",
            "operators": ["sigmoid", "mul", "group_norm"],
            "bytes": 1024,
            "flops": 512,
            "predicted_s": 0.0,
        },
        {
            "name": "linear_0",
            "kind": "library",
            "operators": ["linear"],
            "bytes": 4096,
            "flops": 1 << 20,
            "predicted_s": 0.0,
        },
    ]
    assert found["accuracy"] == {"candidate": 3.1e-4, "eager": 2e-7, "worst": "inf"}
    timing = found["timing"]
    assert isinstance(timing, dict)
    assert timing["sides"]["eager"]["p50_s"] == 0.002
    assert timing["ratios"]["eager"]["low"] == 2.05
    environment = found["environment"]
    assert isinstance(environment, dict)
    assert environment["tier"] == 1


@pytest.mark.parametrize(
    ("word", "code"), [("verified", 0), ("refuted", 1), ("not-verified", 3), (None, 3)]
)
def test_exit_code(word: str | None, code: int) -> None:
    verdict = None if word is None else Verdict(word, (), (), "")  # type: ignore[arg-type]
    assert OptimizeResult(Path("out.py"), "", (), verdict, "no GPU").exit_code == code


def test_what_cannot_be_verified_says_why() -> None:
    outcome = OptimizeResult(
        Path("out.py"), "one kernel", KERNELS, None, "there is no sm_80 GPU here"
    )
    assert parsed(outcome_report(outcome))["reason"] == "there is no sm_80 GPU here"
    text = shown(show_outcome, outcome)
    assert "one kernel" in text
    assert "not-verified: there is no sm_80 GPU here" in text
    assert "written: out.py" in text


def test_verdict_is_one_line_for_each_check_then_the_word_then_the_times() -> None:
    lines = shown(show_verdict, VERDICT).splitlines()
    assert lines[0] == "pass values           5 draws, 40 cases"
    # Long evidence stays on one line, and brackets in it are text, not markup.
    assert lines[1] == "fail accuracy         error 3.1e-4 against eager's 2e-7 [tile 3]"
    assert lines[2] == "skip gradients        not asked for"
    word = lines.index("refuted: failed: accuracy")
    table = next(i for i, line in enumerate(lines) if line.strip().startswith("side"))
    assert 2 < word < table


def test_timing_table() -> None:
    lines = [line.split() for line in shown(show_timing, TIMING).splitlines()]
    assert lines[1] == ["eager", "2", "ms", "2.105x", "2.050x", "…", "2.150x", "faster"]
    assert lines[2] == ["candidate", "950", "us"]
    assert lines[3] == ["first", "call:", "1.25"]


def test_timing_table_takes_the_statistics_as_they_are() -> None:
    ratio = Ratio(1.5, 1.25, 1.75, pairs=30)
    side = Side(30, 1.0, 1.1, 1.2, 1.3, 0.1, 0)
    text = shown(show_timing, {"sides": {"eager": side}, "ratios": {"eager": ratio}})
    assert "1.2 s" in text
    assert "1.500x" in text
    assert "1.250x … 1.750x" in text


def test_colour_only_on_a_terminal() -> None:
    assert "\x1b[" not in shown(show_verdict, VERDICT)
    assert "\x1b[" in shown(show_verdict, VERDICT, terminal=True)
