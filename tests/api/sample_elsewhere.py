"""A module whose submodule is of a class in another file, and reads a number there."""

from __future__ import annotations

from torch import Tensor, nn

from tests.api.sample import Block

LIMIT = 3.0


def limited(x: Tensor) -> Tensor:
    return x.clamp(max=LIMIT)


class Pair(nn.Module):
    """Calls a function of this file, and a block of another one."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor) -> Tensor:
        return limited(self.block(x))
