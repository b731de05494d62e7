"""A problem's bytes and products -> what this machine cannot do faster, in seconds.

Only the bytes refute. Fewer operations than eager's can be honest algebra (a mean of products is a
product of means), so a time below that floor is shown to the reader, and decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

# Of a copy's time: several cores and their caches together copy faster than one.
COPY_SHARE = {"cpu": 0.25, "cuda": 0.9}
PRODUCT_SHARE = 0.5  # of the time for the products: a square one is not every machine's best
LAUNCH_S = {"cpu": 2e-6, "cuda": 20e-6}
SIDE = {"cpu": 1024, "cuda": 4096}
# The fastest class counts: several low-precision products can honestly make up one precise one.
CLASSES = {
    "cpu": (torch.float32, torch.bfloat16),
    "cuda": (torch.float32, torch.float16, torch.bfloat16),
}
REPEATS = 20


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operations of matrix products, convolutions and attention. PyTorch's own imports sympy."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total: int = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        known = flop_registry.get(func.overloadpacket)
        if known is not None:
            self.total += int(known(*args, **(kwargs or {}), out_val=out))
        return out


def operations(run: Callable[[], object]) -> int:
    """How many operations the products of one run take."""
    counter = _Counter()
    with counter, torch.no_grad():
        run()
    return counter.total


def copying_s(count: int, device: str) -> float:
    """Reading and writing so many bytes in all takes no less."""
    source = torch.zeros(max(count // 2, 1), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    fastest = _fastest(lambda: target.copy_(source), device)
    return COPY_SHARE[device] * max(0.0, fastest - LAUNCH_S[device])


def products_s(count: int, device: str) -> float:
    """So many operations of matrix products hardly take less."""
    if not count:
        return 0.0
    side, rates = SIDE[device], []
    for dtype in CLASSES[device]:
        left, right = (torch.ones(side, side, dtype=dtype, device=device) for _ in range(2))
        rates.append(2 * side**3 / _fastest(partial(torch.matmul, left, right), device))
    return PRODUCT_SHARE * count / max(rates)


def _fastest(run: Callable[[], object], device: str) -> float:
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return min(times)


def floors(count: int, run: Callable[[], object], device: str) -> Mapping[str, float]:
    """For a run of eager whose arguments and results have so many bytes."""
    flops = operations(run)
    return {
        "copying_s": copying_s(count, device),
        "products_s": products_s(flops, device),
        "flops": float(flops),
    }
