// Convolutions on Ampere (sm_80), and through its PTX on whatever came later: a product of packed weights and packed pixels,
// both of 16 bits, as on Hopper. Their sums stay in the tensor cores' float32 from the first k to the last, as eager's do.
//
// The product of image n and group g has the group's channels as rows and the result's pixels as columns, and k runs
// through taps, then channels. A block of eight warps makes one tile, 128 rows of one operand times WIDTH of the other, 64 k
// at a time; a warp has 64 x 64 of the widest, since what shared memory delivers is the limit.
//
// The surprising fact: nothing but cp.async gathers patches. Where each pixel's patch begins is worked out once for a tile,
// into shared memory. For 64 k, a thread copies eight channels of one tap for each of its pixels: three comparisons say
// whether the tap is inside of the image, and cp.async writes zeros where it is not.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/conv/cuda/conv.cuh"
#include "kernels/tensor_core/cuda/tile_sm80.cuh"
namespace fusewright {

//@ launch_early
#ifndef __CUDACC_RTC__
// A launch like any other: here, no kernel starts before the one before it has ended.
template <class... Wanted, class... Given>
int launch_early(void (*kernel)(Wanted...), dim3 grid, int threads, int shared_bytes, int, cudaStream_t on,
                 const Given&... given) {
  kernel<<<grid, threads, shared_bytes, on>>>(given...);
  return cudaGetLastError();
}
#endif

//@ conv_tile: needs k_blocks, tile_order
// BLOCKS blocks share a processor: one multiplies while the other hands a tile to its body. Behind the stages stands where
// each pixel's patch begins.
constexpr int HALF_DEPTH = 64, COPY_SLICES = 4;  // k of 16 bits in K_BLOCK_BYTES
struct patch_corner {
  int x, y, z, pixel;  // pixel: which one of the image that would be
};
template <int WIDTH, int BLOCKS> struct conv_tile {
  static_assert(BLOCKS == 1 || WIDTH == 64, "there are registers for no more");
  static constexpr int width = WIDTH, split_rows = 128, warps_across = WIDTH > 64 ? 4 : 2;
  static constexpr int warp_rows = split_rows * warps_across / GEMM_WARPS, warp_columns = WIDTH / warps_across;
  static constexpr int split_bytes = split_rows * K_BLOCK_BYTES, stage_bytes = split_bytes + WIDTH * K_BLOCK_BYTES;
  static constexpr int corner_bytes = (WIDTH > split_rows ? WIDTH : split_rows) * int(sizeof(patch_corner));
  static constexpr int fitting = ((BLOCKS == 1 ? 163 : 81) * 1024 - corner_bytes) / stage_bytes;
  static constexpr int stages = fitting < 4 ? fitting : 4;
  static constexpr int corners = stages * stage_bytes, shared_bytes = corners + corner_bytes;
};

//@ conv_copier: needs conv_tile, packed_image, tap_walk, copies, anew
// What one thread copies of each 64 k: chunk threadIdx.x % 8 of rows threadIdx.x / 8, + 32, ... of both operands.
template <class Tile, bool SWAPPED, int CHANNEL_TILE, class Shape> struct conv_copier {
  static constexpr int PIXELS = SWAPPED ? Tile::split_rows : Tile::width, PIXELS_AT = SWAPPED ? 0 : Tile::split_bytes;
  static constexpr int CHANNELS = SWAPPED ? Tile::width : Tile::split_rows, WEIGHTS_AT = SWAPPED ? Tile::split_bytes : 0;
  const Shape& shape;
  const packed_image& packed;
  const patch_corner* const corners;
  tap_walk<typename Shape::spans> at;
  const unsigned short *image, *weights;
  int line, depth, rows_left;  // channels of a pixel; elements of a row of weights; rows from this thread's first one on
  FN conv_copier(const Shape& shape, const packed_image& packed, tiles::place place, patch_corner* corners)
      : shape(shape), packed(packed), corners(corners), at(shape.spans_of(int(place.batch % shape.gemms()))),
        line(shape.walk().groups * packed.channels) {
    const int gemm = int(place.batch % shape.gemms()), thread = threadIdx.x, k = thread % 8 * 8;
    find_corners((SWAPPED ? place.row : place.column) * PIXELS, corners);
    image = packed.pixels + place.batch / shape.gemms() * shape.walk().in_pixels() * line +
            shape.group_of(gemm) * packed.channels;
    const int row = (SWAPPED ? place.column : place.row) * CHANNELS + thread / 8;
    depth = shape.most_taps() * packed.channels, rows_left = shape.rows() - row;
    weights = packed.weights + (long(gemm) * shape.rows() + row) * depth + k;
    for (int before = CHANNEL_TILE; before <= k; before += CHANNEL_TILE) at.next(CHANNEL_TILE, packed.channels);
    at.channel += k % CHANNEL_TILE;
  }
  FN void find_corners(int first, patch_corner* to) const {
    constexpr int OUTSIDE = -(1 << 30);  // of every image, whatever the tap
    const conv_shape& s = shape.walk();
    for (int i = threadIdx.x; i < PIXELS; i += GEMM_THREADS) {
      const int pixel = first + i, across = pixel / s.out_size[2];
      const int x = pixel % s.out_size[2] * s.stride[2] - s.pad[2], y = across % s.out_size[1] * s.stride[1] - s.pad[1];
      const int z = across / s.out_size[1] * s.stride[0] - s.pad[0];
      to[i] = {pixel < s.out_pixels() ? x : OUTSIDE, y, z, (z * s.in_size[1] + y) * s.in_size[2] + x};
    }
    __syncthreads();
  }
  // One of COPY_SLICES slices of 64 k, which are copied one after the other; what lies behind the last k is zero.
  FN void copy(int slice, unsigned stage) const {
    const int thread = thread_anew(), row = thread / 8, chunk = thread % 8;
    const unsigned to = stage + row * K_BLOCK_BYTES + ((chunk ^ (row & 7)) << 4);
    const bool more = !at.ended();
#pragma unroll
    for (int i = 0; i < CHANNELS; i += 32)
      if (i * COPY_SLICES / CHANNELS == slice)
        copy_later(to + WEIGHTS_AT + i * K_BLOCK_BYTES, weights + long(i) * depth, packed.weights, more && i < rows_left);
    const int(&size)[3] = shape.walk().in_size;
    const int further = (at.tap[2] * size[1] + at.tap[1]) * size[2] + at.tap[0];
    const unsigned short* const here = image + at.channel;
#pragma unroll
    for (int i = 0; i < PIXELS; i += 32) {
      if (i * COPY_SLICES / PIXELS != slice) continue;
      const patch_corner from = corners[row + i];
      const bool inside = more & unsigned(from.x + at.tap[0]) < unsigned(size[2]) &  // without branches
                          unsigned(from.y + at.tap[1]) < unsigned(size[1]) & unsigned(from.z + at.tap[2]) < unsigned(size[0]);
      copy_later(to + PIXELS_AT + i * K_BLOCK_BYTES, here + long(from.pixel + further) * line, packed.pixels, inside);
    }
  }
  FN void next() {
    close_copies();
    weights += HALF_DEPTH;
#pragma unroll
    for (int i = 0; i < HALF_DEPTH; i += CHANNEL_TILE) at.next(CHANNEL_TILE, packed.channels);
  }
};

//@ multiply_conv: needs conv_tile, part_of_tile, matrix_places, mma_of, copies
// 64 k of a warp's part, 16 at a time. The next 16 come while these are multiplied, and a slice of another 64 is copied: a
// tensor core leaves seven of eight instructions to others.
template <int COUNT> FN void load_rows(unsigned (&to)[COUNT][4], unsigned address) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) load_matrices(to[i], address + i * 16 * K_BLOCK_BYTES);
}
template <class Tile, class T, class Copy>
FN void multiply_conv(part_of<Tile>& sums, unsigned split, unsigned wide, const Copy& copy) {
  constexpr int SLABS = Tile::warp_rows / 16, PAIRS = Tile::warp_columns / 16;
  static_assert(COPY_SLICES == HALF_DEPTH / 16, "a part of a copy for each 16 k");
  unsigned rows[2][SLABS][4], columns[2][PAIRS][4];
  load_rows(rows[0], split);
  load_rows(columns[0], wide);
#pragma unroll
  for (int j = 0; j < HALF_DEPTH / 16; ++j) {
    if (j + 1 < HALF_DEPTH / 16) {
      load_rows(rows[(j + 1) % 2], split ^ (j + 1) * 32);
      load_rows(columns[(j + 1) % 2], wide ^ (j + 1) * 32);
    }
    copy(j);
    __syncwarp();  // nobody waits here; it keeps the compiler from copying all slices at once, with registers it lacks
#pragma unroll
    for (int i = 0; i < PAIRS * SLABS * 2; ++i) {
      const int pair = i / 2 / SLABS, slab = i / 2 % SLABS;
      const unsigned(&other)[4] = columns[j % 2][pair];
      multiply_as(T(), sums[pair][slab][i % 2], rows[j % 2][slab], other[i % 2 * 2], other[i % 2 * 2 + 1]);
    }
  }
}

