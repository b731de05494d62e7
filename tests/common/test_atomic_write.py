"""Writing: all or nothing, and never over a file that was not meant."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fusewright.common.atomic_write import check_writable, write_atomically
from fusewright.errors import BadUsage


def test_new_file_obeys_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "new.py"
    previous = os.umask(0o027)
    try:
        write_atomically(path, "naïve\n", force=False)
    finally:
        os.umask(previous)
    assert path.read_bytes() == "naïve\n".encode()
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_existing_file_only_with_force(tmp_path: Path) -> None:
    path = tmp_path / "old.py"
    path.write_text("old")
    with pytest.raises(BadUsage, match="--force"):
        write_atomically(path, "new", force=False)
    assert path.read_text() == "old"
    write_atomically(path, "new", force=True)
    assert path.read_text() == "new"


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("", "folder"),
        ("absent/out.py", "does not exist"),
        ("file/out.py", "does not exist"),
        ("pipe", "not a regular file"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_refused_before_and_after_the_work(
    tmp_path: Path, place: str, words: str, force: bool
) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(BadUsage, match=words):
        check_writable(tmp_path / place, force=force)
    with pytest.raises(BadUsage, match=words):
        write_atomically(tmp_path / place, "text", force=force)
    assert sorted(tmp_path.iterdir()) == before


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Asked through os.access, because the suite may run as root, who may write anywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(BadUsage, match="no permission"):
        check_writable(tmp_path / "out.py", force=False)


def test_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.py"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadUsage, match="No space left on device"):
        write_atomically(path, "new", force=True)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
