"""Small models of our own, each with honest and with bad implementations: the judge's yardstick.

Honest ones differ from eager only in summation order, blocking, fusion or extra precision. Bad ones
do what a faster but worse kernel does: lower precision inside, unstable algebra, another formula, a
corner left out. `tests/judge/evidence/test_contract.py` runs a fast part,
`tools/calibrate_judge.py` all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fusewright.judge.evidence import contract, hazard_cases, probes
from fusewright.judge.evidence.float64_twins import Doubles

State = Mapping[str, Tensor]
Model = Callable[[Sequence[Tensor], State], list[Tensor]]
Make = Callable[[int], tuple[list[Tensor], dict[str, Tensor]]]


@dataclass(frozen=True)
class Entry:
    name: str
    make: Make
    model: Model
    honest: Mapping[str, Model]
    bad: Mapping[str, Model]


# ---- arithmetic that candidates use --------------------------------------------------------------


def cut(t: Tensor, bits: int) -> Tensor:
    """Rounded to `bits` significant bits, in its own dtype."""
    mantissa, exponent = torch.frexp(t)
    return torch.ldexp((mantissa * 2.0**bits).round(), exponent - bits).to(t.dtype)


def tf32(t: Tensor) -> Tensor:
    return cut(t, 11)


def half(t: Tensor) -> Tensor:
    return t.half().to(t.dtype)


def brain(t: Tensor) -> Tensor:
    return t.bfloat16().to(t.dtype)


def sequential(t: Tensor, dim: int = -1) -> Tensor:
    """Sum in one running accumulator of the tensor's own precision (torch's cumsum is wider)."""
    if not t.shape[dim]:
        return t.sum(dim)
    with np.errstate(all="ignore"):
        return torch.from_numpy(np.cumsum(t.numpy(), axis=dim, dtype=t.numpy().dtype)).select(
            dim, -1
        )


def blocked(t: Tensor, block: int = 32) -> Tensor:
    """Sum over the last dimension, by sequential sums of blocks."""
    padded = F.pad(t, (0, -t.shape[-1] % block))
    return sequential(sequential(padded.unflatten(-1, (-1, block))))


def lanes(t: Tensor, count: int = 256) -> Tensor:
    """Sum over the last dimension as 256 threads would: strided partial sums, then a tree."""
    total = sequential(F.pad(t, (0, -t.shape[-1] % count)).unflatten(-1, (-1, count)), -2)
    while total.shape[-1] > 1:
        total = total[..., : total.shape[-1] // 2] + total[..., total.shape[-1] // 2 :]
    return total[..., 0]


def matmul_sequential(a: Tensor, b: Tensor) -> Tensor:
    total = torch.zeros((*a.shape[:-1], b.shape[-1]), dtype=a.dtype)
    for k in range(a.shape[-1]):
        total = total + a[..., :, k : k + 1] * b[..., k : k + 1, :]
    return total


def matmul_split(a: Tensor, b: Tensor, parts: int = 4) -> Tensor:
    pairs = zip(a.chunk(parts, -1), b.chunk(parts, -2), strict=True)
    return sum((x @ y for x, y in pairs), torch.zeros((), dtype=a.dtype))


def matmul_3xtf32(a: Tensor, b: Tensor) -> Tensor:
    if not bool(torch.isfinite(a).all() and torch.isfinite(b).all()):
        return a @ b  # inf has no low part
    big_a, big_b = tf32(a), tf32(b)
    return big_a @ tf32(b - big_b) + tf32(a - big_a) @ big_b + big_a @ big_b


def matmul_half_accumulator(a: Tensor, b: Tensor) -> Tensor:
    total = torch.zeros((*a.shape[:-1], b.shape[-1]), dtype=torch.float16)
    for k in range(a.shape[-1]):
        total = total + (a[..., :, k : k + 1].half() * b[..., k : k + 1, :].half())
    return total.to(a.dtype)


def rounding(model: Model, how: Callable[[Tensor], Tensor]) -> Model:
    """The model on rounded operands: what tensor cores of a lower class would do."""

    def run(inputs: Sequence[Tensor], state: State) -> list[Tensor]:
        low = [how(t) if t.is_floating_point() else t for t in inputs]
        return model(low, {name: how(t) for name, t in state.items()})

    return run


def result(model: Model, how: Callable[[Tensor], Tensor]) -> Model:
    """The model with a changed output."""
    return lambda inputs, state: [how(t) for t in model(inputs, state)]


def inside(model: Model, dtype: torch.dtype) -> Model:
    """The model computed in another dtype, rounded once at the end."""

    def run(inputs: Sequence[Tensor], state: State) -> list[Tensor]:
        wide = [t.to(dtype) if t.is_floating_point() else t for t in inputs]
        outputs = model(wide, {name: t.to(dtype) for name, t in state.items()})
        return [t.to(inputs[0].dtype) if t.is_floating_point() else t for t in outputs]

    return run


def touched(t: Tensor) -> Tensor:
    """One element in the middle is off by a thousandth of the largest."""
    t = t.clone(memory_format=torch.contiguous_format)
    if t.numel():
        t.view(-1)[t.numel() // 2] += 1e-3 * t.abs().max()
    return t


def stale_tail(t: Tensor) -> Tensor:
    """The last element of the last row was never written."""
    t = t.clone(memory_format=torch.contiguous_format)
    if t.numel():
        t.view(-1)[-1] = 0
    return t


def wrong_everywhere(model: Model) -> dict[str, Model]:
    return {"touched": result(model, touched), "stale tail": result(model, stale_tail)}


def low_precision(model: Model) -> dict[str, Model]:
    return {
        "tf32": rounding(model, tf32),
        "half": rounding(model, half),
        "bfloat16": rounding(model, brain),
        "rounded result": result(model, tf32),
    }


# ---- models --------------------------------------------------------------------------------------


def linear_with(matmul: Callable[[Tensor, Tensor], Tensor]) -> Model:
    return lambda i, s: [matmul(i[0], s["weight"].t()) + s["bias"]]


def linear(i: Sequence[Tensor], s: State) -> list[Tensor]:
    return [F.linear(i[0], s["weight"], s["bias"])]


def linear_relu(i: Sequence[Tensor], s: State) -> list[Tensor]:
    return [F.linear(i[0], s["weight"], s["bias"]).relu()]


def make_linear(
    rows: int, k: int, n: int, *, positive: bool = False, dtype: torch.dtype = torch.float32
) -> Make:
    def make(seed: int) -> tuple[list[Tensor], dict[str, Tensor]]:
        g = torch.Generator().manual_seed(seed)
        draw = torch.rand if positive else torch.randn
        x, w = draw(rows, k, generator=g), draw(n, k, generator=g) / k**0.5
        b = torch.randn(n, generator=g)
        return [x.to(dtype)], {"weight": w.to(dtype), "bias": b.to(dtype)}

    return make


def make_values(*shape: int, scale: float = 1.0, offset: float = 0.0, rand: bool = False) -> Make:
    def make(seed: int) -> tuple[list[Tensor], dict[str, Tensor]]:
        g = torch.Generator().manual_seed(seed)
        draw = torch.rand if rand else torch.randn
        return [draw(*shape, generator=g) * scale + offset], {}

    return make


def make_norm(*shape: int, channels: int, offset: float = 0.0) -> Make:
    def make(seed: int) -> tuple[list[Tensor], dict[str, Tensor]]:
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(*shape, generator=g) + offset
        state = {
            "weight": torch.rand(channels, generator=g) + 0.5,
            "bias": torch.randn(channels, generator=g),
        }
        return [x], state

    return make


def conv(i: Sequence[Tensor], s: State) -> list[Tensor]:
    return [F.conv2d(i[0], s["weight"], s["bias"], padding=1)]


def conv_unfolded(matmul: Callable[[Tensor, Tensor], Tensor]) -> Model:
    def run(i: Sequence[Tensor], s: State) -> list[Tensor]:
        x, w = i[0], s["weight"]
        columns = F.unfold(x, 3, padding=1)
        y = matmul(w.flatten(1).expand(x.shape[0], -1, -1), columns)
        return [y.unflatten(-1, x.shape[-2:]) + s["bias"].view(-1, 1, 1)]

    return run


def conv_wrong_edge(i: Sequence[Tensor], s: State) -> list[Tensor]:
    return [F.conv2d(F.pad(i[0], (1, 1, 1, 1), mode="replicate"), s["weight"], s["bias"])]


def make_conv(seed: int) -> tuple[list[Tensor], dict[str, Tensor]]:
    g = torch.Generator().manual_seed(seed)
    state = {"weight": torch.randn(8, 6, 3, 3, generator=g), "bias": torch.randn(8, generator=g)}
    return [torch.randn(3, 6, 10, 11, generator=g)], state


def softmax(i: Sequence[Tensor], s: State) -> list[Tensor]:
    return [i[0].softmax(-1)]


def softmax_exp2(i: Sequence[Tensor], s: State) -> list[Tensor]:
    x = i[0] * 1.4426950408889634
    e = (x - x.amax(-1, keepdim=True)).exp2()
    return [e * (1 / lanes(e))[..., None]]


def softmax_online(i: Sequence[Tensor], s: State) -> list[Tensor]:
    x = i[0]
    top = torch.full_like(x[..., 0], float("-inf"))
    total = torch.zeros_like(top)
    for part in x.split(64, -1):
        new = torch.maximum(top, part.amax(-1))
        total = total * (top - new).exp() + sequential((part - new[..., None]).exp())
        top = new
    return [(x - top[..., None]).exp() / total[..., None]]


def softmax_naive(i: Sequence[Tensor], s: State) -> list[Tensor]:
    e = i[0].exp()
    return [e / e.sum(-1, keepdim=True)]


def layer_norm(i: Sequence[Tensor], s: State) -> list[Tensor]:
    return [F.layer_norm(i[0], i[0].shape[-1:], s["weight"], s["bias"])]


def layer_norm_two_pass(add: Callable[[Tensor], Tensor]) -> Model:
    def run(i: Sequence[Tensor], s: State) -> list[Tensor]:
        x, n = i[0], i[0].shape[-1]
        d = x - add(x)[..., None] / n
        var = add(d * d)[..., None] / n
        return [d * (var + 1e-5).rsqrt() * s["weight"] + s["bias"]]

    return run


def layer_norm_one_pass(i: Sequence[Tensor], s: State) -> list[Tensor]:
    x = i[0]
    mean = x.mean(-1, keepdim=True)
    var = (x * x).mean(-1, keepdim=True) - mean * mean
    return [(x - mean) * (var + 1e-5).rsqrt() * s["weight"] + s["bias"]]


def layer_norm_no_epsilon(i: Sequence[Tensor], s: State) -> list[Tensor]:
    return [F.layer_norm(i[0], i[0].shape[-1:], s["weight"], s["bias"], 0.0)]


def group_norm(i: Sequence[Tensor], s: State) -> list[Tensor]:
    return [F.group_norm(i[0], 4, s["weight"], s["bias"])]


def group_norm_by(one_pass: bool) -> Model:
    def run(i: Sequence[Tensor], s: State) -> list[Tensor]:
        x = i[0].unflatten(1, (4, -1)).flatten(2)
        mean = blocked(x)[..., None] / x.shape[-1]
        square = blocked(x * x)[..., None] / x.shape[-1]
        spread = blocked((x - mean).square())[..., None] / x.shape[-1]
        var = square - mean * mean if one_pass else spread
        y = ((x - mean) * (var + 1e-5).rsqrt()).reshape(i[0].shape)
        return [y * s["weight"].view(-1, 1, 1) + s["bias"].view(-1, 1, 1)]

    return run


def batch_norm(i: Sequence[Tensor], s: State) -> list[Tensor]:
    mean, var = s["running_mean"].clone(), s["running_var"].clone()
    y = F.batch_norm(i[0], mean, var, s["weight"], s["bias"], True, 0.1)
    return [y, mean, var]


def batch_norm_by(one_pass: bool = False, biased: bool = False) -> Model:
    def run(i: Sequence[Tensor], s: State) -> list[Tensor]:
        x = i[0].transpose(0, 1).flatten(1)
        n = x.shape[1]
        mean = blocked(x) / n
        d = x - mean[:, None]
        var = (x * x).mean(1) - mean * mean if one_pass else blocked(d * d) / n
        y = d * (var[:, None] + 1e-5).rsqrt() * s["weight"][:, None] + s["bias"][:, None]
        y = y.unflatten(1, (i[0].shape[0], *i[0].shape[2:])).transpose(0, 1)
        unbiased = var if biased else var * (n / (n - 1))
        return [
            y.contiguous(),
            s["running_mean"] * 0.9 + 0.1 * mean,
            s["running_var"] * 0.9 + 0.1 * unbiased,
        ]

    return run


def make_batch_norm(offset: float) -> Make:
    def make(seed: int) -> tuple[list[Tensor], dict[str, Tensor]]:
        inputs, state = make_norm(6, 5, 9, 7, channels=5, offset=offset)(seed)
        g = torch.Generator().manual_seed(seed + 99)
        state |= {
            "running_mean": torch.randn(5, generator=g),
            "running_var": torch.rand(5, generator=g) + 0.5,
        }
        return inputs, state

    return make


def logsumexp(i: Sequence[Tensor], s: State) -> list[Tensor]:
    return [i[0].logsumexp(-1)]


def logsumexp_lanes(i: Sequence[Tensor], s: State) -> list[Tensor]:
    top = i[0].amax(-1)
    top = torch.where(top.isinf(), 0.0, top)  # inf - inf would be nan
    return [lanes((i[0] - top[..., None]).exp()).log() + top]


def gelu(i: Sequence[Tensor], s: State) -> list[Tensor]:
    return [F.gelu(i[0])]


def long_sum(i: Sequence[Tensor], s: State) -> list[Tensor]:
    return [i[0].sum(-1)]


def attention(i: Sequence[Tensor], s: State) -> list[Tensor]:
    return [F.scaled_dot_product_attention(*i)]


def attention_with(
    matmul: Callable[[Tensor, Tensor], Tensor], weights: Callable[[Tensor], Tensor] = lambda p: p
) -> Model:
    def run(i: Sequence[Tensor], s: State) -> list[Tensor]:
        q, k, v = i
        scores = matmul(q * q.shape[-1] ** -0.5, k.transpose(-1, -2))
        e = (scores - scores.amax(-1, keepdim=True)).exp()
        return [matmul(weights(e), v) / lanes(e)[..., None]]

    return run


def attention_unscaled(i: Sequence[Tensor], s: State) -> list[Tensor]:
    return [F.scaled_dot_product_attention(*i, scale=1.0)]


def make_attention(seed: int) -> tuple[list[Tensor], dict[str, Tensor]]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 3, 24, 16, generator=g) for _ in range(3)], {}


def block(i: Sequence[Tensor], s: State) -> list[Tensor]:
    return block_with(lambda a, b: a @ b)(i, s)


def block_with(
    matmul: Callable[[Tensor, Tensor], Tensor], act: Callable[[Tensor], Tensor] = F.gelu
) -> Model:
    def run(i: Sequence[Tensor], s: State) -> list[Tensor]:
        h = act(matmul(i[0], s["up.weight"].t()) + s["up.bias"])
        h = F.layer_norm(h, h.shape[-1:], s["norm.weight"], s["norm.bias"])
        return [i[0] + (matmul(h, s["down.weight"].t()) + s["down.bias"]).relu()]

    return run


def make_block(seed: int) -> tuple[list[Tensor], dict[str, Tensor]]:
    g = torch.Generator().manual_seed(seed)
    up, down = torch.randn(96, 64, generator=g) / 8, torch.randn(64, 96, generator=g) / 10
    state = {
        "up.weight": up, "up.bias": torch.randn(96, generator=g) / 8,
        "norm.weight": torch.rand(96, generator=g) + 0.5,
        "norm.bias": torch.randn(96, generator=g) / 8,
        "down.weight": down, "down.bias": torch.randn(64, generator=g) / 8,
    }  # fmt: skip
    return [torch.randn(40, 64, generator=g)], state


def best_class(i: Sequence[Tensor], s: State) -> list[Tensor]:
    return [linear(i, s)[0].argmax(-1)]


def cross_entropy(i: Sequence[Tensor], s: State) -> list[Tensor]:
    return [F.cross_entropy(i[0], i[1])]


def cross_entropy_fused(i: Sequence[Tensor], s: State) -> list[Tensor]:
    picked = i[0].gather(1, i[1][:, None])[:, 0]
    return [(logsumexp_lanes(i, s)[0] - picked).mean()]


def make_cross_entropy(seed: int) -> tuple[list[Tensor], dict[str, Tensor]]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(17, 33, generator=g), torch.randint(0, 33, (17,), generator=g)], {}


def softplus(i: Sequence[Tensor], s: State) -> list[Tensor]:
    return [F.softplus(i[0])]


def rms_norm(i: Sequence[Tensor], s: State) -> list[Tensor]:
    return [F.rms_norm(i[0], i[0].shape[-1:], s["weight"], 1e-6)]


def rms_norm_lanes(i: Sequence[Tensor], s: State) -> list[Tensor]:
    x = i[0]
    return [x * (lanes(x * x)[..., None] / x.shape[-1] + 1e-6).rsqrt() * s["weight"]]


def running_sum(i: Sequence[Tensor], s: State) -> list[Tensor]:
    return [i[0].cumsum(-1)]


def running_sum_blocked(i: Sequence[Tensor], s: State) -> list[Tensor]:
    parts = F.pad(i[0], (0, -i[0].shape[-1] % 32)).unflatten(-1, (-1, 32)).cumsum(-1)
    carry = F.pad(parts[..., -1].cumsum(-1)[..., :-1], (1, 0))
    return [(parts + carry[..., None]).flatten(-2)[..., : i[0].shape[-1]]]


def embed(i: Sequence[Tensor], s: State) -> list[Tensor]:
    return [F.embedding(i[0], s["weight"]).sum(1)]


def make_embed(seed: int) -> tuple[list[Tensor], dict[str, Tensor]]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 50, (12, 40), generator=g)], {
        "weight": torch.randn(50, 24, generator=g)
    }


def variance(i: Sequence[Tensor], s: State) -> list[Tensor]:
    return [i[0].var(-1)]


def variance_lanes(i: Sequence[Tensor], s: State) -> list[Tensor]:
    n = i[0].shape[-1]
    d = i[0] - lanes(i[0])[..., None] / n
    return [lanes(d * d) / (n - 1)]


def variance_one_pass(i: Sequence[Tensor], s: State) -> list[Tensor]:
    n = i[0].shape[-1]
    return [(lanes(i[0] * i[0]) - lanes(i[0]).square() / n) / (n - 1)]


def max_pool(i: Sequence[Tensor], s: State) -> list[Tensor]:
    return [F.max_pool2d(i[0], 3, 2, 1)]


def max_pool_zeros(i: Sequence[Tensor], s: State) -> list[Tensor]:
    return [F.max_pool2d(F.pad(i[0], (1, 1, 1, 1)), 3, 2)]


def max_pool_unfolded(i: Sequence[Tensor], s: State) -> list[Tensor]:
    padded = F.pad(i[0], (1, 1, 1, 1), value=float("-inf"))
    return [padded.unfold(2, 3, 2).unfold(3, 3, 2).amax((-1, -2))]


def quantized(act: Callable[[Tensor], Tensor], matmul: Callable[[Tensor, Tensor], Tensor]) -> Model:
    return lambda i, s: [act(linear_with(matmul)(i, s)[0])]


def round_quarter(t: Tensor) -> Tensor:
    return (t * 4).round() / 4


def step(t: Tensor) -> Tensor:
    return (t > 0).to(t.dtype)


def mlp_with(matmul: Callable[[Tensor, Tensor], Tensor]) -> Model:
    def run(i: Sequence[Tensor], s: State) -> list[Tensor]:
        h = i[0]
        for layer in ("a", "b", "c"):
            h = matmul(h, s[f"{layer}.weight"].t()) + s[f"{layer}.bias"]
            h = F.silu(h) if layer != "c" else h
        return [h]

    return run


def make_mlp(seed: int) -> tuple[list[Tensor], dict[str, Tensor]]:
    g = torch.Generator().manual_seed(seed)
    state: dict[str, Tensor] = {}
    for layer, k, n in (("a", 48, 96), ("b", 96, 96), ("c", 96, 20)):
        state[f"{layer}.weight"] = torch.randn(n, k, generator=g) / k**0.5
        state[f"{layer}.bias"] = torch.randn(n, generator=g)
    return [torch.randn(32, 48, generator=g)], state


def skip_last(model: Model) -> Model:
    """The last element of the last dimension of the first input is not read."""

    def run(inputs: Sequence[Tensor], state: State) -> list[Tensor]:
        first = inputs[0].clone()
        first[..., -1:] = 0
        return model([first, *inputs[1:]], state)

    return run


def matmuls(build: Callable[[Callable[[Tensor, Tensor], Tensor]], Model]) -> dict[str, Model]:
    return {
        "sequential": build(matmul_sequential),
        "split-K": build(matmul_split),
        "3xTF32": build(matmul_3xtf32),
    }


def _linear_entry(name: str, make: Make) -> Entry:
    honest = matmuls(linear_with) | {"double": inside(linear, torch.float64)}
    bad = low_precision(linear) | wrong_everywhere(linear) | {
        "half accumulator": linear_with(matmul_half_accumulator),
        "no bias": lambda i, s: [i[0] @ s["weight"].t()],
        "skips last k": skip_last(linear),
    }  # fmt: skip
    return Entry(name, make, linear, honest, bad)


def _softmax_entry(name: str, make: Make) -> Entry:
    honest = {
        "exp2": softmax_exp2,
        "online": softmax_online,
        "double": inside(softmax, torch.float64),
    }
    bad = wrong_everywhere(softmax) | {
        "no maximum": softmax_naive,
        "half inside": inside(softmax, torch.float16),
        "rounded result": result(softmax, tf32),
    }
    return Entry(name, make, softmax, honest, bad)


def _layer_norm_entry(name: str, make: Make) -> Entry:
    honest = {
        "sequential": layer_norm_two_pass(sequential),
        "lanes": layer_norm_two_pass(lanes),
        "double": inside(layer_norm, torch.float64),
    }
    bad = wrong_everywhere(layer_norm) | {
        "one pass": layer_norm_one_pass,
        "no epsilon": layer_norm_no_epsilon,
        "half inside": inside(layer_norm, torch.float16),
        "rounded result": result(layer_norm, tf32),
    }
    return Entry(name, make, layer_norm, honest, bad)


HALF, BRAIN = torch.float16, torch.bfloat16

ZOO: tuple[Entry, ...] = (
    _linear_entry("linear", make_linear(24, 128, 40)),
    _linear_entry("linear positive", make_linear(12, 256, 24, positive=True)),
    _linear_entry("linear tiny", make_linear(2, 3, 2)),
    Entry(
        "linear relu", make_linear(256, 64, 96), linear_relu,
        {"sequential": lambda i, s: [linear_with(matmul_sequential)(i, s)[0].relu()]},
        low_precision(linear_relu) | {"no relu": linear},
    ),
    Entry(
        "conv", make_conv, conv, matmuls(conv_unfolded) | {"double": inside(conv, torch.float64)},
        low_precision(conv) | wrong_everywhere(conv) | {"wrong edge": conv_wrong_edge},
    ),
    _softmax_entry("softmax", make_values(24, 200)),
    _softmax_entry("softmax wide", make_values(24, 200, scale=30.0)),
    _layer_norm_entry("layer norm", make_norm(20, 160, channels=160)),
    _layer_norm_entry("layer norm offset", make_norm(20, 160, channels=160, offset=10.0)),
    Entry(
        "group norm", make_norm(3, 8, 9, 7, channels=8, offset=2.0), group_norm,
        {"blocked": group_norm_by(False), "double": inside(group_norm, torch.float64)},
        {"one pass": group_norm_by(True), "rounded result": result(group_norm, tf32)},
    ),
    Entry(
        "batch norm, training", make_batch_norm(1.0), batch_norm,
        {"blocked": batch_norm_by(), "double": inside(batch_norm, torch.float64)},
        {"one pass": batch_norm_by(one_pass=True), "biased": batch_norm_by(biased=True)},
    ),
    Entry(
        "logsumexp", make_values(30, 129, scale=3.0), logsumexp,
        {"lanes": logsumexp_lanes, "double": inside(logsumexp, torch.float64)},
        {"naive": lambda i, s: [i[0].exp().sum(-1).log()], "half": rounding(logsumexp, half)},
    ),
    Entry(
        "gelu", make_values(40, 50, scale=2.0), gelu,
        {
            "erfc": lambda i, s: [0.5 * i[0] * torch.erfc(i[0] * -(0.5**0.5))],
            "erf": lambda i, s: [i[0] * 0.5 * (1 + torch.erf(i[0] * 0.5**0.5))],
            "double": inside(gelu, torch.float64),
        },
        wrong_everywhere(gelu) | {
            "tanh": lambda i, s: [F.gelu(i[0], approximate="tanh")],
            "sigmoid": lambda i, s: [i[0] * torch.sigmoid(1.702 * i[0])],
            "half inside": inside(gelu, torch.float16),
        },
    ),
    Entry(
        "long sum", make_values(3, 20_000, rand=True), long_sum,
        {"lanes": lambda i, s: [lanes(i[0])], "blocked": lambda i, s: [blocked(i[0], 128)]},
        {
            "half operands": rounding(long_sum, half),
            "tf32 operands": rounding(long_sum, tf32),
            "skips last": skip_last(long_sum),
        },
    ),
    Entry(
        "attention", make_attention, attention,
        matmuls(attention_with) | {"double": inside(attention, torch.float64)},
        low_precision(attention) | wrong_everywhere(attention) | {
            "unscaled": attention_unscaled,
            "half weights": attention_with(torch.matmul, half),
        },
    ),
    Entry(
        "block", make_block, block,
        matmuls(block_with) | {"double": inside(block, torch.float64)},
        low_precision(block) | wrong_everywhere(block) | {
            "tanh gelu": block_with(torch.matmul, lambda h: F.gelu(h, approximate="tanh")),
            "tf32 matmul": block_with(lambda a, b: tf32(a) @ tf32(b)),
        },
    ),
    Entry(
        "argmax", make_linear(64, 80, 10), best_class,
        {"sequential": lambda i, s: [linear_with(matmul_sequential)(i, s)[0].argmax(-1)]},
        {
            "next": lambda i, s: [best_class(i, s)[0].add(1).remainder(10)],
            "smallest": lambda i, s: [linear(i, s)[0].argmin(-1)],
        },
    ),
    Entry(
        "cross entropy", make_cross_entropy, cross_entropy, {"fused": cross_entropy_fused},
        {"half": rounding(cross_entropy, half), "skips last": skip_last(cross_entropy)},
    ),
    Entry(
        "embedding", make_embed, embed,
        {"sequential": lambda i, s: [sequential(F.embedding(i[0], s["weight"]), 1)]},
        {
            "half": rounding(embed, half),
            "skips last": lambda i, s: [F.embedding(i[0][:, :-1], s["weight"]).sum(1)],
        },
    ),
    Entry(
        "variance", make_values(50, 130, offset=3.0), variance, {"lanes": variance_lanes},
        {"one pass": variance_one_pass, "biased": lambda i, s: [i[0].var(-1, correction=0)]},
    ),
    Entry(
        "max pool", make_values(4, 5, 9, 11), max_pool, {"unfolded": max_pool_unfolded},
        {"pads with zeros": max_pool_zeros, "half": rounding(max_pool, half)},
    ),
    Entry(
        "rounding", make_linear(64, 80, 40), quantized(round_quarter, torch.matmul),
        matmuls(lambda m: quantized(round_quarter, m)),
        {"floor": quantized(lambda t: (t * 4).floor() / 4, torch.matmul)},
    ),
    Entry(
        "step", make_linear(64, 80, 40), quantized(step, torch.matmul),
        matmuls(lambda m: quantized(step, m)),
        {"flipped": quantized(lambda t: (t < 0).to(t.dtype), torch.matmul)},
    ),
    Entry(
        "mlp", make_mlp, mlp_with(torch.matmul), matmuls(mlp_with),
        low_precision(mlp_with(torch.matmul)) | wrong_everywhere(mlp_with(torch.matmul)) | {
            "tf32 matmul": mlp_with(lambda a, b: tf32(a) @ tf32(b)),
            "half matmul": mlp_with(lambda a, b: half(a) @ half(b)),
        },
    ),
    Entry(
        "log1p", make_values(20, 50, rand=True), lambda i, s: [i[0].log1p()],
        {"double": inside(lambda i, s: [i[0].log1p()], torch.float64)},
        {"naive": lambda i, s: [(1 + i[0]).log()]},
    ),
    Entry(
        "softplus", make_values(30, 60, scale=8.0), softplus,
        {"stable": lambda i, s: [i[0].clamp_min(0) + (-i[0].abs()).exp().log1p()]},
        {"naive": lambda i, s: [(1 + i[0].exp()).log()]},
    ),
    Entry(
        "rms norm", make_norm(20, 96, channels=96), rms_norm,
        {"lanes": rms_norm_lanes, "double": inside(rms_norm, torch.float64)},
        wrong_everywhere(rms_norm) | {"rounded result": result(rms_norm, tf32)},
    ),
    Entry(
        "running sum", make_values(8, 300), running_sum, {"blocked": running_sum_blocked},
        wrong_everywhere(running_sum) | {"half operands": rounding(running_sum, half)},
    ),
    Entry(
        "linear, half", make_linear(12, 96, 20, dtype=HALF), linear,
        {"float32": inside(linear, torch.float32), "double": inside(linear, torch.float64)},
        wrong_everywhere(linear) | {
            "half accumulator": linear_with(matmul_half_accumulator),
            "bfloat16 operands": rounding(linear, brain),
        },
    ),
    Entry(
        "softmax, half", lambda seed: ([make_values(24, 100)(seed)[0][0].half()], {}), softmax,
        {"float32": inside(softmax, torch.float32)},
        {"bfloat16 result": result(softmax, brain), "touched": result(softmax, touched)},
    ),
    Entry(
        "linear, bfloat16", make_linear(12, 96, 20, dtype=BRAIN), linear,
        {"float32": inside(linear, torch.float32)},
        wrong_everywhere(linear) | {"no bias": lambda i, s: [i[0] @ s["weight"].t()]},
    ),
    Entry(
        "linear, double", make_linear(12, 96, 20, dtype=torch.float64), linear,
        {"sequential": linear_with(matmul_sequential), "split-K": linear_with(matmul_split)},
        wrong_everywhere(linear) | {"float32 inside": inside(linear, torch.float32)},
    ),
)  # fmt: skip


# ---- judging -------------------------------------------------------------------------------------

REQUIRED = ("own", "fresh-0", "fresh-1")
LATER = 3  # draws of the inputs behind the first


def complaints(
    entry: Entry,
    models: Mapping[str, Model],
    seed: int,
    *,
    hazards: bool = True,
    margins: dict[str, float] | None = None,
) -> dict[str, list[str]]:
    """What contract and probes say against each model; nothing said means that it passes.

    `margins` receives the share of the contract's limits that each model uses on its own inputs.
    """
    inputs, state = entry.make(seed)
    found: dict[str, list[str]] = {name: [] for name in models}
    rows: list[tuple[str, Sequence[Tensor]]] = [("own", inputs)]
    if hazards:
        matrix = hazard_cases.matrix(inputs, seed=seed)
        rows += [(c.name, c.build()) for c in matrix if not c.isolated]  # type: ignore[misc]
    for label, values in rows:
        used = margins if margins is not None and label == "own" else {}
        _one_case(entry, models, label, values, state, found, used)
    for probe in probes.iterate(entry.model, entry.model, inputs, state, seed):
        for name, model in models.items():
            if probe.applies:
                said = probe.check(model(probe.inputs, probe.state))  # type: ignore[arg-type]
                found[name] += [f"{probe.name}: {said}"] if said else []
    return found


def by_eager(
    entry: Entry, models: Mapping[str, Model], seed: int
) -> Iterator[tuple[str, bool, str]]:
    """Of each output for later draws of the inputs: of which model; would eager alone decide, as
    for all calls but the first; and what the whole contract says against it.

    What is known from the first draw is what the judge knows then: eager's errors, and how much
    one rounding of all data moves each output.
    """
    inputs, state = entry.make(seed)
    truth, eager, own, _ = _said(entry, inputs, state)
    sizes = [float(k.square().mean().sqrt()) for k in own.of(contract.PAIRS)]
    usual = [contract.usual_errors(*three) for three in zip(eager, truth, sizes, strict=True)]
    for draw in range(LATER):
        values, _ = entry.make(seed + 1000 * (1 + draw))
        truth, eager, _, unit = _said(entry, values, state)
        kappas = [y.abs() * unit + size for y, size in zip(truth, sizes, strict=True)]
        for name, model in models.items():
            for k, output in enumerate(model(values, state)):
                alone = contract.close(output, eager[k], sizes[k], usual[k])
                said = contract.compare(output, eager[k], truth[k], kappas[k], full=False)
                yield name, alone, "" if said.passed else f"{said.check}: {said.detail}"


def _said(
    entry: Entry, values: Sequence[Tensor], state: State
) -> tuple[list[Tensor], list[Tensor], contract.Sensitivity, float]:
    """What float64 says, what eager says, and how much roundings of that unit move it."""
    wide = [t.double() if t.is_floating_point() else t for t in values]
    truth = entry.model(wide, {name: t.double() for name, t in state.items()})
    eager = entry.model(values, state)
    unit = contract.unit_of(eager, values)
    own = contract.Sensitivity(entry.model, values, state, unit=unit, truth=truth)  # type: ignore[arg-type]
    return truth, eager, own, unit


def _one_case(
    entry: Entry,
    models: Mapping[str, Model],
    label: str,
    values: Sequence[Tensor],
    state: State,
    found: dict[str, list[str]],
    margins: dict[str, float],
) -> None:
    truth, eager, own, _ = _said(entry, values, state)
    if label != "own" and any(
        contract.reference_fault(e, y) for e, y in zip(eager, truth, strict=True)
    ):
        return
    near = cache(partial(
        contract.noise, entry.model, entry.model, values, state, seed=0, doubles=Doubles(),
    ))  # fmt: skip
    for name, model in models.items():
        for k, three in enumerate(zip(model(values, state), eager, truth, strict=True)):
            four = *three, lambda pairs, k=k: own.of(pairs)[k]
            how = partial(
                contract.compare, hazard=label not in REQUIRED, noise=lambda k=k: near()[k]
            )
            said = how(*four, full=False)  # the same word as with all numbers, of fewer draws
            margin = said.numbers.get("margin", 0.0 if said.passed else float("inf"))
            margins[name] = max(margins.get(name, 0.0), margin)
            found[name] += [] if said.passed else [f"{label}: {said.check}: {said.detail}"]
