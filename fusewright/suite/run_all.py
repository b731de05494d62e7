"""A folder of problem files -> one result for each: in parallel, and none of them twice.

Results are kept by the content of the file, the options, the version of every file of this package
and the machine. So `--resume` after a kill, a changed problem or a new release does what is needed.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Generic, TypeVar

from fusewright import __version__
from fusewright.common.package import PACKAGE
from fusewright.errors import BadUsage
from fusewright.suite.process_runner import Program, open_runner, setting_words
from fusewright.suite.results_db import ResultsDb
from fusewright.suite.row import SuiteRow, kept_row, row_of
from fusewright.suite.run_end import DISK_FULL

SOURCES = (".py", ".h", ".cuh")
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

    def words(self, path: Path, stem: Path, report: str) -> list[str]:
        """Of the `optimize` command for one problem."""
        words = ["optimize", str(path), "--output", f"{stem}.py", "--report", report]
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


def find_problems(folder: Path, options: SuiteOptions, output: Path) -> tuple[SuiteProblem, ...]:
    """The problem files below `folder`, by name: the path without the suffix.

    Raises BadUsage where there is none.
    """
    paths = files_below(folder, (output,), "problem")
    about = state_of_all(asdict(options))
    return tuple(_problem(folder, path, about) for path in paths)


def run_all(
    problems: Sequence[SuiteProblem],
    options: SuiteOptions,
    output: Path,
    program: Program,
    *,
    jobs: int = 1,
    resume: bool = False,
    watch: Watch[SuiteRow] = NOBODY,
) -> tuple[tuple[SuiteRow, ...], tuple[str, ...]]:
    """Run every problem; the results in their order, and why some could not be remembered.

    program: takes the words of an `optimize` command.  resume: take what an earlier run has
    finished from the store in `output`.  Raises BadUsage where no results can be kept.
    """
    make_folder(output)
    on_gpus = options.target != "cpu"
    launcher = open_runner(program, output, options.timeout_s, jobs=jobs, on_gpus=on_gpus)
    done = {p.name: _unreadable(p) for p in problems if not p.key}
    by_key = {p.key: p for p in reversed(problems) if p.key}
    lost = []
    with ResultsDb(output / STORE) as store, ThreadPoolExecutor(jobs) as pool:
        known = {k: kept_row(r) for k in by_key if resume and (r := store.get(k))}
        for result in (*done.values(), *known.values()):
            watch.told(result)

        def run(problem: SuiteProblem) -> SuiteRow:
            watch.begun(problem.name)
            words = partial(options.words, problem.path.absolute(), output / problem.name)
            return row_of(problem.name, launcher.launch(problem.name, words))

        fresh = {
            pool.submit(run, p): key
            for key, p in sorted(by_key.items(), key=lambda item: item[1].name)
            if key not in known
        }
        try:
            for future in as_completed(fresh):
                result, key = future.result(), fresh[future]
                known[key] = result
                if result.end != DISK_FULL:  # that says nothing about the problem
                    why = store.put(key, asdict(result))
                    lost += [f"{result.name}: {why}"] if why else []
                watch.told(result)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            launcher.stop()
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


def state_of_all(options: Mapping[str, object]) -> bytes:
    """All that a result depends on, except the files that it is about."""
    facts: Mapping[str, object] = {
        **options,
        "fusewright": __version__,
        "torch": metadata.version("torch"),
        "machine": [platform.node(), platform.platform()],
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for path in sorted(p for p in PACKAGE.rglob("*") if p.suffix in SOURCES):
        digest.update(path.read_bytes())
    return digest.digest()


def make_folder(output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadUsage(
            f"{output}: cannot make this folder: {error.strerror}. Choose another with --output."
        ) from error
