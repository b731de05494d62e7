"""Groups of warps that own a tile each: whose stages are whose, and which rows a warp hands out.

Threads of the CPU are the copy engine's thread and the groups. Barriers look as on the GPU, where
one that is two phases behind looks as if it was done. None of this needs a GPU.
"""

from __future__ import annotations

import ctypes
import re
import shutil

import pytest

from fusewright.codegen.device_library import sections_for
from fusewright.kernels.conv.variants import CONV_PINGPONG, TRANSPOSED_PINGPONG
from tests.support.cuda_compilers import SPOKEN
from tests.support.emulator.threads import BEFORE, TWINS, built
from tests.support.emulator.tiles import MORE_TWINS, WARP

# A stage holds the number of its 64 k; a copy comes late. Who waits for ever gives up.
INCLUDES = "#include <atomic>\n#include <chrono>\n#include <thread>\n"
PLACES = "inline dim3 gridDim(1), blockIdx(0), threadIdx(0);"  # all threads are at work at once
ENGINE = """
struct phased { std::atomic<int> arrived{0}, phase{0}; int wanted = 1; };
inline phased barriers[2][64];  // full, empty
inline std::atomic<int> turns[2][2], stage_of[64], filled, wrong;
inline phased& barrier_at(unsigned at) { return barriers[at / 4096][at % 4096 / 8]; }
template <class Done> void wait_until(Done done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!done() && wrong < 1000) {
    std::this_thread::yield();
    if (std::chrono::steady_clock::now() > end) wrong += 1000;
  }
}
inline void arrive(phased& at) { if (++at.arrived == at.wanted) at.arrived = 0, ++at.phase; }
inline void barrier_wait(unsigned at, unsigned phase) {
  wait_until([&] { return unsigned(barrier_at(at).phase) % 2 != phase; });
}
inline void barrier_expect(unsigned at, unsigned) {
  const int slot = at / 8, chunk = filled++;
  stage_of[slot] = -1;
  std::thread([=] {
    std::this_thread::sleep_for(std::chrono::microseconds(chunk * 7919 % 5 * 200));
    stage_of[slot] = chunk;
    arrive(barriers[0][slot]);
  }).detach();
}
inline void group_arrive(int number, int) { ++turns[number - 4][0]; }
inline void group_sync(int number, int) {
  const int mine = ++turns[number - 4][1];
  wait_until([&] { return turns[number - 4][0] >= mine; });
}
struct place_noted { int tile, row, column, slab; };
inline std::vector<int> chunks_read[2];
inline int stage_bytes;
inline void note_read(unsigned at) {
  if (at % stage_bytes) return;
  chunks_read[threadIdx.x / 128 - 1].push_back(stage_of[at / stage_bytes]);
}
inline std::vector<place_noted> handed[2];
inline void note_handed(place_noted p) { handed[threadIdx.x / 128 - 1].push_back(p); }
"""
PRODUCTS = """
struct uneven_shape : conv_shape {  // products of 1, 5 and 9 taps
  using walked = uneven_shape;
  const walked& walk() const { return *this; }
  int gemms() const { return 3; }
  int group_of(int) const { return 0; }
  int taps_of(int product) const { return 1 + 4 * product; }
};
struct no_body {};
template <int SEGMENT> void prefetch(const no_body&, long, int, int) {}
template <int WIDTH, bool SWAPPED> int run(const tile_pairs& all, int* out) {
  using stage = conv_stage<WIDTH, 2, 1>;
  for (auto& some : barriers)
    for (auto& each : some) each.arrived = each.phase = 0;
  for (auto& turn : turns) turn[0] = turn[1] = 0;
  for (auto& each : chunks_read) each.clear();
  for (auto& each : handed) each.clear();
  filled = wrong = 0, stage_bytes = stage::bytes;
  static int exponents[4096];
  uneven_shape shape{{1 << 20, 1, 64, 4096, {1, 1, 64}, {1, 1, 64}, {1, 1, 3}}};
  for (int d = 0; d < 3; ++d) shape.stride[d] = shape.dilation[d] = 1;
  const packed_image packed{nullptr, nullptr, exponents, exponents, nullptr, 64};
  const gemm_shape product{1, 64, 64, 64};
  const conv_source<uneven_shape, float, 1> source{nullptr, nullptr, shape};
  const no_body body{};
  const auto work = work_of<stage::first_warp>(body, source, packed, product, nullptr);
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    gridDim = dim3(4);
    const tensor_map none{};
    conv_produce<WIDTH, SWAPPED, 64, 2, 1>(none, none, shape, packed, all, 0, 0, 4096);
  });
  for (int group = 0; group < 2; ++group)
    threads.emplace_back([&, group] {
      gridDim = dim3(4), threadIdx = dim3((stage::first_warp + group * 4) * 32);
      conv_consume<WIDTH, SWAPPED, 0, 4, 64, 2, 1>(work, all, 0, 0, 4096);
    });
  for (auto& thread : threads) thread.join();
  int count = 0;
  for (int group = 0; group < 2; ++group) {
    out[count++] = chunks_read[group].size();
    for (int chunk : chunks_read[group]) out[count++] = chunk;
    out[count++] = handed[group].size();
    for (auto p : handed[group])
      for (int number : {p.tile, p.row, p.column, p.slab}) out[count++] = number;
  }
  return wrong;
}
"""
ENTRY = """
extern "C" int run_{width}_{swapped}(int tiles, int* out) {{
  return run<{width}, {swapped}>({{3, 2, 3, 2 * tiles - 1, 6 * tiles, {dividers}}}, out);
}}
"""
OWN = {
    (w, str(s).lower()): own.high for (w, s), own in (CONV_PINGPONG | TRANSPOSED_PINGPONG).items()
}
# Of 6, 2 and 3, exact where tiles are few.
DIVIDERS = ", ".join(f"{{{-(-(1 << 32) // n)}u, 32}}" for n in (6, 2, 3))


