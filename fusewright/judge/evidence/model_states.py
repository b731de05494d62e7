"""A model -> what its parameters and buffers may hold, and its float64 twin.

Trained weights are no longer what a constructor draws, and a candidate must be right for both. What
the model cannot bear, a matrix that is no longer positive definite for example, is not asked.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from types import CellType, FunctionType
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fusewright.judge.evidence.float64_forward import on_parts
from fusewright.judge.evidence.float64_twins import POOL, repeated, scaled

# How far random values may be from a model's own. Most models take any; a matrix that must be
# positive definite stays so only where it is moved a little, or multiplied as a whole.
Spread = Literal["far", "near", "factor"]
SPREADS: tuple[Spread, ...] = ("far", "near", "factor")


def same(a: Tensor, b: Tensor) -> bool:
    """The same numbers, NaN included."""
    return torch.equal(a, b) or torch.allclose(a, b, 0.0, 0.0, equal_nan=True)


def memory(device: str) -> int:
    """Bytes of the machine, or of its GPU."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[1]
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def twin(model: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """The model for float64; the memory of parameters that every call replaces is never used."""
    memo: dict[int, object] = {
        id(p): nn.Parameter(torch.empty(p.shape, dtype=torch.float64, device=p.device), False)
        for p in state.values()
        if type(p) is nn.Parameter and p.is_floating_point()
    }
    return cast(model, torch.float64, memo)


def cast(model: nn.Module, dtype: torch.dtype, memo: dict[int, object]) -> nn.Module:
    """A copy of another type: plain tensors, too, and functions that close over its modules.

    memo: what stands for what already.
    """
    for t in (t for m in model.modules() for t in pytree.tree_leaves(vars(m))):
        if type(t) is Tensor and (t.is_floating_point() or t.is_complex()):
            memo.setdefault(id(t), _of_type(t.detach(), dtype).clone())
    other = copied(model, memo)
    other._apply(lambda t: _of_type(t, dtype))  # type: ignore[no-untyped-call]
    for m in other.modules():
        for name, f in [*vars(m).items()]:
            if isinstance(f, FunctionType) and f.__closure__:
                vars(m)[name] = _closing_over(f, memo)
    return other


def copied(model: nn.Module, memo: dict[int, object]) -> nn.Module:
    """A deep copy; what nobody can copy (a lock, an open file, a module of Python) is shared.

    memo: what stands for what already.
    """
    tried = dict(memo)
    try:
        other = copy.deepcopy(model, tried)
        memo.update(tried)
    # Whatever an attribute's own code says to being copied.
    except Exception:  # noqa: BLE001
        for m in model.modules():
            for value in pytree.tree_leaves(vars(m)):
                if not isinstance(value, (Tensor, nn.Module)):
                    memo.update(_shared(value))
        other = copy.deepcopy(model, memo)
    return other


def _shared(value: object) -> Mapping[int, object]:
    """What stands for an attribute that nobody can copy."""
    if isinstance(value, torch.Generator):
        return {id(value): value.clone_state()}
    try:
        copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - as above
        return {id(value): value}
    return {}


def _of_type(t: Tensor, dtype: torch.dtype) -> Tensor:
    if t.is_complex():
        return t.to(dtype.to_complex())
    return t.to(dtype) if t.is_floating_point() else t


def _closing_over(f: FunctionType, memo: Mapping[int, object]) -> FunctionType:
    inside = [c.cell_contents for c in f.__closure__ or ()]
    cells = tuple(CellType(memo.get(id(v), v)) for v in inside)
    found = FunctionType(f.__code__, f.__globals__, f.__name__, f.__defaults__, cells)
    found.__kwdefaults__ = f.__kwdefaults__
    return found


def redrawn(t: Tensor, kind: str, draws: torch.Generator, spread: Spread = "far") -> Tensor:
    """Values of the same sign and rough size; constants, which hide mistakes, become random."""
    if t.is_complex():
        return on_parts(t.detach(), lambda x: redrawn(x, kind, draws, spread))
    if not t.is_floating_point() or not t.numel():
        return t.clone()
    flat = t.flatten()
    low, high = torch.aminmax(flat)
    finite = bool(torch.isfinite(low + high))
    if not finite:
        usable = flat[torch.isfinite(flat)]
        low, high = torch.aminmax(usable) if usable.numel() else (flat[0], flat[-1])
    if bool(low != high) and kind != "P":
        return t.clone()  # a table or a mask: its values mean something
    kept = torch.promote_types(t.dtype, torch.float32)
    count = min(t.numel(), POOL)
    noise = torch.rand(count, generator=draws, dtype=kept, device=t.device)
    if spread != "far":
        size = noise.mul_(2.0**-4).add_(1.0) if spread == "near" else noise[:1].add_(0.5)
        return scaled(flat, size).to(t.dtype).view(t.shape)
    if bool(low != high):
        turn = int(torch.randint(t.numel(), (), generator=draws, device=t.device))
        new = scaled(flat.roll(turn), noise.mul_(0.5).add_(0.75))
    elif bool(low == 0):
        new = repeated(noise.sub_(0.5), flat.shape)
    else:
        new = scaled(flat, noise.add_(0.5))
    new = new.to(t.dtype)
    return (new if finite else torch.where(torch.isfinite(flat), new, flat)).view(t.shape)
