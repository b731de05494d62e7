"""Outcome, Verdict or Timing -> all that there is to say, on a terminal: what `-v` shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fusewright.judge.findings import Verdict, Word
from fusewright.report.amounts import seconds_text
from fusewright.report.run_report import OptimizeResult, plain
from fusewright.report.styles import STYLES


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
    outputs = _table(verdict.accuracy.get("outputs"))
    of_each = ((f"{place}, {name}", told) for place, one in outputs.items()
               for name, told in one.items())  # fmt: skip
    of_all = ((name, told) for name, told in verdict.accuracy.items() if name != "outputs")
    for name, value in (*of_all, *of_each):
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
    given = plain(timing)
    facts: dict[str, object] = dict(given) if isinstance(given, dict) else {"timing": given}
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
    given = plain(contest)
    facts: dict[str, Any] = dict(given) if isinstance(given, dict) else {}
    timings, best = _table(facts.get("timings")), _table(facts.get("over_best"))
    table = Table("candidate", "median", "over eager", "over the first", "claim", box=None)
    for name, timing in timings.items():
        sides, ratios, first = _table(timing.get("sides")), _table(timing.get("ratios")), best[name]
        table.add_row(
            Text(name),
            seconds_text(sides["candidate"].get("p50_s")),
            _times(ratios.get("eager", {}).get("median", "")),
            _times(first.get("median")),
            str(first.get("claim", "")),
        )
    console.print(table)
    lost = {**dict(facts["lost"]), **dict(facts["unclear"])}
    for name, why in lost.items():
        console.print(Text(f"  {name} was not timed: {why}"), soft_wrap=True)


def _table(value: object) -> dict[str, dict[str, object]]:
    rows = value if isinstance(value, dict) else {}
    return {str(name): row for name, row in rows.items() if isinstance(row, dict)}


def _times(value: object) -> str:
    return f"{value:.3f}x" if isinstance(value, (int, float)) else str(value)


def _inline(value: object) -> str:
    """A nested value in one readable line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_inline(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_inline(item) for item in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
