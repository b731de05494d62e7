// Tiles of a product of which a mask leaves nothing: they are not multiplied.
//
// Where a body stores nothing of the product but what lies near the diagonal, as of triu and tril, it says so: `least` and
// `most` of column - row. All other tiles go to it as zeros. It makes of them what the mask leaves, a 0 or a fill.
//
// The surprising fact: nothing has to be known of the mask here. A choice takes one of two values, so the other one may be
// any number, even where the product itself would be NaN.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/tensor_core/cuda/epilogue.cuh"
namespace fusewright {

//@ diagonal_band
// Which tiles of high x wide hold elements with least <= place in the row - row <= most.
#define BOTH __host__ __device__
struct diagonal_band {
  int high, wide, least, most;
  BOTH static int clipped(int tile, int end) { return tile < 0 ? 0 : tile < end ? tile : end; }
  // The wanted tiles of a row of `across` tiles: those from `first` on, as far as `end`. Neither ever falls from row to row.
  BOTH int first(int row, int across) const {
    const int place = least + row * high;
    return place < 0 ? 0 : clipped(place / wide, across);
  }
  BOTH int end(int row, int across) const {
    const int place = most + row * high + high - 1, begin = first(row, across);
    const int found = place < 0 ? 0 : clipped(place / wide + 1, across);
    return found < begin ? begin : found;
  }
  // The same of a column of tiles, as far as these lie in rows begin .. stop - 1.
  BOTH int first_row(int column, int begin, int stop) const {
    const int place = column * wide - most, row = place < 0 ? 0 : place / high;
    return row < begin ? begin : clipped(row, stop);
  }
  BOTH int end_row(int column, int begin, int stop) const {
    const int place = (column + 1) * wide - least - 1, row = place < 0 ? 0 : place / high + 1;
    return row < begin ? begin : clipped(row, stop);
  }
};
template <class Body> BOTH diagonal_band diagonal_band_of(int high, int wide, bool swapped) {
  return {high, wide, swapped ? -Body::most : Body::least, swapped ? -Body::least : Body::most};
}

//@ blank_out: needs columns_lane, everywhere, gemm_operand, here
// Rows and columns of the result that nobody multiplies go to the body, a row by each of `warps` warps.
struct blank {
  long batch;
  int row, end_row, column, end_column;
};
template <int VECTOR, class Body>
FN void blank_out(const Body& body, const gemm_shape& shape, blank at, int warp, int warps) {
  const int end_row = at.end_row < shape.rows ? at.end_row : shape.rows;
  const int end = at.end_column < shape.columns ? at.end_column : shape.columns;
#pragma unroll 1
  for (int row = at.row + warp; row < end_row; row += warps)
#pragma unroll 1
    for (int column = at.column; column < end; column += 128)
      body(at.batch * shape.rows + row, columns_range<false>{column + lane_here() * VECTOR, 32 * VECTOR, end},
           columns_lane<VECTOR, 4 / VECTOR>(), everywhere<float>(0.f));
}
// The tile of the split and the packed operand's rows as one of the result.
template <bool SWAPPED, class Place> FN blank blank_at(const Place& at, int high, int wide) {
  const int down = at.row * high, across = at.column * wide;
  if (SWAPPED) return {at.batch, across, across + wide, down, down + high};
  return {at.batch, down, down + high, across, across + wide};
}

//@
}  // namespace fusewright
