"""A folder -> every problem in it optimised: the rows, their sum, the report, the page.

It only puts together what the other files of this package do: find and run problems, sum up rows,
write them down.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from fusewright.common.atomic_write import write_atomically
from fusewright.common.progress import bar
from fusewright.html_report.render import page_text
from fusewright.report.amounts import tally
from fusewright.report.run_report import Report
from fusewright.report.speed import EAGER
from fusewright.suite.pages import links_from, suite_page, write_problem_pages
from fusewright.suite.row import SuiteRow, Totals, totals
from fusewright.suite.run_all import SuiteOptions, Watch, find_problems, run_all
from fusewright.suite.runner import Place, Program
from fusewright.suite.table import suite_report


@dataclass(frozen=True)
class SuiteResult:
    """What came of a suite. lost: why results could not be remembered."""

    rows: tuple[SuiteRow, ...]
    totals: Totals
    report: Report
    lost: tuple[str, ...]


def suite(  # noqa: PLR0913 -- the options of `fusewright suite`
    folder: Path,
    options: SuiteOptions,
    output: Path,
    program: Program,
    *,
    place: Place,
    resume: bool,
    page: Path | None,
    quiet: bool = False,
) -> SuiteResult:
    """Run every problem of the folder.

    program: runs an `optimize` command.  place: where.  quiet: no progress.  Raises BadUsage for a
    folder without problem files, for an `output` that cannot be written, and for a place where
    nothing can be run.
    """
    problems = find_problems(folder, options, output, place)
    done: list[SuiteRow] = []
    with bar(Console(stderr=True), len(problems), quiet=quiet) as shown:

        def told(result: SuiteRow) -> None:
            done.append(result)
            mean = totals(done).means.get(EAGER)
            said = tally([row.verdict for row in done]) + (f", mean {mean:.3f}x" if mean else "")
            shown.end(result.name, said)

        results, lost = run_all(
            problems, options, output, program,
            place=place, resume=resume, watch=Watch(shown.begin, told),
        )  # fmt: skip
    summed = totals(results)
    about = {"folder": str(folder), **place.about} | asdict(options)
    if page is not None:
        links = links_from(page, write_problem_pages(problems, results, output))
        text = page_text(suite_page(results, summed, about, links))
        write_atomically(page, text, force=True)
    return SuiteResult(results, summed, suite_report(results, summed, about), lost)
