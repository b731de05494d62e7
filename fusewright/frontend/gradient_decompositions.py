"""Which operators of forward and backward graphs are written with others before they are lowered.

Derivatives of what kernels compute are element by element, or sums; PyTorch's own formulas write
them so. What PyTorch has routines for, as convolutions, attention and embeddings, stays whole.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch._decomp import get_decompositions

aten = torch.ops.aten
# Derivatives, by name.
BACKWARD = (
    *("threshold_backward", "gelu_backward", "silu_backward", "sigmoid_backward", "tanh_backward"),
    *("hardtanh_backward", "hardsigmoid_backward", "hardswish_backward", "elu_backward"),
    *("leaky_relu_backward", "softplus_backward", "mish_backward", "glu_backward"),
    *("_softmax_backward_data", "_log_softmax_backward_data", "native_layer_norm_backward"),
    *("native_group_norm_backward", "native_batch_norm_backward", "mse_loss_backward"),
    *("smooth_l1_loss_backward", "huber_loss_backward", "nll_loss_backward", "logit_backward"),
    *("binary_cross_entropy_backward", "select_backward", "slice_backward"),
    *("native_dropout_backward", "rrelu_with_noise_backward", "softshrink_backward"),
    *("hardshrink_backward", "log_sigmoid_backward", "unfold_backward"),
)
# Results that forward graphs ask for beside the one that a model sees.
FORWARD = ("log_sigmoid_forward",)


@cache
def gradient_decompositions() -> dict[Any, Any]:
    """The table that AOTAutograd takes."""
    packets = [getattr(aten, name) for name in (*BACKWARD, *FORWARD) if hasattr(aten, name)]
    return dict(get_decompositions(packets))
