"""Outcome or Verdict -> the JSON report; what it shows on a terminal is in the files beside it.

The report of every command has the same keys:
    verdict      "verified", "refuted" or "not-verified"; `reason` says why in one sentence
    findings     [{check, detail}]: what failed, and what a reader should know
    kernels      [{name, kind, operators, bytes, flops, predicted_s}]
    forwards     [{label, rows, savings, graph}]: of each new `forward` its steps, by the names and
                 lines of the user's file, what a call moves, and the graph of the model with the
                 step that computes each node; empty for other commands than `optimize` and
                 `explain`
    problem      the problem file, as named; of the same two, else null
    target       the name of what the file is for; of the same two, else null
    decisions    the decision record as text, of `optimize` and `explain`; else null
    path         the written file; null for other commands, and where nothing was written
    degenerate   whether no output depends on the inputs
    tuning       {level, tried, alternatives, changes, gains, eager}; null without --tune
    parts        {taken: [{class, paths}], left: [{path, kind, why}]}, where the model could not be
                 captured as a whole; else null
    need         {host, gpu}: bytes of memory that optimizing and judging take at most, as estimated
                 before; null for other commands
    checks       [{check, outcome, evidence, cases}]: one row for each check
    accuracy     the candidate's and eager's error against float64; of several outputs, as
                 `outputs`, also of each
    timing       {sides: {name: {p50_s, ...}}, ratios: {baseline: {median, low, high, claim}}, ...}
    profile      {device, sides: [{name, call_us, profiled_us, busy_us, between_us, unaccounted_us,
                 calls, rows, note}], missing}, of `profile`; null for other commands. A row is a
                 `ProfileRow` (fusewright/profiling/rows.py): null where nothing is known
    environment  versions and machine
    costs        {seconds: {phase: s}, calls, "eager runs", "float64 runs", "bytes sent",
                 "bytes returned", "peak bytes": {process: bytes}} of the judging
    replay       what `fusewright judge --replay` needs
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from fusewright import __version__
from fusewright.common.atomic_write import STANDARD_OUTPUT
from fusewright.common.timing_lock import Need
from fusewright.emit.header import StepRow
from fusewright.errors import FusewrightError
from fusewright.judge.findings import EXIT_CODES, Verdict

Report = Mapping[str, object]


@dataclass(frozen=True)
class StepReport:
    """One kernel or library call of the emitted file, as a reader of the report wants it."""

    name: str
    kind: Literal["fused", "contraction", "library"]  # a contraction is fused with what follows it
    operators: tuple[str, ...]
    bytes: int  # read and written in one call
    flops: int
    predicted_s: float = 0.0  # by the bandwidth and the rates of the target, no measurement


@dataclass(frozen=True)
class Savings:
    """What a call does, in eager and fused: steps, bytes moved, and seconds that the target's
    bandwidth and rates predict, which are no measurement."""

    eager_steps: int
    eager_bytes: int
    eager_s: float
    fused_steps: int
    fused_bytes: int
    fused_s: float


@dataclass(frozen=True)
class GraphNode:
    """What one place of the model computes in one step, or an input.

    name: of the place, as `self.fc1`, or of the input.  line: of the user's file; None: not known.
    operators: those of the step that belong to it.  shape: of what it gives.  step: which one
    computes it; None of an input.  reads: the nodes whose results it takes, by their places in
    the graph, all before its own.
    """

    name: str
    line: int | None
    operators: tuple[str, ...]
    shape: str
    step: int | None
    reads: tuple[int, ...]


@dataclass(frozen=True)
class ModelGraph:
    """nodes: arguments first.  steps: of a call, in their order.  row_of: of each step, the row of
    its `FusedForward` that tells of it.  outputs: the nodes that the model returns."""

    nodes: tuple[GraphNode, ...]
    steps: tuple[StepReport, ...]
    row_of: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class FusedForward:
    """One new `forward`. label: what it is for, "" where there is one.  rows: its steps, with those
    of equal blocks together, by the names and lines of the user's file."""

    label: str
    rows: tuple[StepRow, ...]
    savings: Savings
    graph: ModelGraph


@dataclass(frozen=True)
class OptimizeResult:
    """What `optimize` made; without a verdict, `why_not` says why this machine cannot give one.

    problem: the file as named.  target: its name.  forwards: empty where the model stays as it was.
    overrides: of the problem's constants.  text: of the file, which no report has.
    """

    path: Path
    decisions: str
    kernels: tuple[StepReport, ...]
    verdict: Verdict | None
    why_not: str
    degenerate: bool = False
    tuning: Mapping[str, object] | None = None
    parts: Mapping[str, object] | None = None
    need: Need | None = None
    problem: str = ""
    target: str = ""
    forwards: tuple[FusedForward, ...] = ()
    overrides: Mapping[str, str] = field(default_factory=dict)
    text: str = field(default="", repr=False)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict.verdict if self.verdict else "not-verified"]


def verdict_report(verdict: Verdict, kernels: tuple[StepReport, ...] = ()) -> Report:
    report = {name: getattr(verdict, name) for name in Verdict.__dataclass_fields__}
    report["environment"] = {**environment(), **verdict.environment}
    own = {"degenerate": False, "tuning": None, "parts": None, "need": None, "profile": None}
    own |= {"problem": None, "target": None}
    return {**report, "kernels": kernels, "forwards": (), "path": None, "decisions": None, **own}


def outcome_report(outcome: OptimizeResult) -> Report:
    if outcome.verdict is None:
        report = _empty_report(outcome.why_not, outcome.kernels)
    else:
        report = verdict_report(outcome.verdict, outcome.kernels)
    return {
        **report,
        "degenerate": outcome.degenerate,
        "tuning": outcome.tuning,
        "parts": outcome.parts,
        "need": outcome.need,
        "forwards": outcome.forwards,
        "problem": outcome.problem or None,
        "target": outcome.target or None,
        "decisions": outcome.decisions,
        "path": None if outcome.path == STANDARD_OUTPUT else outcome.path,
    }


def timing_report(timing: object) -> Report:
    """The report of `bench`, which times and decides nothing."""
    return {**_empty_report("bench only measures time; judge decides"), "timing": timing}


def profile_report(profile: object) -> Report:
    """The report of `profile`, which decides nothing, either."""
    return {**_empty_report("profile only measures time; judge decides"), "profile": profile}


def error_report(error: FusewrightError) -> Report:
    """The report of a command that ended early."""
    return _empty_report(str(error))


def _empty_report(reason: str, kernels: tuple[StepReport, ...] = ()) -> Report:
    verdict = Verdict("not-verified", checks=(), findings=(), reason=reason)
    return verdict_report(verdict, kernels)


def environment() -> dict[str, str]:
    """Versions and machine, found without importing PyTorch."""
    return {
        "fusewright": __version__,
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "system": platform.platform(),
        "processor": platform.machine(),
    }


def to_json(report: Report) -> str:
    """Strict JSON: infinities and NaN become strings."""
    return json.dumps(plain(report), indent=1, sort_keys=True, allow_nan=False) + "\n"


def plain(value: object) -> object:
    """What JSON has for it: dicts, lists, text and numbers."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)
