"""Results of eager that are not finite on a GPU -> what PyTorch's other kernels, on a CPU, make of
the same arguments in float64.

PyTorch's kernels disagree about infinities: of a row with one, `rms_norm` gives NaN everywhere or
only there, depending on the device and on whether the row has whole vectors. Float64 on the same
GPU cannot judge that, since it takes the same way. There, both answers are right.
"""

from __future__ import annotations

import torch
from torch import Tensor


def where_lost(output: Tensor, eager: Tensor, other: Tensor, near: float) -> Tensor:
    """The output with eager's answer where eager's is not finite and the output is the other one.

    other: float64, on any device.  near: how far a finite element may be off, as a share of the
    largest one.
    """
    if output.shape != eager.shape or other.shape != eager.shape or not eager.is_floating_point():
        return output
    other = other.to(eager.device, torch.float64)
    finite = other[other.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    alike = torch.isclose(output.double(), other, near, near * largest, equal_nan=True)
    return torch.where(~eager.isfinite() & alike, eager, output)
