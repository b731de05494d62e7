"""A diagnosis -> lines on a terminal, or JSON; and the exit code of `fusewright doctor`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fusewright.doctor.observation import CPU, EVERYTHING, KERNELS, Diagnosis, Observation, State
from fusewright.errors import NotVerifiable

WIDTH = 80
STYLES: dict[State, str] = {"ok": "green", "note": "yellow", "no": "bold red", "?": "bold red"}
ALL = "everything"
INDENT = " " * 12  # of lines under a head


def exit_code(found: Diagnosis) -> int:
    """0 if files for the CPU can be made and run here, else that of `NotVerifiable`."""
    return 0 if CPU in found.works else NotVerifiable.exit_code


def doctor_report(found: Diagnosis) -> dict[str, object]:
    """observations: [{what, state, found, allows, advice}].  works: what the machine is good for.
    lacks: {what it is not good for: [observations in the way]}.  install: what to do, in lines."""
    return asdict(found)


def works_line(found: Diagnosis) -> str:
    """What works here, on one line."""
    return f"works here: {'; '.join(found.works) or 'nothing'}"


def show_diagnosis(console: Console, found: Diagnosis) -> None:
    """A row for each observation, with what it allows; then what works here, and what to do."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.width = min(WIDTH, console.width)
    for ratio in (None, None, 1):
        table.add_column(overflow="fold", ratio=ratio)
    for row in found.observations:
        state, said = Text(row.state, style=STYLES[row.state]), _said(row)
        table.add_row(state, Text(row.what, no_wrap=True), said)
    console.print(table)
    console.print()
    lacks = [f"{ability} ({', '.join(why)})" for ability, why in found.lacks.items()]
    for head, names in (("works here", found.works or ("nothing",)), ("does not", lacks)):
        _say(console, head, textwrap.wrap("; ".join(names), table.width - len(INDENT)))
    _say(console, "to do", found.install)


def _said(row: Observation) -> Text:
    said = Text(row.found)
    if row.allows:
        said.append(" -> ", style="dim")
        said.append("" if row.in_order else "not: ")
        said.append(_allowed(row.allows), style="bold")
    return said


def _allowed(abilities: tuple[str, ...]) -> str:
    """("kernels for cpu", "kernels for a GPU") -> "kernels for cpu, a GPU"."""
    if len(abilities) == len(EVERYTHING):
        return ALL
    kernels = [a.removeprefix(KERNELS) for a in abilities if a.startswith(KERNELS)]
    others = [a for a in abilities if not a.startswith(KERNELS)]
    return ", ".join([KERNELS + ", ".join(kernels)] * bool(kernels) + others)


def _say(console: Console, head: str, lines: Sequence[str]) -> None:
    """Lines under a head. What is given as one line stays one, to be copied."""
    for k, line in enumerate(lines):
        console.print(Text((INDENT if k else f"{head}:".ljust(len(INDENT))) + line), soft_wrap=True)