// All k of a tile. Behind the last ones zeros are copied: nobody reads them, and there is nothing to ask.
template <class Tile, class T, class Copier>
FN void stream_conv(part_of<Tile>& sums, Copier& copies, int k_blocks, unsigned stages) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned split = warp / Tile::warps_across * Tile::warp_rows * K_BLOCK_BYTES + split_halves(lane);
  const unsigned wide = Tile::split_bytes + warp % Tile::warps_across * Tile::warp_columns * K_BLOCK_BYTES + wide_halves(lane);
#pragma unroll 1
  for (int k_block = 0; k_block < Tile::stages - 1; ++k_block) {
#pragma unroll
    for (int slice = 0; slice < COPY_SLICES; ++slice) copies.copy(slice, stages + k_block * Tile::stage_bytes);
    copies.next();
  }
  const unsigned last = stages + (Tile::stages - 1) * Tile::stage_bytes;
  unsigned stage = stages, free = last;
#pragma unroll 1
  for (int k_block = 0; k_block < k_blocks; ++k_block) {
    wait_copies<Tile::stages - 2>();
    __syncthreads();  // everybody's copies are there, and nobody still reads the stage before this one
    multiply_conv<Tile, T>(sums, stage + split, stage + wide, [&](int slice) { copies.copy(slice, free); });
    copies.next();
    free = stage;
    stage = stage == last ? stages : stage + Tile::stage_bytes;
  }
  wait_copies<0>();
  __syncthreads();  // the stages are no longer read, nor written
}

