"""A wheel has everything that the package reads, its commands and its extras."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.support.folders import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, as the build leaves folders beside what it builds."""
    folder = tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "fusewright", "pyproject.toml", "README.md", "LICENSE"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in listed.stdout.splitlines():
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / "source" / name)
    command = ["pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    words = [sys.executable, "-m", *command, "--wheel-dir", str(folder), str(folder / "source")]
    subprocess.run(words, check=True, timeout=120)
    (made,) = folder.glob("fusewright-*.whl")
    return made


def test_every_file_of_the_package_is_in_it(wheel: Path) -> None:
    """Headers, templates and styles, too, not only what Python imports."""
    inside = set(zipfile.ZipFile(wheel).namelist())
    source = wheel.parent / "source"
    files = {str(p.relative_to(source)) for p in (source / "fusewright").rglob("*") if p.is_file()}
    assert {"fusewright/py.typed", "fusewright/cli/main.py"} <= files
    assert not files - inside


def test_commands_and_extras(wheel: Path) -> None:
    held = zipfile.ZipFile(wheel)
    texts = {Path(name).name: held.read(name).decode() for name in held.namelist() if "/" in name}
    assert "fusewright = fusewright.cli.main:main" in texts["entry_points.txt"]
    assert "[torch_dynamo_backends]" in texts["entry_points.txt"]
    extras = Parser().parsestr(texts["METADATA"]).get_all("Provides-Extra", [])
    assert {"mcp", "ray", "report"} <= set(extras)


def test_what_is_installed_runs_from_anywhere(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    words = ["pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([sys.executable, "-m", *words, str(wheel)], check=True, timeout=120)
    problem = ROOT / "examples" / "linear_relu_divide.py"
    command = [sys.executable, "-m", "fusewright", "optimize", str(problem)]
    done = subprocess.run(
        [*command, "--target", "sm_90a", "--no-verify", "--output", "fused.py"],
        cwd=tmp_path, env={"PYTHONPATH": str(target), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "class ModelNew" in (tmp_path / "fused.py").read_text(encoding="utf-8")
