"""A compiler -> whether it compiles a kernel of one line that then runs, and how long that takes.

With the options that kernels of emitted files have, in a temporary folder. What was compiled is run
in a process of its own: instructions that a processor lacks end that.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fusewright.doctor.asking import Unanswered, run
from fusewright.targets.arch import Arch
from fusewright.targets.compile_flags import CPP_FLAGS, cuda_flags

COMPILE_S, RUN_S = 120.0, 60.0
OPENMP = "-fopenmp"
ANSWER = 42  # of a kernel that works
CPP = """
#ifdef _OPENMP
#include <omp.h>
#endif
extern "C" int answer() { return 42; }
extern "C" int threads() {
  int n = 0;
#pragma omp parallel
  {
#ifdef _OPENMP
    if (omp_get_thread_num() == 0) n = omp_get_num_threads();
#endif
  }
  return n;
}
"""
CUDA = """
__global__ void one(int* x) { *x = 42; }
extern "C" int threads() { return 0; }
extern "C" int answer() {
  int* x = nullptr;
  int y = 0;
  if (cudaMalloc(&x, sizeof(int)) != cudaSuccess) return -1;
  one<<<1, 1>>>(x);
  const cudaError_t error = cudaMemcpy(&y, x, sizeof(int), cudaMemcpyDeviceToHost);
  cudaFree(x);
  return error == cudaSuccess ? y : -2;
}
"""
_LOAD = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
print(library.answer(), library.threads())
"""


@dataclass(frozen=True)
class Trial:
    """seconds: that the compiler took.  threads: in which OpenMP ran the kernel; 0 without it."""

    seconds: float
    threads: int = 0


def try_cpp(compiler: Sequence[str], processor: str, *, openmp: bool = True) -> Trial:
    """compiler: the words that call it.  processor: for -march.  Raises Unanswered with what went
    wrong, as the two below do."""
    flags = [flag for flag in CPP_FLAGS if openmp or flag != OPENMP]
    return _try([*compiler, *flags, f"-march={processor}", "-fPIC"], "kernel.cpp", CPP, runs=True)


def try_cuda(nvcc: str, arch: Arch, *, runs: bool) -> Trial:
    """runs: whether there is a GPU of this architecture to run the kernel."""
    command = [nvcc, *cuda_flags(arch), "-Xcompiler", "-fPIC"]
    return _try(command, "kernel.cu", CUDA, runs=runs)


def _try(command: Sequence[str], name: str, text: str, *, runs: bool) -> Trial:
    with tempfile.TemporaryDirectory(prefix="fusewright-doctor-") as folder:
        source, library = Path(folder) / name, Path(folder) / "kernel.so"
        source.write_text(text, encoding="ascii")
        built = run([*command, "-shared", str(source), "-o", str(library)], COMPILE_S)
        if not runs:
            return Trial(built.seconds)
        words = run([sys.executable, "-c", _LOAD, str(library)], RUN_S).text.split()
    if words[:1] != [str(ANSWER)]:
        raise Unanswered(f"the kernel answered {' '.join(words[:1])} in place of {ANSWER}")
    return Trial(built.seconds, int(words[1]))
