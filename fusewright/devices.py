"""The GPUs of this machine, by the names that CUDA_VISIBLE_DEVICES takes; found without PyTorch."""

from __future__ import annotations

import os
import subprocess

VISIBLE = "CUDA_VISIBLE_DEVICES"
ASKED = ("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader")
PATIENCE_S = 20.0  # a driver that nobody has used for a while takes some seconds to answer


def gpus() -> tuple[str, ...]:
    """Those that the caller's environment names, or else all that the driver lists; () for none."""
    if (named := os.environ.get(VISIBLE)) is not None:
        return tuple(name.strip() for name in named.split(",") if name.strip())
    try:
        told = subprocess.run(ASKED, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    except (OSError, subprocess.SubprocessError):  # no driver, or one that does not answer
        return ()
    return tuple(line.strip() for line in told.stdout.splitlines() if line.strip())
