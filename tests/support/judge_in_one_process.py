"""A problem and a candidate, as texts -> the judge's rows, without its processes: for tables.

The trusted worker's program and the candidate's answer each other in this very process. What the
judge does about hostile candidates is not here (tests/corpus/cheats), only what it asks and how it
judges.
"""

from __future__ import annotations

import gc
import os
import random
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy
import torch

from fusewright.judge.evidence import experiment_table
from fusewright.judge.evidence.oracle import Oracle
from fusewright.judge.evidence.oracle_worker import Bench
from fusewright.judge.isolation import candidate_worker
from fusewright.judge.isolation.pinned_memory import map_pinned
from fusewright.judge.isolation.protocol import Record, Region
from fusewright.judge.request import PHASES

SEED = "5e" * 16
HEADER = """
import torch
import torch.nn as nn
import torch.nn.functional as F
"""


class OneProcess:
    """Both programs, and two regions between them."""

    def __init__(self, folder: Path, problem: str, solution: str, seed: str = SEED) -> None:
        self.folder = folder
        path = folder / "problem.py"
        path.write_text(HEADER + textwrap.dedent(problem), encoding="utf-8")
        self.source = HEADER + textwrap.dedent(solution)
        self._regions = [Region(name, 1 << 30) for name in ("inputs", "outputs")]
        inputs, outputs = (region.fd for region in self._regions)
        self._ends = inputs, outputs
        self._drawn: tuple[Any, ...] | None = None
        self.bench = Bench(
            [(map_pinned(inputs, writable=True), map_pinned(outputs, writable=False))]
        )
        self.lab_order = {
            "device": "cpu", "accuracy": "contract", "seed": seed, "problem": str(path),
            "overrides": {}, "lab": "problem", "do": "open",
        }  # fmt: skip

    @property
    def lab(self) -> Oracle:
        return self.bench._labs["problem"]

    def open(self) -> None:
        self.bench.do_open(self.lab_order)
        self.bench.do_examine({"lab": "problem"})

    def rows(self, experiments: Sequence[str] = ()) -> list[tuple[str, str, str]]:
        """What every phase says, or only those experiments of it; a fresh program per phase."""
        self.open()
        rows: list[tuple[str, str, str]] = []
        for phase in PHASES[:3]:
            host = candidate_worker.Host(*self._ends, "cpu")
            chosen = [e for e in phase.experiments if not experiments or e in experiments]
            for experiment in ["setup", *chosen] if chosen and "setup" not in chosen else chosen:
                reply = self._run(host, experiment)
                rows += reply["over"]
                if reply["stop"]:
                    break
        return rows

    def _run(self, host: candidate_worker.Host, experiment: str) -> Mapping[str, Any]:
        order = {"lab": "problem", "slot": 0, "experiment": experiment, "options": {}}
        assert experiment in experiment_table.EXPERIMENTS
        reply = self.bench.do_begin(order)
        while "step" in reply:
            message = reply["step"]
            if message["do"] == "import":
                own = {"source": self.source, "name": "candidate", "class": "ModelNew"}
                message = {**message, **own, "threads": torch.get_num_threads()}
            record = asdict(self._answer(host, message))
            self.bench.meanwhile()
            reply = self.bench.do_answer({"slot": 0, "record": record})
        return reply

    def _answer(self, host: candidate_worker.Host, message: Mapping[str, Any]) -> Record:
        """The candidate's program has random numbers of its own."""
        judges, own = _drawn(), self._drawn
        _draw_on(judges if own is None else own)
        record = candidate_worker._answer(host, message)
        self._drawn = _drawn()
        _draw_on(judges)
        return record


def _drawn() -> tuple[Any, ...]:
    """How far PyTorch, Python and numpy have drawn."""
    return torch.get_rng_state(), random.getstate(), numpy.random.get_state()


def _draw_on(states: tuple[Any, ...]) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    numpy.random.set_state(states[2])


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """The candidate's file is written where its worker is; and numbers are drawn as before."""
    before, drawn = Path.cwd(), _drawn()
    gc.collect()  # files of tests before this one are closed now, and not within it
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        _draw_on(drawn)


def judged(
    folder: Path, problem: str, solution: str, experiments: Sequence[str] = ()
) -> list[tuple[str, str, str]]:
    with _inside(folder):
        return OneProcess(folder, problem, solution).rows(experiments)


def failures(rows: Sequence[tuple[str, str, str]]) -> list[str]:
    return [f"{check}: {evidence}" for check, outcome, evidence in rows if outcome == "fail"]


def honest(problem: str) -> str:
    """The reference itself, as a candidate."""
    return problem.replace("class Model(", "class ModelNew(").replace(
        "super(Model", "super(ModelNew"
    )
