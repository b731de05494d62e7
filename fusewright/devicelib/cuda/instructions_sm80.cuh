// Ampere's own instructions (sm_80, and whatever came later) by name: copies that end later, and tensor cores of one warp.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/tensor_core/cuda/epilogue.cuh"
namespace fusewright {

//@ copies: needs shared_address
// 16 bytes to shared memory, some time later; zeros if `from` does not exist: then `instead` is named, and not read.
FN void copy_later(unsigned to, const void* from, const void* instead, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(exists ? from : instead),
               "r"(exists ? 16 : 0) : "memory");
}
FN void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LATER> FN void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory"); }

//@ load_matrices
FN void load_matrices(unsigned (&to)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
}

//@ mma_sync: needs load_matrices
// acc += a x b for 16 rows, 8 columns, 16 k, float16 -> float32.
FN void multiply(float (&acc)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

//@ mma_of: needs mma_sync, half_t, bfloat_t
// The same for operands of T.
FN void multiply_as(half_t, float (&acc)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) { multiply(acc, a, b0, b1); }
FN void multiply_as(bfloat_t, float (&acc)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

//@ allow_shared
#ifndef __CUDACC_RTC__
// More shared memory than a kernel gets unasked. Asked for once per kernel and device.
template <auto KERNEL> int allow_shared(int bytes, int device) {
  static bool known[64];
  const bool listed = device >= 0 && device < 64;
  if (listed && known[device]) return 0;
  const int error = cudaFuncSetAttribute(KERNEL, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (listed && !error) known[device] = true;
  return error;
}
#endif

//@
}  // namespace fusewright
