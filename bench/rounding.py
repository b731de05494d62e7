"""Random convolutions -> how often PyTorch's own are TF32 on this GPU, by groups and channels.

python bench/rounding.py [--seconds 45] [--seed 5] [--transposed] [--list]

Needs an NVIDIA GPU. A relative error against float64 above 1e-5 means rounded operands.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from dataclasses import dataclass

import torch

CHANNELS = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 192, 256)
RESULTS = (8, 16, 24, 32, 40, 48, 64, 96, 100, 128, 160, 256, 512)
SIZES = {
    1: (64, 500, 4096, 20000),
    2: (7, 14, 20, 28, 32, 56, 64, 100, 112, 128, 224, 256),
    3: (8, 12, 16, 24, 32, 48),
}
LEAST_FLOPS, MOST_FLOPS, MOST_ELEMENTS = 1 << 28, 2e11, 3e8
ROUNDED = 1e-5


@dataclass(frozen=True)
class Sizes:
    """One convolution; all dimensions alike."""

    rank: int
    channels: int
    results: int
    kernel: int
    stride: int
    groups: int
    batch: int
    side: int
    pad: int
    transposed: bool

    @property
    def out(self) -> int:
        if self.transposed:
            return (self.side - 1) * self.stride - 2 * self.pad + self.kernel
        return (self.side + 2 * self.pad - self.kernel) // self.stride + 1

    @property
    def flops(self) -> int:
        depth = self.channels // self.groups * self.kernel**self.rank
        pixels = self.side if self.transposed else self.out
        return int(2 * self.batch * self.results * pixels**self.rank * depth)

    @property
    def fits(self) -> bool:
        image = self.batch * self.channels * self.side**self.rank
        result = self.batch * self.results * max(self.out, 0) ** self.rank
        even = self.channels % self.groups == 0 and self.results % self.groups == 0
        return (
            even
            and self.out > 0
            and LEAST_FLOPS <= self.flops <= MOST_FLOPS
            and max(image, result) <= MOST_ELEMENTS
        )


def drawn(random_: random.Random, transposed: bool) -> Sizes:
    rank, kernel = random_.choice((1, 2, 2, 2, 3)), random_.choice((1, 2, 3, 3, 3, 4, 5, 7))
    return Sizes(
        rank,
        random_.choice(CHANNELS),
        random_.choice(RESULTS),
        kernel,
        random_.choice((1, 1, 1, 2, 3)),
        random_.choice((1, 1, 1, 1, 2, 4)),
        random_.choice((1, 2, 4, 8, 16, 32, 64, 128)),
        random_.choice(SIZES[rank]),
        random_.choice((0, kernel // 2)),
        transposed,
    )


def is_rounded(s: Sizes) -> bool:
    """Whether eager's first image is further from float64 than full float32 would be."""
    name = f"conv{'_transpose' * s.transposed}{s.rank}d"
    convolve = getattr(torch.nn.functional, name)
    x = torch.randn(s.batch, s.channels, *(s.side,) * s.rank, device="cuda")
    ends = (s.channels, s.results) if s.transposed else (s.results, s.channels)
    weight = torch.randn(ends[0], ends[1] // s.groups, *(s.kernel,) * s.rank, device="cuda")
    settings = (None, s.stride, s.pad, *((0, s.groups) if s.transposed else (1, s.groups)))
    found = convolve(x, weight, *settings)[:1].double()
    exact = convolve(x[:1].double(), weight.double(), *settings)
    return bool((found - exact).norm() > ROUNDED * exact.norm())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=45)
    options.add_argument("--seed", type=int, default=5)
    options.add_argument("--transposed", action="store_true", help="transposed convolutions")
    options.add_argument("--list", action="store_true", help="print each one, too")
    given = options.parse_args()
    source, counts = random.Random(given.seed), Counter[tuple[str, str, bool]]()
    torch.manual_seed(given.seed)
    end = time.monotonic() + given.seconds
    while time.monotonic() < end:
        s = drawn(source, given.transposed)
        if s.fits:
            groups = "one group" if s.groups == 1 else "groups"
            each = s.channels // s.groups
            channels = "32 channels or more" if each >= 32 else "fewer than 32 channels"
            rounded = is_rounded(s)
            counts[groups, channels, rounded] += 1
            if given.list:
                print("rounded" if rounded else "full", s)
    print(f"{torch.cuda.get_device_name()}, cuDNN {torch.backends.cudnn.version()}")  # type: ignore[no-untyped-call]
    for groups, channels in sorted({key[:2] for key in counts}):
        yes, no = counts[groups, channels, True], counts[groups, channels, False]
        print(f"{groups}, {channels}: {yes} rounded, {no} in full float32")


if __name__ == "__main__":
    main()
