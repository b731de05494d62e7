"""Files that a problem reads from its own folder are there for a candidate that lies beside it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fusewright.judge import judge
from fusewright.judge.isolation.problem_files import lay, reading


def _module(folder: Path) -> None:
    sys.path.insert(0, str(folder))
    try:
        import table_beside_a_problem  # noqa: F401
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("table_beside_a_problem", None)


def _twice(folder: Path) -> None:
    _module(folder)  # the second time from its cache
    _module(folder)


def _descriptor(folder: Path) -> None:
    os.close(os.open(folder / "text.txt", os.O_RDONLY))


# What reads -> the names that are found.
READERS: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "text": (lambda f: (f / "text.txt").read_text(), ["text.txt"]),
    "twice": (lambda f: [(f / "text.txt").read_bytes() for _ in "ab"], ["text.txt"]),
    "a folder below": (lambda f: np.load(f / "below" / "array.npy"), ["below/array.npy"]),
    "PyTorch": (lambda f: torch.load(f / "weights.pt"), ["weights.pt"]),
    "a descriptor": (_descriptor, ["text.txt"]),
    "a module": (_twice, ["table_beside_a_problem.py"]),
    "the problem itself": (lambda f: (f / "problem.py").read_text(), []),
    "outside": (lambda f: Path("/etc/passwd").read_text(), []),
    "out of it": (lambda f: (f / ".." / "outside.txt").read_text(), []),
    "written": (lambda f: (f / "written.txt").write_text(""), []),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "outside.txt").write_text("", encoding="utf-8")
    made = tmp_path / "problems"
    (made / "below").mkdir(parents=True)
    for name in ("problem.py", "table_beside_a_problem.py", "text.txt"):
        (made / name).write_text("", encoding="utf-8")
    np.save(made / "below" / "array.npy", np.ones(2))
    torch.save(torch.ones(2), made / "weights.pt")
    return made


@pytest.mark.parametrize("name", READERS)
def test_what_is_read_below_the_problems_folder_is_seen(name: str, folder: Path) -> None:
    act, found = READERS[name]
    with reading(folder / "problem.py") as names:
        act(folder)
    assert names == found
    (folder / "text.txt").read_text()
    assert names == found, "what is read later is no concern of the problem's"


def test_it_is_laid_beside_a_candidate(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "worker"
    place.mkdir()
    (place / "text.txt").write_text("was there", encoding="utf-8")
    names = ["text.txt", "below/array.npy", "weights.pt", "is not there"]
    lay(names, folder, place, [str(folder / "weights.pt")])
    found = {str(p.relative_to(place)) for p in place.rglob("*") if p.is_file()}
    assert found == {"text.txt", "below/array.npy"}
    assert (place / "text.txt").read_text(encoding="utf-8") == "was there"
    assert (place / "below").stat().st_mode & 0o777 == 0o755  # another user reads it


PROBLEM = """
from pathlib import Path
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = float((Path(__file__).parent / "factor.txt").read_text())

    def forward(self, x):
        return torch.relu(x * self.factor)

def get_inputs():
    return [torch.randn(4, 8)]
"""


@pytest.mark.parametrize("there", [True, False])
def test_a_candidate_reads_what_lies_beside_it(there: bool, tmp_path: Path) -> None:
    """And nothing that lies beside the problem alone: its user would not have it either."""
    problem = tmp_path / "problem.py"
    problem.write_text(PROBLEM, encoding="utf-8")
    (tmp_path / "factor.txt").write_text("2.5", encoding="utf-8")
    home = tmp_path if there else tmp_path / "elsewhere"
    home.mkdir(exist_ok=True)
    candidate = home / "candidate.py"
    candidate.write_text(PROBLEM.replace("class Model(", "class ModelNew("), encoding="utf-8")
    verdict = judge(problem, candidate, device="cpu", timing=False)
    assert verdict.verdict == ("verified" if there else "refuted"), verdict.reason
