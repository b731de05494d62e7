// Convolutions on Hopper (sm_90a) whose pixels are reduced, all of a channel: global averages, and what else has one reduction.
//
// The body runs twice. First a team reduces the pixels of a channel in one smem tile, and leaves the partial result in memory;
// then, in a small kernel behind, a team joins the partial results of a channel in the order of smem tiles, and stores what
// follows.
//
// The surprising fact: neither the body nor the tiles know of that. Who runs the body says what a reduction is.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/conv/cuda/conv_launch_sm90.cuh"
namespace fusewright {

//@ pixel_reduction_teams: needs finish, prefetch, register_epilogue, shuffle, conv_shape, conv_fixup
constexpr int PARTIAL_LANES = 8;
// LANES lanes walk through a range of a row as a map's lane does, BOXES smem tiles. Their join hands the part in, as that of the
// first smem tile, and what comes behind it is nobody's business yet.
template <int LANES, int BOXES, class Lane, class Range> struct leaving_team : words<leaving_team<LANES, BOXES, Lane, Range>> {
  static_assert(BOXES <= LANES, "each lane hands one part in");
  static constexpr int threads = LANES, vector = Lane::vector;
  static constexpr bool spread = false;
  const Range& pixels;
  float* partials;
  FN leaving_team(const Range& pixels, float* partials) : pixels(pixels), partials(partials) {}
  FN bool leads() const { return false; }
  template <class Reducer> FN float join(float mine) {
    mine = butterfly<Reducer, LANES>(mine);
    const int smem_tile = lane_here() % LANES;
    if (smem_tile < BOXES) partials[smem_tile] = smem_tile == 0 ? mine : Reducer().part();
    return mine;
  }
};
template <int LANES, int BOXES, class Lane, class Range, long... N, class Sink, class F, class... Ops>
FN void walk(leaving_team<LANES, BOXES, Lane, Range>& team, fixed_span<N...>, Sink& sink, const F& f, Ops... operand) {
  Lane lane;
  walk(lane, team.pixels, sink, f, operand...);
}
struct joining_team : words<joining_team> {
  static constexpr int threads = PARTIAL_LANES, vector = 1;
  static constexpr bool spread = false;
  const float* partials;
  int count;
  bool late;  // behind the last row
  FN joining_team(const float* partials, int count, bool late) : partials(partials), count(count), late(late) {}
  FN int member() const { return threadIdx.x % PARTIAL_LANES; }
  FN bool leads() const { return member() == 0 && !late; }
  template <class Reducer> FN float join(float none) {
    for (int i = member(); i < count; i += PARTIAL_LANES) none = Reducer::join(none, partials[i]);
    return butterfly<Reducer, PARTIAL_LANES>(none);
  }
};
template <class Sink, long... N, class F, class... Ops>
FN void walk(joining_team&, fixed_span<N...>, Sink&, const F&, Ops...) {}

// `partials`: of each channel of each image, those of its smem tiles.
struct pixel_reduction_shape : conv_shape {
  float* partials;
  BOTH int smem_tiles() const { return int((out_pixels() + 63) / 64); }
};
template <class Range> constexpr int boxes_of = 1;
template <int WIDTH> constexpr int boxes_of<tile_range<WIDTH>> = WIDTH / 64;
// It takes the place of a map's body, whose tiles leave from registers, four lanes to a row.
template <class Body> struct pixel_reduction_body {
  const Body& body;
  const pixel_reduction_shape& shape;
  template <int LANES = 4, class Range, class Lane, class Accumulator>
  FN void operator()(long row, Range range, Lane, Accumulator accumulator) const {
    float* const partials = shape.partials + row * shape.smem_tiles() + range.first / 64;
    body(row, leaving_team<LANES, boxes_of<Range>, Lane, Range>(range, partials), accumulator);
  }
};
template <int BLOCKS, int SEGMENT, class Body>
FN pixel_reduction_body<Body> epilogue_of(const Body& body, const pixel_reduction_shape& shape) {
  return {body, shape};
}
template <int SEGMENT, class Body> FN void prefetch(const pixel_reduction_body<Body>&, long, int, int) {}
// All lanes stay together, since teams shuffle: those behind the end do the last row once more.
template <bool ACROSS, int COLUMNS, int SEGMENT, int VECTOR, class Body>
FN void finish(const pixel_reduction_body<Body>& to, const float* smem_tile, int begin, int end, smem_tile_corner at,
    int columns) {
  static_assert(COLUMNS == 64 && SEGMENT == 0, "a box has one part of each of its rows");
  const int team = lane_here() / PARTIAL_LANES, first = at.column + lane_here() % PARTIAL_LANES * VECTOR;
  const columns_range<false> mine{first, PARTIAL_LANES * VECTOR, columns};
#pragma unroll 1
  for (int next = begin; next < end; next += 32 / PARTIAL_LANES) {
    const int row = min(next + team, end - 1);
    to.template operator()<PARTIAL_LANES>(at.row + row, mine, columns_lane<VECTOR, 64 / (PARTIAL_LANES * VECTOR)>(),
                                       accumulator_row{smem_tile + row * COLUMNS, -at.column, twist_of<ACROSS>(row)});
  }
}

//@ run_conv_pixel_reduction: needs pixel_reduction_teams, conv_kernel
template <class Body>
__global__ void __launch_bounds__(256) join_partials(const Body body, const float* partials, long rows, int smem_tiles) {
  wait_for_previous_kernel();
  const long row = (long(blockIdx.x) * 256 + threadIdx.x) / PARTIAL_LANES, known = row < rows ? row : rows - 1;
  body(known, joining_team(partials + known * smem_tiles, smem_tiles, row >= rows), accumulator_row{nullptr, 0, 0});
}
// `partials`: room for a float of each 64 pixels, or fewer, of each channel of each image.
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, int CHANNEL_TILE = 64, int BLOCKS = 1, int TERMS = 1, class T,
          class Body>
int run_conv_pixel_reduction(const Body& body, const T* image, const T* weight, conv_shape given, void* workspace,
                         void* partials, int device, void* stream) {
  const pixel_reduction_shape shape{given, static_cast<float*>(partials)};
  const int error = launch_conv<WIDTH, SWAPPED, SEGMENT, VECTOR, CHANNEL_TILE, BLOCKS, TERMS>(body, image, weight, shape,
                                                                                             workspace, device, stream);
#ifdef __CUDACC_RTC__
  return error || &join_partials<Body> == nullptr;
#else
  const long rows = given.images * given.out_channels, blocks = (rows * PARTIAL_LANES + 255) / 256;
  if (error || blocks <= 0) return error;
  const device_scope scope(device);
  return launch_early(&join_partials<Body>, dim3(unsigned(blocks)), 256, 0, 1, static_cast<cudaStream_t>(stream), body,
                      static_cast<const float*>(shape.partials), rows, shape.smem_tiles());
#endif
}

//@
}  // namespace fusewright
