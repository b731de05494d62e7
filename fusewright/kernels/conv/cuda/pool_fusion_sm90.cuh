// Convolutions on Hopper (sm_90a) of which only windows of pixels are wanted, as pools take them: windows that follow each
// other without gaps, of 2, 4 or 8 pixels. The body gets all of a window at once, and stores one number for it.
//
// Pixels are computed in another order: the first ones of some windows, then their second ones, and so on. To the copy
// engine, that is a convolution which steps from window to window, and each pixel of a window one more tap.
//
// The surprising fact: pixels behind the last whole window cost nothing, since the walk never comes to them.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/conv/cuda/conv_launch_sm90.cuh"
namespace fusewright {

//@ pooled_shape: needs conv_produce, conv_fixup
// Sizes and strides of the windows; `apart`: from pixel to pixel. Windows have DEEP x HIGH x WIDE pixels.
template <int DEEP, int HIGH, int WIDE> struct pooled_shape : conv_shape {
  static constexpr int size[3] = {DEEP, HIGH, WIDE};
  int apart[3];
};
template <int DEEP, int HIGH, int WIDE> constexpr int pool_pixels<pooled_shape<DEEP, HIGH, WIDE>> = DEEP * HIGH * WIDE;
// A tile has RUN windows, or, where its pixels are the tensor core's rows, twice as many as a smem tile of 64 columns.
template <int PIXELS, int RUN, int CHANNEL_TILE, int DEEP, int HIGH, int WIDE>
struct tile_patches<PIXELS, RUN, CHANNEL_TILE, pooled_shape<DEEP, HIGH, WIDE>> {
  static constexpr int ALL = DEEP * HIGH * WIDE, BLOCKS = PIXELS / (RUN * ALL);
  const int (&apart)[3];
  pixel_place first[BLOCKS];
  FN tile_patches(const pooled_shape<DEEP, HIGH, WIDE>& s, int image, int pixel) : apart(s.apart) {
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i) first[i] = place_of(s, image, min(pixel / ALL + i * RUN, int(s.out_pixels()) - 1));
  }
  FN void load(unsigned to, const tensor_map& map, unsigned ready, int channel, const int (&tap)[3], bool deep) const {
#pragma unroll
    for (int i = 0; i < BLOCKS * ALL; ++i) {
      const int k = i % ALL;
      const int there[3] = {tap[0] + k % WIDE * apart[2], tap[1] + k / WIDE % HIGH * apart[1],
          tap[2] + k / WIDE / HIGH * apart[0]};
      load_pixels(to + i * RUN * CHANNEL_TILE * 2, map, ready, channel, first[i / ALL], there, deep);
    }
  }
};
// Column 64 n + k * EACH + j is pixel k of window n * EACH + j.
template <int DEEP, int HIGH, int WIDE, class T, int TERMS>
FN float plain_sum(const conv_source<pooled_shape<DEEP, HIGH, WIDE>, T, TERMS>& from, int batch, int row, int column) {
  constexpr int EACH = 64 / (DEEP * HIGH * WIDE);
  const int (&size)[3] = from.shape.out_size, window = column / 64 * EACH + column % EACH, k = column % 64 / EACH;
  const int line = window / size[2], x = window % size[2] * WIDE + k % WIDE;
  const int y = line % size[1] * HIGH + k / WIDE % HIGH, z = line / size[1] * DEEP + k / WIDE / HIGH;
  conv_shape all = from.shape;
#pragma unroll
  for (int d = 0; d < 3; ++d) all.stride[d] = from.shape.apart[d];
  all.out_size[0] *= DEEP, all.out_size[1] *= HIGH, all.out_size[2] *= WIDE;
  const conv_source<conv_shape, T, TERMS> whole{from.image, from.weight, all};
  return plain_sum(whole, batch, row, (z * all.out_size[1] + y) * all.out_size[2] + x);
}

