"""Stands in for a command of a suite or an arena that runs on a node of a cluster.

The first line of the last file that the command is given says what it does, and in which folder it
keeps a journal of what began and ended: `# FOLDER BEHAVIOUR`. Each line of the journal is an event,
the name of that file, the process, and the GPUs that it sees.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil

from tests.support.arena_stand_in import contest_of
from tests.support.suite_stand_in import REPORT, TIMING


def stand_in(words: list[str]) -> None:
    main(words)


def main(words: list[str]) -> None:
    command, *paths = words[: next(k for k, word in enumerate(words) if word.startswith("--"))]
    stem = words[words.index("--report") + 1].removesuffix(".json")
    folder, behaviour = Path(paths[-1]).read_text().splitlines()[0].removeprefix("# ").split()
    place, name = Path(folder), Path(paths[-1]).stem
    note(place, "begun", f"{command}-{name}")
    print(f"{command} {paths[-1]}", flush=True)  # noqa: T201
    report = BEHAVIOURS[behaviour](place, name)
    if command == "optimize":
        Path(f"{stem}.py").write_text(f"# from {paths[-1]}\n")
    if command == "bench":
        told = contest_of({path: ["right", "2.0"] for path in paths[1:]})
        report |= {"timing": told if len(paths) > 2 else told["timings"][paths[1]]}
    if behaviour == "reads":
        report |= {"reason": (Path(paths[-1]).parent / "tables" / "one.txt").read_text()}
    Path(f"{stem}.json").write_text(json.dumps(report))
    note(place, "ended", f"{command}-{name}")


def note(place: Path, event: str, name: str) -> None:
    with (place / "journal").open("a") as file:
        sees = os.environ.get("CUDA_VISIBLE_DEVICES") or "none"
        file.write(f"{event} {name} {os.getpid()} {sees}\n")


def good(_place: Path, _name: str) -> dict[str, Any]:
    return {**REPORT, "timing": TIMING}


def crashes(_place: Path, _name: str) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGSEGV)
    return {}


def kills_its_worker(place: Path, name: str) -> dict[str, Any]:
    """The first time, the worker of the cluster that asked for the run."""
    mark = place / f"{name}.killed"
    if not mark.exists():
        mark.touch()
        above = psutil.Process().parents()
        next(process for process in above if process.name().startswith("ray::")).kill()
        time.sleep(600)
    return good(place, name)


def held(place: Path, name: str) -> dict[str, Any]:
    """Until it is let go."""
    while not (place / "go").exists():
        time.sleep(0.05)
    return good(place, name)


BEHAVIOURS = {
    "good": good, "reads": good, "crashes": crashes, "kills": kills_its_worker, "held": held,
}  # fmt: skip