# Functions of the text, and what they do here; others keep their heads.
STAND_INS = {
    "barrier_init": "",
    "barrier_wait": ENGINE,
    "barrier_expect": "",
    "cluster_rank": "inline int cluster_rank() { return 0; }\n",
    "cluster_arrive": "inline void cluster_arrive(unsigned at, int) { arrive(barrier_at(at)); }\n",
    "group_sync": "",
    "group_arrive": "",
    "warp_here": "inline int warp_here() { return threadIdx.x / 32; }\n",
}
BODIES = {
    "load_box_twice": "",
    "load_pixels": "",
    "conv_k_tile": "  note_read(tall_term);\n",
    "run_epilogue": "  note_handed({tile.batch, tile.row, tile.column, slab});\n",
}


def replaced(text: str) -> str:
    """The text whose barriers, copies and multiplications are those of the test."""
    for name, other in STAND_INS.items():
        whole = rf"FN \w+ {name}\(.*?(?:\n}}|}})\n"
        assert len(re.findall(whole, text, re.DOTALL)) == 1, name
        text = re.sub(whole, lambda _, other=other: other, text, flags=re.DOTALL)
    for name, body in BODIES.items():
        whole = rf"(FN void {name}\([^{{]*\{{\n).*?\n}}\n"
        assert len(re.findall(whole, text, re.DOTALL)) == 1, name
        text = re.sub(whole, lambda m, body=body: f"{m[1]}{body}}}\n", text, flags=re.DOTALL)
    return text


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    text = replaced(sections_for("sm90", {"conv_produce", "conv_consume", *SPOKEN}))
    for pattern, twin in (*TWINS, *MORE_TWINS):
        text = re.sub(pattern, twin, text)
    entries = "".join(ENTRY.format(width=w, swapped=s, dividers=DIVIDERS) for w, s in OWN)
    assert PLACES in BEFORE
    before = BEFORE.replace(PLACES, PLACES.replace("inline", "inline thread_local"))
    whole = f"{INCLUDES}{before}{WARP}#define __CUDACC_RTC__\n{text}{PRODUCTS}{entries}}}\n"
    return built(whole, tmp_path_factory.mktemp("own") / "own.cpp")


Group = tuple[list[int], list[tuple[int, ...]]]


def expected(tiles: int, swapped: bool, high: int) -> list[Group]:
    """Of each group: the 64 k that it reads, and the tiles that it hands out, by 64 rows."""
    found: list[Group] = [([], []), ([], [])]
    chunk = 0
    for i, number in enumerate(range(0, 6 * tiles, 2)):
        kind, pixels = number % 6, number // 6 * 2
        count, batch = 1 + 4 * (kind // 2), pixels // 3 * 3 + kind // 2
        row, column = (pixels % 3, kind % 2) if swapped else (kind % 2, pixels % 3)
        slabs = [row % 2 * 4] if high == 64 else [0, 4]
        reads, handed = found[i % 2]
        reads.extend(n for n in range(chunk, chunk + count) for _ in slabs)
        handed.extend((batch, row * high // 128, column, slab) for slab in slabs)
        chunk += count
    return found


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++ here")
@pytest.mark.parametrize(("width", "swapped"), OWN)
@pytest.mark.parametrize("tiles", [1, 2, 9])
def test_groups_read_their_own_stages(
    library: ctypes.CDLL, width: int, swapped: str, tiles: int
) -> None:
    out = (ctypes.c_int * 4096)()
    assert library[f"run_{width}_{swapped}"](tiles, out) == 0
    numbers = iter(out)
    for reads, handed in expected(tiles, swapped == "true", OWN[width, swapped]):
        assert [next(numbers) for _ in range(next(numbers))] == reads
        found = [tuple(next(numbers) for _ in range(4)) for _ in range(next(numbers))]
        assert found == handed
