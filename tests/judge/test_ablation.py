"""Each defence switched off lets a cheat through: none of them is dead weight.

That the defence stops the cheat is in tests/judge/test_cheats.py. bench/ablation.py does the same
with nothing else left out of the judging, and for the checks of the clocks, which take the longest,
too.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from fusewright.judge.findings import CHECKS
from tests.support.ablation import ABLATION, without
from tests.support.corpus import WORKERS, Outcome, cheats

# Not switched off: without these there is nothing that could be judged at all.
NEEDED = {
    "import", "constructor", "structure", "protocol", "timeout", "crash",
    "self-canary", "sanitizer",
}  # fmt: skip


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Outcome]]]:
    chosen: list[Any] = [
        item.callspec.params["check"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path
        if hasattr(item, "callspec")
    ]
    with ThreadPoolExecutor(WORKERS) as pool:
        yield {check: pool.submit(without, check, whole=False) for check in chosen}


@pytest.mark.parametrize("check", [c for c in ABLATION if CHECKS[c].when != "timing"])
def test_without_the_check_the_cheat_gets_through(
    check: str, outcomes: dict[str, Future[Outcome]]
) -> None:
    outcome = outcomes[check].result()
    assert outcome.verdict in ("verified", "not-verified"), f"without {check}: {outcome}"
    assert check not in outcome.failing


def test_every_check_is_switched_off_once() -> None:
    decisive = {name for name, check in CHECKS.items() if check.when != "note"}
    assert set(ABLATION) == decisive - NEEDED


def test_rows_name_cheats_of_the_same_check() -> None:
    by_name = {entry.name: entry for entry in cheats()}
    for check, row in ABLATION.items():
        assert by_name[row.cheat].check == check, f"{row.cheat} is not about {check}"
