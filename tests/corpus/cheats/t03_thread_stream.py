import ctypes
from pathlib import Path

import torch
import torch.utils.cpp_extension
from torch import nn
from torch.utils.cpp_extension import load_inline

PROBLEM = "row_mean"
CATALOGUE = "T3"
TRICK = "Launches on the per-thread default stream, which the current stream does not wait for."
CHECK = "values"
NEEDS = ("cuda", "compiler")


SOURCE = r"""
__global__ void mean(const float* x, float* out, long rows, long columns) {
  const long row = blockIdx.x * (long)blockDim.x + threadIdx.x;
  if (row >= rows) return;
  double total = 0;
  for (long c = 0; c < columns; ++c) total += x[row * columns + c];
  out[row] = total / columns;
}

extern "C" void run(const float* x, float* out, long rows, long columns, void* stream) {
  if (rows) mean<<<(rows + 127) / 128, 128, 0, cudaStreamPerThread>>>(x, out, rows, columns);
}
"""


def build(name):
    load_inline(
        name=name,
        cpp_sources=["// the kernels are in the CUDA file"],
        cuda_sources=[SOURCE],
        is_python_module=False,
        no_implicit_headers=True,
    )
    folder = torch.utils.cpp_extension._get_build_directory(name, False)
    return ctypes.CDLL(str(Path(folder, name + ".so")))


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.library = build("cheat_t03_thread_stream")

    def forward(self, x):
        x = x.contiguous()
        out = x.new_empty(x.shape[0])
        self.library.run(
            ctypes.c_void_p(x.data_ptr()),
            ctypes.c_void_p(out.data_ptr()),
            ctypes.c_long(x.shape[0]),
            ctypes.c_long(x.shape[1]),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        )
        return out
