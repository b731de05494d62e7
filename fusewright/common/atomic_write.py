"""Path and text -> the whole file or no file: the one way in which anything is written.

A reader sees the old file or the new one, never half of either: the text goes to a temporary file
in the same folder, to the disk, and then takes the name.
"""

from __future__ import annotations

import os
from pathlib import Path

from fusewright.errors import BadUsage

STANDARD_OUTPUT = Path("-")  # in place of a file: no file, the text goes there


def check_writable(path: Path, *, force: bool) -> None:
    """Raise what `write_atomically` would raise, before the work whose result is to be written."""
    if path.is_dir():
        raise BadUsage(f"{path}: this is a folder; name the file to write.")
    if path.exists() and not path.is_file():
        raise BadUsage(f"{path}: this is not a regular file; name another one.")
    if path.exists() and not force:
        raise BadUsage(
            f"{path}: the file exists already. Choose another name, or replace it with --force."
        )
    folder = path.absolute().parent
    if not folder.is_dir():
        raise BadUsage(f"{path}: the folder {folder} does not exist. Make it, or choose another.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BadUsage(f"{path}: no permission to write into {folder}. Choose another folder.")


def write_atomically(path: Path, text: str, *, force: bool) -> None:
    """Write `text` to `path`, replacing an existing file only with `force`."""
    check_writable(path, force=force)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise BadUsage(
            f"{path}: cannot write the file: {error.strerror}. Nothing was changed."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
