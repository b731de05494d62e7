"""The limits of files and functions: what counts and when they complain."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from folders import ROOT

TOOL = ROOT / "tools" / "lines.py"


@pytest.fixture(scope="module")
def lines() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lines_tool", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "skeletons").mkdir()
    (tmp_path / "skeletons" / "row.cuh").write_text("// one\n\n// three\n")
    (tmp_path / "py.typed").write_text("not source\n")
    method = "class C:\n    async def slow(self):\n" + "        await x\n" * 6
    (tmp_path / "plan.py").write_text(f"def f():\n    return 1\n\n\n{method}")
    return tmp_path


def test_counts_every_line_and_function(lines: ModuleType, package: Path) -> None:
    plan, row = lines.measure(package)
    assert (plan.path, plan.lines) == ("plan.py", 12)
    assert (row.path, row.lines) == ("skeletons/row.cuh", 3)
    assert {(f.name, f.line, f.lines) for f in plan.functions} == {("f", 1, 2), ("slow", 6, 7)}


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({}, []),
        ({"file": 12, "function": 7}, []),
        ({"file": 11}, ["plan.py has 12 lines"]),
        ({"function": 6}, ["plan.py:6 slow has 7 lines"]),
        ({"file": 11, "tables": {"plan.py": "a table"}}, []),
        ({"tables": {"plan.py": "a table"}}, ["plan.py is exempt without need"]),
        ({"tables": {"gone.py": "a table"}}, ["gone.py is exempt without need"]),
    ],
)
def test_complaints(
    lines: ModuleType, package: Path, limits: dict[str, object], words: list[str]
) -> None:
    found = lines.complaints(lines.measure(package), lines.Limits(**{"tables": {}, **limits}))
    assert len(found) == len(words)
    for complaint, expected in zip(found, words, strict=True):
        assert expected in complaint


def test_each_exemption_has_a_reason(lines: ModuleType) -> None:
    assert all(len(reason.split()) >= 3 for reason in lines.TABLES.values())
