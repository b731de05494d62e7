"""get_inputs() -> arguments where the model runs.

One core draws a gigabyte in one or two seconds, and a GPU in some milliseconds. So what is large is
drawn on the GPU, where `get_inputs` makes all its tensors there if they name no device; else, and
always where it is small, on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from fusewright.common.call_arguments import Inputs
from fusewright.common.problem_file import Problem
from fusewright.judge.evidence.pytree import mapped, tensors

LARGE = 16 << 20  # bytes of all arguments together


class Draws:
    """Of one problem, for one device."""

    def __init__(self, problem: Problem, device: str) -> None:
        self._problem, self._device = problem, device
        self._there = device != "cpu"

    @property
    def on_gpu(self) -> bool:
        """Has the last draw been made there?"""
        return self._there

    def draw(self, seed: Callable[[], None]) -> list[object]:
        """A draw; seed: puts all random generators into one state."""
        if self._there and (made := self._made_there(seed)) is not None:
            return made
        self._there = False
        seed()
        return mapped(self._problem.make_inputs(), lambda t: t.to(self._device))

    def _made_there(self, seed: Callable[[], None]) -> Inputs | None:
        """None where it cannot be, or need not."""
        seed()
        try:
            with torch.device(self._device):
                made = self._problem.make_inputs()
        # It was written for another device, and may say so with anything.
        except Exception:  # noqa: BLE001
            return None
        found = [*tensors(made)]
        large = sum(t.numel() * t.element_size() for t in found) >= LARGE
        return made if large and all(t.device.type == self._device for t in found) else None
