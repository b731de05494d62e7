"""A call of the exported program, or a function by its name -> what people call it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

OPERATOR = "OpOverload."  # in front of the name of an ATen call that Python made itself
# Functions that are written with many others, of which a name says more.
COMPOSITE = frozenset({"multi_head_attention_forward"})
# What people call it, where PyTorch has a longer word.
WORDS: Mapping[str, str] = MappingProxyType(
    {
        "rsub": "sub",
        "scaled_dot_product_attention": "attention",
        "binary_cross_entropy_with_logits": "binary_cross_entropy",
        "native_layer_norm": "layer_norm",
        "native_group_norm": "group_norm",
        "native_batch_norm_legit": "batch_norm",
        "native_batch_norm_legit_functional": "batch_norm",
        "native_batch_norm_legit_no_training": "batch_norm",
    }
)


def call_word(n: torch.fx.Node) -> str:
    """What Python called, or the ATen call where that has no name of its own."""
    function = function_of(n)[1]
    name = function.rpartition(".")[2] if not function.startswith(OPERATOR) else ""
    if not name or name.startswith("_") or name in COMPOSITE:
        name = str(n.meta.get("original_aten") or n.target).removeprefix("aten.").partition(".")[0]
    return word_of(name)


def function_of(n: torch.fx.Node) -> tuple[str, str]:
    """What Python called, as torch.export notes it: a name for this one call, then the function."""
    call, function = n.meta.get("torch_fn") or ("", "")
    return str(call), str(function)


def word_of(name: str) -> str:
    """What a function of this name is called."""
    plain = name.strip("_")
    return WORDS.get(plain, plain)
