"""Layers of PyTorch with a fast path -> the path that they take when nobody looks on.

In eval mode without gradients, nn.TransformerEncoderLayer and nn.MultiheadAttention are one call of
PyTorch each. What it computes differs where a mask hides a whole row: NaN there, where the other
path gives zeros, and on a GPU its GELU is the approximation by tanh (the epilogue of cuBLASLt in
`_addmm_activation`). A trace, and any function mode, has them take the other path. So traces with a
mask take the fast one, which is a call of the library then, and those of layers with GELU for a GPU
the other one with that GELU; else both mean the same.
nn.TransformerEncoder packs its rows where a padding mask hides only ends of rows, and what was
packed comes back as zeros where it was padded: a choice that a graph can make. It also asks whether
a mask is the causal one. That is a hint for who computes attention, and the mask is given all the
same, so traces do not ask.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.modules import activation, transformer

from fusewright.common.unobserved_layers import unwatched
from fusewright.errors import CaptureFailed
from fusewright.frontend.unknown_sizes import fake_rules

LAYER = torch.ops.aten._transformer_encoder_layer_fwd.default
ATTENTION = torch.ops.aten._native_multi_head_attention.default
WITH_FAST_PATH = (nn.TransformerEncoderLayer, nn.MultiheadAttention, nn.TransformerEncoder)
MASKS = ("src_mask", "src_key_padding_mask", "attn_mask", "key_padding_mask")


@contextmanager
def masked_as_eager(device: str = "cpu") -> Iterator[None]:
    """Within the block, traces of these layers mean what eager computes, where it takes the fast
    path, too. device: "cpu" or "cuda", where what is traced will run."""
    kept = [(kind, kind.forward) for kind in WITH_FAST_PATH]
    for kind, forward in kept[:2]:
        setattr(kind, "forward", _fast(forward, device))  # noqa: B010
    setattr(nn.TransformerEncoder, "forward", _unpacked(nn.TransformerEncoder.forward))  # noqa: B010
    detect = transformer._detect_is_causal_mask
    setattr(transformer, "_detect_is_causal_mask", _hinted)  # noqa: B010
    try:
        with fake_rules({LAYER: _layer_sizes, ATTENTION: _attention_sizes}):
            yield
    finally:
        setattr(transformer, "_detect_is_causal_mask", detect)  # noqa: B010
        for kind, forward in kept:
            setattr(kind, "forward", forward)  # noqa: B010


def _fast(forward: Callable[..., Any], device: str) -> Callable[..., Any]:
    signature = inspect.signature(forward)

    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        masked = any(given.get(name) is not None for name in MASKS)
        if not (masked or (device == "cuda" and _has_gelu(given["self"]))):
            return forward(*args, **kwargs)
        try:
            with _untraced(torch._transformer_encoder_layer_fwd if masked else _take):
                made = forward(*args, **kwargs)
        except _FastPathTaken:
            with _gelu_by_tanh(given["self"]):
                return forward(*args, **kwargs)
        # Without weights the call gives None for them, and the trace a tensor that nobody reads.
        return (made[0], None) if given.get("need_weights") is False else made

    return run


class _FastPathTaken(Exception):
    """A layer is about to take its fast path."""


def _take(*_: object, **__: object) -> NoReturn:
    raise _FastPathTaken


@contextmanager
def _untraced(fast: Callable[..., Any]) -> Iterator[None]:
    """Within the block, layers take the path that they take where nothing is traced. fast: what the
    fast path of an encoder layer calls."""
    kept = activation._is_make_fx_tracing, torch._transformer_encoder_layer_fwd
    setattr(activation, "_is_make_fx_tracing", lambda: False)  # noqa: B010
    setattr(torch, "_transformer_encoder_layer_fwd", fast)  # noqa: B010
    try:
        with unwatched():
            yield
    finally:
        setattr(activation, "_is_make_fx_tracing", kept[0])  # noqa: B010
        setattr(torch, "_transformer_encoder_layer_fwd", kept[1])  # noqa: B010


@contextmanager
def _gelu_by_tanh(layer: Any) -> Iterator[None]:
    """Within the block, an encoder layer has the GELU of its fast path on a GPU. Like that path, it
    asks no method of a class of the user's."""

    def feed_forward(x: torch.Tensor) -> torch.Tensor:
        inner = functional.gelu(layer.linear1(x), approximate="tanh")
        made: torch.Tensor = layer.dropout2(layer.linear2(layer.dropout(inner)))
        return made

    attention = functools.partial(nn.TransformerEncoderLayer._sa_block, layer)
    blocks = {"_ff_block": feed_forward, "_sa_block": attention}
    layer.__dict__.update(blocks)
    try:
        yield
    finally:
        for name in blocks:
            del layer.__dict__[name]


