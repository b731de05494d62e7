// Matrix products on Ampere (sm_80), and through its PTX on whatever came later: cp.async, ldmatrix, mma.sync.
//
// A block of eight warps makes one tile, some rows of the float32 `split` factor times WIDTH rows of the `packed` one:
// 128 x 64, 128 x 128, 64 x 192 or 64 x 256. Four to six units of 32 k are on their way into shared memory. A warp has 32
// rows of the tile: for each unit it splits them in registers, then takes the packed rows sixteen at a time. First the
// two products with a low half, then the product of the high halves, so that the truncation step of the tensor core is
// small for two thirds of the work.
//
// The surprising fact: the order of additions matters more than the splitting. Ampere's tensor core truncates twice per
// 16 k, so a sum leaves it every 32 k, for `master`. At 16384 k that alone would be 512 additions in a row, whose
// roundings add up to more than the splitting loses; so `master` is emptied into `total` every SUM_UNITS units.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "product.cuh"
namespace fusewright {

//@ copies
// 16 bytes to shared memory, some time later; zeros if `from` does not exist: then `instead` is named, and not read.
FN unsigned shared_address(const void* p) { return unsigned(__cvta_generic_to_shared(p)); }
FN void copy_later(unsigned to, const void* from, const void* instead, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(exists ? from : instead),
               "r"(exists ? 16 : 0) : "memory");
}
FN void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LATER> FN void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory"); }

//@ mma_sync
// acc += a x b for 16 rows, 8 columns, 16 k, float16 -> float32.
FN void multiply(float (&acc)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
FN void load_matrices(unsigned (&to)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
}

//@ anew
// Block and thread, in a way that keeps the compiler from remembering all through the loop what depends on them.
FN long block_anew() {
  unsigned x, y;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
  asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(y));
  return long(y) * gridDim.x + x;
}
FN int thread_anew() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

//@ product_tiles: needs factor, pack, grid, anew, copies
constexpr int PRODUCT_THREADS = 256, PRODUCT_WARPS = 8, WARP_ROWS = 32, SUM_UNITS = 16;
template <int WIDTH> struct tile {
  static constexpr int split_rows = WIDTH > 128 ? 64 : 128, warps_across = PRODUCT_WARPS * WARP_ROWS / split_rows;
  static constexpr int warp_columns = WIDTH / warps_across, pairs = warp_columns / 16;
  static constexpr int split_bytes = split_rows * UNIT * 4, stage_bytes = split_bytes + WIDTH * UNIT_BYTES;
  static constexpr int fitting = 163840 / stage_bytes, stages = fitting < 6 ? fitting : 6;
  static constexpr int shared_bytes = stages * stage_bytes;
};
// The order of tiles: eight rows of tiles at a time, so that the blocks at work share what they read.
struct tiles {
  int down, across;
  long count;
  struct place {
    long batch;
    int row, column;
  };
  FN place at(long number) const {
    const long all = long(down) * across, within = number % all, group = within / (8L * across);
    const int first = int(group) * 8, height = down - first < 8 ? down - first : 8;
    const int rest = int(within - group * 8 * across);
    return {number / all, first + rest % height, rest / height};
  }
};
// What one thread copies of each unit: chunk threadIdx.x % 8 of rows threadIdx.x / 8, + 32, ... of both factors. Rows of
// the split factor get the permutation that those of the packed one already have. No register is free in the loop, so
// most of this is worked out for every unit, and which rows exist is kept in bits: the packed factor's from bit 8 on.
template <int WIDTH> struct copier {
  const factor& from;
  const packed& other;
  const int& depth;
  const float* split;
  const unsigned char* units;
  unsigned exists;
  FN copier(const factor& from, int from_rows, const int& depth, const packed& other, tiles::place at)
      : from(from), other(other), depth(depth) {
    const int row = threadIdx.x / 8, chunk = threadIdx.x % 8;
    const int first = at.row * tile<WIDTH>::split_rows + row, first_packed = at.column * WIDTH + row;
    split = from.data + at.batch * from.batch_stride + first * from.row_stride + chunk * 4;
    units = other.unit(at.batch, 0, first_packed) + chunk * 16;
    exists = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      exists |= unsigned(first + i * 32 < from_rows) << i | unsigned(first_packed + i * 32 < other.rows) << (i + 8);
  }
  FN void copy(int unit, unsigned stage) const {
    const int thread = thread_anew(), row = thread / 8, chunk = thread % 8;
    const unsigned there = unit * UNIT + chunk * 4 < depth ? exists : exists & ~255u;
    const unsigned to = stage + row * UNIT_BYTES + ((chunk ^ (row & 7)) << 4);
#pragma unroll
    for (int i = 0; i < tile<WIDTH>::split_rows / 32; ++i)
      copy_later(to + i * 32 * UNIT_BYTES, split + unit * UNIT + i * 32 * from.row_stride, from.data,
                 there >> i & 1);
    const unsigned to_packed = stage + tile<WIDTH>::split_bytes + thread * 16;
    const unsigned char* const here = units + long(unit) * other.rows * UNIT_BYTES;
#pragma unroll
    for (int i = 0; i < WIDTH / 32; ++i)
      copy_later(to_packed + i * 32 * UNIT_BYTES, here + i * 32 * UNIT_BYTES, other.units,
                 there >> (i + 8) & 1);
  }
};

