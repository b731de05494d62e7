// How an image of 16 bits is brought into the order that convolutions read, at every call: it is only moved.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/conv/cuda/pack_image.cuh"
namespace fusewright {

//@ pack_half_image: needs image_tile, next_kernel, grid
// Of 16 bits; MARKS: says which images are not finite everywhere.
template <bool MARKS, bool VECTORS, int CHANNEL_TILE, class T, class Shape>
__global__ void __launch_bounds__(IMAGE_THREADS)
    pack_half_image(const T* images, const Shape shape, const packed_image to) {
  let_next_kernel_start();
  __shared__ uint4 smem_tile[1024];
  using tile = image_tile<CHANNEL_TILE>;
  const long tiles = tile::count(shape, to), image = block_index() / tiles;
  if (image >= shape.images) return;
  const tile here(shape, to, image, block_index() % tiles);
  four_rounds<T> x;
  read_tile<VECTORS>(x, images, shape, here);
  write_tile<1>(x, 1.f, smem_tile, shape, to, here);
  wait_for_previous_kernel();  // the kernel behind this one needs both
  constexpr unsigned infinity = image_kind<T>::infinity;
  bool strange = false;
#pragma unroll
  for (int i = 0; MARKS && i < 32; ++i) strange |= (x[i / 8][i / 4 % 2][i % 4].bits & infinity) == infinity;
  if (MARKS && strange) to.image_exponents[image] = NEEDS_FIXUP;
}

//@
}  // namespace fusewright
