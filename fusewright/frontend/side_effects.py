"""A run of forward -> what it does beside computing, which a graph would leave out.

Text that is printed, warnings, log entries, files, numbers of Python's own generators, values of
modules, classes and objects of the user's: kernels would do none of it. What PyTorch itself prints
or remembers is PyTorch's affair.
"""

from __future__ import annotations

import builtins
import inspect
import io
import logging
import random
import re
import sys
import sysconfig
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import CellType, FunctionType, ModuleType
from typing import Any, TextIO

import numpy
import torch
from torch import Tensor, nn

from fusewright.errors import CaptureFailed
from fusewright.frontend.refusals import running_line

DEEPEST, LARGEST = 4, 2000  # of containers whose content is compared
BROUGHT = (f"{Path(torch.__file__).parent}/", f"{Path(sysconfig.get_paths()['stdlib']).resolve()}/")
CHANGES = "append|appendleft|extend|insert|add|update|setdefault|pop|popleft|remove|clear|sort"
HOLDERS = (list, tuple, set, frozenset, deque)
PLAIN = (bool, int, float, complex, str, bytes, type(None))
# What a run draws from or sets -> how to read it.
GENERATORS: Mapping[str, Callable[[], object]] = {
    "draws from Python's random numbers": lambda: hash(random.getstate()),
    "draws from numpy's random numbers": lambda: repr(numpy.random.get_state(legacy=True)),
    "seeds PyTorch's random numbers": torch.initial_seed,
    "sets the default type": torch.get_default_dtype,
    "sets the number of threads": torch.get_num_threads,
    "sets the precision of matmuls": torch.get_float32_matmul_precision,
    "switches gradients on or off": torch.is_grad_enabled,
}


class HasEffects(CaptureFailed):
    """A forward that does more than compute."""


@contextmanager
def no_effects(module: nn.Module) -> Iterator[None]:
    """Raise HasEffects if the block does something that a graph would leave out."""
    found: dict[str, None] = {}
    generators = {what: read() for what, read in GENERATORS.items()}
    before = _pictures(module)
    with _watched(found):
        yield
    kind = type(module).__name__
    for what, read in GENERATORS.items():
        if read() != generators[what]:
            found[f"{kind}.forward {what}"] = None
    after = _pictures(module)
    for (owner, name), picture in after.items():
        if (owner, name) not in before or before[owner, name] != picture:
            found[f"{_place(module, name)}{kind}.forward changes {name} of {owner}"] = None
    if found:
        raise HasEffects(
            f"{next(iter(found))}, which kernels would leave out. Do that where the model is "
            "called."
        )


def line_of(module: nn.Module, name: str) -> str:
    """`file:line` where a function of the user's changes something of that name; "" if unknown."""
    inside = r"(\[[^\]]*\]|\.\w+)*?"
    changes = re.compile(rf"\b{re.escape(name)}\b{inside}(\.({CHANGES})\(|\s*\W{{0,2}}=(?!=))")
    for function in _functions(module):
        try:
            lines, first = inspect.getsourcelines(function)
        except (OSError, TypeError):
            continue
        for k, text in enumerate(lines):
            if changes.search(text):
                return f"{function.__code__.co_filename}:{first + k}"
    return ""


def _place(module: nn.Module, name: str) -> str:
    line = line_of(module, name)
    return f"{line}: " if line else ""


class _Notes:
    """What forward is seen to do, with the user's line.

    What threads do that ran before is theirs: it is neither noted nor kept back.
    """

    def __init__(self, found: dict[str, None]) -> None:
        self._found = found
        here = threading.get_ident()
        self._others = {thread.ident for thread in threading.enumerate()} - {here}

    def are_asked(self) -> bool:
        return threading.get_ident() not in self._others

    def add(self, what: str) -> None:
        line = running_line()
        if line:
            self._found.setdefault(f"{line}: forward {what}", None)


class _NotedStream(io.StringIO):
    """Stands in for stdout or stderr: what is written is noted, and goes nowhere."""

    def __init__(self, stream: TextIO, notes: _Notes) -> None:
        super().__init__()
        self._stream, self._notes = stream, notes

    def write(self, text: str) -> int:
        if not self._notes.are_asked():
            return self._stream.write(text)
        self._notes.add("prints")
        return len(text)


