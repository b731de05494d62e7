"""CUDA text for Ampere, shuffles, late copies and tensor cores included -> a library for this CPU.

A block's threads are fibers of one thread of the CPU, so any of them may wait for its warp or its
block. A copy happens as late as its kernel allows, and shared memory begins as NaN: what is read
too early is wrong. Tensor cores add exactly, in float64, and round once. Nothing is said of time.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

from tests.support.emulator.threads import built

BEFORE = r"""
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>
#include <setjmp.h>
#include <ucontext.h>
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_assume(x)
using std::min, std::max, std::isnan;
struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
struct dim3 {
  unsigned x, y, z = 0;
  dim3(unsigned x, unsigned y = 1) : x(x), y(y) {}
};
using cudaStream_t = void*;
constexpr int cudaSuccess = 0, cudaErrorInvalidValue = 1;
constexpr int cudaFuncAttributeMaxDynamicSharedMemorySize = 8;
inline int cudaGetDevice(int* device) { return *device = 0; }
inline int cudaSetDevice(int) { return 0; }
inline int cudaGetLastError() { return 0; }
inline int cudaMemsetAsync(void* p, int byte, size_t bytes, cudaStream_t) {
  return std::memset(p, byte, bytes), 0;
}
template <class F> int cudaFuncSetAttribute(F, int, int bytes) { return bytes > 163 * 1024; }
inline float __uint_as_float(unsigned u) { return __builtin_bit_cast(float, u); }
inline unsigned __float_as_uint(float f) { return __builtin_bit_cast(unsigned, f); }
inline float __int_as_float(int i) { return __builtin_bit_cast(float, i); }
inline double __longlong_as_double(long i) { return __builtin_bit_cast(double, i); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline long __double_as_longlong(double d) { return __builtin_bit_cast(long, d); }
inline int __float_as_int(float f) { return __builtin_bit_cast(int, f); }
inline int __ffs(unsigned u) { return __builtin_ffs(int(u)); }
inline float __saturatef(float x) { return x > 0 ? x < 1 ? x : 1 : 0; }
inline float __fmaf_rd(float x, float y, float z) {
  const double sum = double(x) * y + z;
  const float near = float(sum);
  return near > sum ? std::nextafterf(near, -INFINITY) : near;
}
template <class T> T __ldg(const T* p) { return *p; }
template <class T> T __ldcg(const T* p) { return *p; }
inline float half_of(unsigned short bits) {
  return float(__builtin_bit_cast(_Float16, bits));
}
inline unsigned atomicMax(unsigned* p, unsigned x) { return *p = max(*p, x); }
inline unsigned atomicMin(unsigned* p, unsigned x) { return *p = min(*p, x); }

// Fibers: whoever waits for others lets the next one run that does not.
struct meeting { int wanted, arrived, number; };
struct late_copy { unsigned to; const void* from; bool exists; };
struct fiber {
  ucontext_t first;
  jmp_buf here;  // once it has begun: switching contexts would ask the kernel about signals
  std::vector<char> stack = std::vector<char>(1 << 17);
  const meeting* waits = nullptr;
  int number = 0;
  bool begun = false, done = false;
  std::vector<std::vector<late_copy>> copies;
};
inline std::vector<fiber> fibers;
inline jmp_buf home;
inline std::function<void()> work;
inline dim3 gridDim(1), blockDim(1), blockIdx(0), threadIdx(0);
inline meeting whole, warps[32];
alignas(1024) inline unsigned char shared[1 << 18];
inline fiber& self() { return fibers[threadIdx.x]; }
inline void meet(meeting& m) {
  fiber& me = self();
  if (++m.arrived == m.wanted) {
    m.arrived = 0, ++m.number;
    return;
  }
  me.waits = &m, me.number = m.number;
  if (!_setjmp(me.here)) _longjmp(home, 1);
}
inline void start() {
  work();
  self().done = true;
  for (meeting* m : {&whole, &warps[threadIdx.x / 32]})  // nobody waits for who has left
    if (--m->wanted > 0 && m->arrived == m->wanted) m->arrived = 0, ++m->number;
  _longjmp(home, 1);
}
inline void run_block(unsigned threads) {
  std::memset(shared, 0xff, sizeof shared);
  whole = {int(threads), 0, 0};
  for (auto& w : warps) w = {32, 0, 0};
  for (auto& f : fibers) {
    getcontext(&f.first);
    f.first.uc_stack.ss_sp = f.stack.data(), f.first.uc_stack.ss_size = f.stack.size();
    f.begun = f.done = false, f.waits = nullptr, f.copies.assign(1, {});
    makecontext(&f.first, start, 0);
  }
  for (bool some = true; some;) {
    some = false;
    for (unsigned t = 0; t < threads; ++t) {
      fiber& f = fibers[t];
      if (f.done || (f.waits && f.waits->number == f.number)) continue;
      some = true, f.waits = nullptr, threadIdx.x = t;
      if (_setjmp(home)) continue;
      if (std::exchange(f.begun, true)) _longjmp(f.here, 1);
      setcontext(&f.first);
    }
  }
  for (auto& f : fibers)
    if (!f.done) std::abort();  // a meeting that somebody missed
}
template <class F> void launch(dim3 grid, unsigned threads, F kernel) {
  gridDim = grid, blockDim = dim3(threads), work = kernel;
  fibers = std::vector<fiber>(threads);
  for (unsigned y = 0; y < grid.y; ++y)
    for (unsigned x = 0; x < grid.x; ++x) blockIdx = dim3(x, y), run_block(threads);
}
// A launch with wishes, of which none matters here.
#define __CUDA_ARCH_LIST__ 800
constexpr int cudaLaunchAttributeProgrammaticStreamSerialization = 6;
constexpr int cudaDevAttrMultiProcessorCount = 16;
inline int cudaDeviceGetAttribute(int* n, int, int) { return *n = 5, 0; }
template <class F> int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n, F, int, int) {
  return *n = 3, 0;
}
struct cudaLaunchAttribute {
  int id;
  struct { int programmaticStreamSerializationAllowed; } val;
};
struct cudaLaunchConfig_t {
  dim3 grid, block;
  size_t bytes;
  cudaStream_t on;
  cudaLaunchAttribute* wishes;
  unsigned count;
};
template <class... W, class... G>
void cudaLaunchKernelEx(const cudaLaunchConfig_t* how, void (*kernel)(W...), G... given) {
  launch(how->grid, how->block.x, [=] { kernel(given...); });
}

