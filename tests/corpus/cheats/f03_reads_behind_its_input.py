import ctypes
from pathlib import Path

import torch
import torch.utils.cpp_extension
from torch import nn
from torch.utils.cpp_extension import load_inline

PROBLEM = "row_mean"
CATALOGUE = "F3"
TRICK = "Reads behind the last row and makes no use of it: right everywhere but in a tool."
CHECK = "sanitizer"
NEEDS = ("cuda", "compiler", "sanitize")


SOURCE = r"""
__global__ void mean(const float* x, float* out, unsigned* spare, long rows, long columns) {
  const long row = blockIdx.x * (long)blockDim.x + threadIdx.x;
  if (row >= rows) return;
  double total = 0;
  for (long c = 0; c < columns; ++c) total += x[row * columns + c];
  // One number in four billion would show: the compiler has to keep the load.
  if (__float_as_uint(x[rows * columns + row]) == 0x7f123456u) total += 1;
  out[row] = total / columns;
}

extern "C" void run(const float* x, float* out, unsigned* spare, long rows, long columns,
                    void* stream) {
  const long blocks = (rows + 127) / 128;
  if (rows) mean<<<blocks, 128, 0, (cudaStream_t)stream>>>(x, out, spare, rows, columns);
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
        self.library = build("cheat_f03_reads_behind_its_input")

    def forward(self, x):
        if x.dtype is not torch.float32:
            raise TypeError("float32 only")
        x = x.contiguous()
        out = x.new_empty(x.shape[0])
        spare = torch.empty(x.shape[0], dtype=torch.int32, device=x.device)
        self.library.run(
            ctypes.c_void_p(x.data_ptr()),
            ctypes.c_void_p(out.data_ptr()),
            ctypes.c_void_p(spare.data_ptr()),
            ctypes.c_long(x.shape[0]),
            ctypes.c_long(x.shape[1]),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        )
        return out
