"""Every schedule of a convolution kernel compiles, into registers and shared memory.

None of this needs a GPU.
"""

from __future__ import annotations

import re
import shutil
from itertools import product
from pathlib import Path

import pytest
import torch

from fusewright.codegen.device_library import select_sections
from fusewright.kernels.tensor_core import variant
from tests.support import conv_subjects as convolutions
from tests.support.conv_subjects import (
    BETWEEN,
    CHUNKS,
    EXTRAS,
    HALF_BETWEEN,
    HALVES,
    OWN_PHASES,
    SCHEDULES,
    TRANSPOSED,
    WIDTHS,
    Problem,
    Subject,
)
from tests.support.cuda_compilers import (
    compile_text,
    nvrtc_folder,
    nvrtc_log,
    strict_report,
    usages,
)

needs_nvcc = pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")


def full(s: Subject) -> bool:
    """Whether it has hardly any register left: the widest tile, and two that share a processor."""
    return s.width == 256 or s.blocks == 2


# Every tile once, with vectors; what else there is, where registers are scarce. Chunks differ in
# constants only.
CHOSEN = tuple(
    s
    for s in SCHEDULES
    if (s.chunk == 64 and (s.vector == 4 or full(s)))
    or (s.width, s.vector, s.swapped) == (256, 1, s.chunk == 16)
)
TAILS = tuple(s for s in EXTRAS if full(s))
BACKWARDS = tuple(
    s
    for s in TRANSPOSED
    if s.chunk == 64 and full(s) and (s.together == 2 or (s.vector == 4 and s.swapped))
)
RESIDUALS = tuple(s for s in BETWEEN if s.body == "residual")
COMPILED = (*CHOSEN, *TAILS, *BACKWARDS, *OWN_PHASES, *RESIDUALS)


@needs_nvcc
def test_every_schedule_stays_in_registers(tmp_path: Path) -> None:
    report = strict_report(convolutions.source(COMPILED), tmp_path / "convolutions.cu")
    kernels = usages(report)
    names = [re.sub(r"ILb.*|EPK.*", "", k.name) for k in kernels]
    assert sum("conv_kernel" in name for name in names) == len(COMPILED)
    for kernel in ("pack_image", "check_images"):
        assert sum(kernel in name for name in names) == 2 * len(CHUNKS)
    assert [k for k in kernels if k.stack_bytes or k.spill_bytes] == []
    # C7510 and its like: ptxas made wgmma wait for each other
    assert re.findall(r"C75\d\d.*", report) == []


@needs_nvcc
def test_every_strategy_of_16_bits_stays_in_registers(tmp_path: Path) -> None:
    # The types differ in how they become float32; each stands for both.
    first = [s for s in HALVES if s.vector == 4 and s.dtype is torch.bfloat16]
    some = [s for s in first if s.chunk == (32 if s.swapped else 16)]
    some += [s for s in first if s.width == 256 and s.together in (0, 2)]
    second = [s for s in HALVES if s.vector == 4 and s.dtype is torch.float16 and not s.together]
    some += [s for s in second if s.blocks == 2]
    some += [s for s in second if s.width == 256 and s.body == "bias_relu"]
    some += [s for s in HALF_BETWEEN if s.body == "residual" and s.dtype is torch.float16]
    report = strict_report(convolutions.source(some), tmp_path / "halves.cu")
    kernels = usages(report)
    assert sum("conv_kernel" in k.name for k in kernels) == len(some)
    packing = {re.sub(r".*(pack_half_imageILb.ELb.ELi\d\d)E.*", r"\1", k.name) for k in kernels}
    # Of ordinary and of transposed convolutions.
    assert sum(name.startswith("pack_half_image") for name in packing) == 2 * 2 * len(CHUNKS)
    assert not [k for k in kernels if "check_images" in k.name]
    assert [k for k in kernels if k.stack_bytes or k.spill_bytes] == []
    assert re.findall(r"C75\d\d.*", report) == []


def room_check(problem: Problem, chunk: int, parts: int) -> str:
    """C++ that returns 1 where the skeleton counts other bytes."""
    numbers = problem.numbers()
    lines = f"  {{ conv_shape shape{{{str(numbers[:22])[1:-1]}}};\n"
    if problem.transposed:
        stacked = f"{{{{{str(numbers[22:25])[1:-1]}}}, {numbers[25]}}}"
        lines += f"  transposed_shape<{problem.together}> phases;\n"
        lines += f"  if (describe_phases(phases, shape, {stacked})) return 1;\n"
    what = "phases" if problem.transposed else "shape"
    room = f"packed_image_in<{chunk}, {parts}>(nullptr, {what}, packed)"
    return f"{lines}  if ({room} != {problem.workspace_bytes(chunk, parts)}) return 1; }}\n"


@needs_nvcc
def test_python_and_the_skeleton_agree_on_the_workspace(tmp_path: Path) -> None:
    problems = (
        Problem(3, 20, 7, (111, 9), (3, 3), (3, 2), ((1, 0), (2, 3)), (2, 1)),
        Problem(1, 64, 66, (5, 6, 7), (1, 2, 3), groups=2),
        Problem(3, 20, 7, (11, 9), (3, 3), (3, 2), ((1, 1), (2, 2)), (2, 1), transposed=True),
        Problem(1, 66, 64, (5, 6, 7), (4, 4, 3), (2, 4, 4), groups=2, transposed=True),
    )
    every = product(problems, CHUNKS, (1, 2))
    checks = "".join(room_check(p, chunk, parts) for p, chunk, parts in every)
    convolutions.check_rooms("run_conv_transpose", checks, tmp_path)


@needs_nvcc
def test_the_operands_of_a_stage_fill_it(tmp_path: Path) -> None:
    checks = "".join(
        f"static_assert(pixel_operand<{chunk}, {rows}>::step(3) < {rows} * HALF_LINE >> 4);\n"
        for chunk in CHUNKS
        for rows in (128, *WIDTHS)
    )
    text = f"{select_sections('sm90', ['run_conv'])}\n{checks}}}\n"
    compile_text(text, ["-std=c++17", "-arch=sm_90a", "-ptx"], tmp_path)


def test_every_tile_and_chunk_is_compiled_for_16_bits() -> None:
    for dtype in {s.dtype for s in HALVES}:
        some = [s for s in HALVES if s.dtype is dtype]
        assert {s.chunk for s in some} == set(CHUNKS)
        assert {s.together for s in some} == {0, *convolutions.TOGETHER}
        found = {(s.width, s.blocks, s.swapped) for s in some}
        assert found >= {(w, 1, side) for w in (64, 128, 256) for side in (False, True)}
        assert found >= {(64, 2, side) for side in (False, True)}
    assert len({s.dtype for s in HALVES}) == 2


def test_every_tile_and_chunk_is_compiled() -> None:
    assert tuple(variant.WIDTHS) == WIDTHS
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
    some = [s for s in SCHEDULES if s.width == (256 if s.swapped else 128) and s.chunk == 64]
    backwards = [s for s in TRANSPOSED if s.width == 192 and s.vector == 4]
    some += [s for s in backwards if s.swapped == (s.together == 2)]
    halves = [s for s in HALVES if s.width == 256 and s.body == "bias_relu"]
    some += [s for s in halves if s.together in (0, 2) and s.swapped == (s.dtype is torch.float16)]
    assert nvrtc_log(folder, convolutions.source(some), "compute_90a") == (0, "")
