"""Two answers of the reference to one question -> are they the same, as far as they can be?

The judge asks eager twice where it wants to know whether a model draws random numbers, whether rows
depend on each other, or whether a call has changed anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fusewright.judge.evidence import model_states

EXACTLY = 1e-10  # of a value and of the largest one, float64 may differ by in another order
NEARLY = 0.1  # near zero, of the largest one and of the square root of eps
ROUGHLY, NEAR = 1e-2, 1e-5  # answers to one question may differ by so much: of each, of the largest


def alike(a: Tensor, b: Tensor) -> bool:
    """The same but for roundings; near zero, as near as the largest numbers let it be."""
    if torch.equal(a, b):
        return True
    if not (a.is_floating_point() or a.is_complex()):
        return False
    sizes = a.abs().nan_to_num(0.0, 0.0, 0.0)
    slack = NEAR * float(sizes.max()) if a.numel() else 0.0
    return torch.allclose(a, b, ROUGHLY, slack, equal_nan=True)


def exactly(a: Tensor, b: Tensor) -> bool:
    """The same in float64, but for another order of its sums."""
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    largest = float(a.abs().nan_to_num(0.0, 0.0, 0.0).max()) if a.numel() else 0.0
    return torch.allclose(a, b, EXACTLY, EXACTLY * largest, equal_nan=True)


def nearly(a: Tensor, b: Tensor) -> bool:
    """The same but for roundings of kernels that depend on the number of rows."""
    if torch.equal(a, b):
        return True
    if not (a.is_floating_point() or a.is_complex()):
        return False
    near = torch.finfo(a.dtype).eps ** 0.5
    largest = float(a.abs().nan_to_num(0.0, 0.0, 0.0).max()) if a.numel() else 0.0
    return torch.allclose(a, b, near, near * NEARLY * largest, equal_nan=True)


def all_alike(
    found: Sequence[Tensor], wanted: Sequence[Tensor], same: Callable[[Tensor, Tensor], bool]
) -> bool:
    pairs = [*zip(found, wanted, strict=False)]
    return len(found) == len(wanted) and all(a.shape == b.shape and same(a, b) for a, b in pairs)


def identical(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and model_states.same(a, b)
