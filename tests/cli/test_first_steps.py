"""The newcomer's page works as typed: its files are written, its commands run, in its order."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.folders import ROOT

PAGE = ROOT / "docs" / "howto" / "first-steps.md"
NAMED = r"(?:[^\n]*`(?P<name>\w+\.py)`:\n\n)?"
BLOCK = re.compile(rf"^{NAMED}```(?P<kind>sh|python)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = ("doctor", "optimize", "explain", "show", "judge", "bench", "suite")


def blocks() -> list[tuple[str, str, str]]:
    """Name of the file, if it is one; kind; text."""
    text = PAGE.read_text(encoding="utf-8")
    found = BLOCK.finditer(text)
    return [(m["name"] or "", m["kind"], m["text"]) for m in found]


def test_the_page_has_every_command_of_a_newcomer() -> None:
    typed = {tuple(line.split()[:2]) for *_, text in blocks() for line in text.splitlines()}
    assert not {("fusewright", name) for name in COMMANDS} - typed
    assert all(name for name, kind, _ in blocks() if kind == "python"), "each file has a name"
    assert len(PAGE.read_text(encoding="utf-8").splitlines()) < 130, "one page"


@pytest.mark.judged
@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_it_works_as_typed(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, words in (("fusewright", "-m fusewright "), ("python", "")):
        script = tools / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n')
        script.chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    for name, kind, text in blocks():
        if kind == "python":
            (tmp_path / name).write_text(text, encoding="utf-8")
            continue
        for line in text.replace("\\\n", "").splitlines():
            done = typed(line, tmp_path, environment)
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            if line == "python module.py":
                assert done.stdout.splitlines()[-1] == "tensor(True)"
    written = {path.name for path in tmp_path.iterdir()}
    assert {"swish.html", "mine_fused.py", "mine.json", "layer_fused.py", "results.html"} <= written


def typed(
    line: str, folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """What a line does, once more where a clock could not be trusted beside other tests."""
    for _ in range(3):
        done = subprocess.run(
            line, shell=True, cwd=folder, env=environment, capture_output=True, text=True,
            timeout=600, check=False,
        )  # fmt: skip
        if "timing-clocks" not in done.stderr:
            break
    return done
