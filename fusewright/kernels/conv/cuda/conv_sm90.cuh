// Convolutions on Hopper (sm_90a): a product of packed weights and packed pixels, both of 16 bits, which are those of
// float16 and bfloat16, or as many of float32 as TF32 keeps. Their sums stay in the tensor cores' float32 from the first k
// to the last, as eager's do. In full float32, both come in two TERMS, as operands of a product do: three products are made,
// and the sum of the large one leaves the tensor cores every 64 k.
//
// The product of image n and group g has the group's channels as rows and the result's pixels as columns, and k runs
// through taps, then channels. A block works as in the product of 16-bit operands; the copy engine gathers the pixels that
// a tap needs. 64 k of them arrive as 64 / CHANNEL_TILE boxes, so that few channels leave no k empty. Two blocks, a cluster, have
// the same channels of two tiles: each fetches one half of the weights for both, since what L2 delivers is the limit.
//
// The surprising fact: results that are not numbers, or that float16 had no room for, cost nothing to find. Finite float16
// never overflows a sum, so packing knows where to look; whatever has no common scale is multiplied by NaN; and what is not
// finite there is computed again as a plain sum.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/conv/cuda/channel_reduction_sm90.cuh"
#include "kernels/tensor_core/cuda/half_operands_sm90.cuh"
namespace fusewright {

//@ conv_scale: needs conv_undo, tile_order, here, with_dropped_bits
// Sums times the powers of two that packing took out. Lane g * 4 + t holds rows g and g + 8 of a warp's 16, columns
// 8 j + 2 t and the next; channels are rows, or, SWAPPED, columns. Two rows are multiplied on their way out, by `by` (but not
// where they leave as columns), and their exponents asked for while the tensor core still works.
template <int WIDTH, bool SWAPPED, class Source, bool SCALED = Source::scaled> struct scale_undo {
  static constexpr int COUNT = SWAPPED ? WIDTH / 4 : 2;
  static constexpr bool AT_ONCE = SWAPPED || Source::channels_last;
  static constexpr int SHARE = SWAPPED ? WIDTH / 32 : 1;
  const int* exponents;  // of this lane's first channel
  int image, share[SHARE];  // share: of columns, every 32nd, asked for while the tensor core still works
  float by[2];
  FN scale_undo(const packed_image& packed, int image_number, int channel, int warp) {
    const int lane = lane_here();
    image = packed.image_exponents[image_number];
    exponents = packed.weight_exponents + channel + (SWAPPED ? lane % 4 * 2 : warp * 16 + lane / 4);
#pragma unroll
    for (int i = 0; i < SHARE; ++i) share[i] = SWAPPED ? packed.weight_exponents[channel + lane + i * 32] : 0;
  }
  FN void further() { exponents += SWAPPED ? 0 : 64; }  // 64 rows of the tile further
  FN int both(int i) const { return image + exponents[SWAPPED ? i / 2 * 8 + i % 2 : i * 8]; }
  FN int shared(int i) const { return SWAPPED ? image + share[i] : both(i); }
  // Whether one power of two is enough for each of the warp's channels, and none is in need of a fixup.
  FN bool plain() const {
    bool all = true;
#pragma unroll
    for (int i = 0; i < (SWAPPED ? SHARE : 2); ++i) all &= unsigned(without_full(shared(i)) + 126) < 254;
    return __all_sync(~0u, all);
  }
  // Where the tensor core has dropped bits of the warp's sums, these get back what they lost on average.
  FN void give_back(float (&sums)[quarters<WIDTH>][32]) const {
    bool full = false;
#pragma unroll
    for (int i = 0; i < (SWAPPED ? SHARE : 2); ++i) full |= both_full(shared(i));
    if (!__any_sync(~0u, full)) return;
#pragma unroll
    for (int i = 0; i < WIDTH / 2; ++i) sums[i / 32][i % 32] = with_dropped_bits(sums[i / 32][i % 32]);
  }
  // Where one power of two is enough for each column: they are in other lanes' shares, two in a word, since a power has no
  // bits in its lower half.
  FN void multiply_columns(float (&sums)[quarters<WIDTH>][32]) const {
    unsigned two[SHARE];
#pragma unroll
    for (int i = 0; i < SHARE; ++i) {
      const unsigned mine = __float_as_uint(power(without_full(image + share[i])));
      two[i] = mine >> 16 | __shfl_sync(~0u, mine, (lane_here() + 1) % 32);
    }
#pragma unroll
    for (int i = 0; i < COUNT; i += 2) {
      const unsigned found = __shfl_sync(~0u, two[i / 8], i / 2 % 4 * 8 + lane_here() % 4 * 2);
      each(sums, i, [&](float& x, int) { x *= __uint_as_float(found << 16); });
      each(sums, i + 1, [&](float& x, int) { x *= __uint_as_float(found & 0xffff0000u); });
    }
  }
  // Sums of the i-th channel of this lane, each with its pixel behind the lane's first one.
  template <class F> FN static void each(float (&sums)[quarters<WIDTH>][32], int i, const F& f) {
    if constexpr (SWAPPED) {
      float* const at = &sums[i / 16][i / 2 % 8 * 4 + i % 2];
      f(at[0], 0), f(at[2], 8);
    } else {
#pragma unroll
      for (int j = 0; j < WIDTH / 4; ++j) f(sums[j / 16][j / 2 % 8 * 4 + i * 2 + j % 2], j / 2 * 8 + j % 2);
    }
  }
  // True if a channel or the image is in need of a fixup.
  FN bool run(float (&sums)[quarters<WIDTH>][32]) {
    bool needs_fixup = false;
    if constexpr (Source::terms == 2) give_back(sums);
    if (plain()) {
      if constexpr (SWAPPED) multiply_columns(sums);
#pragma unroll
      for (int i = 0; i < (SWAPPED ? 0 : COUNT); ++i) {
        by[i] = power(without_full(both(i)));
        if constexpr (AT_ONCE) each(sums, i, [&](float& x, int) { x *= by[i]; });
      }
      return false;
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const float2 two = undo_of(both(i));
      needs_fixup |= both(i) >= NEEDS_FIXUP / 2;
      each(sums, i, [&](float& x, int) { x = AT_ONCE ? x * two.x * two.y : x * two.y; });
      if (!AT_ONCE) by[i] = two.x;
    }
    return __any_sync(~0u, needs_fixup);
  }
};
template <int WIDTH, bool SWAPPED, class Source> struct scale_undo<WIDTH, SWAPPED, Source, false> {
  static constexpr const float* by = nullptr;
  const packed_image& packed;
  int image;
  FN scale_undo(const packed_image& packed, int image_number, int, int) : packed(packed), image(image_number) {}
  FN void further() {}
  FN bool run(float (&)[quarters<WIDTH>][32]) const {
    if constexpr (Source::marked)
      return __any_sync(~0u, packed.image_exponents[image]);
    else
      return false;
  }
};
// Of one tile, whose first channel and pixel are these.
template <int WIDTH, bool SWAPPED, class Source>
FN auto undo_of_tile(const Source& source, const packed_image& packed, tiles::place tile, int channel, int, int warp) {
  return scale_undo<WIDTH, SWAPPED, Source>(packed, tile.batch / source.shape.gemms(), channel, warp);
}

//@ conv_stage: needs half_k_tile, tile_order
// BLOCKS blocks share a processor. With two there are twice as many warps to hide the latencies of a heavy body, and one
// block multiplies while the other hands a tile to it; but tiles are narrow, and read more. Registers are shared out equally
// then, and a single warp, behind the consumers, copies. Two TERMS are two times a tall and a wide one.
// With two and more than 64 columns it is one block, each of whose two groups has tiles of its `pingpong`: all 128 rows of them, or
// 64 of wide ones. Stages come in the order of tiles, and a group reads those of every second tile.
template <int WIDTH, int BLOCKS, int TERMS> struct conv_stage {
  static constexpr bool pingpong = BLOCKS == 2 && WIDTH > 64;
  static constexpr int blocks = pingpong ? 1 : BLOCKS, readers = pingpong ? 4 : 8, tiles = pingpong ? 2 : 1;
  // 64 rows each, of a group
  static constexpr int rows = pingpong && WIDTH > 160 ? 64 : TILE_ROWS, slabs = pingpong ? rows / 64 : 1;
  static_assert(WIDTH * TERMS <= 256 && (BLOCKS == 1 || TERMS == 1), "there are registers for no more");
  static constexpr int tall_bytes = rows * HALF_LINE, term_bytes = tall_bytes + WIDTH * HALF_LINE;
  static constexpr int bytes = TERMS * term_bytes;
  static constexpr int count = (blocks == 1 ? 196608 : 81920) / bytes, smem_tiles = count * bytes;
  static constexpr int barriers = smem_tiles + 8 * SMEM_TILE * 4, shared_bytes = barriers + 16 * count;
  static constexpr int threads = blocks == 1 ? GEMM_THREADS : 288, producer = blocks == 1 ? 0 : 256;
  static constexpr int first_warp = blocks == 1 ? 4 : 0, head_start = BLOCKS == 1 ? HEAD_START / TERMS : 0;
  BOTH static constexpr int pixels(bool swapped) { return swapped ? rows : WIDTH; }
  BOTH static constexpr int channels(bool swapped) { return swapped ? WIDTH : rows; }
};

//@ conv_tiles: needs tile_order, conv_shape, cluster, divider
// What the clusters have to do: pairs of tiles that differ in their pixels only, and may belong to two images. The last one
// may be alone. Where images are `multi_image`, they count as one.
struct tile_pairs {
  int gemms, channel_tiles, pixel_tiles, last, count;  // pixel_tiles: of an image; last: tile of pixels of all images
  divider per_kinds, per_channels, per_image;
  struct place {
    tiles::place tile;
    bool alone;  // the same as the partner's, who finishes it
    int image, gemm;
  };
  template <bool SWAPPED> FN place at(int number, int rank) const {
    const int pair = per_kinds(number), kind = number - pair * gemms * channel_tiles, mine = pair * CLUSTER + rank;
    const int gemm = per_channels(kind), channels = kind - gemm * channel_tiles, pixels = mine < last ? mine : last;
    const int image = per_image(pixels), column = pixels - image * pixel_tiles;
    return {{image * gemms + gemm, SWAPPED ? column : channels, SWAPPED ? channels : column}, mine > last, image, gemm};
  }
};

//@ conv_produce: needs tap_walk, conv_stage, conv_tiles, image_map, packed_image
FN pixel_place place_of(const conv_shape& s, int image, int pixel) {
  const int line = pixel / s.out_size[2];
  return {{pixel % s.out_size[2] * s.stride[2] - s.pad[2], line % s.out_size[1] * s.stride[1] - s.pad[1],
           line / s.out_size[1] * s.stride[0] - s.pad[0]}, image};
}
// How many times 64 k a product has.
template <class Shape> FN int k_tiles_of(const Shape& shape, const packed_image& packed, int gemm) {
  return (shape.taps_of(gemm) * packed.channels + HALF_DEPTH - 1) / HALF_DEPTH;
}
// How many pixels make a window (pool_fusion_sm90.cuh), and how many of a tile the copy engine brings at a time.
template <class Shape> constexpr int pool_pixels = 1;
template <int PIXELS, bool SWAPPED, class Shape>
constexpr int RUN_OF = (SWAPPED && pool_pixels<Shape> > 1 ? 64 : PIXELS) / pool_pixels<Shape>;
template <int PIXELS, int RUN, int CHANNEL_TILE, class Shape> struct tile_patches {
  pixel_place first;
  FN tile_patches(const Shape& shape, int image, int pixel) : first(place_of(shape.walk(), image, pixel)) {}
  FN void load(unsigned to, const tensor_map& map, unsigned ready, int channel, const int (&tap)[3], bool deep) const {
    load_pixels(to, map, ready, channel, first, tap, deep);
  }
};
// One thread: every 64 k of every tile of this block, as soon as its stage is free in both blocks.
template <int WIDTH, bool SWAPPED, int CHANNEL_TILE, int BLOCKS, int TERMS, class Shape>
FN void conv_produce(const tensor_map& weights, const tensor_map& image, const Shape& shape,
                            const packed_image& packed, const tile_pairs& all, unsigned stages, unsigned full,
                            unsigned empty) {
  using stage = conv_stage<WIDTH, BLOCKS, TERMS>;
  constexpr int PIXELS = stage::pixels(SWAPPED), CHANNELS = stage::channels(SWAPPED), HALF = CHANNELS / CLUSTER;
  constexpr int PIXELS_AT = SWAPPED ? 0 : stage::tall_bytes, WEIGHTS_AT = SWAPPED ? stage::tall_bytes : 0;
  const int rank = cluster_rank();
  const bool deep = shape.walk().deep();
  const int groups = shape.walk().groups;
  int slot = 0;
  unsigned phase = 1;
  const auto next = [&] {
    if (++slot == stage::count) slot = 0, phase ^= 1;
  };
  for (int number = blockIdx.x / CLUSTER; number < all.count; number += gridDim.x / CLUSTER) {
    const auto [tile, alone, image_number, number_of_gemm] = all.at<SWAPPED>(number, rank);
    const int group = shape.group_of(number_of_gemm);
    const int row = (SWAPPED ? tile.column : tile.row) * CHANNELS + rank * HALF;
    const int pixel = (SWAPPED ? tile.row : tile.column) * PIXELS;
    const tile_patches<PIXELS, RUN_OF<PIXELS, SWAPPED, Shape>, CHANNEL_TILE, Shape> patches(shape, image_number, pixel);
    const int k_tiles = k_tiles_of(shape, packed, number_of_gemm);
    tap_walk at(shape.spans_of(number_of_gemm));
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile, next()) {
      const unsigned to = stages + slot * stage::bytes, ready = full + 8 * slot;
      barrier_wait(empty + 8 * slot, phase);
      barrier_expect(ready, stage::bytes);
#pragma unroll
      for (int term = 0; term < TERMS; ++term)
        load_box_twice(to + term * stage::term_bytes + WEIGHTS_AT + rank * HALF * HALF_LINE, weights, ready,
                       k_tile * HALF_DEPTH, row, term * shape.gemms() + number_of_gemm);
#pragma unroll
      for (int box = 0; box < HALF_DEPTH / CHANNEL_TILE; ++box) {
        // Behind the last k everything reads as zero.
        const int channel = (at.ended() ? TERMS * groups : group) * packed.channels + at.channel;
#pragma unroll
        for (int term = 0; term < TERMS; ++term)
          patches.load(to + term * stage::term_bytes + PIXELS_AT + box * PIXELS * CHANNEL_TILE * 2, image, ready,
                       channel + term * groups * packed.channels, at.tap, deep);
        at.next(CHANNEL_TILE, packed.channels);
      }
    }
  }
  // This block's barriers have to last until its partner has used them.
  for (int i = 0; i < stage::count; ++i, next()) barrier_wait(empty + 8 * slot, phase);
}

