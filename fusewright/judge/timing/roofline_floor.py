"""A problem's bytes and products -> what this machine cannot do faster, in seconds.

Fewer operations than eager's can be honest algebra (a mean of products is a product of means), so
most products decide nothing. One refutes: a product of arguments or parameters of which every
element reaches an output. No algebra makes that one smaller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from fusewright.judge.evidence.operator_observer import Observer
from fusewright.judge.evidence.pytree import tensors

# Of a copy's time: what several cores do lies in caches that are nearer.
COPY_SHARE = {"cpu": 0.25, "cuda": 0.9}
COPIED_BYTES = 256 << 20  # more than that in proportion: a longer copy may be interrupted
# Of the time for the products: a square one is not every machine's best, and Strassen's way of
# multiplying, or a symmetric result, saves up to a half.
PRODUCT_SHARE = 0.4
LAUNCH_S = {"cpu": 2e-6, "cuda": 10e-6}
SIDE = {"cpu": 1024, "cuda": 4096}
# The fastest class counts: several low-precision products can honestly make up one precise one.
CLASSES = {
    "cpu": (torch.float32, torch.bfloat16),
    "cuda": (torch.float32, torch.float16, torch.bfloat16),
}
REPEATS, FEW = 20, 3
FAR = 1.5  # times as long as the fastest class: after a few repeats such a one is out of the race
ZEROS = 0.1  # of an operand: with more of them, a product can honestly leave work out
_aten = torch.ops.aten
_PRODUCTS = frozenset((_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm))
# What hands on every element of a tensor, each on its own.
_KEEPING = frozenset(
    getattr(_aten, name)
    for name in (
        "add", "sub", "rsub", "relu", "gelu", "sigmoid", "tanh", "silu", "mish", "softplus", "elu",
        "leaky_relu", "hardtanh", "hardswish", "clamp", "view", "_unsafe_view", "t", "transpose",
        "permute", "clone", "_to_copy", "add_", "relu_",
    )
)  # fmt: skip


class _Counter(Observer):
    """Operations of matrix products, convolutions and attention. PyTorch's own imports sympy.

    given: arguments and parameters.
    """

    def __init__(self, given: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self.total: int = 0
        self._given = {_place(t) for t in given if _dense(t)}
        self._whole: dict[int, int] = {}  # memory -> operations of the product that fills it

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        known, count = flop_registry.get(func.overloadpacket), 0
        if known is not None:
            count = int(known(*args, **(kwargs or {}), out_val=out))
            self.total += count
        whole, places = 0, [_place(t) for t in tensors(list(args))]
        if func.overloadpacket in _PRODUCTS:
            operands = list(tensors(list(args)))[-2:]
            direct = all(_place(t) in self._given and 0 not in t.stride() for t in operands)
            whole = count if direct else 0
        elif func.overloadpacket in _KEEPING:
            whole = max((self._whole.get(place, 0) for place in places), default=0)
        self._whole |= {_place(t): whole for t in tensors([out])}
        return out

    def needed(self, outputs: Sequence[Tensor]) -> int:
        """Operations of the largest product that nobody can avoid."""
        return max((self._whole.get(_place(t), 0) for t in outputs), default=0)


def _place(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


def _dense(t: Tensor) -> bool:
    return int(t.count_nonzero()) > (1 - ZEROS) * t.numel()


def operations(
    run: Callable[[], Sequence[Tensor]], given: Sequence[Tensor] = ()
) -> tuple[int, int]:
    """How many operations the products of one run take, and how many nobody can do without."""
    counter = _Counter(given)
    with counter, torch.no_grad():
        outputs = run()
    return counter.total, counter.needed(outputs)


def copying_s(count: int, device: str) -> float:
    """Reading and writing so many bytes in all takes no less."""
    part = min(count, COPIED_BYTES)
    source = torch.zeros(max(part // 2, 1), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    if device == "cuda":
        fastest = _fastest(lambda: target.copy_(source), device)
    else:  # by one thread: on a busy machine several wait for each other, and tell too much
        fastest = _fastest(partial(numpy.copyto, target.numpy(), source.numpy()), device)
        fastest /= torch.get_num_threads()
    return COPY_SHARE[device] * max(0.0, fastest * count / max(part, 1) - LAUNCH_S[device])


def peak(device: str, count: int, eager_s: float, dtype: torch.dtype) -> float:
    """Operations of products in a second, in the fastest class that there is.

    eager_s: its fastest run, of `count` operations. A machine that did these at a time when nobody
    else used it can do the others as much faster as it can now.
    """
    side, runs = SIDE[device], {}
    for kind in CLASSES[device]:
        left, right = (torch.ones(side, side, dtype=kind, device=device) for _ in range(2))
        runs[kind] = partial(torch.matmul, left, right)
    took = {kind: _fastest(run, device, FEW) for kind, run in runs.items()}
    near = [kind for kind, seconds in took.items() if seconds < FAR * min(took.values())]
    took |= {kind: min(took[kind], _fastest(runs[kind], device, REPEATS - FEW)) for kind in near}
    rates = {kind: 2 * side**3 / seconds for kind, seconds in took.items()}
    best = max(rates.values())
    return max(best, best / rates.get(dtype, best) * count / eager_s)


def _fastest(run: Callable[[], object], device: str, repeats: int = REPEATS) -> float:
    """On a GPU from event to event, so that other processes, which take turns, do not count."""
    if device == "cuda":
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]  # type: ignore[no-untyped-call]
        for mark in marks:
            run()
            mark.record()
        torch.cuda.synchronize()
        return float(min(a.elapsed_time(b) for a, b in pairwise(marks))) * 1e-3
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)


def floors(
    count: int, run: Callable[[], Sequence[Tensor]], given: Sequence[Tensor], device: str,
    eager_s: float,
) -> Mapping[str, float]:  # fmt: skip
    """For a run of eager on what is given, whose arguments and results have so many bytes."""
    flops, needed = operations(run, given)
    floats = [t.dtype for t in given if t.is_floating_point()]
    rate = peak(device, flops, eager_s, (floats or [torch.float32])[0]) if flops else 1.0
    return {
        "copying_s": copying_s(count, device),
        "needed_s": PRODUCT_SHARE * needed / rate,
        "products_s": PRODUCT_SHARE * flops / rate,
        "flops": float(flops),
    }
