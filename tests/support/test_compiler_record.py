"""A compiler is asked once about a text; again where the text, an option or it itself changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import compiler_record
from tests.support.compiler_record import condensed, said
from tests.support.cuda_compilers import usages
from tests.support.folders import TESTS

KEPT = compiler_record.FOLDER


class Compiler:
    """Counts what it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> str:
        self.asked += 1
        return f"report {self.asked}"


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_record, "FOLDER", tmp_path / "compilers")
    monkeypatch.setattr(compiler_record, "_begun", {})
    monkeypatch.setattr(compiler_record.Settings, "update", False)


def test_what_is_on_record_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Compiler()
    assert said("nvcc 1", ["-O3"], "text", ask) == "report 1"
    assert said("nvcc 1", ["-O3"], "text", ask) == "report 2", "nothing was kept"
    monkeypatch.setattr(compiler_record.Settings, "update", True)
    assert said("nvcc 1", ["-O3"], "text", ask) == "report 3"
    monkeypatch.setattr(compiler_record.Settings, "update", False)
    assert said("nvcc 1", ["-O3"], "text", ask) == "report 3"
    assert ask.asked == 3
    for other in (
        ("nvcc 2", ["-O3"], "text"),
        ("nvcc 1", ["-O2"], "text"),
        ("nvcc 1", [], "-O3text"),
    ):
        assert said(*other, ask) == f"report {ask.asked}", "another compilation"


def test_a_failure_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_record.Settings, "update", True)

    def fails() -> str:
        raise AssertionError("it does not compile")

    with pytest.raises(AssertionError, match="does not compile"):
        said("nvcc 1", [], "text", fails)
    assert not compiler_record.FOLDER.exists()


def test_what_a_test_no_longer_asks_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_record.Settings, "update", True)
    for text in ("one", "two"):
        said("nvcc 1", [], text, Compiler())
    place, _ = compiler_record._place()
    assert len(compiler_record._read(place)) == 2, "of one test"
    monkeypatch.setattr(compiler_record, "_begun", {})  # another process, later
    said("nvcc 1", [], "three", Compiler())
    assert len(compiler_record._read(place)) == 1
    monkeypatch.setenv(
        "PYTEST_CURRENT_TEST", os.environ["PYTEST_CURRENT_TEST"].replace("::", "::a_")
    )
    said("nvcc 1", [], "four", Compiler())
    assert len(compiler_record._read(place)) == 2, "another test's stay"


def test_what_tests_read_of_a_report() -> None:
    report = """
ptxas info    : Compiling entry function '_Z1kPf' for 'sm_80'
ptxas info    : Function properties for _Z1kPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 4 registers, used 0 barriers, 360 bytes cmem[0]
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized
ptxas info    : Compile time = 3.5 ms
"""
    lines = condensed(report).splitlines()
    assert len(lines) == 4
    assert lines[1] == "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
    (usage,) = usages(condensed(report))
    assert (usage.name, usage.arch, usage.registers) == ("_Z1kPf", "sm_80", 4)
    assert "C7510" in lines[3]


def test_records_belong_to_tests() -> None:
    """Those of a file of tests that is gone go with it."""
    for place in KEPT.glob("*.json"):
        assert (TESTS / (place.stem.replace(".", "/") + ".py")).exists(), place
