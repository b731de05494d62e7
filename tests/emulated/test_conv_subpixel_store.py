"""Tiles of stacked phases leave line by line: threads of this CPU run the text, group by group.

Fragments hold numbers that differ; every result is compared, and what a group leaves alone has to
be as it was. None of this needs a GPU.
"""

from __future__ import annotations

import ctypes
import re
import shutil
from itertools import product

import pytest
import torch
from torch import Tensor

from fusewright.codegen.device_library import sections, sections_for
from tests.support.conv_subjects import Problem
from tests.support.cuda_compilers import SPOKEN
from tests.support.emulator.threads import BEFORE, TWINS, built
from tests.support.emulator.tiles import MORE_TWINS, WARP

GROUP = (
    (r"FN bool group_any\(.*?\n}\n",
     "FN bool group_any(int, int, bool mine) { return __any_sync(~0u, mine); }\n"),
    (r"FN void group_sync\(.*?}\n", "FN void group_sync(int, int) { __syncthreads(); }\n"),
)  # fmt: skip
BODY = """
struct in_place {
  const float* in0; float* out0; long n; long channels;
  template <class Range, class Team, class Product>
  FN void operator()(long row, Range range, Team team, Product product) const {
    const float v1 = read(in0, row % channels);
    team.each(range, [&](float v0, float v2, float& o0) { o0 = v0 + v1 + v2; },
              product, load(out0, row * n), store(out0, row * n));
  }
};
"""
# `sums`: [images, products, rows, places]; `handed`: of each tile, whether a group stored it.
HANDED = """
template <int WIDTH, int TOGETHER>
void run_epilogue(const in_place& given_body, const float* sums, char* handed,
              const transposed_shape<TOGETHER>& shape, bool suspect, int group) {
  using Shape = transposed_shape<TOGETHER>;
  const auto body = epilogue_of<1, 0>(given_body, shape);
  const conv_source<Shape, float, 1> source{nullptr, nullptr, shape};
  using factors = conv_operands<0, conv_source<Shape, float, 1>>;
  const int batches = shape.given.images * shape.gemms(), rows = shape.rows();
  const int places = shape.walk().out_pixels(), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  static float boxes[8 * SMEM_TILE];
  const gemm_shape product{batches, rows, places, 0};
  const consumer<std::decay_t<decltype(body)>, factors> me{
      body, {source, source, suspect}, product, boxes};
  for (int batch = 0; batch < batches; ++batch)
    for (int p = 0; p * 128 < places; ++p)
      for (int c = 0; c * WIDTH < rows; ++c, handed += 2) {
        float held[WIDTH / 64][32];
        for (int i = 0; i < WIDTH / 2; ++i) {
          const int place = p * 128 + warp * 16 + lane / 4 + i / 2 % 2 * 8;
          const int row = c * WIDTH + i / 4 * 8 + lane % 4 * 2 + i % 2;
          const bool inside = place < places && row < rows;
          held[i / 32][i % 32] = inside ? sums[(long(batch) * rows + row) * places + place] : 1e9f;
        }
        handed[group] = subpixel_out<WIDTH, 4>(me, held, tiles::place{batch, p, c});
      }
}
template <int WIDTH, int TOGETHER>
int run(const float* sums, const float* bias, float* out, char* handed, const int* sizes,
        bool suspect) {
  conv_shape s{sizes[0], sizes[1], sizes[2], sizes[3]};
  int* const fields[] = {s.in_size, s.out_size, s.kernel, s.stride, s.pad, s.dilation};
  for (int i = 0; i < 18; ++i) fields[i / 3][i % 3] = sizes[4 + i];
  transposed_shape<TOGETHER> shape;
  if (describe_phases(shape, s, {{sizes[22], sizes[23], sizes[24]}, sizes[25]})) return 1;
  const in_place body{bias, out, s.out_pixels(), s.out_channels};
  for (int group = 0; group < 2; ++group)
    launch(dim3(1), 128, [=] {
      threadIdx.x += group * 128;
      run_epilogue<WIDTH, TOGETHER>(body, sums, handed, shape, suspect, group);
      threadIdx.x -= group * 128;
    });
  return 0;
}
"""
ENTRY = """
extern "C" int run_{width}_{together}(const float* sums, const float* bias, float* out,
                                    char* handed, const int* sizes, bool suspect) {{
  return run<{width}, {together}>(sums, bias, out, handed, sizes, suspect);
}}
"""
# Four warps meet where one does.
FOUR_WARPS = (
    WARP.replace("meeting[32]", "meeting[128]")
    .replace("threadIdx.x % 32", "threadIdx.x % 128")
    .replace("meeting[from]", "meeting[threadIdx.x % 128 / 32 * 32 + from]")
)
HOST = f"{BEFORE}{FOUR_WARPS}#define __ffs __builtin_ffs\n#define __CUDACC_RTC__\n"
WIDTHS = (64, 192)
PROBLEMS = (
    Problem(2, 3, 24, (12, 24), (4, 4), (2, 2), ((1, 1), (1, 1))),
    Problem(2, 4, 96, (17, 8), (2, 2), (2, 2), groups=2),
    Problem(1, 3, 16, (70,), (8,), (4,), ((2, 2),)),
    Problem(2, 3, 8, (5, 9, 16), (3, 4, 4), (2, 2, 2), ((1, 1),) * 3),
    Problem(1, 2, 32, (3, 4, 8), (4, 4, 4), (2, 2, 2), ((1, 1),) * 3),
    Problem(2, 3, 24, (12, 25), (4, 4), (2, 2), ((1, 1), (1, 1)), behind=(1, 0)),
    Problem(2, 3, 7, (12, 24), (4, 4), (2, 2), ((1, 1), (1, 1))),
    Problem(1, 3, 48, (3, 7, 9), (3, 3, 3), (2, 2, 2)),
    Problem(1, 3, 9, (5, 13), (7, 5), (4, 4), ((3, 3), (2, 2)), behind=(1, 1)),
    Problem(1, 2, 12, (3, 21), (4, 4), (4, 4)),
)  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    texts = {s.name: s.text for s in sections("sm90")}
    divider, head, phases = (
        texts[name].partition("#ifndef __CUDACC_RTC__\n")
        for name in ("divider", *["describe_phases"] * 2)
    )
    host = divider[2].partition("#endif")[0] + head[0] + phases[2].partition("#endif")[0]
    text = sections_for("sm90", {"subpixel_out", *SPOKEN})
    for pattern, twin in GROUP:
        text = re.sub(pattern, twin, text, flags=re.DOTALL)
    for pattern, twin in (*TWINS, *MORE_TWINS):
        text = re.sub(pattern, twin, text)
    entries = "".join(ENTRY.format(width=w, together=t) for w, t in product(WIDTHS, (2, 4)))
    body = f"{HOST}{text}\n{host}{BODY}{HANDED}{entries}}}\n"
    return built(body, tmp_path_factory.mktemp("phases") / "phases.cpp")


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++ here")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: f"{p.kernel}-{p.out_channels}")
def test_tiles_leave_line_by_line(library: ctypes.CDLL, problem: Problem, width: int) -> None:
    problem = Problem(**{**vars(problem), "transposed": True})
    sums, bias = sums_of(problem), torch.arange(problem.out_channels) * 1e4
    for suspect in (False, True):
        before = torch.randint(8, problem.result()).float()
        out, handed = run(library, problem, width, sums, bias, before.clone(), suspect)
        stored = results(problem, sums) + bias.view(1, -1, *(1,) * problem.rank)
        wanted = before if suspect else before + stored
        torch.testing.assert_close(out, wanted, rtol=0, atol=0)
        assert handed.all() != suspect


