"""Candidates -> the judge's word on each, and for each problem one timing of the right ones.

Each judging and each timing is a process of its own. Both are kept by the content of the files, the
options and the version of this package: nothing is judged or timed twice, also after a kill.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from fusewright.arena.entries import Entry
from fusewright.arena.ranking import ArenaRow, judged_row, kept_arena_row, timed_rows
from fusewright.common.devices import free_of, gpus, host_free
from fusewright.common.timing_lock import HOST
from fusewright.judge.timing.contest import FASTEST, MOST, UNCLEAR
from fusewright.suite.process_runner import ProcessRunner, Program
from fusewright.suite.results_db import ResultsDb
from fusewright.suite.run_all import SHARE, STORE, make_folder
from fusewright.suite.run_end import RunEnd


@dataclass(frozen=True)
class ArenaOptions:
    """What is the same for all candidates. timeout_s: of one judging or timing."""

    device: str = "cpu"
    timing: bool = True
    timeout_s: float = 600.0
    overrides: Mapping[str, str] = field(default_factory=dict)

    def words(
        self, command: str, problem: Path, candidates: Sequence[Path], report: str
    ) -> list[str]:
        """Of `judge` for one candidate, or of `bench` for several."""
        words = [command, str(problem), *map(str, candidates), "--report", report]
        words += ["--device", self.device, "--verbose"] + ["--no-timing"] * (command == "judge")
        for name, value in self.overrides.items():
            words += ["--set", f"{name}={value}"]
        return words


@dataclass(frozen=True)
class Watch:
    """Who waits. begun: called with each candidate whose judging begins, in any thread.  told: with
    each row once it is judged."""

    begun: Callable[[Entry], None]
    told: Callable[[ArenaRow], None]


UNWATCHED = Watch(lambda _: None, lambda _: None)


def run_arena(
    entries: Sequence[Entry],
    options: ArenaOptions,
    output: Path,
    program: Program,
    *,
    jobs: int = 1,
    watch: Watch = UNWATCHED,
) -> tuple[ArenaRow, ...]:
    """The rows in the order of the entries.

    program: takes the words of a command.  Raises BadUsage where no results can be kept.
    """
    make_folder(output)
    with ResultsDb(output / STORE) as store, _runner(options, output, program, jobs) as runner:
        rows = _judged(entries, options, runner, store, jobs, watch)
        if options.timing:
            for _, some in groupby(entries, key=lambda entry: entry.problem):
                rows |= _timed(tuple(some), rows, options, runner, store)
    return tuple(rows[entry.name] for entry in entries)


@contextmanager
def _runner(
    options: ArenaOptions, output: Path, program: Program, jobs: int
) -> Iterator[ProcessRunner]:
    devices = () if options.device == "cpu" else gpus()
    limits = {HOST: host_free(), **free_of(devices)}
    limits = {name: int(SHARE * size) for name, size in limits.items()}
    runner = ProcessRunner(
        program, output, options.timeout_s, several=jobs > 1, devices=devices, limits=limits
    )
    try:
        yield runner
    finally:
        runner.stop()


def _judged(
    entries: Sequence[Entry],
    options: ArenaOptions,
    runner: ProcessRunner,
    store: ResultsDb,
    jobs: int,
    watch: Watch,
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
        watch.begun(entry)
        problem, path = entry.problem_path.absolute(), entry.path.absolute()
        words = partial(options.words, "judge", problem, [path])
        return runner.launch(f"judged/{entry.name}", words)

    kept = {key: kept_arena_row(found) for key in same if (found := store.get(key))}
    for key, row in kept.items():
        tell(row, key)
    with ThreadPoolExecutor(jobs) as pool:
        fresh = {pool.submit(judge, some[0]): key for key, some in same.items() if key not in kept}
        try:
            for future in as_completed(fresh):
                key = fresh[future]
                row = judged_row(same[key][0], future.result())
                if row.verdict != "not-verified":
                    store.put(key, asdict(row))
                tell(row, key)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            if len(rows) < len(entries):
                runner.stop()
    return rows


def _timed(
    entries: Sequence[Entry],
    rows: Mapping[str, ArenaRow],
    options: ArenaOptions,
    runner: ProcessRunner,
    store: ResultsDb,
) -> dict[str, ArenaRow]:
    """The rows of the right candidates of one problem, timed.

    More than can meet at once meet in several runs, and the fastest of those once more.
    """
    right = [entry for entry in entries if rows[entry.name].verdict == "verified"]
    by_path = {str(entry.path.absolute()): entry for entry in right}
    contests: list[Mapping[str, Any]] = []
    meet = partial(_contest, options=options, runner=runner, store=store)
    groups = [right[at : at + MOST] for at in range(0, len(right), MOST)]
    for number, group in enumerate(groups, 1):
        contests.append(meet(group, number))
    if len(groups) > 1:
        found = [(_ratio(t), path) for c in contests for path, t in c["timings"].items()]
        fastest = [by_path[path] for _, path in sorted(found, reverse=True)[:MOST]]
        contests.append(meet(fastest, len(groups) + 1) if fastest else NOBODY)
    told = timed_rows({path: rows[entry.name] for path, entry in by_path.items()}, contests)
    return {by_path[path].name: row for path, row in told.items()}


NOBODY: Mapping[str, Any] = {"timings": {}, "lost": {}, "over_best": {}}


def _ratio(timing: Mapping[str, Any]) -> float:
    return float(timing["ratios"]["eager"]["median"])


def _contest(
    entries: Sequence[Entry],
    number: int,
    options: ArenaOptions,
    runner: ProcessRunner,
    store: ResultsDb,
) -> Mapping[str, Any]:
    """What one run of `bench` reports of these, by their paths; the store has it by their keys."""
    by_key = {entry.key: entry for entry in entries}  # equal text is timed once
    paths = {key: str(entry.path.absolute()) for key, entry in by_key.items()}
    together = hashlib.sha256("timed".join(sorted(by_key)).encode()).hexdigest()
    found = store.get(together)
    if found is None:
        problem = entries[0].problem_path.absolute()
        words = partial(options.words, "bench", problem, [Path(path) for path in paths.values()])
        run = runner.launch(f"timed/{entries[0].problem}-{number}", words)
        told = (run.report or {}).get("timing")
        if isinstance(told, Mapping):
            told = told if "timings" in told else _of_one(told, *paths.values())
            found = {what: _by_key(told[what], paths) for what in NOBODY}
            if not any(why.startswith(UNCLEAR) for why in found["lost"].values()):
                store.put(together, found)
        else:
            found = {**NOBODY, "lost": dict.fromkeys(by_key, run.reason)}
    own = [(str(entry.path.absolute()), entry.key) for entry in entries]
    return {what: {p: some[k] for p, k in own if k in some} for what, some in found.items()}


def _of_one(timing: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """What `bench` reports of one candidate, as it reports several."""
    first = {"median": 1.0, "low": 1.0, "high": 1.0, "claim": FASTEST}
    return {**NOBODY, "timings": {path: timing}, "over_best": {path: first}}


def _by_key(some: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
    return {key: some[path] for key, path in paths.items() if path in some}
