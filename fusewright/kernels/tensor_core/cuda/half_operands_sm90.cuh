// Operands of 16 bits, from memory to the tensor cores (sm_90a).
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/gemm/cuda/gemm_sm90.cuh"
namespace fusewright {

//@ half_gemm_operand: needs half_t, bfloat_t, tensor_map
// One operand of a product in memory: lines that lie `line_stride` elements apart. A line is a row, or, TRANSPOSED, holds one k
// of all rows. Lines start at multiples of 16 bytes.
template <class T, bool TRANSPOSED = false> struct half_gemm_operand {
  const T* data;
  long batch_stride, line_stride;
};
template <class T> struct half_kind;
template <> struct half_kind<half_t> { static constexpr int map_type = 6; };
template <> struct half_kind<bfloat_t> { static constexpr int map_type = 9; };
// How the tensor core finds 64 rows x 64 k, 8192 bytes: rows of 64 k or, TRANSPOSED, k of 64 rows, 128 bytes each; 16 k further
// on; and the next 64 rows, 8192 bytes on in both cases.
template <bool TRANSPOSED> struct half_operand {
  static constexpr unsigned long step = (TRANSPOSED ? 16 * 128 : 32) >> 4, blocks = TRANSPOSED ? (8192 >> 4) - 1 : 0;
  FN static unsigned long at(unsigned address) { return descriptor(address) + (blocks << 16); }
};
// Rows of the wide operand may come in an order in which a lane of the tensor core's result has EIGHT neighbouring columns:
// of each 32, number 8 j + 2 t, and the next, is 8 t + 2 j, and the next, in memory. So a box has 32 rows and five dimensions:
// k, neighbours, t, j, batches.
constexpr int EIGHT = 8, ORDERED_ROWS = 32;
template <bool SWAPPED, int SEGMENT, int VECTOR, bool WIDE_TRANSPOSED>
constexpr bool ordered = !SWAPPED && !WIDE_TRANSPOSED && VECTOR == EIGHT && SEGMENT <= 64 && SEGMENT % ORDERED_ROWS == 0;
FN void load_ordered(unsigned to, const tensor_map& map, unsigned barrier, int k, int row, int batch, bool both) {
  if (both)
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, 0, %4, 0, %5}], [%2], %6;"
        ::"r"(to), "l"(&map), "r"(barrier), "r"(k), "r"(row / EIGHT), "r"(batch), "h"(short(3)) : "memory");
  else
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, 0, %4, 0, %5}], [%2];"
        ::"r"(to), "l"(&map), "r"(barrier), "r"(k), "r"(row / EIGHT), "r"(batch) : "memory");
}
#ifndef __CUDACC_RTC__
template <class T, bool TRANSPOSED>
int map_half(tensor_map& map, const half_gemm_operand<T, TRANSPOSED>& from, int box_lines, long batches, long rows, long depth) {
  const mapped all{half_kind<T>::map_type, 2, from.data, from.batch_stride * 2, from.line_stride * 2, batches,
                   TRANSPOSED ? depth : rows, TRANSPOSED ? rows : depth};
  return map_boxes(map, all, box_lines);
}
template <class T>
int map_ordered(tensor_map& map, const half_gemm_operand<T>& from, long batches, long rows, long depth) {
  const bool batched = from.batch_stride != 0 && batches > 1;
  const unsigned long line = from.line_stride * 2, apart = batched ? from.batch_stride * 2 : line;
  const unsigned long sizes[5] = {(unsigned long)depth, 2, (unsigned long)rows / EIGHT, 4, batched ? (unsigned long)batches : 1};
  const unsigned long strides[4] = {line, line * EIGHT, line * 2, apart};
  const unsigned box[5] = {64, 2, 4, 4, 1};
  return encode_map(map, half_kind<T>::map_type, 5, from.data, sizes, strides, box, sizes[0] * rows * sizes[4] * 2);
}
#endif

//@ half_multiply: needs half_t, bfloat_t, wgmma_groups, tile_order
// d (+)= a x b for 64 rows, WIDTH columns, 16 k, both from shared memory. Register i of a lane is as in the float32 product.
#define NAMES_0 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_32 \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_64 \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define HALF_NAMES_0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define HALF_NAMES_32 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define HALF_NAMES_64 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define HALF_NAMES_96 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define NAMES_96 \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define HALF_PLACES(d) \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
  "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define PLACES(d) \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
  "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
  "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define MULTIPLY(WIDTH, TYPE, NAMES, A, B, FIRST, TRANSPOSE_A, TRANSPOSE_B, ...)                                   \
  asm volatile(                                                                                          \
      "{\n"                                                                                              \
      ".reg .pred p;\n"                                                                                  \
      "setp.ne.b32 p, %" FIRST ", 0;\n"                                                                  \
      "wgmma.mma_async.sync.aligned.m64n" WIDTH "k16.f32." TYPE "." TYPE " {" NAMES "}, "                \
      "%" A ", %" B ", p, 1, 1, %" TRANSPOSE_A ", %" TRANSPOSE_B ";\n"                                             \
      "}" : __VA_ARGS__ : "l"(a), "l"(b), "r"(int(accumulate)), "n"(int(A_TRANSPOSED)), "n"(int(B_TRANSPOSED)))
