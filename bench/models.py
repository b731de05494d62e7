"""What the benchmarks run: the four examples, memory-bound chains, the examples' tails,
convolutions with tails, attention, and the table of single operators.

Each entry is a function `size -> (module, make_inputs)`; a size is "cpu" or "gpu".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusewright.common.problem_file import load_problem

Inputs = Callable[[], list[Tensor]]
Entry = tuple[nn.Module, Inputs]
EXAMPLES = Path(__file__).parent.parent / "examples"
# batch sizes at which eager takes about 50 to 200 ms on two cores
CPU_BATCH = {
    "gemm_add_relu": 128,
    "conv_relu_bias": 4,
    "swish_bias_groupnorm": 2048,
    "linear_relu_divide": 128,
}


class Chain(nn.Module):
    """A function with the modules it needs."""

    def __init__(self, function: Callable[..., Tensor], **modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


class Bias(nn.Module):
    """A parameter to add."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.randn(*shape))


def _rows(columns: int, gpu_rows: int, cpu_rows: int) -> Callable[[str], Inputs]:
    return lambda size: lambda: [torch.randn(gpu_rows if size == "gpu" else cpu_rows, columns)]


def _images(channels: int, side: int, gpu: int, cpu: int) -> Callable[[str], Inputs]:
    return lambda size: lambda: [torch.randn(gpu if size == "gpu" else cpu, channels, side, side)]


CHAINS: dict[str, tuple[Callable[[], nn.Module], Callable[[str], Inputs]]] = {
    "bias_gelu": (
        lambda: Chain(lambda m, x: F.gelu(x + m.bias.value), bias=Bias(4096)),
        _rows(4096, 32768, 8192),
    ),
    "softmax": (lambda: Chain(lambda _, x: F.softmax(x, -1)), _rows(4096, 32768, 8192)),
    "layernorm_gelu": (
        lambda: Chain(lambda m, x: F.gelu(m.norm(x)), norm=nn.LayerNorm(4096)),
        _rows(4096, 32768, 8192),
    ),
    "groupnorm_swish": (
        lambda: Chain(lambda m, x: F.silu(m.norm(x)), norm=nn.GroupNorm(32, 128)),
        _images(128, 64, 256, 64),
    ),
    "batchnorm_relu": (
        lambda: Chain(lambda m, x: F.relu(m.norm(x)), norm=nn.BatchNorm2d(128)),
        _images(128, 64, 256, 64),
    ),
    "batchnorm_small_images": (
        lambda: Chain(lambda m, x: F.relu(m.norm(x)), norm=nn.BatchNorm2d(2048)),
        _images(2048, 7, 32, 4),
    ),
    "logsumexp": (lambda: Chain(lambda _, x: torch.logsumexp(x, -1)), _rows(4096, 32768, 8192)),
}

TAILS: dict[str, tuple[Callable[[], nn.Module], Callable[[str], Inputs]]] = {
    "tail_gemm_add_relu": (
        lambda: Chain(lambda m, x: F.relu(x + m.bias.value), bias=Bias(8192)),
        _rows(8192, 16384, 4096),
    ),
    "tail_conv_relu_bias": (
        lambda: Chain(lambda m, x: F.relu(x) + m.bias.value, bias=Bias(128, 1, 1)),
        _images(128, 126, 128, 8),
    ),
    "tail_swish_bias_groupnorm": (
        lambda: Chain(
            lambda m, x: m.norm(x * torch.sigmoid(x) + m.bias.value),
            bias=Bias(4096),
            norm=nn.GroupNorm(64, 4096),
        ),
        _rows(4096, 32768, 4096),
    ),
    "tail_linear_relu_divide": (
        lambda: Chain(lambda _, x: F.relu(x) / 2.0),
        _rows(8192, 16384, 4096),
    ),
}


def _residual(m: nn.Module, x: Tensor) -> Tensor:
    return x + m.linear(x) * m.scale.value  # type: ignore[operator, union-attr, no-any-return]


