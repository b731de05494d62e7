"""What the reference does not take: arguments on which it raises, more than there is room for.

The judge invents arguments and parameters. Whether they are legal is the reference's to say, by
taking them: whichever operator raises, and whatever it says, such arguments are no case. Memory is
another matter: that it is short says nothing about the arguments, and nothing about a candidate.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# What PyTorch says on a CPU where the system gives it no memory; it is a plain RuntimeError.
_SAYINGS = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc")


class Illegal(Exception):
    """The reference raised: what it was given is no case."""


class TooLarge(Illegal):
    """The reference takes it, but more memory for it than the judge spends on one case."""


class ShortOfMemory(Exception):
    """There is no room for this; the text has the bytes."""


def is_short(error: BaseException) -> bool:
    """Is this what running out of memory looks like?"""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _SAYINGS)


def says_short(text: str) -> bool:
    """The same of what another process says that it has raised: `kind: Name: message`."""
    name = text.partition(":")[2].replace(":", " ").split()
    kind = name[0].rpartition(".")[2] if name else ""
    if kind in ("MemoryError", "OutOfMemoryError"):
        return True
    return kind == "RuntimeError" and any(word in text for word in _SAYINGS) and not _beyond(text)


def _beyond(text: str) -> bool:
    """Whether one allocation asked for more than this machine has: that is no shortage."""
    asked_for = re.search(r"tried to allocate (\d+) bytes", text)
    everything = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return asked_for is not None and int(asked_for[1]) > everything


@contextmanager
def asked() -> Iterator[None]:
    """What the reference raises in here becomes Illegal or ShortOfMemory, with its first line."""
    try:
        yield
    except (Illegal, ShortOfMemory):
        raise
    # A model may raise anything; to exit or to be interrupted is not an answer.
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), "")
        text = f"{type(error).__name__}: {first}" if first else type(error).__name__
        raise (ShortOfMemory if is_short(error) else Illegal)(text) from error
