"""CUDA text without shuffles and tensor cores -> a library in which this CPU runs it.

Blocks run one after the other. A block's threads are fibers of one thread of the CPU: each runs
until it waits for others, forwards and backwards in turn. So values, guards and the choices of an
entry can be checked where there is no GPU; nothing is said of time.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

# The variables of two libraries in one process have nothing to do with each other.
SHARED = ("-shared", "-fPIC", "-fno-gnu-unique")
BEFORE = r"""
#include <setjmp.h>
#include <ucontext.h>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>
#define __device__
#define __forceinline__ inline
#define __noinline__
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
inline dim3 gridDim(1), blockIdx(0), threadIdx(0);
struct barrier { unsigned wanted, arrived, number; };
constexpr std::size_t STACK = 1 << 18;
struct fiber {
  jmp_buf here;
  std::unique_ptr<char[]> stack{new char[STACK]};
  const barrier* waits = nullptr;
  unsigned number = 0;
  bool begun = false, done = false;
};
inline std::deque<fiber> fibers;  // which stay for further blocks
inline fiber* running;
inline jmp_buf home;
inline std::function<void()> work;
inline barrier block;
inline void wait_at(barrier& b) {
  if (++b.arrived == b.wanted) {
    b.arrived = 0, ++b.number;
    return;
  }
  fiber& me = *running;
  const dim3 mine = threadIdx;
  me.waits = &b, me.number = b.number;
  if (!_setjmp(me.here)) _longjmp(home, 1);
  threadIdx = mine;
}
inline void __syncthreads() { wait_at(block); }
inline void run_fiber() {
  for (;;) {
    work();
    running->done = true;  // nobody waits for who has left
    if (--block.wanted > 0 && block.arrived == block.wanted) block.arrived = 0, ++block.number;
    if (!_setjmp(running->here)) _longjmp(home, 1);
  }
}
// Only the first time by its context: that asks the kernel about signals.
inline void begin(fiber& f, unsigned t) {
  ucontext_t first;
  getcontext(&first);
  // Stacks that begin at the same place of a page would share few lines of a cache.
  first.uc_stack.ss_sp = f.stack.get(), first.uc_stack.ss_size = STACK - t % 128 * 128;
  makecontext(&first, run_fiber, 0);
  setcontext(&first);
}
inline void run_block(unsigned threads) {
  block = {threads, 0, 0};
  for (unsigned t = 0; t < threads; ++t) fibers[t].done = false, fibers[t].waits = nullptr;
  bool some = true;
  for (bool back = false; some; back = !back) {
    some = false;
    for (unsigned k = 0; k < threads; ++k) {
      const unsigned t = back ? threads - 1 - k : k;
      fiber& f = fibers[t];
      if (f.done || (f.waits && f.waits->number == f.number)) continue;
      some = true, f.waits = nullptr, running = &f, threadIdx = dim3(t);
      if (_setjmp(home)) continue;
      if (std::exchange(f.begun, true)) _longjmp(f.here, 1);
      begin(f, t);
    }
  }
  for (unsigned t = 0; t < threads; ++t)
    if (!fibers[t].done) std::abort();  // it waits for what nobody does
}
inline double __longlong_as_double(long long x) { return __builtin_bit_cast(double, x); }
template <class T> T __ldg(const T* p) { return *p; }
template <class F> void launch(dim3 grid, unsigned threads, F kernel) {
  gridDim = grid, work = kernel;
  while (fibers.size() < threads) fibers.emplace_back();
  for (unsigned y = 0; y < grid.y; ++y)
    for (unsigned x = 0; x < grid.x; ++x) blockIdx = dim3(x, y), run_block(threads);
}
"""
# What only a GPU understands, and the same in C++.
TWINS = (
    (r"(\w+(?:<[\w, ]+>)?)\s*<<<([^;]*?), ([^;,]*?), 0, [^;]*?>>>\(([^;]*)\);",
     r"launch(\2, \3, [=] { \1(\4); });"),
    (r'asm volatile\("st\.global[^;]*;[^;]*;', "*to = v;"),
    (r'asm\("(max|min)\.NaN\.f32[^;]*;[^;]*;', r"c = a != a ? a : b != b ? b : f\1f(a, b);"),
    (r'asm\("" : "\+l"', 'asm("" : "+r"'),
    (r'asm\("cvt\.f32\.f16[^;]*;[^;]*;', "x = __builtin_bit_cast(_Float16, h.bits);"),
    (r'asm\("cvt\.rn\.f16\.f32[^;]*;[^;]*;',
     "h.bits = __builtin_bit_cast(unsigned short, _Float16(x));"),
)  # fmt: skip


def built(text: str, source: Path, level: str = "-O0") -> ctypes.CDLL:
    """A C++ text, written to `source` and compiled beside it."""
    source.write_text(text, encoding="utf-8")
    made = source.with_suffix(".so")
    command = ["g++", "-std=c++20", level, "-w", *SHARED, str(source), "-o", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
    return ctypes.CDLL(str(made))


def library_of(text: str, folder: Path) -> ctypes.CDLL:
    """The entries of an emitted CUDA text, as they would be called."""
    for pattern, twin in TWINS:
        text = re.sub(pattern, twin, text)
    return built(BEFORE + text, folder / "threads.cpp", "-O1")