//@ fragments: needs halves, mma_sync
// 16 rows and 32 k of the split factor, as mma.sync wants them: hi and lo of two groups of 16 k.
struct fragments {
  unsigned hi[2][4], lo[2][4];
  float undo[2];  // the inverse scale of rows lane / 4 and lane / 4 + 8
};
FN float larger_size(unsigned a, unsigned b) { return fmaxf(fabsf(__uint_as_float(a)), fabsf(__uint_as_float(b))); }
FN void split_pair(unsigned first, unsigned second, float scale, unsigned& hi, unsigned& lo) {
  split_in_two(__uint_as_float(first) * scale, __uint_as_float(second) * scale, hi, lo);
}
// A lane's part of ldmatrix: it names row lane % 16, and the address of one of the row's 16-byte chunks. The chunks of a
// row are found from the first by XOR, as they are permuted by XOR.
FN unsigned split_place(int lane) { return lane % 16 * UNIT_BYTES + ((lane / 16 ^ lane % 8) << 4); }
// ldmatrix moves a float32 as two halves: the lane gets k = lane % 4 of a chunk. The largest size of each row is found
// among the four lanes that hold the row.
FN void split_rows(fragments& f, unsigned address) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    load_matrices(f.hi[j], address ^ (j * 64));
    load_matrices(f.lo[j], address ^ (j * 64 + 32));
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most[2], scale;
#pragma unroll
    for (int j = 0; j < 2; ++j)
      most[j] = fmaxf(larger_size(f.hi[j][half], f.hi[j][half + 2]), larger_size(f.lo[j][half], f.lo[j][half + 2]));
    most[0] = fmaxf(most[0], most[1]);
    most[0] = fmaxf(most[0], __shfl_xor_sync(~0u, most[0], 1));
    most[0] = fmaxf(most[0], __shfl_xor_sync(~0u, most[0], 2));
    power_of_two(most[0], scale, f.undo[half]);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const unsigned a = f.hi[j][half], b = f.hi[j][half + 2], c = f.lo[j][half], d = f.lo[j][half + 2];
      split_pair(a, b, scale, f.hi[j][half], f.lo[j][half]);
      split_pair(c, d, scale, f.hi[j][half + 2], f.lo[j][half + 2]);
    }
  }
}

//@ multiply_unit: needs product_tiles, fragments
// A warp's part of a tile: pairs of 8 columns, two slabs of 16 rows, which 8 of the pair, and what a lane g * 4 + t has
// of 16 x 8: row g, columns 2 t and the next; the same of row g + 8.
template <int WIDTH> using part_of_tile = float[tile<WIDTH>::pairs][2][2][4];
template <int WIDTH> FN void clear(part_of_tile<WIDTH>& part) {
#pragma unroll
  for (int p = 0; p < tile<WIDTH>::pairs; ++p)
#pragma unroll
    for (int i = 0; i < 16; ++i) part[p][i / 8][i / 4 % 2][i % 4] = 0;
}
template <int WIDTH> FN void empty_into(part_of_tile<WIDTH>& total, part_of_tile<WIDTH>& master) {
#pragma unroll
  for (int p = 0; p < tile<WIDTH>::pairs; ++p)
#pragma unroll
    for (int i = 0; i < 16; ++i) total[p][i / 8][i / 4 % 2][i % 4] += master[p][i / 8][i / 4 % 2][i % 4];
  clear<WIDTH>(master);
}
// 32 rows x 16 columns x 32 k. The four sums take turns, since each waits for its own last step. `address`: as in
// split_rows, of the pair's hi halves; lo lies four chunks behind.
FN unsigned packed_place(int lane) {
  return (lane % 8 + lane / 16 * 8) * UNIT_BYTES + ((lane / 8 % 2 ^ lane % 8) << 4);
}
FN void multiply_pair(float (&master)[2][2][4], const fragments (&rows)[2], unsigned address) {
  unsigned hi[2][4], lo[2][4];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    load_matrices(hi[j], address ^ (j * 32));
    load_matrices(lo[j], address ^ (j * 32 + 64));
  }
  float acc[2][2][4] = {};
