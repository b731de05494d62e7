"""Limits of files and functions: what counts, when they complain, and that no exception is idle."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.folders import ROOT
from tests.support.scripts import load_script

PLAN = '''"""A module."""

TABLE = {
    1: 2,
    3: 4,
}


def f():
    # A comment.
    return 1


class C:
    """What it is."""

    async def slow(self):
        """It waits."""

''' + "        await x\n" * 5  # fmt: skip


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_script("tools/code_size.py")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "row.cuh").write_text("// one\n\nint a;  // two\n/* b\n c */ int d;\n")
    (tmp_path / "py.typed").write_text("not source\n")
    (tmp_path / "plan.py").write_text(PLAN)
    return tmp_path


def test_counts_lines_of_code(tool: ModuleType, package: Path) -> None:
    row, plan = tool.measure(package)
    assert (row.path, row.code, row.lines) == ("cuda/row.cuh", 2, 5)
    assert (plan.path, plan.code, plan.lines) == ("plan.py", 9, 24)
    assert {(f.name, f.line, f.code) for f in plan.functions} == {("f", 9, 2), ("slow", 17, 6)}


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({}, []),
        ({"file": 9, "function": 6}, []),
        ({"file": 8}, ["plan.py has 9 lines of code, the limit is 8"]),
        ({"function": 5}, ["plan.py:17 slow has 6 lines of code"]),
        ({"file": 8, "exceptions": {"plan.py": "a reason"}}, []),
        ({"function": 5, "exceptions": {"plan.py slow": "a reason"}}, []),
        ({"exceptions": {"plan.py": "a reason"}}, ["plan.py is an exception without need"]),
        ({"exceptions": {"gone.py": "a reason"}}, ["gone.py is an exception without need"]),
    ],
)
def test_complaints(
    tool: ModuleType, package: Path, limits: dict[str, object], words: list[str]
) -> None:
    found = tool.complaints(tool.measure(package), tool.Limits(**{"exceptions": {}, **limits}))
    assert len(found) == len(words)
    for complaint, expected in zip(found, words, strict=True):
        assert expected in complaint


def test_a_module_says_what_it_is_for(tool: ModuleType, package: Path) -> None:
    (package / "silent.py").write_text("x = 1\n")
    (complaint,) = tool.complaints(tool.measure(package), tool.Limits(exceptions={}))
    assert "silent.py does not say what it is for" in complaint


def test_packages_are_summed(tool: ModuleType, package: Path) -> None:
    assert list(tool.packages(tool.measure(package)))[1:] == [
        "    1      9     24  .",
        "    1      2      5  cuda",
    ]


def test_each_exception_has_a_reason(tool: ModuleType) -> None:
    assert all(len(reason.split()) >= 3 for reason in tool.EXCEPTIONS.values())


def test_no_file_is_spared_without_need() -> None:
    """Where pyproject.toml spares a file one of ruff's limits, something in it exceeds the limit;
    of those that a comment spares, ruff says it itself."""
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"][
        "lint"
    ]
    limits = ("C901", "PLR0911", "PLR0912", "PLR0913", "PLR0915")
    spared = {
        (path, code)
        for path, codes in lint["per-file-ignores"].items()
        for code in codes
        if code in limits and path.startswith("fusewright/")
    }
    options = {"mccabe.max-complexity": lint["mccabe"]["max-complexity"]}
    options |= {f"pylint.{name}": value for name, value in lint["pylint"].items()}
    words = [w for name, value in options.items() for w in ("--config", f"lint.{name}={value}")]
    done = subprocess.run(
        [
            sys.executable, "-m", "ruff", "check", "--isolated", "--output-format", "json",
            "--select", ",".join(limits), *sorted({path for path, _ in spared}),
            *words,
        ],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode <= 1, done.stderr
    found = {
        (Path(row["filename"]).relative_to(ROOT).as_posix(), row["code"])
        for row in json.loads(done.stdout)
    }
    assert spared - found == set()
