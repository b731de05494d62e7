"""CUDA skeletons + hand-written bodies -> errors against float64, and time against a plain copy.

`python bench/skeleton_cuda.py` needs an NVIDIA GPU, nvcc and torch; it builds everything itself and prints
two tables. The tests import CASES and `check` from here, so what is timed is what is tested.
"""

from __future__ import annotations

import ctypes
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

SKELETONS = Path(__file__).resolve().parent.parent / "fusewright" / "skeletons" / "cuda"
FILES = ("math.cuh", "operand.cuh", "team.cuh", "launch.cuh")

BODIES = r"""
// group_norm(x * sigmoid(x) + bias) * weight + shift over groups of 64
struct swish_norm {
  const float* x;  const float* bias;  const float* weight;  const float* shift;  float* y;  long batch;
  template <class Team> FN void operator()(long row, Team team) const {
    const long r1 = row % 64;
    auto k0 = team.template keep<float, 64>();
    const auto m0 = team.moments(fixed<64>, [&](float v0, float v1, float& k) {
      const float v2 = sigmoid(v0);
      k = v0 * v2 + v1;
      return k;
    }, load(x, row * 64), load(bias, r1 * 64), store(k0));
    const float v5 = rsqrt(m0.m2 / 64.0f + 1e-05f);
    team.each(fixed<64>, [&](float v4, float v6, float v7, float& o0) {
      o0 = (v4 - m0.mean) * v5 * v6 + v7;
    }, load(k0), load(weight, r1 * 64), load(shift, r1 * 64), store(y, row * 64));
  }
};
// relu(x + bias[channel]) of 128 channels
struct channel_relu {
  const float* x;  const float* bias;  float* y;  long batch;
  FN long columns() const { return 15876; }
  template <class Team, class Range> FN void operator()(long row, Range range, Team team) const {
    const float v1 = read(bias, row % 128);
    team.each(range, [&](float v0, float& o0) { o0 = relu(v0 + v1); }, load(x, row * 15876), store(y, row * 15876));
  }
};
struct bias_relu {
  const float* x;  const float* bias;  float* y;  long batch;
  FN long columns() const { return 8192; }
  template <class Team, class Range> FN void operator()(long row, Range range, Team team) const {
    team.each(range, [&](float v0, float v1, float& o0) { o0 = relu(v0 + v1); },
              load(x, row * 8192), load(bias, 0), store(y, row * 8192));
  }
};
// y = a + b of different storage types; one flat row of any length
template <class A, class B, class Y> struct mixed_add {
  const A* a;  const B* b;  Y* y;  long batch;
  FN long columns() const { return batch; }
  template <class Team, class Range> FN void operator()(long row, Range range, Team team) const {
    using value = computed<Y>;
    team.each(range, [&](computed<A> v0, computed<B> v1, value& o0) { o0 = value(v0) + value(v1); },
              load(a, 0), load(b, 0), store(y, 0));
  }
};
// y = -x in place, with the index added
struct in_place {
  float* x;  long batch;
  FN long columns() const { return batch; }
  template <class Team, class Range> FN void operator()(long row, Range range, Team team) const {
    team.each(range, [&](float v0, long i, float& o0) { o0 = float(i) - v0; }, load(x, 0), index(), store(x, 0));
  }
};
template <long N> struct layer_norm {
  const float* x;  const float* weight;  const float* shift;  float* y;  long batch;
  template <class Team> FN void operator()(long row, Team team) const {
    auto k0 = team.template keep<float, N>();
    const auto m0 = team.moments(fixed<N>, [&](float v0, float& k) { return k = v0; }, load(x, row * N), store(k0));
    const float v5 = rsqrt(m0.m2 / float(N) + 1e-05f);
    team.each(fixed<N>, [&](float v4, float v6, float v7, float& o0) { o0 = (v4 - m0.mean) * v5 * v6 + v7; },
              load(k0), load(weight, 0), load(shift, 0), store(y, row * N));
  }
};
template <long N, class T> struct softmax {
  const T* x;  T* y;  long batch;
  template <class Team> FN void operator()(long row, Team team) const {
    auto k0 = team.template keep<float, N>();
    const float v1 = team.max(fixed<N>, [&](float v0, float& k) { return k = v0; }, load(x, row * N), store(k0));
    const float v2 = team.sum(fixed<N>, [&](float v0, float& k) { return k = exp(v0 - v1); }, load(k0), store(k0));
    team.each(fixed<N>, [&](float v3, float& o0) { o0 = v3 / v2; }, load(k0), store(y, row * N));
  }
};
// train-mode batch_norm of C channels; the running mean is updated in place
template <long C, long HW> struct batch_norm {
  const float* x;  const float* weight;  const float* shift;  float* running;  float* y;  long batch;
  template <class Team> FN void operator()(long row, Team team) const {
    const auto m0 = team.moments(span(batch, HW), [&](float v0) { return v0; }, load(x, row * HW, C * HW));
    const float v1 = rsqrt(m0.m2 / float(batch * HW) + 1e-05f) * read(weight, row);
    const float v2 = read(shift, row) - m0.mean * v1;
    team.once([&] { write(running, row, 0.9f * read(running, row) + 0.1f * m0.mean); });
    team.each(span(batch, HW), [&](float v0, float& o0) { o0 = v0 * v1 + v2; },
              load(x, row * HW, C * HW), store(y, row * HW, C * HW));
  }
};
// group_norm of an NCHW tensor, 16 channels in groups of 8, rows of 7 x 7 or another odd size
template <long HW> struct group_norm {
  const float* x;  const float* weight;  const float* shift;  float* y;  long batch;
  template <class Team> FN void operator()(long row, Team team) const {
    const long r1 = row % 2;
    auto k0 = team.template keep<float, 8 * HW>();
    const auto m0 = team.moments(fixed<8, HW>, [&](float v0, float& k) { return k = v0; },
                                 load(x, row * 8 * HW, HW), store(k0));
    const float v1 = rsqrt(m0.m2 / float(8 * HW) + 1e-05f);
    team.each(fixed<8, HW>, [&](float v2, float v3, float v4, float& o0) { o0 = (v2 - m0.mean) * v1 * v3 + v4; },
              load(k0), strided(weight, r1 * 8, 1, 0), strided(shift, r1 * 8, 1, 0), store(y, row * 8 * HW, HW));
  }
};
// every fold over one span, and what it found: nine numbers per row
template <class Span> struct folds {
  const float* x;  float* y;  Span box;  long width, step, batch;
  template <class Team> FN void operator()(long row, Team team) const {
    const auto one = [&](float v0) { return v0; };
    const auto near = [&](float v0) { return 1.0 + 0.0001 * double(v0); };
    const auto in = load(x, row * width, step);
    const float sum = team.sum(box, one, in), prod = float(team.prod(box, near, in));
    const float max = team.max(box, one, in), min = team.min(box, one, in);
    const bool any = team.any(box, [&](float v0) { return v0 > 3.5f; }, in);
    const bool all = team.all(box, [&](float v0) { return v0 > -3.5f; }, in);
    const auto moments = team.moments(box, one, in);
    const long argmax = team.argmax(box, one, in), argmin = team.argmin(box, one, in);
    const float found[] = {sum, prod, max, min, float(any), float(all), moments.mean, moments.m2, float(argmax), float(argmin)};
    team.once([&] { for (int k = 0; k < 10; ++k) write(y, row * 10 + k, found[k]); });
  }
};
// a row of 5 x 12 read transposed and written backwards
struct scatter {
  const double* x;  int* y;  long batch;
  template <class Team> FN void operator()(long row, Team team) const {
    team.each(fixed<5, 12>, [&](double v0, double v1, long i, int& o0) { o0 = int(v0 + v1 + double(i)); },
              gather(x, [&](long o, long i) { return row * 60 + i * 5 + o; }), strided(x, row * 60 + 1, 12, 0), index(),
              gather_store(y, [&](long o, long i) { return row * 60 + 59 - (o * 12 + i); }));
  }
};
"""


