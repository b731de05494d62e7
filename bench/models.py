"""What the benchmarks run: the four examples, memory-bound chains, the examples' tails, and
convolutions with tails.

Each entry is a function `size -> (module, make_inputs)`; a size is "cpu" or "gpu".
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusewright.problem import load_problem

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


# Folds across memory, elements that are moved, and windows; 256 MB on a GPU.
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


def example(name: str, size: str) -> Entry:
    """One of the four example problems."""
    overrides = {"batch_size": str(CPU_BATCH[name])} if size == "cpu" else {}
    problem = load_problem(EXAMPLES / f"{name}.py", overrides)
    return problem.make_model(), problem.make_inputs  # type: ignore[return-value]


def entries(size: str) -> dict[str, Callable[[], Entry]]:
    """Every benchmark by name."""
    found: dict[str, Callable[[], Entry]] = {
        name: (lambda name=name: example(name, size))  # type: ignore[misc]
        for name in CPU_BATCH
    }
    for name, (module, inputs) in {**CHAINS, **ACROSS, **TAILS, **CONVOLUTIONS}.items():
        found[name] = lambda module=module, inputs=inputs: (module(), inputs(size))  # type: ignore[misc]
    return found
