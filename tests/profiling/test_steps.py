"""An emitted file -> what its kernels move, in numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusewright.profiling.steps import step_amounts
from fusewright.report.amounts import amount_of, bytes_text, flops_text, time_text
from fusewright.report.decision_record import step_reports
from fusewright.targets.target import target
from tests.support.emitting import emit_example


@pytest.mark.slow
@pytest.mark.parametrize("target_name", ["cpu", "sm_90a"])
def test_of_an_example(target_name: str, tmp_path: Path) -> None:
    emitted = emit_example("swish_bias_groupnorm", tmp_path, target_name)
    made, found = emitted.made, step_amounts(emitted.text, emitted.path.name)
    every = step_reports(made.plan, made.descriptions)
    reports = {report.name: report for report in every if report.kind != "library"}
    assert found
    assert found.keys() == reports.keys()
    for name, step in found.items():
        assert step.bytes == pytest.approx(reports[name].bytes, rel=5e-3)
        assert step.flops == pytest.approx(reports[name].flops, rel=5e-3)
        assert step.predicted_us == pytest.approx(reports[name].predicted_s * 1e6, rel=5e-3)
        assert "mul (line 16)" in step.places
        by_memory = step.bytes / target(target_name).machine.copy_bytes_per_s * 1e6
        limited = "memory" if by_memory > step.predicted_us * 0.99 else "arithmetic"
        assert step.limiter == limited


def test_a_file_of_others_has_none() -> None:
    assert step_amounts("class ModelNew: ...\n", "new.py") == {}
    assert step_amounts("not even Python (", "new.py") == {}


@pytest.mark.parametrize("count", [0, 999, 1000, 123_456, 7_890_000_000, 3 * 10**13])
def test_amounts_are_read_as_they_are_written(count: int) -> None:
    for text in (bytes_text(count), flops_text(count), time_text(count * 1e-9)):
        value = count * (1e-9 if text.endswith("s") else 1)
        assert amount_of(text) == pytest.approx(value, rel=5e-3)


@pytest.mark.parametrize("text", ["", "3", "3 miles", "many B", "3 MB a call"])
def test_other_texts_are_no_amounts(text: str) -> None:
    with pytest.raises(ValueError, match=r"amount|float"):
        amount_of(text)