//@ conv_consume: needs tile_out, conv_stage, conv_tiles, conv_scale, conv_fixup, channel_reduction_source
// How the tensor core finds ROWS pixels x 64 k: boxes of CHANNEL_TILE k, in which a pixel takes CHANNEL_TILE * 2 bytes.
template <int CHANNEL_TILE, int ROWS> struct pixel_operand {
  static constexpr unsigned long swizzle = CHANNEL_TILE == 64 ? 1 : CHANNEL_TILE == 32 ? 2 : 3;
  FN static unsigned long at(unsigned address) {
    return swizzle << 62 | (unsigned long)CHANNEL_TILE << 32 | 1ul << 16 | (address & 0x3ffff) >> 4;
  }
  FN static constexpr int step(int j) { return (j * 16 / CHANNEL_TILE * ROWS * CHANNEL_TILE * 2 + j * 16 % CHANNEL_TILE * 2) >> 4; }
};
template <int ROWS, int WIDTH, bool SWAPPED, int CHANNEL_TILE, class T>
FN void conv_k_tile(float (&sums)[quarters<WIDTH>][32], unsigned tall_term, unsigned wide_term, int group, bool accumulate) {
  using pixels = pixel_operand<CHANNEL_TILE, SWAPPED ? ROWS : WIDTH>;
  using weights = half_operand<false>;
  const unsigned tall = tall_term + group * 64 * (SWAPPED ? CHANNEL_TILE * 2 : HALF_LINE);
  const unsigned wide = wide_term + ROWS * HALF_LINE;
  const unsigned long p = pixels::at(SWAPPED ? tall : wide), w = weights::at(SWAPPED ? wide : tall);
  multiply_fence();
#pragma unroll
  for (int j = 0; j < HALF_DEPTH / 16; ++j) {
    const unsigned long pixel = p + pixels::step(j), weight = w + j * weights::step;
    half_multiply<T, WIDTH>::template run<false, false>(sums, SWAPPED ? pixel : weight, SWAPPED ? weight : pixel,
                                                        accumulate || j > 0);
  }
  multiply_commit();
}
// The sums of a tile as they grow: 64 rows of it, or, where a group owns it, both times 64. LATER: what is begun after the last
// multiplication that reads the stage before.
template <int WIDTH, bool SWAPPED, int CHANNEL_TILE, class T, int TERMS, int ROWS, int SLABS> struct growing_sums {
  static constexpr int LATER = SLABS;
  float sums[quarters<WIDTH>][32], more[quarters<WIDTH>][32];
  FN growing_sums() { end(); }
  FN void multiply(unsigned here, int group, bool first) {
    conv_k_tile<ROWS, WIDTH, SWAPPED, CHANNEL_TILE, T>(sums, here, here, group, !first);
    if constexpr (SLABS > 1) conv_k_tile<ROWS, WIDTH, SWAPPED, CHANNEL_TILE, T>(more, here, here, 1, !first);
  }
  FN void grow() {}
  FN void end() {
    pin_all<WIDTH>(sums);
    if constexpr (SLABS > 1) pin_all<WIDTH>(more);
  }
  // The last rows take the place of the first.
  FN void further() {
#pragma unroll
    for (int i = 0; i < WIDTH / 2; ++i) sums[i / 32][i % 32] = more[i / 32][i % 32];
  }
};
// Both small products stay where they are, since what the tensor core drops of them is too small to matter; the large one
// comes first, and is added up while they are at work.
template <int WIDTH, bool SWAPPED, int CHANNEL_TILE, class T>
struct growing_sums<WIDTH, SWAPPED, CHANNEL_TILE, T, 2, TILE_ROWS, 1> {
  static constexpr int LATER = 2, TO_LOST = conv_stage<WIDTH, 1, 2>::term_bytes;
  float sums[quarters<WIDTH>][32], large[quarters<WIDTH>][32], small[quarters<WIDTH>][32];
  FN growing_sums() : sums{} { pin_all<WIDTH>(large), pin_all<WIDTH>(small); }
  FN void multiply(unsigned here, int group, bool first) {
    conv_k_tile<TILE_ROWS, WIDTH, SWAPPED, CHANNEL_TILE, T>(large, here, here, group, false);
    conv_k_tile<TILE_ROWS, WIDTH, SWAPPED, CHANNEL_TILE, T>(small, here + TO_LOST, here, group, !first);
    conv_k_tile<TILE_ROWS, WIDTH, SWAPPED, CHANNEL_TILE, T>(small, here, here + TO_LOST, group, true);
  }
  FN void grow() {
    pin_all<WIDTH>(large);
#pragma unroll
    for (int i = 0; i < WIDTH / 2; ++i) sums[i / 32][i % 32] += large[i / 32][i % 32];
  }
  FN void end() {
    pin_all<WIDTH>(small);
#pragma unroll
    for (int i = 0; i < WIDTH / 2; ++i)
      sums[i / 32][i % 32] = fmaf(small[i / 32][i % 32], 1.f / LOST_LIFT, sums[i / 32][i % 32]);
  }
};
// Whether a tile whose windows are in a lane has gone to the body; if not, smem tiles of 64 columns have their own windows now.
template <int WIDTH, int VECTOR, class Sums, class Consumer>
FN bool pooled_out(const Consumer&, Sums&, tiles::place, const float*) {
  return false;
}
// The same of a tile whose columns are phases (subpixel_store_sm90.cuh).
template <int WIDTH, int VECTOR, class Sums, class Consumer> FN bool subpixel_out(const Consumer&, const Sums&, tiles::place) {
  return false;
}
// What the consumers share.
template <class Body, class Source, int FIRST_WARP> struct conv_work {
  using from = Source;
  const Body& body;
  const Source& source;
  const packed_image& packed;
  const gemm_shape& gemm;
  float* smem_tiles;
  template <bool REDUCES_CHANNELS> FN auto of_tile(bool needs_fixup, int slab) const {
    if constexpr (REDUCES_CHANNELS)
      return consumer<Body, channel_reduction_operands<FIRST_WARP, Source>>{body, {{source}, {source}, needs_fixup}, gemm,
          smem_tiles, slab};
    else
      return consumer<Body, conv_operands<FIRST_WARP, Source>>{body, {source, source, needs_fixup}, gemm, smem_tiles, slab};
  }
};
template <int FIRST_WARP, class Body, class Source>
FN conv_work<Body, Source, FIRST_WARP> work_of(const Body& body, const Source& source, const packed_image& packed,
                                                      const gemm_shape& gemm, float* smem_tiles) {
  return {body, source, packed, gemm, smem_tiles};
}
// 64 rows of a finished tile, of each warp 16, go to the body.
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, class Work, class Undo>
FN void run_epilogue(const Work& work, float (&sums)[quarters<WIDTH>][32], tiles::place tile, Undo& undo, int slab) {
  const auto me = work.template of_tile<(SEGMENT > 0)>(undo.run(sums), slab);
  if constexpr (SEGMENT > 0)
    me.template rows_out<WIDTH, SEGMENT, VECTOR>(sums, tile, nullptr);
  else if constexpr (SWAPPED != Work::from::channels_last) {
    if (!subpixel_out<WIDTH, VECTOR>(me, sums, tile)) me.template columns_out<WIDTH, SEGMENT, VECTOR>(sums, tile, nullptr);
  } else if (!pooled_out<WIDTH, VECTOR>(me, sums, tile, undo.by))
    me.template rows_out<WIDTH, SEGMENT, VECTOR>(sums, tile, undo.by);
}
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, int CHANNEL_TILE, int BLOCKS, int TERMS, class Work>
FN void conv_consume(const Work& work, const tile_pairs& all, unsigned stages, unsigned full, unsigned empty) {
  using stage = conv_stage<WIDTH, BLOCKS, TERMS>;
  using packed_type = typename Work::from::packed;
  const int warp = warp_here() - stage::first_warp, group = warp / 4, rank = cluster_rank(), lane = threadIdx.x % 32;
  constexpr bool ACROSS = SWAPPED != Work::from::channels_last;  // what the tensor core has as rows are the result's columns
  int number = blockIdx.x / CLUSTER;
  unsigned next = 0;  // which of all 64 k comes next
  const auto k_tiles_at = [&](int number) {
    return k_tiles_of(work.source.shape, work.packed, all.at<SWAPPED>(number, rank).gemm);
  };
  // How many stages are the other group's.
  const auto passed = [&](int number) { return stage::pingpong && number < all.count ? k_tiles_at(number) : 0; };
  // Of a tile of 64 rows, what half it is of one with 128, which it becomes.
  const auto first_slab = [&](tiles::place& tile) {
    const int half = stage::rows < TILE_ROWS ? tile.row % 2 : 0;
    if (stage::rows < TILE_ROWS) tile.row /= 2;
    return stage::pingpong ? warp % 4 + half * 4 : warp;
  };
  // the first turn is group 0's
  if (stage::pingpong && group == 1) next = passed(number), number += gridDim.x / CLUSTER, group_arrive(4, 256);
  if (stage::head_start > 0 && group == 1 && k_tiles_at(number) > stage::head_start)
    barrier_wait(full + 8 * stage::head_start, 0);
  for (; number < all.count; number += gridDim.x / CLUSTER * stage::tiles) {
    growing_sums<WIDTH, SWAPPED, CHANNEL_TILE, packed_type, TERMS, stage::rows, stage::slabs> grown;
    unsigned before = 0;  // the barrier of the stage that the tensor core may still read
    auto [tile, alone, image, gemm] = all.at<SWAPPED>(number, rank);
    const int pixel = SWAPPED ? tile.row * stage::rows : tile.column * WIDTH;
    const int first = first_slab(tile);
    const int channel = gemm * work.gemm.rows + (SWAPPED ? tile.column * WIDTH : tile.row * TILE_ROWS);
    // Asked for, and divided, while a group waits for its turn.
    auto undo = undo_of_tile<WIDTH, SWAPPED>(work.source, work.packed, tile, channel, pixel, SWAPPED &&
        stage::pingpong ? warp % 4 : first);
    const unsigned between = passed(number + gridDim.x / CLUSTER);
    const int k_tiles = k_tiles_of(work.source.shape, work.packed, gemm);
    // Until all stages before have come: a barrier that is two phases behind looks as if it was done.
    if (stage::pingpong) group_sync(4 + group, 256);
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile, ++next) {
      const int slot = next % stage::count;
      barrier_wait(full + 8 * slot, next / stage::count & 1);
      grown.multiply(stages + slot * stage::bytes, stage::pingpong ? 0 : group, k_tile == 0);
      if (SEGMENT == 0 && k_tile < quarters<WIDTH> * stage::slabs) {
        const int later = k_tile >= quarters<WIDTH>, slab = first + later * 4;
        work.template of_tile<false>(false, slab).template prefetch_quarter<WIDTH, ACROSS, SEGMENT>(
            tile, (k_tile - later * quarters<WIDTH>) * 64);
      }
      multiply_wait<grown.LATER>();
      if (lane < CLUSTER && k_tile > 0) cluster_arrive(before, lane);
      before = empty + 8 * slot;
      grown.grow();
    }
    if (stage::pingpong) group_arrive(5 - group, 256);
    multiply_wait<0>();
    if (lane < CLUSTER) cluster_arrive(before, lane);
    grown.end();
    next += between;
    if (alone) continue;
    if constexpr (stage::slabs > 1) {
#pragma unroll 1
      for (int slab = first; slab < 8; slab += 4) {
        if (slab > 3) undo.further(), grown.further();
        run_epilogue<WIDTH, SWAPPED, SEGMENT, VECTOR>(work, grown.sums, tile, undo, slab);
      }
    } else
      run_epilogue<WIDTH, SWAPPED, SEGMENT, VECTOR>(work, grown.sums, tile, undo, first);
  }
}

//@
}  // namespace fusewright
