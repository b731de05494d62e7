"""What an emitted class says of its own calls -> whether what was timed were its kernels.

`ModelNew.fusewright_status()` counts the calls that ran kernels, and those that ran the original
because its guard refused them. A candidate may say what it likes: it is told, and decides nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

UNKNOWN = "not told: the candidate has no fusewright_status()"
LONGEST = 200  # characters of a reason


def fallback(texts: Sequence[str]) -> tuple[int, str]:
    """How many calls ran the original, and that in a sentence. texts: JSON, as the workers of one
    candidate have it.

    Where one has no count, -1.
    """
    try:
        told = [[*_counts(json.loads(text))] if text else [] for text in texts]
    except (ValueError, TypeError, AttributeError):
        told = []
    found = [count for counts in told for count in counts]
    if not found or not all(told):
        return -1, UNKNOWN
    kernels = sum(count for count, _ in found)
    because = Counter[str]()
    for _, reasons in found:
        because.update(reasons)
    refused = sum(because.values())
    if not refused:
        return 0, f"none: all {kernels} calls ran kernels"
    said = "; ".join(f"{what[:LONGEST]} ({count})" for what, count in because.most_common(3))
    return refused, f"{refused} of {kernels + refused} calls ran the original forward: {said}"


def _counts(status: object) -> Iterator[tuple[int, Mapping[str, int]]]:
    """Of each class: its calls with kernels, and those without by their reason."""
    if not isinstance(status, dict):
        raise TypeError("a status is a dict")
    if "kernels" in status:
        reasons = {str(what): int(count) for what, count in status["because"].items()}
        yield int(status["kernels"]), reasons
        return
    for part in status.values():
        yield from _counts(part)
