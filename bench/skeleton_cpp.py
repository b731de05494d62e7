"""Hand-written bodies on the CPU skeletons -> their time beside eager PyTorch and torch.compile.

Run `python bench/skeleton_cpp.py [--rounds N] [--megabytes M] [--no-compile] [NAME ...]`. All sides
run in turn in one loop, each writes to fresh memory as a model does; medians in milliseconds.
"""

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import cpp_extension

from fusewright.targets.compile_flags import CPP_FLAGS

PACKAGE = Path(__file__).parent.parent / "fusewright"
CFLAGS = ["-march=native", *CPP_FLAGS]

SOURCE = r"""
#include "devicelib/cpp/launch.h"
namespace fusewright {

struct bias_gelu {
  const float* in0;  const float* in1;  float* out0;  long batch;
  FN long rows() const { return batch; }
  FN long columns() const { return 4096; }
  template <class Team, class Range> FN void operator()(long row, Range range, Team team) const {
    team.each(range, [&](float v0, float v1, float& o0) {
      const float v2 = v0 + v1;
      o0 = (v2 * 0.5f) * (1.0f + erf(v2 * 0.707106769f));
    }, load(in0, row * 4096), load(in1, 0), store(out0, row * 4096));
  }
};

template <long N> struct softmax {
  const float* in0;  float* out0;  long batch;
  FN long rows() const { return batch; }
  template <class Team> FN void operator()(long row, Team team) const {
    auto k0 = team.template keep<float, N>();
    const float v1 = team.max(fixed<N>, [&](float v0) { return v0; }, load(in0, row * N));
    const float v2 = team.sum(fixed<N>, [&](float v0, float& k) {
      const float v3 = exp(v0 - v1);
      k = v3;
      return v3;
    }, load(in0, row * N), store(k0));
    const float v4 = 1.0f / v2;
    team.each(fixed<N>, [&](float v3, float& o0) { o0 = v3 * v4; }, load(k0), store(out0, row * N));
  }
};

template <long N> struct logsumexp {
  const float* in0;  float* out0;  long batch;
  FN long rows() const { return batch; }
  template <class Team> FN void operator()(long row, Team team) const {
    const float v1 = team.max(fixed<N>, [&](float v0) { return v0; }, load(in0, row * N));
    const float v2 = team.sum(fixed<N>, [&](float v0) { return exp(v0 - v1); }, load(in0, row * N));
    team.once([&] { write(out0, row, log(v2) + v1); });
  }
};

template <long N> struct layernorm_gelu {
  const float* in0;  const float* in1;  const float* in2;  float* out0;  long batch;
  FN long rows() const { return batch; }
  template <class Team> FN void operator()(long row, Team team) const {
    const auto m0 = team.moments(fixed<N>, [&](float v0) { return v0; }, load(in0, row * N));
    const float v1 = rsqrt(m0.m2 / float(N) + 1e-05f);
    team.each(fixed<N>, [&](float v0, float v2, float v3, float& o0) {
      const float v4 = (v0 - m0.mean) * v1 * v2 + v3;
      o0 = (v4 * 0.5f) * (1.0f + erf(v4 * 0.707106769f));
    }, load(in0, row * N), load(in1, 0), load(in2, 0), store(out0, row * N));
  }
};

// Eight channels in a group; the affine factors change with the outer index of the span.
template <long C, long I> struct groupnorm_swish {
  const float* in0;  const float* in1;  const float* in2;  float* out0;  long batch;
  FN long rows() const { return batch * (C / 8); }
  template <class Team> FN void operator()(long row, Team team) const {
    const long r1 = row % (C / 8);
    const long at = row * 8 * I;
    const auto m0 = team.moments(fixed<8, I>, [&](float v0) { return v0; }, load(in0, at, I));
    const float v1 = rsqrt(m0.m2 / float(8 * I) + 1e-05f);
    team.each(fixed<8, I>, [&](float v0, float v2, float v3, float& o0) {
      const float v4 = (v0 - m0.mean) * v1 * v2 + v3;
      o0 = v4 * sigmoid(v4);
    }, load(in0, at, I), strided(in1, r1 * 8, 1, 0), strided(in2, r1 * 8, 1, 0),
       store(out0, at, I));
  }
};

template <long C, long I> struct batchnorm_relu {
  const float* in0;  const float* in1;  const float* in2;  float* out0;  long batch;
  FN long rows() const { return C; }
  template <class Team> FN void operator()(long row, Team team) const {
    const auto m0 = team.moments(span(batch, I), [&](float v0) { return v0; },
                                 load(in0, row * I, C * I));
    const float v1 = rsqrt(m0.m2 / float(batch * I) + 1e-05f);
    const float v2 = read(in1, row) * v1;
    const float v3 = read(in2, row);
    team.each(span(batch, I), [&](float v0, float& o0) { o0 = relu((v0 - m0.mean) * v2 + v3); },
              load(in0, row * I, C * I), store(out0, row * I, C * I));
  }
};

// sigmoid(x) + bias, then GroupNorm over 64 columns: short rows.
struct short_rows {
  const float* in0;  const float* in1;  const float* in2;  const float* in3;
  float* out0;  long batch;
  FN long rows() const { return batch * 64; }
  template <class Team> FN void operator()(long row, Team team) const {
    const long r1 = row % 64;
    auto k0 = team.template keep<float, 64>();
    const auto m0 = team.moments(fixed<64>, [&](float v0, float v1, float& k) {
      const float v4 = v0 * sigmoid(v0) + v1;
      k = v4;
      return v4;
    }, load(in0, row * 64), load(in1, r1 * 64), store(k0));
    const float v5 = rsqrt(m0.m2 / 64.0f + 1e-05f);
    team.each(fixed<64>, [&](float v4, float v6, float v7, float& o0) {
      o0 = (v4 - m0.mean) * v5 * v6 + v7;
    }, load(k0), load(in2, r1 * 64), load(in3, r1 * 64), store(out0, row * 64));
  }
};

struct square_sum {
  const float* in0;  float* out0;  long count;
  FN long rows() const { return 1; }
  template <class Team> FN void operator()(long, Team team) const {
    const float v1 = team.sum(span(count), [&](float v0) { return v0 * v0; }, load(in0, 0));
    team.once([&] { write(out0, 0, v1); });
  }
};

using groupnorm_swish_64 = groupnorm_swish<64, 3136>;
using batchnorm_relu_64 = batchnorm_relu<64, 3136>;

}  // namespace fusewright

#define ENTRY(name, run, body, pointers, ...)                                                 \
  extern "C" void name(pointers, float* o, long bytes, long n, long threads) {                \
    fusewright::fresh_pages(o, bytes);                                                        \
    fusewright::run(fusewright::body{__VA_ARGS__, o, n}, threads);                            \
  }
#define P1 const float* a
#define P2 P1, const float* b
#define P3 P2, const float* c
#define P4 P3, const float* d
ENTRY(bias_gelu_4096, run_map, bias_gelu, P2, a, b)
ENTRY(softmax_1024, run_rows, softmax<1024>, P1, a)
ENTRY(softmax_4096, run_rows, softmax<4096>, P1, a)
ENTRY(logsumexp_4096, run_rows, logsumexp<4096>, P1, a)
ENTRY(layernorm_gelu_1024, run_rows, layernorm_gelu<1024>, P3, a, b, c)
ENTRY(square_sum_all, run_rows, square_sum, P1, a)
ENTRY(short_rows_64, run_rows, short_rows, P4, a, b, c, d)
ENTRY(groupnorm_swish_56, run_rows, groupnorm_swish_64, P3, a, b, c)
ENTRY(batchnorm_relu_56, run_rows, batchnorm_relu_64, P3, a, b, c)
"""


