"""Candidates -> the judge's word on each, and for each problem one timing of the right ones.

Each judging and each timing is a process of its own. Both are kept by the content of the files, the
options and the version of this package: nothing is judged or timed twice, also after a kill.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from fusewright.arena.entries import Entry
from fusewright.arena.ranking import (
    ArenaRow,
    Contest,
    judged_row,
    kept_arena_row,
    timed_rows,
)
from fusewright.judge.timing.contest import FASTEST, MOST
from fusewright.suite.process_runner import HERE, setting_words
from fusewright.suite.results_db import ResultsDb
from fusewright.suite.run_all import NOBODY, STORE, Watch, make_folder
from fusewright.suite.run_end import RunEnd
from fusewright.suite.runner import Command, Place, Program, Runner, Work, side_by_side


@dataclass(frozen=True)
class ArenaOptions:
    """What is the same for all candidates. timeout_s: of one judging or timing."""

    device: str = "cpu"
    timing: bool = True
    timeout_s: float = 600.0
    overrides: Mapping[str, str] = field(default_factory=dict)

    @property
    def of_results(self) -> Mapping[str, object]:
        """Those that a verdict, or a time, depends on."""
        return {"device": self.device, "overrides": dict(self.overrides)}

    def words(self, command: str, files: Sequence[Path], stem: Path) -> list[str]:
        """Of `judge` for one candidate, or of `bench` for several. files: the problem, and then
        they; stem: of the report."""
        words = [command, *map(str, files), "--report", f"{stem}.json"]
        words += ["--device", self.device, "--verbose"] + ["--no-timing"] * (command == "judge")
        return words + setting_words(self.overrides)


def run_arena(
    entries: Sequence[Entry],
    options: ArenaOptions,
    output: Path,
    program: Program,
    *,
    place: Place = HERE,
    watch: Watch[ArenaRow] = NOBODY,
) -> tuple[tuple[ArenaRow, ...], tuple[str, ...]]:
    """The rows in the order of the entries, and why some results could not be remembered.

    program: takes the words of a command.  place: where it runs.  Raises BadUsage where no results
    can be kept, and where nothing can be run.
    """
    make_folder(output)
    work = Work(program, output, options.timeout_s, options.device)
    with ResultsDb(output / STORE) as store, place.open(work) as runner:
        arena = _Arena(options, runner, store)
        rows = arena.judged(entries, watch)
        if options.timing:
            by_problem = groupby(entries, key=lambda entry: entry.problem)
            with side_by_side(runner, runner.contests) as pool:
                timing = [pool.submit(arena.timed, tuple(some), rows) for _, some in by_problem]
                rows = rows | {k: v for done in timing for k, v in done.result().items()}
    return tuple(rows[entry.name] for entry in entries), tuple(arena.lost)


class _Arena:
    """Judgings and timings, each of which is kept. lost: why some could not be."""

    def __init__(self, options: ArenaOptions, runner: Runner, store: ResultsDb) -> None:
        self._options, self._runner, self._store = options, runner, store
        self.lost: list[str] = []

    def judged(self, entries: Sequence[Entry], watch: Watch[ArenaRow]) -> dict[str, ArenaRow]:
        """By the entry's name. What ended without a verdict is tried again the next time."""
        rows: dict[str, ArenaRow] = {}
        same: dict[str, list[Entry]] = {}  # by key: equal text is judged once
        for entry in entries:
            same.setdefault(entry.key, []).append(entry)

        def tell(row: ArenaRow, key: str) -> None:
            for entry in same[key]:
                rows[entry.name] = replace(row, problem=entry.problem, entrant=entry.entrant)
                watch.told(rows[entry.name])

        def judge(entry: Entry) -> RunEnd:
            watch.begun(entry.name)
            words = partial(self._options.words, "judge")
            files = entry.problem_path, entry.path
            return self._runner.launch(Command(f"judged/{entry.name}", files, words, timed=False))

        found = {k: kept_arena_row(told) for k in same if (told := self._store.get(k))}
        kept = {key: row for key, row in found.items() if self._runner.has(row.device)}
        for key, row in kept.items():
            tell(row, key)
        new = [key for key in same if key not in kept]
        with side_by_side(self._runner, self._runner.jobs) as pool:
            fresh = {pool.submit(judge, same[key][0]): key for key in new}
            for future in as_completed(fresh):
                key = fresh[future]
                row = judged_row(same[key][0], future.result())
                if row.verdict != "not-verified":
                    self._keep(same[key][0].name, key, asdict(row))
                tell(row, key)
        return rows

    def timed(self, entries: Sequence[Entry], rows: Mapping[str, ArenaRow]) -> dict[str, ArenaRow]:
        """The rows of the right candidates of one problem, timed.

        More than can meet at once meet in several runs, and the fastest of those once more; all of
        them on one kind of machine.
        """
        right = [entry for entry in entries if rows[entry.name].verdict == "verified"]
        by_path = {str(entry.path.absolute()): entry for entry in right}
        groups = [right[at : at + MOST] for at in range(0, len(right), MOST)]
        contests = list[Contest]()
        for number, group in enumerate(groups, 1):
            contests.append(self._contest(group, number, contests))
        if len(groups) > 1:
            found = [(_ratio(t), path) for c in contests for path, t in c.told["timings"].items()]
            fastest = [by_path[path] for _, path in sorted(found, reverse=True)[:MOST]]
            if fastest:
                contests.append(self._contest(fastest, len(groups) + 1, contests))
        told = timed_rows({path: rows[entry.name] for path, entry in by_path.items()}, contests)
        return {by_path[path].name: row for path, row in told.items()}

    def _contest(
        self, entries: Sequence[Entry], number: int, earlier: Sequence[Contest]
    ) -> Contest:
        """What one run of `bench` says of these, by their paths; the store has it by their keys.

        earlier: of the same problem, on whose kind of machine it is.
        """
        device = next((c.device for c in earlier if c.device), "")
        by_key = {entry.key: entry for entry in entries}  # equal text is timed once
        together = hashlib.sha256("timed".join(sorted(by_key)).encode()).hexdigest()
        kept = self._store.get(together)
        found = Contest(**kept) if kept else None
        if found is None or not self._runner.has(found.device) or found.device != device != "":
            found = self._met(by_key, number, together, device)
        own = [(str(entry.path.absolute()), entry.key) for entry in entries]
        by_path = {
            what: {p: some[k] for p, k in own if k in some} for what, some in found.told.items()
        }
        return replace(found, told=by_path)

    def _met(self, by_key: Mapping[str, Entry], number: int, together: str, device: str) -> Contest:
        """The same by their keys, of a run that begins now. together: the key of the run.  device:
        the kind of machine that it is on; "" for any."""
        paths = {key: str(entry.path.absolute()) for key, entry in by_key.items()}
        first, candidates = next(iter(by_key.values())), [Path(path) for path in paths.values()]
        files = first.problem_path, *candidates
        words = partial(self._options.words, "bench")
        name = f"timed/{first.problem}-{number}"
        run = self._runner.launch(Command(name, files, words, timed=True, device=device))
        told = (run.report or {}).get("timing")
        if not isinstance(told, Mapping):
            return Contest({**NOTHING_TOLD, "lost": dict.fromkeys(by_key, run.reason)})
        told = told if "timings" in told else _of_one(told, *paths.values())
        by_name = {what: _by_key(told[what], paths) for what in NOTHING_TOLD}
        found = Contest(by_name, run.node, run.device)
        if not by_name["unclear"]:
            self._keep(name, together, asdict(found))
        return found

    def _keep(self, name: str, key: str, result: Mapping[str, Any]) -> None:
        if why := self._store.put(key, result):
            self.lost.append(f"{name}: {why}")


NOTHING_TOLD: Mapping[str, Any] = {"timings": {}, "lost": {}, "unclear": {}, "over_best": {}}


def _ratio(timing: Mapping[str, Any]) -> float:
    """Over eager, of the medians: also where the paired ratio is no result."""
    sides = timing["sides"]
    return float(sides["eager"]["p50_s"]) / float(sides["candidate"]["p50_s"])


def _of_one(timing: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """What `bench` reports of one candidate, as it reports several."""
    first = {"median": 1.0, "low": 1.0, "high": 1.0, "claim": FASTEST}
    return {**NOTHING_TOLD, "timings": {path: timing}, "over_best": {path: first}}


def _by_key(some: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
    return {key: some[path] for key, path in paths.items() if path in some}
