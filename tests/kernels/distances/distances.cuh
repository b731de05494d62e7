// Distances between points on a GPU: a thread block takes a point, and a tile of distances at a time.
#pragma once
#include "devicelib/cuda/launch.cuh"
namespace fusewright {

//@ run_distances: needs lane, team, load, grid, device_scope
constexpr int DISTANCES_TOGETHER = 128;
FN float distance(const float* a, const float* b, long depth) {
  float sum = 0;
  for (long k = 0; k < depth; ++k) sum += (a[k] - b[k]) * (a[k] - b[k]);
  return sqrtf(sum);
}
template <int THREADS, bool FOLDS, class Body>
__global__ void __launch_bounds__(THREADS)
    distances_kernel(const Body body, const float* left, const float* right, long columns, long depth) {
  __shared__ float tile[DISTANCES_TOGETHER];
  const long row = block_index();
  for (long first = 0; first < columns; first += DISTANCES_TOGETHER) {
    const long stop = first + DISTANCES_TOGETHER, last = stop < columns ? stop : columns;
    for (long j = first + threadIdx.x; j < last; j += THREADS)
      tile[j - first] = distance(left + row * depth, right + j * depth, depth);
    __syncthreads();
    const auto found = load(static_cast<float*>(tile), -first);
    if constexpr (FOLDS)
      body(row, team<THREADS, 1>(), found);
    else
      for (long j = first + threadIdx.x; j < last; j += THREADS) body(row, range{j, columns}, lane<1>(), found);
    __syncthreads();
  }
}
template <int THREADS, bool FOLDS, class Body>
int run_distances(const Body& body, const float* left, const float* right, long rows, long columns, long depth,
                  int device, void* stream) {
  if (rows <= 0) return 0;
  const device_scope scope(device);
  distances_kernel<THREADS, FOLDS><<<grid_of(rows), THREADS, 0, static_cast<cudaStream_t>(stream)>>>(
      body, left, right, columns, depth);
  return cudaGetLastError();
}

//@
}  // namespace fusewright
