// What convolution kernels of all GPUs share: the packing passes, the walk through taps, powers of two that are undone, and
// sums that are computed again.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/conv/cuda/pack_half_image.cuh"
#include "kernels/tensor_core/cuda/epilogue.cuh"
namespace fusewright {

//@ pack_conv: needs pack_weights, pack_image, pack_half_image, launch_early
// What packs images of T, and looks at them again if they are scaled.
template <int CHANNEL_TILE, int TERMS, class Shape, class T> auto image_packer(bool vectors) {
  using walked = typename Shape::walked;
  if constexpr (image_kind<T>::scaled)
    return vectors ? &pack_image<true, CHANNEL_TILE, TERMS, walked> : &pack_image<false, CHANNEL_TILE, TERMS, walked>;
  else
    return vectors ? &pack_half_image<Shape::holes, true, CHANNEL_TILE, T, walked>
                   : &pack_half_image<Shape::holes, false, CHANNEL_TILE, T, walked>;
}
#ifndef __CUDACC_RTC__
template <int CHANNEL_TILE, int TERMS, class T, class Shape>
int pack_conv(const T* image, const T* weight, const Shape& given, const packed_image& to, cudaStream_t on) {
  if (!given.packs_weights()) return 0;  // nor an image
  pack_weights<TERMS><<<grid_of(long(given.gemms()) * given.rows()), IMAGE_THREADS, 0, on>>>(weight, given, to);
  const int error = cudaGetLastError();
  if (error || !given.packs_image()) return error;
  const auto& shape = given.walk();
  const dim3 grid = grid_of(image_tile<CHANNEL_TILE>::count(shape, to) * shape.images);
  const bool vectors = shape.side_by_side() % 4 == 0 && aligned<4>(image);
  const auto pack = image_packer<CHANNEL_TILE, TERMS, Shape, T>(vectors);
  const int late = launch_early(pack, grid, IMAGE_THREADS, 0, 1, on, image, shape, to);
  if constexpr (image_kind<T>::scaled) {
    using walked = typename Shape::walked;
    const auto check = vectors ? &check_images<true, CHANNEL_TILE, TERMS, walked> : &check_images<false, CHANNEL_TILE, TERMS,
        walked>;
    return late ? late : launch_early(check, grid_of(shape.images), IMAGE_THREADS, 0, 1, on, image, shape, to);
  } else {
    return late;
  }
}
#endif

//@ divider
// Division by a number that is known before the launch, of numbers below 2^31.
struct divider {
  unsigned multiply;
  int shift;
  FN int operator()(int n) const { return int((unsigned long)(unsigned(n)) * multiply >> shift); }
};
#ifndef __CUDACC_RTC__
inline divider divider_by(int number) {
  int bits = 0;
  while (1l << bits < number) ++bits;
  return {unsigned(((1ul << (31 + bits)) + number - 1) / number), 31 + bits};
}
#endif

//@ plain_total: needs image_kind, finish
// A plain sum, with fused steps. In full float32, float64 knows better, but where an overflow decides between an infinity and
// NaN.
template <int TERMS> struct plain_total {
  float sum = 0;
  double exact = 0;
  template <class T> FN void add(T x, T y) {
    sum = fmaf(widen(x), widen(y), sum);
    if constexpr (TERMS == 2) exact = fma(double(x), double(y), exact);
  }
  FN float result() const { return TERMS == 2 && is_finite(sum) ? float(exact) : sum; }
};

//@ conv_fixup: needs packed_image, image_kind, plain_total
// What a result that is not finite is computed from: taps and channels in order, with fused steps. Of 16 bits, it may be
// wrong where a row has not all taps: it multiplied those by zero.
template <class Shape, class T, int TERMS> struct conv_source {
  static constexpr bool scaled = image_kind<T>::scaled, marked = scaled || Shape::holes, channels_last = Shape::channels_last;
  static constexpr int terms = TERMS;
  using packed = typename image_kind<T>::packed;
  const T *image, *weight;
  const Shape& shape;
};
template <class Shape, class T, int TERMS>
FN float plain_sum(const conv_source<Shape, T, TERMS>& from, int batch, int row, int column) {
  const Shape& s = from.shape;
  const int channel = Shape::channels_last ? column : row, pixel = Shape::channels_last ? row : column;
  const int channels = s.in_channels / s.groups, taps = s.taps(), group = batch % s.groups;
  const int x = pixel % s.out_size[2] * s.stride[2] - s.pad[2], line = pixel / s.out_size[2];
  const int y = line % s.out_size[1] * s.stride[1] - s.pad[1], z = line / s.out_size[1] * s.stride[0] - s.pad[0];
  const long in_pixels = s.in_pixels(), step = Shape::channels_last ? 1 : in_pixels, apart =
      Shape::channels_last ? s.in_channels : 1;
  const T* const image = from.image + batch / s.groups * long(s.in_channels) * in_pixels + group * channels * step;
  const T* const weight = from.weight + (long(group) * (s.out_channels / s.groups) + channel) * channels * taps;
  plain_total<TERMS> total;
  for (int tap = 0; tap < taps; ++tap) {
    const int across = tap / s.kernel[2];
    const int u = x + tap % s.kernel[2] * s.dilation[2], v = y + across % s.kernel[1] * s.dilation[1];
    const int w = z + across / s.kernel[1] * s.dilation[0];
    const bool inside = u >= 0 && u < s.in_size[2] && v >= 0 && v < s.in_size[1] && w >= 0 && w < s.in_size[0];
    if (!inside) continue;
    const T* const here = image + ((long(w) * s.in_size[1] + v) * s.in_size[2] + u) * apart;
#pragma unroll 4
    for (int c = 0; c < channels; ++c)
      total.add(here[c * step], weight[Shape::weights_channels_last ? tap * channels + c : c * taps + tap]);
  }
  return total.result();
}
// The operands as `consumer` wants them, for one tile.
template <int FIRST_WARP, class Source> struct conv_operands {
  static constexpr bool split = false, packed = false, marked = Source::marked, scaled = Source::scaled && !Source::channels_last;
  static constexpr int first_warp = FIRST_WARP, each = 2;
  const Source &left, &right;
  bool needs_fixup;
};
template <bool ACROSS, int COLUMNS, class Source>
FN void fixup(float* smem_tile, int begin, int end, smem_tile_corner at, const Source& from, const Source&, gemm_shape shape) {
  const int lane = lane_here();
#pragma unroll 1
  for (int item = begin * (COLUMNS / 32); item < end * (COLUMNS / 32); ++item) {
    const int row = item / (COLUMNS / 32), column = item % (COLUMNS / 32) * 32 + lane;
    float& result = smem_tile[smem_tile_place<ACROSS, COLUMNS>(row, column)];
    if (unsigned(at.column + column) >= unsigned(shape.columns) || is_finite(result)) continue;
    result = plain_sum(from, int(at.batch), at.batch_row + row, at.column + column);
  }
  __syncwarp();
}

//@ conv_undo: needs packed_image
// What to multiply by, from the sum of two marked exponents, in two steps where the power alone is beyond float32.
FN float2 undo_of(int marked) {
  const int both = without_full(marked);
  const int exponent = both >= NEEDS_FIXUP / 2 ? both - NEEDS_FIXUP : both;
  const int first = exponent < -126 || exponent > 127 ? exponent / 2 : exponent;
  const float2 by = make_float2(power(max(first, -126)), power(max(exponent - first, -126)));
  return both >= NEEDS_FIXUP + NEEDS_FIXUP / 2 ? make_float2(__uint_as_float(0x7fffffffu), 1.f) : by;
}

//@ tap_walk: needs conv_shape
// The order of k in pieces of CHANNEL_TILE: channels first, then taps along W, H and D.
template <class Spans> struct tap_walk {
  const Spans spans;
  int channel = 0, tap[3];  // tap: offset in pixels, from W to D
  FN tap_walk(const Spans& spans) : spans(spans), tap{spans[0].first, spans[1].first, spans[2].first} {}
  FN bool ended() const { return tap[2] >= spans[2].end; }
  FN void next(int channel_tile, int channels) {
    channel += channel_tile;
    if (channel < channels) return;
    channel -= channels;
    bool carry = true;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const tap_span along = spans[i];
      if (carry) tap[i] += along.step;
      carry = carry && i < 2 && tap[i] >= along.end;
      if (carry) tap[i] = along.first;
    }
  }
};

//@
}  // namespace fusewright
