"""Cheats and controls -> entries; an entry -> its verdict, in a process of its own.

Headers are read as text: the files are hostile, and nothing of them runs in the test process. The
judge has a process of its own, too (judge_group.py), so that a cheat which gets through to it can
only kill that one.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.folders import CHEATS, CONTROLS, PROBLEMS, ROOT

if TYPE_CHECKING:
    import pytest

WORKERS = max(1, min(4, os.cpu_count() or 1))
DEADLINE_S = 240.0  # for one judging; the judge's own deadlines are shorter
SANITIZING_S = 1800.0  # four tools, each with a process that takes its time to load PyTorch
# What a header may ask for -> the option of the judge that provides it.
OPTIONS: Mapping[str, Mapping[str, object]] = {
    "timing": {"timing": True, "against": ["eager"], "budget_s": 30.0},
    "grad": {"grad": True},
    "sanitize": {"sanitize": True},
    "cuda": {"device": "cuda"},
    "compiler": {},
    "memory": {"limits": {"memory_bytes": 1 << 30}},
}

# Check -> the experiments in which it can fire; a check that is not here is tried by `fresh`.
EXPERIMENTS: Mapping[str, tuple[str, ...]] = {
    "precision": ("probes",),
    "influence": ("probes",),
    "stale-cache": ("stale-cache",),
    "weight-change": ("weight-change",),
    "buffers": ("buffers",),
    "mode": ("modes",),
    "hazard-values": ("hazards",),
    "hazard-strides": ("hazards",),
    "hazard-shapes": ("hazards",),
    "hazard-dtypes": ("dtypes",),
    "determinism": ("determinism",),
    "instances": ("instances",),
    "global-state": ("fresh", "grad-mode", "global-state"),
    "gradients": ("gradients",),
    "resources": ("fresh", "soak"),
}
# Cheats that need more calls than that, or calls on streams whose work is still to come.
OWN_EXPERIMENTS: Mapping[str, tuple[str, ...]] = {
    "c39_sometimes_wrong": ("soak",),
    "f16_ignores_the_stream": ("side-stream",),
    "r10_long_ring": ("soak",),
    "f15_leaves_files_open": ("soak", "global-state"),
    "t19_call_counter": ("soak",),
    "t01_side_stream": ("side-stream",),
    "t01_side_stream_synchronised_late": ("side-stream",),
    "t03_thread_stream": ("side-stream",),
}

# Entries judged one after the other by one process, without and with a GPU; larger groups share
# more, and lose more.
GROUP, GPU_GROUP = 24, 2
# Rows of the catalogue that go for the judge's own process: each gets one of its own.
ALONE = ("H1",)


@dataclass(frozen=True)
class Entry:
    """One file of the corpus; `check` is empty for a control.

    `twin_of` names a cheat with the same mechanism: CI tries that one, bench/corpus.py both.
    `earlier` names checks that refute the cheat before its own can: they are switched off for it.
    """

    path: Path
    problem: Path
    catalogue: str
    check: str
    notes: tuple[str, ...]
    needs: tuple[str, ...]
    twin_of: str = ""
    earlier: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def on_gpu(self) -> bool:
        return "cuda" in self.needs


@dataclass(frozen=True)
class Outcome:
    """What came of one judging; `verdict` is `no answer` if the judge itself did not survive."""

    verdict: str
    failing: tuple[str, ...]
    notes: tuple[str, ...]
    reason: str
    evidence: tuple[str, ...]  # one line per failing check or note

    def __str__(self) -> str:
        return "\n".join([f"{self.verdict}: {self.reason}", *self.evidence])


_PARSING = threading.Lock()  # Python 3.11 counts how deep it is in a tree for all threads together


def cheats() -> list[Entry]:
    return [
        _entry(path, ("PROBLEM", "CATALOGUE", "TRICK", "CHECK", "NEEDS")) for path in _files(CHEATS)
    ]


def controls() -> list[Entry]:
    wanted = ("PROBLEM", "LOOKS_LIKE", "WHY", "NOTES", "NEEDS")
    return [_entry(path, wanted) for path in _files(CONTROLS)]


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.py"))


def _entry(path: Path, wanted: Sequence[str]) -> Entry:
    header = _header(path)
    missing = [name for name in wanted if name not in header]
    if missing:
        raise ValueError(
            f"{path}: the header lacks {', '.join(missing)}; compare it with its neighbours"
        )
    return Entry(
        path=path,
        problem=PROBLEMS / f"{header['PROBLEM']}.py",
        catalogue=str(header.get("CATALOGUE", header.get("LOOKS_LIKE"))),
        check=str(header.get("CHECK", "")),
        notes=tuple(header.get("NOTES", ())),
        needs=tuple(header["NEEDS"]),
        twin_of=str(header.get("TWIN_OF", "")),
        earlier=tuple(header.get("EARLIER", ())),
    )


@cache
def _header(path: Path) -> dict[str, Any]:
    """The capitalised constants of a file, without running it."""
    found = {}
    with _PARSING:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            try:
                found[statement.targets[0].id] = ast.literal_eval(statement.value)
            except ValueError:
                continue
    return found


def lacking(entry: Entry) -> str:
    """What this machine lacks for an entry; empty if it can be judged here."""
    if "compiler" in entry.needs and shutil.which("g++") is None:
        return "no C++ compiler"
    if "sanitize" in entry.needs and shutil.which("compute-sanitizer") is None:
        return "no compute-sanitizer"
    return ""


def options_for(entry: Entry) -> dict[str, object]:
    """What the judge is asked for: everything that the header needs, and no clocks otherwise."""
    options: dict[str, object] = {"timing": False, "only": [], "ignored": [*entry.earlier]}
    for need in entry.needs:
        options |= OPTIONS[need]
    return options


def focused(entry: Entry) -> dict[str, object]:
    """Only the experiments that can set off the named check: it must refute by itself."""
    options = options_for(entry)
    if not options.get("sanitize"):
        options["only"] = OWN_EXPERIMENTS.get(entry.name, EXPERIMENTS.get(entry.check, ("fresh",)))
    return options


def judged(problem: Path, candidate: Path, options: Mapping[str, object]) -> Outcome:
    """The verdict on one candidate."""
    order = {"problem": str(problem), "candidate": str(candidate), **options}
    (outcome,) = judged_in_turn([order])  # to its end: the process is waited for
    return outcome


def _environment() -> dict[str, str]:
    """The variables of this process. Verdicts are asked for in threads, while pytest sets and
    deletes a variable for each test: one that is gone when its turn comes is left out."""
    found = {name: os.environ.get(name) for name in list(os.environ)}
    return {name: value for name, value in found.items() if value is not None}


def judged_in_turn(orders: Sequence[Mapping[str, object]]) -> Iterator[Outcome]:
    """Verdicts on candidates, in order, from one process of the judge."""
    command = [sys.executable, str(Path(__file__).with_name("judge_group.py"))]
    environment = _environment() | {"PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, text=True,
            env=environment,
        )  # fmt: skip
        guard = threading.Timer(sum(map(_deadline, orders)), process.kill)
        guard.daemon = True  # where nobody asks for the rest
        guard.start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(list(orders)))
        process.stdin.close()
        answered = 0
        for line in process.stdout:
            yield _outcome(json.loads(line))
            answered += 1
        status = process.wait()
        guard.cancel()
        complaints.seek(0)
        lost = Outcome("no answer", (), (), f"status {status}: {complaints.read()[-1500:]}", ())
    yield from [lost] * (len(orders) - answered)


def _deadline(order: Mapping[str, object]) -> float:
    return DEADLINE_S + (SANITIZING_S if order.get("sanitize") else 0.0)


def _outcome(verdict: Mapping[str, Any]) -> Outcome:
    rows = [row for row in verdict["checks"] if row["outcome"] in ("fail", "note")]
    return Outcome(
        verdict=str(verdict["verdict"]),
        failing=tuple(row["check"] for row in rows if row["outcome"] == "fail"),
        notes=tuple(row["check"] for row in rows if row["outcome"] == "note"),
        reason=str(verdict["reason"]),
        evidence=tuple(f"{r['outcome']} {r['check']}: {r['evidence'][:300]}" for r in rows),
    )


class Bench:
    """Judges entries ahead of the tests that ask for them, as many groups at a time as cores."""

    def __init__(
        self, entries: Iterable[Entry], options: Callable[[Entry], Mapping[str, object]]
    ) -> None:
        self._pool = ThreadPoolExecutor(WORKERS)
        self._futures: dict[str, Future[Outcome]] = {}
        for group in groups(entries):
            futures = [self._futures.setdefault(entry.name, Future()) for entry in group]
            orders = [
                {"problem": str(e.problem), "candidate": str(e.path), **options(e)} for e in group
            ]
            self._pool.submit(_fulfil, futures, orders)

    def outcome(self, entry: Entry) -> Outcome:
        return self._futures[entry.name].result(DEADLINE_S * GROUP + SANITIZING_S)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def _fulfil(futures: Sequence[Future[Outcome]], orders: Sequence[Mapping[str, object]]) -> None:
    try:
        for future, outcome in zip(futures, judged_in_turn(orders), strict=True):
            future.set_result(outcome)
    except BaseException as error:
        for future in futures:
            if not future.done():
                future.set_exception(error)
        raise


def groups(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Entries of one device, at most GROUP or GPU_GROUP of them together, problem by problem.

    On a GPU a group has one problem: what another one left there would be in its way.
    """
    kinds: dict[tuple[object, ...], list[Entry]] = {}
    for entry in sorted(entries, key=lambda e: e.problem):
        alone = entry.name if entry.catalogue in ALONE or "timing" in entry.needs else ""
        kinds.setdefault((entry.on_gpu and entry.problem, alone), []).append(entry)
    parts = ((kind, GPU_GROUP if kind[0].on_gpu else GROUP) for kind in kinds.values())
    return [kind[k : k + most] for kind, most in parts for k in range(0, len(kind), most)]


def parameters(entries: Iterable[Entry]) -> list[Any]:
    import pytest  # not at the top: bench/corpus.py runs where it is not installed

    marks = {True: [pytest.mark.gpu], False: []}
    return [pytest.param(entry, id=entry.name, marks=marks[entry.on_gpu]) for entry in entries]


def running(
    request: pytest.FixtureRequest, options: Callable[[Entry], Mapping[str, object]]
) -> Iterator[Bench]:
    """The body of a module's fixture: judges what this run has chosen of the module's entries."""
    import pytest

    chosen: list[Any] = [
        item.callspec.params["entry"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path
        if hasattr(item, "callspec") and "entry" in item.callspec.params
        if not item.get_closest_marker("skip")
    ]
    bench = Bench((entry for entry in chosen if not lacking(entry)), options)
    yield bench
    bench.close()
