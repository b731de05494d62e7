"""Rows of an arena -> tables on a terminal, and the JSON report; both in the same order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fusewright.arena.ranking import ArenaRow, Entrant, standings, timed_on
from fusewright.judge.timing.contest import FASTEST
from fusewright.report.amounts import seconds_text, tally
from fusewright.report.run_report import Report, environment
from fusewright.report.speed import SpeedRatio
from fusewright.report.styles import STYLES

GAP, LEAST_NAME = 2, 8  # characters between columns; of an entrant's name
STANDINGS: Mapping[str, str] = {
    "entrant": "who made the candidates, as their paths say",
    "right": "candidates that are verified, of those entered",
    "refuted": "candidates that are wrong",
    "faster": "right ones that are faster than eager, beyond the noise",
    "first": "first places; who cannot be told from the fastest shares it",
    "mean": "geometric mean over eager of the right ones",
}
CANDIDATES: Mapping[str, str] = {
    "place": "among the right ones for this problem",
    "entrant": "who made the candidate",
    "verdict": "verified, refuted or not-verified",
    "time": "median time of a call",
    "over eager": "how many times as fast as eager; 95 % interval",
    "compile": "how many times as fast as torch.compile",
    "first": "how many times as fast as the fastest candidate",
}


def in_order(rows: Sequence[ArenaRow]) -> list[tuple[str, list[ArenaRow]]]:
    """By problem; those with a place first, then the others by their verdict."""
    groups = groupby(sorted(rows, key=lambda row: row.problem), key=lambda row: row.problem)
    return [(problem, sorted(some, key=_rank)) for problem, some in groups]


def show_arena(console: Console, rows: Sequence[ArenaRow]) -> None:
    """The standings, a table for each problem, and why candidates have no place."""
    console.print(_table(console, STANDINGS, [standing_cells(one) for one in standings(rows)]))
    if line := machines_line(rows):
        console.print(Text(f"\n{line}"), soft_wrap=True)
    for problem, some in in_order(rows):
        console.print(Text(f"\n{problem}", style="bold"))
        console.print(_table(console, CANDIDATES, [cells(row) for row in some], some))
    console.print()
    for row in (row for _, some in in_order(rows) for row in some if not row.place):
        if row.verdict != "verified" or row.end:
            head = (f"{row.problem}, {row.entrant}: {row.word}: ", STYLES[row.verdict])
            console.print(Text.assemble(head, row.reason), soft_wrap=True)


def machines_line(rows: Sequence[ArenaRow]) -> str:
    """Which kinds of machines timed what, where there are several; else ""."""
    if len(kinds := timed_on(rows)) < 2:
        return ""
    of = {k: sorted({r.problem for r in rows if r.over_eager and r.device == k}) for k in kinds}
    told = "; ".join(f"{kind}: {', '.join(problems)}" for kind, problems in of.items())
    return (
        f"Timed on {len(kinds)} kinds of machines, whose ratios are not comparable ({told}): an "
        "entrant timed on several of them has no mean."
    )


def arena_line(rows: Sequence[ArenaRow]) -> str:
    """All in one line."""
    counts = tally(sorted((row.verdict for row in rows), reverse=True))
    best = next(iter(standings(rows)), None)
    leads = f"; {best.name} leads, {best.right} of {best.entered} right" if best else ""
    return f"{len(rows)} candidates: {counts}{leads}"


def arena_report(rows: Sequence[ArenaRow], about: Mapping[str, object]) -> Report:
    """What --report writes."""
    return {
        "rows": [asdict(row) for row in rows],
        "standings": [asdict(one) for one in standings(rows)],
        "environment": {**environment(), **about},
    }


def cells(row: ArenaRow) -> list[str]:
    """A row as text, in the order of CANDIDATES."""
    return [
        str(row.place or ""),
        row.entrant,
        row.verdict,
        "" if row.time_s is None else seconds_text(row.time_s),
        _interval(row.over_eager),
        _ratio(row.over_compile),
        "" if row.over_best and row.over_best.claim == FASTEST else _ratio(row.over_best),
    ]


def standing_cells(one: Entrant) -> list[str]:
    """An entrant as text, in the order of STANDINGS."""
    mean = "" if one.mean is None else f"{one.mean:.2f}x"
    counts = [str(n or "") for n in (one.refuted, one.faster, one.first)]
    return [one.name, f"{one.right} of {one.entered}", *counts, mean]


def _table(
    console: Console,
    columns: Mapping[str, str],
    lines: Sequence[Sequence[str]],
    rows: Sequence[ArenaRow] = (),
) -> Table:
    """As wide as the console: where it is narrow, names of entrants are cut."""
    widths = {
        name: max(len(name), *(len(line[number]) for line in lines))
        for number, name in enumerate(columns)
    }
    others = sum(width + GAP for name, width in widths.items() if name != "entrant")
    widths["entrant"] = min(widths["entrant"], max(LEAST_NAME, console.width - others))
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for name, width in widths.items():
        table.add_column(name, no_wrap=True, overflow="ellipsis", width=width)
    for number, line in enumerate(lines):
        style = STYLES[rows[number].verdict] if rows else ""
        named = zip(columns, line, strict=True)
        texts = (Text(cell, style=style if name == "verdict" else "") for name, cell in named)
        table.add_row(*texts)
    return table


def _rank(row: ArenaRow) -> tuple[bool, int, float, str, str]:
    over = row.over_eager.median if row.over_eager else 0.0
    return not row.place, row.place, -over, row.word, row.entrant


def _ratio(ratio: SpeedRatio | None) -> str:
    return "" if ratio is None else f"{ratio.median:.2f}x"


def _interval(ratio: SpeedRatio | None) -> str:
    return "" if ratio is None else f"{_ratio(ratio)} [{ratio.low:.2f}, {ratio.high:.2f}]"
