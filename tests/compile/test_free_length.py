"""A size that is not the leading one stays free: eager's results at other lengths, from kernels."""

from __future__ import annotations

import pytest
import torch

from fusewright.frontend.asked_size import Wanted
from tests.support.free_subjects import Built, built_free, check

TEXT = """
import torch
from torch import nn
from torch.nn import functional as F

rows, steps, width = 3, 24, 32


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.qkv, self.conv = nn.Linear(width, 3 * width), nn.Conv1d(width, 5, 3, padding=1)
        self.table, self.places = nn.Parameter(torch.randn(512, width)), nn.Embedding(512, width)
        self.eval()

    def forward(self, x):
        {}


def get_inputs():
    return [torch.randn(rows, steps, width)]
"""
# Name -> the free dimension, the sizes that kernels take (else, the original runs), and forward.
ANY, TWO = range(1, 100), range(2, 100)
MODELS: dict[str, tuple[int, range, str]] = {
    "map": (1, ANY, "return torch.relu(x) * 2 + 1"),
    "norm": (1, ANY, "return F.gelu(self.norm(x))"),
    "perceptron": (1, ANY, "return x + self.down(F.gelu(self.up(self.norm(x))))"),
    "softmax over it": (1, ANY, "return torch.softmax(x, 1)"),
    "mean over it": (1, ANY, "return self.linear((x * 2).mean(1))"),
    "sum along it": (1, ANY, "return torch.cumsum(x, 1) * 2"),
    "rows of all": (1, ANY, "return self.norm(x.reshape(-1, width)).relu()"),
    "turned": (1, TWO, "return torch.relu(x.transpose(1, 2) + 1).contiguous()"),
    "positions, read": (1, TWO, "return self.norm(x + self.table[: x.shape[1]])"),
    "positions, counted": (1, ANY, "return self.norm(x + self.places(torch.arange(x.shape[1])))"),
    "joined": (1, ANY, "return torch.cat([x, x * 2], 1).relu()"),
    "the last": (1, ANY, "return self.linear(x[:, -1]).relu()"),
    "convolution along it": (1, ANY, "return self.conv(x.transpose(1, 2)).relu()"),
    "rows of its length": (2, ANY, "return torch.softmax(x * 2, -1)"),
    "attention": (
        1,
        ANY,
        "q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 2, 16).permute(2, 0, 3, 1, 4)"
        ".unbind(0)\n"
        "        made = F.scaled_dot_product_attention(q, k, v, is_causal=True)\n"
        "        return x + self.linear(made.transpose(1, 2).reshape(x.shape))",
    ),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    texts: dict[str, tuple[str, Wanted]] = {
        name: (TEXT.format(body), {"x": (dim,)}) for name, (dim, _, body) in MODELS.items()
    }
    return built_free(texts, tmp_path_factory.mktemp("lengths"))


@pytest.mark.parametrize("name", MODELS)
def test_other_lengths(name: str, built: Built) -> None:
    dim, taken, _ = MODELS[name]
    for size in (24, 37, 2, 1):
        shape = [3, 24, 32]
        shape[dim] = size
        check(built[name], [torch.randn(shape)], size in taken)


def test_the_text_calls_it_length(built: Built) -> None:
    text = built["norm"][0].text
    assert "length = x.numel() // 96 if isinstance(x, torch.Tensor) else 0" in text
    assert '(length or _fusewright_no("the length is 0"))' in text
    assert "long length, long threads" in text
    assert "[3, length, 32]" in text
    assert "x:1 is free, as `length` (1 or more); other sizes are fixed" in text
    assert "long batch" not in text
    assert "x:1 is free, as `length` (2 to 512)" in built["positions, read"][0].text
