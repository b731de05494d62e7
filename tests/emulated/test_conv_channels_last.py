"""Channels last, of groups and transposed: tiles on their way to the body, sums that are repaired.

Threads of the CPU run the text behind the tensor cores, warp by warp. None of this needs a GPU.
"""

from __future__ import annotations

import ctypes
import re
import shutil
from dataclasses import dataclass

import pytest
import torch

from fusewright.codegen.device_library import sections_for
from tests.support.conv_subjects import Problem, last
from tests.support.cuda_compilers import SPOKEN
from tests.support.emulator.threads import BEFORE, TWINS, built
from tests.support.emulator.tiles import MORE_TWINS, WARP

HANDED = """
struct bias_and_residual {
  const float *in0, *in1; float* out0; long n;
  template <class Range, class Team, class Product>
  FN void operator()(long row, Range range, Team team, Product product) const {
    team.each(range, [&](float v0, float v1, float v2, float& o0) { o0 = v0 * v2 + v1; }, product,
              load(in0, 0), load(in1, row * n), store(out0, row * n));
  }
};
// PIXELS: they are the tile's 128 rows, and leave from fragments; if not, in boxes of columns.
// Sums of every other product are lost, and repaired.
template <int WIDTH, bool PIXELS, int VECTOR, class Shape>
void run_epilogue(const bias_and_residual& given, const float* image, const float* weight,
              const Shape& shape, int warp) {
  static float boxes[8 * SMEM_TILE];
  using Source = conv_source<Shape, float, 1>;
  const Source source{image, weight, shape};
  const auto body = epilogue_of<1, 0>(given, shape);
  const int lane = threadIdx.x % 32, pixels = shape.walk().out_pixels(), channels = shape.rows();
  const gemm_shape product{shape.walk().images * shape.gemms(), pixels, channels, 0};
  const auto sum_at = [&](int batch, int pixel, int channel) {
    if (pixel >= pixels || channel >= channels) return 1e9f;
    return batch % 2 ? NAN : plain_sum(source, batch, pixel, channel);
  };
  const int high = PIXELS ? 128 : WIDTH, wide = PIXELS ? WIDTH : 64;
  for (int batch = 0; batch < product.batches; ++batch)
    for (int r = 0; r * high < pixels; ++r)
      for (int c = 0; c * wide < channels; ++c) {
        const conv_operands<0, Source> factors{source, source, batch % 2 > 0};
        const consumer<decltype(body), conv_operands<0, Source>> me{
            body, factors, product, boxes};
        if constexpr (PIXELS) {
          float held[quarters<WIDTH>][32];
          for (int i = 0; i < WIDTH / 2; ++i) {
            const int pixel = r * 128 + warp * 16 + lane / 4 + i / 2 % 2 * 8;
            const int channel = c * WIDTH + i / 4 * 8 + lane % 4 * 2 + i % 2;
            held[i / 32][i % 32] = sum_at(batch, pixel, channel);
          }
          me.template rows_out<WIDTH, 0, VECTOR>(held, {batch, r, c}, nullptr);
        } else {
          for (int number = 0; number < WIDTH / 64; ++number) {
            const int top = r * WIDTH + number * 64, begin = warp * 16;
            const int behind = pixels - top - begin, end = begin + (behind < 16 ? behind : 16);
            if (warp >= 4 || behind <= 0) continue;
            __syncwarp();
            for (int row = begin; row < end; ++row)
              for (int j = lane; j < 64; j += 32)
                boxes[smem_tile_place<true, 64>(row, j)] = sum_at(batch, top + row, c * 64 + j);
            __syncwarp();
            const smem_tile_corner at{long(batch) * pixels + top, batch, top, c * 64};
            if (batch % 2) fixup<true, 64>(boxes, begin, end, at, source, source, product);
            finish<true, 64, 0, VECTOR>(body, boxes, begin, end, at, channels);
          }
        }
      }
}
"""
SHAPES = {
    False: "const channels_last_shape<16, {weights}, float, true> shape{{all}};",
    True: """channels_last_phases<16, {weights}, float> shape;
  if (describe_phases(shape, all, {{{{1, 1, 1}}, all.pad[2] % all.stride[2]}})) return;
  static_cast<conv_shape&>(shape.image) = shape.places;""",
}
ENTRY = """
extern "C" void {name}(const float* image, const float* weight, const float* bias,
                       const float* more, float* out, const int* sizes) {{
  conv_shape all{{sizes[0], sizes[1], sizes[2], sizes[3]}};
  int* const every[] = {{all.in_size, all.out_size, all.kernel, all.stride, all.pad, all.dilation}};
  for (int i = 0; i < 18; ++i) every[i / 3][i % 3] = sizes[4 + i];
  {shape}
  const bias_and_residual body{{bias, more, out, all.out_channels}};
  for (int warp = 0; warp < 8; ++warp)
    launch(dim3(1), 32, [&] {{
      threadIdx.x += warp * 32;
      run_epilogue<{chosen}>(body, image, weight, shape, warp);
      threadIdx.x -= warp * 32;
    }});
}}
"""


