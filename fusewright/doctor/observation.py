"""What was found on a machine -> what works there, what does not and why, what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

# ok: as it should be.  note: it works, and something should be known.  no: it is missing or broken.
# ?: it could not be asked.
State = Literal["ok", "note", "no", "?"]

# What a machine may be good for. GPU is called after the targets of the GPUs that are found.
KERNELS = "kernels for "
CPU = f"{KERNELS}cpu"
GPU = f"{KERNELS}a GPU"
CROSS = "compiling for other GPUs"
JUDGE = "judging in a sandbox"
TIMING = "timing"
SANITIZE = "judge --sanitize"
EVERYTHING = (CPU, GPU, CROSS, JUDGE, TIMING, SANITIZE)


@dataclass(frozen=True)
class Observation:
    """One row. what: was asked about.  found: the answer, or why there is none.  allows: what the
    machine is good for only where this is in order.  advice: a command, or what to change, or "".
    """

    what: str
    state: State
    found: str
    allows: tuple[str, ...] = ()
    advice: str = ""

    @property
    def in_order(self) -> bool:
        return self.state in ("ok", "note")


@dataclass(frozen=True)
class Diagnosis:
    """All of it. works: what the machine is good for.  lacks: what it is not, with the observations
    that are in the way, by name.  install: what to do, in lines."""

    observations: tuple[Observation, ...]
    works: tuple[str, ...]
    lacks: Mapping[str, tuple[str, ...]]
    install: tuple[str, ...]


def diagnosis(observations: Iterable[Observation], gpu: str = GPU) -> Diagnosis:
    """gpu: what is allowed by what allows GPU."""
    rows = tuple(
        replace(f, allows=tuple(gpu if a == GPU else a for a in f.allows)) for f in observations
    )
    every = [gpu if ability == GPU else ability for ability in EVERYTHING]
    blocks = {a: tuple(f.what for f in rows if a in f.allows and not f.in_order) for a in every}
    asked = {a for f in rows for a in f.allows}
    return Diagnosis(
        rows,
        tuple(a for a in every if a in asked and not blocks[a]),
        {a: blocks[a] for a in every if blocks[a]},
        tuple(dict.fromkeys(f"{f.what}: {f.advice}" for f in rows if f.advice)),
    )
