"""Every schedule of a convolution kernel compiles, into registers and shared memory.

None of this needs a GPU.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import convolution_subjects as convolutions
import pytest
from convolution_subjects import CHUNKS, EXTRAS, SCHEDULES, WIDTHS, Problem
from cudac import compile_text, nvrtc_folder, nvrtc_log, strict_report, usages

from fusewright import tile
from fusewright.codegen.skeleton import select

needs_nvcc = pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")


# Chunks differ in constants only, and narrow tiles need fewer registers.
CHOSEN = (
    s for s in SCHEDULES if s.width == 256 or (s.chunk == 64 and 4 in (s.vector, 2 * s.blocks))
)
COMPILED = (*CHOSEN, *EXTRAS)


@needs_nvcc
def test_every_schedule_stays_in_registers(tmp_path: Path) -> None:
    report = strict_report(convolutions.source(COMPILED), tmp_path / "convolutions.cu")
    kernels = usages(report)
    names = [re.sub(r"ILb.*|EPK.*", "", k.name) for k in kernels]
    assert sum("convolution_kernel" in name for name in names) == len(COMPILED)
    for kernel in ("pack_image", "check_images"):
        assert sum(kernel in name for name in names) == 2 * len(CHUNKS)
    assert [k for k in kernels if k.stack_bytes or k.spill_bytes] == []
    # C7510 and its like: ptxas made wgmma wait for each other
    assert re.findall(r"C75\d\d.*", report) == []


@needs_nvcc
def test_python_and_the_skeleton_agree_on_the_workspace(tmp_path: Path) -> None:
    problems = (
        Problem(3, 20, 7, (111, 9), (3, 3), (3, 2), ((1, 0), (2, 3)), (2, 1)),
        Problem(1, 64, 66, (5, 6, 7), (1, 2, 3), groups=2),
    )
    checks = "".join(
        f"  if (packed_image_in<{chunk}>(nullptr, {{{str(p.numbers())[1:-1]}}}, packed) !="
        f" {p.workspace_bytes(chunk)}) return 1;\n"
        for p in problems
        for chunk in CHUNKS
    )
    main = f"int main() {{\n  fusewright::packed_image packed;\n{checks}  return 0;\n}}\n"
    text, program = tmp_path / "check.cu", tmp_path / "check"
    body = main.replace("packed_image_in", "fusewright::packed_image_in")
    text.write_text(f"{select('sm90', ['run_convolution'])}\n}}\n{body}", encoding="utf-8")
    command = ["nvcc", "-std=c++17", "-arch=sm_90a", "-o", str(program), str(text)]
    subprocess.run(command, check=True, capture_output=True)
    assert subprocess.run([str(program)], check=False).returncode == 0


@needs_nvcc
def test_the_operands_of_a_stage_fill_it(tmp_path: Path) -> None:
    checks = "".join(
        f"static_assert(pixel_operand<{chunk}, {rows}>::step(3) < {rows} * HALF_LINE >> 4);\n"
        for chunk in CHUNKS
        for rows in (128, *WIDTHS)
    )
    text = f"{select('sm90', ['run_convolution'])}\n{checks}}}\n"
    compile_text(text, ["-std=c++17", "-arch=sm_90a", "-ptx"], tmp_path)


def test_every_tile_and_chunk_is_compiled() -> None:
    assert tuple(tile.WIDTHS) == WIDTHS
    found = {(s.width, s.blocks, s.swapped, s.chunk, s.vector) for s in SCHEDULES}
    assert found == {
        (width, blocks, swapped, chunk, vector)
        for width, blocks in (*((width, 1) for width in WIDTHS), (64, 2))
        for swapped in (False, True)
        for chunk in CHUNKS
        for vector in (1, 4)
    }


@pytest.mark.skipif(nvrtc_folder() is None, reason="no NVRTC 12.1.105 here")
def test_the_oldest_supported_compiler_takes_them() -> None:
    folder = nvrtc_folder()
    assert folder is not None
    some = [s for s in SCHEDULES if s.width == (256 if s.swapped else 128) and s.chunk != 32]
    assert nvrtc_log(folder, convolutions.source(some), "compute_90a") == (0, "")