# What a product's kernel has behind it: no reduction, or one that outgrows its tiles.
PRODUCTS: dict[str, tuple[Callable[[], nn.Module], Callable[[str], Inputs]]] = {
    "product_scale_residual": (
        lambda: Chain(_residual, linear=nn.Linear(5120, 5120), scale=Bias(5120)),
        _rows(5120, 12288, 64),
    ),
    "product_few_rows_gelu": (
        lambda: Chain(lambda m, x: F.gelu(m.linear(x)), linear=nn.Linear(24576, 24576)),
        _rows(24576, 160, 4),
    ),
    "product_fewer_rows": (
        lambda: Chain(lambda m, x: m.linear(x), linear=nn.Linear(12288, 12288)),
        _rows(12288, 96, 16),
    ),
    "product_logsumexp": (
        lambda: Chain(lambda m, x: m.linear(x).logsumexp(1), linear=nn.Linear(6144, 6144)),
        _rows(6144, 3072, 64),
    ),
    "product_of_columns": (
        lambda: Chain(lambda m, x: x @ m.right.value, right=Bias(4096, 4096)),
        _rows(4096, 4096, 64),
    ),
    "product_triangle": (
        lambda: Chain(lambda m, x: torch.triu(x @ m.right.value), right=Bias(4096, 4096)),
        _rows(4096, 4096, 64),
    ),
    "product_two_layers": (
        lambda: Chain(
            lambda m, x: m.last(torch.sigmoid(m.first(x))),
            first=nn.Linear(2048, 6144),
            last=nn.Linear(6144, 1536),
        ),
        _rows(2048, 8192, 256),
    ),
}


def _shaped(*shape: int, cpu: int = 1) -> Callable[[str], Inputs]:
    """Tensors of this shape; on the CPU, `cpu` images."""
    return lambda size: lambda: [torch.randn(shape if size == "gpu" else (cpu, *shape[1:]))]


def _five(m: nn.Module, x: Tensor) -> Tensor:
    x = F.gelu(F.leaky_relu(F.relu(m.conv(x)), 0.01))  # type: ignore[operator]
    return torch.tanh(torch.sigmoid(x)) + m.bias.value  # type: ignore[operator, union-attr]


def _clamps(m: nn.Module, x: Tensor) -> Tensor:
    x = torch.clamp(m.conv(x) + m.bias.value, 0.0, 1.0)  # type: ignore[operator, union-attr]
    return torch.clamp(x * 2.0, 0.0, 1.0) / 2.0


CONVOLUTIONS: dict[str, tuple[Callable[[], nn.Module], Callable[[str], Inputs]]] = {
    "conv_mish_twice": (
        lambda: Chain(lambda m, x: F.mish(F.mish(m.conv(x))), conv=nn.Conv2d(96, 160, 3)),
        _shaped(32, 96, 160, 160),
    ),
    "conv_sigmoid_groupnorm": (
        lambda: Chain(
            lambda m, x: m.norm(torch.sigmoid(m.conv(x))),
            conv=nn.Conv2d(12, 48, 5, padding=2),
            norm=nn.GroupNorm(8, 48),
        ),
        _shaped(96, 12, 224, 224),
    ),
    "conv_batchnorm_relu": (
        lambda: Chain(
            lambda m, x: F.relu(m.norm(m.conv(x))),
            conv=nn.Conv2d(256, 256, 3, padding=1),
            norm=nn.BatchNorm2d(256),
        ),
        _shaped(64, 256, 28, 28, cpu=4),
    ),
    "conv3d_five_activations": (
        lambda: Chain(_five, conv=nn.Conv3d(12, 40, 3), bias=Bias(40, 1, 1, 1)),
        _shaped(48, 12, 24, 56, 56),
    ),
    "conv3d_groupnorm_mean": (
        lambda: Chain(
            lambda m, x: m.norm(m.conv(x)).mean(dim=(2, 3, 4)),
            conv=nn.Conv3d(32, 64, 3),
            norm=nn.GroupNorm(8, 64),
        ),
        _shaped(16, 32, 32, 32, 32),
    ),
    "transposed_clamps": (
        lambda: Chain(
            _clamps,
            conv=nn.ConvTranspose2d(96, 48, 4, stride=2, padding=1),
            bias=Bias(48, 1, 1),
        ),
        _shaped(64, 96, 96, 96),
    ),
    "transposed3d_layernorm_pool": (
        lambda: Chain(
            lambda m, x: F.gelu(m.pool(m.norm(m.conv(x)))),
            conv=nn.ConvTranspose3d(48, 48, 3, stride=2),
            norm=nn.LayerNorm(57),
            pool=nn.AvgPool3d(2),
        ),
        _shaped(24, 48, 12, 28, 28),
    ),
}


