"""Arguments of a model -> the tensors in them, or the same arguments with each tensor replaced.

Unlike PyTorch's own trees these keep which tensors overlap: what lay in one memory does so
afterwards, or a candidate would be asked something else than eager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewright.common.call_arguments import like
from fusewright.common.containers import kind_of


def tensors(value: object) -> Iterator[Tensor]:
    """All tensors in containers, in order."""
    if isinstance(value, Tensor):
        yield value
    elif kind := kind_of(value):
        for _, item in kind.parts(value):
            yield from tensors(item)


def nbytes(given: Iterable[Tensor]) -> int:
    """Of all their elements."""
    return sum(t.numel() * t.element_size() for t in given)


def elements(values: Sequence[object]) -> int:
    """Of all tensors in these arguments."""
    return sum(t.numel() for t in tensors(list(values)))


def mapped(inputs: Sequence[object], change: Callable[[Tensor], Tensor]) -> list[object]:
    """The arguments with each tensor replaced by a changed leaf; everything else as it is.

    change: gives a tensor of the same sizes in new memory.  Tensors that overlap do so again: what
    forward writes to one of them shows in the others.
    """
    shared = _overlapping(inputs)
    changed: dict[int, Tensor] = {}

    def walk(value: Any) -> Any:
        if isinstance(value, Tensor) and id(value) in shared:
            whole = shared[id(value)]
            if id(whole) not in changed:
                changed[id(whole)] = change(whole)
            offset = value.storage_offset() - whole.storage_offset()
            made = changed[id(whole)].as_strided(value.shape, value.stride(), offset)
            return made.detach().requires_grad_(value.requires_grad)
        if isinstance(value, Tensor):
            return change(value.detach()).requires_grad_(value.requires_grad)
        kind = kind_of(value)
        if kind is None:
            return value
        keys, items = zip(*kind.parts(value), strict=True) if kind.parts(value) else ((), ())
        return kind.make(type(value), kind.extra(value), keys, [walk(item) for item in items])

    return like(inputs, [walk(value) for value in inputs])


def _overlapping(inputs: Sequence[object]) -> dict[int, Tensor]:
    """Of each tensor that overlaps another one: all the memory, as a line of numbers, that it and
    those that it overlaps reach. Only numbers of one type count as shared."""
    found = [t.detach() for value in inputs for t in tensors(value)]
    names = [id(t) for value in inputs for t in tensors(value)]
    plain = [
        (int(t.storage_offset()), int(t.storage_offset()) + _reach(t), name, t)
        for name, t in zip(names, found, strict=True)
        if t.layout is torch.strided and t.device.type != "meta" and t.numel()
    ]
    groups: dict[tuple[int, torch.dtype], list[tuple[int, int, int, Tensor]]] = {}
    for row in plain:
        memory = row[3].untyped_storage().data_ptr(), row[3].dtype
        groups.setdefault(memory, []).append(row)
    wholes: dict[int, Tensor] = {}
    for rows in groups.values():
        rows.sort(key=lambda row: row[:2])
        runs = [[rows[0]]]
        for row in rows[1:]:
            meets = row[0] < max(end for _, end, _, _ in runs[-1])
            runs = [*runs[:-1], [*runs[-1], row]] if meets else [*runs, [row]]
        for run in (run for run in runs if len(run) > 1):
            start, end = run[0][0], max(end for _, end, _, _ in run)
            whole = run[0][3].as_strided((end - start,), (1,), start)
            wholes |= {name: whole for _, _, name, _ in run}
    return wholes


def _reach(t: Tensor) -> int:
    """How many numbers of memory lie from its first to its last one."""
    steps = zip(t.shape, t.stride(), strict=True)
    return 1 + sum((int(size) - 1) * int(step) for size, step in steps)


def upcast(t: Tensor) -> Tensor:
    """The same value in double precision; integers and booleans are copied as they are."""
    wide = t.double() if t.is_floating_point() else t
    wide = t.to(torch.complex128) if t.is_complex() else wide
    return wide.clone() if wide is t else wide