def sums_of(problem: Problem) -> Tensor:
    found = problem.phases
    products = problem.groups * found.loose[0] * found.loose[1] * found.loose[2]
    rows = problem.out_channels // problem.groups * found.stacked[0] * found.stacked[1]
    shape = (problem.images, products, rows * found.stacked[2], torch.tensor(found.places).prod())
    return torch.randperm(int(torch.tensor(shape).prod())).float().view(shape)


def run(
    library: ctypes.CDLL,
    problem: Problem,
    width: int,
    sums: Tensor,
    bias: Tensor,
    out: Tensor,
    suspect: bool,
) -> tuple[Tensor, Tensor]:
    """Results; and of each product and tile, which groups of warps stored it."""
    images, products, rows, places = sums.shape
    tiles = (images, products, -(-places // 128), -(-rows // width), 2)
    handed = torch.zeros(tiles, dtype=torch.int8)
    numbers = (ctypes.c_int * 26)(*problem.numbers())
    entry = library[f"run_{width}_{problem.together}"]
    pointers = (ctypes.c_void_p(t.data_ptr()) for t in (sums, bias, out, handed))
    assert entry(*pointers, numbers, ctypes.c_bool(suspect)) == 0
    return out, handed


def results(problem: Problem, sums: Tensor) -> Tensor:
    """What all tiles store, element by element."""
    found, stride = problem.phases, problem.numbers()[13:16]
    size, out = problem.numbers()[7:10], torch.full(problem.result(), torch.nan)
    flat = out.view(problem.images, problem.groups, -1, *size)
    shifts = [p % s for p, s in zip(problem.numbers()[16:18], stride, strict=False)] + [found.shift]
    for at in product(*map(range, size)):
        phase = [(x + s) % t for x, s, t in zip(at, shifts, stride, strict=True)]
        q = [(x + s) // t for x, s, t in zip(at, shifts, stride, strict=True)]
        place = (q[0] * found.places[1] + q[1]) * found.places[2] + q[2]
        loose = row = 0
        for d in range(3):
            loose = loose * found.loose[d] + phase[d] * (found.loose[d] > 1)
            row = row * found.stacked[d] + phase[d] * (found.stacked[d] > 1)
        step, each = found.stacked[0] * found.stacked[1] * found.stacked[2], flat.shape[2]
        rows = torch.arange(each) * step + row
        per_group = sums.shape[1] // problem.groups
        some = sums.unflatten(1, (problem.groups, per_group))[:, :, loose, rows, place]
        flat[(..., *at)] = some
    return out
