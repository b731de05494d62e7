"""What is written at positions that tensors hold: captured, and written in place, as eager does."""

from __future__ import annotations

import copy
import textwrap
from pathlib import Path

import pytest
import torch

from fusewright.frontend.data_positions import TensorPositions
from tests.support.emitting import emit_text

HEAD = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(2, 4, 8, 6))
        self.register_buffer("flat", torch.zeros(4, 8, 6))
        self.register_buffer("pos", torch.zeros((), dtype=torch.int64))

    def forward(self, x, pos, many):
        k = torch.tanh(x)
"""
TAIL = """
def get_inputs():
    return [torch.randn(4, 6), torch.tensor(3), torch.tensor([2, 5])]
"""
# What forward writes -> whether the buffer itself is written to, and nothing copied.
WRITES = {
    "self.flat[:, pos] = k": True,
    "self.flat[:, pos, :] = k": True,
    "self.flat[..., pos, :] = k": True,
    "self.flat[:, pos] = 2.5": True,
    "self.flat[:, pos] = k[None, None]": True,
    "self.flat[:, pos] = k[:1]": True,
    "self.flat[:, pos] = k.double()": True,
    "self.flat[:, pos.to(torch.int8)] = k": True,
    "self.flat[1, pos] = k[0]": True,
    "self.flat[pos % 4] = k[0]": True,
    "self.cache[1, :, pos] = k": True,
    "self.cache[1, :, pos, 2] = k[:, 0]": True,
    "self.flat[:, self.pos] = k; self.pos += 1": True,
    "self.flat[:, pos] = k; self.flat[:, pos - 1] = k * 2": True,
    "self.flat[:, many] = k[:, None]": True,
    "self.flat.index_copy_(1, many, torch.stack([k, k + 1], 1))": True,
    "self.flat.index_add_(1, many, torch.stack([k, k + 1], 1))": True,
    "self.flat.scatter_(1, many.view(1, 2, 1).expand(4, 2, 6), torch.stack([k, k], 1))": True,
    "self.flat[1:3, pos] = k[1:3]": False,
    "k = k + self.flat.sum(1); self.flat[:, pos] = k": False,
    "y = self.flat.clone(); y[:, pos] = k; k = y.amax(1)": False,
    "x[:, pos] = k[:, 0]": True,
}


@pytest.mark.slow
@pytest.mark.parametrize("write", WRITES)
def test_they_are_written_as_eager_does(write: str, tmp_path: Path) -> None:
    body = textwrap.indent(write.replace("; ", "\n"), "        ")
    result = "        return k * 2 + self.flat.amax(1) + self.cache.amax((0, 2)) + x\n"
    emitted = emit_text(f"{HEAD}{body}\n{result}{TAIL}", tmp_path)
    assert emitted.made.kernels
    copies = "flat.copy_(" in emitted.text or "cache.copy_(" in emitted.text
    assert copies is (not WRITES[write] and "self.flat[" in write)
    space = emitted.load()
    ours = space.ModelNew()
    theirs = copy.deepcopy(ours)
    original = space.ModelNew.reference_forward
    space.ModelNew.reference_forward = None
    with torch.no_grad():
        for place, many in ((3, [2, 5]), (7, [6, 0]), (-1, [1, 2]), (0, [7, 6])):
            given = torch.randn(4, 6), torch.tensor(place if "x[" not in write else place % 6)
            here, there = [t.clone() for t in given], [t.clone() for t in given]
            found = ours(*here, torch.tensor(many))
            wanted = original(theirs, *there, torch.tensor(many))
            torch.testing.assert_close(found, wanted)
            torch.testing.assert_close(dict(ours.named_buffers()), dict(theirs.named_buffers()))
            torch.testing.assert_close(here, there)


def test_what_is_no_such_position_is_assigned_as_ever() -> None:
    mask = torch.tensor([True, False, True, False])
    indices = (1, slice(1, 3), mask, [0, 2], torch.tensor([3, 0]), (None, 2), torch.tensor(True))
    indices += (torch.tensor(1, dtype=torch.uint8),)
    indices += ((torch.tensor(1), torch.tensor([0, 2])), (torch.tensor(2), None))
    for index in indices:
        ours, theirs = torch.zeros(4, 4), torch.zeros(4, 4)
        with TensorPositions():
            ours[index] = 1.0
        theirs[index] = 1.0
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("position", [4, -5])
def test_a_position_outside_is_an_error(position: int) -> None:
    x = torch.zeros(4, 4)
    with TensorPositions(), pytest.raises(IndexError):
        x[:, torch.tensor(position)] = 1.0
