// Rows over teams: a thread block takes one row, or several that are short.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "devicelib/cuda/launch.cuh"
namespace fusewright {

//@ run_rows: needs team, grid, device_scope
// Short rows share blocks of ROW_BLOCK threads; a team of more than 32 is a block of its own.
constexpr int ROW_BLOCK = 128;
template <int THREADS> constexpr int row_block = THREADS <= 32 ? ROW_BLOCK : THREADS;
template <int THREADS, int VECTOR, class Body>
__global__ void __launch_bounds__(row_block<THREADS>) row_kernel(const Body body, long rows) {
  const long row = block_index() * (row_block<THREADS> / THREADS) + threadIdx.x / THREADS;
  if (row >= rows) return;
  body(row, team<THREADS, VECTOR>());
}
#ifdef __CUDACC_RTC__
template <int THREADS, int VECTOR, class Body> FN int run_rows(const Body&, long, int, void*) {
  return &row_kernel<THREADS, VECTOR, Body> == nullptr;
}
#else
template <int THREADS, int VECTOR, class Body>
int run_rows(const Body& body, long rows, int device, void* stream) {
  if (rows <= 0) return 0;
  const device_scope scope(device);
  constexpr int per_block = row_block<THREADS> / THREADS;
  const dim3 grid = grid_of((rows + per_block - 1) / per_block);
  row_kernel<THREADS, VECTOR><<<grid, row_block<THREADS>, 0, static_cast<cudaStream_t>(stream)>>>(body, rows);
  return cudaGetLastError();
}
#endif

//@
}  // namespace fusewright
