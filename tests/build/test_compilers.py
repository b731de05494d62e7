"""Before a build: missing tools are named, with what to install."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fusewright.build.compilers import require_tools
from fusewright.errors import ToolMissing
from fusewright.targets.target import TARGETS


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
