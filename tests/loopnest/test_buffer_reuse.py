"""What is computed in place: memory that nobody else sees, read at the very element written."""

from __future__ import annotations

import pytest
import torch

from fusewright.loopnest.buffer_reuse import buffer_reuse
from tests.fusion.test_planner import IMAGE, ROWS, planned

# forward, an input, what is overwritten
CASES = [
    ("return torch.relu(self.linear(x))", ROWS, ["library"]),
    ("y = self.linear(x)\nreturn torch.relu(y), y", ROWS, []),
    ("y = self.linear(x)\nreturn torch.relu(y), y.view(-1)", ROWS, []),
    ("y = self.linear(x)\nreturn torch.relu(y) + self.linear(y)", ROWS, ["library"]),
    ("return torch.relu(self.linear(x)).double()", ROWS, []),
    ("return torch.softmax(self.linear(x), -1)", ROWS, ["library"]),
    ("y = self.linear(x)\nreturn y + y.flip(1)", ROWS, []),
    ("return torch.relu(self.linear(x)[:, :6])", ROWS, []),
    ("return torch.relu(self.conv(x)) + 1", IMAGE, ["library"]),
    ("x.add_(1)\nreturn x * 2", ROWS, ["input"]),
    ("y = x * 2\nz = self.linear(x)\nx.copy_(y)\nreturn z", ROWS, []),
    ("x.copy_(x.flip(0) + 1)\nreturn x", ROWS, []),
    ("return torch.relu(x)", ROWS, []),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "x", "wanted"), CASES, ids=[c[0].replace("\n", "; ") for c in CASES]
)
def test_what_is_overwritten(text: str, x: torch.Tensor, wanted: list[str]) -> None:
    made = buffer_reuse(planned(text, x))
    pairs = [pair for pairs in made.in_place.values() for pair in pairs]
    assert [leaf.op for _, leaf in pairs] == wanted
    for output, leaf in pairs:
        assert (output.shape, output.dtype) == (leaf.shape, leaf.dtype)
