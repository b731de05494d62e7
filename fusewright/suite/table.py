"""Results of a suite -> the table and the totals on a terminal, and the JSON report.

Both show the same rows in the same order, so that a number is found again in each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from fusewright.report.amounts import seconds_text
from fusewright.report.run_report import Report, environment
from fusewright.report.speed import CANDIDATE, COMPILED, EAGER, SpeedRatio
from fusewright.report.styles import STYLES
from fusewright.suite.row import SuiteRow, Totals

# Heading -> what it says; the table on the terminal and the page have the same columns.
COLUMNS: Mapping[str, str] = {
    "problem": "the file, without .py",
    "verdict": "verified, refuted or not-verified; in brackets how a run ended that gave none",
    "error": "relative L2 error of the candidate against float64",
    "eager's": "the same for eager",
    "eager": "median time of a call of eager",
    "compile": "the same for torch.compile",
    "ours": "the same for the candidate",
    "ratio": "how much faster than eager the candidate is; 95 % interval",
    "over compile": "the same against torch.compile",
    "roofline": "predicted time of the plan over the measured one",
    "kernels": "fused kernels",
    "library": "calls that stay PyTorch's",
    "seconds": "how long the run took",
    "machine": "the node that it ran on, and the kind of its GPU or processor",
}


# What the default view shows of these; `-v` shows all.
SHORT = ("problem", "verdict", "ours", "ratio")


def show_suite(
    console: Console, results: Sequence[SuiteRow], totals: Totals, *, short: bool = False
) -> None:
    """The table, why rows are not verified, and the totals. short: of the table, SHORT."""
    names = [name for name in COLUMNS if name in SHORT or not short]
    rows = [dict(zip(COLUMNS, cells(result), strict=True)) for result in results]
    table = [[row[name] for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *table, strict=True)]
    console.print(_line(names, widths, "bold"), soft_wrap=True)
    for result, row in zip(results, table, strict=True):
        console.print(_line(row, widths, STYLES[result.verdict]), soft_wrap=True)
    console.print()
    for result in results:
        if result.verdict != "verified":
            head = (f"{result.name}: {result.word}: ", STYLES[result.verdict])
            console.print(Text.assemble(head, result.reason), soft_wrap=True)
    lines = [count_line(totals), *speed_lines(totals)] if short else total_lines(totals)
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def _line(row: Sequence[str], widths: Sequence[int], style: str) -> Text:
    """One row on one line, however long: a row that wraps cannot be read, or found by grep."""
    name, word, *rest = (
        cell.ljust(width) if k < 2 else cell.rjust(width)
        for k, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return Text.assemble(f"{name}  ", (word, style), "  ", "  ".join(rest))


def cells(result: SuiteRow) -> list[str]:
    """The row as text, in the order of COLUMNS."""
    times, ratios = result.times or {}, result.ratios or {}
    return [
        result.name,
        result.word,
        _error(result.error),
        _error(result.eager_error),
        *(seconds_text(times[s]) if s in times else "" for s in (EAGER, COMPILED, CANDIDATE)),
        *(_comparison(ratios.get(side)) for side in (EAGER, COMPILED)),
        "" if result.roofline is None else f"{result.roofline:.0%}",
        str(result.kernels or ""),
        str(result.library_nodes or ""),
        f"{result.seconds:.0f}",
        ", ".join(filter(None, (result.node, result.device))),
    ]


def total_lines(totals: Totals) -> list[str]:
    """The totals, one sentence a line."""
    return [count_line(totals), *speed_lines(totals), *coverage_lines(totals)]


def count_line(totals: Totals) -> str:
    """How many problems there are of each verdict."""
    return (
        f"{totals.problems} problems: {totals.verified} verified, {totals.refuted} refuted, "
        f"{totals.not_verified} not verified"
    )


def speed_lines(totals: Totals) -> list[str]:
    """Against each baseline; where several kinds of machines timed rows, a line for each kind."""
    lines = [
        f"against {name}: geometric mean {mean:.3f}x, {totals.faster[name]} faster, "
        f"{totals.slower[name]} slower, the rest without a difference shown"
        for name, mean in totals.means.items()
    ]
    return [*lines, *machine_lines(totals)]


def machine_lines(totals: Totals) -> list[str]:
    """A mean for each kind of machine, where there are several."""
    kinds = totals.means_on
    if len(kinds) < 2:
        return []
    lines = [f"timed on {len(kinds)} kinds of machines, whose ratios are not comparable:"]
    for kind, means in kinds.items():
        told = ", ".join(f"{mean:.3f}x against {name}" for name, mean in means.items())
        lines.append(f"on {kind}: geometric mean {told}")
    return lines


def coverage_lines(totals: Totals) -> list[str]:
    """How much of all plans is ours, and what is not."""
    both = totals.fused_operators + totals.library_operators
    share = f" ({totals.fused_operators / both:.0%})" if both else ""
    lines = [
        f"operators: {totals.fused_operators} fused{share}, {totals.library_operators} library "
        f"calls; {totals.unsupported} problems unsupported"
    ]
    if totals.library:
        names = ", ".join(f"{n} x{k}" if k > 1 else n for n, k in totals.library.items())
        lines.append(f"library calls: {names}")
    return lines


def suite_report(
    results: Sequence[SuiteRow], totals: Totals, about: Mapping[str, object]
) -> Report:
    """What --report writes."""
    rows = [asdict(result) for result in results]
    return {"rows": rows, "totals": totals, "environment": {**environment(), **about}}


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _comparison(ratio: SpeedRatio | None) -> str:
    return "" if ratio is None else f"{ratio.median:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]"
