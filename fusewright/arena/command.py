"""Problems and candidates -> the board: rows, the report, the page, the exit code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from fusewright.arena.entries import find_entries
from fusewright.arena.leaderboard import arena_report
from fusewright.arena.page import arena_page
from fusewright.arena.ranking import ArenaRow
from fusewright.arena.run_arena import ArenaOptions, run_arena
from fusewright.common.atomic_write import write_atomically
from fusewright.common.progress import bar
from fusewright.html_report.render import page_text
from fusewright.report.amounts import tally
from fusewright.report.run_report import Report
from fusewright.suite.run_all import Watch
from fusewright.suite.runner import Place, Program


@dataclass(frozen=True)
class Board:
    """about: the options, and what the rows are of.  strangers: files that are left out, as their
    path names no problem.  lost: why results could not be remembered."""

    rows: tuple[ArenaRow, ...]
    about: Mapping[str, object]
    strangers: tuple[Path, ...]
    lost: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0 every candidate has a verdict, 3 one could be neither verified nor refuted."""
        return 3 if any(row.verdict == "not-verified" for row in self.rows) else 0

    @property
    def report(self) -> Report:
        return arena_report(self.rows, self.about)


def arena(
    folders: tuple[Path, Path],
    options: ArenaOptions,
    output: Path,
    program: Program,
    *,
    place: Place,
    page: Path | None,
    quiet: bool = False,
) -> Board:
    """Judge and time what is new.

    folders: of problems, of candidates.  program: runs a command.  place: where.  page: an HTML
    file to write.  quiet: no progress.  Raises BadUsage as `find_entries` does, for an `output`
    that cannot be written, and for a place where nothing can be run.
    """
    found = find_entries(*folders, output, options.of_results, place)
    done: list[ArenaRow] = []
    with bar(Console(stderr=True), len(found.entries), quiet=quiet) as shown:

        def told(row: ArenaRow) -> None:
            done.append(row)
            shown.end(row.name, tally([row.verdict for row in done]))

        watch = Watch(shown.begin, told)
        rows, lost = run_arena(found.entries, options, output, program, place=place, watch=watch)
    about = {"problems": str(folders[0]), "candidates": str(folders[1]), **place.about}
    about |= asdict(options)
    if page is not None:
        write_atomically(page, page_text(arena_page(rows, about)), force=True)
    return Board(rows, about, found.strangers, lost)