//@ pooled_epilogue: needs pooled_shape, finish, prefetch, register_epilogue
// The product as an operand: all pixels of a window, which stand so far apart in a row of a smem tile.
template <int PIXELS> struct pool_window {
  float of[PIXELS];
};
template <int PIXELS> struct pool_window_row {
  using value = pool_window<PIXELS>;
  static constexpr int bytes = 0;
  static constexpr bool kept = false;
  accumulator_row row;
  template <int W, int U> struct packet {
    accumulator_row row;
    float held[PIXELS][U][W];
    FN explicit packet(const pool_window_row& o) : row(o.row) {}
    template <class Place> FN void fetch(int u, const Place& at) {
#pragma unroll
      for (int k = 0; k < PIXELS; ++k) {
        accumulator_row::packet<W, 1> found(accumulator_row{row.row, row.shift + k * (64 / PIXELS), row.twist});
        found.fetch(0, at);
#pragma unroll
        for (int j = 0; j < W; ++j) held[k][u][j] = found.held[0][j];
      }
    }
    template <class Place> FN pool_window<PIXELS> element(int u, int j, const Place&) {
      pool_window<PIXELS> all;
#pragma unroll
      for (int k = 0; k < PIXELS; ++k) all.of[k] = held[k][u][j];
      return all;
    }
    template <class Place> FN void flush(int, const Place&) {}
  };
};
// A body whose columns are the windows of an image.
template <int PIXELS, class Body> struct pooled_body {
  const Body& body;
  int windows;
};
template <int BLOCKS, int SEGMENT, int DEEP, int HIGH, int WIDE, class Body>
FN pooled_body<DEEP * HIGH * WIDE, Body> epilogue_of(const Body& body, const pooled_shape<DEEP, HIGH, WIDE>& shape) {
  return {body, int(shape.out_pixels())};
}
template <int PIXELS, class Body> constexpr bool has_register_epilogue<pooled_body<PIXELS, Body>> = false;
template <int SEGMENT, int PIXELS, class Body> FN void prefetch(const pooled_body<PIXELS, Body>&, long, int, int) {}
// The windows of a smem tile of 64 columns, some rows at once. Where a quarter of the warp has two rows, these share no banks.
template <bool ACROSS, int COLUMNS, int SEGMENT, int VECTOR, int PIXELS, class Body>
FN void finish(const pooled_body<PIXELS, Body>& to, const float* smem_tile, int begin, int end, smem_tile_corner at, int) {
  static_assert(COLUMNS == 64 && SEGMENT == 0, "as tiles leave their registers");
  constexpr int EACH = COLUMNS / PIXELS, LANES = EACH / VECTOR, STEP = 32 / LANES;
  const int lane = lane_here(), team = lane / LANES, first = at.column / PIXELS;
  const int permuted = ACROSS ? team / 2 | team % 2 * 4 : team & ~3 | team << 1 & 2 | team >> 1 & 1;
  const columns_range<false> mine{first + lane % LANES * VECTOR, EACH, to.windows};
#pragma unroll 1
  for (int row = begin + (STEP == 8 ? permuted : team); row < end; row += STEP)
    to.body(at.row + row, mine, columns_lane<VECTOR, 1>(),
            pool_window_row<PIXELS>{{smem_tile + row * COLUMNS, -first, twist_of<ACROSS>(row)}});
  __syncwarp();
}

