// Boxes of a tensor that TMA copies into shared memory (sm_90a): their maps, which the host makes, and what a cluster shares.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/tensor_core/cuda/epilogue.cuh"
#include "devicelib/cuda/instructions_sm90.cuh"
namespace fusewright {

//@ tensor_map: needs gemm_operand, load_bytes
// A CUtensorMap, and how the driver fills it in; its header is not needed. The numbers are the driver's: types 6, 7 and 9
// are float16, float32 and bfloat16, swizzle 3 is 128 bytes, promotion 3 is 256 bytes.
struct alignas(64) tensor_map {
  unsigned long words[16];
};
FN void load_box(unsigned to, const tensor_map& map, unsigned barrier, int k, int row, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
      ::"r"(to), "l"(&map), "r"(barrier), "r"(k), "r"(row), "r"(batch) : "memory");
}
#ifndef __CUDACC_RTC__
using encode_tiled = int (*)(tensor_map*, int type, unsigned rank, const void*, const unsigned long* sizes,
                             const unsigned long* strides, const unsigned* box, const unsigned* steps, int interleave,
                             int swizzle, int promotion, int fill);
inline void* find_driver(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
  cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
#else
  cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
  return found;
}
// `bytes`: of the whole tensor. Whatever lies outside of it reads as zero.
inline int encode_map(tensor_map& map, int type, unsigned rank, const void* data, const unsigned long* sizes,
                      const unsigned long* strides, const unsigned* box, unsigned long bytes) {
  static const auto encode = reinterpret_cast<encode_tiled>(find_driver("cuTensorMapEncodeTiled"));
  if (!encode) return cudaErrorNotSupported;
  const unsigned steps[5] = {1, 1, 1, 1, 1};
  if (encode(&map, type, rank, data, sizes, strides, box, steps, 0, 3, 3, 0)) return cudaErrorInvalidValue;
  // Drivers up to 13.1 mistake small tensors for something else unless this bit is cleared; CUTLASS does so, too.
  int driver = 0;
  cudaDriverGetVersion(&driver);
  if (driver <= 13010 && bytes < 131072) map.words[1] &= ~(1ul << 21);
  return 0;
}
// A tensor [batches][lines][line] in memory; strides in bytes, batch_bytes 0 if all batches share one.
struct mapped {
  int type, element_bytes;
  const void* data;
  long batch_bytes, line_bytes, batches, lines, line;
};
// Boxes of box_lines lines x 128 bytes.
inline int map_boxes(tensor_map& map, const mapped& from, int box_lines) {
  const bool batched = from.batch_bytes != 0 && from.batches > 1;
  const unsigned long sizes[3] = {(unsigned long)from.line, (unsigned long)from.lines,
                                  batched ? (unsigned long)from.batches : 1ul};
  const unsigned long strides[2] = {(unsigned long)from.line_bytes,
                                    (unsigned long)(batched ? from.batch_bytes : from.line_bytes)};
  const unsigned box[3] = {128u / from.element_bytes, unsigned(box_lines), 1};
  return encode_map(map, from.type, 3, from.data, sizes, strides, box, sizes[0] * sizes[1] * sizes[2] * from.element_bytes);
}
// Boxes of 32 k x some rows of a float32 operand.
inline int map_operand(tensor_map& map, const gemm_operand& from, long batches, long rows, long depth, int box_rows = 128) {
  return map_boxes(map, {7, 4, from.data, from.batch_stride * 4, from.row_stride * 4, batches, rows, depth}, box_rows);
}
#endif

//@ cluster: needs tensor_map
// Two neighbouring blocks that can reach each other's shared memory, where the same offset means the same thing.
constexpr int CLUSTER = 2;
FN int cluster_rank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
FN void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// `release.cluster` would say the same and wait for all memory.
FN void cluster_arrive(unsigned barrier, int rank) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}" ::"r"(barrier), "r"(rank) : "memory");
}
// As load_box, into both blocks, each of which is told.
FN void load_box_twice(unsigned to, const tensor_map& map, unsigned barrier, int k, int row, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;"
      ::"r"(to), "l"(&map), "r"(barrier), "r"(k), "r"(row), "r"(batch), "h"(short(3)) : "memory");
}

