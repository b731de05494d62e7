"""What the reference does not take: arguments on which it raises, more than there is room for.

The judge invents arguments and parameters. Whether they are legal is the reference's to say, by
taking them: whichever operator raises, and whatever it says, such arguments are no case. Memory is
another matter: that it is short says nothing about the arguments, and nothing about a candidate. A
kernel that ends CUDA for the process has not taken them either; another process goes on without.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch

# What PyTorch says on a CPU where the system gives it no memory; it is a plain RuntimeError.
_SAYINGS = (
    "can't allocate memory", "not enough memory", "out of memory", "bad_alloc",
    "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED",
    "Cannot allocate memory", "failed to map segment",
)  # fmt: skip
# What says so: PyTorch itself, CUDA through it, the system, a library that is loaded.
_SAYERS = ("RuntimeError", "AcceleratorError", "OSError", "ImportError")


class Illegal(Exception):
    """The reference raised: what it was given is no case."""


class TooLarge(Illegal):
    """The reference takes it, but more memory for it than the judge spends on one case."""


class ShortOfMemory(Exception):
    """There is no room for this; the text has the bytes."""


class DeviceLost(Exception):
    """A kernel of PyTorch has ended CUDA for this process: what it was given is no case, and
    nothing can be asked of the process any more."""

    case = ""  # the name under which it was tried, if the judge had invented it


# What CUDA says, to this call and to every later one, after a kernel has gone wrong.
_LAST_WORDS = (
    "device-side assert", "illegal memory access", "misaligned address", "illegal instruction",
    "unspecified launch failure",
)  # fmt: skip


def is_lost(error: BaseException) -> bool:
    """Does this error say that no later call of this process can work?"""
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _LAST_WORDS)


def is_short(error: BaseException) -> bool:
    """Is this what running out of memory looks like?"""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    said = isinstance(error, (RuntimeError, OSError, ImportError))
    return said and any(word in str(error) for word in _SAYINGS)


def says_short(text: str) -> bool:
    """The same of what another process says that it has raised: `kind: Name: message`."""
    name = text.partition(":")[2].replace(":", " ").split()
    kind = name[0].rpartition(".")[2] if name else ""
    if kind in ("MemoryError", "OutOfMemoryError"):
        return True
    return kind in _SAYERS and any(word in text for word in _SAYINGS) and not _beyond(text)


def _beyond(text: str) -> bool:
    """Whether one allocation asked for more than this machine has: that is no shortage."""
    asked_for = re.search(r"tried to allocate (\d+) bytes", text)
    everything = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return asked_for is not None and int(asked_for[1]) > everything


@contextmanager
def tried(name: str, left_out: Collection[str] = ()) -> Iterator[None]:
    """In here, the reference is tried on what the judge has invented under this name.

    left_out: names that have ended CUDA for an earlier trusted worker, and are no cases.
    """
    if name in left_out:
        raise Illegal("PyTorch's own kernels end CUDA for the whole process on it")
    try:
        yield
    except (DeviceLost, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not is_lost(error):
            raise
        lost = DeviceLost(str(error))
        lost.case = name
        raise lost from error


@contextmanager
def asked() -> Iterator[None]:
    """What the reference raises in here becomes Illegal or ShortOfMemory, with its first line."""
    try:
        yield
    except (Illegal, ShortOfMemory, DeviceLost):
        raise
    # A model may raise anything; to exit or to be interrupted is not an answer.
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), "")
        text = f"{type(error).__name__}: {first}" if first else type(error).__name__
        if is_short(error):
            raise ShortOfMemory(text) from error
        raise (DeviceLost if is_lost(error) else Illegal)(text) from error
