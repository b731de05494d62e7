"""Bytes, operations and seconds, as the decision record and emitted files say them."""

from __future__ import annotations


def amount_text(nbytes: int, flops: int) -> str:
    """What is moved and calculated."""
    return f"{bytes_text(nbytes)}, {flops_text(flops)}"


def bytes_text(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"


def flops_text(count: int) -> str:
    for unit, size in (("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} FLOP"


def time_text(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
