// How the image and the weights of a convolution are brought to 16 bits for the tensor cores, at every call.
//
// Those of float32 are scaled by powers of two and rounded to nearest even: float16 then holds the 11 bits that TF32 has.
// In two TERMS, they keep 22 bits and more: behind the rounded ones stands what rounding lost, as more groups of channels,
// and of weights as more products. Those of float16 and bfloat16 stay as they are, and are only moved. An image
// [C][D][H][W] becomes [D][H][W][channels], through shared memory; a group's channels are filled up by zeros to a multiple
// of CHANNEL_TILE, the channels that one copy of the main kernel takes. Each row of weights becomes [kD][kH][kW][channels].
//
// The surprising fact: an image's scale has to be known before its first element is written, but a look at all of it
// would cost as much as the whole pass. So each block looks at the same few elements, which leave room for larger ones,
// and a kernel behind packs an image again if they did not tell the truth.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/tensor_core/cuda/split_float32.cuh"
namespace fusewright {

//@ image_kind: needs half_t, bfloat_t, values, halves
// What tensor cores take of an image or a weight of T; whether it is scaled for that; the bits of infinity where it is not.
template <class T> struct image_kind;
template <> struct image_kind<float> {
  using packed = half_t;
  static constexpr bool scaled = true;
};
template <> struct image_kind<half_t> {
  using packed = half_t;
  static constexpr bool scaled = false;
  static constexpr unsigned infinity = 0x7c00;
};
template <> struct image_kind<bfloat_t> {
  using packed = bfloat_t;
  static constexpr bool scaled = false;
  static constexpr unsigned infinity = 0x7f80;
};
FN unsigned two_packed(float x, float y, float scale) { return two_halves(x * scale, y * scale); }
template <class T> FN unsigned two_packed(T x, T y, float) { return x.bits | unsigned(y.bits) << 16; }
// What rounding has lost, lifted: so both terms together end 2^51 below the largest element.
constexpr int LOST_LIFT = 2048;
FN unsigned two_lost(float x, float y, float scale) {
  unsigned hi, lo;
  split_in_two<LOST_LIFT>(x * scale, y * scale, hi, lo);
  return lo;
}
template <int TERM, class T> FN unsigned term_of_two(T x, T y, float scale) {
  if constexpr (TERM == 0)
    return two_packed(x, y, scale);
  else
    return two_lost(x, y, scale);
}

//@ conv_shape
// A convolution of images [C][D][H][W] with up to three dimensions; those that are missing have size 1. Sizes are in this
// order, channels are those of all groups, and `pad` stands before the first pixel.
#define BOTH __host__ __device__
struct tap_span {
  int first, end, step;
};
struct conv_shape {
  long images;
  int groups, in_channels, out_channels;
  int in_size[3], out_size[3], kernel[3], stride[3], pad[3], dilation[3];
  BOTH long in_pixels() const { return long(in_size[0]) * in_size[1] * in_size[2]; }
  BOTH long out_pixels() const { return long(out_size[0]) * out_size[1] * out_size[2]; }
  BOTH int taps() const { return kernel[0] * kernel[1] * kernel[2]; }
  BOTH bool deep() const { return in_size[0] > 1 || out_size[0] > 1 || kernel[0] > 1 || pad[0] != 0; }
  // What another kind of convolution answers in its own way: how its pixels are walked; how many products an image is, and
  // each one's group, rows and taps; and the taps along W, H and D, as offsets in pixels from a pixel's own place.
  using walked = conv_shape;
  BOTH const walked& walk() const { return *this; }
  BOTH int gemms() const { return groups; }
  BOTH int rows() const { return out_channels / groups; }
  BOTH int most_taps() const { return taps(); }
  FN int group_of(int gemm) const { return gemm; }
  FN int taps_of(int) const { return taps(); }
  // Whether some rows of a product have taps that others have not; whether channels lie innermost, and those of weights, too;
  // whether a walk through pixels goes on from image to image; elements of an image side by side; what is packed.
  static constexpr bool holes = false, channels_last = false, weights_channels_last = false, multi_image = false;
  BOTH long side_by_side() const { return in_pixels(); }
  BOTH bool packs_image() const { return true; }
  BOTH bool packs_weights() const { return true; }
  struct spans {
    const conv_shape& shape;
    FN tap_span operator[](int i) const { return {0, shape.kernel[2 - i] * shape.dilation[2 - i], shape.dilation[2 - i]}; }
  };
  FN spans spans_of(int) const { return {*this}; }
};

//@ packed_image: needs conv_shape, full_rows
// What is found of an image while it is packed: its largest size and its smallest block's largest size that is not zero,
// both finite and as bits, whether something is not finite, and the exponent of the scale that it got.
struct image_sizes {
  unsigned most, least, strange;
  int guess;
};
// Where everything lies. Exponents are those of what a result has to be multiplied by. NEEDS_FIXUP is added where something is
// not finite. UNEVEN stands for one where elements are so different in size that float16 has no room for all at one scale,
// and results have to be computed in another way. FULL is added where a row or an image is full.
constexpr int FULL = 1 << 12, NEEDS_FIXUP = 1 << 20, UNEVEN_SCALE = 1 << 21;
// Of a sum of two such exponents: what it is without FULL, and whether both were.
FN int without_full(int exponents) { return ((exponents + FULL / 2) & ~(3 * FULL)) - FULL / 2; }
FN bool both_full(int exponents) { return (exponents + FULL / 2) & 2 * FULL; }
struct packed_image {
  unsigned short *pixels, *weights;
  int *image_exponents, *weight_exponents;
  image_sizes* sizes;
  int channels;  // of one group, filled up
};
// The exponent of the power of two that brings a maximum, given as bits, into [2^TARGET, 2^(TARGET + 1)), if there is such
// a power; and that power.
template <int TARGET> FN int scale_exponent(unsigned most) {
  const int wanted = TARGET + 127 - int(most >> 23);
  return most == 0 ? 0 : wanted < 127 ? wanted : 127;
}
FN float power(int exponent) { return __uint_as_float(unsigned(exponent + 127) << 23); }
// float16 has all 11 bits down to 2^-14. Where the largest of a part is 2^-8 or more, what the others lose is below 2^-17
// of it, and nothing of those down to 1/64 of it. Two of them end at 2^-36: where the largest of a part is 2^-11 or more,
// what the others lose is below 2^-25 of it, and nothing of those down to 1/8 of it.
template <int TERMS> constexpr float EVEN_SIZE = TERMS == 1 ? 1.f / 256 : 1.f / 2048;
template <int TERMS> FN bool is_uneven(unsigned least, int exponent) {
  return __uint_as_float(least) * power(exponent) < EVEN_SIZE<TERMS>;
}
template <int TERMS> FN int mark_of_full(unsigned most) { return TERMS == 2 && is_full(most) ? FULL : 0; }
constexpr unsigned INFINITY_BITS = 0x7f800000, LARGEST_BITS = 0x7f7fffff;
FN unsigned finite_size(float x) {
  const unsigned bits = __float_as_uint(x) & 0x7fffffffu;
  return bits < INFINITY_BITS ? bits : 0;
}
template <int TERMS> FN int marked_exponent(unsigned least, int exponent, bool strange) {
  return is_uneven<TERMS>(least, exponent) ? UNEVEN_SCALE : strange ? NEEDS_FIXUP - exponent : -exponent;
}
// The largest of a block's numbers, two at a time, for all of its threads.
constexpr int IMAGE_THREADS = 256;
FN uint2 largest_of_block(unsigned first, unsigned second, uint2 (&parts)[IMAGE_THREADS / 32]) {
  uint2 most{__reduce_max_sync(~0u, first), __reduce_max_sync(~0u, second)};
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = most;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < IMAGE_THREADS / 32; ++i) most = {max(parts[i].x, most.x), max(parts[i].y, most.y)};
  return most;
}
#ifndef __CUDACC_RTC__
// Everything in `workspace`, each part at a multiple of 256 bytes, with `channels` = in_channels / groups filled up to a
// multiple of CHANNEL_TILE: images * in_pixels * groups * channels * 2 bytes of pixels, if they are packed, and of weights
// rows * most_taps * channels * 2, where rows are those of all products, (rows + 256) * 4 and images * 4 of exponents,
// images * 16 of sizes. Pixels and weights take that TERMS times.
template <int CHANNEL_TILE, int TERMS = 1, class Shape> long packed_image_in(void* workspace, const Shape& given,
    packed_image& to) {
  const conv_shape& shape = given.walk();
  const long rows = long(given.gemms()) * given.rows();
  to.channels = (shape.in_channels / shape.groups + CHANNEL_TILE - 1) / CHANNEL_TILE * CHANNEL_TILE;
  long end = 0;
  const auto take = [&](auto*& place, long bytes) {
    place = reinterpret_cast<std::decay_t<decltype(place)>>(static_cast<char*>(workspace) + end);
    end += (bytes + 255) / 256 * 256;
  };
  take(to.pixels, given.packs_image() * shape.images * shape.in_pixels() * shape.groups * to.channels * 2 * TERMS);
  take(to.weights, rows * given.most_taps() * to.channels * 2 * TERMS);
  take(to.weight_exponents, (rows + 256) * 4);
  take(to.image_exponents, shape.images * 4);
  take(to.sizes, shape.images * 16);
  return end;
}
#endif