def _plain(function: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    return lambda: Chain(lambda _, x: function(x))


# Reductions across memory, elements that are moved, and windows; 256 MB on a GPU.
_ROWS = _rows(4096, 16384, 4096)
_IMAGES = _images(64, 64, 256, 16)
ACROSS: dict[str, tuple[Callable[[], nn.Module], Callable[[str], Inputs]]] = {
    "sum_dim0": (_plain(lambda x: x.sum(0)), _ROWS),
    "sum_dim0_few_columns": (_plain(lambda x: x.sum(0)), _rows(256, 262144, 65536)),
    "sum_dim1": (_plain(lambda x: x.sum(1)), _IMAGES),
    "sum_last": (_plain(lambda x: x.sum(-1)), _ROWS),
    "softmax_dim1": (_plain(lambda x: x.softmax(1)), _IMAGES),
    "softmax_dim0": (_plain(lambda x: x.softmax(0)), _ROWS),
    "logsumexp_dim1": (_plain(lambda x: torch.logsumexp(x, 1)), _IMAGES),
    "argmax_dim1": (_plain(lambda x: x.argmax(1)), _IMAGES),
    "mean_of_channels": (_plain(lambda x: x.mean((0, 2, 3))), _IMAGES),
    "pad": (_plain(lambda x: F.pad(x, (1, 1, 1, 1))), _IMAGES),
    "cat": (_plain(lambda x: torch.cat([x[:, :2048], x], 1).relu()), _ROWS),
    "roll": (_plain(lambda x: x.roll((3, 5), (2, 3))), _IMAGES),
    "flip": (_plain(lambda x: x.flip(-1)), _ROWS),
    "tril": (_plain(lambda x: x.tril()), _IMAGES),
    "max_pool_padded": (_plain(lambda x: F.max_pool2d(x, 3, 2, 1)), _IMAGES),
    "avg_pool_overlapping": (_plain(lambda x: F.avg_pool2d(x, 3, 1, 1)), _IMAGES),
}


class Attention(nn.Module):
    """Causal attention, written out."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.register_buffer("past", torch.tril(torch.ones(length, length)).bool())

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = q.shape[-2]
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(~self.past[:rows, :rows], -math.inf)  # type: ignore[index]
        return F.softmax(scores, -1) @ v


def _heads(size: str) -> Inputs:
    shape = (16, 12, 1024, 64) if size == "gpu" else (2, 4, 256, 64)
    return lambda: [torch.randn(shape) for _ in range(3)]


Lines = dict[str, tuple[Callable[[], nn.Module], Callable[[str], Inputs]]]
ATTENTION: Lines = {"attention": (lambda: Attention(1024), _heads)}
MAP_SIDE, ELEMENTS = 4096, 1 << 24  # 64 MB of float32 in every line of the table
LENGTHS = (32, 256, 4096, 65536, 1 << 20)


class Pair(Chain):
    """A function of two tensors."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        return self.function(x, y)


def _flat(*shape: int) -> Callable[[str], Inputs]:
    """One tensor; four times the images or rows on a GPU."""
    return lambda size: lambda: [torch.randn(shape[0] * (4 if size == "gpu" else 1), *shape[1:])]


def _two(columns: int, second: Callable[[int, int], Tensor]) -> Callable[[str], Inputs]:
    """Rows, and another tensor for the same rows."""

    def inputs(size: str) -> Inputs:
        rows = ELEMENTS * (4 if size == "gpu" else 1) // columns
        return lambda: [torch.randn(rows, columns), second(rows, columns)]

    return inputs


def _labels(rows: int, columns: int) -> Tensor:
    return torch.randint(columns, (rows,))


_SQUARE = _flat(MAP_SIDE, MAP_SIDE)
_PICTURES = _flat(16, 64, 128, 128)
_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "where": lambda x: torch.where(x > 0, x, 2.0),
    "masked_fill": lambda x: x.masked_fill(x < 0, -1.0),
    "broadcast_row": lambda x: x + x[0],
    "broadcast_column": lambda x: x + x[:, :1],
    "transpose": lambda x: x.t().contiguous(),
    "cat": lambda x: torch.cat([x[:, :2048], x], 1),
    "cat_relu": lambda x: torch.cat([x, x.relu()], 1),
    "pad": lambda x: F.pad(x, (1, 1, 1, 1)),
    "pad_relu": lambda x: F.pad(x.relu(), (1, 1, 1, 1)),
    "flip": lambda x: x.flip(-1),
}
_REDUCTIONS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "sum": lambda x, dim: x.sum(dim),
    "mean": lambda x, dim: x.mean(dim),
    "max": lambda x, dim: x.amax(dim),
    "argmax": lambda x, dim: x.argmax(dim),
    "softmax": lambda x, dim: x.softmax(dim),
    "logsumexp": lambda x, dim: x.logsumexp(dim),
}


