"""What a file is made for: a name goes in, a `Target` comes out, an architecture and a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fusewright.errors import BadUsage, InternalError
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
    """A target for each architecture that kernels are written for, with its machine.

    Raises InternalError for one that no machine stands for.
    """
    machine_of = {machine.arch: machine for machine in machines.values()}
    written = [arch for arch in arches.values() if arch.device_library is not None]
    if alone := [arch.name for arch in written if arch.name not in machine_of]:
        raise InternalError(
            f"No machine stands for {', '.join(alone)}: it needs a row in targets/machines.py."
        )
    return {arch.name: Target(arch, machine_of[arch.name]) for arch in written}


TARGETS: Mapping[str, Target] = targets_of(ARCHES, MACHINES)


def target(name: str) -> Target:
    """Return the target called `name`; raises BadUsage for an unknown one."""
    if name in TARGETS:
        return TARGETS[name]
    choices = f"choose one of {', '.join(TARGETS)} or cuda."
    if name not in ARCHES:
        raise BadUsage(f"Unknown target {name!r}: {choices}")
    arch = ARCHES[name]
    assert arch.capability is not None, "files are written for every CPU"
    runs = target_for_gpu(arch.capability, arch.shared_bytes_per_block)
    there = f"files for {runs.name} run there; " if runs else ""
    raise BadUsage(f"Target {name}: no kernels are written for it; {there}{choices}")


def target_for_gpu(capability: tuple[int, int], shared_bytes: int) -> Target | None:
    """What is written for a GPU: its own target, or an older one whose PTX it can run.

    shared_bytes: what one block of it may ask for. An older one may ask for no more, where its
    tiles would not fit; the most of it stands for the most kernels, so that comes before its age.
    """
    older = list[tuple[int, tuple[int, int], Target]]()
    for found in TARGETS.values():
        arch, room = found.arch, found.arch.shared_bytes_per_block
        if arch.capability == capability:
            return found
        if arch.forward_ptx and arch.capability and arch.capability < capability:
            older += [(room, arch.capability, found)] * (room <= shared_bytes)
    return max(older, key=lambda row: row[:2])[2] if older else None
