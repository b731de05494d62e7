"""A folder of problems and one of candidates -> who enters what for which problem.

The path of a candidate names its problem and who made it, in either order: `alice/softmax.py` and
`softmax/alice.py` are alice's candidate for `softmax`, `softmax/alice/second.py` another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fusewright.errors import BadUsage
from fusewright.suite.process_runner import HERE
from fusewright.suite.run_all import files_below, state_of_all
from fusewright.suite.runner import Place


def entry_name(problem: str, entrant: str) -> str:
    """What people, and files of results, call a candidate."""
    return f"{problem}/{entrant}"


@dataclass(frozen=True)
class Entry:
    """A candidate. problem: its name, the path without the suffix.  entrant: what its own path says
    besides.  key: of all that a verdict on it depends on."""

    problem: str
    entrant: str
    problem_path: Path
    path: Path
    key: str

    @property
    def name(self) -> str:
        return entry_name(self.problem, self.entrant)


@dataclass(frozen=True)
class Entries:
    """entries: by problem and entrant.  strangers: files whose path names no problem."""

    entries: tuple[Entry, ...]
    strangers: tuple[Path, ...]


def find_entries(
    problems: Path,
    candidates: Path,
    output: Path,
    options: Mapping[str, object],
    place: Place = HERE,
) -> Entries:
    """The candidates below a folder, each with its problem.

    options: what else a verdict depends on.  place: where they will be judged.  Raises BadUsage
    where a folder is none or has no file, a path names two problems, two candidates have one name,
    or none has a problem.
    """
    own = (candidates, output)
    known = {
        path.relative_to(problems).with_suffix("").parts: path
        for path in files_below(problems, own, "problem")
    }
    given = files_below(candidates, (output,), "candidate")
    about, found, strangers = state_of_all(options, place), dict[str, Entry](), list[Path]()
    for path in given:
        parts = path.relative_to(candidates).with_suffix("").parts
        places = {name: at for name in known if (at := _place(name, parts)) is not None}
        most = max(map(len, places), default=0)
        named = [name for name in places if len(name) == most]
        if len(named) > 1:
            both = " and ".join("/".join(name) for name in named)
            raise BadUsage(f"{path}: its path names two problems, {both}. Rename a folder or it.")
        if not named:
            strangers.append(path)
            continue
        (name,) = named
        rest = parts[: places[name]] + parts[places[name] + most :]
        entrant = "/".join(rest) or candidates.resolve().name
        content = known[name].read_bytes() + b"\0" + path.read_bytes()
        key = hashlib.sha256(about + content).hexdigest()
        entry = Entry("/".join(name), entrant, known[name], path, key)
        if (other := found.get(entry.name)) is not None:
            raise BadUsage(
                f"{other.path} and {path} are both {entrant}'s candidate for {entry.problem}. "
                "Rename one of them."
            )
        found[entry.name] = entry
    if not found:
        raise BadUsage(
            f"{candidates}: no file's path names a problem of {problems}. Name candidates "
            f"ENTRANT/PROBLEM.py or PROBLEM/ENTRANT.py; the problems are {_some(known)}."
        )
    return Entries(tuple(found[name] for name in sorted(found)), tuple(strangers))


def _place(name: Sequence[str], parts: Sequence[str]) -> int | None:
    """Where a problem's name stands in a path, if it does."""
    ends = range(len(parts) - len(name) + 1)
    return next((at for at in ends if tuple(parts[at : at + len(name)]) == tuple(name)), None)


def _some(names: Mapping[tuple[str, ...], Path]) -> str:
    shown = ["/".join(name) for name in sorted(names)]
    more = f" and {len(shown) - 5} more" if len(shown) > 5 else ""
    return ", ".join(shown[:5]) + more
