"""`fusewright profile PROBLEM [CANDIDATE]`: where the time of a call goes, for each side."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fusewright.cli.optimizing import default_device
from fusewright.cli.options import (
    AsJson,
    BudgetTime,
    Device,
    PagePath,
    ProblemPath,
    Quiet,
    ReportPath,
    Seed,
    Settings,
    Verbose,
    check_file,
    check_outputs,
    drawn,
    parse_budget,
    parse_names,
    parse_settings,
)
from fusewright.cli.reporting import Asked, Done, asked
from fusewright.cli.views import profile_done
from fusewright.common.atomic_write import STANDARD_OUTPUT, write_atomically
from fusewright.errors import BadUsage

PROFILED = ("eager", "compile")


def profile(  # noqa: PLR0913 -- the options of the command
    problem: ProblemPath,
    candidate: Annotated[
        Path | None,
        typer.Argument(
            metavar="CANDIDATE", help="File that defines ModelNew; without one, baselines only."
        ),
    ] = None,
    against: Annotated[
        str, typer.Option(metavar="NAME,...", help=f"Baselines: {', '.join(PROFILED)}.")
    ] = ",".join(PROFILED),
    device: Device = None,
    budget: BudgetTime = None,
    seed: Seed = None,
    settings: Settings = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="T.json", help="Write every call as a trace for Chrome or Perfetto."),
    ] = None,
    report_path: ReportPath = None,
    page_path: PagePath = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> int:
    """Say where the time of a call goes, of a candidate, eager and torch.compile: kernel by kernel,
    with what each moves, how near it is to the roofline, and the gaps between them."""
    wanted = asked(
        verbose=verbose, quiet=quiet, report=report_path, as_json=as_json, page=page_path
    )
    if trace == STANDARD_OUTPUT:
        raise BadUsage("--trace -: viewers of traces open files. Name one, as in --trace t.json.")
    files = [problem, *([candidate] if candidate else [])]
    check_outputs(*files, output=trace, report=wanted.report, page=wanted.page, force=True)
    check_file(*files)
    names = parse_names("--against", against, PROFILED)
    if candidate is None and not names:
        raise BadUsage("Nothing is to be profiled: name a candidate, or a baseline in --against.")
    about = {
        "device": device or default_device(),
        "against": names,
        "overrides": parse_settings(settings),
        **drawn(seed, parse_budget(budget)),
    }
    return wanted.reported(partial(_profiled, wanted, problem, candidate, trace, about))


def _profiled(
    wanted: Asked,
    problem: Path,
    candidate: Path | None,
    trace: Path | None,
    about: dict[str, object],
) -> Done:
    from fusewright.profiling.chrome_trace import chrome_trace
    from fusewright.profiling.profile import profile as measure

    with wanted.progress() as step:
        found = measure(problem, candidate, **about, progress=step)  # type: ignore[arg-type]
    if trace is not None:
        write_atomically(trace, chrome_trace(found.calls), force=True)
    return profile_done(found.profile, wanted.view, str(problem), str(candidate or ""))
