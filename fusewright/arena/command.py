"""Problems and candidates -> the leaderboard, the report, the page, the exit code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from fusewright.arena.entries import find_entries
from fusewright.arena.leaderboard import arena_page, arena_report, show_arena
from fusewright.arena.ranking import ArenaRow
from fusewright.arena.run_arena import ArenaOptions, run_arena
from fusewright.common.atomic_write import write_atomically
from fusewright.common.progress import bar
from fusewright.report.run_report import to_json
from fusewright.suite.process_runner import Program


def arena(
    folders: tuple[Path, Path],
    options: ArenaOptions,
    output: Path,
    program: Program,
    jobs: int,
    console: Console,
    say: Callable[[str], None],
) -> Board:
    """Judge and time what is new, and show the board.

    folders: of problems, of candidates.  program: runs a command.  say: for what is not part of the
    result.  Raises BadUsage as `find_entries` does, and for an `output` that cannot be written.
    """
    found = find_entries(*folders, output, asdict(options))
    for path in found.strangers:
        say(f"fusewright: {path} is left out: its path names no problem.")
    with bar(Console(stderr=True), len(found.entries)) as step:

        def told(row: ArenaRow) -> None:
            step(f"{row.problem}, {row.entrant}: {row.word}")

        rows = run_arena(found.entries, options, output, program, jobs=jobs, told=told)
    show_arena(console, rows)
    about = {"problems": str(folders[0]), "candidates": str(folders[1])} | asdict(options)
    return Board(rows, about)


@dataclass(frozen=True)
class Board:
    """about: the options, and what the rows are of."""

    rows: tuple[ArenaRow, ...]
    about: Mapping[str, object]

    @property
    def exit_code(self) -> int:
        """0 every candidate has a verdict, 3 one could be neither verified nor refuted."""
        return 3 if any(row.verdict == "not-verified" for row in self.rows) else 0

    def write(self, report: Path | None, page: Path | None) -> None:
        """The JSON report and the HTML page, where they are asked for."""
        if report is not None:
            text = to_json(arena_report(self.rows, self.about))
            write_atomically(report, text, force=True)
        if page is not None:
            write_atomically(page, arena_page(self.rows, self.about), force=True)
