"""Words -> the sections of the device library that an emitted file needs, in file order.

Which files a language or an architecture has is said in `targets/device_files.py`. A file is cut by
lines `//@ name: needs a, b`; a section runs to the next such line, and `//@` alone ends the last
one. Text outside sections only serves to compile the file alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fusewright.errors import InternalError
from fusewright.targets.device_files import DEVICE_FILES


@dataclass(frozen=True)
class DeviceSection:
    """One piece of a file: its name, the names of those it calls, its text."""

    name: str
    needs: tuple[str, ...]
    text: str


def sections(library: str) -> tuple[DeviceSection, ...]:
    """All sections of a row of DEVICE_FILES, in order."""
    return _sections(DEVICE_FILES[library])


@cache
def _sections(names: tuple[str, ...]) -> tuple[DeviceSection, ...]:
    found: list[DeviceSection] = []
    for name in names:
        text = (files("fusewright") / name).read_text(encoding="utf-8")
        found.extend(cut(text))
    return tuple(found)


def cut(text: str) -> list[DeviceSection]:
    """The sections of one file."""
    found: list[DeviceSection] = []
    name, lines = "", list[str]()
    needs: tuple[str, ...] = ()
    for line in [*text.splitlines(), "//@"]:
        if not line.startswith("//@"):
            lines.append(line)
            continue
        if name:
            found.append(DeviceSection(name, needs, "\n".join(lines).strip("\n")))
        head, _, tail = line.removeprefix("//@").partition(":")
        name = head.strip()
        words = tail.replace("needs", "").replace(",", " ").split()
        needs, lines = tuple(words), []
    return found


def select_sections(library: str, words: Iterable[str]) -> str:
    """The text of the sections called `words` and of all they need; unknown words are an error."""
    table = {s.name: s for s in sections(library)}
    wanted: set[str] = set()
    queue = ["begin", *words]
    while queue:
        word = queue.pop()
        if word not in table:
            raise InternalError(f"The device library for {library} has no section {word!r}.")
        if word not in wanted:
            wanted.add(word)
            queue.extend(table[word].needs)
    return "\n\n".join(s.text for s in sections(library) if s.name in wanted)


def sections_for(library: str, words: Iterable[str]) -> str:
    """`select_sections`, where not every word is a section."""
    return select_sections(library, sorted({s.name for s in sections(library)} & set(words)))