//@ pack_weights: needs packed_image, image_kind, next_kernel, grid, with_dropped_bits
// One row of weights: by tap and channel, and by number, in the order that is read fastest.
template <class T, bool CHANNELS_LAST> struct weight_row {
  const T* from;
  int channels, taps;
  FN weight_row(const T* weight, const conv_shape& shape, long row)
      : channels(shape.in_channels / shape.groups), taps(shape.taps()) {
    from = weight + row * channels * taps;
  }
  FN T at(int tap, int channel) const { return from[CHANNELS_LAST ? tap * channels + channel : channel * taps + tap]; }
  FN T operator[](int k) const { return from[k]; }
};
template <class T, class Shape>
FN weight_row<T, Shape::weights_channels_last> row_of_weights(const T* weight, const Shape& shape, long row) {
  return {weight, shape, row};
}
// What a block multiplies its row by.
template <int TERMS, class Row> FN float scale_of_row(const Row& from, long row, const packed_image& to) {
  __shared__ uint2 parts[IMAGE_THREADS / 32];
  const int depth = from.channels * from.taps;
  // The largest of 32 neighbours stands for a part of the row.
  unsigned most = 0, least = LARGEST_BITS;
  bool strange = false;
#pragma unroll 8
  for (int first = 0; first < depth; first += IMAGE_THREADS) {
    const int k = first + threadIdx.x;
    const float x = k < depth ? from[k] : 0.f;
    const unsigned size = __reduce_max_sync(~0u, finite_size(x));
    most = max(size, most);
    least = size > 0 ? min(size, least) : least;
    strange |= finite_size(x) != (__float_as_uint(x) & 0x7fffffffu);
  }
  const uint2 sizes = largest_of_block(most, LARGEST_BITS - least, parts);
  strange = __syncthreads_or(strange);
  const int exponent = scale_exponent<14>(sizes.x);
  if (threadIdx.x == 0)
    to.weight_exponents[row] = marked_exponent<TERMS>(LARGEST_BITS - sizes.y, exponent, strange) +
                               (depth > SHORT_DEPTH ? mark_of_full<TERMS>(sizes.x) : 0);
  return power(exponent);
}
template <int TERM, class T> FN void pack_eight(const T (&x)[8], float scale, unsigned short* to) {
  *reinterpret_cast<uint4*>(to) =
      uint4{term_of_two<TERM>(x[0], x[1], scale), term_of_two<TERM>(x[2], x[3], scale),
            term_of_two<TERM>(x[4], x[5], scale), term_of_two<TERM>(x[6], x[7], scale)};
}
// One block per row. It also sets up what the next kernel counts in.
template <int TERMS, class T, class Shape>
__global__ void __launch_bounds__(IMAGE_THREADS)
    pack_weights(const T* weight, const __grid_constant__ Shape shape, const packed_image to) {
  let_next_kernel_start();
  constexpr bool SCALED = image_kind<T>::scaled;
  const long row = block_index(), rows = long(shape.gemms()) * shape.rows();
  for (long n = row * IMAGE_THREADS + threadIdx.x; n < shape.walk().images; n += rows * IMAGE_THREADS)
    if constexpr (SCALED)
      to.sizes[n] = {0, LARGEST_BITS, 0, 0};
    else
      to.image_exponents[n] = 0;
  if (SCALED && row == 0) to.weight_exponents[rows + threadIdx.x] = 0;
  if (row >= rows) return;
  const auto from = row_of_weights(weight, shape, row);
  float scale = 1;
  if constexpr (SCALED) scale = scale_of_row<TERMS>(from, row, to);
  const int pieces = to.channels / 8, taps = shape.most_taps();
  for (int item = threadIdx.x; item < taps * pieces; item += IMAGE_THREADS) {
    const int tap = item / pieces, first = item % pieces * 8;
    T x[8];
#pragma unroll
    for (int j = 0; j < 8; ++j)
      x[j] = tap < from.taps && first + j < from.channels ? from.at(tap, first + j) : T();
    unsigned short* const place = to.weights + (row * taps + tap) * to.channels + first;
    pack_eight<0>(x, scale, place);
    if constexpr (TERMS == 2) pack_eight<1>(x, scale, place + rows * taps * to.channels);
  }
}

