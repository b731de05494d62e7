"""Several sizes stay free at once: eager's results at other sizes of both, from kernels."""

from __future__ import annotations

import pytest
import torch

from fusewright.frontend.asked_size import Wanted
from tests.support.free_subjects import Built, built_free, check

TEXT = """
import torch
from torch import nn
from torch.nn import functional as F

rows, steps, width = 3, 8, 32


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.qkv, self.channels = nn.Linear(width, 3 * width), nn.BatchNorm1d(width)
        self.table, self.places = nn.Parameter(torch.randn(64, width)), nn.Embedding(64, width)
        self.eval()

    def heads(self, x):
        parts = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 2, 16).permute(2, 0, 3, 1, 4)
        return parts.unbind(0)

    def together(self, x, made):
        return x + self.linear(made.transpose(1, 2).reshape(x.shape))

    def forward(self, x{more}):
        {body}


def get_inputs():
    return [torch.randn(rows, steps, width){inputs}]
"""
MASK = (", mask", ", torch.rand(rows, 1, steps, steps) > 0.2")
# Name -> the smallest batch, and the lengths, that kernels take (else, the original runs), and
# forward.
ANY, TWO = range(1, 100), range(2, 100)
MODELS: dict[str, tuple[int, range, str]] = {
    "map": (1, ANY, "return torch.relu(x) * 2 + 1"),
    "norm": (1, ANY, "return F.gelu(self.norm(x))"),
    "perceptron": (1, ANY, "return x + self.down(F.gelu(self.up(self.norm(x))))"),
    "softmax over the length": (1, ANY, "return torch.softmax(x, 1)"),
    "softmax over all": (1, ANY, "return torch.softmax(x.flatten(1), 1)"),
    "mean over the length": (1, ANY, "return self.linear((x * 2).mean(1))"),
    "mean over the batch": (1, ANY, "return x - x.mean(0)"),
    "mean over both": (1, ANY, "return x - x.mean((0, 1))"),
    "sum along the length": (1, ANY, "return torch.cumsum(x, 1) * 2"),
    "rows of all": (1, ANY, "return self.norm(x.reshape(-1, width)).relu()"),
    "turned": (1, TWO, "return torch.relu(x.transpose(1, 2) + 1).contiguous()"),
    "length first": (2, TWO, "return self.norm(x * 2).transpose(0, 1).contiguous()"),
    "channels": (1, TWO, "return self.channels(x.transpose(1, 2)).transpose(1, 2) + x"),
    "positions, read": (1, range(2, 65), "return self.norm(x + self.table[: x.shape[1]])"),
    "positions, counted": (
        1,
        range(1, 65),
        "return self.norm(x + self.places(torch.arange(x.shape[1])))",
    ),
    "broadcast over both": (2, TWO, "return x[:, :1] * x[:1] + x[:1, :1]"),
    "joined": (1, ANY, "return torch.cat([x, x * 2], 2).relu()"),
    "the last": (1, ANY, "return self.linear(x[:, -1]).relu()"),
    "numbers of both": (1, ANY, "return x * x.shape[0] + x.shape[1], x.shape[0] * x.shape[1]"),
    "all pairs": (1, ANY, "return (x.sum(2)[:, :, None] - x.sum(2)[:, None]).abs().sqrt()"),
    "encoder": (
        1,
        ANY,
        "x = self.together(x, F.scaled_dot_product_attention(*self.heads(x)))\n"
        "        return x + self.down(F.gelu(self.up(self.norm(x))))",
    ),
    "causal": (
        1,
        ANY,
        "q, k, v = self.heads(x)\n"
        "        made = F.scaled_dot_product_attention(q, k, v, is_causal=True)\n"
        "        return self.together(x, made)",
    ),
    "scores written out": (
        1,
        ANY,
        "q, k, v = self.heads(x)\n"
        "        scores = torch.softmax(q @ k.transpose(-1, -2) / 4, -1)\n"
        "        return self.together(x, scores @ v)",
    ),
}
MASKED = {
    "masked attention": "q, k, v = self.heads(x)\n"
    "        made = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)\n"
    "        return self.together(x, made)",
    "masked scores": "q, k, v = self.heads(x)\n"
    "        scores = (q @ k.transpose(-1, -2) / 4).masked_fill(~mask, -1e4)\n"
    "        return self.together(x, torch.softmax(scores, -1) @ v)",
}
PAIRS = ((3, 8), (1, 1), (1, 5), (5, 1), (2, 2), (7, 13), (4, 64), (11, 3))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    def text(body: str, more: str = "", inputs: str = "") -> str:
        return TEXT.format(body=body, more=more, inputs=inputs)

    texts: dict[str, tuple[str, Wanted]] = {
        name: (text(body), {"x": (0, 1)}) for name, (_, _, body) in MODELS.items()
    }
    wanted = {"x": (0, 1), "mask": (0, 2, 3)}
    texts |= {name: (text(body, *MASK), wanted) for name, body in MASKED.items()}
    return built_free(texts, tmp_path_factory.mktemp("sizes"))


@pytest.mark.parametrize("name", MODELS)
def test_other_sizes(name: str, built: Built) -> None:
    least, lengths, _ = MODELS[name]
    for rows, length in PAIRS:
        taken = rows >= least and length in lengths
        check(built[name], [torch.randn(rows, length, 32)], taken)


@pytest.mark.parametrize("name", MASKED)
def test_a_mask_of_the_same_sizes(name: str, built: Built) -> None:
    for rows, length in PAIRS:
        mask = torch.rand(rows, 1, length, length) > 0.2
        check(built[name], [torch.randn(rows, length, 32), mask], True)
    other = torch.rand(3, 1, 9, 9) > 0.2
    with pytest.raises(RuntimeError, match="size"):
        built[name][1].ModelNew()(torch.randn(3, 8, 32), other)


def test_the_text_takes_both(built: Built) -> None:
    text = built["norm"][0].text
    assert "batch = x.size(0) if isinstance(x, torch.Tensor) and x.dim() > 0 else 0" in text
    assert "length = x.size(1) if isinstance(x, torch.Tensor) and x.dim() > 1 else 0" in text
    assert '(batch or _fusewright_no("the batch size is 0"))' in text
    assert '(length or _fusewright_no("the length is 0"))' in text
    assert "long batch, long length, long threads" in text
    assert "x:0 is free, as `batch` (1 or more)" in text
    assert "x:1 is free, as `length` (1 or more); other sizes are fixed" in text
    text = built["positions, read"][0].text
    assert "x:1 is free, as `length` (2 to 64); other sizes are fixed" in text
    text = built["masked scores"][0].text
    assert "x:1, mask:2, mask:3 is free, as `length` (1 or more)" in text
