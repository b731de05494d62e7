import ctypes
from pathlib import Path

import torch
import torch.utils.cpp_extension
from torch import nn
from torch.utils.cpp_extension import load_inline

PROBLEM = "row_variance"
CATALOGUE = "F3"
TRICK = "Reads one element too far in every row, and what lies behind the tensor in the last one."
CHECK = "values"
NEEDS = ("compiler",)


SOURCE = r"""
extern "C" void row_variance(const float* x, float* out, long rows, long columns) {
  for (long r = 0; r < rows; ++r) {
    double total = 0, squares = 0;
    for (long c = 0; c <= columns; ++c) total += x[r * columns + c];
    const double mean = total / columns;
    for (long c = 0; c <= columns; ++c) {
      const double d = x[r * columns + c] - mean;
      squares += d * d;
    }
    out[r] = (float)(squares / columns);
  }
}
"""


def build(name):
    load_inline(
        name=name,
        cpp_sources=[SOURCE],
        is_python_module=False,
        no_implicit_headers=True,
        extra_cflags=["-O2"],
    )
    folder = torch.utils.cpp_extension._get_build_directory(name, False)
    return ctypes.CDLL(str(Path(folder, name + ".so")))


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.library = build("cheat_reads_the_next_row")

    def forward(self, x):
        x = x.contiguous()
        out = x.new_empty(x.shape[0])
        self.library.row_variance(
            ctypes.c_void_p(x.data_ptr()),
            ctypes.c_void_p(out.data_ptr()),
            ctypes.c_long(x.shape[0]),
            ctypes.c_long(x.shape[1]),
        )
        return out