def _has_gelu(layer: nn.Module) -> bool:
    """Whether the fast path of a layer in eval mode has GELU, not ReLU."""
    return getattr(layer, "activation_relu_or_gelu", 0) == 2 and not layer.training


def _unpacked(forward: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(forward)

    @functools.wraps(forward)
    def run(self: nn.TransformerEncoder, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs).arguments
        packs = (
            torch.backends.mha.get_fastpath_enabled()
            and getattr(self, "use_nested_tensor", False)
            and not self.layers[0].training
            and given["src"].dim() == 3
            and given.get("src_key_padding_mask") is not None
            and given.get("mask") is None
            and not torch.is_autocast_enabled()
        )
        if not packs:
            return forward(self, *args, **kwargs)
        padding = given["src_key_padding_mask"]
        if padding.dtype is not torch.bool or not getattr(self, "mask_check", True):
            raise CaptureFailed(
                "nn.TransformerEncoder packs its rows by a src_key_padding_mask of numbers, or by "
                "one that it does not check, and its results depend on the values of the mask. "
                "Give it a mask of bool, or construct it with enable_nested_tensor=False."
            )
        return _packed(self, given["src"], padding)

    return run


def _packed(encoder: nn.TransformerEncoder, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
    """What the encoder gives where it may pack its rows: zeros for what only ends of rows hide."""
    hidden = torch.zeros_like(padding, dtype=x.dtype).masked_fill(padding, -torch.inf)
    for layer in encoder.layers:
        x = layer(x, src_mask=None, is_causal=False, src_key_padding_mask=hidden)
    ends = (padding[:, 1:] | ~padding[:, :-1]).all()
    x = x.masked_fill((padding & ends).unsqueeze(-1), 0.0)
    return x if encoder.norm is None else encoder.norm(x)


def _hinted(
    mask: torch.Tensor | None,  # noqa: ARG001
    is_causal: bool | None = None,
    size: int | None = None,  # noqa: ARG001
) -> bool:
    """What the caller says of a mask; without a word, it is one like any other."""
    return is_causal is True


def _layer_sizes(
    mode: FakeTensorMode, _: Any, x: torch.Tensor, *__: Any, **___: Any
) -> torch.Tensor:
    with mode:
        return torch.empty_like(x, memory_format=torch.contiguous_format)


def _attention_sizes(
    mode: FakeTensorMode, _: Any, query: torch.Tensor, key: torch.Tensor, *args: Any, **options: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The result, and the weights of each head, or their mean."""
    named = (
        "value", "width", "heads", "qkv", "bias", "project", "shift", "mask", "need_weights",
        "average_attn_weights", "mask_type",
    )  # fmt: skip
    given = {"need_weights": True, "average_attn_weights": True}
    given |= {**dict(zip(named, args, strict=False)), **options}
    batch, rows, columns = query.shape[0], query.shape[1], key.shape[1]
    with mode:
        result = torch.empty_like(query, memory_format=torch.contiguous_format)
        if not given["need_weights"]:
            return result, query.new_empty(0)
        heads = () if given["average_attn_weights"] else (given["heads"],)
        return result, query.new_empty((batch, *heads, rows, columns))