//@ image_tile: needs packed_image, image_kind, vectors
// What a block packs at a time: `pixels` neighbouring pixels x CHANNEL_TILE channels. A thread reads four pixels of two channels,
// four times over; the eight lanes beside it read the next pixels, so that neither the words that are written nor the 16
// bytes that are read meet in a bank.
template <int CHANNEL_TILE> struct image_tile {
  static constexpr int pixels = 8192 / CHANNEL_TILE, pieces = CHANNEL_TILE / 8;
  long image, first_pixel;
  int group, first_channel;  // within the group
  FN image_tile(const conv_shape& shape, const packed_image& to, long image, long number) : image(image) {
    const int across = to.channels / CHANNEL_TILE, all = across * shape.groups, chunk = int(number % all);
    first_pixel = number / all * pixels, group = chunk / across, first_channel = chunk % across * CHANNEL_TILE;
  }
  BOTH static long count(const conv_shape& shape, const packed_image& to) {
    return (shape.in_pixels() + pixels - 1) / pixels * (shape.groups * (to.channels / CHANNEL_TILE));
  }
  FN static int pixel_of(int round) { return part(round) % (pixels / 32) * 32 + threadIdx.x % 8 * 4; }
  FN static int piece_of(int round) { return part(round) / (pixels / 32); }
  FN static int part(int round) { return round * 8 + threadIdx.x / 32; }
  FN static int place(int pixel, int piece) { return (pixel * pieces + piece) ^ (pixel >> 2 & 7); }
};
template <class T> using four_rounds = T[4][2][4];
template <bool VECTORS, int CHANNEL_TILE, class T>
FN void read_tile(four_rounds<T>& x, const T* images, const conv_shape& shape, const image_tile<CHANNEL_TILE>& tile) {
  const int channels = shape.in_channels / shape.groups;
  const long in_pixels = shape.in_pixels();
  const T* const from = images + (tile.image * shape.in_channels + tile.group * channels) * in_pixels;
#pragma unroll
  for (int round = 0; round < 4; ++round)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int channel = tile.first_channel + tile.piece_of(round) * 8 + threadIdx.x % 32 / 8 * 2 + c;
      const long pixel = tile.first_pixel + tile.pixel_of(round);
      const T* const here = from + channel * in_pixels + pixel;
      T(&to)[4] = x[round][c];
      if (VECTORS && channel < channels && pixel < in_pixels) {
        fetch_vector<false, 4>(here, to);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) to[j] = !VECTORS && channel < channels && pixel + j < in_pixels ? here[j] : T();
      }
    }
}
template <int TERMS, int TERM = 0, int CHANNEL_TILE, class T>
FN void write_tile(const four_rounds<T>& x, float scale, uint4 (&smem_tile)[1024], const conv_shape& shape,
                   const packed_image& to, const image_tile<CHANNEL_TILE>& tile) {
  unsigned* const words = reinterpret_cast<unsigned*>(smem_tile) + threadIdx.x % 32 / 8;
#pragma unroll
  for (int round = 0; round < 4; ++round)
#pragma unroll
    for (int j = 0; j < 4; ++j)
      words[tile.place(tile.pixel_of(round) + j, tile.piece_of(round)) * 4] =
          term_of_two<TERM>(x[round][0][j], x[round][1][j], scale);
  __syncthreads();
  const long in_pixels = shape.in_pixels(), line = TERMS * long(shape.groups) * to.channels;
  unsigned short* const first = to.pixels + (tile.image * in_pixels + tile.first_pixel) * line +
                                (TERM * shape.groups + tile.group) * to.channels + tile.first_channel;
#pragma unroll
  for (int i = threadIdx.x; i < 1024; i += IMAGE_THREADS) {
    const int pixel = i / tile.pieces, piece = i % tile.pieces;
    if (tile.first_pixel + pixel < in_pixels)
      *reinterpret_cast<uint4*>(first + pixel * line + piece * 8) = smem_tile[tile.place(pixel, piece)];
  }
  if constexpr (TERM + 1 < TERMS) {
    __syncthreads();
    write_tile<TERMS, TERM + 1>(x, scale, smem_tile, shape, to, tile);
  }
}

