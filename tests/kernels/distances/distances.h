// Distances between points on the CPU: a thread takes points, and a tile of distances at a time.
#pragma once
#include "devicelib/cpp/launch.h"
namespace fusewright {

//@ run_distances: needs threads, solo, box, load
constexpr long DISTANCES_TOGETHER = 128;
FN float distance(const float* a, const float* b, long depth) {
  float sum = 0;
  for (long k = 0; k < depth; ++k) sum += (a[k] - b[k]) * (a[k] - b[k]);
  return __builtin_sqrtf(sum);
}
template <bool FOLDS, class Body>
__attribute__((noinline, flatten)) void solo_distances(const Body& body, const float* left,
                                                       const float* right, long columns, long depth,
                                                       long begin, long end) {
  float tile[DISTANCES_TOGETHER];
  for (long row = begin; row < end; ++row)
    for (long first = 0; first < columns; first += DISTANCES_TOGETHER) {
      const long stop = first + DISTANCES_TOGETHER, last = stop < columns ? stop : columns;
      for (long j = first; j < last; ++j)
        tile[j - first] = distance(left + row * depth, right + j * depth, depth);
      const auto found = load(static_cast<const float*>(tile), -first);
      if constexpr (FOLDS)
        body(row, solo(), found);
      else
        body(row, box{0, 1, first, last, columns}, solo(), found);
    }
}
template <bool FOLDS, class Body>
void run_distances(const Body& body, const float* left, const float* right, long rows, long columns,
                   long depth, long threads) {
  const long n = team_size(threads, rows);
  if (n <= 1) return solo_distances<FOLDS>(body, left, right, columns, depth, 0, rows);
#pragma omp parallel num_threads(n)
  {
    const long k = omp_get_thread_num(), all = omp_get_num_threads();
    solo_distances<FOLDS>(body, left, right, columns, depth, rows * k / all, rows * (k + 1) / all);
  }
}

//@
}  // namespace fusewright