def _along(length: int) -> Lines:
    """The reductions and norms of rows of this length."""
    inputs = _flat(ELEMENTS // length, length)
    found: Lines = {
        f"{name}_{length}": (_plain(lambda x, f=reduction: f(x, -1)), inputs)  # type: ignore[misc]
        for name, reduction in _REDUCTIONS.items()
    }
    found[f"layer_norm_{length}"] = (_normed(lambda: nn.LayerNorm(length)), inputs)
    found[f"rms_norm_{length}"] = (_normed(lambda: nn.RMSNorm(length)), inputs)
    return found


def _across(dim: int, inputs: Callable[[str], Inputs]) -> Lines:
    return {
        f"{name}_dim{dim}": (_plain(lambda x, f=reduction: f(x, dim)), inputs)  # type: ignore[misc]
        for name, reduction in {**_REDUCTIONS, "var": lambda x, d: x.var(d)}.items()
    }


def _normed(norm: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: Chain(lambda m, x: m.norm(x), norm=norm())


_POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "max_pool_3_stride_1": lambda x: F.max_pool2d(x, 3, 1, 1),
    "max_pool_3_stride_2": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max_pool_2": lambda x: F.max_pool2d(x, 2),
    "avg_pool_3_stride_1": lambda x: F.avg_pool2d(x, 3, 1, 1),
    "avg_pool_3_stride_2": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "avg_pool_2": lambda x: F.avg_pool2d(x, 2),
    "global_avg_pool": lambda x: F.adaptive_avg_pool2d(x, 1),
    "global_max_pool": lambda x: F.adaptive_max_pool2d(x, 1),
}
_SCANS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    **{f"cumsum_{n}": (lambda x: x.cumsum(1), n) for n in LENGTHS},
    "cumsum_dim0": (lambda x: x.cumsum(0), MAP_SIDE),
    "cumsum_dim1": (lambda x: x.unflatten(0, (-1, 512)).cumsum(1), MAP_SIDE),  # type: ignore[no-untyped-call]
    "cumprod_256": (lambda x: x.cumprod(1), 256),
    # numbers in [0.5, 1): most of a row underflows to 0
    "cumprod_8192": (lambda x: (x.sigmoid() * 0.5 + 0.5).cumprod(1), 8192),
}
TABLE: Lines = {
    **{f"map_{name}": (_plain(f), _SQUARE) for name, f in _MAPS.items()},
    "map_roll": (_plain(lambda x: x.roll((3, 5), (2, 3))), _PICTURES),
    "map_tril": (_plain(torch.tril), _PICTURES),
    "map_to_channels_last": (_plain(lambda x: x.permute(0, 2, 3, 1).contiguous()), _PICTURES),
    **{name: line for length in LENGTHS for name, line in _along(length).items()},
    **_across(0, _SQUARE),
    **_across(1, _PICTURES),
    "group_norm": (_normed(lambda: nn.GroupNorm(8, 64)), _PICTURES),
    "instance_norm": (_normed(lambda: nn.InstanceNorm2d(64, affine=True)), _PICTURES),
    "batch_norm_train": (_normed(lambda: nn.BatchNorm2d(64)), _PICTURES),
    "cross_entropy": (lambda: Pair(F.cross_entropy), _two(1024, _labels)),
    "mse": (lambda: Pair(F.mse_loss), _two(4096, torch.randn)),
    "smooth_l1": (lambda: Pair(F.smooth_l1_loss), _two(4096, torch.randn)),
    "kl_div": (
        lambda: Pair(lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean")),
        _two(1024, torch.randn),
    ),
    "cosine": (lambda: Pair(lambda x, y: F.cosine_similarity(x, y, 1)), _two(1024, torch.randn)),
    **{name: (_plain(f), _PICTURES) for name, f in _POOLS.items()},
    **{name: (_plain(f), _flat(ELEMENTS // n, n)) for name, (f, n) in _SCANS.items()},
}


def example(name: str, size: str) -> Entry:
    """One of the four example problems."""
    overrides = {"batch_size": str(CPU_BATCH[name])} if size == "cpu" else {}
    problem = load_problem(EXAMPLES / f"{name}.py", overrides)
    return problem.make_model(), problem.make_inputs


def entries(size: str) -> dict[str, Callable[[], Entry]]:
    """Every benchmark by name."""
    found: dict[str, Callable[[], Entry]] = {
        name: (lambda name=name: example(name, size))  # type: ignore[misc]
        for name in CPU_BATCH
    }
    models = {**CHAINS, **ACROSS, **TAILS, **PRODUCTS, **CONVOLUTIONS, **ATTENTION}
    return {**found, **_made(models, size)}


def table(size: str) -> dict[str, Callable[[], Entry]]:
    """Single operators at 64 MB (256 MB on a GPU), in a fixed order."""
    return _made(TABLE, size)


def _made(lines: Lines, size: str) -> dict[str, Callable[[], Entry]]:
    return {
        name: (lambda module=module, inputs=inputs: (module(), inputs(size)))  # type: ignore[misc]
        for name, (module, inputs) in lines.items()
    }