// Warps: what each lane shows the others, twice in turn, so that nobody is overtaken.
struct alignas(16) shown { unsigned words[8]; };
inline shown slots[32][2][32];
inline int turns[1024];
template <class T> const shown* show(const T& mine) {
  const unsigned thread = threadIdx.x;
  shown(&to)[32] = slots[thread / 32][turns[thread] ^= 1];
  std::memcpy(&to[thread % 32], &mine, sizeof mine);
  meet(warps[thread / 32]);
  return to;
}
inline int lane_of() { return threadIdx.x % 32; }
template <class T> T shown_by(const shown* all, int lane) {
  T found;
  std::memcpy(&found, &all[lane], sizeof found);
  return found;
}
template <class T> T __shfl_sync(unsigned, T x, int lane) {
  return shown_by<T>(show(x), lane & 31);
}
template <class T> T __shfl_xor_sync(unsigned, T x, int by) {
  return shown_by<T>(show(x), lane_of() ^ by);
}
template <class T> T __shfl_sync(unsigned, T x, int lane, int width) {
  return shown_by<T>(show(x), lane_of() / width * width + lane % width);
}
template <class T> T __shfl_up_sync(unsigned, T x, int by, int width) {
  return shown_by<T>(show(x), lane_of() - (lane_of() % width >= by ? by : 0));
}
template <class T> T __shfl_down_sync(unsigned, T x, int by, int width) {
  return shown_by<T>(show(x), lane_of() + (lane_of() % width + by < width ? by : 0));
}
inline unsigned __ballot_sync(unsigned, bool x) {
  const shown* const all = show(x);
  unsigned found = 0;
  for (int i = 0; i < 32; ++i) found |= unsigned(shown_by<bool>(all, i)) << i;
  return found;
}
inline bool __all_sync(unsigned m, bool x) { return __ballot_sync(m, x) == ~0u; }
inline bool __any_sync(unsigned m, bool x) { return __ballot_sync(m, x) != 0; }
inline unsigned __reduce_max_sync(unsigned, unsigned x) {
  const shown* const all = show(x);
  for (int i = 0; i < 32; ++i) x = max(x, shown_by<unsigned>(all, i));
  return x;
}
inline void __syncwarp() { meet(warps[threadIdx.x / 32]); }
inline void __syncthreads() { meet(whole); }
inline int __syncthreads_or(int x) {
  static bool any;
  __syncthreads();
  any = false;
  __syncthreads();
  any |= x != 0;
  __syncthreads();
  return any;
}
inline unsigned __cvta_generic_to_shared(const void* p) {
  return unsigned(static_cast<const unsigned char*>(p) - shared);
}

