"""Whole networks as they are run, at the size of a GPU: what `compare.py` measures with --networks.

Each entry is a function `size -> (module, make_inputs)`; on the CPU, batches are small.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Inputs = Callable[[], list[Tensor]]


def _unit(
    channels: int, out: int, side: int, stride: int = 1, groups: int = 1, act: bool = True
) -> nn.Sequential:
    """A convolution, batch norm and an activation."""
    layer = nn.Conv2d(channels, out, side, stride, side // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(out), *[nn.ReLU(inplace=True)] * act)


class Sum(nn.Module):
    """branch(x) + shortcut(x), and an activation."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module, act: nn.Module) -> None:
        super().__init__()
        self.branch, self.shortcut, self.act = branch, shortcut, act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.branch(x) + self.shortcut(x))  # type: ignore[no-any-return]


def _head(channels: int, classes: int = 1000) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]


def _stem(out: int) -> list[nn.Module]:
    return [*_unit(3, out, 7, 2), nn.MaxPool2d(3, 2, 1)]


def plain_residual() -> nn.Module:
    """Two 3x3 convolutions a block, four stages of two blocks."""
    layers, channels = _stem(64), 64
    for out, stride in (
        (64, 1),
        (64, 1),
        (128, 2),
        (128, 1),
        (256, 2),
        (256, 1),
        (512, 2),
        (512, 1),
    ):
        branch = nn.Sequential(_unit(channels, out, 3, stride), _unit(out, out, 3, act=False))
        same = stride == 1 and channels == out
        shortcut = nn.Identity() if same else _unit(channels, out, 1, stride, act=False)
        layers.append(Sum(branch, shortcut, nn.ReLU()))
        channels = out
    return nn.Sequential(*layers, *_head(512))


def bottlenecks() -> nn.Module:
    """1x1, 3x3, 1x1 with four times the channels, stages of 2, 2, 3 and 2."""
    layers, channels = _stem(64), 64
    for stage, (width, blocks) in enumerate(((64, 2), (128, 2), (256, 3), (512, 2))):
        for block in range(blocks):
            stride, out = 2 if stage and not block else 1, 4 * width
            branch = [_unit(channels, width, 1), _unit(width, width, 3, stride)]
            same = channels == out
            shortcut = nn.Identity() if same else _unit(channels, out, 1, stride, act=False)
            whole = nn.Sequential(*branch, _unit(width, out, 1, act=False))
            layers.append(Sum(whole, shortcut, nn.ReLU()))
            channels = out
    return nn.Sequential(*layers, *_head(2048))


def straight() -> nn.Module:
    """3x3 convolutions with bias, pools of two, three linear layers."""
    layers, channels = list[nn.Module](), 3
    for out, times in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(times):
            layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU(inplace=True)]
            channels = out
        layers.append(nn.MaxPool2d(2))
    linear = [nn.Flatten(), nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Dropout(0.5)]
    return nn.Sequential(*layers, *linear, nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000))


class Dense(nn.Module):
    """Every layer reads all before it."""

    def __init__(self, channels: int, growth: int, layers: int) -> None:
        super().__init__()
        widths = [channels + i * growth for i in range(layers)]
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(w), nn.ReLU(), nn.Conv2d(w, growth, 3, padding=1, bias=False)
            )
            for w in widths
        )

    def forward(self, x: Tensor) -> Tensor:
        found = [x]
        for layer in self.layers:
            found.append(layer(torch.cat(found, 1)))
        return torch.cat(found, 1)


def dense() -> nn.Module:
    layers: list[nn.Module] = _stem(64)
    channels = 64
    for times in (4, 6, 6):
        layers.append(Dense(channels, 32, times))
        channels += 32 * times
        thin = [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1)]
        layers += [*thin, nn.AvgPool2d(2)]
        channels //= 2
    return nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU(), *_head(channels))


