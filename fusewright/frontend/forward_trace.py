"""nn.Module + inputs -> ForwardTrace: attributes that `forward` reads, whose memory it returns.

`forward` runs once more on fake tensors with every attribute read noted. A model that changes plain
attributes (a counter, a cache) computes something else at each call, and is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._export.non_strict_utils import _NonStrictTorchFunctionHandler
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fusewright.common.default_device import Placeless
from fusewright.errors import CaptureFailed
from fusewright.frontend.attribute_reads import INTERNAL, PLAIN, Reads, reading
from fusewright.frontend.carried_state import NOTHING, Carried, noted, settled
from fusewright.frontend.export import run_fake, silence, traced_as_eager
from fusewright.frontend.flat_module import flat_arguments
from fusewright.frontend.refusals import cannot_capture
from fusewright.frontend.side_effects import line_of, no_effects


@dataclass(frozen=True)
class ReadAttribute:
    """A plain value or function that `forward` read: the graph holds while it is the same.

    name: of the module's attribute; behind a dot, of that one's own.
    """

    path: str
    name: str
    value: object


@dataclass(frozen=True)
class ForwardTrace:
    """What a run of `forward` has shown.

    settings: while the graph holds.  owners: for each output, positions of inputs and names of
    parameters and buffers whose memory it shows.  memories: for each output, a number, the same for
    those that show one memory.  state: attributes that forward replaces.  left: what it has left
    there.  placeless: for each output, the line that made it where no input lies, or "".
    """

    settings: tuple[ReadAttribute, ...]
    owners: tuple[frozenset[int | str], ...]
    memories: tuple[int, ...]
    state: Carried
    left: Carried
    placeless: tuple[str, ...]


@contextmanager
def put_back(module: nn.Module) -> Iterator[list[str]]:
    """Plain attributes and hooks have their old values behind the block; names of those that had
    changed."""
    before = {path: plain_attributes(child) for path, child in module.named_modules()}
    hooks = [(child, name, held, {**held}) for child, name, held in hooks_of(module)]
    changed: list[str] = []
    try:
        yield changed
    finally:
        changed += [
            f"{type(child).__name__}.{name}"
            for path, child in module.named_modules()
            for name in restore(child, before.get(path, {}))
        ]
        for child, name, held, had in hooks:
            if held != had:
                held.clear()
                held.update(had)
                changed.append(f"{type(child).__name__}.{name}")


def hooks_of(module: nn.Module) -> Iterator[tuple[nn.Module, str, dict[int, object]]]:
    """Every module in it with the names of its registries of hooks, and these."""
    names = [name for name, value in vars(nn.Module()).items() if value == {} and "hooks" in name]
    for child in module.modules():
        yield from ((child, name, vars(child)[name]) for name in names if name in vars(child))


@contextmanager
def no_attribute_changes(module: nn.Module) -> Iterator[None]:
    """Raise CaptureFailed if the block changes a plain attribute; the old values are put back."""
    with put_back(module) as changed:
        yield
    if changed:
        line = line_of(module, changed[0].rpartition(".")[2])
        prefix = f"{line}: " if line else ""
        raise CaptureFailed(
            f"{prefix}{type(module).__name__}.forward changes {', '.join(changed)}: every call "
            "computes something else. Keep such state in a buffer (register_buffer) or outside."
        )


def trace_forward(module: nn.Module, inputs: Sequence[object]) -> ForwardTrace:
    """Run `forward` on fake tensors and note what it reads and returns: once, or, where it replaces
    attributes, until these have settled."""
    with noted(module) as places:
        first = _seen(module, inputs, NOTHING)
    if not places:
        return first
    state = settled(module, places, lambda s: _seen(module, inputs, s).left)
    return _seen(module, inputs, state)


def _seen(module: nn.Module, inputs: Sequence[object], state: Carried) -> ForwardTrace:
    reads: Reads = {}
    try:
        with silence(), traced_as_eager():
            owners, memories, left, placeless = run_fake(
                partial(_shown, module, inputs, state, reads)
            )
    except CaptureFailed:
        raise
    except Exception as error:
        raise cannot_capture(error, type(module)) from error
    read = sorted(reads.items(), key=str)
    settings = tuple(ReadAttribute(path, name, value) for (path, name), value in read)
    return ForwardTrace(settings, owners, memories, state, left, placeless)


def plain_attributes(child: nn.Module) -> dict[str, object]:
    """The attributes that are no modules, parameters or buffers; containers as they are now."""
    torchs_own = type(child).__module__.startswith("torch.")
    return {
        name: copy.copy(value) if isinstance(value, list | dict | set) else value
        for name, value in vars(child).items()
        if name not in INTERNAL and not (torchs_own and name.startswith("_"))
        if not isinstance(value, nn.Module)
    }


def restore(child: nn.Module, before: Mapping[str, object]) -> list[str]:
    """Put the old values back; the names of those that had changed."""
    now = plain_attributes(child)
    changed = [
        n for n in {**before, **now} if not _same(before.get(n, _ABSENT), now.get(n, _ABSENT))
    ]
    for name in changed:
        old = before.get(name, _ABSENT)
        new: Any = vars(child).get(name)
        if old is _ABSENT:
            delattr(child, name)
        elif isinstance(old, list) and isinstance(new, list):
            new[:] = old
        elif isinstance(old, dict | set) and type(new) is type(old):
            new.clear()
            new.update(old)
        else:
            setattr(child, name, old)
    return changed


_ABSENT = object()


def _same(a: object, b: object) -> bool:
    """Identical, or equal plain values and containers of them; anything else by identity."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    return isinstance(a, (*PLAIN, set)) and (a == b or (a != a and b != b))


def _shown(
    module: nn.Module, inputs: Sequence[object], carried: Carried, reads: Reads
) -> tuple[tuple[frozenset[int | str], ...], tuple[int, ...], Carried, tuple[str, ...]]:
    flat, replaced = flat_arguments(module, inputs, carried), {str(p) for p in carried.places}
    numbers = ShapeEnv()  # `.item()` gives one that nobody knows
    with FakeTensorMode(allow_non_fake_inputs=True, shape_env=numbers) as mode, torch.no_grad():
        fixed = partial(mode.from_tensor, static_shapes=True)
        given = [fixed(v) for v in flat.tensors]
        kept = _held(module)
        state: dict[str, torch.Tensor] = {n: fixed(t) for n, t in kept if n not in replaced}

        def forward(*args: Any, **kwargs: Any) -> Any:
            with no_effects(module), reading(module, reads):
                return functional_call(module, state, args, kwargs, tie_weights=False)

        # The first: indexing by such numbers, as torch.export has it.
        with _NonStrictTorchFunctionHandler(), Placeless() as looking:
            results = flat.run(module, forward, given)
    tensors: list[tuple[int | str, torch.Tensor]] = [*enumerate(given), *state.items()]
    memory = {key: t.untyped_storage()._cdata for key, t in tensors}
    shown = [r.untyped_storage()._cdata for r in results]
    owners = (frozenset(k for k, own in memory.items() if own == here) for here in shown)
    memories = tuple(shown.index(here) for here in shown)
    return tuple(owners), memories, flat.left, tuple(map(looking.line_of, results))


def _held(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers, each once by every module that holds it: what is replaced twice in
    one place, PyTorch does not put back."""
    for path, child in module.named_modules():
        for name, t in (*child._parameters.items(), *child._buffers.items()):
            if t is not None:
                yield f"{path}.{name}" if path else name, t
