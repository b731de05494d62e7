"""A folder -> every problem in it optimised, the table, the report, the page, the exit code.

It only puts together what the other files of this package do: find and run problems, sum up rows,
write them down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from fusewright.common.atomic_write import write_atomically
from fusewright.common.progress import bar
from fusewright.report.run_report import to_json
from fusewright.suite.process_runner import Program
from fusewright.suite.row import EAGER, SuiteRow, geometric_mean, totals
from fusewright.suite.run_all import SuiteOptions, find_problems, run_all
from fusewright.suite.table import page_text, show_suite, suite_report


def suite(  # noqa: PLR0913 -- the options of `fusewright suite`
    folder: Path,
    options: SuiteOptions,
    output: Path,
    program: Program,
    *,
    jobs: int,
    resume: bool,
    report: Path | None,
    page: Path | None,
    console: Console,
    say: Callable[[str], None],
) -> int:
    """The exit code: 0 every problem is verified, 1 one is refuted, 3 one could not be verified.

    program: runs an `optimize` command.  say: for what is not part of the result.  Raises BadUsage
    for a folder without problem files and for an `output` that cannot be written.
    """
    problems = find_problems(folder, options, output)
    done: list[SuiteRow] = []
    with bar(Console(stderr=True), len(problems)) as step:

        def told(result: SuiteRow) -> None:
            done.append(result)
            mean = geometric_mean(done, EAGER)
            step(f"{result.name}: {result.word}" + (f"; mean {mean:.3f}x" if mean else ""))

        results, lost = run_all(
            problems, options, output, program, jobs=jobs, resume=resume, told=told
        )
    summed = totals(results)
    show_suite(console, results, summed)
    for why in lost:
        say(f"fusewright: {why}: --resume will run this problem again.")
    about = {"folder": str(folder), "jobs": jobs} | asdict(options)
    if report is not None:
        write_atomically(report, to_json(suite_report(results, summed, about)), force=True)
    if page is not None:
        write_atomically(page, page_text(results, summed, about), force=True)
    return summed.exit_code
