// Transposed convolutions: convolutions of stride 1, one for each phase of the result.
//
// Along a dimension, the result's pixels are  stride * q + phase - shift  for all places q. Those of one phase see the same
// taps, and each tap another pixel of the image, q + an offset: an ordinary convolution, for which nothing is filled up with
// zeros. Phases that see the same offsets are `stacked`: they are rows of one product, channel by channel, so that an image
// is read once for all of them and neighbours along W leave together. Each other phase has products of its own.
//
// The surprising fact: the smem tiles of such a product hold one phase to a row, and still whole vectors of the result leave it,
// since the operand that reads a smem tile for the body puts the phases between each other.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/conv/cuda/conv_launch_sm90.cuh"
namespace fusewright {

//@ transposed_shape: needs packed_image, divider
// A phase that sees no tap keeps one of weight zero. Arrays run from D to W.
constexpr int MOST_PHASES = 8, MOST_STACKED = 16;
// Of one phase, or of all that are stacked: the offsets that it sees, and how many.
struct phase_taps {
  tap_span span;
  int count;
};
// What a product is: its group, and its phases, 0 where they are stacked.
struct subpixel_phases {
  int group, phase[3];
};
// TOGETHER: how many phases along W are stacked.
template <int TOGETHER> struct transposed_shape {
  conv_shape given, places;  // what is wanted; and how the image is walked: out_size counts places
  int shift[3], separate[3];           // loose: phases with products of their own
  int line_bits, height_bits;       // lines: the phases along D and H that are stacked
  int all_gemms, all_rows, pitch_taps;
  divider per_image, per_line, per_sheet, per_phase[3];  // products; places; products
  int apart[3], lead[3][MOST_PHASES];      // the tap that a phase's first offset meets; from one to the next
  phase_taps taps[3][MOST_PHASES];
  using walked = conv_shape;
  BOTH const walked& walk() const { return places; }
  BOTH int gemms() const { return all_gemms; }
  BOTH int rows() const { return all_rows; }
  BOTH int most_taps() const { return pitch_taps; }
  FN subpixel_phases phases_of(int gemm) const {
    subpixel_phases found;
#pragma unroll
    for (int d = 2; d >= 0; --d) {
      const int rest = per_phase[d](gemm);
      found.phase[d] = gemm - rest * separate[d], gemm = rest;
    }
    found.group = gemm;
    return found;
  }
  FN int group_of(int gemm) const { return phases_of(gemm).group; }
  static constexpr bool holes = true, channels_last = false, weights_channels_last = false, multi_image = false;
  BOTH bool packs_image() const { return true; }
  BOTH bool packs_weights() const { return true; }
  FN int taps_of(int gemm) const {
    const subpixel_phases p = phases_of(gemm);
    return taps[0][p.phase[0]].count * taps[1][p.phase[1]].count * taps[2][p.phase[2]].count;
  }
  // One thread asks for them again and again, and would be slower than all others if it worked them out each time.
  struct spans {
    tap_span w, h, d;
    FN const tap_span& operator[](int i) const { return i == 0 ? w : i == 1 ? h : d; }
  };
  FN spans spans_of(int gemm) const {
    const subpixel_phases p = phases_of(gemm);
    return {taps[2][p.phase[2]].span, taps[1][p.phase[1]].span, taps[0][p.phase[0]].span};
  }
  // Whether vectors of four neighbours along W start at multiples of four everywhere.
  FN bool even() const { return separate[2] == 1 && shift[2] == 0 && given.out_size[2] % 4 == 0; }
};
// Of stride 1: the only phase's places are the result's pixels, so it leaves as any convolution does.
template <> struct transposed_shape<0> : transposed_shape<1> {
  static constexpr bool holes = false;
};

//@ transposed_weights: needs transposed_shape, pack_weights
// One row: a channel of the result in one phase. CHANNELS_LAST: weights lie as [in][D][H][W][out].
template <int TOGETHER, class T = float, bool CHANNELS_LAST = false> struct phase_row_of_weights {
  const transposed_shape<TOGETHER>& shape;
  const T* from;
  int channels, taps, high, wide, lead[3], beside;  // high, wide: taps along H and W; beside: to the next one
  long step;                                        // from one channel to the next
  FN phase_row_of_weights(const T* weight, const transposed_shape<TOGETHER>& s, long row) : shape(s) {
    const int gemm = int(row / s.rows()), mine = int(row % s.rows()), each = s.given.out_channels / s.given.groups;
    const int line = mine / TOGETHER, across = line & (1 << s.line_bits) - 1, height = (1 << s.height_bits) - 1;
    const subpixel_phases p = s.phases_of(gemm);
    channels = s.given.in_channels / s.given.groups, taps = s.taps_of(gemm), step = long(each) * s.given.taps();
    high = s.taps[1][p.phase[1]].count, wide = s.taps[2][p.phase[2]].count;
    lead[0] = s.lead[0][p.phase[0] + (across >> s.height_bits)];
    lead[1] = s.lead[1][p.phase[1] + (across & height)];
    lead[2] = s.lead[2][p.phase[2] + mine % TOGETHER], beside = CHANNELS_LAST ? each : 1;
    from = weight + p.group * channels * step + (line >> s.line_bits) * (CHANNELS_LAST ? 1 : s.given.taps());
  }
  FN T at(int tap, int channel) const {
    const int line = tap / wide, along[3] = {line / high, line % high, tap - line * wide};
    int place = 0;
    bool there = true;
#pragma unroll
    for (int d = 0; d < 3; ++d) {
      const int t = lead[d] - along[d] * shape.apart[d];
      there = there && t >= 0 && t < shape.given.kernel[d], place = place * shape.given.kernel[d] + t;
    }
    return there ? from[channel * step + place * beside] : T();
  }
  FN T operator[](int k) const { return at(k % taps, k / taps); }
};
template <int TOGETHER, class T>
FN phase_row_of_weights<TOGETHER, T> row_of_weights(const T* weight, const transposed_shape<TOGETHER>& shape, long row) {
  return {weight, shape, row};
}
template <class T> FN phase_row_of_weights<1, T> row_of_weights(const T* weight, const transposed_shape<0>& shape, long row) {
  return {weight, shape, row};
}

//@ transposed_places: needs transposed_shape, conv_fixup
// Where a place of a product lies in the result, in its first line.
struct phase_place {
  int z, y, x;
};
template <int TOGETHER>
FN phase_place place_of_phase(const transposed_shape<TOGETHER>& s, const subpixel_phases& p, int place, int phase) {
  const int line = s.per_line(place), z = s.per_sheet(line);
  const int x = place - line * s.places.out_size[2], y = line - z * s.places.out_size[1];
  const int (&stride)[3] = s.given.stride;
  return {z * stride[0] + p.phase[0] - s.shift[0], y * stride[1] + p.phase[1] - s.shift[1],
          x * stride[2] + p.phase[2] - s.shift[2] + phase};
}
// Taps and channels in order, with fused steps.
template <class Shape, class T, int TERMS, int TOGETHER>
FN float sum_of_phase(const conv_source<Shape, T, TERMS>& from, const transposed_shape<TOGETHER>& shape, int batch,
                      int row, int pixel) {
  const conv_shape& s = shape.given;
  const subpixel_phases phases = shape.phases_of(batch % shape.gemms());
  const int group = phases.group, line = row / TOGETHER;
  const int channels = s.in_channels / s.groups, each = s.out_channels / s.groups, taps = s.taps();
  const phase_place p = place_of_phase(shape, phases, pixel, row % TOGETHER);
  const int across = line & (1 << shape.line_bits) - 1, height = (1 << shape.height_bits) - 1;
  const int far[3] = {p.z + (across >> shape.height_bits) + s.pad[0], p.y + (across & height) + s.pad[1], p.x + s.pad[2]};
  const long in_pixels = s.in_pixels(), step = Shape::channels_last ? 1 : in_pixels, apart =
      Shape::channels_last ? s.in_channels : 1;
  const T* const image = from.image + batch / shape.gemms() * long(s.in_channels) * in_pixels + group * channels * step;
  const int beside = Shape::weights_channels_last ? each : 1, channel =
      (line >> shape.line_bits) * (Shape::weights_channels_last ? 1 : taps);
  const T* const weight = from.weight + long(group) * channels * each * taps + channel;
  plain_total<TERMS> total;
  for (int tap = 0; tap < taps; ++tap) {
    const int at[3] = {tap / (s.kernel[2] * s.kernel[1]), tap / s.kernel[2] % s.kernel[1], tap % s.kernel[2]};
    long here = 0;
    bool inside = true;
#pragma unroll
    for (int d = 0; d < 3; ++d) {
      const int wide = far[d] - at[d] * s.dilation[d], i = wide / s.stride[d];
      inside = inside && wide >= 0 && i * s.stride[d] == wide && i < s.in_size[d];
      here = here * s.in_size[d] + i;
    }
    if (!inside) continue;
#pragma unroll 4
    for (int c = 0; c < channels; ++c)
      total.add(image[here * apart + c * step], weight[long(c) * each * taps + tap * beside]);
  }
  return total.result();
}
template <int TOGETHER, class T, int TERMS>
FN float plain_sum(const conv_source<transposed_shape<TOGETHER>, T, TERMS>& from, int batch, int row, int pixel) {
  return sum_of_phase<transposed_shape<TOGETHER>, T, TERMS, TOGETHER == 0 ? 1 : TOGETHER>(from, from.shape, batch, row, pixel);
}

//@ transposed_epilogue: needs transposed_places, prefetch, register_epilogue
// VECTORS vectors of one line of the result: their first columns, and where they stand in TOGETHER rows of a smem tile. Where a
// lane has none, it does what another one does: branches around every access would take longer than everything else here.
template <int VECTORS> struct phase_range {
  int column[VECTORS], from[VECTORS];
};
struct phase_column : column_place {
  int from;
};
template <int VECTOR, int VECTORS> struct phase_lane : words<phase_lane<VECTOR, VECTORS>> {
  static constexpr int vector = VECTOR;
};
template <int VECTOR, int VECTORS, class Sink, class F, class... Ops>
FN void walk(phase_lane<VECTOR, VECTORS>&, phase_range<VECTORS> r, Sink& sink, const F& f, Ops... operand) {
  phase_column at[VECTORS];
  bool live[VECTORS];
#pragma unroll
  for (int u = 0; u < VECTORS; ++u) at[u] = {{r.column[u], r.column[u], 0}, r.from[u]}, live[u] = true;
  visit<false, VECTOR, VECTORS>(at, live, sink, f, typename Ops::template packet<VECTOR, VECTORS>(operand)...);
}
// The product as an operand: TOGETHER rows of a smem tile, one element of each in turn.
template <int TOGETHER, bool ACROSS, int COLUMNS> struct phase_rows {
  using value = float;
  static constexpr int bytes = 0;
  static constexpr bool kept = false;
  const float* smem_tile;
  int row;
  template <int W, int U> struct packet {
    const float* smem_tile;
    int row;
    float held[U][W];
    FN explicit packet(const phase_rows& o) : smem_tile(o.smem_tile), row(o.row) {}
    FN void fetch(int u, const phase_column& at) {
      constexpr int ROWS = W < TOGETHER ? 1 : TOGETHER, EACH = W / ROWS;
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const int from = row + (ROWS == 1 ? at.from % TOGETHER : r);
        float found[EACH];
        fetch_vector<false, EACH>(smem_tile + smem_tile_place<ACROSS, COLUMNS>(from, at.from / TOGETHER), found);
#pragma unroll
        for (int j = 0; j < EACH; ++j) held[u][j * ROWS + r] = found[j];
      }
    }
    FN float element(int u, int j, const phase_column&) { return held[u][j]; }
    FN void flush(int, const phase_column&) {}
  };
};
// A body whose rows are channels of the result, and whose columns are its pixels; VECTORS: how many a lane has registers for.
template <int TOGETHER, int VECTORS, class Body> struct transposed_body {
  const Body& body;
  const transposed_shape<TOGETHER>& shape;
};
template <int BLOCKS, int SEGMENT, int TOGETHER, class Body>
FN transposed_body<TOGETHER, BLOCKS == 1 ? 4 : 2, Body> epilogue_of(const Body& body, const transposed_shape<TOGETHER>& shape) {
  return {body, shape};
}
template <int BLOCKS, int SEGMENT, class Body> FN const Body& epilogue_of(const Body& body, const transposed_shape<0>&) {
  return body;
}
template <int TOGETHER, int VECTORS, class Body>
constexpr bool has_register_epilogue<transposed_body<TOGETHER, VECTORS, Body>> = false;
template <int SEGMENT, int TOGETHER, int VECTORS, class Body>
FN void prefetch(const transposed_body<TOGETHER, VECTORS, Body>&, long, int, int) {}
// Every lane without a place takes that of the first one that has any; false if none has.
template <int VECTORS> FN bool share_places(phase_range<VECTORS>& here) {
  int column = here.column[0], from = here.from[0];
#pragma unroll
  for (int u = 1; u < VECTORS; ++u) column = min(column, here.column[u]);
  if (__all_sync(~0u, column >= 0)) return true;
  column = -1;
#pragma unroll
  for (int u = VECTORS - 1; u >= 0; --u) {
    const unsigned some = __ballot_sync(~0u, here.column[u] >= 0);
    const int lane = some ? __ffs(some) - 1 : 0, there = __shfl_sync(~0u, here.column[u], lane);
    const int stands = __shfl_sync(~0u, here.from[u], lane);
    if (some) column = there, from = stands;
  }
#pragma unroll
  for (int u = 0; u < VECTORS; ++u)
    if (here.column[u] < 0) here.column[u] = column, here.from[u] = from;
  return __any_sync(~0u, column >= 0);
}
// LANES lanes take all places of a channel's line, and the others those of the next channels.
template <bool ACROSS, int COLUMNS, int VECTOR, int TOGETHER, int MOST, class Body>
FN void finish_phases(const transposed_body<TOGETHER, MOST, Body>& to, const float* smem_tile, int begin, int end,
                      smem_tile_corner at, int places) {
  constexpr int ALL = COLUMNS * TOGETHER, HALF = ALL / VECTOR / 2, LANES = HALF < 32 ? HALF : 32;
  constexpr int WANTED = ALL / VECTOR / LANES, VECTORS = WANTED < MOST ? WANTED : MOST, CHANNELS_AT_ONCE = 32 / LANES;
  const transposed_shape<TOGETHER>& s = to.shape;
  const int lane = lane_here(), image = s.per_image(int(at.batch));
  const subpixel_phases phases = s.phases_of(int(at.batch) - image * s.gemms());
  const int each = s.given.out_channels / s.given.groups, height = (1 << s.height_bits) - 1;
  const int (&size)[3] = s.given.out_size;
  const int channels = (end - begin) / TOGETHER >> s.line_bits;
  const int channel = (at.batch_row + begin) / TOGETHER >> s.line_bits;
  const int row = image * s.given.out_channels + phases.group * each + channel;
#pragma unroll 1
  for (int base = 0; base < ALL; base += LANES * VECTORS * VECTOR) {
    phase_place first[VECTORS];
#pragma unroll
    for (int u = 0; u < VECTORS; ++u) {
      const int from = base + (lane % LANES + u * LANES) * VECTOR, place = at.column + from / TOGETHER;
      first[u] = place_of_phase(s, phases, place, from % TOGETHER);
      if (place >= places || unsigned(first[u].x) >= unsigned(size[2])) first[u].y = size[1];
    }
#pragma unroll 1
    for (int line = 0; line < 1 << s.line_bits; ++line) {
      phase_range<VECTORS> here;
#pragma unroll
      for (int u = 0; u < VECTORS; ++u) {
        const int z = first[u].z + (line >> s.height_bits), y = first[u].y + (line & height);
        const bool live = unsigned(z) < unsigned(size[0]) && unsigned(y) < unsigned(size[1]);
        here.column[u] = live ? (z * size[1] + y) * size[2] + first[u].x : -1;
        here.from[u] = base + (lane % LANES + u * LANES) * VECTOR;
      }
      if (!share_places(here)) continue;
#pragma unroll 2
      for (int c = 0; c < channels; c += CHANNELS_AT_ONCE) {
        __syncwarp();  // lanes that do the same load before one of them stores, even where the result is in place
        const int mine = min(c + lane / LANES, channels - 1);
        const phase_rows<TOGETHER, ACROSS, COLUMNS> found{smem_tile, begin + ((mine << s.line_bits) + line) * TOGETHER};
        to.body(long(row + mine), here, phase_lane<VECTOR, VECTORS>(), found);
      }
    }
  }
}
template <bool ACROSS, int COLUMNS, int SEGMENT, int VECTOR, int TOGETHER, int MOST, class Body>
FN void finish(const transposed_body<TOGETHER, MOST, Body>& to, const float* smem_tile, int begin, int end, smem_tile_corner at,
               int places) {
  if (VECTOR > 1 && __all_sync(~0u, to.shape.even()))
    finish_phases<ACROSS, COLUMNS, VECTOR>(to, smem_tile, begin, end, at, places);
  else
    finish_phases<ACROSS, COLUMNS, 1>(to, smem_tile, begin, end, at, places);
}