//@ undo_scales: needs conv_undo, part_of_tile, here
// Sums times the powers of two that packing took out; true if one of this lane's channels, or the image, is in need of a fixup.
// `channel`: the tile's first.
template <class Tile, bool SWAPPED> FN bool undo_scales(part_of<Tile>& sums, const packed_image& packed, int image, int channel) {
  constexpr int SLABS = Tile::warp_rows / 16, PAIRS = Tile::warp_columns / 16, EACH = SWAPPED ? SLABS * 2 : PAIRS * 4;
  const int lane = lane_here(), warp = thread_here() / 32;
  const int row = warp / Tile::warps_across * Tile::warp_rows + lane / 4;
  const int column = warp % Tile::warps_across * Tile::warp_columns + lane % 4 * 2;
  const int* const exponents = packed.weight_exponents + channel + (SWAPPED ? column : row);
  const int of_image = packed.image_exponents[image];
  bool needs_fixup = false;
#pragma unroll
  for (int k = 0; k < (SWAPPED ? PAIRS * 4 : SLABS * 2); ++k) {
    const int both = of_image + exponents[SWAPPED ? k / 2 * 8 + k % 2 : k * 8];
    const float2 by = undo_of(both);
    needs_fixup |= both >= NEEDS_FIXUP / 2;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const int eight = SWAPPED ? k / 2 : i / 2, half = SWAPPED ? i : k;  // which 8 columns, which 8 rows
      float& sum = sums[eight / 2][half / 2][eight % 2][half % 2 * 2 + (SWAPPED ? k : i) % 2];
      sum = sum * by.x * by.y;
    }
  }
  return needs_fixup;
}

