"""CUDA text -> what nvcc and NVRTC 12.1 say of it: compilers that need no GPU."""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import re
import resource
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.compiler_record import condensed, said

# Sections that the kernels of tests may need beside those that they name.
SPOKEN = ("each", "once", "sum", "keep", "fixed", "span", "read", "write", "load", "store")
WHEELS = ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12")


@dataclass(frozen=True)
class Usage:
    """What ptxas reports of one kernel on one architecture."""

    name: str
    arch: str
    registers: int
    stack_bytes: int
    spill_bytes: int


@cache
def nvcc_version() -> str:
    """Its name and release."""
    done = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True)
    return done.stdout.strip().splitlines()[-1]


def compile_text(text: str, options: Sequence[str], folder: Path) -> list[Usage]:
    """The resources of the kernels that nvcc makes of a text."""
    return usages(said(nvcc_version(), options, text, lambda: _compiled(text, options, folder)[0]))


def timed_compilation(text: str, options: Sequence[str], folder: Path) -> tuple[list[Usage], float]:
    """The same, compiled now into `kernels.o`, and the processor seconds it took."""
    report, seconds = _compiled(text, options, folder)
    return usages(report), seconds


def _compiled(text: str, options: Sequence[str], folder: Path) -> tuple[str, float]:
    source = folder / "kernels.cu"
    source.write_text(text, encoding="utf-8")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = run_compiler(
        ["nvcc", *options, "-Xptxas", "-v", "-c", str(source), "-o", str(folder / "kernels.o")]
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return report, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run_compiler(command: Sequence[str]) -> str:
    """What it says that tests read. A compilation that fails is a test that fails."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    return condensed(done.stdout)


def strict_report(text: str, source: Path, arch: str = "90a") -> str:
    """What ptxas says of a text in which no compiler finds anything to warn of."""
    options = ["-std=c++17", f"-gencode=arch=compute_{arch},code=sm_{arch}", "-Werror",
               "all-warnings", "-Xptxas", "-v", "-cubin"]  # fmt: skip

    def ask() -> str:
        source.write_text(text, encoding="utf-8")
        out = str(source.with_suffix(".cubin"))
        return run_compiler(["nvcc", *options, str(source), "-o", out])

    return said(nvcc_version(), options, text, ask)


def check_registers(report: str, kernel: str, count: int) -> None:
    """So many kernels of the name, no spills, and no wgmma that wait for each other (C7510 and its
    like)."""
    kernels = usages(report)
    assert sum(kernel in k.name for k in kernels) == count
    assert [k for k in kernels if k.stack_bytes or k.spill_bytes] == []
    assert re.findall(r"C75\d\d.*", report) == []


def usages(report: str) -> list[Usage]:
    """The lines of `-Xptxas -v`, one entry per kernel and architecture."""
    found = re.findall(
        r"Compiling entry function '(\w+)' for '(\w+)'.*?(\d+) bytes stack frame, "
        r"(\d+) bytes spill stores.*?Used (\d+) registers",
        report,
        re.DOTALL,
    )
    return [
        Usage(n, arch, int(regs), int(stack), int(spill)) for n, arch, stack, spill, regs in found
    ]


def nvrtc_folder() -> Path | None:
    """Where the wheels of CUDA 12.1 put `nvidia/`: FUSEWRIGHT_NVRTC_121 or this environment."""
    if "FUSEWRIGHT_NVRTC_121" in os.environ:
        return Path(os.environ["FUSEWRIGHT_NVRTC_121"])
    installed = {d.name: d.version for d in importlib.metadata.distributions() if d.name in WHEELS}
    if [installed.get(wheel) for wheel in WHEELS] != ["12.1.105", "12.1.105"]:
        return None
    return Path(str(importlib.metadata.distribution(WHEELS[0]).locate_file("nvidia")))


def nvrtc_log(folder: Path, text: str, arch: str) -> tuple[int, str]:
    """What NVRTC 12.1 makes of a text, host functions as device functions: result code and log."""
    options = ["-std=c++17", "-default-device", f"-arch={arch}"]
    told = said(
        "NVRTC 12.1.105",
        options,
        text,
        lambda: json.dumps(_compiled_by_nvrtc(folder, text, options)),
    )
    code, log = json.loads(told)
    return code, log


def _compiled_by_nvrtc(folder: Path, text: str, options: Sequence[str]) -> tuple[int, str]:
    """NVRTC leaves its thread with the locale "C", in which Python opens files as ASCII."""
    process = ctypes.CDLL(None)
    process.uselocale.restype = ctypes.c_void_p
    before = ctypes.c_void_p(process.uselocale(None))
    try:
        return _asked(folder, text, options)
    finally:
        process.uselocale(before)


def _asked(folder: Path, text: str, options: Sequence[str]) -> tuple[int, str]:
    given = [*options, f"-I{folder / 'cuda_runtime' / 'include'}"]
    library = ctypes.CDLL(str(folder / "cuda_nvrtc" / "lib" / "libnvrtc.so.12"))
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    created = library.nvrtcCreateProgram(
        ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None
    )
    assert created == 0
    arguments: Any = (ctypes.c_char_p * len(given))(*(option.encode() for option in given))
    code = library.nvrtcCompileProgram(program, len(given), arguments)
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return int(code), log.value.decode()