//@ pack_image: needs image_tile, next_kernel, grid, aligned
// IMAGE_THREADS elements spread over an image stand for all.
FN unsigned sampled_size(const float* images, const conv_shape& shape, long image) {
  const long elements = shape.in_channels * shape.in_pixels();
  return finite_size(images[image * elements + elements * threadIdx.x / IMAGE_THREADS]);
}
// The largest size of what a thread has read, NaN above all.
FN unsigned largest_of_tile(const four_rounds<float>& x) {
  float most = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i)
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(most) : "f"(fabsf(x[i / 8][i / 4 % 2][i % 4])));
  return __float_as_uint(most);
}
FN unsigned largest_finite_of_tile(const four_rounds<float>& x) {
  unsigned most = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i) most = max(finite_size(x[i / 8][i / 4 % 2][i % 4]), most);
  return most;
}
// In two terms, each pixel's largest size counts, and not that of a whole tile: the smallest that is not zero, for all of a
// block's threads. Two of a thread's rounds have the same pixels, or all four.
template <int CHANNEL_TILE> FN unsigned smallest_pixel(const four_rounds<float>& x, const conv_shape&) {
  using tile = image_tile<CHANNEL_TILE>;
  __shared__ unsigned most[tile::pixels];
  __shared__ uint2 parts[IMAGE_THREADS / 32];
  constexpr int APART = CHANNEL_TILE == 16 ? 2 : 1;
  for (int i = threadIdx.x; i < tile::pixels; i += IMAGE_THREADS) most[i] = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < APART * 4; ++i) {
    unsigned size = 0;
#pragma unroll
    for (int round = i / 4; round < 4; round += APART)
      size = max(max(finite_size(x[round][0][i % 4]), finite_size(x[round][1][i % 4])), size);
    size = max(__shfl_xor_sync(~0u, size, 8), size), size = max(__shfl_xor_sync(~0u, size, 16), size);
    if (threadIdx.x % 32 < 8) atomicMax(&most[tile::pixel_of(i / 4) + i % 4], size);
  }
  __syncthreads();
  unsigned least = LARGEST_BITS;
  for (int i = threadIdx.x; i < tile::pixels; i += IMAGE_THREADS) least = most[i] > 0 ? min(most[i], least) : least;
  return LARGEST_BITS - largest_of_block(LARGEST_BITS - least, 0, parts).x;
}
template <bool VECTORS, int CHANNEL_TILE, int TERMS, class Shape = conv_shape>
__global__ void __launch_bounds__(IMAGE_THREADS, 3)
    pack_image(const float* images, const Shape shape, const packed_image to) {
  let_next_kernel_start();
  __shared__ uint4 smem_tile[1024];
  __shared__ uint2 parts[IMAGE_THREADS / 32], finite_parts[IMAGE_THREADS / 32];
  using tile = image_tile<CHANNEL_TILE>;
  const long tiles = tile::count(shape, to), image = block_index() / tiles;
  if (image >= shape.images) return;
  const tile here(shape, to, image, block_index() % tiles);
  four_rounds<float> x;
  read_tile<VECTORS>(x, images, shape, here);
  uint2 found = largest_of_block(sampled_size(images, shape, image), largest_of_tile(x), parts);
  const bool strange = found.y >= INFINITY_BITS;
  if (strange) found.y = largest_of_block(largest_finite_of_tile(x), 0, finite_parts).x;
  unsigned least = found.y;
  if constexpr (TERMS == 2) least = smallest_pixel<CHANNEL_TILE>(x, shape);
  const int guess = scale_exponent<10>(found.x);
  if (threadIdx.x == 0) {
    image_sizes& sizes = to.sizes[image];
    wait_for_previous_kernel();  // it sets the sizes up
    atomicMax(&sizes.most, found.y);
    if (found.y > 0) atomicMin(&sizes.least, least);
    if (strange) sizes.strange = 1;
    sizes.guess = guess;  // all blocks say the same
  }
  write_tile<TERMS>(x, power(guess), smem_tile, shape, to, here);
}
// One block per image: whether its scale was right, or else all of it once more.
template <bool VECTORS, int CHANNEL_TILE, int TERMS, class Shape = conv_shape>
__global__ void __launch_bounds__(IMAGE_THREADS, 2)
    check_images(const float* images, const Shape shape, const packed_image to) {
  let_next_kernel_start();
  __shared__ uint4 smem_tile[1024];
  using tile = image_tile<CHANNEL_TILE>;
  const long tiles = tile::count(shape, to), image = block_index();
  if (image >= shape.images) return;
  wait_for_previous_kernel();
  const image_sizes sizes = to.sizes[image];
  int exponent = sizes.guess;
  if (__uint_as_float(sizes.most) * power(exponent) > 32768.f || is_uneven<TERMS>(sizes.least, exponent))
    exponent = scale_exponent<14>(sizes.most);
  if (threadIdx.x == 0)
    to.image_exponents[image] =
        marked_exponent<TERMS>(sizes.least, exponent, sizes.strange != 0) + mark_of_full<TERMS>(sizes.most);
  for (long number = 0; number < tiles && exponent != sizes.guess; ++number) {
    const tile again(shape, to, image, number);
    four_rounds<float> x;
    read_tile<VECTORS>(x, images, shape, again);
    __syncthreads();  // the tile before may still be read
    write_tile<TERMS>(x, power(exponent), smem_tile, shape, to, again);
  }
}

//@
}  // namespace fusewright
