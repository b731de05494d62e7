"""A forward that makes tensors without naming a device -> the default device under which it runs.

`torch.zeros(3)` in a forward lies on PyTorch's default device, the CPU. A model that calculates
with it where its inputs lie runs on a CPU only, in eager; under `torch.set_default_device` of its
inputs' device it runs there, too, and says the same. Whether that is what a forward needs is found
by trying: it has raised, it has made a tensor without naming a device, and under the other default
it does not raise. A forward that only returns such tensors runs, and they lie on the CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext
from torch.utils._pytree import tree_leaves

from fusewright.common.package import PACKAGE
from fusewright.common.unobserved_layers import unwatched

_NOT_THE_USERS = (f"{Path(torch.__file__).parent}/", f"{PACKAGE}/", "<")


@contextmanager
def default_device(device: str) -> Iterator[DeviceContext | None]:
    """Within, tensors that name no device are made on this one; "" leaves all as it is.

    It yields the mode that does so. A caller may take that off PyTorch's stack before the end.
    """
    if not device:
        yield None
        return
    context = DeviceContext(torch.device(device))
    with unwatched():
        context.__enter__()  # type: ignore[no-untyped-call]
        try:
            yield context
        finally:
            context.__exit__(None, None, None)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Placing:
    """What a forward that raises needs, in order to run on the device of its inputs.

    device: the default device under which it runs, "" if there is none.  says: for a reader, what
    its author wrote and where; what to write instead, if no default helps; "" if it is not this.
    """

    device: str = ""
    says: str = ""


def placing(run: Callable[[], object], device: str) -> Placing:
    """For a forward that has raised on `device`. run: the same call once more, from its start."""
    plain = _ran(run, device)
    if not plain.raised:
        return Placing()
    if plain.unnamed:
        with default_device(device):
            other = _ran(run, device)
        if not other.raised:
            return Placing(device, _report(list(other.unnamed), device))
        plain.mixed = other.mixed or plain.mixed
    return Placing("", _advice(plain.mixed) if plain.mixed else "")


def _report(lines: Sequence[str], device: str) -> str:
    """Under what all sides run, and why."""
    more = len(lines) - 1
    others = f" and {more} more line{'s' * (more > 1)}" if more else ""
    return (
        f"the model makes tensors without naming a device, at {lines[0]}{others}: in plain eager "
        f"it does not run on {device}, so all sides ran under torch.set_default_device({device!r})"
    )


def _advice(mixed: Mixed) -> str:
    """What to write where tensors were made that do not lie where the inputs do."""
    if line := next(filter(None, mixed.made), ""):
        return (
            f"{line} makes a tensor that does not lie where the inputs do: write "
            "device=x.device there, where x is one of them."
        )
    return (
        f"At {mixed.line} a tensor that does not lie where the inputs do meets one that does: an "
        "attribute that is no parameter and no buffer, a global, or what torch.Tensor(...) or an "
        "array has become. Register it as a buffer, or move it there with .to(x.device)."
    )


def _ran(run: Callable[[], object], device: str) -> _Elsewhere:
    seen = _Elsewhere(device)
    try:
        with seen:
            run()
    # A model may raise anything.
    except Exception as error:  # noqa: BLE001
        seen.ended_with(error)
    return seen


@dataclass(frozen=True)
class Mixed:
    """A call that raised, with arguments on several devices: its line, and where those were made
    that do not lie where the inputs do; "" for those of which nobody has seen that."""

    line: str
    made: tuple[str, ...]


class _Elsewhere(TorchFunctionMode):
    """Sees where tensors come from that lie on another device than the inputs.

    unnamed: lines that made one without naming a device.  mixed: the call that ended the run.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.raised = False
        self.unnamed: dict[str, None] = {}
        self.mixed: Mixed | None = None
        self._device = device
        self._failed: tuple[BaseException, Mixed] | None = None
        # By the memory that they are in: the tensor, which is kept so that this is, and its line.
        self._made: dict[int, tuple[Tensor, str]] = {}

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        elsewhere = [t for t in given if self._is_elsewhere(t)]
        unnamed = not given and kwargs.get("device") is None
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            if 0 < len(elsewhere) < len(given):
                made = tuple(map(self._line_of, elsewhere))
                self._failed = error, Mixed(_users_line(), made)
            raise
        for t in tree_leaves(result):
            if isinstance(t, Tensor) and unnamed:
                self.unnamed[_users_line()] = None
            if isinstance(t, Tensor) and self._is_elsewhere(t) and _memory(t) not in self._made:
                line = self._line_of(elsewhere[0]) if elsewhere else _users_line()
                self._made[_memory(t)] = t, line
        return result

    def _line_of(self, t: Tensor) -> str:
        """Where it was made; "" if that was not seen."""
        return self._made[_memory(t)][1] if _memory(t) in self._made else ""

    def ended_with(self, error: BaseException | None) -> None:
        """The run raised this; a call that failed before may have been somebody's attempt."""
        self.raised = True
        while error is not None:
            if self._failed and error is self._failed[0]:
                self.mixed = self._failed[1]
            error = error.__cause__ or error.__context__

    def _is_elsewhere(self, t: Tensor) -> bool:
        return t.device.type != self._device


class Placeless(TorchFunctionMode):
    """Sees which tensors lie where no input decides: on the default device, or on the CPU by name.

    On a CPU all tensors lie on one device; on a GPU these would not lie where the inputs do.
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, tuple[Tensor, str]] = {}

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = tree_leaves((args, kwargs))
        lines = [self.line_of(t) for t in given if isinstance(t, Tensor)]
        named = any(isinstance(v, torch.device) for v in given)  # as an input's is
        named |= kwargs.get("device") not in (None, "cpu")
        words = [v for v in given if isinstance(v, str)]
        to_cpu = func is Tensor.cpu or (func is Tensor.to and "cpu" in words)
        result = func(*args, **kwargs)
        for t in tree_leaves(result):
            if not isinstance(t, Tensor):
                continue
            if to_cpu or (all(lines) and not named):
                self._made[_memory(t)] = t, next(filter(None, lines), _users_line())
            else:
                self._made.pop(_memory(t), None)
        return result

    def line_of(self, t: Tensor) -> str:
        """The line that made such a tensor; "" if an input decides where it lies."""
        return self._made[_memory(t)][1] if _memory(t) in self._made else ""


def _memory(t: Tensor) -> int:
    """What two objects have in common that are one tensor, or views of one."""
    try:
        return int(t.untyped_storage()._cdata)
    except NotImplementedError:  # of a sparse tensor
        return id(t)


def _users_line() -> str:
    """`file:line` of the innermost code that runs now and is neither PyTorch's nor ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_NOT_THE_USERS):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
