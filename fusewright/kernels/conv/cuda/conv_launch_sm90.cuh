// The kernel of convolutions on Hopper (sm_90a), and its launch behind the two passes that pack what it reads.
//
// The surprising fact: of the four kernels (three for 16 bits), each starts while the one before still runs, so that the
// small ones cost little more than their bytes.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/conv/cuda/conv_sm90.cuh"
namespace fusewright {

//@ conv_kernel: needs pack_conv, conv_produce, conv_consume, channel_reduction_body, prepare_persistent, device_scope
// What the consumers hand smem tiles to.
template <int BLOCKS, int SEGMENT, class Body> FN decltype(auto) epilogue_of(const Body& body, const conv_shape&) {
  if constexpr (SEGMENT > 0)
    return channel_reduction_body<Body>{body};
  else
    return (body);
}
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, int CHANNEL_TILE, int BLOCKS, int TERMS, class Shape, class Body,
          class T>
__global__ void __launch_bounds__((conv_stage<WIDTH, BLOCKS, TERMS>::threads), (conv_stage<WIDTH, BLOCKS, TERMS>::blocks))
    conv_kernel(const __grid_constant__ tensor_map weights, const __grid_constant__ tensor_map pixels,
                       const __grid_constant__ Body body, const __grid_constant__ Shape shape, const T* image,
                       const T* weight, const packed_image packed, const gemm_shape gemm, const tile_pairs all) {
  using stage = conv_stage<WIDTH, BLOCKS, TERMS>;
  extern __shared__ __align__(1024) unsigned char shared[];  // the swizzle's pattern repeats after 1024 bytes
  const unsigned stages = shared_address(shared), full = stages + stage::barriers, empty = full + 8 * stage::count;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < stage::count; ++slot) {
      barrier_init(full + 8 * slot, 1);
      barrier_init(empty + 8 * slot, stage::readers * CLUSTER);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  // This kernel may have started before the packing ones were done.
  wait_for_previous_kernel();
  cluster_sync();
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (stage::blocks == 1 ? warp < 4 : warp >= 8) {
    if constexpr (stage::blocks == 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == stage::producer)
      conv_produce<WIDTH, SWAPPED, CHANNEL_TILE, BLOCKS, TERMS>(weights, pixels, shape, packed, all, stages, full, empty);
  } else {
    if constexpr (stage::blocks == 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    const conv_source<Shape, T, TERMS> source{image, weight, shape};
    const auto& epilogue = epilogue_of<BLOCKS, SEGMENT>(body, shape);
    float* const smem_tiles = reinterpret_cast<float*>(shared + stage::smem_tiles);
    const auto work = work_of<stage::first_warp>(epilogue, source, packed, gemm, smem_tiles);
    conv_consume<WIDTH, SWAPPED, SEGMENT, VECTOR, CHANNEL_TILE, BLOCKS, TERMS>(work, all, stages, full, empty);
  }
}
#ifdef __CUDACC_RTC__
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, int CHANNEL_TILE, int BLOCKS, int TERMS, class T, class Shape,
          class Body>
FN int launch_conv(const Body&, const T*, const T*, const Shape&, void*, int, void*) {
  using walked = typename Shape::walked;
  return &conv_kernel<WIDTH, SWAPPED, SEGMENT, VECTOR, CHANNEL_TILE, BLOCKS, TERMS, Shape, Body, T> == nullptr ||
         &pack_weights<TERMS, T, Shape> == nullptr || image_packer<CHANNEL_TILE, TERMS, Shape, T>(true) == nullptr ||
         &check_images<true, CHANNEL_TILE, TERMS, walked> == nullptr || &check_images<false, CHANNEL_TILE, TERMS,
             walked> == nullptr;
}
#else
// The copy engine's map of packed pixels, each with `channels`. It steps from the first place of the tap (0, 0, 0) to the
// last one.
template <int CHANNEL_TILE>
int map_pixels(tensor_map& map, int type, const conv_shape& shape, const void* pixels, long channels, int box_pixels) {
  mapped_image from{type, pixels, shape.images, {}, channels, {}, {}, {}, shape.deep()};
  for (int i = 0; i < 3; ++i) {
    const int d = 2 - i;
    if ((shape.kernel[d] - 1) * shape.dilation[d] > (from.deep ? 31 : 255)) return cudaErrorInvalidValue;
    from.size[i] = shape.in_size[d], from.step[i] = shape.stride[d], from.lower[i] = -shape.pad[d];
    from.upper[i] = (shape.out_size[d] - 1) * shape.stride[d] - shape.pad[d] + 1 - shape.in_size[d];
  }
  return map_image(map, from, CHANNEL_TILE, box_pixels);
}
// How large `workspace` is, packed_image_in says. What the copy engine can do, along each dimension: strides of at most 8;
// with `end` = (out_size - 1) * stride - pad + 1 - in_size, -128 <= -pad, -128 <= end <= 127 and
// (kernel - 1) * dilation <= 255, or, if the shape is deep, -16, 15 and 31. Anything else is an error here.
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, int CHANNEL_TILE, int BLOCKS, int TERMS, class T, class Shape,
          class Body>
int launch_conv(const Body& body, const T* image, const T* weight, const Shape& given, void* workspace, int device,
                       void* stream) {
  static_assert(SEGMENT == 0 || (SWAPPED && (SEGMENT & (SEGMENT - 1) || SEGMENT <= WIDTH)), "a tile's columns are folded");
  static_assert(!Shape::channels_last || SEGMENT == 0, "channels last: tails are maps");
  const conv_shape& shape = given.walk();
  const long images = Shape::multi_image ? shape.images > 0 : shape.images, batches = images * given.gemms();
  constexpr int POOL_PIXELS = pool_pixels<Shape>, EACH = POOL_PIXELS > 1 ? 64 / POOL_PIXELS : 1;  // windows in a smem tile
  const long channels = given.rows(), pixels_of_one = (shape.out_pixels() + EACH - 1) / EACH * EACH * POOL_PIXELS;
  const long places = pixels_of_one * (Shape::multi_image ? shape.images : 1);
  if (batches <= 0 || channels <= 0 || places <= 0) return 0;
  if constexpr (SEGMENT > 0) {
    const bool fits = channels <= WIDTH || smem_tile_columns<SEGMENT, WIDTH> % SEGMENT == 0;
    if (given.gemms() > 1 || channels % SEGMENT || !fits) return cudaErrorInvalidValue;
  }
  const device_scope scope(device);
  constexpr auto kernel = &conv_kernel<WIDTH, SWAPPED, SEGMENT, VECTOR, CHANNEL_TILE, BLOCKS, TERMS, Shape, Body, T>;
  using stage = conv_stage<WIDTH, BLOCKS, TERMS>;
  int blocks = 0;
  if (int error = prepare_persistent<kernel>(stage::shared_bytes, device, blocks)) return error;
  blocks *= stage::blocks;
  const long pixel_tiles = (places + stage::pixels(SWAPPED) - 1) / stage::pixels(SWAPPED);
  const long channel_tiles = (channels + stage::channels(SWAPPED) - 1) / stage::channels(SWAPPED);
  const long pairs = (images * pixel_tiles + CLUSTER - 1) / CLUSTER, count = pairs * channel_tiles * given.gemms();
  if (count * CLUSTER > 0x7fffffff || places > 0x7fffff00) return cudaErrorInvalidValue;
  const tile_pairs all{given.gemms(), int(channel_tiles), int(pixel_tiles), int(images * pixel_tiles - 1), int(count),
                       divider_by(given.gemms() * int(channel_tiles)), divider_by(int(channel_tiles)),
                           divider_by(int(pixel_tiles))};
  packed_image packed;
  packed_image_in<CHANNEL_TILE, TERMS>(workspace, given, packed);
  constexpr bool CHANNELS_ARE_COLUMNS = SEGMENT > 0 || Shape::channels_last;  // channels are the result's columns
  const int sides[] = {int(channels), int(Shape::channels_last ? places : pixels_of_one)};
  const gemm_shape gemm{batches, sides[CHANNELS_ARE_COLUMNS], sides[!CHANNELS_ARE_COLUMNS], given.most_taps() * packed.channels};
  constexpr int TYPE = half_kind<typename image_kind<T>::packed>::map_type;
  const void* const lying_weights = given.packs_weights() ? static_cast<const void*>(packed.weights) : weight;
  const void* const lying_pixels = given.packs_image() ? static_cast<const void*>(packed.pixels) : image;
  const mapped lines{TYPE, 2, lying_weights, channels * gemm.depth * 2, gemm.depth * 2L, TERMS * given.gemms(),
                     channels, gemm.depth};
  const long each = TERMS * long(shape.groups) * packed.channels;
  tensor_map weights, pixels;
  int error = map_boxes(weights, lines, stage::channels(SWAPPED) / CLUSTER);
  if (!error) error = map_pixels<CHANNEL_TILE>(pixels, TYPE, shape, lying_pixels, each, RUN_OF<stage::pixels(SWAPPED),
      SWAPPED, Shape>);
  const auto on = static_cast<cudaStream_t>(stream);
  if (!error) error = pack_conv<CHANNEL_TILE, TERMS>(image, weight, given, packed, on);
  if (error) return error;
  const dim3 grid(unsigned(count < blocks / CLUSTER ? count : blocks / CLUSTER) * CLUSTER);
  return launch_early(kernel, grid, stage::threads, stage::shared_bytes, CLUSTER, on, weights, pixels, body, given, image,
                      weight, packed, gemm, all);
}
#endif

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
