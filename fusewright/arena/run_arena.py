"""Candidates -> the judge's word on each, and for each problem one timing of the right ones.

Each judging and each timing is a process of its own. Both are kept by the content of the files, the
options and the version of this package: nothing is judged or timed twice, also after a kill.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from fusewright.arena.entries import Entry
from fusewright.arena.ranking import ArenaRow, judged_row, kept_arena_row, timed_rows
from fusewright.judge.timing.contest import FASTEST, MOST
from fusewright.suite.process_runner import ProcessRunner, Program, open_runner, setting_words
from fusewright.suite.results_db import ResultsDb
from fusewright.suite.run_all import NOBODY, STORE, Watch, make_folder
from fusewright.suite.run_end import RunEnd


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

    def words(
        self, command: str, problem: Path, candidates: Sequence[Path], report: str
    ) -> list[str]:
        """Of `judge` for one candidate, or of `bench` for several."""
        words = [command, str(problem), *map(str, candidates), "--report", report]
        words += ["--device", self.device, "--verbose"] + ["--no-timing"] * (command == "judge")
        return words + setting_words(self.overrides)


def run_arena(
    entries: Sequence[Entry],
    options: ArenaOptions,
    output: Path,
    program: Program,
    *,
    jobs: int = 1,
    watch: Watch[ArenaRow] = NOBODY,
) -> tuple[tuple[ArenaRow, ...], tuple[str, ...]]:
    """The rows in the order of the entries, and why some results could not be remembered.

    program: takes the words of a command.  Raises BadUsage where no results can be kept.
    """
    make_folder(output)
    on_gpus = options.device != "cpu"
    runner = open_runner(program, output, options.timeout_s, jobs=jobs, on_gpus=on_gpus)
    with ResultsDb(output / STORE) as store:
        arena = _Arena(options, runner, store)
        try:
            rows = arena.judged(entries, jobs, watch)
            if options.timing:
                for _, some in groupby(entries, key=lambda entry: entry.problem):
                    rows |= arena.timed(tuple(some), rows)
        finally:
            runner.stop()
    return tuple(rows[entry.name] for entry in entries), tuple(arena.lost)


class _Arena:
    """Judgings and timings, each of which is kept. lost: why some could not be."""

    def __init__(self, options: ArenaOptions, runner: ProcessRunner, store: ResultsDb) -> None:
        self._options, self._runner, self._store = options, runner, store
        self.lost: list[str] = []

    def judged(
        self, entries: Sequence[Entry], jobs: int, watch: Watch[ArenaRow]
    ) -> dict[str, ArenaRow]:
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
            problem, path = entry.problem_path.absolute(), entry.path.absolute()
            words = partial(self._options.words, "judge", problem, [path])
            return self._runner.launch(f"judged/{entry.name}", words)

        kept = {k: kept_arena_row(found) for k in same if (found := self._store.get(k))}
        for key, row in kept.items():
            tell(row, key)
        new = [key for key in same if key not in kept]
        with ThreadPoolExecutor(jobs) as pool:
            fresh = {pool.submit(judge, same[key][0]): key for key in new}
            try:
                for future in as_completed(fresh):
                    key = fresh[future]
                    row = judged_row(same[key][0], future.result())
                    if row.verdict != "not-verified":
                        self._keep(same[key][0].name, key, asdict(row))
                    tell(row, key)
            except BaseException:  # what has not begun does not, and what has ends
                pool.shutdown(wait=False, cancel_futures=True)
                self._runner.stop()
                raise
        return rows

    def timed(self, entries: Sequence[Entry], rows: Mapping[str, ArenaRow]) -> dict[str, ArenaRow]:
        """The rows of the right candidates of one problem, timed.

        More than can meet at once meet in several runs, and the fastest of those once more.
        """
        right = [entry for entry in entries if rows[entry.name].verdict == "verified"]
        by_path = {str(entry.path.absolute()): entry for entry in right}
        groups = [right[at : at + MOST] for at in range(0, len(right), MOST)]
        contests = [self._contest(group, number) for number, group in enumerate(groups, 1)]
        if len(groups) > 1:
            found = [(_ratio(t), path) for c in contests for path, t in c["timings"].items()]
            fastest = [by_path[path] for _, path in sorted(found, reverse=True)[:MOST]]
            contests.append(self._contest(fastest, len(groups) + 1) if fastest else NO_CONTEST)
        told = timed_rows({path: rows[entry.name] for path, entry in by_path.items()}, contests)
        return {by_path[path].name: row for path, row in told.items()}

    def _contest(self, entries: Sequence[Entry], number: int) -> Mapping[str, Any]:
        """What one run of `bench` reports of these, by their paths; the store has it by their
        keys."""
        by_key = {entry.key: entry for entry in entries}  # equal text is timed once
        together = hashlib.sha256("timed".join(sorted(by_key)).encode()).hexdigest()
        found = self._store.get(together) or self._met(by_key, number, together)
        own = [(str(entry.path.absolute()), entry.key) for entry in entries]
        return {what: {p: some[k] for p, k in own if k in some} for what, some in found.items()}

    def _met(self, by_key: Mapping[str, Entry], number: int, together: str) -> Mapping[str, Any]:
        """The same by their keys, of a run that begins now. together: the key of the run."""
        paths = {key: str(entry.path.absolute()) for key, entry in by_key.items()}
        first, candidates = next(iter(by_key.values())), [Path(path) for path in paths.values()]
        problem = first.problem_path.absolute()
        words = partial(self._options.words, "bench", problem, candidates)
        name = f"timed/{first.problem}-{number}"
        run = self._runner.launch(name, words)
        told = (run.report or {}).get("timing")
        if not isinstance(told, Mapping):
            return {**NO_CONTEST, "lost": dict.fromkeys(by_key, run.reason)}
        told = told if "timings" in told else _of_one(told, *paths.values())
        found = {what: _by_key(told[what], paths) for what in NO_CONTEST}
        if not found["unclear"]:
            self._keep(name, together, found)
        return found

    def _keep(self, name: str, key: str, result: Mapping[str, Any]) -> None:
        if why := self._store.put(key, result):
            self.lost.append(f"{name}: {why}")


NO_CONTEST: Mapping[str, Any] = {"timings": {}, "lost": {}, "unclear": {}, "over_best": {}}


def _ratio(timing: Mapping[str, Any]) -> float:
    """Over eager, of the medians: also where the paired ratio is no result."""
    sides = timing["sides"]
    return float(sides["eager"]["p50_s"]) / float(sides["candidate"]["p50_s"])


def _of_one(timing: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """What `bench` reports of one candidate, as it reports several."""
    first = {"median": 1.0, "low": 1.0, "high": 1.0, "claim": FASTEST}
    return {**NO_CONTEST, "timings": {path: timing}, "over_best": {path: first}}


def _by_key(some: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
    return {key: some[path] for key, path in paths.items() if path in some}
