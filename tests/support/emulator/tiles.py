"""Bodies that reduce channels -> a library in which threads of this CPU hand them a tile's
fragments.

The text is that of the GPU, from the registers of a tensor core's result on: boxes, repairs, teams
and their shuffles. Warps run one after the other; nothing is said of races between them.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from fusewright.codegen.device_library import sections_for
from fusewright.codegen.kernel_text import KernelText, words
from tests.support.cuda_compilers import SPOKEN
from tests.support.emulator.threads import BEFORE, TWINS, built

SECTIONS = ("tile_out", "channel_reduction_body", "channel_reduction_source")
WARP = r"""
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <class To, class From> To bits_as(From x) { return __builtin_bit_cast(To, x); }
#define __float_as_uint bits_as<unsigned, float>
#define __float_as_int bits_as<int, float>
#define __int_as_float bits_as<float, int>
#define __uint_as_float bits_as<float, unsigned>
#define __longlong_as_double bits_as<double, long>
#define __double_as_longlong bits_as<long, double>
#define __cvta_generic_to_shared(p) 0ul
#define __cvta_generic_to_global(p) reinterpret_cast<unsigned long>(p)
#define __cvta_global_to_generic(at) reinterpret_cast<void*>(at)
#define __builtin_assume(x)
#define __host__
#define __fdividef(x, y) ((x) / (y))
inline float __saturatef(float x) { return fminf(fmaxf(x, 0), 1); }
inline float __fmaf_rd(float a, float b, float c) {  // of what is positive
  const double sum = double(a) * b + c;
  return float(sum) > sum ? nextafterf(float(sum), 0) : float(sum);
}
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline double rsqrt(double x) { return 1 / sqrt(x); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
using std::isinf, std::isnan;
inline unsigned __reduce_max_sync(unsigned, unsigned x) { return x; }  // in what is not run
inline unsigned meeting[32];
inline void __syncwarp() { __syncthreads(); }
// What all lanes leave, seen by each.
template <class F> auto met(unsigned mine, F what) {
  meeting[threadIdx.x % 32] = mine;
  __syncwarp();
  const auto found = what();
  __syncwarp();
  return found;
}
inline unsigned __shfl_xor_sync(unsigned, unsigned mine, int distance) {
  return met(mine, [&] { return meeting[threadIdx.x % 32 ^ distance]; });
}
inline int __shfl_sync(unsigned, int mine, int from) {
  return met(mine, [&] { return int(meeting[from]); });
}
inline int __any_sync(unsigned, int mine) {
  return met(mine, [] {
    unsigned any = 0;
    for (unsigned each : meeting) any |= each;
    return any != 0;
  });
}
inline int __all_sync(unsigned, int mine) { return !__any_sync(0, !mine); }
"""
# Instructions of a GPU in the functions that bodies call. Others are not run, or change nothing.
MORE_TWINS = (
    (
        r'asm\("cvt\.rn\.bf16\.f32[^;]*;[^;]*;',
        "{ const unsigned all = __builtin_bit_cast(unsigned, x);"
        " h.bits = x == x ? (all + 0x7fffu + (all >> 16 & 1u)) >> 16 : 0x7fffu; }",
    ),
    (r'asm\("rcp\.approx[^;]*;[^;]*;', "y = 1 / x;"),
    (r'asm\("ex2\.approx[^;]*;[^;]*;', "y = exp2f(x);"),
    (r"asm( volatile)?\s*\((?:[^;\"]|\"[^\"]*\")*\);", ";"),
)
# All tiles of one warp. `sums`, `truth`: [images, pixels, channels]; `truth` is what computing sums
# again would give, and those that are not finite are computed again.
HANDED = """
struct from_memory {
  static constexpr bool marked = true;
  const float* truth;
  int pixels, channels;
};
FN float plain_sum(const from_memory& from, int image, int channel, int pixel) {
  return from.truth[(long(image) * from.pixels + pixel) * from.channels + channel];
}
template <int WIDTH, int SEGMENT, int VECTOR, class Body>
void run_epilogue(const Body& body, const float* sums, const float* truth, int images, int pixels,
              int channels, int warp) {
  static float boxes[8 * SMEM_TILE];
  const channel_reduction_body<Body> turned{body};
  const from_memory from{truth, pixels, channels};
  const gemm_shape shape{images, pixels, channels, 0};
  using factors = channel_reduction_operands<0, from_memory>;
  const factors both{{from}, {from}, true};
  const consumer<channel_reduction_body<Body>, factors> me{turned, both, shape, boxes};
  const int lane = threadIdx.x % 32;
  for (int image = 0; image < images; ++image)
    for (int row = 0; row * TILE_ROWS < pixels; ++row)
      for (int column = 0; column * WIDTH < channels; ++column) {
        float held[WIDTH / 64][32];
        for (int i = 0; i < WIDTH / 2; ++i) {
          const int pixel = row * TILE_ROWS + warp * 16 + lane / 4 + i / 2 % 2 * 8;
          const int channel = column * WIDTH + i / 4 * 8 + lane % 4 * 2 + i % 2;
          const bool inside = pixel < pixels && channel < channels;
          const long at = (long(image) * pixels + pixel) * channels + channel;
          held[i / 32][i % 32] = inside ? sums[at] : 0;
        }
        me.template rows_out<WIDTH, SEGMENT, VECTOR>(held, {image, row, column}, nullptr);
      }
}
"""
ENTRY = """
extern "C" void tile_{number}(const float* sums, const float* truth, {pointers}, long batch,
                       int pixels, int channels) {{
  const {name} body{{{fields}}};
  for (int warp = 0; warp < 8; ++warp)
    launch(dim3(1), 32, [=] {{
      threadIdx.x += warp * 32;
      run_epilogue<{chosen}>(body, sums, truth, batch, pixels, channels, warp);
      threadIdx.x -= warp * 32;
    }});
}}
"""


def library(bodies: Sequence[tuple[KernelText, str]], folder: Path) -> ctypes.CDLL:
    """tile_0, tile_1, … of bodies, each with the width of its tile, its segment and its vectors."""
    names = {*SECTIONS, *SPOKEN, *(word for body, _ in bodies for word in words(body.text))}
    entries = (_entry(k, body, chosen) for k, (body, chosen) in enumerate(bodies))
    return compiled(names, HANDED + "".join(entries), folder)


def compiled(names: Iterable[str], more: str, folder: Path) -> ctypes.CDLL:
    """The sections that are called `names`, and more text behind them."""
    text = sections_for("sm90", names)
    for pattern, twin in (*TWINS, *MORE_TWINS):
        text = re.sub(pattern, twin, text)
    text += more
    return built(f"{BEFORE}{WARP}{text}}}\n", folder / "tiles.cpp")


def _entry(number: int, body: KernelText, chosen: str) -> str:
    fields = ", ".join([*(p.name for p in body.pointers), "batch"])
    pointers = ", ".join(p.declaration for p in body.pointers)
    entry = ENTRY.format(
        number=number, name=body.name, fields=fields, pointers=pointers, chosen=chosen
    )
    return f"namespace n{number} {{\n{body.text}\n{entry}}}\n"
