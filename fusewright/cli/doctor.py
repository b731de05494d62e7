"""`fusewright doctor`: what this machine has, what that allows, what to install."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from fusewright.cli.options import AsJson
from fusewright.common.progress import progress


def doctor(
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="One line: what works here. No progress.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Say what this machine has, what that allows, and what to install."""
    from fusewright.doctor.command import doctor_report, exit_code, show_diagnosis, works_line
    from fusewright.doctor.examination import examine
    from fusewright.report.run_report import to_json

    with progress(Console(stderr=True, quiet=quiet)) as step:
        found = examine(step)
    if as_json:
        typer.echo(to_json(doctor_report(found)), nl=False)
    elif quiet:
        typer.echo(works_line(found))
    else:
        show_diagnosis(Console(highlight=False), found)
    return exit_code(found)
