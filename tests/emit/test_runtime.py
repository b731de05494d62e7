"""The build beside the kernels: every way it can go, each with a cache of kernels of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from fusewright.emit.runtime import LIBRARY_FUNCTION, calls_text
from tests.support.emitting import Emitted, emit_text

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
import importlib.util, sys
spec = importlib.util.spec_from_file_location("emitted", sys.argv[1])
emitted = importlib.util.module_from_spec(spec)
spec.loader.exec_module(emitted)
torch = emitted.torch
x = torch.randn(3, 8)
with torch.no_grad():
    assert torch.equal(emitted.ModelNew()(x), torch.relu(x) + 1)
assert emitted._FUSEWRIGHT_FUNCTIONS
print("ran")
"""


# It calls its class while it is imported, and once more where it is the main program.
CALLS_ITSELF = """
    import torch


    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x) + 1


    first = Model()
    with torch.no_grad():
        found = first(torch.ones(3, 8))


    def get_inputs():
        return [torch.randn(4, 8)]


    if __name__ == "__main__":
        with torch.no_grad():
            assert torch.equal(found, Model()(torch.ones(3, 8)))
        print(len(globals().get("_FUSEWRIGHT_FUNCTIONS", ())), float(found.sum()))
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


@pytest.mark.compiler
def test_a_file_that_calls_its_class_itself(tmp_path: Path) -> None:
    """The kernels are there when it does, and when it is the main program."""
    emitted = emit_text(CALLS_ITSELF, tmp_path)
    command = [sys.executable, str(emitted.path)]
    environment = {**os.environ, "TORCH_EXTENSIONS_DIR": str(tmp_path / "kernels")}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout == "1 48.0\n", done.stderr
    assert library(tmp_path / "kernels")
    places = [emitted.text.index(word) for word in ("\n# ---- kernels", "\n# region", "\nfirst =")]
    assert places == sorted(places)


def finish(process: subprocess.Popen[str]) -> str:
    """The last line of what it printed, or of its error."""
    out, err = process.communicate(timeout=120)
    return (out if process.returncode == 0 else err).strip().splitlines()[-1]


def library(cache: Path) -> Path:
    (found,) = cache.glob("fusewright_*/kernels.so")
    return found


@pytest.mark.compiler
def test_two_processes_at_once_then_a_third(emitted: Emitted, tmp_path: Path) -> None:
    cache = tmp_path / "kernels"
    both = [start(emitted, cache) for _ in range(2)]
    assert [finish(p) for p in both] == ["ran", "ran"]
    assert [p.name for p in library(cache).parent.iterdir()] == ["kernels.so"], (
        "nothing is left behind"
    )
    before = library(cache).stat().st_mtime_ns
    # A later process needs no compiler: it finds the library.
    assert finish(start(emitted, cache, CXX="no-such-compiler")) == "ran"
    assert library(cache).stat().st_mtime_ns == before


@pytest.mark.compiler
def test_a_stale_lock_stops_nobody(emitted: Emitted, tmp_path: Path) -> None:
    """As a killed build leaves it: a lock, and a half-built folder."""
    assert finish(start(emitted, tmp_path)) == "ran"
    place = library(tmp_path).parent
    library(tmp_path).unlink()
    (place / "lock").touch()
    (place / "tmpkilled").mkdir()
    (place / "tmpkilled" / "lock").touch()
    assert finish(start(emitted, tmp_path)) == "ran"


# Entries as kernels have them: one that waits for another thread of Python, one that fails.
ENTRIES = """
namespace fusewright {
extern "C" void run_wait(const volatile long* flag, long, long) { while (!*flag) {} }
extern "C" int run_fail(double*, long batch, int device, void*) { return int(batch) + device; }
}
"""
CALLS = """
import ctypes, sys, threading, time
function = ctypes.PyDLL(sys.argv[1]).fusewright_function
function.restype = ctypes.py_object
wait, fail = (function(k, ctypes.py_object(name)) for k, name in enumerate(("wait", "fail")))
flag = ctypes.c_long(0)

def later():
    time.sleep(0.1)
    flag.value = 1

