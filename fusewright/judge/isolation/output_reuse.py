"""Outputs of many calls, kept alive -> is the memory of one handed out again, or not its caller's?

A ring of buffers longer than the calls that anybody compares looks right. But while a caller holds
an output, no other call may return its memory; and some calls later nobody else may own it either,
or that owner will write to it some day.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

MOST_BYTES = 8 << 20  # that are kept; what allocators do with more would hide a leak
OLD = 16  # calls: a model may remember the last few of its answers
_detach, _storage = Tensor.detach, Tensor.untyped_storage
_owners = getattr(torch._C, "_storage_Use_Count", None)


class Kept:
    """The memory of the outputs of earlier calls, without the tensors that the model returned."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        """known: arguments and parameters, whose memory an output may share."""
        self._known = {_storage(t).data_ptr() for t in known} | {0}
        self._calls: list[list[Tensor]] = []
        self._bytes = 0
        self._seen: dict[int, int] = {}  # address -> number of the call
        self.reused = ""

    def add(self, results: Sequence[Tensor]) -> None:
        """What the next call returned."""
        own = [_detach(t) for t in results if _storage(t).data_ptr() not in self._known]
        number, places = len(self._calls), {_storage(t).data_ptr() for t in own}
        for place in places:
            if place in self._seen and not self.reused:
                age = number - self._seen[place]
                self.reused = f"a call returned memory that an output {age} calls before it has"
        size = sum(t.numel() * t.element_size() for t in own)
        if self._bytes + size <= MOST_BYTES:
            self._bytes += size
            self._calls.append(own)
            self._seen |= dict.fromkeys(places, number)

    def says(self) -> str:
        """What is wrong, in one line; empty if nothing is."""
        return self.reused or self._owned()

    def _owned(self) -> str:
        if _owners is None:
            return ""
        old = [t for call in self._calls[:-OLD] for t in call]
        kept = Counter(_storage(t).data_ptr() for t in old)
        others = [t for t in old if self._others(t) > kept[_storage(t).data_ptr()]]
        if not others:
            return ""
        return f"{len(others)} of {len(old)} outputs have another owner {OLD} and more calls later"

    def _others(self, t: Tensor) -> int:
        """How many tensors have this memory."""
        assert _owners is not None
        storage = _storage(t)
        return int(_owners(storage._cdata)) - 1  # one owner is `storage` itself
