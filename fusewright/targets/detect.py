"""This machine -> the target that files for it are made for, or why there is none."""

from __future__ import annotations

import torch

from fusewright.errors import ToolMissing
from fusewright.targets.target import TARGETS, Target, target


def resolve_target(name: str | None) -> tuple[Target, bool]:
    """The target called `name` (None: this machine's best), and whether it is this machine.

    Raises ToolMissing for `cuda` without a GPU.
    """
    found = own_gpu()
    if name is None:
        return (found or TARGETS["cpu"]), True
    if name == "cuda":
        if found is None:
            raise ToolMissing(
                "--target cuda: PyTorch finds no CUDA GPU here. Name an architecture to "
                "cross-compile: --target sm_80 or --target sm_90a."
            )
        return found, True
    machine = target(name)
    return machine, machine.language == "cpp" or machine is found


def own_gpu() -> Target | None:
    """The target of this machine's GPU."""
    if not torch.cuda.is_available():
        return None
    major, _ = torch.cuda.get_device_capability()
    return TARGETS["sm_90a"] if major == 9 else TARGETS["sm_80"]
