"""The rows of the table at the top of an emitted file."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fusewright.compiler.compilation import make
from fusewright.emit.header import header
from fusewright.targets.target import TARGETS


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc1 = nn.LayerNorm(256), nn.Linear(256, 1024)
        self.fc2 = nn.Linear(1024, 256)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc2(nn.functional.gelu(self.fc1(self.norm(x))))


class Blocks(nn.Module):
    """Equal blocks, and one product more that is like none of theirs."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(count))
        self.head = nn.Linear(256, 512)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            x = layer(x)
        return torch.relu(self.head(x)), x.sort()[0]


@pytest.mark.parametrize("target", ["cpu", "sm_80", "sm_90a"])
def test_equal_blocks_are_one_row_each(target: str) -> None:
    few, many = (make(Blocks(count), [torch.randn(512, 256)], TARGETS[target]) for count in (3, 9))
    rows = many.notes.rows
    assert len(rows) == len(few.notes.rows), "as many rows, whatever the number of blocks"
    steps = [s for s in many.plan.steps if "getitem" not in str(getattr(s, "node", ""))]
    assert sum(row.times for row in rows) == len(steps), "no step is left out"
    assert {row.times for row in rows} >= {1, 8, 9}
    repeated = [row for row in rows if row.times >= 8]
    assert all("layers[" in place for row in repeated for place in row.places)
    assert any("self.layers[0..8].fc1" in place for row in rows for place in row.places)


def test_the_header_names_calls_of_pytorch_and_why() -> None:
    made = make(Blocks(2), [torch.randn(512, 256)], TARGETS["sm_90a"])
    (row,) = (row for row in made.notes.rows if row.operators == ("sort",))
    assert row.name == ""
    assert row.numeric.name == "PyTorch's"
    lines = header("blocks.py", "sm_90a", {"train": made.notes})
    number = next(line.split()[0] for line in lines if line.endswith(f") {row.reasons[0]}")).strip(
        "()"
    )
    (shown,) = (line for line in lines if "sort" in line)
    assert shown.startswith("PyTorch ")
    assert shown.endswith(f" {number}")
    kernels = {function.name for function in made.shared.functions}
    assert {row.name for row in made.notes.rows} - {""} <= kernels
    assert any("ieee: full float32" in line for line in lines)
    assert "  the batch size is free (1 or more)" in lines
    assert any("`reference_forward`" in line for line in lines)
