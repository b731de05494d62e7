"""`fusewright diff A B`: two emitted files, two reports, or one of each, kernel by kernel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fusewright.cli.options import AsJson, check_file, read_text
from fusewright.errors import BadUsage

if TYPE_CHECKING:
    from fusewright.report.decisions import Decisions

HELP = "A file that optimize has written, or its report (--report)."


def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help=HELP)],
    b: Annotated[Path, typer.Argument(metavar="B", help=HELP)],
    source: Annotated[
        bool, typer.Option("--source", "-v", help="With the lines of kernels that differ.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only whether they differ.")] = False,
    as_json: AsJson = False,
) -> int:
    """Say kernel by kernel what two emitted files, or two reports, have in common, and what not.

    The exit code is 0 if nothing differs, and 1 if something does.
    """
    from fusewright.report.decision_diff import decision_diff
    from fusewright.report.decision_diff_text import diff_lines, diff_report
    from fusewright.report.run_report import to_json

    check_file(a, b)
    found = decision_diff(_read(a), _read(b))
    if as_json:
        typer.echo(to_json(diff_report(found)), nl=False)
    else:
        lines = [*diff_lines(found, source=source)]
        typer.echo(lines[-1] if quiet else "\n".join(lines))
    return 0 if found.is_same else 1


def _read(path: Path) -> Decisions:
    from fusewright.report.decisions import decisions

    try:
        text = read_text(path)
    except OSError as error:
        raise BadUsage(f"{path}: this cannot be read: {error.strerror}.") from error
    return decisions(text, str(path))