#pragma unroll
  for (int step = 0; step < 6; ++step) {
    const int term = step / 2, j = step % 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const fragments& f = rows[i / 2];
      const unsigned (&other)[4] = term == 1 ? lo[j] : hi[j];
      multiply(acc[i / 2][i % 2], term == 0 ? f.lo[j] : f.hi[j], other[i % 2 * 2], other[i % 2 * 2 + 1]);
    }
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float& sum = master[i / 8][i / 4 % 2][i % 4];
    sum = fmaf(acc[i / 8][i / 4 % 2][i % 4], rows[i / 8].undo[i / 2 % 2], sum);
  }
}
template <int WIDTH> FN void multiply_unit(part_of_tile<WIDTH>& master, unsigned split, unsigned packed) {
  fragments rows[2];
  split_rows(rows[0], split);
  split_rows(rows[1], split + 16 * UNIT_BYTES);
#pragma unroll
  for (int p = 0; p < tile<WIDTH>::pairs; ++p) {
    __syncwarp();  // nobody waits here; it keeps the compiler from loading all pairs at once, into registers it lacks
    multiply_pair(master[p], rows, packed + p * 16 * UNIT_BYTES);
  }
}
// The same where packed rows have a scale of their own for every 64 k: the sums of a unit go into `total` one by one.
template <int WIDTH>
FN void multiply_uneven_unit(part_of_tile<WIDTH>& total, unsigned split, unsigned packed, const struct packed& other,
                             const tiles& all, int unit) {
  part_of_tile<WIDTH> sums;
  clear<WIDTH>(sums);
  multiply_unit<WIDTH>(sums, split, packed);
  const tiles::place at = all.at(block_anew());
  const int thread = thread_anew(), lane = thread % 32, warp = thread / 32;
  const int first = at.column * WIDTH + warp % tile<WIDTH>::warps_across * tile<WIDTH>::warp_columns + lane % 4 * 2;
#pragma unroll
  for (int p = 0; p < tile<WIDTH>::pairs; ++p)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first + p * 16 + i / 2 * 8 + i % 2;
      const float undo = row < other.rows ? other.undo_step(at.batch, row, unit / 2) : 0.f;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float& sum = total[p][k / 2][i / 2][k % 2 * 2 + i % 2];
        sum = fmaf(sums[p][k / 2][i / 2][k % 2 * 2 + i % 2], undo, sum);
      }
    }
}