class Excite(nn.Module):
    """Channels weighed by their means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        few = channels // 4
        self.down, self.up = nn.Conv2d(channels, few, 1), nn.Conv2d(few, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.up(F.silu(self.down(x.mean((2, 3), keepdim=True))))
        return x * torch.sigmoid(weights)


def _inverted(channels: int, out: int, side: int, stride: int) -> nn.Module:
    wide = channels * 6
    layers = nn.Sequential(
        _unit(channels, wide, 1), _unit(wide, wide, side, stride, wide), Excite(wide),
        _unit(wide, out, 1, act=False),
    )  # fmt: skip
    if stride == 1 and channels == out:
        return Sum(layers, nn.Identity(), nn.Identity())
    return layers


def inverted() -> nn.Module:
    """Wide depthwise convolutions between narrow ones, channels weighed."""
    layers, channels = [_unit(3, 32, 3, 2)], 32
    for out, side, stride in (
        (24, 3, 2),
        (24, 3, 1),
        (40, 5, 2),
        (40, 5, 1),
        (80, 3, 2),
        (80, 3, 1),
    ):
        layers.append(_inverted(channels, out, side, stride))  # type: ignore[arg-type]
        channels = out
    return nn.Sequential(*layers, _unit(80, 320, 1), *_head(320))


class Down(nn.Module):
    """An image halved, worked on, doubled, and joined with itself."""

    def __init__(self, channels: int, inner: nn.Module | None) -> None:
        super().__init__()
        self.first = nn.Sequential(_unit(channels, channels, 3), _unit(channels, channels, 3))
        self.inner = inner
        if inner is not None:
            self.widen = _unit(channels, 2 * channels, 1)
            self.up = nn.ConvTranspose2d(2 * channels, channels, 2, 2)
            self.last = nn.Sequential(
                _unit(2 * channels, channels, 3), _unit(channels, channels, 3)
            )

    def forward(self, x: Tensor) -> Tensor:
        found = self.first(x)
        if self.inner is None:
            return found  # type: ignore[no-any-return]
        below = self.inner(self.widen(F.max_pool2d(found, 2)))
        return self.last(torch.cat([self.up(below), found], 1))  # type: ignore[no-any-return]


def halving() -> nn.Module:
    inner = Down(256, None)
    for channels in (128, 64, 32):
        inner = Down(channels, inner)
    return nn.Sequential(_unit(3, 32, 3), inner, nn.Conv2d(32, 1, 1), nn.Sigmoid())


class Attend(nn.Module):
    """Attention, written out, of heads of 64."""

    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = width // 64, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (
            y.view(b, t, self.heads, 64).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(64)
        if self.causal:
            hidden = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(hidden, float("-inf"))
        y = scores.softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, c))  # type: ignore[no-any-return]


def _block(width: int, causal: bool) -> nn.Module:
    attend = nn.Sequential(nn.LayerNorm(width), Attend(width, causal))
    layers = [nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU()]
    feed = nn.Sequential(*layers, nn.Linear(4 * width, width))
    same = nn.Identity
    return nn.Sequential(Sum(attend, same(), same()), Sum(feed, same(), same()))


class Patches(nn.Module):
    """Squares of an image as rows, with positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, 16, 16)
        self.positions = nn.Parameter(torch.randn(1, 197, width) * 0.02)
        self.first = nn.Parameter(torch.randn(1, 1, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.cut(x).flatten(2).transpose(1, 2)
        return torch.cat([self.first.expand(len(x), -1, -1), rows], 1) + self.positions


class First(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


def patches() -> nn.Module:
    blocks = [_block(384, False) for _ in range(4)]
    return nn.Sequential(Patches(384), *blocks, nn.LayerNorm(384), First(), nn.Linear(384, 1000))


def decoder() -> nn.Module:
    return nn.Sequential(*[_block(768, True) for _ in range(2)], nn.LayerNorm(768))


class Mix(nn.Module):
    """Linear layers over tokens and over channels."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.tokens = nn.Sequential(
            nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens)
        )
        self.rows = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.rows(self.norms[1](x))  # type: ignore[no-any-return]


def mixer() -> nn.Module:
    return nn.Sequential(*[Mix(196, 512) for _ in range(4)], nn.LayerNorm(512))


class Wide(nn.Module):
    """A depthwise 7x7, a norm over channels, two linear layers, a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.far = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.far(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)  # type: ignore[no-any-return]


def wide() -> nn.Module:
    layers = [
        nn.Conv2d(3, 96, 4, 4),
        Wide(96),
        Wide(96),
        nn.Conv2d(96, 192, 2, 2),
        Wide(192),
        Wide(192),
    ]
    return nn.Sequential(*layers, *_head(192))


class Recurrent(nn.Module):
    """Two layers of LSTM and the class of the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.out = nn.LSTM(128, 256, 2, batch_first=True), nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.cells(x)[0][:, -1])  # type: ignore[no-any-return]


def layers() -> nn.Module:
    """A perceptron of five layers."""
    widths = (1024, 4096, 4096, 4096, 1024)
    made = list[nn.Module]()
    for a, b in itertools.pairwise(widths):
        made += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*made, nn.Linear(1024, 1000))


class Branches(nn.Module):
    """Four branches of an image, joined."""

    def __init__(self, channels: int, one: int, three: int, five: int, pool: int) -> None:
        super().__init__()
        relu = nn.ReLU
        conv = nn.Conv2d
        self.one = nn.Sequential(conv(channels, one, 1), relu())
        self.three = nn.Sequential(
            conv(channels, three // 2, 1), relu(), conv(three // 2, three, 3, padding=1), relu()
        )
        self.five = nn.Sequential(
            conv(channels, five // 2, 1), relu(), conv(five // 2, five, 5, padding=2), relu()
        )
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(channels, pool, 1), relu())

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], 1)


def branches() -> nn.Module:
    made = [
        Branches(192, 64, 128, 32, 32),
        Branches(256, 128, 192, 96, 64),
        nn.MaxPool2d(3, 2, 1),
        Branches(480, 192, 208, 48, 64),
    ]
    return nn.Sequential(*_stem(64), _unit(64, 192, 3), nn.MaxPool2d(3, 2, 1), *made, *_head(512))


def _images(count: int, side: int) -> Callable[[str], Inputs]:
    return lambda size: lambda: [torch.randn(count if size == "gpu" else 2, 3, side, side)]


def _rows(count: int, *shape: int) -> Callable[[str], Inputs]:
    return lambda size: lambda: [torch.randn(count if size == "gpu" else 2, *shape)]


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[str], Inputs]]] = {
    "plain_residual": (plain_residual, _images(32, 224)),
    "bottlenecks": (bottlenecks, _images(32, 224)),
    "straight": (straight, _images(16, 224)),
    "dense": (dense, _images(32, 224)),
    "inverted": (inverted, _images(32, 224)),
    "halving": (halving, _images(16, 256)),
    "branches": (branches, _images(32, 224)),
    "wide": (wide, _images(32, 224)),
    "patches": (patches, _images(64, 224)),
    "decoder": (decoder, _rows(8, 1024, 768)),
    "mixer": (mixer, _rows(64, 196, 512)),
    "layers": (layers, _rows(512, 1024)),
    "recurrent": (Recurrent, _rows(64, 128, 128)),
}


def networks(size: str) -> dict[str, Callable[[], tuple[nn.Module, Inputs]]]:
    """Every network by name, as it is made, and `NAME_eval` where that is not the same."""
    found: dict[str, Callable[[], tuple[nn.Module, Inputs]]] = {}
    for name, (make, inputs) in NETWORKS.items():
        found[name] = partial(_made, make, inputs, size)
        if any(isinstance(m, nn.BatchNorm2d | nn.Dropout) for m in make().modules()):
            found[f"{name}_eval"] = partial(_made, make, inputs, size, trained=True)
    return found


def _made(
    make: Callable[[], nn.Module],
    inputs: Callable[[str], Inputs],
    size: str,
    *,
    trained: bool = False,
) -> tuple[nn.Module, Inputs]:
    return make().eval() if trained else make(), inputs(size)
