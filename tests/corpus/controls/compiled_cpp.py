import ctypes
from pathlib import Path

import torch
import torch.utils.cpp_extension
from torch import nn
from torch.utils.cpp_extension import load_inline

PROBLEM = "linear_relu"
LOOKS_LIKE = "C24"
WHY = "A C++ kernel, compiled in the constructor."
NOTES = ("forward-only", "more-accurate")
NEEDS = ("compiler",)


SOURCE = r"""
#include <cmath>

extern "C" void linear_relu(const float* x, const float* weight, const float* bias, float* out,
                            long rows, long width, long units) {
  for (long r = 0; r < rows; ++r) {
    for (long u = 0; u < units; ++u) {
      double total = bias[u];
      for (long k = 0; k < width; ++k) total += (double)x[r * width + k] * weight[u * width + k];
      out[r * units + u] = total > 0 || std::isnan(total) ? (float)total : 0.0f;
    }
  }
}
"""


def build():
    name = "control_linear_relu"
    load_inline(
        name=name,
        cpp_sources=[SOURCE],
        is_python_module=False,
        no_implicit_headers=True,
        extra_cflags=["-O2"],
    )
    folder = torch.utils.cpp_extension._get_build_directory(name, False)
    return ctypes.CDLL(str(Path(folder, name + ".so"))).linear_relu


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.kernel = build()

    def forward(self, x):
        if x.dtype != torch.float32:
            raise TypeError(f"the kernel is made for float32, not for {x.dtype}")
        x = x.contiguous()
        out = torch.empty(x.shape[0], self.proj.out_features)
        tensors = (x, self.proj.weight, self.proj.bias, out)
        sizes = (*x.shape, self.proj.out_features)
        self.kernel(
            *(ctypes.c_void_p(t.data_ptr()) for t in tensors), *(ctypes.c_long(n) for n in sizes)
        )
        return out
