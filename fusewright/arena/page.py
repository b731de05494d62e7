"""Rows of an arena -> one page, in the order of the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusewright.arena.leaderboard import (
    CANDIDATES,
    STANDINGS,
    arena_line,
    cells,
    in_order,
    machines_line,
    standing_cells,
)
from fusewright.arena.ranking import ArenaRow, standings
from fusewright.html_report.page import (
    WORD_TONES,
    Cell,
    Column,
    Page,
    Section,
    Table,
    Tone,
    facts_table,
)
from fusewright.html_report.ratios_plot import OVER_EAGER, NamedRatio, ratios_plot
from fusewright.report.run_report import environment

WORDS = ("entrant", "verdict")  # columns that are no numbers


def arena_page(rows: Sequence[ArenaRow], about: Mapping[str, object]) -> Page:
    """The standings, and a table and a plot for each problem."""
    told = tuple(tuple(map(Cell, standing_cells(one))) for one in standings(rows))
    columns, machines = {**STANDINGS, **CANDIDATES}, tuple(filter(None, [machines_line(rows)]))
    return Page(
        "fusewright arena",
        arena_line(rows),
        "good" if all(row.place for row in rows) else "warn",
        (),
        (
            Section("Standings", machines, table=_table(STANDINGS, told)),
            *(_problem(problem, some) for problem, some in in_order(rows)),
            Section("Columns", table=facts_table(columns, "column"), folded=True),
            Section("Environment", table=facts_table({**environment(), **about}), folded=True),
        ),
    )


def _problem(problem: str, rows: Sequence[ArenaRow]) -> Section:
    notes = tuple(f"{row.entrant}: {row.word}: {row.reason}" for row in rows
                  if row.verdict != "verified" or row.end)  # fmt: skip
    timed = [NamedRatio(row.entrant, row.over_eager) for row in rows if row.over_eager]
    timed.sort(key=lambda one: one.ratio.median)
    label = f"How many times as fast as eager each candidate for {problem} is"
    plot = ratios_plot(timed, OVER_EAGER, label) if timed else None
    return Section(problem, notes, plot=plot, table=_table(CANDIDATES, tuple(map(_row, rows))))


def _row(row: ArenaRow) -> tuple[Cell, ...]:
    ratios = (row.over_eager, row.over_compile, row.over_best)
    medians = ["" if ratio is None else str(ratio.median) for ratio in ratios]
    time_s = "" if row.time_s is None else str(row.time_s)
    keys = (None, None, None, time_s, *medians)
    named = zip(CANDIDATES, cells(row), keys, strict=True)
    return tuple(Cell(text, key, _tone(name, row)) for name, text, key in named)


def _tone(column: str, row: ArenaRow) -> Tone:
    return WORD_TONES[row.verdict] if column == "verdict" else ""


def _table(columns: Mapping[str, str], rows: tuple[tuple[Cell, ...], ...]) -> Table:
    heads = (Column(name, meaning, name not in WORDS) for name, meaning in columns.items())
    return Table(tuple(heads), rows, sortable=True)
