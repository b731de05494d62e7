"""Names of GPU generations stand in `targets/` and in the rows of kernels' variants alone.

Comments and docstrings say what a GPU can do, too, so that `grep` for a generation finds its rooms.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.source import PACKAGE, Source, made_up

GENERATION = re.compile(r"(?<![a-z])(?:sm_?\d\d|hopper|ampere|blackwell)", re.IGNORECASE)


def generations(text: str) -> list[str]:
    """The GPU generations that a program names, in code or in words."""
    return GENERATION.findall(text)


def complaints(source: Source) -> Iterator[str]:
    for module in source.modules():
        package, _, name = module.rpartition("/")
        if package == "targets" or (package.startswith("kernels/") and name == "variants"):
            continue
        if named := generations(source.text(module)):
            yield f"{module}.py names {named}: ask the architecture what it can do"


def test_gpu_generations_stay_in_their_rooms() -> None:
    """Elsewhere a capability is asked for, so that a new GPU is a row and no search."""
    assert not list(complaints(Source()))


def named_in_device_text(root: Path) -> Iterator[str]:
    """Files of no generation that name one; lines that include a file are for compiling alone."""
    for path in sorted(p for suffix in ("cuh", "h") for p in root.rglob(f"*.{suffix}")):
        lines = path.read_text(encoding="utf-8").splitlines()
        text = "\n".join(line for line in lines if not line.startswith("#include"))
        if GENERATION.search(text) and not GENERATION.search(path.stem):
            yield path.relative_to(root).as_posix()


def test_device_text_of_all_gpus_names_no_generation() -> None:
    assert not list(named_in_device_text(PACKAGE))


def test_a_generation_in_device_text_is_found(tmp_path: Path) -> None:
    text = '#include "tile_sm90.cuh"\n'
    files = {"tile_sm90.cuh": "// Of Hopper.", "map.cuh": "", "rows.cuh": "// On Hopper (sm_90)."}
    for name, more in files.items():
        (tmp_path / name).write_text(text + more)
    assert list(named_in_device_text(tmp_path)) == ["rows.cuh"]


def test_a_generation_elsewhere_is_found(tmp_path: Path) -> None:
    text = 'IS_NEW = target.name == "sm_90a"\n'
    rooms = ("targets/arch", "kernels/gemm/variants", "kernels/gemm/match", "emit/header")
    found = list(complaints(made_up(tmp_path, dict.fromkeys(rooms, text))))
    assert [one.partition(" ")[0] for one in found] == ["emit/header.py", "kernels/gemm/match.py"]


def test_a_generation_is_found_in_code_and_in_words() -> None:
    source = '"""Of Hopper."""\nAMPERE_RATE = 1  # of sm_80, see tile_sm90.cuh\n'
    source += 'if target.product != "sm120":\n    tamper()\n'
    assert generations(source) == ["Hopper", "AMPERE", "sm_80", "sm90", "sm12"]