@dataclass(frozen=True)
class Call:
    """The arguments of an entry, what must be where afterwards, and the fewest bytes it can move."""

    pointers: tuple[torch.Tensor, ...]
    results: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    bytes_moved: int = 0


@dataclass(frozen=True)
class Case:
    """A body, the launches to try it with, and what it computes at `small` sizes; `large` is timed."""

    name: str
    body: str
    pointers: str
    grid: str
    make: Callable[[str, int], Call]
    launches: tuple[str, ...]
    small: tuple[int, ...] = (0, 1, 5)
    large: int = 0
    tolerance: float = 2e-6

    def entry(self, launch: str) -> str:
        return re.sub(r"\W+", "_", f"{self.name}_{launch}").rstrip("_")

    def text(self, launch: str) -> str:
        types = self.pointers.split(", ")
        parameters = "".join(f"{kind} p{k}, " for k, kind in enumerate(types))
        body = f"{self.body}{{{''.join(f'p{k}, ' for k in range(len(types)))}batch}}"
        workspace = "workspace, " if "split" in launch else ""
        return (
            f'extern "C" int {self.entry(launch)}({parameters}void* workspace, long batch, int device, '
            f"void* stream) {{\n  return run_{launch}({body}, {self.grid}, {workspace}device, stream);\n}}\n"
        )


def source(cases: Sequence[Case]) -> str:
    """Return one CUDA file: the sections of the skeletons pasted as an emitted file has them, and entries."""
    skeletons = "\n".join(
        re.sub(r"^//@.*\n", "", text[text.index("\n//@ ") : text.rindex("\n//@\n") + 1], flags=re.M)
        for text in ((SKELETONS / name).read_text() for name in FILES)
    )
    entries = "".join(case.text(launch) for case in cases for launch in case.launches)
    return f"{skeletons}\n{BODIES}{entries}}}  // namespace fusewright\n"


def normal(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device=device).to(dtype)


def hollow(*like: torch.Tensor) -> torch.Tensor:
    """Return an output that does not look like a result before it is one."""
    return torch.full_like(like[0], float("nan"))


def layer(x: torch.Tensor, weight: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Normalise the last dimension in float64."""
    wide = x.double()
    mean = wide.mean(-1, keepdim=True)
    variance = wide.var(-1, keepdim=True, correction=0)
    return (wide - mean) / torch.sqrt(variance + 1e-5) * weight.double() + shift.double()


def swish_norm(device: str, batch: int) -> Call:
    x, y = normal(device, batch, 64, 64), torch.empty(batch, 64, 64, device=device)
    bias, weight, shift = (normal(device, 64, 64) for _ in range(3))
    wide = x.double()
    expected = layer(wide * torch.sigmoid(wide) + bias, weight, shift)
    return Call((x, bias, weight, shift, y), ((y, expected),), 8 * x.numel())