//@ pooled_out: needs pooled_epilogue, conv_consume
// Tiles of windows have all first pixels, then all second ones; smem tiles of 64 columns want those of their own windows. Since
// all places are known, no register moves.
template <int WIDTH, int POOL_PIXELS> FN void line_up(float (&sums)[WIDTH / 64][32]) {
  constexpr int EACH = 8 / POOL_PIXELS, ALL = WIDTH / 8 / POOL_PIXELS;  // fragments of 8 columns
  float old[WIDTH / 8][4];
#pragma unroll
  for (int i = 0; i < WIDTH / 2; ++i) old[i / 4][i % 4] = sums[i / 32][i % 32];
#pragma unroll
  for (int i = 0; i < WIDTH / 2; ++i) {
    const int smem_tile = i / 32, place = i / 4 % 8;
    sums[smem_tile][i % 32] = old[place / EACH * ALL + smem_tile * EACH + place % EACH][i % 4];
  }
}
// The product as an operand: a lane has all pixels of pairs of neighbouring windows, of row `half` of its two.
template <int WIDTH, int PIXELS> struct pool_window_columns {
  using value = pool_window<PIXELS>;
  static constexpr int bytes = 0;
  static constexpr bool kept = true;
  const float (&sums)[WIDTH / 64][32];
  int half;
  float scale;
  template <int W, int U> struct packet {
    static_assert(W == 2 && U == WIDTH / 8 / PIXELS, "fragments of 8 columns");
    const float (&sums)[WIDTH / 64][32];
    int half;
    float scale;
    FN explicit packet(const pool_window_columns& o) : sums(o.sums), half(o.half), scale(__shfl_xor_sync(~0u, o.scale, 0)) {}
    template <class Place> FN void fetch(int, const Place&) {}
    template <class Place> FN pool_window<PIXELS> element(int u, int j, const Place&) {
      pool_window<PIXELS> all;
#pragma unroll
      for (int k = 0; k < PIXELS; ++k) {
        const int i = k * U + u;
        all.of[k] = times_here(sums[i / 8][i % 8 * 4 + half * 2 + j], scale);
      }
      return all;
    }
    template <class Place> FN void flush(int, const Place&) {}
  };
};
template <int WIDTH, int VECTOR, class Sums, int PIXELS, class Body, class Operands>
FN bool pooled_out(const consumer<pooled_body<PIXELS, Body>, Operands>& me, Sums& sums, tiles::place tile, const float* scales) {
  constexpr int EACH = WIDTH / PIXELS;  // windows of a tile
  if constexpr (Operands::scaled && VECTOR % 2 == 0) {
    const int top = tile.row * TILE_ROWS + me.slab * 16, end = (tile.column + 1) * EACH;
    if (__all_sync(~0u, !me.operands.needs_fixup && top + 16 <= me.shape.rows && end <= me.body.windows)) {
      const int lane = lane_here();
      const columns_range<true> mine{end - EACH + lane % 4 * 2, 8, me.body.windows};
#pragma unroll
      for (int half = 0; half < 2; ++half)
        me.body.body(long(tile.batch) * me.shape.rows + top + lane / 4 + half * 8, mine, columns_lane<2, EACH / 8>(),
                     pool_window_columns<WIDTH, PIXELS>{sums, half, scales[half]});
      return true;
    }
  }
  line_up<WIDTH, PIXELS>(sums);
  return false;
}

//@ run_conv_pooled: needs pooled_out, conv_kernel
// `given` is the convolution of all pixels; those behind the last whole window are left out. For limits, `launch_conv`
// has to be asked with the windows' stride, and with a kernel that reaches a window further.
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, int CHANNEL_TILE, int BLOCKS, int DEEP, int HIGH, int WIDE,
          int TERMS = 1, class T, class Body>
int run_conv_pooled(const Body& body, const T* image, const T* weight, conv_shape given, void* workspace,
                            int device, void* stream) {
  pooled_shape<DEEP, HIGH, WIDE> shape{given, {given.stride[0], given.stride[1], given.stride[2]}};
  const int size[3] = {DEEP, HIGH, WIDE};
  for (int d = 0; d < 3; ++d) shape.out_size[d] /= size[d], shape.stride[d] *= size[d];
  return launch_conv<WIDTH, SWAPPED, SEGMENT, VECTOR, CHANNEL_TILE, BLOCKS, TERMS>(body, image, weight, shape, workspace,
                                                                                  device, stream);
}

//@
}  // namespace fusewright
