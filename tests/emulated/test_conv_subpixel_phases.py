"""The phases of transposed convolutions, walked by the skeleton's own functions on the host.

Each result is summed twice: tap by tap as the kernel walks packed weights and pixels, and as what
is not finite is repaired. Both are compared with PyTorch's in float64. None of this needs a GPU.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fusewright.codegen.device_library import sections
from tests.support.conv_subjects import Problem

SECTIONS = ("divider",
    "conv_shape", "plain_total", "transposed_shape", "transposed_weights",
    "transposed_places",
)  # fmt: skip
# What these sections take from others, said for the host.
PRELUDE = """
#include <cmath>
#include <cstdio>
#include <vector>
#define __host__
#define __device__
#define FN inline
constexpr int cudaErrorInvalidValue = 1;
inline float widen(float x) { return x; }
inline bool is_finite(float x) { return std::isfinite(x); }
template <class Shape, class T, int PARTS> struct conv_source {
  const T *image, *weight;
  const Shape& shape;
};
"""
MAIN = """
using shape_type = transposed_shape<TOGETHER>;
// The sum of one row and place as the kernel's producer and its packed weights have it.
float walked_sum(const shape_type& s, const float* image, const float* weight, int n, int product,
                 int row, int place) {
  const conv_shape& walk = s.walk();
  const phase_row_of_weights<TOGETHER> weights(weight, s, long(product) * s.rows() + row);
  const auto spans = s.spans_of(product);
  const int line = place / walk.out_size[2], channels = walk.in_channels / walk.groups;
  const int high = walk.out_size[1];
  const int first[3] = {place % walk.out_size[2] - walk.pad[2], line % high - walk.pad[1],
                        line / high - walk.pad[0]};
  const int (&size)[3] = walk.in_size;
  float sum = 0;
  int tap = 0;
  for (int d = spans[2].first; d < spans[2].end; d += spans[2].step)
    for (int h = spans[1].first; h < spans[1].end; h += spans[1].step)
      for (int w = spans[0].first; w < spans[0].end; w += spans[0].step, ++tap) {
        const int x = first[0] + w, y = first[1] + h, z = first[2] + d;
        if (x < 0 || x >= size[2] || y < 0 || y >= size[1] || z < 0 || z >= size[0]) continue;
        for (int c = 0; c < channels; ++c) {
          const long from = n * long(walk.in_channels) + s.group_of(product) * channels + c;
          const long pixel = ((from * size[0] + z) * size[1] + y) * size[2] + x;
          sum += image[pixel] * weights.at(tap, c);
        }
      }
  if (tap != s.taps_of(product) || tap > s.most_taps()) return NAN;
  return sum;
}
int main(int, char** files) {
  const conv_shape given{NUMBERS};
  shape_type s;
  if (describe_phases(s, given, STACKED)) return 1;
  std::vector<float> image(IMAGE), weight(WEIGHT), result(2l * RESULT, NAN);
  std::FILE* in = std::fopen(files[1], "rb");
  if (std::fread(image.data(), 4, IMAGE, in) != IMAGE) return 2;
  if (std::fread(weight.data(), 4, WEIGHT, in) != WEIGHT) return 2;
  const conv_source<shape_type, float, 1> source{image.data(), weight.data(), s};
  const int (&size)[3] = given.out_size;
  const int height = (1 << s.height_bits) - 1, each = given.out_channels / given.groups;
  for (int n = 0; n < given.images; ++n)
    for (int product = 0; product < s.gemms(); ++product)
      for (int row = 0; row < s.rows(); ++row)
        for (int place = 0; place < s.walk().out_pixels(); ++place) {
          const subpixel_phases phases = s.phases_of(product);
          const phase_place p = place_of_phase(s, phases, place, row % TOGETHER);
          const int line = row / TOGETHER, across = line & (1 << s.line_bits) - 1;
          const int z = p.z + (across >> s.height_bits), y = p.y + (across & height);
          if (z < 0 || z >= size[0] || y < 0 || y >= size[1] || p.x < 0 || p.x >= size[2]) continue;
          const long first = n * long(given.out_channels) + phases.group * each;
          const long channel = first + (line >> s.line_bits);
          const long at = ((channel * size[0] + z) * size[1] + y) * size[2] + p.x;
          if (!std::isnan(result[at])) return 3;  // two places in one
          result[at] = walked_sum(s, image.data(), weight.data(), n, product, row, place);
          result[RESULT + at] = plain_sum(source, n * s.gemms() + product, row, place);
        }
  std::FILE* out = std::fopen(files[2], "wb");
  return std::fwrite(result.data(), 4, result.size(), out) == result.size() ? std::fclose(out) : 4;
}
"""

PROBLEMS = (
    Problem(2, 3, 5, (4, 6), (4, 4), (2, 2), ((1, 1), (1, 1))),
    Problem(1, 3, 4, (5, 7), (3, 3), (2, 2), behind=(1, 1)),
    Problem(1, 2, 3, (3, 4, 5), (3, 3, 3), (2, 2, 2)),
    Problem(1, 2, 3, (3, 2, 4), (4, 2, 4), (2, 2, 2), ((1, 1), (0, 0), (1, 1))),
    Problem(2, 4, 6, (6, 5), (3, 3), (1, 1), ((1, 1), (1, 1)), groups=2),
    Problem(1, 6, 6, (9, 5), (5, 5), (3, 3), ((2, 2), (1, 1)), (1, 2), groups=3, behind=(0, 1)),
    Problem(2, 3, 4, (9,), (8,), (4,), ((2, 2),)),
    Problem(2, 3, 4, (9,), (5,), (4,), ((1, 1),)),
    Problem(1, 3, 4, (9,), (3,), (8,)),
    Problem(1, 2, 3, (4, 5), (2, 3), (4, 4), ((0, 0), (1, 1)), behind=(3, 2)),
    Problem(1, 2, 3, (5, 6), (3, 3), (2, 2), ((1, 1), (2, 2)), (2, 3)),
    Problem(1, 2, 3, (5, 6), (1, 1), (2, 2)),
    Problem(1, 2, 3, (2, 3, 2), (4, 4, 4), (4, 4, 4)),
    Problem(2, 2, 3, (6, 6), (3, 3), (2, 2), ((3, 3), (4, 4)), behind=(1, 0)),
)


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++ here")
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: f"{p.kernel} by {p.stride}")
def test_every_result_is_summed_once_and_rightly(problem: Problem, tmp_path: Path) -> None:
    problem = replace(problem, transposed=True)
    torch.manual_seed(8)
    image = torch.randn(problem.images, problem.in_channels, *problem.in_size)
    channels = (problem.in_channels, problem.out_channels // problem.groups)
    weight = torch.randn(*channels, *problem.kernel)
    wanted = problem.torch(image.double(), weight.double())
    for found in results(problem, image, weight, wanted.shape, tmp_path):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


def results(
    problem: Problem, image: Tensor, weight: Tensor, shape: torch.Size, folder: Path
) -> Tensor:
    """Both sums of every result."""
    numbers = problem.numbers()
    texts = {s.name: s.text for s in sections("sm90")}
    host = texts["describe_phases"].partition("#ifndef __CUDACC_RTC__")
    phases = host[0] + host[2].partition("#endif")[0]
    head, *sizes = str(numbers[:4])[1:-1], *(numbers[k : k + 3] for k in range(4, 22, 3))
    braced = [f"{{{str(size)[1:-1]}}}" for size in sizes]
    words = {
        "NUMBERS": ", ".join([head, *braced]),
        "STACKED": f"{{{{{str(numbers[22:25])[1:-1]}}}, {numbers[25]}}}",
        "IMAGE": image.numel(),
        "WEIGHT": weight.numel(),
        "RESULT": shape.numel(),
        "TOGETHER": problem.together,
    }
    defined = "".join(f"#define {name} {text}\n" for name, text in words.items())
    # Behind the sections: a template's parameter has the name of the last word.
    text = PRELUDE + "".join(f"{part}\n" for part in [*map(texts.get, SECTIONS), phases])
    source, program = folder / "phases.cpp", folder / "phases"
    source.write_text(text + defined + MAIN, encoding="utf-8")
    subprocess.run(["g++", "-std=c++17", "-O1", "-w", "-o", program, source], check=True)
    given, out = folder / "in", folder / "out"
    given.write_bytes(image.numpy().tobytes() + weight.numpy().tobytes())
    assert subprocess.run([program, given, out], check=False).returncode == 0
    flat = torch.frombuffer(bytearray(out.read_bytes()), dtype=torch.float32)
    return flat.view(2, *shape)
