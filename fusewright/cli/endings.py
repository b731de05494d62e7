"""A command's result, or whatever it raised -> the exit code and one paragraph on stderr."""

from __future__ import annotations

import errno
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import ParamSpec, TextIO

import typer
from rich.console import Console

from fusewright.errors import FusewrightError, InternalError, NotVerifiable

# What the system may refuse -> what to do about it.
REFUSALS = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO),
        "Make room where the output, TMPDIR and TORCH_EXTENSIONS_DIR lie, or name other places.",
    ),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS),
        "Choose folders that can be written: --output, TMPDIR, TORCH_EXTENSIONS_DIR.",
    ),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "Allow more open files: ulimit -n."),
    **dict.fromkeys((errno.EAGAIN, errno.ENOMEM), "Allow more processes and memory: ulimit -a."),
    errno.EBADF: "Give the command open files as input and output.",
    errno.ENOENT: "Name folders that exist: TMPDIR, TORCH_EXTENSIONS_DIR, HOME.",
}
P = ParamSpec("P")


class Output(Console):
    """Rich would end the process with 1 when the reader of a pipe has left; 1 means refuted."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def ends_well(command: Callable[P, int]) -> Callable[P, None]:
    """Turn a command's exit code, or any exception, into the end of the process."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = command(*args, **kwargs)
            if sys.stdout is not None:
                sys.stdout.flush()
        except FusewrightError as error:
            code = error.exit_code
            say(_bug(error) if isinstance(error, InternalError) else f"fusewright: {error}")
        except KeyboardInterrupt:
            code = 130
            say("fusewright: interrupted; what was not verified is not written.")
        except BrokenPipeError:  # `fusewright explain ... | head`
            code = 128 + signal.SIGPIPE
            _forget(sys.stdout)
        except OSError as error:
            code = NotVerifiable.exit_code if error.errno in REFUSALS else InternalError.exit_code
            _forget(sys.stdout)  # what is left in its buffer would be written at the end
            say(_refusal(error) if error.errno in REFUSALS else _bug(error))
        # The last line of defence: whatever a broken promise of ours raises ends here.
        except Exception as error:  # noqa: BLE001
            code = InternalError.exit_code
            say(_bug(error))
        raise typer.Exit(code)

    return run


def say(paragraph: str) -> None:
    """To stderr, on one line: the terminal wraps it, `grep` finds it."""
    try:
        typer.echo(" ".join(paragraph.split()), err=True)
    except OSError:  # nobody can be told, but for the exit code
        _forget(sys.stderr)


def _forget(stream: TextIO | None) -> None:
    """Let a stream that cannot be written to lead nowhere."""
    if stream is not None:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _refusal(error: OSError) -> str:
    """What the system refused, and what to do."""
    named = f" ({error.filename})" if error.filename else ""
    return (
        f"fusewright: the system refused: {error.strerror}{named}. {REFUSALS[error.errno or 0]} "
        "Nothing is half-written."
    )


def _bug(error: Exception) -> str:
    text = "".join(traceback.format_exception(error))
    where = f"The traceback is in {name}" if (name := _kept(text)) else f"The traceback:\n{text}"
    return (
        f"fusewright: {type(error).__name__}: {error}. This is a bug in fusewright, not in your "
        f"file. {where}; please report it together with the problem file."
    )


def _kept(text: str) -> str:
    """The name of a file with the text, or "" where there is no room for one."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="fusewright-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
    except OSError:
        return ""
    return file.name
