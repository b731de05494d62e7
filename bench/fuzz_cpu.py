"""Random models on the CPU against float64: how many agree, and the text of each that does not.

    python bench/fuzz_cpu.py --models 20000 --first 0 --jobs 16 [--kind bits] [--quiet]

Each of the processes has one thread and groups of seeds of its own: it writes and compiles the
models of a group together, and runs each as drawn, on special values, and on other batch sizes. A
process that dies or hangs is replaced; the model that it was at is wrong. One that dies before it
has imported all ends the run. -O2 is the least level
at which gcc contracts products, if it may. At the end: of each kind
how many were right, taken in parts (where a kind may be, for its reason) and wrong, and the seeds.
To go on where a run stopped, give its last `next:` as --first.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

TOGETHER = 24  # models per compilation
PATIENCE = 240.0  # seconds for one model, or one compilation
GROUPS = 12  # for one process: what it has imported and compiled stays in its memory


@dataclass
class Tally:
    """What came out. said: what is wrong with which seed."""

    kinds: dict[str, Counter[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    said: dict[int, str] = field(default_factory=dict)

    def add(self, seed: int, kind: str, outcome: str, text: str, quiet: bool) -> None:
        self.kinds.setdefault(kind, Counter())[outcome] += 1
        if outcome == "wrong":
            self.said[seed] = f"{kind}: {text}"
            source = "" if quiet else f"\n{_program(seed, kind)}"
            print(f"seed {seed}, {kind}: {text}{source}", flush=True)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--models", type=int, default=1000)
    options.add_argument("--first", type=int, default=0, help="the first seed")
    options.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options.add_argument("--kind", help="only this kind, of tests/fuzz/kinds.py, or plain")
    options.add_argument("--optimise", default="-O2", help="the compiler's level")
    options.add_argument("--quiet", action="store_true", help="without the texts of models")
    given = options.parse_args()
    tally, start = Tally(), time.perf_counter()
    stop = given.first + given.models
    groups = [list(range(k, min(k + TOGETHER, stop))) for k in range(given.first, stop, TOGETHER)]
    with tempfile.TemporaryDirectory() as folder:
        pool = Pool(given.jobs, Path(folder), given.kind, given.optimise)
        results = enumerate(pool.results(groups), 1)
        for done, (seed, kind, outcome, text, counts) in results:
            tally.add(seed, kind, outcome, text, given.quiet)
            tally.counts.update(counts)
            if done % TOGETHER == 0 or done == given.models:
                spent = time.perf_counter() - start
                print(
                    f"{done} models, {len(tally.said)} wrong, {spent:.0f} s, "
                    f"{done / spent / given.jobs:.2f} models/s/process; next: {pool.next(stop)}",
                    flush=True,
                )
    for kind in sorted(tally.kinds):
        print(f"{kind:12}", ", ".join(f"{n} {what}" for what, n in tally.kinds[kind].items()))
    print(", ".join(f"{count} {what}" for what, count in tally.counts.items()))
    for seed, text in sorted(tally.said.items()):
        print(f"  {seed}: {text[:150]}")
    return 1 if tally.said else 0


def _program(seed: int, kind: str) -> str:
    from tests.fuzz.programs import program

    return program(seed, kind=kind)


# ---- processes -----------------------------------------------------------------------------------


@dataclass
class Running:
    """A process, the group that it has, and what it said last. started: it has imported all."""

    process: Any
    pipe: Connection
    left: list[int]
    at: int | None = None
    stage: str = ""
    groups: int = 0
    heard: float = 0.0
    started: bool = False


class Pool:
    """Processes that are given groups of seeds, and replaced when they die or hang."""

    def __init__(self, jobs: int, folder: Path, kind: str | None, optimise: str) -> None:
        self.jobs, self.told = jobs, (folder, kind, optimise)
        self.kind = kind
        self.queue: list[list[int]] = []
        self.running: list[Running] = []

    def next(self, stop: int) -> int:
        """The first seed that is not done."""
        open_ = [s for group in self.queue for s in group]
        return min([*open_, *(s for r in self.running for s in r.left), stop])

    def results(
        self, groups: list[list[int]]
    ) -> Iterator[tuple[int, str, str, str, dict[str, int]]]:
        self.queue = list(groups)
        for _ in range(min(self.jobs, len(groups))):
            self._start()
        while self.running:
            ready = wait([r.pipe for r in self.running], timeout=5.0)
            for r in list(self.running):
                if r.pipe in ready:
                    yield from self._heard(r)
                elif time.monotonic() - r.heard > PATIENCE:
                    yield from self._lost(r, f"no answer in {PATIENCE:.0f} s")

    def _heard(self, r: Running) -> Iterator[tuple[int, str, str, str, dict[str, int]]]:
        try:
            message = r.pipe.recv()
        except (EOFError, OSError):
            r.process.join()
            if not r.started:
                sys.exit(
                    "A process could not start, and none would: its traceback stands above "
                    f"(exit code {r.process.exitcode})."
                )
            yield from self._lost(r, f"the process died ({r.process.exitcode})")
            return
        r.heard = time.monotonic()
        if message[0] == "started":
            r.started = True
        elif message[0] == "at":
            r.at, r.stage = message[1], message[2]
        elif message[0] == "done":
            seed = message[1]
            r.left.remove(seed)
            yield message[1:]
        else:  # the group is done
            self._end(r)

    def _end(self, r: Running) -> None:
        if self.queue and r.groups < GROUPS:
            r.left, r.groups = self.queue.pop(0), r.groups + 1
            r.pipe.send(r.left)
            return
        r.pipe.close()
        r.process.join()
        self.running.remove(r)
        if self.queue:
            self._start()

    def _lost(self, r: Running, text: str) -> Iterator[tuple[int, str, str, str, dict[str, int]]]:
        """The model at fault is wrong; the rest of its group goes back."""
        r.process.kill()
        r.process.join()
        r.pipe.close()
        self.running.remove(r)
        rest = [s for s in r.left if s != r.at]
        if r.at is None and len(r.left) > 1:  # which of them cannot be compiled?
            self.queue[:0] = [[s] for s in r.left]
        else:
            culprit = r.at if r.at is not None else r.left[0]
            self.queue[:0] = [rest] if rest else []
            yield culprit, self.kind or _kind_of(culprit), "wrong", f"{text}, {r.stage}", {}
        if self.queue:
            self._start()

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=_serve, args=(theirs, *self.told), daemon=True)
        process.start()
        theirs.close()
        running = Running(process, ours, self.queue.pop(0), heard=time.monotonic())
        ours.send(running.left)
        self.running.append(running)


def _kind_of(seed: int) -> str:
    from tests.fuzz.programs import program
    from tests.fuzz.writer import facts

    return facts(program(seed)).kind


def _serve(pipe: Connection, folder: Path, kind: str | None, optimise: str) -> None:
    """Groups of seeds until the other end closes."""
    import torch

    from tests.fuzz import judged as fuzz_judged  # noqa: F401
    from tests.fuzz import programs as fuzz  # noqa: F401 -- with these two, all that a group needs

    pipe.send(("started",))
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    own = Path(tempfile.mkdtemp(dir=folder))
    while True:
        try:
            seeds = pipe.recv()
        except EOFError:
            return
        _group(pipe, seeds, own, kind, optimise)
        pipe.send(("next",))


def _group(pipe: Connection, seeds: list[int], folder: Path, kind: str | None, level: str) -> None:
    from tests.fuzz.judged import judged, prepared, refusal, where
    from tests.fuzz.programs import program
    from tests.fuzz.writer import Facts, facts
    from tests.support.compiled import build

    cases: dict[int, Any] = {}
    known: dict[int, Facts] = {}
    why: dict[int, str] = {}  # it is not captured as a whole
    for seed in seeds:
        pipe.send(("at", seed, "written"))
        text = program(seed, kind=kind)
        known[seed] = facts(text)
        path = folder / f"random_{seed}.py"
        path.write_text(text, encoding="utf-8")
        try:
            cases[seed], why[seed] = prepared(path)
        except Exception as error:  # noqa: BLE001 -- whatever it is, this model is wrong
            outcome, said = refusal(error)
            pipe.send(("done", seed, known[seed].kind, outcome, said, {}))
    pipe.send(("at", None, "compiled"))
    modules = _built(build, list(cases.values()), folder, level)
    for (seed, case), module in zip(cases.items(), modules, strict=True):
        pipe.send(("at", seed, "run"))
        counts = Counter[str]()
        try:
            if isinstance(module, AssertionError):
                raise module
            said = judged(module, case.problem, case.model, case.inputs, seed, counts)
        except Exception as error:  # noqa: BLE001
            said = f"{type(error).__name__}: {error}\n{where(error)}"
        counts["kernels"] += len(case.made.kernels)
        outcome = "wrong" if said else "in parts" if why[seed] else "right"
        pipe.send(("done", seed, known[seed].kind, outcome, said, dict(counts)))
    for path in folder.glob("*.cpp"):
        path.unlink()


def _built(build: Any, cases: list[Any], folder: Path, level: str) -> list[Any]:
    """Modules, or what the compiler says where it refuses one."""
    try:
        return list(build(cases, folder, level, 1))
    except AssertionError as error:
        if len(cases) == 1:
            return [error]
        half = len(cases) // 2
        parts = (cases[:half], cases[half:])
        return [m for part in parts for m in _built(build, part, folder, level)]


if __name__ == "__main__":
    sys.exit(main())
