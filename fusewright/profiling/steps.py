"""An emitted file -> what each of its kernels moves and calculates in one call, as the file says.

The roofline is of the target's machine (`targets/machines.py`), which need not be the one at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fusewright.errors import BadUsage
from fusewright.report.amounts import amount_of
from fusewright.report.emitted_header import emitted_header
from fusewright.report.kernel_notes import EmittedKernel, emitted_kernels
from fusewright.targets.target import TARGETS

DIGITS = 5e-3  # amounts in a file have three digits
Limiter = Literal["memory", "arithmetic"]


@dataclass(frozen=True)
class StepAmounts:
    """Of one kernel. predicted_us: by the roofline.  limiter: what bounds it there, None where the
    target is not known.  places: in the user's file, as the header says."""

    bytes: int
    flops: int
    predicted_us: float
    limiter: Limiter | None
    places: str
    computes: str


def step_amounts(text: str, name: str) -> Mapping[str, StepAmounts]:
    """By the names of the kernels; nothing for a text that fusewright has not written.

    name: of the file.
    """
    try:
        kernels = emitted_kernels(text, name)
    except BadUsage:
        return {}
    header = emitted_header(text, {kernel.name for kernel in kernels})
    known = TARGETS.get(header.target)
    speed = known.machine.copy_bytes_per_s if known else None
    places = {row.name: row.places for row in reversed(header.rows)}
    return {k.name: _amounts(k, places.get(k.name, ""), speed) for k in kernels}


def _amounts(kernel: EmittedKernel, places: str, bytes_per_s: float | None) -> StepAmounts:
    moved, flops = amount_of(kernel.bytes), amount_of(kernel.flops)
    seconds = amount_of(kernel.predicted)
    limiter: Limiter | None = None
    if bytes_per_s:
        limiter = "memory" if moved / bytes_per_s >= seconds * (1 - 2 * DIGITS) else "arithmetic"
    return StepAmounts(int(moved), int(flops), seconds * 1e6, limiter, places, kernel.computes)
