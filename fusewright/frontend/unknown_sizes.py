"""What a trace on fake tensors takes for results whose size depends on the data, and which only an
operator's own backward pass looks at: the largest size there may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_impls import op_implementations_dict
from torch._subclasses.fake_tensor import FakeTensorMode

CTC = (torch.ops.aten._ctc_loss.default, torch.ops.aten._ctc_loss.Tensor)
MEAN = 1  # as ATen numbers reductions


@contextmanager
def fake_rules(rules: Mapping[Any, Callable[..., Any]]) -> Iterator[None]:
    """Within the block, fake tensors take these for what the operators do."""
    kept = {op: op_implementations_dict[op] for op in rules if op in op_implementations_dict}
    op_implementations_dict.update(rules)
    try:
        yield
    finally:
        for op in rules:
            del op_implementations_dict[op]
        op_implementations_dict.update(kept)


@contextmanager
def inner_sizes() -> Iterator[None]:
    """Within the block, losses of unknown inner sizes can be traced."""
    whole = torch.ctc_loss

    def in_parts(
        x: torch.Tensor,
        targets: torch.Tensor,
        input_lengths: Any,
        target_lengths: Any,
        blank: int = 0,
        reduction: int = MEAN,
        zero_infinity: bool = False,
    ) -> torch.Tensor:
        """PyTorch's own composition for lengths in a list, which it writes to a fake tensor."""
        given = (x, targets, input_lengths, target_lengths, blank)
        if reduction != MEAN or isinstance(target_lengths, torch.Tensor):
            return whole(*given, reduction, zero_infinity)
        losses = whole(*given, 0, zero_infinity)
        lengths = torch.tensor([*target_lengths], dtype=losses.dtype, device=losses.device)
        return (losses / lengths.clamp_min(1)).mean()

    setattr(torch, "ctc_loss", in_parts)  # noqa: B010
    try:
        with fake_rules(dict.fromkeys(CTC, _ctc_loss)):
            yield
    finally:
        setattr(torch, "ctc_loss", whole)  # noqa: B010


def _ctc_loss(
    mode: FakeTensorMode, _: Any, x: torch.Tensor, targets: torch.Tensor, *__: Any, **___: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """A loss for each sequence, and what backward needs: a state for each symbol and each gap."""
    steps, sequences = x.shape[:2]
    with mode:
        return x.new_empty((sequences,)), x.new_empty((sequences, steps, 2 * targets.shape[-1] + 1))