#define MULTIPLY_32(TYPE) MULTIPLY("32", TYPE, HALF_NAMES_0, "16", "17", "18", "19", "20", HALF_PLACES(d[0]))
#define MULTIPLY_64(TYPE) MULTIPLY("64", TYPE, NAMES_0, "32", "33", "34", "35", "36", PLACES(d[0]))
#define MULTIPLY_96(TYPE) \
  MULTIPLY("96", TYPE, NAMES_0 ", " HALF_NAMES_32, "48", "49", "50", "51", "52", PLACES(d[0]), HALF_PLACES(d[1]))
#define MULTIPLY_128(TYPE) \
  MULTIPLY("128", TYPE, NAMES_0 ", " NAMES_32, "64", "65", "66", "67", "68", PLACES(d[0]), PLACES(d[1]))
#define MULTIPLY_160(TYPE)                                                                                     \
  MULTIPLY("160", TYPE, NAMES_0 ", " NAMES_32 ", " HALF_NAMES_64, "80", "81", "82", "83", "84", PLACES(d[0]),  \
           PLACES(d[1]), HALF_PLACES(d[2]))
#define MULTIPLY_192(TYPE)                                                                                     \
  MULTIPLY("192", TYPE, NAMES_0 ", " NAMES_32 ", " NAMES_64, "96", "97", "98", "99", "100", PLACES(d[0]),      \
           PLACES(d[1]), PLACES(d[2]))
#define MULTIPLY_224(TYPE)                                                                                     \
  MULTIPLY("224", TYPE, NAMES_0 ", " NAMES_32 ", " NAMES_64 ", " HALF_NAMES_96, "112", "113", "114", "115",    \
           "116", PLACES(d[0]), PLACES(d[1]), PLACES(d[2]), HALF_PLACES(d[3]))
#define MULTIPLY_256(TYPE)                                                                                     \
  MULTIPLY("256", TYPE, NAMES_0 ", " NAMES_32 ", " NAMES_64 ", " NAMES_96, "128", "129", "130", "131", "132",  \
           PLACES(d[0]), PLACES(d[1]), PLACES(d[2]), PLACES(d[3]))
template <class T, int WIDTH> struct half_multiply;
#define HALF_MULTIPLY(T, WIDTH, TYPE)                                                                          \
  template <> struct half_multiply<T, WIDTH> {                                                                 \
    template <bool A_TRANSPOSED, bool B_TRANSPOSED>                                                                    \
    FN static void run(float (&d)[quarters<WIDTH>][32], unsigned long a, unsigned long b, bool accumulate) {    \
      MULTIPLY_##WIDTH(TYPE);                                                                                  \
    }                                                                                                          \
  };
#define HALF_MULTIPLIES(T, TYPE)                                                       \
  HALF_MULTIPLY(T, 32, TYPE)                                                           \
  HALF_MULTIPLY(T, 64, TYPE) HALF_MULTIPLY(T, 96, TYPE) HALF_MULTIPLY(T, 128, TYPE)    \
  HALF_MULTIPLY(T, 160, TYPE) HALF_MULTIPLY(T, 192, TYPE) HALF_MULTIPLY(T, 224, TYPE)  \
  HALF_MULTIPLY(T, 256, TYPE)
HALF_MULTIPLIES(half_t, "f16") HALF_MULTIPLIES(bfloat_t, "bf16")

//@ half_k_tile: needs half_gemm_operand, half_multiply
constexpr int HALF_DEPTH = 64, HALF_LINE = 128;  // k, or rows, that a line of 128 bytes holds
constexpr int HEAD_START = 2;  // in stages of 64 k: of the first group before the second
template <int WIDTH> FN void pin_all(float (&sums)[quarters<WIDTH>][32]) {
#pragma unroll
  for (int q = 0; q < WIDTH / 64; ++q) pin(sums[q]);
  if constexpr (WIDTH % 64) pin<WIDTH % 64 / 2>(sums[WIDTH / 64]);
}
// SLABS times 64 rows.
template <class T, int WIDTH, bool TALL_TRANSPOSED, bool WIDE_TRANSPOSED, int SLABS>
FN void half_k_tile(float (&sums)[SLABS][quarters<WIDTH>][32], unsigned tall_rows, unsigned wide_rows, bool accumulate) {
  using tall = half_operand<TALL_TRANSPOSED>;
  using wide = half_operand<WIDE_TRANSPOSED>;
  const unsigned long a = tall::at(tall_rows), b = wide::at(wide_rows);
  multiply_fence();
#pragma unroll
  for (int j = 0; j < HALF_DEPTH / 16; ++j)
#pragma unroll
    for (int s = 0; s < SLABS; ++s)
      half_multiply<T, WIDTH>::template run<TALL_TRANSPOSED, WIDE_TRANSPOSED>(sums[s],
                                                                      a + j * tall::step + s * (64 * HALF_LINE >> 4),
                                                                          b + j * wide::step, accumulate || j > 0);
  multiply_commit();
}

//@
}  // namespace fusewright
