// A tile of a product on Ampere (sm_80), whatever its operands are: its instructions, where it lies, how its k blocks come by
// in shared memory, and how the tensor core's fragments of it reach the generated body.
//
// The surprising fact: no register is free. A warp's 32 x 64 sums, twice, and the fragments of one step fill all 255, so
// whatever can be worked out again is not remembered.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/gemm/cuda/triangular_tiles_sm80.cuh"
namespace fusewright {

//@ matrix_places: needs k_blocks
// A lane's part of ldmatrix: it names row lane % 16, or lane % 8 and eight further, and the address of one of the row's
// 16-byte chunks. The chunks of a row are found from the first by XOR, as they are permuted by XOR.
FN unsigned split_halves(int lane) { return lane % 16 * K_BLOCK_BYTES + ((lane / 16 ^ lane % 8) << 4); }
FN unsigned wide_halves(int lane) { return (lane % 8 + lane / 16 * 8) * K_BLOCK_BYTES + ((lane / 8 % 2 ^ lane % 8) << 4); }

//@ fragments: needs halves, k_blocks, mma_sync
// 16 rows and 32 k of the split operand, as mma.sync wants them: hi and lo of two groups of 16 k.
struct fragments {
  unsigned hi[2][4], lo[2][4];
  float undo[2];  // the inverse scale of rows lane / 4 and lane / 4 + 8
};
FN float larger_size(unsigned a, unsigned b) { return fmaxf(fabsf(__uint_as_float(a)), fabsf(__uint_as_float(b))); }
FN void split_pair(unsigned first, unsigned second, float scale, unsigned& hi, unsigned& lo) {
  split_in_two(__uint_as_float(first) * scale, __uint_as_float(second) * scale, hi, lo);
}
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

//@ part_of_tile: needs tile_order
// A warp's part of a tile: pairs of 8 columns, slabs of 16 rows, which 8 of the pair, and what a lane g * 4 + t has
// of 16 x 8: row g, columns 2 t and the next; the same of row g + 8.
template <class Tile> using part_of = float[Tile::warp_columns / 16][Tile::warp_rows / 16][2][4];
template <int WIDTH> using part_of_tile = part_of<tile<WIDTH>>;
template <int PAIRS, int SLABS> FN void clear_part(float (&part)[PAIRS][SLABS][2][4]) {
#pragma unroll
  for (int i = 0; i < PAIRS * SLABS * 8; ++i) part[i / SLABS / 8][i / 8 % SLABS][i / 4 % 2][i % 4] = 0;
}
template <int WIDTH> FN void clear(part_of_tile<WIDTH>& part) { clear_part(part); }
template <int WIDTH> FN void empty_into(part_of_tile<WIDTH>& total, part_of_tile<WIDTH>& promoted) {
#pragma unroll
  for (int p = 0; p < tile<WIDTH>::pairs; ++p)
#pragma unroll
    for (int i = 0; i < 16; ++i) total[p][i / 8][i / 4 % 2][i % 4] += promoted[p][i / 8][i / 4 % 2][i % 4];
  clear<WIDTH>(promoted);
}

//@ stream_k_blocks: needs copies
// All k blocks of a tile come by, a few of them on their way all the time: work(number, where it lies in shared memory).
template <class Tile, class Copier, class Work>
FN void stream_k_blocks(const Copier& copies, int k_blocks, unsigned stages, const Work& work) {
#pragma unroll
  for (int k_block = 0; k_block < Tile::stages - 1; ++k_block) {
    if (k_block < k_blocks) copies.copy(k_block, stages + k_block * Tile::stage_bytes);
    close_copies();
  }
  const unsigned last = stages + (Tile::stages - 1) * Tile::stage_bytes;
  unsigned stage = stages;
#pragma unroll 1
  for (int k_block = 0; k_block < k_blocks; ++k_block) {
    wait_copies<Tile::stages - 2>();
    __syncthreads();  // everybody's copies are there, and nobody still reads the stage before this one
    const int next = k_block + Tile::stages - 1;
    if (next < k_blocks) copies.copy(next, stage == stages ? last : stage - Tile::stage_bytes);
    close_copies();
    work(k_block, stage);
    stage = stage == last ? stages : stage + Tile::stage_bytes;
  }
  __syncthreads();  // the stages are no longer read
}

//@ register_epilogue
// Whether a body takes columns from registers: here, all tiles leave through smem tiles.
template <class Body> constexpr bool has_register_epilogue = false;

//@ tile_out: needs part_of_tile, finish, anew
// The tile as smem tiles. SWAPPED: the packed operand's rows are the result's, and its columns the split one's.
template <class Tile, bool SWAPPED, int SEGMENT> struct smem_tiles {
  static constexpr int split_rows = Tile::split_rows, WIDTH = Tile::width, slabs = Tile::warp_rows / 16;
  static constexpr int columns = SEGMENT > 64 ? SEGMENT : SWAPPED || WIDTH % 128 ? 64 : 128;
  static constexpr int rows = SWAPPED ? WIDTH : split_rows, count = (SWAPPED ? split_rows : WIDTH) / columns;
  // A warp finishes 16 rows of a smem tile at a time, or fewer if there would not be enough for all warps.
  static constexpr int share = rows / 16 * count < GEMM_WARPS ? rows / GEMM_WARPS : 16;
  static constexpr int items = rows / share * count;
  static_assert(count * columns == (SWAPPED ? split_rows : WIDTH), "a segment lies in one box");
  static_assert(split_rows * WIDTH * 4 <= Tile::shared_bytes, "the boxes take the place of the stages");
  // Row and column as the operands have them; the column is even. True if one of the two values is not finite.
  static FN bool put(float* all, int row, int column, float first, float second) {
    if constexpr (SWAPPED) {
      float* const smem_tile = all + row / columns * (rows * columns);
      smem_tile[smem_tile_place<true, columns>(column, row % columns)] = first;
      smem_tile[smem_tile_place<true, columns>(column + 1, row % columns)] = second;
    } else {
      float* const smem_tile = all + column / columns * (rows * columns);
      *reinterpret_cast<float2*>(smem_tile + smem_tile_place<false, columns>(row, column % columns)) = make_float2(first, second);
    }
    return !is_finite(first) || !is_finite(second);
  }
  // `scale_of`: what a column and the next still want to be multiplied by; there are `inside` columns, a multiple of 64.
  template <class Scale>
  static FN bool fill(float* all, const part_of<Tile>& part, int warp, const Scale& scale_of, int inside) {
    constexpr int ACROSS = Tile::warps_across;
    const int lane = lane_here(), row = warp / ACROSS * Tile::warp_rows + lane / 4;
    const int first_column = warp % ACROSS * Tile::warp_columns;
    bool wrong = false;
#pragma unroll
    for (int i = 0; i < Tile::warp_columns / 8; ++i) {
      const int column = first_column + i * 8 + lane % 4 * 2;
      if (column >= inside) break;
      const float2 scale = scale_of(column);
#pragma unroll
      for (int slab = 0; slab < slabs; ++slab) {
        const float (&x)[4] = part[i / 2][slab][i % 2];
        wrong |= put(all, row + slab * 16, column, x[0] * scale.x, x[1] * scale.y);
        wrong |= put(all, row + slab * 16 + 8, column, x[2] * scale.x, x[3] * scale.y);
      }
    }
    return wrong;
  }
};
// All warps' parts go through smem tiles, in the place of the stages, to the body. What is not finite is only
// computed again if some thread finds it `needs_fixup`.
template <class Tile, bool SWAPPED, int SEGMENT, int VECTOR, class Body, class Scale, class GemmOperand>
FN void tile_out(const Body& body, const part_of<Tile>& part, const Scale& scale_of, int inside, tiles::place at,
                 const GemmOperand& left, const GemmOperand& right, const gemm_shape& shape, unsigned char* shared,
                 bool needs_fixup = true) {
  using smem_tiles = smem_tiles<Tile, SWAPPED, SEGMENT>;
  const int warp = thread_anew() / 32, wide_row = at.column * Tile::width, split_row = at.row * Tile::split_rows;
  float* const smem_tile = reinterpret_cast<float*>(shared);
  const bool fixes_up = __syncthreads_or(smem_tiles::fill(smem_tile, part, warp, scale_of, inside) && needs_fixup);
  const int top = SWAPPED ? wide_row : split_row, column = SWAPPED ? split_row : wide_row;
#pragma unroll 1
  for (int item = warp; item < smem_tiles::items; item += GEMM_WARPS) {
    const int i = item % smem_tiles::count, begin = item / smem_tiles::count * smem_tiles::share, rest = shape.rows - top;
    const int end = begin + smem_tiles::share < rest ? begin + smem_tiles::share : rest;
    float* const mine = smem_tile + i * (smem_tiles::rows * smem_tiles::columns);
    const smem_tile_corner corner{at.batch * shape.rows + top, at.batch, top, column + i * smem_tiles::columns};
    if (corner.column >= shape.columns || begin >= end) continue;
    if (fixes_up) fixup<SWAPPED, smem_tiles::columns>(mine, begin, end, corner, left, right, shape);
    finish<SWAPPED, smem_tiles::columns, SEGMENT, VECTOR>(body, mine, begin, end, corner, shape.columns);
  }
}

//@
}  // namespace fusewright
