"""Outcome or Verdict -> the JSON report and the lines on the terminal.

The report of every command has the same keys:
    verdict      "verified", "refuted" or "not-verified"; `reason` says why in one sentence
    findings     [{check, detail}]: what failed, and what a reader should know
    kernels      [{name, kind, operators, bytes, flops, predicted_s}]
    degenerate   whether no output depends on the inputs
    tuning       {level, tried, alternatives, changes, gains, eager}; null without --tune
    parts        {taken: [{class, paths}], left: [{path, kind, why}]}, where the model could not be
                 captured as a whole; else null
    need         {host, gpu}: bytes of memory that optimizing and judging take at most, as estimated
                 before; null for other commands
    checks       [{check, outcome, evidence, cases}]: one row for each check
    accuracy     the candidate's and eager's error against float64
    timing       {sides: {name: {p50_s, ...}}, ratios: {baseline: {median, low, high, claim}}, ...}
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
from dataclasses import asdict, dataclass, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fusewright import __version__
from fusewright.common.timing_lock import Need
from fusewright.errors import FusewrightError
from fusewright.judge.findings import EXIT_CODES, Verdict, Word

Report = Mapping[str, object]

STYLES = {
    "pass": "green",
    "fail": "bold red",
    "skip": "dim",
    "note": "yellow",
    "verified": "bold green",
    "refuted": "bold red",
    "not-verified": "bold yellow",
}


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
class OptimizeResult:
    """What `optimize` made; without a verdict, `why_not` says why this machine cannot give one."""

    path: Path
    decisions: str
    kernels: tuple[StepReport, ...]
    verdict: Verdict | None
    why_not: str
    degenerate: bool = False
    tuning: Mapping[str, object] | None = None
    parts: Mapping[str, object] | None = None
    need: Need | None = None

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict.verdict if self.verdict else "not-verified"]


def verdict_report(verdict: Verdict, kernels: tuple[StepReport, ...] = ()) -> Report:
    report = {name: getattr(verdict, name) for name in Verdict.__dataclass_fields__}
    report["environment"] = {**environment(), **verdict.environment}
    own = {"degenerate": False, "tuning": None, "parts": None, "need": None}
    return {**report, "kernels": kernels, **own}


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
    }


def timing_report(timing: object) -> Report:
    """The report of `bench`, which times and decides nothing."""
    return {**_empty_report("bench only measures time; judge decides"), "timing": timing}


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
    return json.dumps(_plain(report), indent=1, sort_keys=True, allow_nan=False) + "\n"


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)


def show_outcome(console: Console, outcome: OptimizeResult) -> None:
    """The decision record, then the verdict, then where the file is."""
    console.print(Text(outcome.decisions.rstrip() + "\n"), soft_wrap=True)
    if outcome.verdict is not None:
        show_verdict(console, outcome.verdict)
    else:
        _show_word(console, "not-verified", outcome.why_not)
    console.print(Text(f"\nwritten: {outcome.path}"), soft_wrap=True)


def show_verdict(console: Console, verdict: Verdict) -> None:
    """One line for each check with its evidence, then the verdict, then the timing table."""
    for row in verdict.checks:
        outcome = Text(f"{row.outcome:<5}", style=STYLES[row.outcome])
        console.print(outcome + Text(f"{row.check:<16} {row.evidence}"), soft_wrap=True)
    for name, value in verdict.accuracy.items():
        console.print(Text(f"     {name}: {_inline(value)}"), soft_wrap=True)
    _show_word(console, verdict.verdict, verdict.reason)
    if verdict.timing is not None:
        console.print()
        show_timing(console, verdict.timing)


def _show_word(console: Console, word: Word, reason: str) -> None:
    line = Text(f"\n{word}", style=STYLES[word]) + Text(f": {reason}", style="none")
    console.print(line, soft_wrap=True)


def show_timing(console: Console, timing: object) -> None:
    """One row per side: its median, and the candidate's speed against it with the interval."""
    plain = _plain(timing)
    facts: dict[str, object] = dict(plain) if isinstance(plain, dict) else {"timing": plain}
    sides, ratios = _table(facts.pop("sides", {})), _table(facts.pop("ratios", {}))
    table = Table("side", "median", "candidate is", "95% interval", "claim", box=None)
    for name, side in sides.items():
        ratio = ratios.get(name)
        comparison = ("", "", "")
        if ratio is not None:
            interval = f"{_times(ratio.get('low'))} … {_times(ratio.get('high'))}"
            comparison = (_times(ratio.get("median")), interval, str(ratio.get("claim", "")))
        table.add_row(Text(name), seconds_text(side.get("p50_s")), *comparison)
    console.print(table)
    for name, value in facts.items():
        console.print(Text(f"  {name}: {_inline(value)}"), soft_wrap=True)


def show_contest(console: Console, contest: object) -> None:
    """One row per candidate, the fastest first, then who was lost, and why."""
    plain = _plain(contest)
    facts: dict[str, object] = dict(plain) if isinstance(plain, dict) else {}
    timings, best = _table(facts.get("timings")), _table(facts.get("over_best"))
    table = Table("candidate", "median", "over eager", "over the first", "claim", box=None)
    for name, timing in timings.items():
        sides, ratios = _table(timing.get("sides")), _table(timing.get("ratios"))
        ratio, first = ratios.get("eager", {}), best.get(name, {})
        table.add_row(
            Text(name),
            seconds_text(sides.get("candidate", {}).get("p50_s")),
            _times(ratio.get("median")),
            _times(first.get("median")),
            str(first.get("claim", "")),
        )
    console.print(table)
    lost = facts.get("lost")
    for name, why in lost.items() if isinstance(lost, dict) else ():
        console.print(Text(f"  {name} was not timed: {why}"), soft_wrap=True)


def _table(value: object) -> dict[str, dict[str, object]]:
    rows = value if isinstance(value, dict) else {}
    return {str(name): row for name, row in rows.items() if isinstance(row, dict)}


def _times(value: object) -> str:
    return f"{value:.3f}x" if isinstance(value, (int, float)) else str(value)


def seconds_text(value: object) -> str:
    if not isinstance(value, (int, float)):
        return str(value)
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value * 1e6:.4g} us"


def _inline(value: object) -> str:
    """A nested value in one readable line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_inline(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_inline(item) for item in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
