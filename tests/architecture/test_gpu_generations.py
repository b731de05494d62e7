"""Names of GPU generations stand in `targets/` and in the rows of kernels' variants alone.

Comments and docstrings say what a GPU can do, too, so that `grep` for a generation finds its rooms.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.source import Source, made_up

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


def test_a_generation_elsewhere_is_found(tmp_path: Path) -> None:
    text = 'IS_NEW = target.name == "sm_90a"\n'
    rooms = ("targets/arch", "kernels/gemm/variants", "kernels/gemm/match", "emit/header")
    found = list(complaints(made_up(tmp_path, dict.fromkeys(rooms, text))))
    assert [one.partition(" ")[0] for one in found] == ["emit/header.py", "kernels/gemm/match.py"]


def test_a_generation_is_found_in_code_and_in_words() -> None:
    source = '"""Of Hopper."""\nAMPERE_RATE = 1  # of sm_80, see tile_sm90.cuh\n'
    source += 'if target.product != "sm120":\n    tamper()\n'
    assert generations(source) == ["Hopper", "AMPERE", "sm_80", "sm90", "sm12"]
