"""Hand-written C++ and CUDA: every file is in the library, and sections need earlier families.

That every section is reached by a problem of the replay, or listed with a reason, is asked of a
record: `python tools/replay.py sections FOLDER`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fusewright.codegen.device_library import DeviceSection, cut
from fusewright.targets.device_files import DEVICE_FILES
from tests.support.source import PACKAGE

# Of the emitted file's Python, not of its kernels.
CALLS = {f"devicelib/python/{name}.h" for name in ("calls", "replay")}
# Where sections of the device library lie, in the order in which they may need each other.
FAMILIES = (
    "devicelib", "tensor_core", "pointwise", "rowwise", "scan", "gemm", "conv", "attention",
)  # fmt: skip


def placed(root: Path, files: tuple[str, ...]) -> Iterator[tuple[str, DeviceSection]]:
    """Every section, with the family of its file."""
    for name in files:
        first, second, *_ = name.split("/")
        for section in cut((root / name).read_text(encoding="utf-8")):
            yield ("devicelib" if first == "devicelib" else second), section


def ahead(root: Path, files: tuple[str, ...]) -> set[tuple[str, str]]:
    """Sections, and what each needs of a family that does not come before its own."""
    every = list(placed(root, files))
    place = {section.name: FAMILIES.index(family) for family, section in every}
    needs = [(s.name, need) for _, s in every for need in s.needs]
    return {(name, need) for name, need in needs if place[need] > place[name]}


@pytest.mark.parametrize("language", DEVICE_FILES)
def test_sections_need_earlier_families(language: str) -> None:
    assert ahead(PACKAGE, DEVICE_FILES[language]) == set()


def test_a_need_of_a_later_family_is_found(tmp_path: Path) -> None:
    texts = {
        "devicelib/cuda/math.cuh": "//@ begin\nint a;\n//@ fast: needs row\nint b;\n//@\n",
        "kernels/rowwise/cuda/rows.cuh": "//@ row: needs begin\nint c;\n//@\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert ahead(tmp_path, tuple(texts)) == {("fast", "row")}


def test_every_device_file_is_in_the_library() -> None:
    there = {p.relative_to(PACKAGE).as_posix() for s in ("*.cuh", "*.h") for p in PACKAGE.rglob(s)}
    assert there == {name for names in DEVICE_FILES.values() for name in names} | CALLS
