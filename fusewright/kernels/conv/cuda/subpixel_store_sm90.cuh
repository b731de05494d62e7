// How tiles of stacked phases leave their registers on Hopper (sm_90a), where channels and phases are a tile's columns.
//
// The surprising fact: nothing wants vectors. Once a smem tile has its lines as the result has them, a warp that stores 32
// neighbours at a time writes whole sectors wherever a line begins, odd ones too, and no place needs to be even.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/conv/cuda/transposed.cuh"
namespace fusewright {

//@ subpixel_out: needs transposed_epilogue, conv_consume
// A smem tile of 64 places x 64 columns: lines of 64 places, whose phases along W are neighbours. Groups of neighbours are
// moved, so that neither what a warp has of eight columns nor what it reads of a line meets in a bank.
template <int TOGETHER> struct phase_smem_tile {
  static constexpr int line = 64 * TOGETHER, lines = 64 / TOGETHER, each = line / 32;  // each: elements of a lane
  FN static int start(int number, int element) {
    return number * line + (element ^ number % (8 / TOGETHER) * (TOGETHER * 4));
  }
};
template <int TOGETHER> FN void fill_lines(float* smem_tile, const float (&sums)[32], int warp) {
  const int lane = lane_here(), column = lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int place = warp * 16 + half * 8 + lane / 4;
    float* const to = smem_tile + phase_smem_tile<TOGETHER>::start(column / TOGETHER, place * TOGETHER + column % TOGETHER);
#pragma unroll
    for (int j = 0; j < 8; ++j)
      *reinterpret_cast<float2*>(to + j * 8 * 64) = make_float2(sums[j * 4 + half * 2], sums[j * 4 + half * 2 + 1]);
  }
}
// Registers have no index at run time.
template <int TOGETHER, int I = 0, int QUARTERS>
FN void choose_lines(float* smem_tile, const float (&sums)[QUARTERS][32], int number, int warp) {
  if constexpr (I + 1 < QUARTERS)
    if (number != I) return choose_lines<TOGETHER, I + 1>(smem_tile, sums, number, warp);
  fill_lines<TOGETHER>(smem_tile, sums[I], warp);
}
// What a lane has of LINES lines of one channel: columns of the result, and whether they are there. All may be read: those that
// are not stand for the first.
template <int COUNT> struct lines_range {
  int column[COUNT];
  bool live[COUNT];
};
template <int COUNT, int VECTOR = 1> struct lines_lane : words<lines_lane<COUNT, VECTOR>> {
  static constexpr int vector = VECTOR;
};
// An address of a row that stays apart from its columns, and still is known to be one of global memory.
template <class T> FN T* row_apart(T* p) {
  unsigned long at = __cvta_generic_to_global(p);
  asm("" : "+l"(at));
  return static_cast<T*>(__cvta_global_to_generic(at));
}
struct line_column : phase_column {
  template <class T> FN T* of(T* p, long) const { return row_apart(p) + flat; }
};
template <> inline constexpr bool reads_all<line_column> = true;
template <int COUNT, int VECTOR, class Sink, class F, class... Ops>
FN void walk(lines_lane<COUNT, VECTOR>&, const lines_range<COUNT>& r, Sink& sink, const F& f, Ops... operand) {
  line_column at[COUNT];
#pragma unroll
  for (int u = 0; u < COUNT; ++u) at[u] = {{{r.column[u], r.column[u], 0, u}, u}};
  visit<true, VECTOR, COUNT>(at, r.live, sink, f, typename Ops::template packet<VECTOR, COUNT>(operand)...);
}
// The product as an operand: from each line, every 32nd element.
template <int LINES, int EACH> struct phase_lines {
  using value = float;
  static constexpr int bytes = 0;
  static constexpr bool kept = true;
  const float* line[LINES];
  template <int W, int U> struct packet {
    static_assert(W == 1 && U == LINES * EACH, "one by one");
    const float* line[LINES];
    float held[U];
    FN explicit packet(const phase_lines& o) {
#pragma unroll
      for (int i = 0; i < LINES; ++i) line[i] = o.line[i];
    }
    FN void fetch(int u, const line_column&) { held[u] = line[u / EACH][u % EACH * 32]; }
    FN float element(int u, int, const line_column&) { return held[u]; }
    FN void flush(int, const line_column&) {}
  };
};
// Where a lane's elements of a channel's first line lie; and, bit by bit, in which of its lines they are there.
template <int TOGETHER> struct phase_elements {
  static constexpr int EACH = phase_smem_tile<TOGETHER>::each, MOST = 32 / EACH;
  int first[EACH];
  unsigned live = 0;
  FN phase_elements(const transposed_shape<TOGETHER>& s, const subpixel_phases& phases, int place, int places) {
    const int lane = lane_here(), height = (1 << s.height_bits) - 1;
    const int (&size)[3] = s.given.out_size;
#pragma unroll
    for (int u = 0; u < EACH; ++u) {
      const int element = lane + u * 32, mine = place + element / TOGETHER;
      const phase_place p = place_of_phase(s, phases, mine, element % TOGETHER);
      first[u] = (p.z * size[1] + p.y) * size[2] + p.x;
      if (mine >= places || unsigned(p.x) >= unsigned(size[2])) continue;
#pragma unroll 1
      for (int i = 0; i < 1 << s.line_bits; ++i) {
        const int z = p.z + (i >> s.height_bits), y = p.y + (i & height);
        live |= unsigned(unsigned(z) < unsigned(size[0]) && unsigned(y) < unsigned(size[1])) << u * MOST + i;
      }
    }
  }
  // LINES lines from line `line` on.
  template <int LINES> FN lines_range<LINES * EACH> of(const transposed_shape<TOGETHER>& s, int line) const {
    const int (&size)[3] = s.given.out_size;
    lines_range<LINES * EACH> found;
#pragma unroll
    for (int i = 0; i < LINES; ++i) {
      const int across = line + i, height = across & (1 << s.height_bits) - 1;
      const int further = ((across >> s.height_bits) * size[1] + height) * size[2];
#pragma unroll
      for (int u = 0; u < EACH; ++u) {
        const bool here = live >> line & 1u << u * MOST + i;
        found.live[i * EACH + u] = here, found.column[i * EACH + u] = here ? first[u] + further : 0;
      }
    }
    return found;
  }
};
// Lines of a smem tile, of all its channels: each warp takes every fourth channel. `here`: what the first LINES lines are.
template <int LINES, int TOGETHER, int MOST, class Body>
FN void smem_tile_out(const transposed_body<TOGETHER, MOST, Body>& to, const float* smem_tile,
                const phase_elements<TOGETHER>& elements, lines_range<LINES * phase_smem_tile<TOGETHER>::each> here, int row,
                    int channels) {
  using all = phase_smem_tile<TOGETHER>;
  const transposed_shape<TOGETHER>& s = to.shape;
  const int lane = lane_here(), warp = warp_here() % 4;
#pragma unroll 1
  for (int line = 0; line < 1 << s.line_bits; line += LINES) {
    if (line > 0) here = elements.template of<LINES>(s, line);
    phase_lines<LINES, all::each> found;
#pragma unroll
    for (int i = 0; i < LINES; ++i) found.line[i] = smem_tile + all::start((warp << s.line_bits) + line + i, lane);
#pragma unroll 1
    for (int c = warp; c < channels; c += 4) {
      to.body(long(unsigned(row + c)), here, lines_lane<LINES * all::each>(), found);
#pragma unroll
      for (int i = 0; i < LINES; ++i) found.line[i] += 4 * all::line << s.line_bits;
    }
  }
}
template <int WIDTH, int LINES, int TOGETHER, class Consumer>
FN void smem_tiles_out(const Consumer& me, const float (&sums)[WIDTH / 64][32], tiles::place tile) {
  const transposed_shape<TOGETHER>& s = me.body.shape;
  const int warp = warp_here() - decltype(me.operands)::first_warp, group = warp / 4, top = tile.column * WIDTH;
  const int image = s.per_image(tile.batch), place = tile.row * TILE_ROWS + me.slab / 4 * 64;
  const subpixel_phases phases = s.phases_of(tile.batch - image * s.gemms());
  const int first = image * s.given.out_channels + phases.group * (s.given.out_channels / s.given.groups);
  const phase_elements<TOGETHER> elements(s, phases, place, me.shape.columns);
  const auto here = elements.template of<LINES>(s, 0);
  float* const smem_tile = me.smem_tiles + group * 4 * SMEM_TILE;
#pragma unroll 1
  for (int number = 0; number < WIDTH / 64; ++number) {
    const int row = top + number * 64, behind = me.shape.rows - row, rows = behind < 64 ? behind : 64;
    if (rows <= 0) break;
    if (number > 0) group_sync(1 + group, 128);
    choose_lines<TOGETHER>(smem_tile, sums, number, warp % 4);
    group_sync(1 + group, 128);
    const int lines = rows / TOGETHER;
    smem_tile_out<LINES>(me.body, smem_tile, elements, here, first + (row / TOGETHER >> s.line_bits), lines >> s.line_bits);
  }
}
// Two phases along W of two places, as an operand: what a lane has, and stores, as two vectors.
struct phase_pairs {
  using value = float;
  static constexpr int bytes = 0;
  static constexpr bool kept = true;
  float pair[2][2];
  template <int W, int U> struct packet {
    static_assert(W <= 2 && U == 2, "pairs, or one of each");
    float pair[2][2];
    FN explicit packet(const phase_pairs& o) : pair{{o.pair[0][0], o.pair[0][1]}, {o.pair[1][0], o.pair[1][1]}} {}
    FN void fetch(int, const line_column&) {}
    FN float element(int u, int j, const line_column&) { return pair[u][j]; }
    FN void flush(int, const line_column&) {}
  };
};
// Where lines of channels begin for whoever has phases of `row` and of every 4th row behind it.
struct pair_rows {
  int first, row, bits;
  FN long channel(int further) const { return long(unsigned(first + (row + further >> bits))); }
};
// Pairs of a whole tile of 64 places go from the registers that they are in to where they lie: no line is seen by two lanes.
// BETWEEN: where a place's first pixel is an odd one, its pair is its second one and the next place's first, from the next
// lane. What a warp lacks for that is in shared memory, and so are the tile's own ends, which leave alone.
template <bool BETWEEN, int WIDTH, class Consumer>
FN void pairs_out(const Consumer& me, const float (&sums)[WIDTH / 64][32], tiles::place tile) {
  const transposed_shape<2>& s = me.body.shape;
  const int warp = warp_here() - decltype(me.operands)::first_warp, lane = lane_here(), g = lane / 4, t = lane % 4;
  const int image = s.per_image(tile.batch), place = tile.row * TILE_ROWS + me.slab / 4 * 64;
  const subpixel_phases phases = s.phases_of(tile.batch - image * s.gemms());
  const int channel = image * s.given.out_channels + phases.group * (s.given.out_channels / s.given.groups);
  const int first = channel + (tile.column * WIDTH / 2 >> s.line_bits), height = (1 << s.height_bits) - 1;
  const int (&size)[3] = s.given.out_size;
  // The pixel of a place's phase in a row's line, and that many behind it, if they are all there.
  const auto find = [&](lines_range<2>& found, int i, int mine, int row, int phase, int pixels) {
    const phase_place p = place_of_phase(s, phases, mine, phase);
    const int line = row & (1 << s.line_bits) - 1, z = p.z + (line >> s.height_bits), y = p.y + (line & height);
    const bool inside = unsigned(z) < unsigned(size[0]) && unsigned(y) < unsigned(size[1]) && mine < me.shape.columns;
    found.live[i] = inside && p.x >= 0 && p.x + pixels <= size[2];
    found.column[i] = found.live[i] ? (z * size[1] + y) * size[2] + p.x : 0;
  };
  lines_range<2> here;
#pragma unroll
  for (int i = 0; i < 2; ++i) find(here, i, place + warp % 4 * 16 + i * 8 + g, t, BETWEEN, 2);
  float* const ends = me.smem_tiles + warp / 4 * 4 * SMEM_TILE + t;
  if constexpr (BETWEEN) {
    // What nobody wants has a place, too, one of each lane: where lanes part, the compiler no longer lets multiplications overlap.
    const bool last = warp % 4 == 3 && g == 7, wanted = g == 0 || last;
    const int unwanted = 5 * (WIDTH / 2) - t + warp % 4 * 32 + lane, step = wanted ? 4 : 0;
    float* const mine = ends + (wanted ? (last ? 4 : warp % 4) * (WIDTH / 2) : unwanted);
#pragma unroll
    for (int j = 0; j < WIDTH / 8; ++j) mine[j * step] = last ? sums[j / 8][j % 8 * 4 + 3] : sums[j / 8][j % 8 * 4];
    here.live[1] = here.live[1] && !last;
    group_sync(1 + warp / 4, 128);
    const int row = (warp % 4 * 32 + lane) % (WIDTH / 2);
    const float* const from = ends - t + row;
    lines_range<2> alone;
    find(alone, 0, place, row, 0, 1), find(alone, 1, place + 63, row, 1, 1);
    for (bool& live : alone.live) live = live && warp % 4 * 32 < WIDTH / 2;
    me.body.body(pair_rows{first, row, s.line_bits}.channel(0), alone, lines_lane<2>(),
                 phase_pairs{{{from[0], 0}, {from[WIDTH / 2 * 4], 0}}});
  }
  const int beside = (lane + 4) % 32;
  const float* const behind = ends + (warp % 4 + 1) * (WIDTH / 2);
  const pair_rows rows{first, t, s.line_bits};
#pragma unroll
  for (int j = 0; j < WIDTH / 8; ++j) {
    const float* const held = sums[j / 8] + j % 8 * 4;
    phase_pairs found{{{held[0], held[1]}, {held[2], held[3]}}};
    if constexpr (BETWEEN) {
      const float next = g == 0 ? held[2] : held[0], after = g == 0 ? behind[j * 4] : held[2];
      found = {{{held[1], __shfl_sync(~0u, next, beside)}, {held[3], __shfl_sync(~0u, after, beside)}}};
    }
    me.body.body(rows.channel(j * 4), here, lines_lane<2, 2>(), found);
  }
}
// False, and nothing done, if a tile is in need of a fixup.
template <int WIDTH, int VECTOR, class Sums, int TOGETHER, int MOST, class Body, class Operands>
FN bool subpixel_out(const consumer<transposed_body<TOGETHER, MOST, Body>, Operands>& me, const Sums& sums, tiles::place tile) {
  if constexpr (TOGETHER > 1) {
    if (group_any(1 + (warp_here() - Operands::first_warp) / 4, 128, me.operands.needs_fixup)) return false;
    const transposed_shape<TOGETHER>& s = me.body.shape;
    if constexpr (TOGETHER == 2 && VECTOR % 2 == 0)
      if (s.given.out_size[2] % 2 == 0 && s.line_bits < 3 && (tile.column + 1) * WIDTH <= me.shape.rows) {
        if (s.shift[2] % 2)
          pairs_out<true, WIDTH>(me, sums, tile);
        else
          pairs_out<false, WIDTH>(me, sums, tile);
        return true;
      }
    if (TOGETHER == 2 && s.line_bits > 0)
      smem_tiles_out<WIDTH, 2, TOGETHER>(me, sums, tile);
    else
      smem_tiles_out<WIDTH, 1, TOGETHER>(me, sums, tile);
    return true;
  }
  return false;
}

//@
}  // namespace fusewright
