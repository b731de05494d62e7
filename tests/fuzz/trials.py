"""What random models run on: as drawn, special values, other batch sizes; what is wrong then."""

from __future__ import annotations

import copy
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tests.fuzz.writer import Facts
from tests.support.agreement import called, copied, disagreements, moved


def wrong(
    ours: nn.Module,
    theirs: nn.Module,
    drawn: Sequence[object],
    seed: int,
    counts: Counter[str],
    known: Facts = Facts(),  # noqa: B008 -- frozen
) -> Iterator[str]:
    """How the modules differ. counts: grows by what was tried. known: what the program says."""
    if (mine := owners(ours)) != (other := owners(theirs)):
        yield f"parameters and buffers are shared otherwise: {mine} instead of {other}"
    for name, inputs in trials(drawn, seed).items():
        if asserts(theirs, inputs):
            counts["refused on a CPU"] += 1
            continue
        if (refused := refuses(theirs, inputs)) is not None:
            counts["refused by both"] += 1
            if refuses(ours, inputs) is not refused:
                yield f"{name}: eager raises {refused.__name__}, and this does not"
            continue
        counts[name if name in ("as drawn", "special") else "other batch"] += 1
        judged = partial(
            disagreements, ours, theirs, inputs, exact=known.float64, roundings=8, bits=known.exact
        )
        if judged():
            # Eager is what it is without oneDNN, whose gelu of infinity is NaN.
            with torch.backends.mkldnn.flags(enabled=False):
                yield from (f"{name}: {text}" for text in judged())


def allowed(why: str, known: Facts) -> bool:
    """Whether a model may be left uncaptured so: one of its kind, for the true reason."""
    return bool(known.refused) and re.search(known.refused, why, re.IGNORECASE) is not None


def owners(module: nn.Module) -> dict[str, str]:
    """Each parameter and buffer by all its names, and the first name of its memory."""
    named: list[tuple[str, Tensor]] = [*module.named_parameters(remove_duplicate=False)]
    named += module.named_buffers(remove_duplicate=False)
    first: dict[int, str] = {}
    for name, tensor in named:
        first.setdefault(tensor.untyped_storage().data_ptr(), name)
    return {name: first[tensor.untyped_storage().data_ptr()] for name, tensor in named}


def refuses(module: nn.Module, inputs: Sequence[object]) -> type | None:
    """What the module raises."""
    try:
        called(copy.deepcopy(module), copied(inputs))
    except (RuntimeError, ValueError, IndexError) as error:
        if "CUDA error" in str(error):
            raise
        return type(error)
    return None


def asserts(module: nn.Module, inputs: Sequence[object]) -> bool:
    """Whether a GPU may stop at an index that a CPU refuses: nobody can be asked behind that."""
    if not any(isinstance(t, torch.Tensor) and t.is_cuda for t in pytree.tree_leaves(list(inputs))):
        return False
    return refuses(copy.deepcopy(module).cpu(), moved(inputs, "cpu")) is not None


def trials(drawn: Sequence[object], seed: int) -> dict[str, Sequence[object]]:
    """What a model runs on: as drawn, special values, other batch sizes."""
    sizes = leading(drawn)
    counts = (1, sizes[0] + 1, 2 * sizes[0] + 3) if sizes and sizes[0] > 1 else ()
    others = {f"{n} rows": rows(drawn, n) for n in counts}
    return {"as drawn": drawn, "special": special(drawn, seed), **others}


def special(inputs: Sequence[object], seed: int) -> list[object]:
    """The same tensors with what is seldom drawn: NaN, infinities, zeros, equal elements."""
    rng = random.Random(seed)
    kind = rng.choice(("nan", "inf", "-inf", "several", "zero", "equal"))
    return [pytree.tree_map(lambda v: _special(v, kind, rng), v) for v in inputs]


def _special(value: object, kind: str, rng: random.Random) -> object:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
        return value
    if kind in ("zero", "equal"):
        return torch.full_like(value, 0.0 if kind == "zero" else rng.uniform(-2, 2))
    value = value.clone()
    for number in ("nan", "inf", "-inf") if kind == "several" else (kind,):
        place = tuple(rng.randrange(s) for s in value.shape)
        value[place] = float(number)
    return value


def rows(inputs: Sequence[object], count: int) -> list[object]:
    """Tensors of as many rows, where they had as many as the first one, that lie as they did."""
    sizes = leading(inputs)

    def changed(value: object) -> object:
        if not isinstance(value, torch.Tensor) or not value.dim() or value.shape[0] != sizes[0]:
            return value
        more = value[torch.arange(count, device=value.device) % sizes[0]]
        more = more * torch.rand_like(more) if more.is_floating_point() else more
        order = sorted(range(value.dim()), key=value.stride, reverse=True)
        laid = torch.empty_permuted(more.shape, order, dtype=more.dtype, device=more.device)
        return laid.copy_(more)

    return [pytree.tree_map(changed, v) for v in inputs]


def leading(inputs: Sequence[object]) -> list[int]:
    """The first size of each tensor that has one."""
    found = [v for v in pytree.tree_leaves(list(inputs)) if isinstance(v, torch.Tensor)]
    return [v.shape[0] for v in found if v.dim()]
