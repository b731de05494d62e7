"""Convolution node -> whether PyTorch's own one rounds its operands as TF32 does, on this GPU.

cuDNN chooses an algorithm for every size, and most, but not all of them round. A kernel that rounds
may only stand in for one that does, so the emitted file asks before it runs one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fusewright.frontend.float32_precision import CONV_USES_TF32
from fusewright.ir.graph import Node, Size, Sizes, size_text
from fusewright.ir.specs import ConvSpec, spec_of
from fusewright.kernels.conv.geometry import TRANSPOSED, geometry
from fusewright.kernels.interface import Tf32Probe

SETTINGS = {
    "conv": ("conv", ("stride", "padding", "dilation", "groups")),
    TRANSPOSED: (
        "conv_transpose",
        ("stride", "padding", "output_padding", "groups", "dilation"),
    ),
}


def probe_arguments(n: Node, text_of: Callable[[Size], str] = size_text) -> list[str]:
    """What the emitted `_fusewright_conv_uses_tf32` is asked. text_of: of a size."""
    image, weight = (", ".join(map(text_of, a.shape)) for a in n.args)
    function, names = SETTINGS[n.op]
    spec = spec_of(n, ConvSpec)
    call = f"torch.nn.functional.{function}{spec.rank}d"
    last = [f"last=(True, {geometry(n).last_weights})"] if n.order else []
    settings = [repr(getattr(spec, name)) for name in names]
    return [call, f"({image})", f"({weight})", *settings, "device", *last]


def probe_expression(n: Node) -> str:
    """The question as the emitted file asks it."""
    return f"_fusewright_conv_uses_tf32({', '.join(probe_arguments(n))})"


def probe_this_gpu(sizes: Sizes) -> Tf32Probe:
    """Asks this machine's GPU, as the emitted file will, at these free sizes."""
    scope: dict[str, Any] = {"torch": torch, "device": torch.device("cuda"), **sizes}
    exec(CONV_USES_TF32, scope)
    return lambda n: bool(eval(probe_expression(n), scope))
