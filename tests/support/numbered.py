"""A compiled model with numbers in place of the model's words: what tests of a text look for."""

from __future__ import annotations

from dataclasses import replace

from fusewright.compiler.compilation import Compilation
from fusewright.kernels.registry import kernel_text


def numbered(made: Compilation) -> Compilation:
    """The same kernels, whose values are `v0`, whose pointers are `in0` and `out0`."""
    kernels = tuple(
        (kernel_text(nest, strategy, made.layout.in_place[text.name]), nest, strategy)
        for text, nest, strategy in made.kernels
    )
    return replace(made, kernels=kernels)