//@ prepare_persistent
#ifndef __CUDACC_RTC__
// How many blocks run at once: one per processor. Asked, like the shared memory, once per kernel and device.
template <auto KERNEL> int prepare_persistent(int shared_bytes, int device, int& blocks) {
  static int known[64];
  const bool listed = device >= 0 && device < 64;
  blocks = listed ? known[device] : 0;
  if (blocks > 0) return 0;
  int error = cudaFuncSetAttribute(KERNEL, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (!error) error = cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device);
  if (listed && !error) known[device] = blocks;
  return error;
}
#endif

//@ launch_early
#ifndef __CUDACC_RTC__
// A launch whose blocks may start while the kernel before it ends.
template <class... Wanted, class... Given>
int launch_early(void (*kernel)(Wanted...), dim3 grid, int threads, int shared_bytes, int cluster, cudaStream_t on,
                 const Given&... given) {
  cudaLaunchAttribute wishes[2];
  wishes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  wishes[0].val.programmaticStreamSerializationAllowed = 1;
  wishes[1].id = cudaLaunchAttributeClusterDimension;
  wishes[1].val.clusterDim.x = cluster, wishes[1].val.clusterDim.y = wishes[1].val.clusterDim.z = 1;
  const cudaLaunchConfig_t launch{grid, dim3(threads), size_t(shared_bytes), on, wishes, cluster > 1 ? 2u : 1u};
  cudaLaunchKernelEx(&launch, kernel, given...);
  return cudaGetLastError();
}
#endif

//@ image_map: needs tensor_map
// Boxes of neighbouring result pixels x some channels, gathered from an image [N][D][H][W][channels] as a convolution
// reads it: one tap for all pixels of a box. The copy engine steps through the pixels row by row, image by image, and
// whatever lies in the padding or behind the channels reads as zero. Arrays run from W to D.
struct pixel_place {
  int at[3];  // of the box's first pixel, at the tap (0, 0, 0)
  int image;
};
FN void load_pixels(unsigned to, const tensor_map& map, unsigned barrier, int channel, const pixel_place& p,
                    const int (&tap)[3], bool deep) {
  if (deep)
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], {%8, %9, %10};"
        ::"r"(to), "l"(&map), "r"(barrier), "r"(channel), "r"(p.at[0]), "r"(p.at[1]), "r"(p.at[2]), "r"(p.image),
        "h"(short(tap[0])), "h"(short(tap[1])), "h"(short(tap[2])) : "memory");
  else
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};"
        ::"r"(to), "l"(&map), "r"(barrier), "r"(channel), "r"(p.at[0]), "r"(p.at[1]), "r"(p.image), "h"(short(tap[0])),
        "h"(short(tap[1])) : "memory");
}
#ifndef __CUDACC_RTC__
using encode_im2col = int (*)(tensor_map*, int type, unsigned rank, const void*, const unsigned long* sizes,
                              const unsigned long* strides, const int* lower, const int* upper, unsigned channels,
                              unsigned pixels, const unsigned* steps, int interleave, int swizzle, int promotion, int fill);
// `lower` and `upper` bound the pixels at the tap (0, 0, 0), by the image's first and last one.
struct mapped_image {
  int type;  // as in tensor_map
  const void* data;
  long images, size[3], channels;
  int lower[3], upper[3], step[3];
  bool deep;  // more than one pixel along D
};
inline int map_image(tensor_map& map, const mapped_image& from, int box_channels, int box_pixels) {
  static const auto encode = reinterpret_cast<encode_im2col>(find_driver("cuTensorMapEncodeIm2col"));
  if (!encode) return cudaErrorNotSupported;
  const int rank = from.deep ? 5 : 4;
  unsigned long sizes[5] = {(unsigned long)from.channels}, strides[4] = {(unsigned long)from.channels * 2};
  unsigned steps[5] = {1, 1, 1, 1, 1};
  for (int i = 1; i < rank - 1; ++i) {
    sizes[i] = from.size[i - 1], strides[i] = strides[i - 1] * sizes[i];
    steps[i] = unsigned(from.step[i - 1]);
  }
  sizes[rank - 1] = from.images;
  const int swizzle = box_channels == 16 ? 1 : box_channels == 32 ? 2 : 3;
  const int error = encode(&map, from.type, rank, from.data, sizes, strides, from.lower, from.upper, box_channels, box_pixels,
                           steps, 0, swizzle, 3, 0);
  return error ? cudaErrorInvalidValue : cudaSuccess;
}
#endif

//@
}  // namespace fusewright
