"""What a judging is asked: problem, candidate, options, limits, and the phases it goes through.

Whoever asks for a verdict makes a Request; `session` carries it out, and a report keeps it, so that
a case can be replayed. Each phase is a fresh process of the candidate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Limits:
    """Seconds that the judge waits for one answer, and bytes that a process may have."""

    start_s: float = 90.0
    import_s: float = 30.0
    build_s: float = 600.0
    call_s: float = 10.0
    leave_s: float = 10.0
    total_s: float = 900.0  # of all answers of one candidate
    refuted_s: float = 60.0  # the same of one that is refuted already
    trusted_s: float = 900.0
    pause_s: float = 5.0  # before something is tried again, alone
    memory_bytes: int = 0  # of one candidate's process; 0: a share of the machine's


@dataclass(frozen=True)
class Request:
    problem: Path
    candidate: Path
    device: str = "cpu"
    accuracy: str = "contract"
    truth: str = "rows"  # "whole": every call of full size, and float64 for every one
    grad: bool = False
    sanitize: bool = False
    timing: bool = True
    against: tuple[str, ...] = ("eager", "compile")
    overrides: Mapping[str, str] = field(default_factory=dict)
    budget_s: float = 20.0  # of timed turns
    deadline: float = math.inf  # of time.monotonic: when the checks shall be over
    limits: Limits = Limits()
    seed: str = ""  # hexadecimal; empty: drawn now
    only: tuple[str, ...] = ()  # replay: nothing but these experiments
    case: str = ""  # replay: nothing but this hazard case
    counts: Mapping[str, Any] = field(default_factory=dict)  # replay: what was planned then
    ignored: frozenset[str] = frozenset()  # tests: what would pass without these checks?
    mode: str = ""  # "train" or "eval", in which most is asked; "": as the problem makes its model


@dataclass(frozen=True)
class Phase:
    """One fresh process of the candidate and what is asked of it. says: that, to who waits."""

    name: str
    says: str
    experiments: tuple[str, ...]
    wanted: Callable[[Request], bool] = lambda _: True


_LAST = "global-state"
PHASES = (
    Phase(
        "first",
        "values",
        ("setup", "fresh", "grad-mode", "no-default", "stale-cache", "weight-change", _LAST),
    ),
    Phase("hazards", "unusual inputs", ("setup", "probes", "hazards", "dtypes", _LAST)),
    Phase(
        "states",
        "modes and repeated calls",
        ("setup", "modes", "buffers", "instances", "determinism", "soak", _LAST),
    ),
    Phase("gradients", "gradients", ("setup", "gradients", _LAST), lambda r: r.grad),
    Phase("stream", "streams", ("setup", "side-stream", _LAST), lambda r: r.device == "cuda"),
)