@contextmanager
def _watched(found: dict[str, None]) -> Iterator[None]:
    """Within the block, what the user's code prints, warns of, logs or opens is noted."""
    notes = _Notes(found)

    def shown(message: Any, *args: Any, **kwargs: Any) -> None:
        if not notes.are_asked():
            shows(message, *args, **kwargs)
        elif "Triggered internally" not in str(message):  # by PyTorch, in C++
            notes.add("warns")

    def enabled(self: logging.Logger, level: int) -> bool:
        if not notes.are_asked():
            return asks(self, level)
        if level >= self.getEffectiveLevel():
            notes.add("logs")
        return False

    def opened(*args: Any, **kwargs: Any) -> Any:
        if notes.are_asked():
            notes.add("opens a file")
        return opens(*args, **kwargs)

    opens, asks, shows = builtins.open, logging.Logger.isEnabledFor, warnings.showwarning
    with (
        warnings.catch_warnings(),
        redirect_stdout(_NotedStream(sys.stdout, notes)),
        redirect_stderr(_NotedStream(sys.stderr, notes)),
    ):
        warnings.simplefilter("always")
        warnings.showwarning = shown
        builtins.open = opened
        logging.Logger.isEnabledFor = enabled  # type: ignore[method-assign]
        try:
            yield
        finally:
            builtins.open = opens
            logging.Logger.isEnabledFor = asks  # type: ignore[method-assign]


Pictures = dict[tuple[str, str], object]


def _pictures(module: nn.Module) -> Pictures:
    """Owner and name of what the user's functions reach beside tensors, and what it holds now."""
    found: Pictures = {}
    functions = _functions(module)
    spaces = [*{id(f.__globals__): f.__globals__ for f in functions}.values()]
    near = [v for space in spaces for v in space.values() if isinstance(v, type)]
    for kind in dict.fromkeys((*_kinds(module), *near)):
        for name, value in vars(kind).items() if not _is_known(kind) else ():
            if not (name.startswith("__") or callable(value)):
                found[kind.__name__, name] = _picture(value)
    for space in spaces:
        owner = Path(str(space.get("__file__", "the file"))).stem
        for name, value in space.items():
            if not (name.startswith("__") or isinstance(value, type | ModuleType | FunctionType)):
                found[owner, name] = _picture(value)
    for function in functions:
        kept = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        kept += [c.cell_contents for c in function.__closure__ or () if _is_filled(c)]
        for k, value in enumerate(kept):
            found[function.__qualname__, f"what it keeps ({k})"] = _picture(value)
    for child in module.modules():
        for name, value in vars(child).items():
            if _is_users(value):
                found[type(child).__name__, name] = _picture(value)
    return found


def _picture(value: Any, depth: int = 0) -> object:
    """Something that is equal for values that hold the same."""
    if isinstance(value, PLAIN):
        return type(value), repr(value)
    if isinstance(value, Tensor):
        return id(value), None if value.is_inference() else value._version
    held: Any = None
    if isinstance(value, dict):
        held = dict.items(value)  # a class that fills itself when it is asked is not asked
    elif isinstance(value, HOLDERS):
        base = next(c for c in HOLDERS if isinstance(value, c))
        held = [*base.__iter__(value)]  # type: ignore[arg-type]
    elif _is_users(value):
        held = vars(value).items()
    if held is None or depth > DEEPEST or len(held) > LARGEST:
        # The pairs of a dict are made while it is read: they are nobody's objects.
        return tuple if type(value) is tuple else id(value)
    inside = [_picture(v, depth + 1) for v in held]
    return (type(value), inside) if type(value) is tuple else (id(value), inside)


def _is_users(value: object) -> bool:
    """Whether it is an object of a class that neither Python nor PyTorch has brought."""
    plain = isinstance(value, Tensor | nn.Module | type | ModuleType | FunctionType)
    return not plain and hasattr(value, "__dict__") and not _is_known(type(value))


def _is_known(kind: type) -> bool:
    """Whether Python or PyTorch has brought the class."""
    place = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ == "builtins" or str(place).startswith(BROUGHT)


def _kinds(module: nn.Module) -> list[type]:
    """The user's classes of modules."""
    every = (c for child in module.modules() for c in type(child).__mro__)
    return [c for c in dict.fromkeys(every) if c is not object and not _is_torchs(c.__module__)]


def _is_torchs(name: str) -> bool:
    return name.partition(".")[0] == "torch"


def _functions(module: nn.Module) -> list[FunctionType]:
    """Methods of these classes but constructors, and the functions of their files."""
    methods = [
        f
        for kind in _kinds(module)
        for name, f in vars(kind).items()
        if isinstance(f, FunctionType) and name != "__init__"
    ]
    spaces = {id(f.__globals__): f.__globals__ for f in methods}
    near = [
        f
        for space in spaces.values()
        for f in [*space.values()]
        if isinstance(f, FunctionType) and f.__globals__ is space
    ]
    return [*dict.fromkeys((*methods, *near))]


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
