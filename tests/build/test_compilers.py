"""Before a build: missing tools are named, with what to install."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fusewright.build.compilers import require_tools
from fusewright.errors import ToolMissing
from fusewright.targets.target import TARGETS
from tests.support.folders import ROOT


@pytest.mark.parametrize(
    ("target", "here", "words"),
    [
        ("cpu", (), "No C++ compiler"),
        ("cpu", ("c++",), "pip install ninja"),
        ("sm_90a", ("c++", "ninja"), "CUDA toolkit 12.1"),
    ],
)
def test_missing_tools(
    target: str, here: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in here:
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(ToolMissing) as caught:
        require_tools(TARGETS[target])
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert caught.value.exit_code == 3


def test_a_compiler_with_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"{shutil.which('c++')} -pipe")
    require_tools(TARGETS["cpu"])
    monkeypatch.setenv("CXX", "no-such-compiler -pipe")
    with pytest.raises(ToolMissing, match="no-such-compiler is not on the PATH"):
        require_tools(TARGETS["cpu"])
    monkeypatch.setenv("CXX", "")
    with pytest.raises(ToolMissing, match="CXX is empty"):
        require_tools(TARGETS["cpu"])


@pytest.mark.parametrize("quiet", [True, False], ids=["ours", "PyTorch's"])
def test_a_toolkit_without_a_gpu_is_no_remark_of_ours(quiet: bool, tmp_path: Path) -> None:
    """As in a CUDA build of PyTorch, which logs so at the first import."""
    ask = (
        "import torch\n"
        "torch.version.cuda, torch.cuda._is_compiled = '13.0', lambda: True\n"
        "torch.cuda.is_available = lambda: False\n"
    )
    ours = "from fusewright.build.compilers import cpp_extension; cpp_extension()"
    done = subprocess.run(
        [sys.executable, "-c", ask + (ours if quiet else "import torch.utils.cpp_extension")],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "CUDA_HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert quiet != ("No CUDA runtime is found" in done.stderr)
