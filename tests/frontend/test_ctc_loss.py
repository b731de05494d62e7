"""ctc_loss is a call of the library: only its own backward pass sees a size of the data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusewright.frontend.capture import capture, state_of
from fusewright.ir.interpreter import interpret

X, TARGETS = torch.randn(9, 4, 6), torch.randint(1, 5, (4, 3))
LENGTHS = torch.full((4,), 9), torch.tensor([3, 2, 3, 1])
NUMBERS = (9, 9, 9, 9), (3, 3, 3, 3)
WHOLE = nn.CTCLoss(blank=5, zero_infinity=True)
Case = tuple[Callable[..., Tensor], Sequence[Tensor]]
CASES: dict[str, Case] = {
    "numbers": (lambda x, t: F.ctc_loss(x, t, *NUMBERS), (X, TARGETS)),
    "lists": (lambda x, t: F.ctc_loss(x, t, [9, 8, 7, 9], [3, 3, 0, 2]), (X, TARGETS)),
    "tensors": (lambda x, t: F.ctc_loss(x, t, *LENGTHS), (X, TARGETS)),
    "inputs": (lambda x, t, i, o: F.ctc_loss(x, t, i, o), (X, TARGETS, *LENGTHS)),
    "sum": (
        lambda x, t: F.ctc_loss(x, t, *LENGTHS, reduction="sum", zero_infinity=True), (X, TARGETS),
    ),
    "none": (lambda x, t: F.ctc_loss(x, t, *LENGTHS, blank=5, reduction="none"), (X, TARGETS)),
    "joined": (lambda x, t: F.ctc_loss(x, t, *NUMBERS), (X, TARGETS.flatten())),
    "one sequence": (lambda x, t: F.ctc_loss(x, t, (9,), (3,)), (X[:, 0], TARGETS[0])),
    "module": (lambda x, t: WHOLE(x, t, *NUMBERS), (X, TARGETS)),
    "infinite": (lambda x, t: F.ctc_loss(x, t, (2,) * 4, (3,) * 4), (X, TARGETS)),
    "infinite made zero": (lambda x, t: WHOLE(x, t, (2,) * 4, (3,) * 4), (X, TARGETS)),
    "batch first": (
        lambda x, t: F.ctc_loss(x.transpose(0, 1), t, *NUMBERS),
        (X.transpose(0, 1).clone(), TARGETS),
    ),
}  # fmt: skip


class Loss(nn.Module):
    def __init__(self, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return self.loss(x.log_softmax(-1), *others) * 2


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_loss_is_a_call(name: str) -> None:
    loss, inputs = CASES[name]
    module = Loss(loss)
    made = capture(module, inputs)
    (found,) = interpret(made.graph, inputs, state_of(made, module))
    torch.testing.assert_close(found, module(*inputs))
    assert torch.ctc_loss.__name__ == "ctc_loss"  # PyTorch is as it was
