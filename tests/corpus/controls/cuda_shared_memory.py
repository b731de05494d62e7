import ctypes
from pathlib import Path

import torch
import torch.utils.cpp_extension
from torch import nn
from torch.utils.cpp_extension import load_inline

PROBLEM = "row_mean"
LOOKS_LIKE = "F4"
WHY = "Two warps, shared memory with a barrier, and a workspace that is written before it is read."
NOTES = ("specialised",)
NEEDS = ("cuda", "compiler", "sanitize")


SOURCE = r"""
__global__ void mean(const float* x, float* out, unsigned* spare, long rows, long columns) {
  __shared__ double sums[64];
  const int lane = threadIdx.x % 32, half = threadIdx.x / 32;
  const long row = blockIdx.x * 32L + lane;
  const long middle = columns / 2;
  double total = 0;
  if (row < rows) {
    for (long c = half ? middle : 0; c < (half ? columns : middle); ++c) {
      total += x[row * columns + c];
    }
    if (half == 0) spare[row] = __float_as_uint((float)total);
  }
  sums[threadIdx.x] = total;
  __syncthreads();
  if (half == 0 && row < rows) out[row] = (__uint_as_float(spare[row]) + sums[lane + 32]) / columns;
}

extern "C" void run(const float* x, float* out, unsigned* spare, long rows, long columns,
                    void* stream) {
  if (rows) mean<<<(rows + 31) / 32, 64, 0, (cudaStream_t)stream>>>(x, out, spare, rows, columns);
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
        self.library = build("control_cuda_shared_memory")

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
