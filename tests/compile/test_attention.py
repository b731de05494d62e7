"""Every schedule of the attention kernel compiles, into registers. None of this needs a GPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fusewright.codegen.device_library import select_sections
from tests.support import attention_subjects as subjects
from tests.support.attention_subjects import PARTS, SCHEDULES
from tests.support.cuda_compilers import compile_text, nvrtc_folder, nvrtc_log

ARCHS = tuple(PARTS)
# Heads of 128 need most registers; those of 64, and of Hopper, run the same code with others.
COMPILED = {
    "sm_80": tuple(s for s in SCHEDULES if s.width == 128 or s.scores == "biased"),
    "sm_90a": tuple(s for s in SCHEDULES if (s.width == 128) == (s.scores != "masked")),
}
needs_nvcc = pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
pytestmark = pytest.mark.timeout(600)


@needs_nvcc
@pytest.mark.parametrize("arch", ARCHS)
def test_every_schedule_stays_in_registers(arch: str, tmp_path: Path) -> None:
    options = [
        "-std=c++17",
        f"-gencode=arch=compute_{arch[3:]},code={arch}",
        "-Werror",
        "all-warnings",
    ]
    found = compile_text(subjects.source(arch, COMPILED[arch]), options, tmp_path)
    assert len([k for k in found if "attention_kernel" in k.name]) == len(COMPILED[arch])
    assert [k for k in found if k.stack_bytes or k.spill_bytes] == []


@needs_nvcc
def test_stages_fit_shared_memory(tmp_path: Path) -> None:
    checks = "".join(
        f"static_assert(attention_tile<{w}>::shared_bytes <= 163 * 1024 - 1024);\n"
        for w in subjects.WIDTHS
    )
    text = f"{select_sections('sm80', ['run_attention'])}\n{checks}}}\n"
    compile_text(text, ["-std=c++17", "-arch=sm_80", "-ptx"], tmp_path)


def test_attention_brings_no_other_packing() -> None:
    for arch in ARCHS:
        text = subjects.source(arch, SCHEDULES)
        assert "pack_rows" not in text
        assert "fusewright::" not in text


@pytest.mark.skipif(nvrtc_folder() is None, reason="no NVRTC 12.1.105 here")
@pytest.mark.parametrize("arch", ARCHS)
def test_the_oldest_supported_compiler_takes_them(arch: str) -> None:
    folder = nvrtc_folder()
    assert folder is not None
    assert nvrtc_log(folder, subjects.source(arch, SCHEDULES[::4]), f"compute_{arch[3:]}") == (
        0,
        "",
    )
