// Convolutions on Hopper (sm_90a) whose pixels are folded, all of a channel: global averages, and what else has one fold.
//
// The body runs twice. First a team folds the pixels of a channel in one box, and leaves the part in memory; then, in a
// small kernel behind, a team joins the parts of a channel in the order of boxes, and stores what follows.
//
// The surprising fact: neither the body nor the tiles know of that. Who runs the body says what a fold is.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/conv/cuda/conv_launch_sm90.cuh"
namespace fusewright {

//@ part_teams: needs finish, ahead, finish_runs, shuffle, convolution_shape, convolution_repair
constexpr int PART_LANES = 8;
// LANES lanes walk through a range of a row as a map's lane does, BOXES boxes. Their join hands the part in, as that of the
// first box, and what comes behind it is nobody's business yet.
template <int LANES, int BOXES, class Lane, class Range> struct leaving_team : words<leaving_team<LANES, BOXES, Lane, Range>> {
  static_assert(BOXES <= LANES, "each lane hands one part in");
  static constexpr int threads = LANES, vector = Lane::vector;
  static constexpr bool spread = false;
  const Range& pixels;
  float* parts;
  FN leaving_team(const Range& pixels, float* parts) : pixels(pixels), parts(parts) {}
  FN bool leads() const { return false; }
  template <class Reducer> FN float join(float mine) {
    mine = butterfly<Reducer, LANES>(mine);
    const int box = lane_here() % LANES;
    if (box < BOXES) parts[box] = box == 0 ? mine : Reducer().part();
    return mine;
  }
};
template <int LANES, int BOXES, class Lane, class Range, long... N, class Sink, class F, class... Ops>
FN void walk(leaving_team<LANES, BOXES, Lane, Range>& team, fixed_span<N...>, Sink& sink, const F& f, Ops... operand) {
  Lane lane;
  walk(lane, team.pixels, sink, f, operand...);
}
struct joining_team : words<joining_team> {
  static constexpr int threads = PART_LANES, vector = 1;
  static constexpr bool spread = false;
  const float* parts;
  int count;
  bool late;  // behind the last row
  FN joining_team(const float* parts, int count, bool late) : parts(parts), count(count), late(late) {}
  FN int member() const { return threadIdx.x % PART_LANES; }
  FN bool leads() const { return member() == 0 && !late; }
  template <class Reducer> FN float join(float none) {
    for (int i = member(); i < count; i += PART_LANES) none = Reducer::join(none, parts[i]);
    return butterfly<Reducer, PART_LANES>(none);
  }
};
template <class Sink, long... N, class F, class... Ops>
FN void walk(joining_team&, fixed_span<N...>, Sink&, const F&, Ops...) {}

// `parts`: of each channel of each image, those of its boxes.
struct summed_shape : convolution_shape {
  float* parts;
  BOTH int boxes() const { return int((out_pixels() + 63) / 64); }
};
template <class Range> constexpr int boxes_of = 1;
template <int WIDTH> constexpr int boxes_of<tile_range<WIDTH>> = WIDTH / 64;
// It takes the place of a map's body, whose tiles leave from registers, four lanes to a row.
template <class Body> struct summed_body {
  const Body& body;
  const summed_shape& shape;
  template <int LANES = 4, class Range, class Lane, class Product>
  FN void operator()(long row, Range range, Lane, Product product) const {
    float* const parts = shape.parts + row * shape.boxes() + range.first / 64;
    body(row, leaving_team<LANES, boxes_of<Range>, Lane, Range>(range, parts), product);
  }
};
template <int BLOCKS, int SEGMENT, class Body> FN summed_body<Body> tail_of(const Body& body, const summed_shape& shape) {
  return {body, shape};
}
template <int SEGMENT, class Body> FN void ahead(const summed_body<Body>&, long, int, int) {}
// All lanes stay together, since teams shuffle: those behind the end do the last row once more.
template <bool ACROSS, int COLUMNS, int SEGMENT, int VECTOR, class Body>
FN void finish(const summed_body<Body>& to, const float* box, int begin, int end, box_corner at, int columns) {
  static_assert(COLUMNS == 64 && SEGMENT == 0, "a box has one part of each of its rows");
  const int team = lane_here() / PART_LANES, first = at.column + lane_here() % PART_LANES * VECTOR;
  const columns_range<false> mine{first, PART_LANES * VECTOR, columns};
#pragma unroll 1
  for (int next = begin; next < end; next += 32 / PART_LANES) {
    const int row = min(next + team, end - 1);
    to.template operator()<PART_LANES>(at.row + row, mine, columns_lane<VECTOR, 64 / (PART_LANES * VECTOR)>(),
                                       product_row{box + row * COLUMNS, -at.column, twist_of<ACROSS>(row)});
  }
}

//@ run_convolution_sums: needs part_teams, convolution_kernel
template <class Body> __global__ void __launch_bounds__(256) join_parts(const Body body, const float* parts, long rows, int boxes) {
  wait_for_previous_kernel();
  const long row = (long(blockIdx.x) * 256 + threadIdx.x) / PART_LANES, known = row < rows ? row : rows - 1;
  body(known, joining_team(parts + known * boxes, boxes, row >= rows), product_row{nullptr, 0, 0});
}
// `parts`: room for a float of each 64 pixels, or fewer, of each channel of each image.
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, int CHUNK = 64, int BLOCKS = 1, int PARTS = 1, class T, class Body>
int run_convolution_sums(const Body& body, const T* image, const T* weight, convolution_shape given, void* workspace,
                         void* parts, int device, void* stream) {
  const summed_shape shape{given, static_cast<float*>(parts)};
  const int error = launch_convolution<WIDTH, SWAPPED, SEGMENT, VECTOR, CHUNK, BLOCKS, PARTS>(body, image, weight, shape,
                                                                                             workspace, device, stream);
#ifdef __CUDACC_RTC__
  return error || &join_parts<Body> == nullptr;
#else
  const long rows = given.images * given.out_channels, blocks = (rows * PART_LANES + 255) / 256;
  if (error || blocks <= 0) return error;
  const device_scope scope(device);
  return launch_early(&join_parts<Body>, dim3(unsigned(blocks)), 256, 0, 1, static_cast<cudaStream_t>(stream), body,
                      static_cast<const float*>(shape.parts), rows, shape.boxes());
#endif
}

//@
}  // namespace fusewright