//@ conv_kernel: needs pack_conv, conv_copier, multiply_conv, undo_scales, conv_fixup, tile_out, grid, device_scope, allow_shared
// What smem tiles are handed to.
template <int BLOCKS, int SEGMENT, class Body> FN const Body& epilogue_of(const Body& body, const conv_shape&) { return body; }
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, int CHANNEL_TILE, int BLOCKS, class Shape, class Body, class T>
__global__ void __launch_bounds__(GEMM_THREADS, BLOCKS)
    conv_kernel(const __grid_constant__ Body body, const __grid_constant__ Shape shape, const T* image,
                       const T* weight, const __grid_constant__ packed_image packed,
                       const __grid_constant__ gemm_shape gemm, const tiles all) {
  using tile = conv_tile<WIDTH, BLOCKS>;
  using source = conv_source<Shape, T, 1>;
  extern __shared__ __align__(128) unsigned char shared[];
  if (block_index() >= all.count) return;
  part_of<tile> sums;
  clear_part(sums);
  {
    const tiles::place at = all.at(block_index());
    auto* const corners = reinterpret_cast<patch_corner*>(shared + tile::corners);
    conv_copier<tile, SWAPPED, CHANNEL_TILE, Shape> copies(shape, packed, at, corners);
    const int depth = shape.taps_of(int(at.batch % shape.gemms())) * packed.channels;
    const int k_blocks = (depth + HALF_DEPTH - 1) / HALF_DEPTH;
    stream_conv<tile, typename source::packed>(sums, copies, k_blocks, shared_address(shared));
  }
  const tiles::place at = all.at(block_anew());
  const int image_number = int(at.batch / shape.gemms()), number = int(at.batch % shape.gemms());
  const int channel = number * gemm.rows + (SWAPPED ? at.column * WIDTH : at.row * tile::split_rows);
  bool needs_fixup = false;
  if constexpr (source::scaled)
    needs_fixup = undo_scales<tile, SWAPPED>(sums, packed, image_number, channel);
  else if constexpr (source::marked)
    needs_fixup = packed.image_exponents[image_number] != 0;
  const source from{image, weight, shape};
  const auto& epilogue = epilogue_of<BLOCKS, SEGMENT>(body, shape);
  const auto unscaled = [](int) { return make_float2(1, 1); };
  tile_out<tile, SWAPPED, SEGMENT, VECTOR>(epilogue, sums, unscaled, WIDTH, at, from, from, gemm, shared, needs_fixup);
}
#ifdef __CUDACC_RTC__
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, int CHANNEL_TILE, int BLOCKS, int TERMS, class T, class Shape,
          class Body>
FN int launch_conv(const Body&, const T*, const T*, const Shape&, void*, int, void*) {
  using walked = typename Shape::walked;
  return &conv_kernel<WIDTH, SWAPPED, SEGMENT, VECTOR, CHANNEL_TILE, BLOCKS, Shape, Body, T> == nullptr ||
         &pack_weights<TERMS, T, Shape> == nullptr || image_packer<CHANNEL_TILE, TERMS, Shape, T>(true) == nullptr ||
         &check_images<true, CHANNEL_TILE, TERMS, walked> == nullptr || &check_images<false, CHANNEL_TILE, TERMS,
             walked> == nullptr;
}
#else
// How large `workspace` is, packed_image_in says.
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, int CHANNEL_TILE, int BLOCKS, int TERMS, class T, class Shape,
          class Body>
int launch_conv(const Body& body, const T* image, const T* weight, const Shape& given, void* workspace, int device,
                       void* stream) {
  static_assert(SEGMENT == 0 && TERMS == 1, "tails are maps, and full float32 is PyTorch's");
  const long batches = given.walk().images * given.gemms(), rows = given.rows(), columns = given.walk().out_pixels();
  if (batches <= 0 || rows <= 0 || columns <= 0) return 0;
  const device_scope scope(device);
  constexpr auto kernel = &conv_kernel<WIDTH, SWAPPED, SEGMENT, VECTOR, CHANNEL_TILE, BLOCKS, Shape, Body, T>;
  using tile = conv_tile<WIDTH, BLOCKS>;
  if (int error = allow_shared<kernel>(tile::shared_bytes, device)) return error;
  packed_image packed;
  packed_image_in<CHANNEL_TILE, TERMS>(workspace, given, packed);
  const auto on = static_cast<cudaStream_t>(stream);
  if (int error = pack_conv<CHANNEL_TILE, TERMS>(image, weight, given, packed, on)) return error;
  const int down = int(((SWAPPED ? columns : rows) + tile::split_rows - 1) / tile::split_rows);
  const int across = int(((SWAPPED ? rows : columns) + WIDTH - 1) / WIDTH);
  const tiles all{down, across, batches * down * across};
  const gemm_shape gemm{batches, int(rows), int(columns), given.most_taps() * packed.channels};
  kernel<<<grid_of(all.count), GEMM_THREADS, tile::shared_bytes, on>>>(body, given, image, weight, packed, gemm, all);
  return cudaGetLastError();
}
#endif

//@ subpixel_out
// Tiles of phases leave through smem tiles: `transposed_epilogue`.

//@ run_conv: needs conv_kernel
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, int CHANNEL_TILE = 64, int BLOCKS = 1, int TERMS = 1, class T,
          class Body>
int run_conv(const Body& body, const T* image, const T* weight, conv_shape shape, void* workspace, int device,
                    void* stream) {
  return launch_conv<WIDTH, SWAPPED, SEGMENT, VECTOR, CHANNEL_TILE, BLOCKS, TERMS>(body, image, weight, shape, workspace,
                                                                                  device, stream);
}

//@
}  // namespace fusewright
