// The tiles of a product that a mask leaves something of (sm_80).
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/gemm/cuda/triangular_tiles.cuh"
#include "kernels/tensor_core/cuda/tile_order_sm80.cuh"
namespace fusewright {

//@ triangular_tiles: needs tiles_of, diagonal_band, blank_out, anew
template <class Body> struct tiles_of<Body, decltype(void(Body::least))> : tiles {
  diagonal_band band;
  // True for a block whose tile is thrown away; it has been stored then.
  template <bool SWAPPED, int VECTOR> FN bool blanks(const Body& body, const gemm_shape& shape) const {
    const place at = this->at(block_anew());
    if (at.column >= band.first(at.row, across) && at.column < band.end(at.row, across)) return false;
    blank_out<VECTOR>(body, shape, blank_at<SWAPPED>(at, band.high, band.wide), threadIdx.x / 32, GEMM_WARPS);
    return true;
  }
#ifndef __CUDACC_RTC__
  static tiles_of of(tiles whole, int high, int wide, bool swapped) { return {whole, diagonal_band_of<Body>(high, wide,
      swapped)}; }
#endif
};

//@
}  // namespace fusewright
