"""Which word a ledger says, by how many cases its checks have seen."""

from __future__ import annotations

import pytest

from fusewright.judge.findings import CHECKS, Ledger, Outcome

COUNTED = [name for name, check in CHECKS.items() if check.fewest]


def ledger(name: str, outcome: Outcome, cases: int) -> Ledger:
    """Everything else has enough."""
    wanted = {check.when for check in CHECKS.values()} - {"note"}
    made = Ledger(wanted)
    for other, check in CHECKS.items():
        if check.when != "note":
            made.add(other, outcome if other == name else "pass", "seen")
            made.count(other, cases if other == name else check.fewest)
    return made


@pytest.mark.parametrize("name", COUNTED)
def test_a_check_with_too_few_cases_is_no_evidence(name: str) -> None:
    fewest = CHECKS[name].fewest
    word, reason = ledger(name, "pass", fewest - 1).word()
    assert word == "not-verified"
    assert f"{name} ({fewest - 1} of {fewest})" in reason
    assert ledger(name, "pass", fewest).word()[0] == "verified"


@pytest.mark.parametrize("name", COUNTED)
def test_one_failing_case_is_enough_to_refute(name: str) -> None:
    assert ledger(name, "fail", 1).word()[0] == "refuted"


@pytest.mark.parametrize("name", COUNTED)
def test_a_skip_needs_no_cases_where_one_is_allowed(name: str) -> None:
    wanted = "verified" if CHECKS[name].may_skip else "not-verified"
    assert ledger(name, "skip", 0).word()[0] == wanted


def test_rows_say_how_many_cases_they_have() -> None:
    rows = {row.check: row.cases for row in ledger("values", "pass", 17).rows()}
    assert rows["values"] == 17
    assert rows["determinism"] == CHECKS["determinism"].fewest


def test_every_check_that_compares_outputs_needs_some() -> None:
    """The others watch processes, or compare what is there once."""
    once = {
        "self-canary", "import", "constructor", "parameters", "output-reuse", "global-state",
        "crash", "timeout", "protocol", "resources", "leftovers", "timing-clocks", "timing-floor",
        "sanitizer",
    }  # fmt: skip
    watched = {name for name, check in CHECKS.items() if check.when != "note"}
    assert watched - set(COUNTED) == once
