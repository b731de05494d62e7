"""Files that a problem reads from its own folder -> the same files beside a candidate.

A candidate's process sees neither the problem's folder nor its own file's. Where the reference
reads files below its folder while it is imported and constructed (a table, weights, a module),
these are laid beside the candidate's file: those that lie beside it on the disk, since only they
are there for whoever uses it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

MOST_BYTES = 1 << 30
_CACHE = "__pycache__"
_watching: list[tuple[Path, list[str]]] = []  # an audit hook stays for ever; this says for what
_hooked: list[bool] = []


@contextmanager
def reading(problem: Path) -> Iterator[list[str]]:
    """Fills the list with the names, seen from the problem's folder, of the files read below."""
    names: list[str] = []
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_hook)
    _watching.append((problem.resolve(), names))
    try:
        yield names
    finally:
        _watching.clear()


def lay(names: Iterable[str], origin: Path, folder: Path, readable: Iterable[str]) -> None:
    """Copies of those that lie in `origin`, in `folder`; nothing that is there is replaced.

    readable: libraries that are there anyway, should they lie below the problem's folder.
    """
    room, known = MOST_BYTES, tuple(readable)
    for name in names:
        here, there = origin / name, folder / name
        if not here.is_file() or there.exists() or any(map(here.is_relative_to, known)):
            continue
        if (room := room - here.stat().st_size) < 0:
            return
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(here, there)
        for path in (there, *there.relative_to(folder).parents[:-1]):
            (folder / path).chmod(0o755)


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if event != "open" or not _watching:
        return
    path, mode, flags = arguments
    if not isinstance(path, str | bytes) or not _reads(mode, flags):
        return
    problem, names = _watching[-1]
    place = Path(os.path.abspath(os.fsdecode(path)))
    if place.parent.name == _CACHE:  # of a module, whose text stands a folder above
        place = place.parent.parent / (place.name.split(".")[0] + ".py")
    place = place.parent.resolve() / place.name
    if place.is_relative_to(problem.parent) and place != problem:
        name = str(place.relative_to(problem.parent))
        if name not in names:
            names.append(name)


def _reads(mode: object, flags: object) -> bool:
    if isinstance(mode, str):
        return not set(mode) & set("wax+")
    return not isinstance(flags, int) or flags & os.O_ACCMODE == os.O_RDONLY
