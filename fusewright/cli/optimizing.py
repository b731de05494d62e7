"""`optimize` once its arguments are read: the judge is opened, the file made, the result shown."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fusewright.cli.endings import say
from fusewright.cli.reporting import Asked, Done
from fusewright.cli.views import outcome_done
from fusewright.common.atomic_write import STANDARD_OUTPUT
from fusewright.common.timing_lock import Need, hold_timing_lock, settle
from fusewright.compiler.verdict import Terms, request_for

if TYPE_CHECKING:
    from fusewright.judge.judging import Judging


@dataclass(frozen=True)
class OptimizeRun:
    """One `optimize` command. about: options that are the pipeline's own.  tune: the level, as
    asked for.  line: to the suite that this is a run of, if it is one."""

    problem: Path
    output: Path | None
    target: str | None
    about: Mapping[str, Any]
    terms: Terms
    tune: str | None
    line: int | None
    force: bool

    def verified(self, wanted: Asked) -> Done:
        """The file, judged and timed as far as this machine can."""
        # Importing PyTorch takes its time, here and in the judge's processes: side by side.
        with self._judging() as judging, wanted.progress() as step:
            # Beside planning, if memory is nobody's to give and nothing is timed meanwhile.
            if judging and self.line is None and self._level() == "off":
                judging.begin()
            from fusewright.compiler.pipeline import optimize_file

            line = self.line
            outcome = optimize_file(
                self.problem,
                out=self.output,
                target=self.target,
                **self.about,
                seed=self.terms.seed,
                budget=self.terms.budget,
                force=self.force,
                timing=self.terms.timing,
                level=self.tune,
                turn=nullcontext if line is None else partial(hold_timing_lock, line),
                progress=step,
                judging=judging,
                settle=at_once if line is None else partial(settle, line),
            )
        return outcome_done(outcome, wanted.view)

    def only_written(self, wanted: Asked) -> Done:
        """The file, or its text alone, that nobody compiles or judges."""
        # What the problem file prints is not the text.
        with redirect_stdout(sys.stderr), wanted.progress() as step:
            from fusewright.compiler.pipeline import emit_only

            outcome, text = emit_only(
                self.problem,
                out=self.output,
                target=self.target,
                force=self.force,
                progress=step,
                **self.about,
            )
        say(f"fusewright: not verified: {outcome.why_not}.")
        alone = text if self.output == STANDARD_OUTPUT else None
        return outcome_done(outcome, wanted.view, text=alone)

    def _level(self) -> str:
        """How much the tuner will try, if the file is for this machine."""
        from fusewright.tune.levels import default_level

        timing, budget = self.terms.timing, self.terms.budget
        return self.tune or default_level(here=True, timing=timing, budget=budget)

    def _judging(self) -> AbstractContextManager[Judging | None]:
        """Of the file for this target, if it is for this machine in any case."""
        from fusewright.judge.judging import open_judging

        device = self.target or default_device()
        known = device == "cpu" or (device == "cuda" and default_device() == "cuda")
        if not known or not self.problem.is_file():
            return nullcontext()
        about = self.about["overrides"], self.about["mode"], self.terms
        return open_judging(request_for(self.problem, self.output, device, *about))


def at_once(_: Need) -> None:
    """Alone, a run takes what memory there is."""


def default_device() -> Literal["cpu", "cuda"]:
    """Ask the driver, not PyTorch: the parent of a judgement never imports it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "cpu"
    count = ctypes.c_int(0)
    found = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return "cuda" if found and count.value else "cpu"
