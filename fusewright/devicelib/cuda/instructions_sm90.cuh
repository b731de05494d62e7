// Hopper's own instructions (sm_90a) by name: wgmma, and copies by TMA, in plain PTX.
//
// The surprising fact: a descriptor must be known to be the same for all lanes, or the compiler moves it to a uniform
// register before every wgmma. One lane-dependent branch or loop around a shuffle anywhere in the kernel is enough to lose
// that, and a tenth of the registers with it.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "devicelib/cuda/barriers_sm90.cuh"
namespace fusewright {

//@ barriers: needs arrivals
// Barriers of some of a block's warps, by number; 0 is __syncthreads().
FN void group_sync(int number, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory"); }
FN void group_arrive(int number, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory"); }
FN bool group_any(int number, int threads, bool mine) {
  unsigned any;
  asm volatile(
      "{\n"
      ".reg .pred mine, any;\n"
      "setp.ne.u32 mine, %3, 0;\n"
      "bar.red.or.pred any, %1, %2, mine;\n"
      "selp.u32 %0, 1, 0, any;\n"
      "}" : "=r"(any) : "r"(number), "r"(threads), "r"(unsigned(mine)) : "memory");
  return any != 0;
}

//@ wgmma: needs wgmma_groups
// acc (+)= a x b for 64 rows, 64 or 32 columns, 16 k: a from registers, b from shared memory, float16 -> float32.
FN void multiply(float (&d)[32], const unsigned (&a)[4], unsigned long b, bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n"
      "}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)));
}
FN void multiply(float (&d)[16], const unsigned (&a)[4], unsigned long b, bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1, 0;\n"
      "}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)));
}

//@ wgmma_groups
FN void multiply_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FN void multiply_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> FN void multiply_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }
// Ties the accumulators to this point of the program: the compiler does not see what wgmma does to them later.
template <int COUNT = 32, int SUMS> FN void pin(float (&d)[SUMS]) {
#pragma unroll
  for (int i = 0; i < (COUNT < SUMS ? COUNT : SUMS); ++i) asm volatile("" : "+f"(d[i])::"memory");
}
// Rows of 128 bytes in 8-row atoms of 1024 bytes, 128-byte swizzle, k running along the row.
FN unsigned long descriptor(unsigned address) {
  return 1ul << 62 | 64ul << 32 | 1ul << 16 | (address & 0x3ffff) >> 4;
}

//@ load_bytes
FN void load_bytes(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
//@
}  // namespace fusewright
