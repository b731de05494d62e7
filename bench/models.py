"""What the benchmarks run: the four examples, memory-bound chains, and the examples' tails.

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
    for name, (module, inputs) in {**CHAINS, **TAILS}.items():
        found[name] = lambda module=module, inputs=inputs: (module(), inputs(size))  # type: ignore[misc]
    return found