// Ampere's own.
inline void copy_some_time(unsigned to, const void* from, const void* instead, bool exists) {
  self().copies.back().push_back({to, exists ? from : instead, exists});
}
inline void wait_for_copies(size_t later) {
  auto& groups = self().copies;
  while (groups.size() - 1 > later) {
    for (const late_copy& c : groups.front())
      if (c.exists) std::memcpy(shared + c.to, c.from, 16); else std::memset(shared + c.to, 0, 16);
    groups.erase(groups.begin());
  }
}
inline void matrices(unsigned (&to)[4], unsigned address) {
  const shown* const all = show(address);
  for (int i = 0; i < 4; ++i)
    std::memcpy(&to[i], shared + all[i * 8 + lane_of() / 4].words[0] + lane_of() % 4 * 4, 4);
  __syncwarp();
}
inline float value_of(unsigned short bits, _Float16) { return half_of(bits); }
inline float value_of(unsigned short bits, int) { return __uint_as_float(unsigned(bits) << 16); }
template <class Kind>
void mma(float (&acc)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, Kind kind) {
  const struct { unsigned words[6]; } mine{{a[0], a[1], a[2], a[3], b0, b1}};
  const shown* const all = show(mine);
  const auto factor = [&](int lane, int word, int k) {
    const unsigned both = all[lane].words[word];
    return double(value_of((unsigned short)(both >> k % 2 * 16), kind));
  };
  for (int i = 0; i < 4; ++i) {
    double sum = acc[i];
    for (int k = 0; k < 16; ++k) {
      const int along = k % 8 / 2, row = lane_of() / 4 * 4 + along;
      const int column = (lane_of() % 4 * 2 + i % 2) * 4 + along;
      sum += factor(row, k / 8 * 2 + i / 2, k) * factor(column, 4 + k / 8, k);
    }
    acc[i] = float(sum);
  }
}
"""
# What only a GPU understands, and the same in C++: how an asm statement begins, and what it does.
PAIR = "{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, "
TWINS = {
    "st.global": "*to = v;",
    "st.relaxed.gpu.global.b64": "*place = word;",
    "ld.relaxed.gpu.global.b64": "word = *place;",
    "cvt.f32.f16": "x = half_of(h.bits);",
    "cvt.rn.f16.f32": "h.bits = __builtin_bit_cast(unsigned short, _Float16(x));",
    "cvt.rn.bf16.f32": "const unsigned u = __float_as_uint(x); "
    "h.bits = isnan(x) ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;",
    "rcp.approx": "y = 1 / x;",
    "ex2.approx": "y = std::exp2(x);",
    PAIR + "low": "x = half_of(both);",
    PAIR + "high": "x = half_of(both >> 16);",
    "cvt.rn.f16x2.f32": "both = __builtin_bit_cast(unsigned short, _Float16(x)) | "
    "unsigned(__builtin_bit_cast(unsigned short, _Float16(y))) << 16;",
    "griddepcontrol": ";",
    "ld.global.nc.L1::no_allocate": "to = *from;",
    "prefetch": ";",
    "cp.async.bulk.prefetch": ";",
    "cp.async.cg": "copy_some_time(to, from, instead, exists);",
    "cp.async.commit": "self().copies.emplace_back();",
    "cp.async.wait": "wait_for_copies(LATER);",
    "ldmatrix": "matrices(to, address);",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16": "mma(acc, a, b0, b1, _Float16());",
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16": "mma(acc, a, b0, b1, 0);",
    "mov.u32 %0, %%ctaid.x": "x = blockIdx.x;",
    "mov.u32 %0, %%ctaid.y": "y = blockIdx.y;",
    "mov.u32 %0, %%tid.x": "thread = threadIdx.x;",
    'max.NaN.f32 %0, %1, %2;" : "=f"(c)': "c = a != a || a > b ? a : b;",
    'min.NaN.f32 %0, %1, %2;" : "=f"(c)': "c = a != a || a < b ? a : b;",
    "max.NaN.f32 %0, %0, 0f": "x = x < 0 ? 0 : x;",
    "max.NaN.f32": "{ const float y = fabsf(x[i / 8][i / 4 % 2][i % 4]); "
    "most = most >= y || isnan(most) ? most : y; }",
}
LAUNCH = r"(\w+(?:<[\w, ]+>)?)\s*<<<([^;]*?), ([^;,]*?), [^;,]*?, [^;]*?>>>\(([^;]*)\);"


def library_of(text: str, folder: Path) -> ctypes.CDLL:
    """The entries of an emitted CUDA text, as they would be called."""
    for start, twin in TWINS.items():
        asm = rf'asm(?: volatile)?\(\s*"{re.escape(start)}.*?\);'
        text = re.sub(asm, lambda _, twin=twin: twin, text, flags=re.S)
    text = re.sub(r"extern __shared__ [^;]*;", "", text.replace('"+l"', '"+r"'))
    text = re.sub(LAUNCH, r"launch(\2, \3, [=] { \1(\4); });", text)
    return built(BEFORE + text, folder / "warps.cpp", "-O1")