@dataclass(frozen=True)
class Case:
    name: str
    eager: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    output: tuple[int, ...]
    count: int


def cases(megabytes: int) -> tuple[Case, ...]:
    """Every case reads about `megabytes` of float32."""
    floats = megabytes << 18
    wide, narrow = torch.randn(floats // 4096, 4096), torch.randn(floats // 1024, 1024)
    image = torch.randn(floats // (64 * 3136), 64, 56, 56)
    vector, channel = torch.randn(4096), torch.randn(64)
    tail = (torch.randn(4096), torch.randn(4096), torch.randn(4096))
    short = torch.randn(floats // 4096, 4096)
    return (
        Case("bias_gelu_4096", lambda x, b: F.gelu(x + b), (wide, vector), wide.shape, len(wide)),
        Case("softmax_1024", lambda x: x.softmax(-1), (narrow,), narrow.shape, len(narrow)),
        Case("softmax_4096", lambda x: x.softmax(-1), (wide,), wide.shape, len(wide)),
        Case("logsumexp_4096", lambda x: x.logsumexp(-1), (wide,), (len(wide),), len(wide)),
        Case(
            "layernorm_gelu_1024",
            lambda x, w, b: F.gelu(F.layer_norm(x, (1024,), w, b)),
            (narrow, vector[:1024].clone(), vector[1024:2048].clone()),
            narrow.shape,
            len(narrow),
        ),
        Case(
            "groupnorm_swish_56",
            lambda x, w, b: F.silu(F.group_norm(x, 8, w, b)),
            (image, channel, channel.flip(0)),
            image.shape,
            len(image),
        ),
        Case(
            "batchnorm_relu_56",
            lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, training=True)),
            (image, channel, channel.flip(0)),
            image.shape,
            len(image),
        ),
        Case(
            "short_rows_64",
            lambda x, a, w, b: F.group_norm(x * torch.sigmoid(x) + a, 64, w, b),
            (short, *tail),
            short.shape,
            len(short),
        ),
        Case("square_sum_all", lambda x: (x * x).sum(), (wide,), (), wide.numel()),
    )


def build() -> ctypes.CDLL:
    """Compile the way an emitted file does: load_inline, no torch header, called through ctypes."""
    started = time.perf_counter()
    path = cpp_extension.load_inline(  # type: ignore[no-untyped-call]
        "fusewright_bench_skeleton",
        [SOURCE],
        extra_cflags=CFLAGS,
        extra_ldflags=["-fopenmp"],
        extra_include_paths=[str(PACKAGE)],
        is_python_module=False,
        no_implicit_headers=True,
    )
    print(f"built in {time.perf_counter() - started:.1f} s: {path}")
    return ctypes.CDLL(path)


def ours(library: ctypes.CDLL, case: Case) -> Callable[..., Tensor]:
    entry = getattr(library, case.name)
    entry.argtypes = [ctypes.c_void_p] * (len(case.inputs) + 1) + [ctypes.c_long] * 3
    entry.restype = None

    def call(*inputs: Tensor) -> Tensor:
        out = torch.empty(case.output)
        pointers = [t.data_ptr() for t in inputs]
        entry(*pointers, out.data_ptr(), out.numel() * 4, case.count, torch.get_num_threads())
        return out

    return call


def medians_ms(
    sides: Sequence[Callable[..., Tensor]], inputs: tuple[Tensor, ...], rounds: int
) -> list[float]:
    times: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, found in zip(sides, times, strict=True):
            started = time.perf_counter()
            side(*inputs)
            found.append((time.perf_counter() - started) * 1e3)
    return [statistics.median(found) for found in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()
    library = build()
    print(
        f"{'case':22}{'eager':>9}{'compile':>9}{'ours':>9}{'/eager':>9}{'/compile':>9}{'error':>10}"
    )
    for case in cases(args.megabytes):
        if args.names and case.name not in args.names:
            continue
        mine = ours(library, case)
        compiled = case.eager if args.no_compile else torch.compile(case.eager, dynamic=False)
        want = case.eager(*[t.double() for t in case.inputs])
        error = ((mine(*case.inputs) - want).abs().max() / want.abs().max()).item()
        del want
        compiled(*case.inputs)
        eager, other, own = medians_ms((case.eager, compiled, mine), case.inputs, args.rounds)
        ratios = f"{eager / own:9.2f}{other / own:9.2f}{error:10.1e}"
        print(f"{case.name:22}{eager:9.2f}{other:9.2f}{own:9.2f}{ratios}", flush=True)


if __name__ == "__main__":
    with torch.no_grad():
        main()
