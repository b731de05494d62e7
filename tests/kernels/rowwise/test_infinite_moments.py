"""Mean and variance of rows with infinities on a GPU: an infinite mean is infinite, as in eager,
and a mean whose square is not finite has no part in the variance of what equals it.

The struct that merges them is plain C++, so its rules are also tried without a GPU.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fusewright
from fusewright.targets.device_files import DEVICE_FILES
from tests.support.agreement import disagreements

PACKAGE = Path(fusewright.__file__).parent
BEGIN, END = "constexpr int HELD", "template <class T> constexpr bool takes_bursts<moments_of<T>>"
AROUND = """
#include <cmath>
#include <cstdio>
#define FN inline
template <class T> T quotient(T a, T b) {{ return a / b; }}
{}
int main() {{
  const float special[5][2] = {{{{0, 0}}, {{INFINITY, 0}}, {{-INFINITY, -INFINITY}}, {{INFINITY, -INFINITY}}, {{NAN, 0}}}};
  for (const auto& pair : special)
    for (int at = 0; at < 256; ++at) {{
      moments_of<float> parts[3];
      float sum = 0, row[256];
      for (int i = 0; i < 256; ++i) sum += row[i] = i == at ? pair[0] : i == 255 - at ? pair[1] : i % 5 - 2;
      for (int i = 0; i < 256; i += 16) {{
        const bool live[4] = {{true, true, true, true}};
        parts[i / 16 % 3].take<true, 4, 4>(live, [&](int u, int j) {{ return row[i + u * 4 + j]; }});
      }}
      const auto two = moments_of<float>::join(parts[0].part(), parts[1].part());
      const auto all = moments_of<float>::result(moments_of<float>::join(two, parts[2].part()));
      const float mean = sum / 256;
      const bool same = std::isfinite(mean) ? std::fabs(all.mean - mean) < 1e-5f && all.m2 > 0
                                            : (all.mean == mean || (all.mean != all.mean && mean != mean)) && all.m2 != all.m2;
      if (!same) std::printf("%d: %g instead of %g, %g\\n", at, all.mean, mean, all.m2);
    }}
  const moments_of<float>::partial large{{16, 1e30f, 0}};
  const auto both = moments_of<float>::join(moments_of<float>::join(moments_of<float>::none(), large), large);
  if (both.mean != 1e30f || both.m2 != 0) std::printf("%g, %g\\n", both.mean, both.m2);
}}
"""  # noqa: E501


class Apart(nn.Module):
    """Mean and variance, along rows or across them."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.mean(self.dim), x.var(self.dim)


@pytest.mark.compiler
@pytest.mark.skipif(not shutil.which("g++"), reason="no g++ here")
def test_an_infinite_mean_is_merged_as_one(tmp_path: Path) -> None:
    (text,) = [t for f in DEVICE_FILES["cuda"] if END in (t := (PACKAGE / f).read_text())]
    source = tmp_path / "moments.cpp"
    source.write_text(AROUND.format(text[text.index(BEGIN) : text.index(END)]))
    program = source.with_suffix("")
    subprocess.run(["g++", "-std=c++17", "-O1", "-w", str(source), "-o", str(program)], check=True)
    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout == ""


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize(
    ("shape", "dim"), [((40, 200), 1), ((40, 1024), 1), ((9, 100_000), 1), ((3000, 70), 0)]
)
def test_gpu_infinite_means_are_eagers(shape: tuple[int, int], dim: int) -> None:
    torch.manual_seed(0)
    given = [torch.randn(shape, device="cuda")]
    model = Apart(dim).cuda()
    ours = fusewright.optimize(model, *given, options={"target": "cuda"})
    rows = given[0].transpose(0, 1 - dim)
    rows[0, 5], rows[1, -1], rows[2, 0] = float("inf"), float("-inf"), float("nan")
    rows[3, 0], rows[3, 7] = float("inf"), float("-inf")
    assert disagreements(ours, model, given) == []
