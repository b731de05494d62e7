"""What a compiler said of a text, so that it is asked again only when the text is another one.

The same compiler says the same of the same text, and to ask about every schedule of every kernel
takes it half an hour of processor time. So what was said is kept in tests/golden/compilers, a file
for each file of tests, by the digest of the compiler's version, its options and the text. A text
that is not there is compiled. `make golden` writes what it compiled, and drops what it no longer
needs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.folders import TESTS

FOLDER = TESTS / "golden" / "compilers"
# Of what `ptxas -v` says, the lines that tests read: kernels, their resources, and warnings that a
# kernel is slower than it was written.
TOLD = re.compile(r".*(?:Compiling entry function|bytes stack frame|Used \d+ registers|C75\d\d).*")


class Settings:
    """update: ask compilers anew, and write what they say."""

    update = False


def said(compiler: str, options: Sequence[str], text: str, ask: Callable[[], str]) -> str:
    """What the compiler says of a text: what is on record, or what `ask` returns.

    compiler: its name and version.  ask: compiles; raises AssertionError where that fails, which
    is never kept.
    """
    place, test = _place()
    found = _read(place)
    digest = hashlib.sha256("\0".join([compiler, *options, text]).encode()).hexdigest()[:24]
    if digest in found and not Settings.update:
        return str(found[digest]["said"])
    report = ask()
    if Settings.update:
        _record(place, test, digest, report)
    return report


def condensed(report: str) -> str:
    """The lines that tests read."""
    return "\n".join(line.strip() for line in report.splitlines() if TOLD.fullmatch(line))


def _place() -> tuple[Path, str]:
    """The file for the test that runs now, and the test."""
    path, _, test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0].partition("::")
    name = path.removeprefix("tests/").removesuffix(".py").replace("/", ".")
    return FOLDER / f"{name}.json", test


def _read(place: Path) -> dict[str, Any]:
    return _parsed(place, place.stat().st_mtime_ns) if place.exists() else {}


@cache
def _parsed(place: Path, _written: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    return found


_begun: dict[tuple[Path, str], set[str]] = {}  # tests of this process -> what they asked for


def _record(place: Path, test: str, digest: str, report: str) -> None:
    """Keep a report, and of the same test only those that it asked for in this process."""
    asked = _begun.setdefault((place, test), set())
    asked.add(digest)
    kept = {
        key: entry for key, entry in _read(place).items() if entry["of"] != test or key in asked
    }
    kept[digest] = {"of": test, "said": report}
    FOLDER.mkdir(exist_ok=True)
    ordered = dict(sorted(kept.items(), key=lambda item: (item[1]["of"], item[0])))
    place.write_text(json.dumps(ordered, indent=0) + "\n", encoding="utf-8")
