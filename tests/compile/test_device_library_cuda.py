"""The CUDA skeletons: they compile everywhere, stay in registers, use vectors, and are right.

The bodies are those of bench/skeleton_cuda.py. Only the tests marked `gpu` run them.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.compiler_record import said
from tests.support.cuda_compilers import (
    compile_text,
    nvcc_version,
    nvrtc_folder,
    nvrtc_log,
    run_compiler,
    usages,
)
from tests.support.folders import PACKAGE
from tests.support.scripts import load_script

HEADERS = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.cuh"))
needs_nvcc = pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")


def load_bench() -> ModuleType:
    return load_script("bench/skeleton_cuda.py")


bench = load_bench()
# Every kind of body once, for the compilers; the GPU tests run every launch of every case.
# fmt: off
KINDS = (
    "swish_norm", "channel_relu", "bias_relu", "in_place", "add_half_t_bfloat_t_float",
    "add_bool_unsigned_char_unsigned_char", "layer_norm_1024", "layer_norm_16384", "softmax_1023",
    "softmax_half", "long_softmax", "batch_norm_128", "batch_norm_49", "group_norm_49",
    "folds_fixed_row_130", "folds_line", "flip", "turned", "both_turned",
    "sweep_fixed_row_5000", "sweep_line",
)
# fmt: on
SAMPLES = tuple(
    replace(case, launches=case.launches[: 2 if case.name == "batch_norm_128" else 1])
    for case in bench.CASES
    if case.name in KINDS
)
# Clusters need sm_90; some rows are too short to give each thread a vector.
SHARED, JOINED = (
    tuple(
        replace(case, launches=launches)
        for case in bench.CASES
        if (launches := tuple(e for e in case.launches if re.search(kind, e)))
    )
    for kind in ("cluster|grid_resident", "partial_reduction")
)
assert SHARED
assert JOINED
LAUNCHES = [(case, entry) for case in bench.CASES for entry in case.launches]


def run(*command: str | Path) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def ptx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("skeleton")
    (folder / "samples.cu").write_text(bench.source(SAMPLES))
    target = folder / "samples.ptx"
    run("nvcc", "-std=c++17", "-arch=compute_80", "-ptx", folder / "samples.cu", "-o", target)
    return target


@needs_nvcc
@pytest.mark.parametrize("header", HEADERS)
def test_header_compiles_alone(header: str, tmp_path: Path) -> None:
    (tmp_path / "alone.cu").write_text(f'#include "{header}"\n')
    warnings = run(
        "nvcc", "-std=c++17", "-arch=compute_80", "-ptx", "-Werror", "all-warnings",
        "-I", PACKAGE, tmp_path / "alone.cu", "-o", tmp_path / "alone.ptx",
    )  # fmt: skip
    assert warnings == ""


@needs_nvcc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_samples_stay_in_registers(ptx: Path, arch: str) -> None:
    """No stack frame means no spills and no array in local memory."""
    command = ["ptxas", f"-arch={arch}", "-v", str(ptx), "-o", str(ptx.with_suffix(".cubin"))]
    report = said(nvcc_version(), command[:3], ptx.read_text(), lambda: run_compiler(command))
    kernels = usages(report)
    launches = [launch for case in SAMPLES for launch in case.launches]
    maps = [launch for launch in launches if launch.startswith("map<")]
    # A map has one more for indices that 32 bits do not hold.
    assert len(kernels) == len(launches) + len(maps)
    # `folds` asks for ten folds at once, in two precisions; only there ptxas may prefer a spill.
    assert [k for k in kernels if k.stack_bytes and "folds" not in k.name] == []


@needs_nvcc
@pytest.mark.parametrize("arch", ["80", "90a"])
def test_rows_that_blocks_keep_stay_in_registers(arch: str, tmp_path: Path) -> None:
    """With 64 registers a thread, two blocks of 512 fit a processor."""
    cases, code = bench.for_arch(SHARED, arch), f"-gencode=arch=compute_{arch},code=sm_{arch}"
    options = ["-std=c++17", code]
    found = compile_text(bench.source(cases), options, tmp_path)
    kernels = [k for k in found if "folds" not in k.name]
    assert len(kernels) == sum(len(c.launches) for c in cases if "folds" not in c.name)
    assert [k for k in kernels if k.stack_bytes or k.registers > 64] == []


def kernel_text(ptx: Path, *words: str) -> str:
    """The PTX of the only kernel whose mangled name contains all words."""
    kernels = re.split(r"^(?=.*\.entry )", ptx.read_text(), flags=re.M)[1:]
    found = [k for k in kernels if all(word in k.split("(", 1)[0] for word in words)]
    assert len(found) == 1, [k.split("(", 1)[0] for k in found]
    return found[0]


@needs_nvcc
@pytest.mark.parametrize(
    ("words", "loads", "stores", "singles"),
    [
        (("row_kernelILi16ELi4E", "swish_norm"), 4, 1, 0),
        (("row_kernelILi128ELi4E", "layer_normILl1024"), 6, 2, 0),
        (("row_kernelILi64ELi8E", "softmax", "half_t"), 4, 4, 0),
        # 4 vectors of x and y; weight and shift are `strided`, 2 x 4 elements for each
        (("row_kernelILi32ELi4E", "group_normILl49"), 4, 4, 32),
    ],
)
def test_row_kernels_use_16_byte_accesses(
    ptx: Path, words: tuple[str, ...], loads: int, stores: int, singles: int
) -> None:
    text = kernel_text(ptx, *words)
    assert len(re.findall(r"\bld\.global\.nc\.v4\.", text)) == loads
    assert len(re.findall(r"\bst\.global\.v4\.", text)) == stores
    single = r"\b(?:ld\.global\.(?!nc|v4)|ld\.global\.nc\.(?!v4)|st\.global\.(?!v4))"
    assert len(re.findall(single, text)) == singles


@needs_nvcc
@pytest.mark.parametrize(
    ("words", "loads", "stores"),
    [
        (("map_kernelILi4ELi1EjN", "channel_relu"), 1, 1),
        (("map_kernelILi4ELi1EjN", "bias_relu"), 2, 1),
        (("map_kernelILi4ELi1EjN", "in_place"), 1, 1),
    ],
)
def test_map_kernels_use_16_byte_accesses(
    ptx: Path, words: tuple[str, ...], loads: int, stores: int
) -> None:
    """Once where a block is full, and once where it is not."""
    accesses = re.findall(r"\b(ld|st)\.global(?:\.nc)?\.v4\.", kernel_text(ptx, *words))
    assert accesses == (["ld"] * loads + ["st"] * stores) * 2


def test_what_the_benchmark_replaces_is_there() -> None:
    for pairs in bench.VARIANTS.values():
        bench.changed(bench.source(bench.TIMED), pairs)


def sections() -> dict[str, tuple[frozenset[str], str]]:
    """Every section of every header, in order: name -> (what it needs, text)."""
    found = {}
    for header in bench.FILES:
        text = (PACKAGE / header).read_text()
        for match in re.finditer(
            r"^//@ (\w+)(?:: needs ([^\n]*))?\n(.*?)(?=^//@)", text, re.M | re.S
        ):
            name, needs, body = match.groups()
            assert name not in found, f"two sections are called {name}"
            found[name] = (frozenset(needs.split(", ") if needs else ()), body)
    return found


def closure(roots: set[str]) -> str:
    """The text of the sections `roots` and of all that they need, in the order of the files."""
    known = sections()
    wanted, waiting = set[str](), set(roots)
    while waiting:
        name = waiting.pop()
        wanted.add(name)
        waiting |= known[name][0] - wanted
    return "".join(body for name, (_, body) in known.items() if name in wanted)


def test_sections_need_what_exists() -> None:
    known = sections()
    assert [f"{n} needs {m}" for n, (needs, _) in known.items() for m in needs - set(known)] == []


@needs_nvcc
@pytest.mark.parametrize(
    ("name", "launcher"),
    [("swish_norm", "run_rows"), ("channel_relu", "run_map"), ("batch_norm", "run_rows_split")],
)
def test_the_words_of_a_body_name_all_it_needs(name: str, launcher: str, tmp_path: Path) -> None:
    """An emitted file has only the sections that its bodies name, and what those need."""
    body = re.search(rf"^(?:template[^\n]*)?struct {name} {{.*?^}};\n", bench.BODIES, re.M | re.S)
    assert body is not None
    words = set(re.findall(r"\w+", body[0])) & set(sections())
    case = next(case for case in SAMPLES if case.body.startswith(name))
    entries = "".join(
        case.text(entry) for entry in case.launches if launcher == f"run_{entry.split('<')[0]}"
    )
    text = closure({"begin", launcher, *words}) + body[0] + entries + "}\n"
    (tmp_path / "minimal.cu").write_text(text)
    run("nvcc", "-std=c++17", "-arch=compute_80", "-ptx", tmp_path / "minimal.cu",
        "-o", tmp_path / "minimal.ptx")  # fmt: skip
    assert entries
    assert (
        launcher.replace("run_rows_split", "split").replace("run_", "").rstrip("s")
        in (tmp_path / "minimal.ptx").read_text()
    )


@pytest.mark.skipif(nvrtc_folder() is None, reason="no NVRTC 12.1.105 here")
def test_the_oldest_supported_compiler_takes_all_samples() -> None:
    folder = nvrtc_folder()
    assert folder is not None
    shared = (replace(case, launches=case.launches[:1]) for case in SHARED)
    assert nvrtc_log(folder, bench.source((*SAMPLES, *shared)), "compute_90a") == (0, "")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    import torch

    major, minor = torch.cuda.get_device_capability()
    arch = "90a" if (major, minor) == (9, 0) else f"{major}{minor}"
    folder = tmp_path_factory.mktemp("library")
    cases = bench.for_arch(bench.CASES, arch)
    return ctypes.CDLL(str(bench.build(bench.source(cases), folder, arch=arch)))


@pytest.mark.gpu
@pytest.mark.parametrize(("case", "entry"), LAUNCHES, ids=[c.entry(e) for c, e in LAUNCHES])
def test_values(library: ctypes.CDLL, case: Any, entry: str) -> None:
    if not hasattr(library, case.entry(entry)):
        pytest.skip("this GPU has no clusters of thread blocks")
    for batch in case.small:
        error, _ = bench.check(library, "cuda", case, entry, batch)
        assert error <= case.tolerance, f"batch {batch}"


@pytest.mark.gpu
@pytest.mark.parametrize("case", SHARED + JOINED, ids=[c.name for c in SHARED + JOINED])
def test_blocks_give_the_same_bits_every_time(library: ctypes.CDLL, case: Any) -> None:
    """Parts that arrive in any order are joined in one; a late or an early one would show."""
    import torch

    batch = case.small[-1]
    workspace = torch.full((bench.WORKSPACE_BYTES,), 77, dtype=torch.uint8, device="cuda")
    for entry in case.launches:
        if not hasattr(library, case.entry(entry)):
            pytest.skip("this GPU has no clusters of thread blocks")
        call, found = case.make("cuda", batch), []
        for _ in range(30):
            assert bench.launch(library, case, entry, batch, call, workspace) == 0
            found.append([result.clone() for result, _ in call.results])
        for again in found:
            for a, b in zip(again, found[0], strict=True):
                assert torch.equal(a.nan_to_num(1.5), b.nan_to_num(1.5))


@pytest.mark.gpu
def test_split_rows_on_two_streams_and_in_a_graph(library: ctypes.CDLL) -> None:
    assert bench.check_streams(library) == []
