"""The judge's program for a candidate's process, with PyTorch's profiler around its calls.

It is told `profile begin`, then calls as ever, then `profile end`, which answers with what the
profiler wrote. Functions of compiled extensions are no operators of PyTorch's, so the profiler does
not know them: from `profile begin` on they are called within a range of their name.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from pathlib import Path
from types import BuiltinFunctionType, ModuleType
from typing import Any, cast

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from fusewright.judge.isolation import candidate_worker, tensor_transport
from fusewright.judge.isolation.candidate_worker import DeviceClock, Host, Message
from fusewright.judge.isolation.one_call import Copies
from fusewright.judge.isolation.protocol import Record
from fusewright.profiling.recorded import CALL, KERNEL, MOST_BYTES

BEGIN, END = "profile begin", "profile end"
FUNCTIONS = "_FUSEWRIGHT_FUNCTIONS"  # in an emitted file: its kernels by name
AT_ONCE = "_fusewright_replayed"  # there: launches all of its steps together
LIBRARY = ".so"
_INDUCTOR = "torch._inductor.codecache"
_INDUCTORS = "cpp_"  # how the names of its kernels for a processor begin
_Range = torch._C._profiler._RecordFunctionFast  # a tenth of the time of record_function
Function = Callable[..., Any]


def main(config: Message) -> None:
    candidate_worker.main(config, {BEGIN: _begin, END: _end})


class _WithinRange:
    """A model whose calls are ranges of the profiler."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __call__(self, *arguments: object, **named: object) -> object:
        with _Range(CALL):
            return self._model(*arguments, **named)


class ProfiledClock(DeviceClock):
    """The clock of calls during a profile; it keeps the profiler, and how large arguments were."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        gpu = [ProfilerActivity.CUDA] * (device == "cuda")
        self.profiler = profile(activities=[ProfilerActivity.CPU, *gpu])
        self.sizes: Counter[tuple[int, ...]] = Counter()

    def time(
        self, model: nn.Module, arguments: list[object], placed: object | None
    ) -> tuple[object, Copies, tuple[int, int, int], object | None]:
        """As its base class."""
        self.sizes = Counter(tuple(t.shape) for t in tensor_transport.tensors_of(arguments))
        return super().time(cast(nn.Module, _WithinRange(model)), arguments, placed)


def _begin(host: Host, _: Message) -> Record:
    put_in_ranges(sys.modules.get("candidate"))
    host.clock = clock = ProfiledClock(host.device)
    clock.profiler.start()
    return host.done("", [], [])


def _end(host: Host, _: Message) -> Record:
    clock = host.clock
    assert isinstance(clock, ProfiledClock)
    clock.wait()
    clock.profiler.stop()
    path = Path.cwd() / "profile.json"
    clock.profiler.export_chrome_trace(str(path))
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"the profile has {size} bytes, {MOST_BYTES} at most are read")
    content = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    path.unlink()
    said = json.dumps({"example": is_example(host.make, clock.sizes)})
    return host.done(said, [content], [])


def is_example(kind: object, given: Counter[tuple[int, ...]]) -> bool | None:
    """Whether tensors of these sizes are those that an emitted class was written for, which it
    says itself; None where it does not."""
    told = [getattr(kind, name) for name in dir(kind) if name.startswith("fusewright_tensors")]
    asked = [Counter(tuple(like[0]) for like in tensors()[0].values()) for tensors in told]
    return any(sizes <= given for sizes in asked) if asked else None


# ---- functions of extensions ---------------------------------------------------------------------


def put_in_ranges(candidate: ModuleType | None) -> None:
    """Have functions of compiled extensions called within ranges, each by itself. candidate: its
    module."""
    space: MutableMapping[str, Any] = vars(candidate) if candidate else {}
    emitted = space.get(FUNCTIONS)
    if isinstance(emitted, dict):
        _replace(emitted, [*emitted])
    if AT_ONCE in space:
        space[AT_ONCE] = one_by_one
    wrapped = {}
    for module in _extensions():
        names = [n for n, v in vars(module).items() if isinstance(v, BuiltinFunctionType)]
        before = {name: getattr(module, name) for name in names}
        _replace(vars(module), names)
        wrapped.update({id(before[name]): getattr(module, name) for name in names})
    for name, value in [*space.items()]:
        space[name] = wrapped.get(id(value), value)
    inductor = sys.modules.get(_INDUCTOR)
    for module in inductor.PyCodeCache.modules if inductor else ():
        names = [n for n, v in vars(module).items() if n.startswith(_INDUCTORS) and callable(v)]
        _replace(vars(module), names)


def one_by_one(
    model: nn.Module,
    steps: Function,
    where: Sequence[int],
    inputs: Sequence[torch.Tensor],
    state: Sequence[torch.Tensor],
    written: Sequence[int] = (),
) -> object:
    """In place of the function of an emitted file that launches its steps at once."""
    del model, written  # the steps themselves tell autograd what they have changed
    return steps(*where, *inputs, *state)


def _replace(space: MutableMapping[str, Any], names: Sequence[str]) -> None:
    for name in names:
        space[name] = within_range(name, space[name])


def within_range(name: str, function: Function) -> Function:
    """The same function, which the profiler sees under this name."""

    def run(*arguments: object, **named: object) -> object:
        with _Range(f"{KERNEL}{name}"):
            return function(*arguments, **named)

    return run


def _extensions() -> Iterator[ModuleType]:
    """Those that were built in this process, or found built; no table of Python's has them all."""
    built = os.environ.get("TORCH_EXTENSIONS_DIR", "")
    for module in gc.get_objects() if built else ():
        if type(module) is ModuleType:
            path = str(vars(module).get("__file__") or "")
            if path.endswith(LIBRARY) and path.startswith(f"{built}{os.sep}"):
                yield module
