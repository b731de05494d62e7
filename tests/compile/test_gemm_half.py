"""Schedules of product kernels for 16 bits compile, into registers and shared memory.

None of this needs a GPU.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch

from fusewright.codegen.device_library import select_sections
from fusewright.kernels.gemm.variants import GEMM_PINGPONG
from fusewright.kernels.tensor_core import variant
from tests.support import gemm_half_subjects as half_subjects
from tests.support.cuda_compilers import (
    compile_text,
    nvrtc_folder,
    nvrtc_log,
    strict_report,
    usages,
)
from tests.support.gemm_half_subjects import HALVES, KINDS, LAYOUTS, OWN_WIDTHS, Half
from tests.support.gemm_subjects import SHARED_BYTES, WIDTHS

needs_nvcc = pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")


def chosen(half: Half) -> bool:
    """The tail that needs most registers with every tile; every tail, layout and number of parts
    with the widest, which leaves fewest, and with the widest that a group has alone."""
    s, plain = half.subject, half.turned == (False, False)
    if half.own and s.width > 128:
        return True
    if s.width == 256:
        return not plain or half.dtype is torch.bfloat16 or s.vector == 8
    return (s.segment, s.vector) in ((64, 4), (64, 8)) or half.turned == (True, True)


COMPILED = tuple(half for half in HALVES if chosen(half))


@needs_nvcc
def test_every_schedule_stays_in_registers(tmp_path: Path) -> None:
    report = strict_report(half_subjects.source(COMPILED), tmp_path / "halves.cu")
    kernels = [k for k in usages(report) if "gemm_half_kernel" in k.name]
    assert len(kernels) == len(COMPILED)
    assert [k for k in kernels if k.stack_bytes or k.spill_bytes] == []
    # C7510 and its like: ptxas made wgmma wait for each other
    assert re.findall(r"C75\d\d.*", report) == []


@needs_nvcc
def test_tiles_fit_shared_memory(tmp_path: Path) -> None:
    checks = "".join(
        f"static_assert(half_stage<{width}>::shared_bytes <= {SHARED_BYTES['sm_90a']});\n"
        f"static_assert(half_stage<{width}>::count > HEAD_START + 1);\n"
        for width in {*WIDTHS, *OWN_WIDTHS}
    )
    text = f"{select_sections('sm90', ['run_gemm_half'])}\n{checks}}}\n"
    compile_text(text, ["-std=c++17", "-arch=sm_90a", "-ptx"], tmp_path)


def test_every_tile_is_compiled_for_both_types() -> None:
    assert tuple(variant.WIDTHS) == WIDTHS
    every = {(width, swapped) for width in WIDTHS for swapped in (False, True)}
    shared = [h for h in HALVES if not h.own]
    for dtype in KINDS:
        found = {(h.subject.width, h.subject.swapped) for h in shared if h.dtype is dtype}
        assert found == every
    for turned in LAYOUTS:
        assert {(h.subject.width, h.subject.swapped) for h in shared if h.turned == turned} == every
    assert {h.subject.width for h in HALVES if h.own} == set(OWN_WIDTHS)
    assert {width for width, _ in GEMM_PINGPONG} == set(OWN_WIDTHS)


@pytest.mark.skipif(nvrtc_folder() is None, reason="no NVRTC 12.1.105 here")
def test_the_oldest_supported_compiler_takes_them() -> None:
    folder = nvrtc_folder()
    assert folder is not None
    some = [h for h in COMPILED if h.subject.width == (256 if h.subject.swapped else 128)]
    assert nvrtc_log(folder, half_subjects.source(some), "compute_90a") == (0, "")