//@ boxes: needs multiply_unit, finish, anew
// The tile as boxes in shared memory. Turned, the packed factor's rows are the result's, and its columns the split one's.
template <int WIDTH, bool SWAPPED, int SEGMENT> struct boxes {
  static constexpr int split_rows = tile<WIDTH>::split_rows;
  static constexpr int columns = SEGMENT > 64 ? SEGMENT : SWAPPED || WIDTH % 128 ? 64 : 128;
  static constexpr int rows = SWAPPED ? WIDTH : split_rows, count = (SWAPPED ? split_rows : WIDTH) / columns;
  // A warp finishes 16 rows of a box at a time, or fewer if there would not be enough for all warps.
  static constexpr int share = rows / 16 * count < PRODUCT_WARPS ? rows / PRODUCT_WARPS : 16;
  static constexpr int items = rows / share * count;
  static_assert(count * columns == (SWAPPED ? split_rows : WIDTH), "a segment lies in one box");
  static_assert(split_rows * WIDTH * 4 <= tile<WIDTH>::shared_bytes, "the boxes take the place of the stages");
  // Row and column as the factors have them; the column is even. True if one of the two values is not finite.
  static FN bool put(float* all, int row, int column, float first, float second) {
    if constexpr (SWAPPED) {
      float* const box = all + row / columns * (rows * columns);
      box[box_place<true, columns>(column, row % columns)] = first;
      box[box_place<true, columns>(column + 1, row % columns)] = second;
    } else {
      float* const box = all + column / columns * (rows * columns);
      *reinterpret_cast<float2*>(box + box_place<false, columns>(row, column % columns)) = make_float2(first, second);
    }
    return !is_finite(first) || !is_finite(second);
  }
  // `inverse`: of the packed rows of this tile, of which there are `inside`, a multiple of 64.
  static FN bool fill(float* all, const part_of_tile<WIDTH>& part, int warp, const float* inverse, int inside) {
    constexpr int ACROSS = tile<WIDTH>::warps_across;
    const int lane = lane_here(), row = warp / ACROSS * WARP_ROWS + lane / 4;
    const int first_column = warp % ACROSS * tile<WIDTH>::warp_columns;
    bool wrong = false;
#pragma unroll
    for (int i = 0; i < tile<WIDTH>::pairs * 2; ++i) {
      const int column = first_column + i * 8 + lane % 4 * 2;
      if (column >= inside) break;
      const float2 given = __ldg(reinterpret_cast<const float2*>(inverse + column));
      const float2 scale = make_float2(fabsf(given.x), fabsf(given.y));  // negative: an uneven row's
#pragma unroll
      for (int slab = 0; slab < 2; ++slab) {
        const float (&x)[4] = part[i / 2][slab][i % 2];
        wrong |= put(all, row + slab * 16, column, x[0] * scale.x, x[1] * scale.y);
        wrong |= put(all, row + slab * 16 + 8, column, x[2] * scale.x, x[3] * scale.y);
      }
    }
    return wrong;
  }
};

//@ multiply_tile: needs multiply_unit, copies
// All k of one tile; a warp's part of it ends in `total`.
template <int WIDTH, bool UNEVEN>
FN void multiply_tile(part_of_tile<WIDTH>& total, const copier<WIDTH>& copies, const struct packed& other,
                      const tiles& all, unsigned stages) {
  using tile = tile<WIDTH>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_row = warp / tile::warps_across * WARP_ROWS, first_column = warp % tile::warps_across * tile::warp_columns;
  const unsigned split = first_row * UNIT_BYTES + split_place(lane);
  const unsigned packed = tile::split_bytes + first_column * UNIT_BYTES + packed_place(lane);
  const int units = other.depth_units;
  part_of_tile<WIDTH> master;
  clear<WIDTH>(total);
  clear<WIDTH>(master);
#pragma unroll
  for (int unit = 0; unit < tile::stages - 1; ++unit) {
    if (unit < units) copies.copy(unit, stages + unit * tile::stage_bytes);
    close_copies();
  }
  const unsigned last = stages + (tile::stages - 1) * tile::stage_bytes;
  unsigned stage = stages;
#pragma unroll 1
  for (int unit = 0; unit < units; ++unit) {
    wait_copies<tile::stages - 2>();
    __syncthreads();  // everybody's copies are there, and nobody still reads the stage before this one
    const int next = unit + tile::stages - 1;
    if (next < units) copies.copy(next, stage == stages ? last : stage - tile::stage_bytes);
    close_copies();
    if constexpr (UNEVEN)
      multiply_uneven_unit<WIDTH>(total, stage + split, stage + packed, other, all, unit);
    else
      multiply_unit<WIDTH>(master, stage + split, stage + packed);
    stage = stage == last ? stages : stage + tile::stage_bytes;
    if (unit % SUM_UNITS == SUM_UNITS - 1) empty_into<WIDTH>(total, master);
  }
  empty_into<WIDTH>(total, master);
  __syncthreads();  // the stages are no longer read
}

