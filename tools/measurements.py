"""docs/measurements/*.jsonl -> checked records, and the page docs/measurements.md made of them.

Each line of these files is one measurement that a constant of the code or a page of the docs rests
on. Code and docs cite it by its id, as in `[m: gemm-0004]`; several ids stand in one pair of
brackets, separated by commas. An id is the name of its file and a number of four digits; it never
changes, and never comes back for another measurement. What is not known of a measurement is null.

    python tools/measurements.py            # writes docs/measurements.md anew
    python tools/measurements.py --check    # says whether it is up to date
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "fusewright"
FOLDER, PAGE = ROOT / "docs" / "measurements", ROOT / "docs" / "measurements.md"
ID = re.compile(r"[a-z]+-\d{4}")
NAME = re.compile(r"(?:\w+\.)?\w+")
CITED = re.compile(r"\[m: ([^\]]*)\]")
WIDEST = 120  # columns of a line of the page
HEAD = (
    "What constants of the code and pages of these docs rest on. This page is written by "
    "`tools/measurements.py` from `docs/measurements/*.jsonl`; the [how-to](howto/measurement.md) "
    "says how one is added. Each entry has its id, what was measured and its median (first to "
    "ninth decile or 95 % interval in brackets), what it stands beside, and the circumstances that "
    "are known. A measurement was true of one machine on one day. Nothing here is predicted, "
    "unless it says so."
)


@dataclass(frozen=True)
class Baseline:
    """What a measurement stands beside, in the same unit and the same run: its name and median."""

    what: str
    median: float | None


@dataclass(frozen=True)
class Measurement:
    """One line of a file.

    quantity: what was measured, in words.  unit: of all numbers of the line.  low, high: of the
    first to ninth decile, or of an interval.  runs: how many the median is of.  command: null
    where it was a script that was not kept.  supports: names of constants, functions and device
    sections that rest on it, behind a folder where the name alone does not tell:
    `conv.LEAST_FLOPS`.
    """

    id: str
    quantity: str
    unit: str
    median: float | None
    low: float | None
    high: float | None
    runs: int | None
    baseline: tuple[Baseline, ...]
    command: str | None
    machine: str | None
    software: str | None
    commit: str | None
    date: str | None
    supports: tuple[str, ...]
    note: str | None


class Malformed(Exception):
    """A line that is no measurement; says which one and why."""


def load(folder: Path = FOLDER) -> tuple[Measurement, ...]:
    """Every measurement, in the order of files and lines; raises Malformed."""
    found: list[Measurement] = []
    for path in sorted(folder.glob("*.jsonl")):
        last = ""
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            place = f"{path.name}:{number}"
            record = read(line, place)
            if not record.id.startswith(f"{path.stem}-") or record.id <= last:
                raise Malformed(f"{place}: ids are {path.stem}-0001, -0002, ... in rising order")
            last = record.id
            found.append(record)
    return tuple(found)


def read(line: str, place: str) -> Measurement:
    """One line of a file; raises Malformed, which names the place."""
    try:
        values: dict[str, Any] = json.loads(line)
    except json.JSONDecodeError as error:
        raise Malformed(f"{place}: not JSON: {error}") from None
    wanted = [f.name for f in fields(Measurement)]
    if list(values) != wanted:
        raise Malformed(f"{place}: the keys are {', '.join(wanted)}, in this order")
    try:
        beside = tuple(Baseline(b["what"], b["median"]) for b in values["baseline"])
    except (KeyError, TypeError):
        raise Malformed(f"{place}: baseline is a list of what and median") from None
    record = Measurement(**(values | {"baseline": beside, "supports": tuple(values["supports"])}))
    if complaint := "; ".join(_complaints(record)):
        raise Malformed(f"{place}: {complaint}")
    return record


def _complaints(m: Measurement) -> Iterator[str]:
    texts = {"id": m.id, "quantity": m.quantity, "unit": m.unit}
    yield from (f"{n} is no text" for n, v in texts.items() if not isinstance(v, str) or not v)
    maybe = {"command": m.command, "machine": m.machine, "software": m.software}
    maybe |= {"commit": m.commit, "note": m.note}
    yield from (f"{n} is neither text nor null" for n, v in maybe.items() if not _is(v, str))
    numbers = {"median": m.median, "low": m.low, "high": m.high}
    numbers |= {f"baseline {b.what}": b.median for b in m.baseline}
    yield from (f"{n} is no number" for n, v in numbers.items() if not _is(v, int, float))
    if not ID.fullmatch(str(m.id)):
        yield "an id is a word and four digits"
    if not _is(m.runs, int) or (m.runs is not None and m.runs < 1):
        yield "runs is no count"
    if m.median is None and not m.note:
        yield "without a median, a note says what was found"
    known = [v for v in (m.low, m.median, m.high) if isinstance(v, int | float)]
    if known != sorted(known):
        yield "low, median and high do not rise"
    if m.date is not None:
        try:
            date.fromisoformat(m.date)
        except ValueError:
            yield f"{m.date} is no date"
    yield from (f"supports {s} is no NAME" for s in m.supports if not NAME.fullmatch(s))


def _is(value: object, *kinds: type) -> bool:
    return value is None or (isinstance(value, kinds) and not isinstance(value, bool))


def cited(text: str) -> list[str]:
    """The ids that a text cites, in order; a comment may break a line between two of them."""
    whole = re.sub(r"\n\s*(?:#|//)", "\n", text)
    return [one.strip() for group in CITED.findall(whole) for one in group.split(",")]


def missing(records: Iterable[Measurement], package: Path = PACKAGE) -> list[str]:
    """What records say that they support and is not in one place, as sentences."""
    defined = _definitions(package)
    found = []
    for record in records:
        for support in record.supports:
            folder, _, name = support.rpartition(".")
            files = [p for p in defined.get(name, ()) if not folder or folder in p.parts]
            if len(files) != 1:
                where = ", ".join(str(p) for p in files) or "nowhere"
                found.append(f"{record.id} supports {support}, which is defined in: {where}")
    return found


def _definitions(package: Path) -> Mapping[str, Sequence[Path]]:
    """Name -> the files that define it at their top level, or have a section called so."""
    found: dict[str, list[Path]] = {}
    for path in sorted(p for p in package.rglob("*") if p.suffix in (".py", ".h", ".cuh")):
        for name in _names(path):
            found.setdefault(name, []).append(path.relative_to(package))
    return found


def _names(path: Path) -> frozenset[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return frozenset(re.findall(r"^//@ (\w+)", text, re.MULTILINE))
    names = set[str]()
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            names.add(statement.name)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            every = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names |= {n.id for t in every for n in ast.walk(t) if isinstance(n, ast.Name)}
    return frozenset(names)


def page(records: Sequence[Measurement]) -> str:
    """The text of docs/measurements.md."""
    files: dict[str, list[Measurement]] = {}
    for record in records:
        files.setdefault(record.id.split("-")[0], []).append(record)
    parts = ["# Measurements\n", *wrapped(HEAD, "", ""), ""]
    for name, entries in files.items():
        parts += [f"## {name}\n", *("\n".join(_entry(e)) for e in entries), ""]
    return "\n".join(parts).rstrip("\n") + "\n"


def _entry(m: Measurement) -> Iterator[str]:
    value = "" if m.median is None else f": **{_number(m.median)} {m.unit}**"
    if m.low is not None and m.high is not None:
        value += f" ({_number(m.low)}–{_number(m.high)})"
    beside = [b.what + ("" if b.median is None else f" {_number(b.median)}") for b in m.baseline]
    text = f"**{m.id}** {m.quantity}{value}" + (f"; beside {', '.join(beside)}" if beside else "")
    text += f". {m.note}" if m.note else "."
    around = [m.date, m.machine, m.software, f"at {m.commit}" if m.commit else None]
    around.append(f"median of {m.runs}" if m.runs else None)
    around.append(f"`{m.command}`" if m.command else None)
    said = ", ".join(part for part in around if part)
    text += f" ({said}.)" if said else ""
    text += f" For {', '.join(f'`{s}`' for s in m.supports)}." if m.supports else ""
    yield from wrapped(text, "* ", "  ")


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if value < 1e6 else f"{value:,}"


def wrapped(text: str, first: str, rest: str, widest: int = WIDEST) -> Iterator[str]:
    """A paragraph in lines; code between backticks stays whole."""
    line, started = first, False
    for word in re.findall(r"(?:`[^`]*`|\S)+", text):
        if started and len(line) + 1 + len(word) > widest:
            yield line
            line, started = rest, False
        line, started = f"{line} {word}" if started else f"{line}{word}", True
    yield line


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    given: Mapping[str, Any] = vars(parser.parse_args(arguments))
    try:
        records = load()
    except Malformed as error:
        print(error, file=sys.stderr)
        return 2
    text = page(records)
    complaints = missing(records)
    if given["check"] and (not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text):
        complaints.append("docs/measurements.md is old: run python tools/measurements.py")
    elif not given["check"]:
        PAGE.write_text(text, encoding="utf-8")
    print("\n".join([*complaints, f"{len(records)} measurements"]))
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
