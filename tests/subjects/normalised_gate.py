"""A row kernel with moments, two scales and a gate."""

import ctypes
import hashlib

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

PROBLEM = "normalised_gate"

SOURCE = r"""
#include <cmath>
#define FN inline __attribute__((always_inline))
namespace fusewright {

FN float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }
FN float rsqrt(float x) { return 1.0f / std::sqrt(x); }

template <long I> struct span_of {
  static constexpr long size = I;
};
template <long I> inline constexpr span_of<I> fixed{};
struct const_line {
  const float* p;
  FN float at(long i) const { return p[i]; }
};
struct line {
  float* p;
  FN float& at(long i) const { return p[i]; }
};
FN const_line load(const float* p, long base) { return {p + base}; }
FN line store(float* p, long base) { return {p + base}; }
struct moments_of {
  float mean, m2;
};

// One thread; sums are kept in double, as wide partial sums are.
struct solo {
  template <class S, class F, class... O> FN void each(S, F f, O... o) const {
    for (long i = 0; i < S::size; ++i) f(o.at(i)...);
  }
  template <class S, class F, class... O> FN float sum(S, F f, O... o) const {
    double total = 0;
    for (long i = 0; i < S::size; ++i) total += f(o.at(i)...);
    return float(total);
  }
  template <class S, class F, class... O> FN moments_of moments(S s, F f, O... o) const {
    const double mean = sum(s, f, o...) / S::size;
    double m2 = 0;
    for (long i = 0; i < S::size; ++i) {
      const double d = f(o.at(i)...) - mean;
      m2 += d * d;
    }
    return {float(mean), float(m2)};
  }
};

template <class Body> void run_rows(const Body& body) {
  const long rows = body.rows();
  for (long row = 0; row < rows; ++row) body(row, solo());
}

// out = sigmoid(x + shift) * layer_norm(x)        rows: batch, columns: 64
struct fused_0 {
  const float* in0;  const float* in1;  const float* in2;  const float* in3;
  float* out0;  long batch;
  FN long rows() const { return batch * 1; }
  template <class Team> FN void operator()(long row, Team team) const {
    const auto m0 = team.moments(fixed<64>, [&](float v0) {
      return v0;
    }, load(in0, row * 64));
    const float v1 = rsqrt(m0.m2 / 64.0f + 1e-05f);
    team.each(fixed<64>, [&](float v0, float v2, float v3, float v4, float& o0) {
      const float v5 = (v0 - m0.mean) * v1;
      const float v6 = v5 * v2;
      const float v7 = v6 + v3;
      const float v8 = v0 + v4;
      const float v9 = sigmoid(v8);
      o0 = v9 * v7;
    }, load(in0, row * 64), load(in1, 0), load(in2, 0), load(in3, 0), store(out0, row * 64));
  }
};

extern "C" void run_fused_0(const float* in0, const float* in1, const float* in2, const float* in3,
                            float* out0, long batch) {
  run_rows(fused_0{in0, in1, in2, in3, out0, batch});
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
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.shift = nn.Parameter(torch.zeros(width))

    def reference_forward(self, x):
        return torch.sigmoid(x + self.shift) * self.norm(x)

    @torch.no_grad()
    def forward(self, x):
        if not self.ready(x):
            return self.reference_forward(x)
        weight, bias = self.norm.weight.contiguous(), self.norm.bias.contiguous()
        shift = self.shift.contiguous()
        t0 = torch.empty_like(x)
        run("run_fused_0", x, weight, bias, shift, t0, x.shape[0])
        return t0

    def ready(self, x):
        right = x.dtype == torch.float32 and x.ndim == 2 and x.shape[1] == 64
        return right and x.is_contiguous()
