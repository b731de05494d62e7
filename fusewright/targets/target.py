"""What a file is made for: a name goes in, a `Target` comes out, an architecture and a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fusewright.errors import BadUsage
from fusewright.targets.arch import ARCHES, Arch
from fusewright.targets.machines import MACHINES, Machine


@dataclass(frozen=True)
class Target:
    """An architecture, and the machine of it whose sizes and rates are reckoned with."""

    arch: Arch
    machine: Machine

    @property
    def name(self) -> str:
        """What `--target` calls it."""
        return self.arch.name

    @property
    def language(self) -> Literal["cpp", "cuda"]:
        return self.arch.language

    @property
    def device(self) -> str:
        """PyTorch's device type."""
        return "cuda" if self.language == "cuda" else "cpu"


def targets_of(arches: Mapping[str, Arch], machines: Mapping[str, Machine]) -> dict[str, Target]:
    """A target for each architecture that a machine stands for: the first of its machines."""
    first = {machine.arch: machine for machine in reversed(tuple(machines.values()))}
    return {name: Target(arch, first[name]) for name, arch in arches.items() if name in first}


TARGETS: Mapping[str, Target] = targets_of(ARCHES, MACHINES)


def target(name: str) -> Target:
    """Return the target called `name`; raises BadUsage for an unknown one."""
    if name not in TARGETS:
        raise BadUsage(f"Unknown target {name!r}: choose one of {', '.join(TARGETS)} or cuda.")
    return TARGETS[name]
