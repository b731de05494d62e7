"""This machine -> the target that files for it are made for, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fusewright.errors import ToolMissing
from fusewright.targets.target import TARGETS, Target, target, target_for_gpu


@dataclass(frozen=True)
class Gpu:
    """What PyTorch says of a GPU. shared_bytes: what one block may ask for."""

    name: str
    capability: tuple[int, int]
    shared_bytes: int

    def __str__(self) -> str:
        major, minor = self.capability
        room = f"{self.shared_bytes >> 10} KB of shared memory for a block"
        return f"{self.name} of compute capability {major}.{minor} with {room}"


def resolve_target(name: str | None) -> tuple[Target, bool]:
    """The target called `name` (None: this machine's best), and whether it is this machine.

    Raises ToolMissing for `cuda` without a GPU, and where this machine's GPU runs no kernel of ours
    and no other target is asked for.
    """
    gpu = _this_gpu()
    found = _target_of(gpu)
    if name not in (None, "cuda"):
        machine = target(str(name))
        return machine, machine.language == "cpp" or machine is found
    if gpu is None and name == "cuda":
        raise ToolMissing(
            f"--target cuda: PyTorch finds no CUDA GPU here. {_others('cross-compile')}"
        )
    if gpu is not None and found is None:
        raise ToolMissing(
            f"No kernels are written for the GPU of this machine, {gpu}. Use --target cpu for its "
            f"CPU. {_others('write a file for another machine')}"
        )
    return (found or TARGETS["cpu"]), True


def own_gpu() -> Target | None:
    """The target of this machine's GPU; None without a GPU, or for one that runs no kernels."""
    return _target_of(_this_gpu())


def _target_of(gpu: Gpu | None) -> Target | None:
    return target_for_gpu(gpu.capability, gpu.shared_bytes) if gpu else None


def _this_gpu() -> Gpu | None:
    if not torch.cuda.is_available():
        return None
    return gpu_numbered(torch.cuda.current_device())


def gpu_numbered(number: int) -> Gpu:
    """The GPU that PyTorch gives this number."""
    found = torch.cuda.get_device_properties(number)
    # PyTorch's stubs lack the field, and its builds for other makers' GPUs may.
    room = getattr(found, "shared_memory_per_block_optin", found.shared_memory_per_block)
    return Gpu(found.name, (found.major, found.minor), int(room))


def _others(purpose: str) -> str:
    """Advice: the names of all GPUs that files can be made for."""
    names = ", ".join(t.name for t in TARGETS.values() if t.language == "cuda")
    return f"Name an architecture with --target to {purpose}: one of {names}."
