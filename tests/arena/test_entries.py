"""Paths of candidates -> their problem and who made them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusewright.arena.entries import find_entries
from fusewright.errors import BadUsage


def folders(root: Path, problems: list[str], candidates: list[str]) -> tuple[Path, Path, Path]:
    places = root / "problems", root / "candidates", root / "out"
    for place, names in zip(places, (problems, candidates), strict=False):
        for name in names:
            path = place / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"# {name}\n")
    return places


PATHS = {
    "alice/softmax": ("softmax", "alice"),
    "softmax/bob": ("softmax", "bob"),
    "softmax/bob/second": ("softmax", "bob/second"),
    "lab/softmax/carol": ("softmax", "lab/carol"),
    "dave/level1/norm": ("level1/norm", "dave"),
    "norm": ("norm", "candidates"),
    "level1/norm/erin": ("level1/norm", "erin"),
}


@pytest.mark.parametrize("path", PATHS)
def test_a_path_names_problem_and_entrant(tmp_path: Path, path: str) -> None:
    places = folders(tmp_path, ["softmax", "norm", "level1/norm"], [path])
    (entry,) = find_entries(*places, {}).entries
    assert (entry.problem, entry.entrant) == PATHS[path]
    assert entry.path == tmp_path / "candidates" / f"{path}.py"
    assert entry.problem_path == tmp_path / "problems" / f"{PATHS[path][0]}.py"


def test_what_names_no_problem_is_left_out(tmp_path: Path) -> None:
    places = folders(tmp_path, ["softmax"], ["alice/softmax", "alice/notes", "alice/_softmax"])
    found = find_entries(*places, {})
    assert [entry.name for entry in found.entries] == ["softmax/alice"]
    assert [path.name for path in found.strangers] == ["notes.py"]


@pytest.mark.parametrize(
    ("candidates", "said"),
    [
        (["alice/softmax", "softmax/alice"], "both alice's candidate for softmax"),
        (["softmax/norm"], "names two problems"),
        (["alice/other"], "no file's path names a problem"),
        ([], "there is no such folder"),
    ],
)
def test_what_cannot_be_told_is_an_error(tmp_path: Path, candidates: list[str], said: str) -> None:
    places = folders(tmp_path, ["softmax", "norm"], candidates)
    with pytest.raises(BadUsage, match=said):
        find_entries(*places, {})


def test_candidates_may_lie_among_the_problems(tmp_path: Path) -> None:
    problems, _, out = folders(tmp_path, ["softmax", "made/alice/softmax"], [])
    found = find_entries(problems, problems / "made", out, {})
    assert [entry.name for entry in found.entries] == ["softmax/alice"]


def test_the_key_is_of_all_that_a_verdict_depends_on(tmp_path: Path) -> None:
    places = folders(tmp_path, ["softmax"], ["alice/softmax"])

    def key(**options: object) -> str:
        (entry,) = find_entries(*places, options).entries
        return entry.key

    first = key(device="cpu")
    assert key(device="cpu") == first
    assert key(device="cuda") != first
    (tmp_path / "candidates" / "alice" / "softmax.py").write_text("# changed\n")
    second = key(device="cpu")
    assert second != first
    (tmp_path / "problems" / "softmax.py").write_text("# changed\n")
    assert key(device="cpu") not in (first, second)
