"""The build beside the kernels: every way it can go, each in a process with its own cache of kernels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from emitting import Emitted, emit_text

SOURCE = """
    import torch


    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x) + 1


    def get_inputs():
        return [torch.randn(4, 8)]


    def get_init_inputs():
        return []
"""
RUN = """
import importlib.util, os, sys
if "REFUSED" in os.environ:
    os.access = lambda path, mode: str(path) != os.environ["REFUSED"]
spec = importlib.util.spec_from_file_location("emitted", sys.argv[1])
emitted = importlib.util.module_from_spec(spec)
spec.loader.exec_module(emitted)
torch = emitted.torch
x = torch.randn(3, 8)
with torch.no_grad():
    assert torch.equal(emitted.ModelNew()(x), torch.relu(x) + 1)
assert emitted._FUSEWRIGHT
print("ran")
"""


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> Emitted:
    return emit_text(SOURCE, tmp_path_factory.mktemp("runtime"))


def start(emitted: Emitted, cache: Path, **more: str) -> subprocess.Popen[str]:
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment: Mapping[str, str] = {
        **os.environ, "PATH": tools, "TORCH_EXTENSIONS_DIR": str(cache), **more
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(emitted.path)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> str:
    """The last line of what it printed, or of its error."""
    out, err = process.communicate(timeout=120)
    return (out if process.returncode == 0 else err).strip().splitlines()[-1]


def library(cache: Path) -> Path:
    (found,) = cache.glob("fusewright_*/kernels.so")
    return found


def test_two_processes_at_once_then_a_third(emitted: Emitted, tmp_path: Path) -> None:
    cache = tmp_path / "kernels"
    both = [start(emitted, cache) for _ in range(2)]
    assert [finish(p) for p in both] == ["ran", "ran"]
    assert [p.name for p in library(cache).parent.iterdir()] == ["kernels.so"], "nothing is left behind"
    before = library(cache).stat().st_mtime_ns
    # A later process needs no compiler: it finds the library.
    assert finish(start(emitted, cache, CXX="no-such-compiler")) == "ran"
    assert library(cache).stat().st_mtime_ns == before


def test_a_stale_lock_stops_nobody(emitted: Emitted, tmp_path: Path) -> None:
    """As a killed build leaves it: a lock, and a half-built folder."""
    assert finish(start(emitted, tmp_path)) == "ran"
    place = library(tmp_path).parent
    library(tmp_path).unlink()
    (place / "lock").touch()
    (place / "tmpkilled").mkdir()
    (place / "tmpkilled" / "lock").touch()
    assert finish(start(emitted, tmp_path)) == "ran"


def test_no_compiler(emitted: Emitted, tmp_path: Path) -> None:
    message = finish(start(emitted, tmp_path, CXX="no-such-compiler"))
    assert message == (
        "RuntimeError: ModelNew compiles its kernels when it first runs, but finds no no-such-compiler "
        "on the PATH. Install a C++ compiler (such as g++) and ninja (pip install ninja)."
    )


def test_no_ninja(emitted: Emitted, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "c++").symlink_to(shutil.which("c++") or "c++")
    message = finish(start(emitted, tmp_path / "kernels", PATH=str(tools)))
    assert "finds no ninja on the PATH" in message


def test_a_place_that_cannot_be_written(emitted: Emitted, tmp_path: Path) -> None:
    """Root may write everywhere, so the answer of the system is given here."""
    message = finish(start(emitted, tmp_path / "kernels", REFUSED=str(tmp_path)))
    assert "cannot be written to. Set TORCH_EXTENSIONS_DIR" in message


def test_a_place_that_is_a_file(emitted: Emitted, tmp_path: Path) -> None:
    (tmp_path / "kernels").touch()
    message = finish(start(emitted, tmp_path / "kernels"))
    assert "NotADirectoryError" in message or "FileExistsError" in message
    assert str(tmp_path / "kernels") in message


def test_kernels_have_one_name_per_text(emitted: Emitted, tmp_path: Path) -> None:
    """Another kernel, another library; the same kernel in another file, the same library."""
    other = emit_text(SOURCE.replace("+ 1", "+ 2"), tmp_path)
    again = emit_text(SOURCE.replace("import torch\n", "import torch\n\n    # a remark\n"), tmp_path)
    names = [next(l for l in e.text.splitlines() if 'name = "fusewright_' in l) for e in (emitted, other, again)]
    assert names[0] != names[1]
    assert names[0] == names[2]
