"""A state in which tensors are one, or lie in one memory -> a changed state in which they still do.

A model that ties its weights has one tensor under several names, and a write to one is seen under
all. Whoever makes other values for a state (copies, float64, random ones) asks here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

Change = Callable[[str, Tensor], Tensor]


def each(state: Mapping[str, Tensor], change: Change) -> dict[str, Tensor]:
    """Every tensor changed, once; `change` gets the first of its names."""
    made: dict[int, Tensor] = {}
    for name, t in state.items():
        if id(t) not in made:
            made[id(t)] = change(name, t)
    for group in _neighbours(state):
        _lay_together(group, made)
    return {name: made[id(t)] for name, t in state.items()}


def first_names(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Every name, and the first name of the same tensor."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(t), name) for name, t in state.items()}


def place_in(known: Sequence[Tensor], t: Tensor) -> int:
    """Which of these lies in the same memory, the first one; -1 if none does."""
    pointer = t.untyped_storage().data_ptr()
    matches = (i for i, k in enumerate(known) if k.untyped_storage().data_ptr() == pointer)
    return next(matches, -1) if pointer else -1


def slots(module: nn.Module) -> Iterator[str]:
    """A name for each place that holds a parameter or a buffer. A module that is held under two
    names has its places once: what is replaced twice in one place, PyTorch does not put back."""
    for path, child in module.named_modules():
        for name, t in (*child._parameters.items(), *child._buffers.items()):
            if t is not None:
                yield f"{path}.{name}" if path else name


def _neighbours(state: Mapping[str, Tensor]) -> list[list[Tensor]]:
    """Tensors of one type that are several, but lie in one memory."""
    groups: dict[tuple[int, torch.dtype], dict[int, Tensor]] = {}
    for t in state.values():
        pointer = t.untyped_storage().data_ptr()
        if pointer:
            groups.setdefault((pointer, t.dtype), {})[id(t)] = t
    return [list(group.values()) for group in groups.values() if len(group) > 1]


def _lay_together(group: list[Tensor], made: dict[int, Tensor]) -> None:
    """Their changed values in one new memory; where two overlap, the later one's count."""
    example = made[id(group[0])]
    if any(made[id(t)] is t for t in group):
        return  # not copied: they lie as they lay
    size = group[0].untyped_storage().nbytes() // group[0].element_size()
    memory = torch.zeros(size, dtype=example.dtype, device=example.device)
    for t in group:
        place = memory.as_strided(t.shape, t.stride(), t.storage_offset())
        place.copy_(made[id(t)].detach())
        made[id(t)] = place.requires_grad_(made[id(t)].requires_grad)
