// Running sums and products along rows that no team can keep, and along rows that lie across memory.
//
// A block walks its row in chunks that fit its registers; the body runs once for each. The surprising fact: the text
// of the body is the same as for a whole row, since `keep` gives it the registers of a chunk, and each scan adds what
// the chunks before came to. Loads of one chunk wait for the carry of another only in the same block, so a processor
// has several blocks, and so have rows that are few. Whatever else a row comes to (its sum, say) is not known in the
// middle of it: kernels/scan/family.py.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/rowwise/cuda/grid_resident_rows.cuh"
#include "kernels/scan/cuda/scan.cuh"
namespace fusewright {

//@ chunks: needs words, keep, scan
// A block on EACH elements per thread of its row. A thread of a `team` has vectors, THREADS apart; one of a `column_panel`
// has neighbours of its row, as the other rows are what lies side by side in memory.
constexpr int MOST_SCANS = 4;
struct carried {
  unsigned long total[MOST_SCANS];  // of each scan of the body, in the order of its text
  int room = 0;
};
template <class Block, int EACH> struct chunks : words<chunks<Block, EACH>> {
  static constexpr int vector = Block::vector, threads = Block::threads, across = Block::across, burst = 16;
  static constexpr long chunk = long(threads) * EACH;
  static constexpr bool spread = false;
  static_assert(across > 1 || threads > 32, "a row in chunks has a whole block");
  Block& block;
  carried& carry;
  long start;
  bool first, last;
  int scans = 0;
  FN chunks(Block& block, carried& carry, long start, bool first, bool last)
      : block(block), carry(carry), start(start), first(first), last(last) {}
  FN int member() const { return block.member(); }
  FN bool leads() const { return last && block.leads(); }
  template <class T, long N = 0> FN auto keep() {
    return kept_row<T, layout<chunks, N>::slots, layout<chunks, N>::W>();
  }
};
template <class Block, int EACH, long TOTAL> struct layout<chunks<Block, EACH>, TOTAL> {
  static constexpr int W = TOTAL % Block::vector == 0 ? Block::vector : 1, slots = EACH / W;
  static constexpr int stride = Block::across > 1 ? W : Block::threads * W, apart = Block::across > 1 ? EACH : W;
};
// What comes before a chunk, for everybody; the next chunk gets it joined with `total`.
template <class Scan, class Block, int EACH, class Wide> FN Wide hand_on(chunks<Block, EACH>& team, Wide total) {
  static_assert(sizeof(Wide) <= sizeof(long), "a carry fits its place");
  unsigned long& place = team.carry.total[team.scans++];
  Wide before;
  memcpy(&before, &place, sizeof(Wide));
  if (team.first) before = Scan::template none<Wide>();
  total = Scan::join(before, total);
  memcpy(&place, &total, sizeof(Wide));
  return before;
}
// `place(slot)` for each vector of a chunk; a thread has `left` elements of its row before it, if so many.
template <bool GUARDED, class Lay, class Place, class Team, class Sink, class F, class... Ops>
FN void visit_chunk(Team&, long left, const Place& place, Sink& sink, const F& f, Ops... operand) {
  constexpr int W = Lay::W, U = in_flight<vector_bytes<W, Ops...>, Lay::slots, Team::burst>::count;
  const int end = left < 1L << 30 ? int(left) : 1 << 30;
#pragma unroll
  for (int s = 0; s < Lay::slots; s += U) {
    decltype(place(0)) at[U];
    bool live[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      at[u] = place(s + u);
      live[u] = s + u < Lay::slots && (!GUARDED || (s + u) * Lay::stride < end);
    }
    visit<GUARDED || Lay::slots % U != 0, W, U>(at, live, sink, f, typename Ops::template packet<W, U>(operand)...);
  }
}
template <class Lay, class Place, class Team, class Sink, class F, class... Ops>
FN void walk_chunk(Team& team, long total, const Place& place, Sink& sink, const F& f, Ops... operand) {
  const long left = total - place(0).flat;
  if (team.start + Team::chunk <= total)
    visit_chunk<false, Lay>(team, left, place, sink, f, operand...);
  else
    visit_chunk<true, Lay>(team, left, place, sink, f, operand...);
}
template <class Block, int EACH, long... N, class Sink, class F, class... Ops>
FN void walk(chunks<Block, EACH>& team, fixed_span<N...> span, Sink& sink, const F& f, Ops... operand) {
  using lay = layout<chunks<Block, EACH>, span.total>;
  using place = typename fixed_span<N...>::template place<lay::W>;
  using index = decltype(place().flat);
  const index first = index(team.start) + team.member() * lay::apart;
  const auto at = [&](int s) { return place{index(first + s * lay::stride), first, index(s * lay::stride), s}; };
  walk_chunk<lay>(team, span.total, at, sink, f, operand...);
}

//@ span_chunks: needs chunks, span
struct line_slot : line_place { int slot; };
struct sheet_slot : sheet_place { int slot; };
template <class Block, int EACH, class Sink, class F, class... Ops>
FN void walk(chunks<Block, EACH>& team, line_span span, Sink& sink, const F& f, Ops... operand) {
  using lay = layout<chunks<Block, EACH>, 0>;
  const long first = team.start + team.member() * lay::apart;
  const auto at = [&](int s) { return line_slot{{first + s * lay::stride}, s}; };
  walk_chunk<lay>(team, span.inner, at, sink, f, operand...);
}
template <class Block, int EACH, class Sink, class F, class... Ops>
FN void walk(chunks<Block, EACH>& team, sheet_span span, Sink& sink, const F& f, Ops... operand) {
  using lay = layout<chunks<Block, EACH>, 0>;
  const long first = team.start + team.member() * lay::apart;
  const auto at = [&](int s) {
    const long flat = first + s * lay::stride, o = flat / span.inner;
    return sheet_slot{{int(o), int(flat - o * span.inner), flat}, s};
  };
  walk_chunk<lay>(team, span.outer * span.inner, at, sink, f, operand...);
}

//@ run_scan_chunked: needs chunks, grid, device_scope
// Blocks that a processor must have room for.
constexpr int chunk_blocks(int size) { return size < 512 ? 768 / size : 1024 / size; }
template <class Block, int SIZE, int EACH, bool BACK, class Body>
__global__ void __launch_bounds__(SIZE, chunk_blocks(SIZE)) chunk_kernel(const Body body, long rows, long columns) {
  constexpr long CHUNK = chunks<Block, EACH>::chunk;
  Block block;
  const long row = block_index() * Block::across + block.lane(), last = (columns - 1) / CHUNK;
  if (row >= rows) return;
  carried carry;
#pragma unroll 1
  for (long k = 0; k <= last; ++k) {
    long start = (BACK ? last - k : k) * CHUNK;
    asm volatile("" : "+l"(start));
    body(row, chunks<Block, EACH>(block, carry, start, k == 0, k == last));
  }
}
#ifdef __CUDACC_RTC__
template <class Block, int SIZE, int EACH, bool BACK, class Body>
FN int run_scan_chunked(const Body&, long, long, int, void*) {
  return &chunk_kernel<Block, SIZE, EACH, BACK, Body> == nullptr;
}
#else
template <class Block, int SIZE, int EACH, bool BACK, class Body>
int run_scan_chunked(const Body& body, long rows, long columns, int device, void* stream) {
  if (rows <= 0 || columns <= 0) return 0;
  const device_scope scope(device);
  const dim3 grid = grid_of((rows + Block::across - 1) / Block::across);
  const auto on = static_cast<cudaStream_t>(stream);
  chunk_kernel<Block, SIZE, EACH, BACK><<<grid, SIZE, 0, on>>>(body, rows, columns);
  return cudaGetLastError();
}
#endif

//@ run_row_scan_chunked: needs run_scan_chunked, team
template <int THREADS, int VECTOR, int EACH, bool BACK = false, class Body>
int run_row_scan_chunked(const Body& body, long rows, long columns, int device, void* stream) {
  return run_scan_chunked<team<THREADS, VECTOR>, THREADS, EACH, BACK>(body, rows, columns, device, stream);
}

//@ run_row_scan_lookback: needs run_row_scan_chunked, grid_resident_team, resident
// Where rows are too few for a GPU, BLOCKS blocks take the chunks of a row in turn. A block waits for what the BLOCKS - 1
// chunks before its own came to, and joins them to what it had come to itself, in the order of chunks: so the bits are those
// of one block. There are rooms for each scan, TURNS of them in turn. A block hands in part n + 3 once it has parts n + 2 of
// those before it and n + 1 of those behind, and all of these have read parts n.
constexpr int TURNS = 4, LOOKBACK_BLOCKS = 1024;
template <int BLOCKS> constexpr int TURN_WORDS = 2 * BLOCKS;
static_assert(LOOKBACK_BLOCKS * MOST_SCANS * TURNS * 2 * 8 <= 278528, "what whoever allocates the workspace writes");
template <int BLOCKS, int THREADS, int VECTOR> struct lookback_team : team<THREADS, VECTOR> {
  static_assert(THREADS >= BLOCKS, "a thread for each part");
  unsigned long* rooms;
  unsigned number;  // of the round, from 1 on
  FN static int share() { return blockIdx.x % BLOCKS; }
  template <class Wide> FN Wide swap_partials(Wide mine, int scan, int from, bool before) const {
    typename grid_exchange<BLOCKS>::template part<Wide> bits(mine);
    unsigned long* const exchange = rooms + scan * TURNS * TURN_WORDS<BLOCKS>;
    if (threadIdx.x == 0) bits.hand_in(exchange + number % TURNS * TURN_WORDS<BLOCKS> + share(), number);
    const unsigned round = before ? number : number - 1;
    return bits.collect(exchange + round % TURNS * TURN_WORDS<BLOCKS> + from, round);
  }
};
template <class Scan, int BLOCKS, int THREADS, int VECTOR, int EACH, class Wide>
FN Wide hand_on(chunks<lookback_team<BLOCKS, THREADS, VECTOR>, EACH>& team, Wide total) {
  static_assert(sizeof(Wide) <= sizeof(long), "a carry fits its place");
  __shared__ Wide parts[BLOCKS];  // a scan has barriers before it comes here, so the last parts have been read
  const int scan = team.scans++, from = (team.block.share() + 1 + int(threadIdx.x)) % BLOCKS;
  const bool earlier = from < team.block.share();
  if (threadIdx.x < BLOCKS - 1) {
    const Wide part = team.block.swap_partials(total, scan, from, earlier);
    parts[threadIdx.x] = team.first && !earlier ? Scan::template none<Wide>() : part;
  }
  __syncthreads();
  unsigned long& place = team.carry.total[scan];
  Wide before;
  memcpy(&before, &place, sizeof(Wide));
  if (team.first) before = Scan::template none<Wide>();
#pragma unroll
  for (int k = 0; k < BLOCKS - 1; ++k) before = Scan::join(before, parts[k]);
  total = Scan::join(before, total);
  memcpy(&place, &total, sizeof(Wide));
  return before;
}
// A block that has no chunk in the last round takes one behind the end, where nothing exists.
template <int BLOCKS, int THREADS, int VECTOR, int EACH, bool BACK, class Body>
__global__ void __launch_bounds__(THREADS, chunk_blocks(THREADS))
    lookback_kernel(const Body body, long rows, long columns, int shares, unsigned long* rooms) {
  using lookback = lookback_team<BLOCKS, THREADS, VECTOR>;
  constexpr long CHUNK = chunks<lookback, EACH>::chunk;
  lookback block{{}, rooms + blockIdx.x / BLOCKS * (MOST_SCANS * TURNS * TURN_WORDS<BLOCKS>), 0};
  carried carry;
  const long last = (columns - 1) / CHUNK;
#pragma unroll 1
  for (long row = blockIdx.x / BLOCKS; row < rows; row += shares)
#pragma unroll 1
    for (long round = 0; round <= last; round += BLOCKS) {
      const long k = round + blockIdx.x % BLOCKS;
      long start = (k > last ? last + 1 : BACK ? last - k : k) * CHUNK;
      asm volatile("" : "+l"(start));
      ++block.number;
      body(row, chunks<lookback, EACH>(block, carry, start, round == 0, k == last));
    }
}
#ifdef __CUDACC_RTC__
template <int BLOCKS, int THREADS, int VECTOR, int EACH, bool BACK = false, class Body>
FN int run_row_scan_lookback(const Body&, long, long, void*, int, void*) {
  return &lookback_kernel<BLOCKS, THREADS, VECTOR, EACH, BACK, Body> == nullptr;
}
#else
template <int BLOCKS, int THREADS, int VECTOR, int EACH, bool BACK = false, class Body>
int run_row_scan_lookback(const Body& body, long rows, long columns, void* workspace, int device, void* stream) {
  if (rows <= 0 || columns <= 0) return 0;
  const device_scope scope(device);
  constexpr auto kernel = lookback_kernel<BLOCKS, THREADS, VECTOR, EACH, BACK, Body>;
  int blocks = 0;
  if (int error = resident_blocks<kernel>(THREADS, LOOKBACK_BLOCKS, device, blocks)) return error;
  int shares = int(rows < blocks / BLOCKS ? rows : blocks / BLOCKS);
  if (shares == 0) return run_row_scan_chunked<THREADS, VECTOR, EACH, BACK>(body, rows, columns, device, stream);
  const auto on = static_cast<cudaStream_t>(stream);
  if (int error = cudaMemsetAsync(workspace, 0, shares * MOST_SCANS * TURNS * TURN_WORDS<BLOCKS> * 8, on))
    return error;
  Body copy = body;
  void* arguments[] = {&copy, &rows, &columns, &shares, &workspace};
  const auto entry = reinterpret_cast<const void*>(kernel);
  cudaLaunchCooperativeKernel(entry, dim3(shares * BLOCKS), dim3(THREADS), arguments, 0, on);
  return cudaGetLastError();
}
#endif

//@ run_scan_chained: needs run_scan_chunked, grid_resident_team
// Many blocks, one chunk each: chunk 0 of all rows, then chunk 1 of all rows. What a row has come to is handed on in global
// memory, a word of it with the number of the next chunk. Whoever waits for it waits for a block that has begun before, and
// with as many rows as a GPU has processors that one is mostly done. Blocks end at any time, so all processors end together.
template <class Block> struct chained : Block {
  static constexpr int room = 2 * MOST_SCANS * Block::across;  // of a column panel of rows, in words
  unsigned long* place;
  unsigned number;  // of the chunk
};
template <class Scan, class Block, int EACH, class Wide>
FN Wide hand_on(chunks<chained<Block>, EACH>& team, Wide total) {
  using part = typename grid_exchange<Block::across>::template part<Wide>;
  static_assert(sizeof(Wide) <= sizeof(long), "a carry fits its place");
  __shared__ Wide before[Block::across];  // a scan has barriers before it comes here, so the last ones have been read
  const int lane = team.block.lane();
  unsigned long* const place = team.block.place + team.scans++ * 2 * Block::across + lane;
  if (team.block.member() == 0) {
    part bits(total);
    before[lane] = team.first ? Scan::template none<Wide>() : bits.collect(place, team.block.number);
    if (!team.last) part(Scan::join(before[lane], total)).hand_in(place, team.block.number + 1);
  }
  __syncthreads();
  return before[lane];
}
template <class Block, int SIZE, int EACH, bool BACK, class Body>
__global__ void __launch_bounds__(SIZE, (Block::across > 1 ? 1536 : 1024) / SIZE)
    chained_kernel(const Body body, long rows, long columns, long column_panels, unsigned long* rooms) {
  constexpr long CHUNK = chunks<Block, EACH>::chunk;
  const long column_panel = block_index() % column_panels, k = block_index() / column_panels, last = (columns - 1) / CHUNK;
  if (k > last) return;
  chained<Block> block{{}, rooms + column_panel * chained<Block>::room, unsigned(k)};
  const long row = column_panel * Block::across + block.lane();
  if (row >= rows) return;
  carried carry;
  body(row, chunks<chained<Block>, EACH>(block, carry, (BACK ? last - k : k) * CHUNK, k == 0, k == last));
}
#ifdef __CUDACC_RTC__
template <class Block, int SIZE, int EACH, bool BACK, class Body>
FN int run_scan_chained(const Body&, long, long, void*, long, int, void*) {
  return &chained_kernel<Block, SIZE, EACH, BACK, Body> == nullptr;
}
#else
template <class Block, int SIZE, int EACH, bool BACK, class Body>
int run_scan_chained(const Body& body, long rows, long columns, void* workspace, long most, int device, void* stream) {
  constexpr long CHUNK = chunks<Block, EACH>::chunk, LEAST = 64;
  const long column_panels = (rows + Block::across - 1) / Block::across, bytes = column_panels * chained<Block>::room * 8;
  if (column_panels < LEAST || bytes > most || columns <= CHUNK)
    return run_scan_chunked<Block, SIZE, (EACH > 16 ? 16 : EACH), BACK>(body, rows, columns, device, stream);
  const device_scope scope(device);
  const auto on = static_cast<cudaStream_t>(stream);
  if (int error = cudaMemsetAsync(workspace, 0, bytes, on)) return error;
  const dim3 grid = grid_of((columns + CHUNK - 1) / CHUNK * column_panels);
  chained_kernel<Block, SIZE, EACH, BACK>
      <<<grid, SIZE, 0, on>>>(body, rows, columns, column_panels, static_cast<unsigned long*>(workspace));
  return cudaGetLastError();
}
#endif

//@ run_row_scan_chained: needs run_scan_chained, team
template <int THREADS, int VECTOR, int EACH, bool BACK = false, class Body>
int run_row_scan_chained(const Body& body, long rows, long columns, void* workspace, int device, void* stream) {
  using block = team<THREADS, VECTOR>;
  return run_scan_chained<block, THREADS, EACH, BACK>(body, rows, columns, workspace, 278528, device, stream);
}

//@ run_panel_scan_chunked: needs run_scan_chunked, column_panel
// A thread adds up its elements, the threads of a row tell each other what they came to, and then each of them
// starts from what comes before it. So an element is rounded once.
// What does not exist changes nothing. The row may be the one that the elements come from.
template <class Scan, class T, int SLOTS> struct own_elements {
  static constexpr bool kept = true;
  T held[SLOTS];
  FN own_elements() {
#pragma unroll
    for (int s = 0; s < SLOTS; ++s) held[s] = Scan::template none<T>();
  }
  template <int W, class Place, class Element> FN void take(const Place& at, const Element& element) {
    held[at.slot] = element(0);
  }
};
// Two rooms in turn: who writes one again has seen a barrier since the last thread read it.
template <class Scan, class Block, int EACH, class Wide> FN Wide before_thread(chunks<Block, EACH>& team, Wide mine) {
  constexpr int DOWN = Block::threads, ACROSS = Block::across;
  if (DOWN == 1) return hand_on<Scan>(team, mine);
  Wide* const rooms = reinterpret_cast<Wide*>(shared_room<3, 2 * DOWN * ACROSS * 8>()) +
                      team.carry.room * DOWN * ACROSS + team.block.lane();
  team.carry.room ^= 1;
  rooms[team.member() * ACROSS] = mine;
  __syncthreads();
  Wide all = Scan::template none<Wide>();
#pragma unroll(DOWN < 8 ? DOWN : 8)
  for (int k = 0; k < DOWN; ++k) {
    const int member = Scan::back ? DOWN - 1 - k : k;
    if (member == team.member()) mine = all;
    all = Scan::join(all, rooms[member * ACROSS]);
  }
  return Scan::join(hand_on<Scan>(team, all), mine);
}
template <class Scan, class Team, class Span, class T, int SLOTS, class F, class... Ops>
FN void scan_column_panel(Team& team, Span span, kept_row<T, SLOTS, 1>& row, const F& f, Ops... operand) {
  using wide = typename wider<T>::type;
  own_elements<Scan, T, SLOTS> own;
  walk(team, span, own, f, operand...);
  wide mine = Scan::template none<wide>();
#pragma unroll
  for (int k = 0; k < SLOTS; ++k) mine = Scan::join(mine, wide(own.held[Scan::back ? SLOTS - 1 - k : k]));
  wide through = before_thread<Scan>(team, mine);
#pragma unroll
  for (int k = 0; k < SLOTS; ++k) {
    const int s = Scan::back ? SLOTS - 1 - k : k;
    narrow_again(own.held[s]);
    through = Scan::join(through, wide(own.held[s]));
    row.held[s][0] = T(through);
  }
}
template <class Scan, int DOWN, int ACROSS, int EACH, class Span, class T, int SLOTS, class F, class... Ops>
FN void scan(Scan, chunks<column_panel<DOWN, ACROSS>, EACH>& team, Span span, kept_row<T, SLOTS, 1>& row, const F& f,
             Ops... operand) {
  scan_column_panel<Scan>(team, span, row, f, operand...);
}
template <int DOWN, int ACROSS, int EACH, bool BACK = false, class Body>
int run_panel_scan_chunked(const Body& body, long rows, long columns, int device, void* stream) {
  return run_scan_chunked<column_panel<DOWN, ACROSS>, DOWN * ACROSS, EACH, BACK>(body, rows, columns, device, stream);
}

//@ run_panel_scan_chained: needs run_scan_chained, run_panel_scan_chunked
template <class Scan, int DOWN, int ACROSS, int EACH, class Span, class T, int SLOTS, class F, class... Ops>
FN void scan(Scan, chunks<chained<column_panel<DOWN, ACROSS>>, EACH>& team, Span span, kept_row<T, SLOTS, 1>& row, const F& f,
             Ops... operand) {
  scan_column_panel<Scan>(team, span, row, f, operand...);
}
template <int DOWN, int ACROSS, int EACH, bool BACK = false, class Body>
int run_panel_scan_chained(const Body& body, long rows, long columns, void* workspace, int device, void* stream) {
  using block = column_panel<DOWN, ACROSS>;
  return run_scan_chained<block, DOWN * ACROSS, EACH, BACK>(body, rows, columns, workspace, 2113536, device, stream);
}

//@
}  // namespace fusewright
