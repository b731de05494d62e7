"""Two outputs at row scope: a mean and a maximum."""

import ctypes
import hashlib

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

PROBLEM = "mean_and_max"

SOURCE = r"""
#define FN inline __attribute__((always_inline))
namespace fusewright {

FN float maximum(float a, float b) { return (a > b) | (a != a) ? a : b; }

template <long I> struct span_of {
  static constexpr long size = I;
};
template <long I> inline constexpr span_of<I> fixed{};
struct const_line {
  const float* p;
  FN float at(long i) const { return p[i]; }
};
FN const_line load(const float* p, long base) { return {p + base}; }
FN void write(float* p, long offset, float value) { p[offset] = value; }

// One thread; sums are kept in double, as wide partial sums are.
struct solo {
  template <class S, class F, class... O> FN float sum(S, F f, O... o) const {
    double total = 0;
    for (long i = 0; i < S::size; ++i) total += f(o.at(i)...);
    return float(total);
  }
  template <class S, class F, class... O> FN float max(S, F f, O... o) const {
    float best = -__builtin_inff();
    for (long i = 0; i < S::size; ++i) best = maximum(f(o.at(i)...), best);
    return best;
  }
};

template <class Body> void run_rows(const Body& body) {
  const long rows = body.rows();
  for (long row = 0; row < rows; ++row) body(row, solo());
}

// out0 = mean(x), out1 = max(x)        rows: batch, columns: 80
struct fused_0 {
  const float* in0;  float* out0;  float* out1;  long batch;
  FN long rows() const { return batch * 1; }
  template <class Team> FN void operator()(long row, Team team) const {
    const float v1 = team.sum(fixed<80>, [&](float v0) {
      return v0;
    }, load(in0, row * 80));
    const float v2 = team.max(fixed<80>, [&](float v0) {
      return v0;
    }, load(in0, row * 80));
    const float v3 = v1 / 80.0f;
    write(out0, row, v3);
    write(out1, row, v2);
  }
};

extern "C" void run_fused_0(const float* in0, float* out0, float* out1, long batch) {
  run_rows(fused_0{in0, out0, out1, batch});
}
}  // namespace fusewright
"""


def library():
    name = "subject_" + hashlib.sha256(SOURCE.encode()).hexdigest()[:16]
    load_inline(
        name=name,
        cpp_sources=[SOURCE],
        extra_cflags=["-O2", "-std=c++17"],
        is_python_module=False,
        no_implicit_headers=True,
    )
    return ctypes.CDLL(next(path for path in torch.ops.loaded_libraries if name in path))


def run(kernel, *arguments):
    *tensors, batch = arguments
    addresses = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
    getattr(library(), kernel)(*addresses, ctypes.c_long(batch))


class ModelNew(nn.Module):
    def reference_forward(self, x):
        return x.mean(dim=-1), x.amax(dim=-1)

    @torch.no_grad()
    def forward(self, x):
        if not self.ready(x):
            return self.reference_forward(x)
        t0 = torch.empty(x.shape[:-1], dtype=x.dtype)
        t1 = torch.empty(x.shape[:-1], dtype=x.dtype)
        run("run_fused_0", x, t0, t1, x.shape[0])
        return t0, t1

    def ready(self, x):
        right = x.dtype == torch.float32 and x.ndim == 2 and x.shape[1] == 80
        return right and x.is_contiguous()
