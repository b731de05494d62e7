"""Every cheat must be refuted by the check that its trick is meant to meet.

Twins (another file with the same mechanism) are left to bench/corpus.py, as is the whole judge on
every cheat: here each one meets only the experiments that can set off its check, which so has to
refute it without help from others.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fusewright.judge.findings import CHECKS
from tests.support.corpus import (
    Bench,
    Entry,
    cheats,
    controls,
    focused,
    lacking,
    parameters,
    running,
)
from tests.support.folders import PROBLEMS
from tests.support.mutation import subjects

CHEATS = cheats()
GROUPS = "TRCPNFH"  # the groups of the catalogue in docs/judge.md that a candidate can belong to


@pytest.fixture(scope="module")
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    yield from running(request, focused)


@pytest.mark.parametrize("entry", parameters(e for e in CHEATS if not e.twin_of))
def test_refuted(entry: Entry, bench: Bench) -> None:
    if lacking(entry):
        pytest.skip(lacking(entry))
    outcome = bench.outcome(entry)
    assert outcome.verdict == "refuted", f"{entry.name} escaped. {outcome}"
    assert entry.check in outcome.failing, f"{entry.name} was refuted otherwise. {outcome}"


def test_headers() -> None:
    names = {entry.name for entry in CHEATS}
    for entry in CHEATS:
        assert entry.problem.exists(), f"{entry.path}: no problem {entry.problem}"
        assert entry.check in CHECKS, f"{entry.path}: no check is called {entry.check}"
        assert not entry.twin_of or entry.twin_of in names, f"{entry.path}: no {entry.twin_of}"
        assert CHECKS[entry.check].when != "note", f"{entry.path}: a note never refutes"


def test_every_group_of_the_catalogue_is_covered() -> None:
    assert {entry.catalogue[0] for entry in CHEATS} == set(GROUPS)
    assert len(CHEATS) >= 60


def test_every_refuting_check_has_a_cheat() -> None:
    """Except the one that looks at the judge itself, which no candidate can set off."""
    used = {entry.check for entry in CHEATS}
    wanted = {name for name, check in CHECKS.items() if check.when != "note"}
    assert wanted - used <= {"self-canary", "timing-floor", "determinism"}


def test_every_problem_is_used() -> None:
    used = {entry.problem.stem for entry in (*CHEATS, *controls())}
    used |= {problem.stem for _, problem in subjects()}
    assert used == {path.stem for path in PROBLEMS.glob("*.py")}
