"""A number -> its C++ text, which keeps every bit."""

from __future__ import annotations

import math

import torch

from fusewright.ir.graph import BatchSize, Size, size_text


def cxx_literal(value: Size | float | bool, kind: str) -> str:
    """A number as C++ text of type `kind`; floats keep every bit."""
    if isinstance(value, BatchSize):
        return f"({kind})({size_text(value)})"
    if kind == "bool":
        return "true" if value else "false"
    if kind not in ("float", "double"):
        least = {"int": -(1 << 31), "long": -(1 << 63)}.get(kind)
        if value == least:  # its absolute value is of a wider type
            return f"({cxx_literal(int(value) + 1, kind)} - 1)"
        narrow = "" if kind in ("int", "long") else f"({kind})"
        return narrow + str(int(value)) + ("L" if kind == "long" else "")
    suffix = "f" if kind == "float" else ""
    if math.isnan(value):
        return f"not_a_number<{kind}>()"
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}infinity<{kind}>()"
    rounded = torch.tensor(value, dtype=torch.float32).item() if kind == "float" else float(value)
    text = repr(float(value)) if kind == "double" else _short(rounded, value)
    return f"{text}{suffix}" if value >= 0 and not text.startswith("-") else f"({text}{suffix})"


def _short(rounded: float, value: float) -> str:
    """The shortest text that is the same float32."""
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        if torch.tensor(float(text), dtype=torch.float32).item() == rounded:
            break
    return repr(float(text))
