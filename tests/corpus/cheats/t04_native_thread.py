import ctypes
from pathlib import Path

import torch
import torch.utils.cpp_extension
from torch import nn
from torch.utils.cpp_extension import load_inline

PROBLEM = "gate"
CATALOGUE = "T4"
TRICK = "A detached std::thread fills the output later: Python counts no thread of it."
CHECK = "values"
NEEDS = ("compiler",)


SOURCE = r"""
#include <chrono>
#include <cmath>
#include <thread>

extern "C" void gate(const float* x, const float* y, float* out, long size) {
  std::thread([=] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    for (long i = 0; i < size; ++i) out[i] = y[i] / (1.0f + std::exp(-x[i]));
  }).detach();
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
        self.library = build("cheat_native_thread")
        self.kept = []

    def forward(self, x, y):
        x, y = x.contiguous(), y.contiguous()
        out = torch.empty_like(x)
        self.kept.append((x, y, out))
        self.library.gate(
            *(ctypes.c_void_p(t.data_ptr()) for t in (x, y, out)), ctypes.c_long(x.numel())
        )
        return out