threading.Thread(target=later).start()
assert wait(ctypes.addressof(flag), 0, 0) == 0
assert fail(0, 0, 0, 0) == 0

def refused(*arguments):
    try:
        fail(*arguments)
    except (RuntimeError, TypeError) as error:
        return f"{type(error).__name__}: {error}"

assert refused(2**64 - 1, 3, 4, 5) == "RuntimeError: fail failed with CUDA error 7.", refused()
assert refused(1, 2, 3) == "TypeError: fail takes 4 arguments.", refused()
assert refused("address", 0, 0, 0).startswith("TypeError: "), refused()
print("called")
"""


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("compiler", "name"),
    [("g++ -Wall -Wextra -Werror -fPIC", "calls.cpp"), ("nvcc -Xcompiler -fPIC", "calls.cu")],
)
def test_calls_from_python(compiler: str, name: str, tmp_path: Path) -> None:
    """Python goes on during a call; errors and wrong arguments are exceptions."""
    if not shutil.which(compiler.split()[0]):
        pytest.skip("no such compiler here")
    source, built = tmp_path / name, tmp_path / "calls.so"
    source.write_text(ENTRIES + calls_text(["wait", "fail"]), encoding="utf-8")
    options = ["-std=c++17", "-shared", str(source), "-o", str(built)]
    subprocess.run([*compiler.split(), *options], check=True)
    command = [sys.executable, "-c", CALLS, str(built)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "called\n", done.stderr


def refusal(emitted: Emitted) -> str:
    """The message of the error with which a first run ends in this process."""
    loaded = emitted.load()
    torch = loaded.torch
    with torch.no_grad(), pytest.raises((RuntimeError, OSError)) as caught:
        loaded.ModelNew()(torch.randn(3, 8))
    return str(caught.value)


@pytest.mark.compiler
def test_no_compiler(emitted: Emitted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler --fast")
    assert refusal(emitted) == (
        "ModelNew compiles its kernels when it first runs, but finds no no-such-compiler on the "
        "PATH. Install a C++ compiler (such as g++) and ninja (pip install ninja)."
    )
    monkeypatch.setenv("CXX", "")
    assert "finds no C++ compiler (CXX is empty) on the PATH" in refusal(emitted)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "finds no ninja on the PATH" in refusal(emitted)


@pytest.mark.compiler
def test_a_place_that_cannot_be_written(
    emitted: Emitted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write everywhere, so the answer of the system is given here."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "kernels"))
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    message = refusal(emitted)
    assert f"{tmp_path} cannot be written to. Set TORCH_EXTENSIONS_DIR to a folder" in message
    monkeypatch.undo()
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "file"))
    assert str(tmp_path / "file") in refusal(emitted)


@pytest.mark.compiler
def test_kernels_have_one_name_per_text(emitted: Emitted, tmp_path: Path) -> None:
    """Another kernel, another library; the same kernel in another file, the same library."""
    again = emit_text(
        SOURCE.replace("import torch\n", "import torch\n\n    # a remark\n"), tmp_path
    )
    cache = tmp_path / "kernels"
    assert [finish(start(e, cache)) for e in (emitted, again)] == ["ran", "ran"]
    assert library(cache)
    other = emit_text(SOURCE.replace("+ 1", "+ 2"), tmp_path)
    assert "AssertionError" in finish(start(other, cache)), "it adds 2, where RUN wants 1"
    assert len(list(cache.glob("fusewright_*/kernels.so"))) == 2


@pytest.mark.compiler
def test_an_edited_kernel_is_compiled_anew(emitted: Emitted, tmp_path: Path) -> None:
    """Whoever changes the text of a kernel gets what it says, not what was compiled before."""
    cache, path = tmp_path / "kernels", tmp_path / "edited.py"
    assert finish(start(emitted, cache)) == "ran"
    edited = emitted.text.replace(" + 1.0f", " + 2.0f")
    assert edited != emitted.text
    path.write_text(edited, encoding="utf-8")
    assert "AssertionError" in finish(start(replace(emitted, path=path), cache))


def test_who_compiles_a_file_calls_a_function_that_is_there(emitted: Emitted) -> None:
    assert f"\ndef {LIBRARY_FUNCTION}():\n" in emitted.text
