"""Kernels that `optimize` has compiled are found by the judge; for `judge` alone they are built."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from fusewright.build.fused_module import Compiling
from fusewright.compiler.pipeline import optimize_file
from fusewright.judge import judge
from tests.support.folders import PROBLEMS

CANDIDATE = """
import os
from pathlib import Path
import torch
from torch import nn

FOUND = Path(os.environ["TORCH_EXTENSIONS_DIR"], "given", "kernels.so").read_text()

class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        assert FOUND == "kernels"
        return torch.relu(self.proj(x))
"""


@pytest.mark.parametrize("given", [True, False])
def test_what_the_caller_has_compiled_is_there(given: bool, tmp_path: Path) -> None:
    library = tmp_path / "given" / "kernels.so"
    library.parent.mkdir()
    library.write_text("kernels")
    candidate = tmp_path / "candidate.py"
    candidate.write_text(CANDIDATE)
    verdict = judge(
        PROBLEMS / "linear_relu.py", candidate, timing=False,
        compiled=lambda: library if given else None,
    )  # fmt: skip
    hashes = verdict.environment["sha256"]
    assert isinstance(hashes, dict)
    assert verdict.verdict == ("verified" if given else "refuted"), verdict.reason
    assert ("kernels compiled by the caller" in hashes) == given


def test_a_file_that_was_just_written_is_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "built"))
    problem = PROBLEMS / "linear_relu.py"
    outcome = optimize_file(problem, out=tmp_path / "new.py", target="cpu", timing=False)
    assert outcome.verdict is not None
    assert outcome.verdict.verdict == "verified"
    assert "kernels compiled by the caller" in json.dumps(dict(outcome.verdict.environment))
    (library,) = (tmp_path / "built").glob("fusewright_*/kernels.so")
    # No other process has compiled it anew: the text is the same, and so is the place.
    written = library.stat().st_mtime_ns
    optimize_file(problem, out=tmp_path / "again.py", target="cpu", timing=False)
    assert library.stat().st_mtime_ns == written


def test_what_does_not_compile_is_left_to_the_file() -> None:
    assert Compiling("").library() is None
    assert Compiling("def _fusewright_library(): raise RuntimeError").library() is None
    assert Compiling("this is no Python").library() is None
    there = f"def _fusewright_library(): return {os.fspath(torch.__file__)!r}"
    assert Compiling(there).library() == torch.__file__