//@ run_product: needs boxes, multiply_tile
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, class Body>
__global__ void __launch_bounds__(PRODUCT_THREADS, 1)
    product_kernel(const __grid_constant__ Body body, const __grid_constant__ factor left,
                   const __grid_constant__ factor right, const __grid_constant__ product_shape shape,
                   const __grid_constant__ packed other, const tiles all) {
  using tile = tile<WIDTH>;
  using boxes = boxes<WIDTH, SWAPPED, SEGMENT>;
  extern __shared__ __align__(128) unsigned char shared[];
  if (block_index() >= all.count) return;
  part_of_tile<WIDTH> total;
  {
    const unsigned stages = shared_address(shared);
    const int split_rows = SWAPPED ? shape.columns : shape.rows;
    const tiles::place at = all.at(block_index());
    const copier<WIDTH> copies(SWAPPED ? right : left, split_rows, shape.depth, other, at);
    const int row = at.column * WIDTH + threadIdx.x;
    const bool mine = threadIdx.x < WIDTH && row < other.rows && other.inverse[other.first_inverse(at.batch, row)] < 0;
    if (__syncthreads_or(mine))
      multiply_tile<WIDTH, true>(total, copies, other, all, stages);
    else
      multiply_tile<WIDTH, false>(total, copies, other, all, stages);
  }
  const tiles::place at = all.at(block_anew());
  const int warp = thread_anew() / 32, packed_row = at.column * WIDTH, split_row = at.row * tile::split_rows;
  float* const box = reinterpret_cast<float*>(shared);
  const float* const inverse = other.inverse + other.first_inverse(at.batch, packed_row);
  const bool repairs = __syncthreads_or(boxes::fill(box, total, warp, inverse, other.rows - packed_row));
  const int top = SWAPPED ? packed_row : split_row, column = SWAPPED ? split_row : packed_row;
#pragma unroll 1
  for (int item = warp; item < boxes::items; item += PRODUCT_WARPS) {
    const int i = item % boxes::count, begin = item / boxes::count * boxes::share, rest = shape.rows - top;
    const int end = begin + boxes::share < rest ? begin + boxes::share : rest;
    float* const mine = box + i * (boxes::rows * boxes::columns);
    const box_corner corner{at.batch * shape.rows + top, at.batch, top, column + i * boxes::columns};
    if (corner.column >= shape.columns || begin >= end) continue;
    if (repairs) repair<SWAPPED, boxes::columns>(mine, begin, end, corner, left, right, shape);
    finish<SWAPPED, boxes::columns, SEGMENT, VECTOR>(body, mine, begin, end, corner, shape.columns);
  }
}
#ifdef __CUDACC_RTC__
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, class Body>
FN int run_product(const Body&, factor, factor, long, long, long, long, void*, int, void*) {
  return &product_kernel<WIDTH, SWAPPED, SEGMENT, VECTOR, Body> == nullptr || &pack_rows<true> == nullptr ||
         &pack_rows<false> == nullptr || &pack_columns == nullptr;
}
#else
// More shared memory than a kernel gets unasked. Asked for once per kernel and device.
template <auto KERNEL> int allow_shared(int bytes, int device) {
  static bool known[64];
  const bool listed = device >= 0 && device < 64;
  if (listed && known[device]) return 0;
  const int error = cudaFuncSetAttribute(KERNEL, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (listed && !error) known[device] = true;
  return error;
}
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, class Body>
int run_product(const Body& body, factor left, factor right, long batches, long rows, long columns, long depth,
                void* workspace, int device, void* stream) {
  if (batches <= 0 || rows <= 0 || columns <= 0) return 0;
  const device_scope scope(device);
  constexpr auto kernel = product_kernel<WIDTH, SWAPPED, SEGMENT, VECTOR, Body>;
  constexpr int bytes = tile<WIDTH>::shared_bytes;
  if (int error = allow_shared<kernel>(bytes, device)) return error;
  const factor& small = SWAPPED ? left : right;
  const int packed_rows = int(SWAPPED ? rows : columns), split_rows = int(SWAPPED ? columns : rows);
  const auto on = static_cast<cudaStream_t>(stream);
  const packed other = packed_in(workspace, small, batches, packed_rows, int(depth));
  if (int error = pack(small, packed_rows, int(depth), other, on)) return error;
  const int down = (split_rows + tile<WIDTH>::split_rows - 1) / tile<WIDTH>::split_rows;
  const int across = (packed_rows + WIDTH - 1) / WIDTH;
  const tiles all{down, across, batches * down * across};
  const product_shape shape{batches, int(rows), int(columns), int(depth)};
  kernel<<<grid_of(all.count), PRODUCT_THREADS, bytes, on>>>(body, left, right, shape, other, all);
  return cudaGetLastError();
}
#endif

//@
}  // namespace fusewright
