"""Models of public shapes with random weights: ResNet-18, BERT's encoder, GPT-2 (small), a Llama.

The sizes are those of the public configurations (torchvision's resnet18; bert-base; gpt2;
TinyLlama 1.1B, of which fewer layers may be asked for); nothing is downloaded. Dropout is off, so
that results can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _Block(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, given: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(given, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = (
            nn.Sequential(nn.Conv2d(given, width, 1, stride, bias=False), nn.BatchNorm2d(width))
            if stride > 1 or given != width
            else None
        )

    def forward(self, x: Tensor) -> Any:
        kept = x if self.downsample is None else self.downsample(x)
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + kept)


class ResNet18(nn.Module):
    """Images [batch, 3, 224, 224] -> [batch, 1000]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        pairs = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        blocks = [b for a, w, s in pairs for b in (_Block(a, w, s), _Block(w, w, 1))]
        self.layers, self.fc = nn.Sequential(*blocks), nn.Linear(512, 1000)

    def forward(self, x: Tensor) -> Any:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        return self.fc(F.adaptive_avg_pool2d(self.layers(x), 1).flatten(1))


class _Gpt2Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Any:
        parts = self.c_attn(self.ln_1(x)).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in parts)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(seen.transpose(1, 2).flatten(2))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """Tokens [batch, length] -> logits [batch, length, 50257]; the head is the embedding."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(50257, width), nn.Embedding(1024, width)
        self.h = nn.ModuleList(_Gpt2Layer(width, heads) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, 50257, bias=False)
        for table in (self.wte, self.wpe):
            nn.init.normal_(table.weight, std=0.02)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Any:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.h:
            x = layer(x)
        return self.lm_head(self.ln_f(x))


class _LlamaLayer(nn.Module):
    def __init__(self, width: int, heads: int, shared: int, inner: int) -> None:
        super().__init__()
        self.heads, self.shared, depth = heads, shared, width // heads
        self.input_norm, self.post_norm = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, shared * depth, bias=False)
        self.v_proj = nn.Linear(width, shared * depth, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Any:
        y, times = self.input_norm(x), self.heads // self.shared
        q = _in_heads(self.q_proj(y), self.heads)
        k, v = (_in_heads(p(y), self.shared) for p in (self.k_proj, self.v_proj))
        q, k = (t * cos + _turned(t) * sin for t in (q, k))
        k, v = (t.repeat_interleave(times, 1) for t in (k, v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(seen.transpose(1, 2).flatten(2))
        y = self.post_norm(x)
        return x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))


def _in_heads(x: Any, heads: int) -> Any:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


class Llama(nn.Module):
    """Tokens [batch, length] -> logits [batch, length, 32000]."""

    frequencies: Tensor

    def __init__(self, layers: int = 22, width: int = 2048, inner: int = 5632) -> None:
        super().__init__()
        heads, shared = 32, 4
        self.embed = nn.Embedding(32000, width)
        self.layers = nn.ModuleList(_LlamaLayer(width, heads, shared, inner) for _ in range(layers))
        self.norm, self.lm_head = nn.RMSNorm(width, 1e-5), nn.Linear(width, 32000, bias=False)
        depth = width // heads
        steps = 10000.0 ** -(torch.arange(0, depth, 2) / depth)
        self.register_buffer("frequencies", steps, persistent=False)
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Any:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        angles = places.float()[:, None] * self.frequencies
        angles = torch.cat((angles, angles), -1)
        x, cos, sin = self.embed(tokens), angles.cos(), angles.sin()
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.lm_head(self.norm(x))


@dataclass(frozen=True)
class PublicShape:
    """A model, what it is given, and the loss of a training step (results, what it was given)."""

    make: Callable[[], nn.Module]
    draw: Callable[[], Tensor]
    loss: Callable[[Tensor, Tensor], Tensor]


def _classes(logits: Tensor, x: Tensor) -> Tensor:
    return F.cross_entropy(logits, torch.arange(len(x), device=x.device))


def _next_token(logits: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def _encoder() -> nn.Module:
    """Embedded tokens [batch, length, 768] -> the same, in 12 of PyTorch's own layers."""
    layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.0, "gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)


def _squares(results: Tensor, _: Tensor) -> Tensor:
    return results.square().mean()


def public_shapes(*, small: bool) -> dict[str, PublicShape]:
    """small: for a CPU of few cores: smaller batches, and fewer layers of the Llama."""
    batch, length, layers = (1, 64, 2) if small else (4, 512, 8)
    images = partial(torch.randn, 1 if small else 32, 3, 224, 224)
    return {
        "resnet18": PublicShape(ResNet18, images, _classes),
        "encoder": PublicShape(_encoder, partial(torch.randn, batch, length, 768), _squares),
        "gpt2": PublicShape(Gpt2, partial(torch.randint, 50257, (batch, length)), _next_token),
        "llama": PublicShape(
            partial(Llama, layers), partial(torch.randint, 32000, (batch, length)), _next_token
        ),
    }