@dataclass(frozen=True)
class Tiled:
    """A problem in one tile. weights: whether these lie channels last, too."""

    problem: Problem
    width: int
    pixels: bool
    vector: int
    weights: bool

    def entry(self, number: int) -> str:
        weights, pixels = (str(x).lower() for x in (self.weights, self.pixels))
        return ENTRY.format(
            name=f"tile_{number}",
            shape=SHAPES[self.problem.transposed].format(weights=weights),
            chosen=f"{self.width}, {pixels}, {self.vector}",
        )


ODD = Problem(2, 18, 51, (9, 7), (3, 2), (2, 1), ((1, 1), (0, 0)), (1, 2), groups=3)
EVEN = Problem(3, 16, 144, (12, 13), (3, 3), pad=((1, 1), (1, 1)), groups=2)
BACK = Problem(2, 6, 70, (6, 5), (3, 4), (2, 3), ((1, 1), (1, 1)), transposed=True, behind=(1, 0))
BACK_GROUPS = Problem(2, 8, 152, (3, 4, 5), (2, 3, 1), (1, 2, 2), groups=2, transposed=True)
CASES = (
    Tiled(ODD, 64, True, 1, True),
    Tiled(ODD, 128, False, 1, False),
    Tiled(EVEN, 64, True, 4, False),
    Tiled(EVEN, 64, False, 4, True),
    Tiled(BACK, 128, True, 1, True),
    Tiled(BACK, 64, False, 1, False),
    Tiled(BACK_GROUPS, 128, True, 4, False),
    Tiled(BACK_GROUPS, 64, False, 4, True),
)
SECTIONS = (
    "channels_last_groups",
    "channels_last_phases_epilogue",
    "describe_phases",
    "tile_out",
    "load",
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if not shutil.which("g++"):
        pytest.skip("no g++ here")
    text = sections_for("sm90", {*SECTIONS, *SPOKEN})
    text = re.sub(r"FN void load_pixels\(.*?\n}\n", "", text, flags=re.DOTALL)
    for host in ("inline divider", "// Along one dimension"):  # runs before a launch, here too
        text, count = re.subn(f"#ifndef __CUDACC_RTC__\n{host}", f"#if 1\n{host}", text)
        assert count == 1, host
    for pattern, twin in (*TWINS, *MORE_TWINS):
        text = re.sub(pattern, twin, text)
    text += HANDED + "".join(case.entry(k) for k, case in enumerate(CASES))
    head = f"{BEFORE}{WARP}#define __CUDACC_RTC__\n#define cudaErrorInvalidValue 1\n"
    head += "inline void load_pixels(...) {}\n"
    return built(f"{head}{text}}}\n", tmp_path_factory.mktemp("last") / "last.cpp")


@pytest.mark.parametrize("number", range(len(CASES)))
def test_every_pixel_has_its_place(library: ctypes.CDLL, number: int) -> None:
    torch.manual_seed(0)
    case = CASES[number]
    p = case.problem
    image = last(torch.randn(p.images, p.in_channels, *p.in_size))
    sides = (p.out_channels, p.in_channels)
    first, second = reversed(sides) if p.transposed else sides
    weight = torch.randn(first, second // p.groups, *p.kernel)
    weight = last(weight) if case.weights else weight
    shape = (p.images, p.out_channels, *p.out_size)
    bias, more, out = (
        torch.randn(p.out_channels),
        last(torch.randn(shape)),
        last(torch.empty(shape)),
    )
    out.fill_(7e7)
    given = (ctypes.c_void_p(x.data_ptr()) for x in (image, weight, bias, more, out))
    numbers = p.numbers()[:22]
    getattr(library, f"tile_{number}")(*given, (ctypes.c_int * 22)(*numbers))
    expected = p.torch(image, weight) * more + bias.view(-1, *(1,) * len(p.in_size))
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
