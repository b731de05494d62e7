"""CUDA text without shuffles and tensor cores -> a library in which threads of this CPU run it.

Blocks run one after the other, with a barrier for `__syncthreads`. So values, guards and the
choices of an entry can be checked where there is no GPU; nothing is said of time or of races.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

# The variables of two libraries in one process have nothing to do with each other.
SHARED = ("-shared", "-fPIC", "-fno-gnu-unique")
BEFORE = r"""
#include <pthread.h>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>
#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(...)
#define __shared__ static
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct dim3 {
  unsigned x, y;
  dim3(unsigned x, unsigned y = 1) : x(x), y(y) {}
};
using cudaStream_t = void*;
constexpr int cudaSuccess = 0, cudaErrorInvalidValue = 1;
inline int cudaGetDevice(int* device) { return *device = 0; }
inline int cudaSetDevice(int) { return 0; }
inline int cudaGetLastError() { return 0; }
inline dim3 gridDim(1);
inline thread_local dim3 blockIdx(0), threadIdx(0);
inline pthread_barrier_t barrier;
inline void __syncthreads() { pthread_barrier_wait(&barrier); }
template <class T> T __ldg(const T* p) { return *p; }
template <class F> void launch(dim3 grid, unsigned threads, F kernel) {
  gridDim = grid;
  pthread_barrier_init(&barrier, nullptr, threads);
  std::vector<std::thread> all;
  for (unsigned t = 0; t < threads; ++t)
    all.emplace_back([=] {
      threadIdx = dim3(t);
      for (unsigned y = 0; y < grid.y; ++y)
        for (unsigned x = 0; x < grid.x; ++x) {
          blockIdx = dim3(x, y);
          kernel();
          __syncthreads();
        }
    });
  for (auto& one : all) one.join();
  pthread_barrier_destroy(&barrier);
}
"""
# What only a GPU understands, and the same in C++.
TWINS = (
    (r"(\w+(?:<[\w, ]+>)?)\s*<<<([^;]*?), ([^;,]*?), 0, [^;]*?>>>\(([^;]*)\);",
     r"launch(\2, \3, [=] { \1(\4); });"),
    (r'asm volatile\("st\.global[^;]*;[^;]*;', "*to = v;"),
    (r'asm\("" : "\+l"', 'asm("" : "+r"'),
    (r'asm\("cvt\.f32\.f16[^;]*;[^;]*;', "x = __builtin_bit_cast(_Float16, h.bits);"),
    (r'asm\("cvt\.rn\.f16\.f32[^;]*;[^;]*;',
     "h.bits = __builtin_bit_cast(unsigned short, _Float16(x));"),
)  # fmt: skip


def built(text: str, source: Path, level: str = "-O0") -> ctypes.CDLL:
    """A C++ text, written to `source` and compiled beside it."""
    source.write_text(text, encoding="utf-8")
    made = source.with_suffix(".so")
    command = ["g++", "-std=c++20", level, "-w", "-pthread", *SHARED, str(source), "-o", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
    return ctypes.CDLL(str(made))


def library_of(text: str, folder: Path) -> ctypes.CDLL:
    """The entries of an emitted CUDA text, as they would be called."""
    for pattern, twin in TWINS:
        text = re.sub(pattern, twin, text)
    return built(BEFORE + text, folder / "threads.cpp", "-O1")
