"""A command's work -> its result on the terminal or as JSON, and its report in a file.

With `--json` standard output holds the report and nothing else: what a problem file or a library
prints meanwhile goes to standard error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    redirect_stdout,
    suppress,
)
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import typer
from rich.console import Console
from rich.text import Text

from fusewright.cli.endings import Output
from fusewright.common.atomic_write import STANDARD_OUTPUT, write_atomically
from fusewright.common.progress import progress
from fusewright.errors import BadUsage, FusewrightError
from fusewright.report.run_report import Report, error_report, to_json

View = Literal["line", "screen", "full"]


@dataclass(frozen=True)
class Done:
    """What came of a command. show: prints it, as was asked for.  page: the text of its HTML page,
    made if asked for; None where the command writes its own."""

    report: Report
    code: int
    show: Callable[[Console], None]
    page: Callable[[], str] | None = None


@dataclass(frozen=True)
class Asked:
    """What of the result goes where. report: a file for the JSON.  as_json: it goes to standard
    output, too, and nothing else does.  page: a file for the HTML page."""

    view: View = "screen"
    report: Path | None = None
    as_json: bool = False
    page: Path | None = None

    def progress(self) -> AbstractContextManager[Callable[[str], None]]:
        """On standard error: on a terminal, or, where it is no terminal, in lines with `-v`."""
        if self.view == "line":
            return nullcontext(_nobody)
        return progress(Console(stderr=True), lines=self.view == "full")

    def reported(self, work: Callable[[], Done]) -> int:
        """Do the work, show the result, and leave a report of it even if the work ends early: never
        an older one. The exit code."""
        try:
            with _only_the_report() if self.as_json else nullcontext():
                done = work()
        except FusewrightError as error:
            report = error_report(error)
            self._write(report, partial(problem_page, report, "fusewright: no result"))
            raise
        if not self.as_json:
            done.show(Output(highlight=False))
        self._write(done.report, done.page)
        return done.code

    def _write(self, report: Report, page: Callable[[], str] | None) -> None:
        if self.as_json:
            typer.echo(to_json(report), nl=False)
        if self.report is not None:
            write_atomically(self.report, to_json(report), force=True)
        if self.page is not None and page is not None:
            write_atomically(self.page, page(), force=True)


def asked(
    *,
    verbose: bool,
    quiet: bool,
    report: Path | None = None,
    as_json: bool = False,
    page: Path | None = None,
) -> Asked:
    """What the options say. Raises BadUsage for two that contradict each other, and where a page is
    asked for that nothing installed can draw."""
    if verbose and quiet:
        raise BadUsage("-v shows all, and -q one line: give one of the two.")
    if report == STANDARD_OUTPUT:
        report, as_json = None, True
    if page is not None:
        from fusewright.html_report.svg_plot import require_plots

        require_plots()
    return Asked("full" if verbose else "line" if quiet else "screen", report, as_json, page)


def problem_page(
    report: Report, title: str, problem: str = "", candidate: str = "", emitted: str = ""
) -> str:
    """The HTML page of a command about one problem. problem, candidate: their files, as named; ""
    of none.  emitted: the text of the candidate, if that is known."""
    from fusewright.html_report.problem_page import ProblemPage
    from fusewright.html_report.render import page_text
    from fusewright.html_report.texts import text_at

    source, emitted = text_at(problem), emitted or text_at(candidate)
    return page_text(ProblemPage(report, title, source, emitted).page())


def print_lines(lines: Iterable[str | Text], console: Console) -> None:
    """Each on one line, however narrow the terminal: they are made for it, or not to be broken."""
    for line in lines:
        console.print(Text(line) if isinstance(line, str) else line, soft_wrap=True)


def _nobody(_: str) -> None:
    """Progress with -q."""


@contextmanager
def _only_the_report() -> Iterator[None]:
    """Whatever is written to standard output meanwhile, by whomever in this process or its
    children, goes to standard error."""
    sys.stdout.flush()
    kept = _own_descriptor()
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)


def _own_descriptor() -> int | None:
    """A copy of descriptor 1, which leads to standard error now; None where there is no such."""
    with suppress(OSError):
        kept = os.dup(1)
        os.dup2(2, 1)
        return kept
    return None
