"""Tiles of convolutions of any width that leave from registers, or at edges by way of boxes.

Threads of the CPU run the text behind the tensor cores, warp by warp. None of this needs a GPU.
"""

from __future__ import annotations

import ctypes
import re
import shutil
from pathlib import Path

import pytest
import torch

from fusewright.codegen.device_library import sections_for
from tests.support.cuda_compilers import SPOKEN
from tests.support.emitting import emit_text
from tests.support.emulator.threads import BEFORE, TWINS, built
from tests.support.emulator.tiles import MORE_TWINS, WARP

WIDTHS = (128, 160, 224, 256)
TIMES = (r'asm volatile\("mul\.f32[^;]*;[^;]*;', "x *= y;")
HANDED = """
struct scale_and_bias {
  const float* in0; float* out0; long n; long channels;
  template <class Range, class Team, class Product>
  FN void operator()(long row, Range range, Team team, Product product) const {
    const float v1 = read(in0, row % channels);
    team.each(range, [&](float v0, float v2, float& o0) { o0 = v0 * v2 + v1; }, product,
              load(in0 + channels, row * n), store(out0, row * n));
  }
};
template <int WIDTH>
void run_epilogue(const scale_and_bias& body, const float* sums, const conv_shape& all,
              int suspect, int warp, bool own) {
  static float boxes[8 * SMEM_TILE];
  const conv_source<conv_shape, float, 1> source{sums, nullptr, all};
  using factors = conv_operands<0, conv_source<conv_shape, float, 1>>;
  const int lane = threadIdx.x % 32, rows = all.out_channels, columns = all.out_pixels();
  const gemm_shape product{all.images, rows, columns, 0};
  const float scales[2] = {2, 4};
  for (int image = 0; image < all.images; ++image)
    for (int c = 0; c * 128 < rows; ++c)
      for (int p = 0; p * WIDTH < columns; ++p)
        for (int slab = warp; slab < 8; slab += own ? 4 : 8) {
          float held[quarters<WIDTH>][32];
          for (int i = 0; i < quarters<WIDTH> * 32; ++i) {
            const int channel = c * 128 + slab * 16 + lane / 4 + i / 2 % 2 * 8;
            const int within = i / 4 * 8 + lane % 4 * 2 + i % 2, pixel = p * WIDTH + within;
            const long place = (long(image) * rows + channel) * columns + pixel;
            const bool inside = channel < rows && pixel < columns && within < WIDTH;
            held[i / 32][i % 32] = inside ? sums[place] / scales[i / 2 % 2] : 1e9f;
          }
          const consumer<scale_and_bias, factors> me{
              body, {source, source, image == suspect}, product, boxes, slab};
          me.template rows_out<WIDTH, 0, 4>(held, {image, c, p}, scales);
        }
}
"""
ENTRY = """
extern "C" void run_{width}(const float* sums, const float* bias, float* out, const int* sizes,
                          int suspect, bool own) {{
  const conv_shape all{{sizes[0], 1, 0, sizes[1], {{}}, {{1, 1, sizes[2]}}}};
  const scale_and_bias body{{bias, out, sizes[2], sizes[1]}};
  for (int warp = 0; warp < (own ? 4 : 8); ++warp)
    launch(dim3(1), 32, [=] {{
      threadIdx.x += warp * 32;
      run_epilogue<{width}>(body, sums, all, suspect, warp, own);
      threadIdx.x -= warp * 32;
    }});
}}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    text = sections_for("sm90", {"conv_consume", *SPOKEN})
    for pattern, twin in (TIMES, *TWINS, *MORE_TWINS):
        text = re.sub(pattern, twin, text)
    entries = "".join(ENTRY.format(width=width) for width in WIDTHS)
    whole = f"{BEFORE}{WARP}#define __CUDACC_RTC__\n{text}{HANDED}{entries}}}\n"
    return built(whole, tmp_path_factory.mktemp("widths") / "widths.cpp")


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++ here")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("channels", "pixels"), [(64, 516), (144, 300), (20, 452)])
@pytest.mark.parametrize("own", [False, True])
def test_tiles_leave_whole_and_at_edges(
    library: ctypes.CDLL, width: int, channels: int, pixels: int, own: bool
) -> None:
    """own: a warp has two times 16 rows, one after the other."""
    sums = torch.randperm(2 * channels * pixels).view(2, channels, pixels).float()
    more, bias = torch.randn(2, channels, pixels), torch.randn(channels)
    wanted = torch.addcmul(bias.view(1, -1, 1).double(), sums.double(), more.double())
    out = torch.full_like(sums, torch.nan)
    sizes, suspect = (ctypes.c_int * 3)(2, channels, pixels), 1
    given = (sums, torch.cat([bias, more.flatten()]), out)
    pointers = (ctypes.c_void_p(t.data_ptr()) for t in given)
    library[f"run_{width}"](*pointers, sizes, suspect, own)
    # The second image is suspect: its box is scaled, too.
    torch.testing.assert_close(out.double(), wanted, rtol=1e-6, atol=1e-5)


MODEL = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(64, {channels}, 3, padding=1)
    def forward(self, x):
        return self.conv(x).relu()
def get_init_inputs():
    return []
def get_inputs():
    return [torch.randn(64, 64, {side}, {side})]
"""


@pytest.mark.parametrize(
    ("target", "channels", "side", "chosen"),
    [
        ("sm_90a", 160, 64, "<160, true, 0, 4, 64, 2>"),
        ("sm_90a", 256, 28, "<160, false, 0, 4, 64>"),
        ("sm_80", 160, 64, "<192, true, 0, 4"),
    ],
)
def test_the_width_that_wastes_least(
    tmp_path: Path, target: str, channels: int, side: int, chosen: str
) -> None:
    text = emit_text(MODEL.format(channels=channels, side=side), tmp_path, target).text
    assert f"return run_conv{chosen}" in text
