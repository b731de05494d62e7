// What every launcher of a generated CUDA kernel uses: grids, devices, alignment.
//
// The surprising fact: a block handles one piece of work and ends. The hardware's block scheduler balances the
// tail better than a loop over rows in the kernel, and no barrier is needed between rows.
//
// Launchers return a cudaError_t as int, and 0 for nothing to do. NVRTC has no host code: there, with
// -default-device, each launcher only names its kernel, which compiles it.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "devicelib/cuda/team.cuh"
namespace fusewright {

//@ grid
// A grid of any number of blocks: x holds 2^31 - 1 of them, y the rest.
FN long block_index() { return long(blockIdx.y) * gridDim.x + blockIdx.x; }
#ifndef __CUDACC_RTC__
inline dim3 grid_of(long blocks) {
  const long most = 1L << 30;
  return blocks <= most ? dim3(unsigned(blocks)) : dim3(unsigned(most), unsigned((blocks + most - 1) / most));
}
#endif

//@ device_scope
#ifndef __CUDACC_RTC__
// The caller's device is current again at the end; most often it already is.
struct device_scope {
  int before = -1;
  bool moved = false;
  explicit device_scope(int device) {
    moved = cudaGetDevice(&before) == cudaSuccess && before != device && cudaSetDevice(device) == cudaSuccess;
  }
  ~device_scope() {
    if (moved) cudaSetDevice(before);
  }
  device_scope(const device_scope&) = delete;
};
#endif

//@ aligned
// Whether vectors of W elements can be used on these pointers; a view may start anywhere.
template <int W, class... T> inline bool aligned(const T*... p) {
  return (true && ... && (reinterpret_cast<unsigned long>(p) % (W * sizeof(T) < 16 ? W * sizeof(T) : 16) == 0));
}

//@ shared_address
FN unsigned shared_address(const void* p) { return unsigned(__cvta_generic_to_shared(p)); }

//@ next_kernel
// With dependent launches the next kernel's blocks may come as soon as this one's leave: they wait for what it writes themselves.
FN void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
FN void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

//@
}  // namespace fusewright
