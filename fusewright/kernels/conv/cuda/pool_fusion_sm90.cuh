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

//@ windowed_shape: needs convolution_produce, convolution_repair
// Sizes and strides of the windows; `apart`: from pixel to pixel. Windows have DEEP x HIGH x WIDE pixels.
template <int DEEP, int HIGH, int WIDE> struct windowed_shape : convolution_shape {
  static constexpr int size[3] = {DEEP, HIGH, WIDE};
  int apart[3];
};
template <int DEEP, int HIGH, int WIDE> constexpr int windows_of<windowed_shape<DEEP, HIGH, WIDE>> = DEEP * HIGH * WIDE;
// A tile has RUN windows, or, where its pixels are the tensor core's rows, twice as many as a box of 64 columns.
template <int PIXELS, int RUN, int CHUNK, int DEEP, int HIGH, int WIDE>
struct tile_patches<PIXELS, RUN, CHUNK, windowed_shape<DEEP, HIGH, WIDE>> {
  static constexpr int ALL = DEEP * HIGH * WIDE, BLOCKS = PIXELS / (RUN * ALL);
  const int (&apart)[3];
  pixel_place first[BLOCKS];
  FN tile_patches(const windowed_shape<DEEP, HIGH, WIDE>& s, int image, int pixel) : apart(s.apart) {
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i) first[i] = place_of(s, image, min(pixel / ALL + i * RUN, int(s.out_pixels()) - 1));
  }
  FN void load(unsigned to, const tensor_map& map, unsigned ready, int channel, const int (&tap)[3], bool deep) const {
#pragma unroll
    for (int i = 0; i < BLOCKS * ALL; ++i) {
      const int k = i % ALL;
      const int there[3] = {tap[0] + k % WIDE * apart[2], tap[1] + k / WIDE % HIGH * apart[1], tap[2] + k / WIDE / HIGH * apart[0]};
      load_pixels(to + i * RUN * CHUNK * 2, map, ready, channel, first[i / ALL], there, deep);
    }
  }
};
// Column 64 n + k * EACH + j is pixel k of window n * EACH + j.
template <int DEEP, int HIGH, int WIDE, class T, int PARTS>
FN float plain_sum(const convolution_source<windowed_shape<DEEP, HIGH, WIDE>, T, PARTS>& from, int batch, int row, int column) {
  constexpr int EACH = 64 / (DEEP * HIGH * WIDE);
  const int (&size)[3] = from.shape.out_size, window = column / 64 * EACH + column % EACH, k = column % 64 / EACH;
  const int line = window / size[2], x = window % size[2] * WIDE + k % WIDE;
  const int y = line % size[1] * HIGH + k / WIDE % HIGH, z = line / size[1] * DEEP + k / WIDE / HIGH;
  convolution_shape all = from.shape;
#pragma unroll
  for (int d = 0; d < 3; ++d) all.stride[d] = from.shape.apart[d];
  all.out_size[0] *= DEEP, all.out_size[1] *= HIGH, all.out_size[2] *= WIDE;
  const convolution_source<convolution_shape, T, PARTS> whole{from.image, from.weight, all};
  return plain_sum(whole, batch, row, (z * all.out_size[1] + y) * all.out_size[2] + x);
}

//@ windowed_tail: needs windowed_shape, finish, ahead, finish_runs
// The product as an operand: all pixels of a window, which stand so far apart in a row of a box.
template <int PIXELS> struct window_of {
  float of[PIXELS];
};
template <int PIXELS> struct window_row {
  using value = window_of<PIXELS>;
  static constexpr int bytes = 0;
  static constexpr bool kept = false;
  product_row row;
  template <int W, int U> struct packet {
    product_row row;
    float held[PIXELS][U][W];
    FN explicit packet(const window_row& o) : row(o.row) {}
    template <class Place> FN void fetch(int u, const Place& at) {
#pragma unroll
      for (int k = 0; k < PIXELS; ++k) {
        product_row::packet<W, 1> found(product_row{row.row, row.shift + k * (64 / PIXELS), row.twist});
        found.fetch(0, at);
#pragma unroll
        for (int j = 0; j < W; ++j) held[k][u][j] = found.held[0][j];
      }
    }
    template <class Place> FN window_of<PIXELS> element(int u, int j, const Place&) {
      window_of<PIXELS> all;
#pragma unroll
      for (int k = 0; k < PIXELS; ++k) all.of[k] = held[k][u][j];
      return all;
    }
    template <class Place> FN void flush(int, const Place&) {}
  };
};
// A body whose columns are the windows of an image.
template <int PIXELS, class Body> struct windowed_body {
  const Body& body;
  int windows;
};
template <int BLOCKS, int SEGMENT, int DEEP, int HIGH, int WIDE, class Body>
FN windowed_body<DEEP * HIGH * WIDE, Body> tail_of(const Body& body, const windowed_shape<DEEP, HIGH, WIDE>& shape) {
  return {body, int(shape.out_pixels())};
}
template <int PIXELS, class Body> constexpr bool takes_runs<windowed_body<PIXELS, Body>> = false;
template <int SEGMENT, int PIXELS, class Body> FN void ahead(const windowed_body<PIXELS, Body>&, long, int, int) {}
// The windows of a box of 64 columns, some rows at once. Where a quarter of the warp has two rows, these share no banks.
template <bool ACROSS, int COLUMNS, int SEGMENT, int VECTOR, int PIXELS, class Body>
FN void finish(const windowed_body<PIXELS, Body>& to, const float* box, int begin, int end, box_corner at, int) {
  static_assert(COLUMNS == 64 && SEGMENT == 0, "as tiles leave their registers");
  constexpr int EACH = COLUMNS / PIXELS, LANES = EACH / VECTOR, STEP = 32 / LANES;
  const int lane = lane_here(), team = lane / LANES, first = at.column / PIXELS;
  const int turned = ACROSS ? team / 2 | team % 2 * 4 : team & ~3 | team << 1 & 2 | team >> 1 & 1;
  const columns_range<false> mine{first + lane % LANES * VECTOR, EACH, to.windows};
#pragma unroll 1
  for (int row = begin + (STEP == 8 ? turned : team); row < end; row += STEP)
    to.body(at.row + row, mine, columns_lane<VECTOR, 1>(),
            window_row<PIXELS>{{box + row * COLUMNS, -first, twist_of<ACROSS>(row)}});
  __syncwarp();
}

