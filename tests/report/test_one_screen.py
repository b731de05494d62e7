"""The one screen of the default view, and the line of `-q`: what is said, and in which words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from fusewright.common.atomic_write import STANDARD_OUTPUT
from fusewright.compiler.pipeline import emit_only
from fusewright.emit.header import NumericClass, StepRow
from fusewright.judge.findings import Finding, Row, Verdict
from fusewright.report.one_line import outcome_line, timing_line, verdict_line
from fusewright.report.one_screen import (
    FUSED_LINES,
    WIDTH,
    fused_lines,
    outcome_screen,
    timing_screen,
    verdict_screen,
)
from fusewright.report.run_report import FusedForward, ModelGraph, OptimizeResult, Savings
from fusewright.report.speed import speed_of
from tests.support.folders import ROOT

NO_GRAPH = ModelGraph((), (), (), ())
# Words of the program's own, which mean nothing to who has not read its source.
PRIVATE = re.compile(
    r"\b(null|kappa|believed|floor_s|resolution_s|products_s|first_s|calls_per_turn|rel_l2|rms|ulp|"
    r"tuned|canary|guard-bands)\b"
)
LINES = 40
SIDES = {
    "candidate": {"p50_s": 0.004264},
    "eager": {"p50_s": 0.005108},
    "eager again": {"p50_s": 0.00506},
    "torch.compile": {"p50_s": 0.004442},
}
RATIOS = {
    "eager": {"median": 1.2301, "low": 1.169, "high": 1.302, "claim": "faster"},
    "torch.compile": {"median": 1.06, "low": 1.01, "high": 1.10, "claim": "no difference shown"},
}
TIMING: Mapping[str, object] = {
    "sides": SIDES, "ratios": RATIOS, "null": 0.05, "believed": {"eager": 1.1}, "floor_s": 1e-6,
    "missing": {},
}  # fmt: skip
ACCURACY = {"candidate": {"rel_l2": 7.405e-08, "rms": 0.54}, "eager": {"rel_l2": 7.449e-08}}
GOOD = Verdict(
    "verified",
    (Row("self-canary", "pass", "known good"), Row("values", "pass", "5 draws"),
     Row("accuracy", "pass", "worst rms 0.54 kappa"), Row("buffers", "skip", "there are none")),
    (), "every check that was asked for passed", ACCURACY, TIMING,
)  # fmt: skip
BAD = replace(
    GOOD,
    verdict="refuted",
    checks=(
        Row("values", "pass", "5 draws"),
        Row("accuracy", "fail", "fresh 0: rms error 12 kappa, eager 0.5, allowed 4 (and 3 more)"),
        Row("buffers", "skip", "there are none"),
    ),
    findings=(Finding("accuracy", "fresh 0: rms error 12 kappa, eager 0.5, allowed 4"),),
    reason="failed: accuracy",
    timing=None,
    replay={"cases": [{"experiment": "fresh", "check": "accuracy", "case": "fresh 0"}]},
)


@cache
def planned(name: str) -> OptimizeResult:
    """What `optimize` makes of a problem of zoo/, as if the judge had been asked."""
    outcome, _ = emit_only(ROOT / "zoo" / f"{name}.py", out=STANDARD_OUTPUT, target="cpu")
    return replace(outcome, path=Path(f"{name}_fused.py"), verdict=GOOD)


def text(outcome: OptimizeResult) -> list[str]:
    return [line.plain for line in outcome_screen(outcome)]


NETWORKS = [
    "softmax_rows", "network_encoder_stack", "network_unet", "network_detection_suppressed",
    "linear_batchnorm_swish",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("verdict", [GOOD, BAD, None], ids=["good", "bad", "none"])
@pytest.mark.parametrize("name", NETWORKS)
def test_one_screen_in_plain_words(name: str, verdict: Verdict | None) -> None:
    outcome = replace(planned(name), verdict=verdict, why_not="there is no such GPU here")
    lines = text(outcome)
    assert len(lines) <= LINES
    assert len(fused_lines(outcome)) <= FUSED_LINES
    copied = ("fusewright ", "from ")
    for line in lines:
        whole = line[8:].startswith(copied)  # a command is longer where the names in it are
        assert len(line) <= WIDTH or whole, line
        assert not PRIVATE.search(line), line


@pytest.mark.slow
def test_a_network_with_many_kernels_is_summed_up() -> None:
    outcome = planned("network_encoder_stack")
    kernels = sum(row.times for row in outcome.forwards[0].rows if row.name)
    assert kernels > FUSED_LINES, "there must be something to sum up"
    said = "\n".join(fused_lines(outcome))
    assert f"into {kernels} kernels, " in said
    assert 5 * said.count("  kernel x5 ") == kernels, "all of them are told"
    assert "self.encoder.layers[0..4].norm1 (line 16)" in said
    assert "in eval mode: into 20 kernels" in said


@pytest.mark.slow
def test_of_a_network_without_equal_blocks_the_first_kernels_are_told() -> None:
    said = "\n".join(fused_lines(planned("network_unet")))
    assert "self.down[1] (line 28)" in said
    assert re.search(r"\.\.\. \d more kernels: -v shows all", said)


def row(number: int, kernel: str = "k", why: str = "") -> StepRow:
    places = (f"self.layer_{number} (line {number})",)
    reasons = (why,) if why else ()
    return StepRow(kernel, places, ("add",), ("[4]",), NumericClass("float32"), reasons)


def made(*rows: StepRow, **others: object) -> OptimizeResult:
    saved = Savings(5, 27_600_000, 0.006, 2, 20_300_000, 0.0009)
    outcome = OptimizeResult(
        Path("out/model_fused.py"), "the record", (), GOOD, "", problem="some/model.py",
        target="cpu", forwards=(FusedForward("", rows, saved, NO_GRAPH),),
    )  # fmt: skip
    return replace(outcome, **others)  # type: ignore[arg-type]


def test_what_is_left_out_is_counted() -> None:
    calls = [row(k, "", f"PyTorch's own routine: reason {k}") for k in range(9)]
    lines = fused_lines(made(*(row(k) for k in range(40)), *calls))
    assert len(lines) == FUSED_LINES
    shown = sum(line.startswith("  kernel ") for line in lines)
    assert f"  ... {40 - shown} more kernels: -v shows all" in lines
    calls_shown = sum(line.startswith("  PyTorch's ") for line in lines)
    assert f"  ... {9 - calls_shown} more calls: -v shows all" in lines


def test_verdict_and_speed_come_first_then_why_then_where() -> None:
    lines = text(made(row(15, "", "PyTorch's own routine: too small"), row(16)))
    assert lines == [
        "verified: right, and faster than eager: 1.23x (95 % interval 1.17 to 1.30)",
        "",
        "Fused   into 1 kernel, 1 call stays PyTorch's (model.py on cpu)",
        "  kernel     self.layer_16 (line 16)",
        "  PyTorch's  self.layer_15 (line 15): too small",
        "  why        eager moves 27.6 MB a call in 5 steps; this file 20.3 MB in 2",
        "",
        "Right   worst relative error 7.4e-08, eager's own 7.4e-08, against float64",
        "        3 checks passed, 1 skipped (-v shows them)",
        "",
        "Speed                time   ratio  95 % interval  roofline  this file is",
        "  this file      4.264 ms                             21 %",
        "  eager          5.108 ms   1.23x   1.17 to 1.30      18 %  faster",
        "  torch.compile  4.442 ms   1.06x   1.01 to 1.10      20 %  no difference shown",
        "",
        "File    out/model_fused.py",
        "Next    from model_fused import ModelNew   # in place of Model",
        "        fusewright show out/model_fused.py   # its kernels, one by one",
    ]


def test_of_speed_only_what_was_measured_at_the_end_is_said() -> None:
    """What the tuner has seen, on its way, may be something else."""
    unclear = {**RATIOS["eager"], "median": 1.02, "low": 0.9, "claim": "no difference shown"}
    timing = {**TIMING, "ratios": {"eager": unclear}}
    told = {"level": "quick", "tried": 2, "eager": {"times": 1.75, "claim": "faster"}}
    said = "\n".join(text(made(row(1), verdict=replace(GOOD, timing=timing), tuning=told)))
    assert said.startswith("verified: right; no difference in speed from eager shown (0.90x to ")
    assert "faster" not in said
    assert "1.75" not in said
    assert "the same command with --tune full   # tries more ways to run it" in said


def test_slower_is_said_as_plainly() -> None:
    slower = {"median": 0.8, "low": 0.7, "high": 0.9, "claim": "slower"}
    verdict = replace(GOOD, timing={**TIMING, "ratios": {"eager": slower}})
    first = text(made(row(1), verdict=verdict))[0]
    assert first == "verified: right, but slower than eager: 0.80x (95 % interval 0.70 to 0.90)"


def test_beyond_the_roofline_it_is_not_known() -> None:
    speed = speed_of(TIMING, 0.1)
    assert speed is not None
    assert {side.roofline for side in speed.sides} == {None}
    near = speed_of(TIMING, 0.002132)
    assert near is not None
    assert near.sides[0].roofline == pytest.approx(0.5)


def test_what_was_refuted_and_why() -> None:
    lines = [line.plain for line in verdict_screen(BAD, "p.py", "c.py")]
    assert lines == [
        "refuted: it fails 1 of 3 checks; do not use it",
        "",
        "Wrong",
        "  accuracy",
        "    promised: the error against float64 is not larger than eager's, in units of",
        "    the problem's sensitivity: overall, per tile and at the maximum",
        "    found: fresh 0: typical error 12 roundings, eager 0.5, allowed 4 (and 3",
        "    more)",
        "  1 check passed, 1 skipped (-v shows them)",
        "",
        "Next    fusewright judge p.py c.py --report R.json   # keeps what it found",
        "        fusewright judge --replay R.json --case 0   # repeats the first fault",
    ]


def test_a_refuted_file_of_ours_is_not_to_be_used() -> None:
    said = "\n".join(text(made(row(1), verdict=BAD)))
    assert said.startswith("refuted: ")
    assert "out/model_fused.py   # wrong: do not use it" in said
    assert "this is a bug in fusewright" in said
    assert "Speed" not in said


def test_where_nobody_has_judged_it_the_next_command_does() -> None:
    outcome = made(row(1), verdict=None, why_not="no GPU", overrides={"n": "4", "s": "'a b'"})
    lines = text(outcome)
    asked = "fusewright judge some/model.py out/model_fused.py --set n=4 --set "
    assert any(line.startswith(f"Next    {asked}") for line in lines)
    assert "File    out/model_fused.py   # nobody has verified it" in lines


def test_notes_are_said_in_words() -> None:
    noted = (*GOOD.checks, Row("specialised", "note", "shape-1"), Row("fallback", "note", "2 of 3"))
    said = "\n".join(text(made(row(1), verdict=replace(GOOD, checks=noted))))
    assert "Note    the candidate refuses other legal shapes or dtypes with an exception" in said
    assert "the candidate itself says that timed calls ran its original forward" in said
    assert "3 checks passed, 1 skipped" in said, "a note is no check"


def test_a_ratio_that_shows_nothing_is_noted() -> None:
    assert "do not depend" not in "\n".join(text(made(row(1))))
    noted = "Note    the outputs do not depend on the inputs, so a ratio shows nothing here"
    assert noted in text(made(row(1), degenerate=True))


def test_nothing_to_fuse_says_so() -> None:
    assert fused_lines(made(forwards=())) == [
        "Fused   nothing: the model's own calls are all there is (model.py on cpu)"
    ]
    tuned = {"changes": {"model": "nothing is replaced"}}
    (line,) = fused_lines(made(forwards=(), tuning=tuned))
    assert "PyTorch's own calls were faster here" in line


def test_a_baseline_that_is_missing_says_why() -> None:
    timing = {**TIMING, "missing": {"torch.compile": "it was not ready"}}
    lines = [line.plain for line in timing_screen(timing)]
    assert lines[0].startswith("timed, not judged: faster than eager: 1.23x")
    assert lines[-1] == "  no ratio over torch.compile: it was not ready"


def test_one_line() -> None:
    faster = "verified: 1.23x, faster than eager: "
    assert outcome_line(made(row(1))) == f"{faster}out/model_fused.py"
    assert verdict_line(GOOD, "c.py") == f"{faster}c.py"
    assert verdict_line(BAD, "c.py") == "refuted: c.py"
    assert verdict_line(replace(GOOD, timing=None), "") == "verified"
    assert outcome_line(made(row(1), verdict=None)) == "not-verified: out/model_fused.py"
    ratios = "1.23x, faster than eager, 1.06x, no difference from torch.compile shown: c.py"
    assert timing_line(TIMING, "c.py") == ratios
