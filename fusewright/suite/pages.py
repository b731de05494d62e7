"""Results of a suite -> one page of all, what is lost first, and a page for each problem."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fusewright.common.atomic_write import write_atomically
from fusewright.html_report.page import (
    WORD_TONES,
    Cell,
    Column,
    Page,
    Section,
    Table,
    Tile,
    Tone,
    facts_table,
)
from fusewright.html_report.problem_page import ProblemPage
from fusewright.html_report.ratios_plot import OVER_EAGER, NamedRatio, ratios_plot
from fusewright.html_report.render import page_text
from fusewright.html_report.texts import text_at
from fusewright.judge.findings import Verdict
from fusewright.report.run_report import Report, environment, verdict_report
from fusewright.report.speed import CANDIDATE, COMPILED, EAGER, SLOWER
from fusewright.suite.row import SuiteRow, Totals
from fusewright.suite.run_all import SuiteProblem
from fusewright.suite.table import COLUMNS, cells, coverage_lines, machine_lines, total_lines

WORDS = ("problem", "verdict", "machine")  # columns that are no numbers
ORDER = ("refuted", "not-verified", "verified")
NO_RATIOS = "No problem was timed."
ALL_VERIFIED = "Every problem is verified."


def write_problem_pages(
    problems: Sequence[SuiteProblem], results: Sequence[SuiteRow], output: Path
) -> dict[str, Path]:
    """A page for each problem, by its name, in the folder where its run has left a report. Those
    with equal content were run once, under the first name."""
    first: dict[str, str] = {}
    pages = dict[str, Path]()
    for problem, row in zip(problems, results, strict=True):
        run = first.setdefault(problem.key or problem.name, problem.name)
        found = _report_of(output / run, row)
        emitted = text_at(f"{output / run}.py") if found.get("path") else ""
        told = ProblemPage(found, f"{problem.name}: {row.word}", text_at(problem.path), emitted)
        page = Path(f"{output / problem.name}.html")
        page.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(page, page_text(told.page()), force=True)
        pages[problem.name] = page
    return pages


def _report_of(stem: Path, row: SuiteRow) -> Report:
    """What the run reported; of one that ended without a report, how it ended."""
    try:
        found: dict[str, Any] = json.loads(Path(f"{stem}.json").read_bytes())
        if found["reason"] == row.reason:
            return found
    except (OSError, ValueError, KeyError):
        pass
    return verdict_report(Verdict(row.verdict, (), (), row.reason))


def links_from(page: Path, pages: Mapping[str, Path]) -> dict[str, str]:
    """From the place of one page to others, by name."""
    begin = page.absolute().parent
    return {
        name: quote(Path(os.path.relpath(path.absolute(), begin)).as_posix())
        for name, path in pages.items()
    }


# ---- the page of all -----------------------------------------------------------------------------


def suite_page(
    results: Sequence[SuiteRow],
    totals: Totals,
    about: Mapping[str, object],
    links: Mapping[str, str],
) -> Page:
    """links: to the page of each problem, by its name."""
    rows = sorted(results, key=_losses_first)
    reasons = tuple(f"{r.name}: {r.word}: {r.reason}" for r in rows if r.verdict != "verified")
    lines = total_lines(totals)
    return Page(
        "fusewright suite",
        lines[0],
        _tone_of_all(totals),
        tuple(_tiles(totals)),
        (
            Section("Problems", ("What is lost stands first.",), table=_table(rows, links)),
            _ratios(rows, totals),
            Section("Not verified", reasons or (ALL_VERIFIED,)),
            Section("Totals", tuple(lines), folded=True),
            Section("Columns", table=facts_table(COLUMNS, "column"), folded=True),
            Section("Environment", table=facts_table({**environment(), **about}), folded=True),
        ),
    )


def _losses_first(row: SuiteRow) -> tuple[int, float, str]:
    """What is wrong, what nobody knows, then the slowest."""
    ratio = (row.ratios or {}).get(EAGER)
    return ORDER.index(row.verdict), ratio.median if ratio else 0.0, row.name


def _tone_of_all(totals: Totals) -> Tone:
    return "bad" if totals.refuted else "warn" if totals.not_verified else "good"


def _tiles(totals: Totals) -> list[Tile]:
    lost = f"{totals.refuted} refuted", f"{totals.not_verified} not verified"
    verified = f"{totals.verified} of {totals.problems} verified"
    found = [Tile("Verdicts", verified, lost, _tone_of_all(totals))]
    for name in (EAGER, COMPILED):
        mean = totals.means.get(name)
        if mean is None:
            several = any(name in means for means in totals.means_on.values())
            found.append(Tile(f"Over {name}", "no one mean" if several else "not timed"))
            continue
        counts = f"{totals.faster[name]} faster, {totals.slower[name]} slower, beyond the noise"
        tone: Tone = "warn" if totals.slower[name] else ""
        told = ("geometric mean of what is verified", counts)
        found.append(Tile(f"Over {name}", f"{mean:.3f}x", told, tone))
    operators = f"{totals.fused_operators} operators"
    return [*found, Tile("Fused", operators, tuple(coverage_lines(totals)[:1]))]


def _table(rows: Sequence[SuiteRow], links: Mapping[str, str]) -> Table:
    columns = tuple(Column(n, meaning, n not in WORDS) for n, meaning in COLUMNS.items())
    return Table(columns, tuple(_row(row, links.get(row.name, "")) for row in rows), sortable=True)


def _row(row: SuiteRow, link: str) -> tuple[Cell, ...]:
    """As on a terminal, and with what each cell is sorted by."""
    times, ratios = row.times or {}, row.ratios or {}
    over = [ratios[side].median if side in ratios else None for side in (EAGER, COMPILED)]
    timed = [times.get(side) for side in (EAGER, COMPILED, CANDIDATE)]
    keys = (
        None, None, row.error, row.eager_error, *timed, *over, row.roofline, row.kernels,
        row.library_nodes, row.seconds, None,
    )  # fmt: skip
    return tuple(
        Cell(
            text,
            None if name in WORDS else "" if key is None else str(key),
            _tone(name, row),
            link if name == "problem" else "",
        )
        for name, text, key in zip(COLUMNS, cells(row), keys, strict=True)
    )


def _tone(column: str, row: SuiteRow) -> Tone:
    if column == "verdict":
        return WORD_TONES[row.verdict]
    side = {"ratio": EAGER, "over compile": COMPILED}.get(column, "")
    ratio = (row.ratios or {}).get(side)
    return "bad" if ratio is not None and ratio.claim == SLOWER else ""


def _ratios(rows: Sequence[SuiteRow], totals: Totals) -> Section:
    """The slowest first, so that losses stand at the top."""
    timed = [NamedRatio(row.name, row.ratios[EAGER]) for row in rows
             if row.ratios and EAGER in row.ratios]  # fmt: skip
    if not timed:
        return Section("Over eager", (NO_RATIOS,))
    timed.sort(key=lambda one: one.ratio.median)
    label = "How many times as fast as eager each problem is, the slowest first"
    notes = tuple(machine_lines(totals))
    return Section("Over eager", notes, plot=ratios_plot(timed, OVER_EAGER, label))
