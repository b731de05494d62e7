// How a generated CPU kernel is started: rows over threads, or one flat range over threads.
//
// The surprising fact: the function that loops over rows is the one marked `flatten`. It pulls the
// body, its lambdas and every operand into one function, and only so does the compiler see loops it
// can vectorise. `threads` is PyTorch's own thread count; inside a parallel region of somebody else
// nothing is forked.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "devicelib/cpp/team.h"
namespace fusewright {

//@ threads
// How many threads to start for so many independent pieces of work.
FN long team_size(long threads, long pieces) {
  if (omp_in_parallel()) return 1;
  return threads < pieces ? threads : pieces;
}
// A thread gets THREAD_WORTH bytes at least: to fork and join takes about as long as to go through
// them.
constexpr long THREAD_WORTH = 8192;
FN long enough(long threads, long bytes) {
  const long worth = bytes / THREAD_WORTH + 1;
  return threads < worth ? threads : worth;
}

//@ run_rows: needs threads, solo, crew
template <class Body>
__attribute__((noinline, flatten)) void solo_rows(const Body& body, long begin, long end) {
  for (long row = begin; row < end; ++row) body(row, solo());
}
template <class Body> void run_rows(const Body& body, long threads) {
  const long rows = body.rows();
  const long free = team_size(threads, threads);
  if (free > 1 && 2 * rows <= free) {
    crew team;
    team.members = int(free);
    for (long row = 0; row < rows; ++row) body(row, team);
    return;
  }
  const long n = team_size(threads, rows);
  if (n <= 1) return solo_rows(body, 0, rows);
#pragma omp parallel num_threads(n)
  {
    const long k = omp_get_thread_num(), all = omp_get_num_threads();
    solo_rows(body, rows * k / all, rows * (k + 1) / all);
  }
}

//@ run_tiles: needs threads, solo, box
// For maps that read or write across rows, such as a transpose: TILE_ROWS rows meet in the same
// cache lines, so they are done together, TILE_COLUMNS at a time.
constexpr long TILE_ROWS = 16, TILE_COLUMNS = 16;
template <class Body>
__attribute__((noinline, flatten)) void solo_tiles(const Body& body, long begin, long end) {
  const long rows = body.rows(), columns = body.columns(),
             across = (columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
  for (long tile = begin; tile < end; ++tile) {
    const long row = tile / across * TILE_ROWS,
               last = row + TILE_ROWS < rows ? row + TILE_ROWS : rows;
    const long column = tile % across * TILE_COLUMNS, stop = column + TILE_COLUMNS;
    for (long r = row; r < last; ++r)
      body(r, box{0, 1, column, stop < columns ? stop : columns, columns}, solo());
  }
}
template <class Body> void run_tiles(const Body& body, long threads) {
  const long down = (body.rows() + TILE_ROWS - 1) / TILE_ROWS;
  const long tiles = down * ((body.columns() + TILE_COLUMNS - 1) / TILE_COLUMNS);
  const long n = team_size(threads, tiles / 4);
  if (n <= 1) return solo_tiles(body, 0, tiles);
#pragma omp parallel num_threads(n)
  {
    const long k = omp_get_thread_num(), all = omp_get_num_threads();
    solo_tiles(body, tiles * k / all, tiles * (k + 1) / all);
  }
}

//@ neighbours: needs words, box, strided, strided_store
// Whether a map walks across memory: where elements of the next row are neighbours of this row's,
// which follow each other far apart. A team that only looks at the operands of two rows finds out.
struct place {
  const char* p = nullptr;
  long step = 0;
};
template <class Operand> FN void look(place&, const Operand&) {}
template <class T> FN void look(place& at, const strided_operand<T>& s) {
  if (s.step) at = {reinterpret_cast<const char*>(s.p), s.step * long(sizeof(T))};
}
template <class T> FN void look(place& at, const gather_store_operand<T, strided_offset>& s) {
  if (s.offset.step) at = {reinterpret_cast<const char*>(s.p), s.offset.step * long(sizeof(T))};
}
struct onlooker : words<onlooker> {
  place& at;
  FN explicit onlooker(place& at) : at(at) {}
  template <class F, class... Ops> FN void each(box, F, Ops... ops) const { (look(at, ops), ...); }
};
template <class Body> bool is_column_major(const Body& body) {
  if (body.rows() < 2 || body.columns() < 2) return false;
  place rows[2];
  for (long row = 0; row < 2; ++row)
    body(row, box{0, 1, 0, 0, body.columns()}, onlooker(rows[row]));
  const long beside = rows[1].p - rows[0].p, step = rows[0].step;
  return step && labs(beside) < 64 && labs(step) >= 4 * 64;
}

//@ run_map: needs threads, solo, box, run_tiles, neighbours
// A thread gets a stretch of the whole output, whatever the row length, in steps of MAP_STEP
// elements.
constexpr long MAP_STEP = 4096;
template <class Body>
__attribute__((noinline, flatten)) void solo_map(const Body& body, long begin, long end) {
  const long columns = body.columns();
  for (long row = begin / columns; begin < end; ++row) {
    const long start = row * columns, stop = start + columns < end ? start + columns : end;
    body(row, box{0, 1, begin - start, stop - start, columns}, solo());
    begin = stop;
  }
}
template <class Body> void run_map(const Body& body, long threads) {
  if (is_column_major(body)) return run_tiles(body, threads);
  const long total = body.rows() * body.columns(), steps = (total + MAP_STEP - 1) / MAP_STEP;
  const long n = team_size(threads, steps / 4);
  if (n <= 1) return solo_map(body, 0, total);
#pragma omp parallel num_threads(n)
  {
    const long k = omp_get_thread_num(), all = omp_get_num_threads();
    const long stop = steps * (k + 1) / all * MAP_STEP;
    solo_map(body, steps * k / all * MAP_STEP, stop < total ? stop : total);
  }
}

//@ fresh_pages
// Asks for huge pages behind a large new output: faulting in 4 KiB pages costs more than most
// kernels. Only whole pages inside the allocation are named. A kernel that knows no huge pages may
// refuse.
FN void fresh_pages(void* p, long bytes) {
#ifdef MADV_HUGEPAGE
  const unsigned long page = 4096, start = ((unsigned long)p + page - 1) & ~(page - 1);
  const unsigned long end = ((unsigned long)p + bytes) & ~(page - 1);
  if (bytes >= 4 << 20) (void)madvise((void*)start, end - start, MADV_HUGEPAGE);
#endif
}

//@
}  // namespace fusewright
