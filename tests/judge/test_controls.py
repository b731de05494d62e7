"""An honest candidate that looks like a cheat must be verified, by the whole judge without clocks.

Twins (another file that resembles the same cheat) are left to bench/corpus.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fusewright.judge.findings import CHECKS
from tests.support.corpus import Bench, Entry, controls, lacking, options_for, parameters, running

CONTROLS = controls()


@pytest.fixture(scope="module")
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    yield from running(request, options_for)


@pytest.mark.parametrize("entry", parameters(e for e in CONTROLS if not e.twin_of))
def test_verified(entry: Entry, bench: Bench) -> None:
    if lacking(entry):
        pytest.skip(lacking(entry))
    outcome = bench.outcome(entry)
    assert outcome.verdict == "verified", f"{entry.name} was not verified. {outcome}"
    missing = set(entry.notes) - set(outcome.notes)
    assert not missing, f"{entry.name} lacks the notes {sorted(missing)}. {outcome}"


def test_headers() -> None:
    assert len(CONTROLS) >= 20
    for entry in CONTROLS:
        assert entry.problem.exists(), f"{entry.path}: no problem {entry.problem}"
        for note in entry.notes:
            assert CHECKS[note].when == "note", f"{entry.path}: {note} is no note"
