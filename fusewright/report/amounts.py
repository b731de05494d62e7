"""Numbers -> text: bytes, operations, seconds, ratios, each with its unit."""

from __future__ import annotations

from collections.abc import Sequence


def counted(count: int, noun: str) -> str:
    """`1 kernel`, `2 kernels`."""
    return f"{count} {noun}{'s' * (count != 1)}"


def tally(words: Sequence[str]) -> str:
    """`2 verified, 1 refuted`, in the order in which the words come first."""
    return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))


BYTES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
OPERATIONS = (("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6))
SECONDS = (("s", 1.0), ("ms", 1e-3))
UNITS = {**dict(BYTES), **dict(OPERATIONS), **dict(SECONDS), "B": 1.0, "FLOP": 1.0, "us": 1e-6}


def amount_of(text: str) -> float:
    """What `bytes_text`, `flops_text` or `time_text` have written, to its three digits: in bytes,
    operations or seconds. Raises ValueError for another text."""
    number, _, unit = text.partition(" ")
    if unit not in UNITS:
        raise ValueError(f"{text!r} is no amount with one of the units {', '.join(UNITS)}")
    return float(number) * UNITS[unit]


def bytes_text(count: int) -> str:
    for unit, size in BYTES:
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"


def flops_text(count: int) -> str:
    for unit, size in OPERATIONS:
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} FLOP"


def time_text(seconds: float) -> str:
    """Of a prediction, which has three digits at most."""
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def seconds_text(value: object) -> str:
    """Of a measurement; what is no number stays as it is."""
    if not isinstance(value, (int, float)):
        return str(value)
    for unit, size in SECONDS:
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value * 1e6:.4g} us"


def times_text(ratio: float) -> str:
    """Of a ratio: two digits behind the point, and no more where it is large."""
    return f"{ratio:.2f}x" if ratio < 100 else f"{ratio:.0f}x"
