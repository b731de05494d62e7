"""What a command found -> its report, its exit code, how it is shown: a line, a screen, all.

What only some commands need is imported when they run: `--help` does not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer
from rich.console import Console

from fusewright.cli.reporting import Done, View, print_lines, problem_page
from fusewright.judge.findings import Verdict
from fusewright.report.full_view import show_contest, show_outcome, show_timing, show_verdict
from fusewright.report.one_line import contest_line, outcome_line, timing_line, verdict_line
from fusewright.report.one_screen import outcome_screen, timing_screen, verdict_screen
from fusewright.report.run_report import (
    OptimizeResult,
    outcome_report,
    profile_report,
    timing_report,
    verdict_report,
)

if TYPE_CHECKING:
    from fusewright.arena.command import Board
    from fusewright.profiling.side_profile import Profile
    from fusewright.suite.command import SuiteResult

T = TypeVar("T")
REPLAYED = "a case of an earlier report"


def outcome_done(outcome: OptimizeResult, view: View, text: str | None = None) -> Done:
    """Of `optimize`. text: of the file, where that alone goes to standard output."""
    if text is not None:
        show = partial(_print_text, text)
    elif view == "full":
        show = partial(_shown, show_outcome, outcome)
    else:
        lines = [outcome_line(outcome)] if view == "line" else outcome_screen(outcome)
        show = partial(print_lines, lines)
    return Done(outcome_report(outcome), outcome.exit_code, show, partial(_outcome_page, outcome))


def explained_done(outcome: OptimizeResult, view: View) -> Done:
    """Of `explain`: the record, which is as it is on any terminal."""
    record = outcome.decisions.rstrip()
    text = record.splitlines()[0] if view == "line" else record
    show = partial(_print_text, f"{text}\n")
    return Done(outcome_report(outcome), 0, show, partial(_outcome_page, outcome))


def _outcome_page(outcome: OptimizeResult) -> str:
    title = f"{Path(outcome.problem).name} on {outcome.target}"
    return problem_page(outcome_report(outcome), title, outcome.problem, emitted=outcome.text)


def verdict_done(verdict: Verdict, view: View, problem: str = "", candidate: str = "") -> Done:
    """Of `judge`. problem, candidate: their files, as named; "" of a replay."""
    if view == "full":
        show = partial(_shown, show_verdict, verdict)
    elif view == "line":
        show = partial(print_lines, [verdict_line(verdict, candidate)])
    else:
        show = partial(print_lines, verdict_screen(verdict, problem, candidate))
    report, title = verdict_report(verdict), f"{Path(candidate).name} for {Path(problem).name}"
    page = partial(problem_page, report, title if problem else REPLAYED, problem, candidate)
    return Done(report, verdict.exit_code, show, page)


def timing_done(timing: object, view: View, problem: str, candidate: str) -> Done:
    """Of `bench`. problem, candidate: their files, as named."""
    if view == "full":
        show = partial(_shown, show_timing, timing)
    elif view == "line":
        show = partial(print_lines, [timing_line(timing, candidate)])
    else:
        show = partial(print_lines, timing_screen(timing))
    report, title = timing_report(timing), f"{Path(candidate).name} for {Path(problem).name}"
    return Done(report, 0, show, partial(problem_page, report, title, problem, candidate))


def contest_done(contest: object, view: View, problem: str) -> Done:
    """Of `bench` with several candidates; a line is the fastest's. problem: its file, as named."""
    show = partial(_shown, show_contest, contest)
    if view == "line":
        show = partial(print_lines, [contest_line(contest)])
    report, title = timing_report(contest), f"candidates for {Path(problem).name}"
    return Done(report, 0, show, partial(problem_page, report, title, problem))


def profile_done(profile: Profile, view: View, problem: str, candidate: str) -> Done:
    """Of `profile`. problem, candidate: their files, as named; "" for no candidate."""
    from fusewright.profiling.profile_text import profile_full, profile_line, profile_screen

    if view == "line":
        lines = [profile_line(profile, candidate)]
    else:
        lines = profile_full(profile) if view == "full" else profile_screen(profile)
    report, names = profile_report(profile), [Path(name).name for name in (candidate, problem)]
    page = partial(problem_page, report, " for ".join(filter(None, names)), problem, candidate)
    return Done(report, 0, partial(print_lines, lines), page)


def arena_done(board: Board, view: View) -> Done:
    """Of `arena`."""
    from fusewright.arena.leaderboard import arena_line, show_arena

    show = partial(_shown, show_arena, board.rows)
    if view == "line":
        show = partial(print_lines, [arena_line(board.rows)])
    return Done(board.report, board.exit_code, show)


def suite_done(result: SuiteResult, view: View) -> Done:
    """Of `suite`."""
    from fusewright.suite.table import count_line

    if view == "line":
        show = partial(print_lines, [count_line(result.totals)])
    else:
        show = partial(_show_suite, result, view)
    return Done(result.report, result.totals.exit_code, show)


def _shown(show: Callable[[Console, T], None], what: T, console: Console) -> None:
    show(console, what)


def _show_suite(result: SuiteResult, view: View, console: Console) -> None:
    from fusewright.suite.table import show_suite

    show_suite(console, result.rows, result.totals, short=view == "screen")


def _print_text(text: str, _: Console) -> None:
    """As it is: a console would wrap it."""
    typer.echo(text, nl=False)