//@ describe_phases: needs transposed_shape
// Of the phases along each dimension, from D to W, how many are stacked; and the shift along W.
struct stacked_phases {
  int along[3], shift;
};
#ifndef __CUDACC_RTC__
// Along one dimension: the offsets that the phases see, from q, each phase alone or all together; the lowest of all.
struct phase_offsets {
  int count, first[MOST_PHASES], last[MOST_PHASES], step, lowest = 1 << 20, furthest = -(1 << 20);
  phase_offsets(const conv_shape& s, int d, int shift, bool stacked) : count(stacked ? 1 : s.stride[d]) {
    int common = s.stride[d];
    for (int rest = s.dilation[d]; rest;) {
      const int next = common % rest;
      common = rest, rest = next;
    }
    step = stacked ? 1 : s.dilation[d] / common;
    for (int i = 0; i < count; ++i) first[i] = 1 << 20, last[i] = -(1 << 20);
    for (int phase = 0; phase < s.stride[d]; ++phase)
      for (int t = 0; t < s.kernel[d]; ++t) {
        const int wide = phase - shift + s.pad[d] - t * s.dilation[d], i = stacked ? 0 : phase;
        if (wide % s.stride[d]) continue;
        const int offset = wide / s.stride[d];
        first[i] = offset < first[i] ? offset : first[i], last[i] = offset > last[i] ? offset : last[i];
        lowest = offset < lowest ? offset : lowest, furthest = offset > furthest ? offset : furthest;
      }
    for (int i = 0; i < count; ++i)
      if (first[i] > last[i]) first[i] = last[i] = lowest;
  }
};
template <int TOGETHER> void describe_dimension(transposed_shape<TOGETHER>& to, int d, bool together, int shift) {
  const conv_shape& given = to.given;
  const int stride = given.stride[d], spread = given.dilation[d];
  const phase_offsets seen(given, d, shift, together);
  int most = 0;
  for (int i = 0; i < seen.count; ++i) {
    const int taps = (seen.last[i] - seen.first[i]) / seen.step + 1;
    to.taps[d][i] = {{seen.first[i] - seen.lowest, seen.last[i] - seen.lowest + seen.step, seen.step}, taps};
    most = taps > most ? taps : most;
  }
  to.apart[d] = seen.step * stride / spread;
  for (int phase = 0; phase < stride; ++phase) {
    const int far = phase - shift + given.pad[d] - stride * seen.first[together ? 0 : phase];
    to.lead[d][phase] = far % spread ? -1 : far / spread;
  }
  to.shift[d] = shift, to.separate[d] = together ? 1 : stride, to.pitch_taps *= most;
  to.places.pad[d] = -seen.lowest, to.places.kernel[d] = seen.furthest - seen.lowest + 1;
  to.places.stride[d] = to.places.dilation[d] = 1;
  to.places.out_size[d] = (given.out_size[d] + shift + stride - 1) / stride;
}
// An error if the phases that shall be stacked are none of what this kernel can do.
template <int TOGETHER>
int describe_phases(transposed_shape<TOGETHER>& to, const conv_shape& given, const stacked_phases& stacked) {
  const int (&along)[3] = stacked.along, lines = along[0] * along[1];
  if (along[2] != TOGETHER || lines * TOGETHER > MOST_STACKED || given.groups <= 0) return cudaErrorInvalidValue;
  to.given = to.places = given, to.pitch_taps = 1, to.line_bits = to.height_bits = 0;
  for (int d = 0; d < 3; ++d) {
    const int stride = given.stride[d];
    const bool power = along[d] == 1 || (along[d] == stride && (stride & stride - 1) == 0 && given.dilation[d] == 1);
    if (stride > MOST_PHASES || !power) return cudaErrorInvalidValue;
    describe_dimension(to, d, along[d] > 1, d == 2 ? stacked.shift : given.pad[d] % stride);
  }
  while (1 << to.height_bits < along[1]) ++to.height_bits;
  while (1 << to.line_bits < lines) ++to.line_bits;
  to.all_gemms = given.groups * to.separate[0] * to.separate[1] * to.separate[2];
  to.all_rows = given.out_channels / given.groups * lines * TOGETHER;
  to.per_image = divider_by(to.all_gemms);
  for (int d = 0; d < 3; ++d) to.per_phase[d] = divider_by(to.separate[d]);
  to.per_line = divider_by(to.places.out_size[2]), to.per_sheet = divider_by(to.places.out_size[1]);
  return 0;
}
#endif

//@ run_conv_transpose: needs describe_phases, transposed_weights, transposed_epilogue, conv_kernel, subpixel_out
// What `run_conv` says of workspace and limits holds for the walk: see `transposed_shape`. TOGETHER is 0 for stride 1.
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, int CHANNEL_TILE = 64, int BLOCKS = 1, int TOGETHER = 1,
          int TERMS = 1, class T, class Body>
int run_conv_transpose(const Body& body, const T* image, const T* weight, conv_shape given, stacked_phases stacked,
                   void* workspace, int device, void* stream) {
  static_assert(SEGMENT == 0, "phases are not folded");
  transposed_shape<TOGETHER> shape;
#ifndef __CUDACC_RTC__
  if (TOGETHER == 0 && (given.stride[0] > 1 || given.stride[1] > 1 || given.stride[2] > 1)) return cudaErrorInvalidValue;
  if (int error = describe_phases<TOGETHER == 0 ? 1 : TOGETHER>(shape, given, stacked)) return error;
#endif
  return launch_conv<WIDTH, SWAPPED, SEGMENT, VECTOR, CHANNEL_TILE, BLOCKS, TERMS>(body, image, weight, shape, workspace,
                                                                                  device, stream);
}

//@
}  // namespace fusewright