//@ windows_out: needs windowed_tail, convolution_consume
// Tiles of windows have all first pixels, then all second ones; boxes of 64 columns want those of their own windows. Since
// all places are known, no register moves.
template <int WIDTH, int WINDOW> FN void line_up(float (&sums)[WIDTH / 64][32]) {
  constexpr int EACH = 8 / WINDOW, ALL = WIDTH / 8 / WINDOW;  // fragments of 8 columns
  float old[WIDTH / 8][4];
#pragma unroll
  for (int i = 0; i < WIDTH / 2; ++i) old[i / 4][i % 4] = sums[i / 32][i % 32];
#pragma unroll
  for (int i = 0; i < WIDTH / 2; ++i) {
    const int box = i / 32, place = i / 4 % 8;
    sums[box][i % 32] = old[place / EACH * ALL + box * EACH + place % EACH][i % 4];
  }
}
// The product as an operand: a lane has all pixels of pairs of neighbouring windows, of row `half` of its two.
template <int WIDTH, int PIXELS> struct window_runs {
  using value = window_of<PIXELS>;
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
    FN explicit packet(const window_runs& o) : sums(o.sums), half(o.half), scale(__shfl_xor_sync(~0u, o.scale, 0)) {}
    template <class Place> FN void fetch(int, const Place&) {}
    template <class Place> FN window_of<PIXELS> element(int u, int j, const Place&) {
      window_of<PIXELS> all;
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
template <int WIDTH, int VECTOR, class Sums, int PIXELS, class Body, class Factors>
FN bool windows_out(const consumer<windowed_body<PIXELS, Body>, Factors>& me, Sums& sums, tiles::place tile, const float* scales) {
  constexpr int EACH = WIDTH / PIXELS;  // windows of a tile
  if constexpr (Factors::scaled && VECTOR % 2 == 0) {
    const int top = tile.row * TILE_ROWS + me.slab * 16, end = (tile.column + 1) * EACH;
    if (__all_sync(~0u, !me.factors.suspect && top + 16 <= me.shape.rows && end <= me.body.windows)) {
      const int lane = lane_here();
      const columns_range<true> mine{end - EACH + lane % 4 * 2, 8, me.body.windows};
#pragma unroll
      for (int half = 0; half < 2; ++half)
        me.body.body(long(tile.batch) * me.shape.rows + top + lane / 4 + half * 8, mine, columns_lane<2, EACH / 8>(),
                     window_runs<WIDTH, PIXELS>{sums, half, scales[half]});
      return true;
    }
  }
  line_up<WIDTH, PIXELS>(sums);
  return false;
}

//@ run_convolution_windows: needs windows_out, convolution_kernel
// `given` is the convolution of all pixels; those behind the last whole window are left out. For limits, `launch_convolution`
// has to be asked with the windows' stride, and with a kernel that reaches a window further.
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, int CHUNK, int BLOCKS, int DEEP, int HIGH, int WIDE, int PARTS = 1,
          class T, class Body>
int run_convolution_windows(const Body& body, const T* image, const T* weight, convolution_shape given, void* workspace,
                            int device, void* stream) {
  windowed_shape<DEEP, HIGH, WIDE> shape{given, {given.stride[0], given.stride[1], given.stride[2]}};
  const int size[3] = {DEEP, HIGH, WIDE};
  for (int d = 0; d < 3; ++d) shape.out_size[d] /= size[d], shape.stride[d] *= size[d];
  return launch_convolution<WIDTH, SWAPPED, SEGMENT, VECTOR, CHUNK, BLOCKS, PARTS>(body, image, weight, shape, workspace,
                                                                                  device, stream);
}

//@
}  // namespace fusewright
