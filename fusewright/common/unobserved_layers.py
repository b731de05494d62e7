"""Layers of PyTorch that look whether somebody looks on -> the path that they take if nobody does.

nn.TransformerEncoder, its layers and nn.MultiheadAttention have a fast path, and leave it wherever
a function mode is on, a mere default device included. What they compute then differs where a mask
hides a whole row, or padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch


@contextmanager
def unwatched() -> Iterator[None]:
    """Within the block, modes that look on do not change the path; tensors of another kind do."""
    kept = torch.overrides.has_torch_function
    setattr(torch.overrides, "has_torch_function", _of_another_kind)  # noqa: B010
    try:
        yield
    finally:
        setattr(torch.overrides, "has_torch_function", kept)  # noqa: B010


def _of_another_kind(given: Sequence[object]) -> bool:
    plain = torch._C._disabled_torch_function_impl
    kinds = {type(t) for t in given if isinstance(t, torch.Tensor)} - {torch.Tensor}
    return any(kind.__torch_function__ is not plain for kind in kinds)
