"""A folder of problem files -> one result for each: in parallel, and none of them twice.

Results are kept by the content of the file, the options, the version of every file of this package
and the machine. So `--resume` after a kill, a changed problem or a new release does what is needed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Generic, TypeVar

from fusewright import __version__
from fusewright.common.package import own_digest
from fusewright.errors import BadUsage
from fusewright.suite.process_runner import HERE, setting_words
from fusewright.suite.results_db import ResultsDb
from fusewright.suite.row import SuiteRow, kept_row, row_of
from fusewright.suite.run_end import SAYS_NOTHING
from fusewright.suite.runner import Command, Place, Program, Work, side_by_side

STORE = "results.sqlite"
Row = TypeVar("Row")


@dataclass(frozen=True)
class SuiteOptions:
    """What is the same for every problem of a suite."""

    target: str | None = None
    timing: bool = True
    algebra: bool = True
    timeout_s: float = 600.0
    overrides: Mapping[str, str] = field(default_factory=dict)
    tune: str | None = None
    seed: int | None = None

    @property
    def times(self) -> bool:
        """Whether a run times calls: those of the candidate, or those that the tuner tries."""
        return self.timing or self.tune not in (None, "off")

    def words(self, files: Sequence[Path], stem: Path) -> list[str]:
        """Of the `optimize` command for one problem, the only file; stem: of what it writes."""
        (path,) = files
        words = ["optimize", str(path), "--output", f"{stem}.py", "--report", f"{stem}.json"]
        words += ["--force", "--verbose"] + ["--no-timing"] * (not self.timing)
        words += ["--no-algebra"] * (not self.algebra)
        words += ["--target", self.target] if self.target else []
        words += ["--tune", self.tune] if self.tune else []
        words += ["--seed", str(self.seed)] if self.seed is not None else []
        return words + setting_words(self.overrides)


@dataclass(frozen=True)
class SuiteProblem:
    """A problem file of the suite; no key: it cannot be read, and `why` says so."""

    name: str
    path: Path
    key: str
    why: str = ""


@dataclass(frozen=True)
class Watch(Generic[Row]):
    """Who waits. begun: called with the name of each run when it begins, in any thread.  told: with
    each new row."""

    begun: Callable[[str], None]
    told: Callable[[Row], None]


NOBODY: Watch[Any] = Watch(lambda _: None, lambda _: None)


def find_problems(
    folder: Path, options: SuiteOptions, output: Path, place: Place = HERE
) -> tuple[SuiteProblem, ...]:
    """The problem files below `folder`, by name: the path without the suffix.

    place: where they will run.  Raises BadUsage where there is none.
    """
    paths = files_below(folder, (output,), "problem")
    about = state_of_all(asdict(options), place)
    return tuple(_problem(folder, path, about) for path in paths)


def run_all(
    problems: Sequence[SuiteProblem],
    options: SuiteOptions,
    output: Path,
    program: Program,
    *,
    place: Place = HERE,
    resume: bool = False,
    watch: Watch[SuiteRow] = NOBODY,
) -> tuple[tuple[SuiteRow, ...], tuple[str, ...]]:
    """Run every problem; the results in their order, and why some could not be remembered.

    program: takes the words of an `optimize` command.  place: where it runs.  resume: take what an
    earlier run has finished from the store in `output`.  Raises BadUsage where no results can be
    kept, and where nothing can be run.
    """
    make_folder(output)
    work = Work(program, output, options.timeout_s, options.target, options.times)
    done = {p.name: _unreadable(p) for p in problems if not p.key}
    by_key = {p.key: p for p in reversed(problems) if p.key}
    lost = []
    with ResultsDb(output / STORE) as store, place.open(work) as runner:
        found = {k: kept_row(r) for k in by_key if resume and (r := store.get(k))}
        known = {k: row for k, row in found.items() if runner.has(row.device)}
        for result in (*done.values(), *known.values()):
            watch.told(result)

        def run(problem: SuiteProblem) -> SuiteRow:
            watch.begun(problem.name)
            command = Command(problem.name, (problem.path,), options.words, options.times)
            return row_of(problem.name, runner.launch(command))

        with side_by_side(runner, runner.jobs) as pool:
            fresh = {
                pool.submit(run, p): key
                for key, p in sorted(by_key.items(), key=lambda item: item[1].name)
                if key not in known
            }
            for future in as_completed(fresh):
                result, key = future.result(), fresh[future]
                known[key] = result
                if result.end not in SAYS_NOTHING:
                    why = store.put(key, asdict(result))
                    lost += [f"{result.name}: {why}"] if why else []
                watch.told(result)
    done |= {p.name: replace(known[p.key], name=p.name) for p in problems if p.key}
    return tuple(done[p.name] for p in problems), tuple(lost)


def files_below(folder: Path, others: Sequence[Path], what: str) -> list[Path]:
    """The .py files of a folder and of those below it, in order.

    others: folders whose files are none of these.  what: they are, in a word.  Raises BadUsage
    where there is none.
    """
    if not folder.is_dir():
        raise BadUsage(f"{folder}: there is no such folder. Give one of {what} files.")
    paths = sorted(p for p in folder.rglob("*.py") if _wanted(p.relative_to(folder)))
    apart = [other.resolve() for other in others]
    paths = [p for p in paths if not any(p.resolve().is_relative_to(other) for other in apart)]
    if not paths:
        raise BadUsage(
            f"{folder}: no {what} file in it. Every .py file of a folder and the folders below is "
            "taken, except names that begin with a dot or an underscore."
        )
    return paths


def _wanted(path: Path) -> bool:
    return not any(part.startswith((".", "_")) for part in path.parts)


def _problem(folder: Path, path: Path, about: bytes) -> SuiteProblem:
    name = str(path.relative_to(folder).with_suffix(""))
    try:
        content = path.read_bytes()
    except OSError as error:
        return SuiteProblem(name, path, "", f"cannot read the file: {error.strerror}")
    return SuiteProblem(name, path, hashlib.sha256(about + content).hexdigest())


def _unreadable(problem: SuiteProblem) -> SuiteRow:
    return SuiteRow(problem.name, "not-verified", problem.why, end="unreadable")


def state_of_all(options: Mapping[str, object], place: Place = HERE) -> bytes:
    """All that a result depends on, except the files that it is about."""
    facts: Mapping[str, object] = {
        **options,
        "fusewright": __version__,
        "torch": metadata.version("torch"),
        "machine": list(place.machine),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode() + own_digest()).digest()


def make_folder(output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadUsage(
            f"{output}: cannot make this folder: {error.strerror}. Choose another with --output."
        ) from error
