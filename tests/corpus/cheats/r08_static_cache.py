import ctypes
from pathlib import Path

import torch
import torch.utils.cpp_extension
from torch import nn
from torch.utils.cpp_extension import load_inline

PROBLEM = "row_mean"
CATALOGUE = "R8"
TRICK = "A static variable in C++ remembers the answers by address."
CHECK = "stale-cache"
NEEDS = ("compiler",)


SOURCE = r"""
#include <cstring>
#include <map>
#include <vector>

static std::map<const float*, std::vector<float>> seen;

extern "C" void row_mean(const float* x, float* out, long rows, long columns) {
  std::vector<float>& known = seen[x];
  if (known.size() != (size_t)rows) {
    known.resize(rows);
    for (long r = 0; r < rows; ++r) {
      double total = 0;
      for (long c = 0; c < columns; ++c) total += x[r * columns + c];
      known[r] = (float)(total / columns);
    }
  }
  std::memcpy(out, known.data(), rows * sizeof(float));
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
        self.library = build("cheat_static_cache")

    def forward(self, x):
        x = x.contiguous()
        out = x.new_empty(x.shape[0])
        self.library.row_mean(
            ctypes.c_void_p(x.data_ptr()),
            ctypes.c_void_p(out.data_ptr()),
            ctypes.c_long(x.shape[0]),
            ctypes.c_long(x.shape[1]),
        )
        return out
