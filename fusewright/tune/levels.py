"""A --tune option -> how much the tuner tries, in seconds and alternatives. Loads no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusewright.common.budget import Budget
from fusewright.errors import BadUsage
from fusewright.targets.target import Target


@dataclass(frozen=True)
class TuneLevel:
    """How much is tried. seconds: of building and timing.  most: alternatives of a kernel."""

    seconds: float
    most: int


# [m: model-0006, model-0007]
LEVELS: Mapping[str, TuneLevel] = {"quick": TuneLevel(20.0, 3), "full": TuneLevel(300.0, 16)}


def default_level(*, here: bool, timing: bool, budget: Budget | None = None) -> str:
    """Who wants to hear how fast a file is on this machine wants it to be fast there, as far as a
    budget has time for that."""
    if not (here and timing):
        return "off"
    return budget.level if budget else "quick"


def level_of(
    asked: str | None, machine: Target, *, here: bool, timing: bool, budget: Budget | None = None
) -> str:
    """How much the tuner tries; raises BadUsage where it would have to try on another machine."""
    level = asked or default_level(here=here, timing=timing, budget=budget)
    if level != "off" and not here:
        raise BadUsage(f"--tune {level}: {machine.name} is not on this machine; use --tune off.")
    return level
