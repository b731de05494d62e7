"""Schedules of product kernels compile, into registers and shared memory.

None of this needs a GPU.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from fusewright.codegen.device_library import select_sections
from fusewright.kernels.tensor_core import tile, tile_options, variant
from tests.support import gemm_subjects as subjects
from tests.support.cuda_compilers import (
    compile_text,
    nvrtc_folder,
    nvrtc_log,
    strict_report,
    usages,
)
from tests.support.gemm_subjects import BETWEEN, INLINE, PARTS, SCHEDULES, SEGMENTS, WIDTHS, Subject

ARCHS = tuple(PARTS)


def chosen(s: Subject) -> bool:
    """The tail that needs most registers with every tile, and every tail where a tile leaves few:
    of 128 columns on Ampere, of 256 on both. The last that pack nothing have no segments."""
    if s.inline and not s.segment:
        return s.width == 256 and s.vector == 4
    return (s.segment, s.vector) == (64, 4) or (s.width in (128, 256) and not s.swapped)


COMPILED = tuple(s for s in (*SCHEDULES, *INLINE) if chosen(s)) + BETWEEN[::2]
needs_nvcc = pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
pytestmark = pytest.mark.timeout(1200)  # some minutes of compilers, more where others work, too


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What nvcc says of all schedules, per architecture."""
    texts = {arch: subjects.source(arch, subjects.known_to(arch, COMPILED)) for arch in ARCHS}
    folder = tmp_path_factory.mktemp("products")
    return {
        arch: strict_report(text, folder / f"{arch}.cu", arch[3:]) for arch, text in texts.items()
    }


@needs_nvcc
@pytest.mark.parametrize("arch", ARCHS)
def test_every_schedule_stays_in_registers(reports: dict[str, str], arch: str) -> None:
    kernels = [k for k in usages(reports[arch]) if re.search("gemm_(unpacked_)?kernel", k.name)]
    assert len(kernels) == len(subjects.known_to(arch, COMPILED))
    assert [k for k in kernels if k.stack_bytes or k.spill_bytes] == []
    # C7510 and its like: ptxas made wgmma wait for each other
    assert re.findall(r"C75\d\d.*", reports[arch]) == []


@needs_nvcc
@pytest.mark.parametrize("arch", ARCHS)
def test_tiles_fit_shared_memory(arch: str, tmp_path: Path) -> None:
    structs = {"sm_80": ("tile", "splitter"), "sm_90a": ("stage", "block_pipeline")}[arch]
    checks = "".join(
        f"static_assert({struct}<{width}>::shared_bytes <= {subjects.SHARED_BYTES[arch]});\n"
        for width in (*WIDTHS, *(s.width for s in subjects.known_to(arch, BETWEEN)))
        for struct in structs[: len(structs) if width in WIDTHS else 1]
    )
    text = f"{select_sections(PARTS[arch], ['run_gemm', 'run_gemm_unpacked'])}\n{checks}}}\n"
    compile_text(text, ["-std=c++17", f"-arch={arch}", "-ptx"], tmp_path)


def test_every_tail_that_a_tile_can_hold_is_compiled() -> None:
    assert tuple(variant.WIDTHS) == WIDTHS
    for width in WIDTHS:
        for swapped in (False, True):
            found = {s.segment for s in SCHEDULES if (s.width, s.swapped) == (width, swapped)}
            for segment in SEGMENTS:
                # Segments of 4 and of 16 are the same code with other constants.
                made = tile.TileShape(width, swapped)
                wanted = segment == 0 or tile_options._holds_columns(None, None, made, segment)
                assert wanted == bool(found & ({4, 16} if segment in (4, 16) else {segment}))


def test_kernels_that_pack_nothing_bring_no_packing() -> None:
    for arch in ARCHS:
        assert "pack_rows" not in subjects.source(arch, INLINE)


@pytest.mark.skipif(nvrtc_folder() is None, reason="no NVRTC 12.1.105 here")
@pytest.mark.parametrize("arch", ARCHS)
def test_the_oldest_supported_compiler_takes_them(arch: str) -> None:
    folder = nvrtc_folder()
    assert folder is not None
    widths = [s for s in COMPILED if s.width == (256 if s.swapped else 128)]
    some = [s for s in subjects.known_to(arch, widths) if s.vector == 4 or s.segment == 128]
    assert nvrtc_log(folder, subjects.source(arch, some), f"compute_{arch[3:]}") == (0, "")
