"""Random problems of one form: a product or convolution, maps, and a reduction of what it gives.

`behind(seed)` is the text. Sums of sums are where a compiler can be less exact than what it
replaces: how a reduction is cut, and in what type its parts are added, are its own decision there.
`large` ones are as large as a GPU's own kernels want them.
"""

from __future__ import annotations

import random

MAPS = (
    *("torch.relu({x})", "torch.tanh({x})", "{x} * 0.5 + 0.25", "F.gelu({x})", "{x}.sigmoid()"),
    *("F.silu({x})", "{x}", "{x}", "F.softplus({x})", "F.hardswish({x})", "{x}.clamp(-1, 1)"),
)
# Of {x}, of shape (rows, columns) or (batch, rows, columns).
ROW_REDUCTIONS = (
    *("{x}.sum(-1)", "{x}.mean(-1)", "torch.logsumexp({x}, -1)", "F.softmax({x}, -1)"),
    *("F.layer_norm({x}, ({x}.shape[-1],))", "F.log_softmax({x}, -1)", "{x}.var(-1)"),
    *("torch.linalg.vector_norm({x}, dim=-1)", "F.normalize({x}, dim=-1)", "{x}.std(-1)"),
    *("{x}.sum(0)", "{x}.mean(0)", "{x} - {x}.mean(-1, keepdim=True)", "{x}.cumsum(-1)"),
    *("{x}.exp().sum(-1)", "F.rms_norm({x}, ({x}.shape[-1],))", "{x}.sum()", "{x}.square().mean()"),
    *("torch.logsumexp({x}, 0)", "F.softmax({x}, 0)", "F.gelu({x}).sum(-1, keepdim=True)"),
)
# Of {x}, of shape (images, channels, pixels...).
IMAGE_REDUCTIONS = (
    *("{x}.flatten(2).mean(-1)", "{x}.flatten(2).sum(-1)", "{x}.sum(1)", "{x}.mean(1)"),
    *("torch.logsumexp({x}, 1, keepdim=True)", "F.softmax({x}, 1)", "F.log_softmax({x}, 1)"),
    *("F.group_norm({x}, 2)", "F.instance_norm({x})", "F.layer_norm({x}, {x}.shape[1:])"),
    *("{x}.flatten(2).logsumexp(-1)", "{x}.flatten(1).mean(-1)", "{x}.sum()", "{x}.var(1)"),
    *("F.batch_norm({x}, None, None, training=True)", "torch.linalg.vector_norm({x}, dim=1)"),
    *("{x}", "{x}", "{x}.flatten(2).softmax(-1)", "{x}.flatten(1).norm(dim=1)"),
)
POOLS = {
    1: ("F.avg_pool1d({x}, 2)", "F.adaptive_avg_pool1d({x}, 1)", "F.max_pool1d({x}, 2)"),
    2: ("F.avg_pool2d({x}, 2)", "F.adaptive_avg_pool2d({x}, 1)", "F.max_pool2d({x}, 2)"),
    3: ("F.avg_pool3d({x}, 2)", "F.adaptive_avg_pool3d({x}, 1)", "F.max_pool3d({x}, 2)"),
}
TEXT = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = {layer}

    def forward(self, x):
        x = {called}
{lines}
        return x


def get_inputs():
    return [torch.randn({sizes}){scale}]


def get_init_inputs():
    return []
"""


def behind(seed: int, *, large: bool = False) -> str:
    """The text of one problem."""
    rng = random.Random(f"behind {seed}")
    convolution = rng.random() < 0.6
    layer, called, sizes, rank = (_convolution if convolution else _product)(rng, large)
    lines = [rng.choice(MAPS).format(x="x") for _ in range(rng.randint(0, 2))]
    pools = POOLS.get(rank, ())
    table = IMAGE_REDUCTIONS + pools * 2 if convolution else ROW_REDUCTIONS
    lines += [rng.choice(table).format(x="x")]
    lines += [rng.choice(MAPS).format(x="x") for _ in range(rng.choice((0, 0, 1)))]
    return TEXT.format(
        layer=layer, called=called, sizes=", ".join(map(str, sizes)),
        scale=rng.choice(("", " * 3", " + 1")),
        lines="\n".join(f"        x = {line}" for line in lines if line != "x"),
    )  # fmt: skip


def _product(rng: random.Random, large: bool) -> tuple[str, str, tuple[int, ...], int]:
    most = 2048 if large else 160
    rows, deep, wide = (round(most ** rng.uniform(0.45, 1)) for _ in range(3))
    bias = rng.random() < 0.7
    sizes = (rows, deep) if rng.random() < 0.7 else (rng.choice((2, 4)), rows, deep)
    called = "x @ self.layer.weight.mT" if rng.random() < 0.25 else "self.layer(x)"
    return f"nn.Linear({deep}, {wide}, bias={bias})", called, sizes, 0


SIDES = {
    True: {1: (512, 1000, 4096), 2: (14, 28, 32, 56, 64), 3: (8, 12, 16)},
    False: {1: (17, 40, 100), 2: (7, 12, 20), 3: (5, 7)},
}


def _convolution(rng: random.Random, large: bool) -> tuple[str, str, tuple[int, ...], int]:
    rank, kernel = rng.choice((1, 2, 2, 2, 3)), rng.choice((1, 2, 3, 3, 3, 4, 5))
    channels = rng.choice((8, 16, 32, 48, 64, 128) if large else (2, 3, 8, 16))
    results = rng.choice((16, 24, 32, 64, 128, 160) if large else (2, 4, 8, 20))
    images = rng.choice((4, 8, 16) if large else (1, 2, 3))
    side, transposed = rng.choice(SIDES[large][rank]), rng.random() < 0.35
    stride, pad = rng.choice((1, 1, 2)), rng.choice((0, kernel // 2))
    groups = rng.choice((1, 1, 1, 2)) if channels % 2 == 0 and results % 2 == 0 else 1
    name = f"Conv{'Transpose' * transposed}{rank}d"
    more = f"stride={stride}, padding={pad}, groups={groups}, bias={rng.random() < 0.7}"
    layer = f"nn.{name}({channels}, {results}, {kernel}, {more})"
    return layer, "self.layer(x)", (images, channels, *(side,) * rank), rank
