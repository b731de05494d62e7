"""What a problem imports, and what builds a candidate, is there for the judge's workers, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from fusewright.judge.isolation import library_paths
from fusewright.judge.isolation.library_paths import library_folder
from tests.support.folders import ROOT

# In an interpreter with the place set up: what a worker looks through, and what it can read in the
# strongest isolation that works here. Prints what is missing.
ASK = """
import json, os, subprocess, sys, time
from fusewright.judge.isolation import library_paths as libraries
from fusewright.judge.isolation.library_paths import PATHS, readable, search
from fusewright.judge.isolation.worker_pool import open_site

wanted, hidden = json.loads(sys.argv[1])
if wanted and wanted[0].endswith(".py"):
    code = PATHS + "import helper_of_mine; print(helper_of_mine.__file__)"
    order = [sys.executable, "-I", "-B", "-c", code, search()]
    done = subprocess.run(order, capture_output=True, text=True, check=False, cwd="/")
    assert done.stdout.strip() == wanted[0], done
with open_site("cpu", kinds=()) as site:
    def can_read(files):
        options = {"secret": str(site.folder / "secret"), "judge": os.getpid(), "must_read": files}
        worker = site.start("probe", "fusewright.judge.isolation.sandbox", options=options)
        found = worker.channel.receive_json(time.monotonic() + 60)
        worker.finish()
        return found["interpreter and libraries readable"]
    print("tier", site.plan.tier, "reads", all(can_read([f]) for f in wanted),
          "hides", site.plan.tier < 2 or not any(can_read([f]) for f in hidden))
"""
FINDER = """
import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
MAPPING = {{"helper_of_mine": {place!r}}}
class _EditableFinder:
    @classmethod
    def find_spec(cls, name, path=None, target=None) -> ModuleSpec | None:
        if name in MAPPING:
            return spec_from_file_location(name, MAPPING[name] + "/__init__.py")
def install():
    sys.meta_path.append(_EditableFinder)
"""


def _helper(folder: Path) -> Path:
    """A package that a problem may import."""
    package = folder / "helper_of_mine"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("", encoding="utf-8")
    return package / "__init__.py"


Setup = tuple[Mapping[str, str], Path]


def _python_path(_: Path, folder: Path) -> Setup:
    return {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}, _helper(folder)


def _behind_a_link(_: Path, folder: Path) -> Setup:
    found = _helper(folder / "real")
    (folder / "link").symlink_to(folder / "real")
    link = folder / "link" / found.parent.name / found.name
    return {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder / 'link'}"}, link


def _pth_file(site: Path, folder: Path) -> Setup:
    (site / "mine.pth").write_text(f"{folder}\n", encoding="utf-8")
    return {}, _helper(folder)


def _editable(site: Path, folder: Path) -> Setup:
    found = _helper(folder)
    text = FINDER.format(place=str(found.parent))
    (site / "__editable___mine_finder.py").write_text(text, encoding="utf-8")
    line = "import __editable___mine_finder; __editable___mine_finder.install()\n"
    (site / "__editable__.mine.pth").write_text(line, encoding="utf-8")
    return {}, found


def _home(_: Path, folder: Path) -> Setup:
    """A home shows what can be imported from it, and nothing else."""
    return {"HOME": str(folder), "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}, _helper(folder)


def _compiler(_: Path, folder: Path) -> Setup:
    tool = folder / "gcc" / "bin" / "g++"
    part = folder / "gcc" / "libexec" / "cc1plus"
    for path in (tool, part):
        path.parent.mkdir(parents=True)
        path.write_text("", encoding="utf-8")
        path.chmod(0o755)
    return {"PATH": f"{tool.parent}{os.pathsep}{os.environ['PATH']}"}, part


@pytest.mark.parametrize(
    "make", [_python_path, _behind_a_link, _pth_file, _editable, _home, _compiler]
)
def test_a_worker_finds_and_reads_what_the_caller_does(
    make: Callable[[Path, Path], Setup], tmp_path: Path
) -> None:
    venv.create(tmp_path / "venv", symlinks=True)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "torch.pth").write_text(f"{library_folder()}\n", encoding="utf-8")
    variables, wanted = make(site, tmp_path / "mine")
    hidden = tmp_path / "mine" / "notes.txt"
    hidden.write_text("of nobody's business", encoding="utf-8")
    names = [[str(wanted)], [str(hidden)] if make is _home else []]
    done = subprocess.run(
        [tmp_path / "venv" / "bin" / "python", "-c", ASK, json.dumps(names)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables}, cwd=tmp_path,
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.stdout.strip().endswith("reads True hides True"), done.stdout + done.stderr


def test_a_folder_below_the_temporary_one_is_shown_where_that_is_elsewhere(tmp_path: Path) -> None:
    """The worker's own /tmp is empty but for the libraries that lie below it."""
    elsewhere = Path("/dev/shm") / f"fusewright-test-{os.getpid()}"
    elsewhere.mkdir()
    try:
        found = _helper(tmp_path / "mine")
        done = subprocess.run(
            [sys.executable, "-c", ASK, json.dumps([[str(found)], []])],
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path / 'mine'}",
                "TMPDIR": str(elsewhere),
            },
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200,
        )  # fmt: skip
    finally:
        elsewhere.rmdir()
    assert done.stdout.strip().endswith("reads True hides True"), done.stdout + done.stderr


def test_the_users_own_site_is_looked_through_with_its_pth_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "site"
    found = _helper(tmp_path / "behind")
    own.mkdir()
    (own / "mine.pth").write_text(f"{tmp_path / 'behind'}\n", encoding="utf-8")
    monkeypatch.setattr("site.ENABLE_USER_SITE", True)
    monkeypatch.setattr("site.getusersitepackages", lambda: str(own))
    monkeypatch.syspath_prepend(own)
    assert {str(own), str(tmp_path / "behind")} <= set(library_paths.readable())
    code = library_paths.PATHS + "import helper_of_mine; print(helper_of_mine.__file__)"
    order = [sys.executable, "-I", "-B", "-c", code, library_paths.search()]
    done = subprocess.run(order, capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.strip() == str(found)
