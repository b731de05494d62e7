"""CUDA skeletons and hand-written bodies -> errors against float64, and times against a plain copy.

Needs an NVIDIA GPU, nvcc and torch; it builds everything itself and prints two tables. The tests
import CASES and `check` from here, so what is timed is what is tested.
"""

from __future__ import annotations

import ctypes
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

PACKAGE = Path(__file__).resolve().parent.parent / "fusewright"
FILES = (
    "devicelib/cuda/math.cuh",
    "devicelib/cuda/operand.cuh",
    "devicelib/cuda/team.cuh",
    "devicelib/cuda/reductions.cuh",
    "devicelib/cuda/launch.cuh",
    "kernels/rowwise/cuda/rows.cuh",
    "kernels/pointwise/cuda/map.cuh",
    "kernels/rowwise/cuda/split_rows.cuh",
    "kernels/rowwise/cuda/partial_reduction.cuh",
    "kernels/rowwise/cuda/grid_resident_rows.cuh",
    "devicelib/cuda/barriers_sm90.cuh",
    "kernels/rowwise/cuda/cluster_rows_sm90.cuh",
)
WORKSPACE_BYTES = 2113536  # SPLIT_BYTES of split_rows.cuh for column panels

BODIES = r"""
// group_norm(x * sigmoid(x) + bias) * weight + shift over groups of 64
struct swish_norm {
  const float* x;  const float* bias;  const float* weight;  const float* shift;  float* y;
  long batch;
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
    team.each(range, [&](float v0, float& o0) { o0 = relu(v0 + v1); },
              load(x, row * 15876), store(y, row * 15876));
  }
};
// y[i][j] = x[j][i], 70 columns
struct turned {
  const float* x;  float* y;  long batch;
  FN long columns() const { return 70; }
  template <class Team, class Range> FN void operator()(long row, Range range, Team team) const {
    team.each(range, [&](float v0, float& o0) { o0 = v0; },
              strided(x, row, batch), store(y, row * 70));
  }
};
// z[n][p][c] = x[n][c][p] + y[c][p], 132 columns and 72 rows of each n
struct both_turned {
  const float* x;  const float* y;  float* z;  long batch;
  FN long columns() const { return 132; }
  template <class Team, class Range> FN void operator()(long row, Range range, Team team) const {
    const long r0 = row / 72;
    const long r1 = row % 72;
    team.each(range, [&](float v0, float v1, float& o0) { o0 = v0 + v1; },
              staged<0>(x, r0 * 9504 + r1, 72), staged<1>(y, r1, 72), store(z, row * 132));
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
    team.each(range, [&](float v0, long i, float& o0) { o0 = float(i) - v0; },
              load(x, 0), index(), store(x, 0));
  }
};
template <long N> struct layer_norm {
  const float* x;  const float* weight;  const float* shift;  float* y;  long batch;
  template <class Team> FN void operator()(long row, Team team) const {
    auto k0 = team.template keep<float, N>();
    const auto m0 = team.moments(fixed<N>, [&](float v0, float& k) { return k = v0; },
                                 load(x, row * N), store(k0));
    const float v5 = rsqrt(m0.m2 / float(N) + 1e-05f);
    team.each(fixed<N>, [&](float v4, float v6, float v7, float& o0) {
      o0 = (v4 - m0.mean) * v5 * v6 + v7;
    }, load(k0), load(weight, 0), load(shift, 0), store(y, row * N));
  }
};
template <long N, class T> struct softmax {
  const T* x;  T* y;  long batch;
  template <class Team> FN void operator()(long row, Team team) const {
    auto k0 = team.template keep<float, N>();
    const float v1 = team.max(fixed<N>, [&](float v0, float& k) { return k = v0; },
                              load(x, row * N), store(k0));
    const float v2 = team.sum(fixed<N>, [&](float v0, float& k) { return k = exp(v0 - v1); },
                              load(k0), store(k0));
    team.each(fixed<N>, [&](float v3, float& o0) { o0 = v3 / v2; }, load(k0), store(y, row * N));
  }
};
// a row too long for registers is read again from L2
template <long N> struct long_softmax {
  const float* x;  float* y;  long batch;
  template <class Team> FN void operator()(long row, Team team) const {
    const float v1 = team.max(fixed<N>, [&](float v0) { return v0; }, load(x, row * N));
    const float v2 = team.sum(fixed<N>, [&](float v0) { return exp(v0 - v1); }, load(x, row * N));
    team.each(fixed<N>, [&](float v0, float& o0) { o0 = exp(v0 - v1) / v2; },
              load(x, row * N), store(y, row * N));
  }
};
// train-mode batch_norm of C channels; the running mean is updated in place
template <long C, long HW> struct batch_norm {
  const float* x;  const float* weight;  const float* shift;  float* running;  float* y;
  long batch;
  template <class Team> FN void operator()(long row, Team team) const {
    const auto m0 = team.moments(span(batch, HW), [&](float v0) { return v0; },
                                 load(x, row * HW, C * HW));
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
    team.each(fixed<8, HW>, [&](float v2, float v3, float v4, float& o0) {
      o0 = (v2 - m0.mean) * v1 * v3 + v4;
    }, load(k0), strided(weight, r1 * 8, 1, 0), strided(shift, r1 * 8, 1, 0),
       store(y, row * 8 * HW, HW));
  }
};
// every fold over one span: ten numbers per row
template <long N> struct fixed_row {
  static FN auto span_of(long) { return fixed<N>; }
  static FN auto values(const float* x, long row, long) { return load(x, row * N); }
};
template <long O, long I> struct fixed_sheet {
  static FN auto span_of(long) { return fixed<O, I>; }
  static FN auto values(const float* x, long row, long) { return load(x, row * I, 3 * I); }
};
template <long I> struct sheet {
  static FN auto span_of(long batch) { return span(batch, I); }
  static FN auto values(const float* x, long row, long) { return load(x, row * I, 3 * I); }
};
struct line {
  static FN auto span_of(long batch) { return span(batch); }
  static FN auto values(const float* x, long row, long batch) {
    return load(x, row * ((batch + 3) / 4 * 4));
  }
};
template <class Box> struct folds {
  const float* x;  float* y;  long batch;
  template <class Team> FN void operator()(long row, Team team) const {
    const auto box = Box::span_of(batch);
    const auto in = Box::values(x, row, batch);
    const auto one = [&](float v0) { return v0; };
    const float sum = team.sum(box, one, in);
    const double prod = team.prod(box, [&](float v0) { return 1.0 + 0.0001 * double(v0); }, in);
    const float max = team.max(box, one, in), min = team.min(box, one, in);
    const bool any = team.any(box, [&](float v0) { return v0 > 2.5f; }, in);
    const bool all = team.all(box, [&](float v0) { return v0 > -2.5f; }, in);
    const auto m0 = team.moments(box, one, in);
    const long argmax = team.argmax(box, one, in), argmin = team.argmin(box, one, in);
    team.once([&] {
      const long r = row * 10;
      write(y, r, sum), write(y, r + 1, float(prod)), write(y, r + 2, max), write(y, r + 3, min);
      write(y, r + 4, float(any)), write(y, r + 5, float(all)), write(y, r + 6, m0.mean);
      write(y, r + 7, m0.m2), write(y, r + 8, float(argmax)), write(y, r + 9, float(argmin));
    });
  }
};
// the maximum and the sum of exponentials of one sweep; the last shift is finite
template <class Box> struct sweep {
  const float* x;  float* y;  long batch;
  template <class Team> FN void operator()(long row, Team team) const {
    const auto m0 = team.online_softmax(Box::span_of(batch), [&](float v0) { return v0; },
                                      Box::values(x, row, batch));
    const float v1 = isinf(m0.max) ? 0.0f : m0.max;
    team.once([&] {
      const long r = row * 3;
      write(y, r, m0.max), write(y, r + 1, m0.sum(m0.max)), write(y, r + 2, m0.sum(v1));
    });
  }
};
// a row of 5 x 12 read transposed and written backwards
struct flip {
  const double* x;  int* y;  long batch;
  template <class Team> FN void operator()(long row, Team team) const {
    team.each(fixed<5, 12>, [&](double v0, double v1, long i, int& o0) {
      o0 = int(v0 + v1 + double(i));
    }, gather(x, [&](long o, long i) { return row * 60 + i * 5 + o; }),
       strided(x, row * 60 + 1, 12, 0), index(),
       gather_store(y, [&](long o, long i) { return row * 60 + 59 - (o * 12 + i); }));
  }
};
"""


@dataclass(frozen=True)
class Call:
    """The arguments of an entry, what must be where after it, and the fewest bytes it can move."""

    pointers: tuple[torch.Tensor, ...]
    results: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    bytes_moved: int = 0


@dataclass(frozen=True)
class Case:
    """A body, the launches to try it with, the sizes to check, and the `large` size to time."""

    name: str
    body: str
    pointers: str
    grid: str
    make: Callable[[str, int], Call]
    launches: tuple[str, ...]
    small: tuple[int, ...] = (0, 1, 5)
    large: int = 0
    tolerance: float = 2e-6
    alignment_checked: bool = False

    def entry(self, launch: str) -> str:
        return re.sub(r"\W+", "_", f"{self.name}_{launch}").rstrip("_")

    def text(self, launch: str) -> str:
        types = self.pointers.split(", ")
        parameters = "".join(f"{kind} p{k}, " for k, kind in enumerate(types))
        body = f"{self.body}{{{''.join(f'p{k}, ' for k in range(len(types)))}batch}}"
        workspace = (
            "workspace, " if re.search("split|grid_resident|partial_reduction", launch) else ""
        )
        length = "batch * 20, " * ("partial_reduction" in launch)  # something to go by
        workspace = length + workspace
        head = f'extern "C" int {self.entry(launch)}({parameters}void* workspace, long batch, '
        run = f"run_{launch}({body}, {self.grid}, {workspace}device, stream)"
        if self.alignment_checked:
            run = f"aligned<4>(p0) ? {run} : {run.replace('<4>', '<1>', 1)}"
        return f"{head}int device, void* stream) {{\n  return {run};\n}}\n"


def source(cases: Sequence[Case]) -> str:
    """Return one CUDA file: skeleton sections pasted as an emitted file has them, and entries."""
    skeletons = "\n".join(
        re.sub(r"^//@.*\n", "", text[text.index("\n//@ ") : text.rindex("\n//@\n") + 1], flags=re.M)
        for text in ((PACKAGE / name).read_text() for name in FILES)
    )
    entries = "".join(case.text(launch) for case in cases for launch in case.launches)
    return f"{skeletons}\n{BODIES}{entries}}}  // namespace fusewright\n"


def normal(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device=device).to(dtype)


def layer(x: torch.Tensor, weight: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Normalise the last dimension in float64."""
    wide = x.double()
    mean = wide.mean(-1, keepdim=True)
    variance = (wide - mean).square().mean(-1, keepdim=True)
    return (wide - mean) / torch.sqrt(variance + 1e-5) * weight.double() + shift.double()


def swish_norm(device: str, batch: int) -> Call:
    x, y = normal(device, batch, 64, 64), torch.empty(batch, 64, 64, device=device)
    bias, weight, shift = (normal(device, 64, 64) for _ in range(3))
    wide = x.double()
    expected = layer(wide * torch.sigmoid(wide) + bias, weight, shift)
    return Call((x, bias, weight, shift, y), ((y, expected),), 8 * x.numel())


def map_call(x: torch.Tensor, bias: torch.Tensor) -> Call:
    """relu(x + bias)"""
    y = torch.empty_like(x)
    return Call((x, bias, y), ((y, torch.relu(x.double() + bias)),), 8 * x.numel())


def channel_relu(device: str, batch: int) -> Call:
    return map_call(normal(device, batch, 128, 15876), normal(device, 128, 1))


def bias_relu(device: str, batch: int) -> Call:
    return map_call(normal(device, batch, 8192), normal(device, 8192))


def mixed_add(a: torch.dtype, b: torch.dtype, y: torch.dtype) -> Callable[[str, int], Call]:
    def make(device: str, batch: int) -> Call:
        left, right = (torch.randint(0, 50, (batch,), device=device).to(d) for d in (a, b))
        return Call(
            (left, right, out := torch.empty_like(left, dtype=y)), ((out, (left + right).to(y)),)
        )

    return make


def in_place(device: str, batch: int) -> Call:
    x = normal(device, batch)
    return Call((x,), ((x, torch.arange(batch, device=device).float() - x),), 8 * batch)


def shifted(device: str, batch: int) -> Call:
    """A view that starts at an odd address: only single elements can be used."""
    memory = normal(device, batch + 1)
    x = memory[1:]
    return Call((x,), ((x, torch.arange(batch, device=device).float() - x),))


def turned(device: str, batch: int) -> Call:
    x, y = normal(device, 70, batch), torch.empty(batch, 70, device=device)
    return Call((x, y), ((y, x.t()),), 2 * x.nbytes)


def both_turned(device: str, batch: int) -> Call:
    x, y = normal(device, batch, 132, 72), normal(device, 132, 72)
    z = torch.empty(batch, 72, 132, device=device)
    return Call((x, y, z), ((z, (x + y).mT),), 2 * x.nbytes)


def huge(device: str, elements: int) -> Call:
    """More elements than 32 bits count; compared where an index of 31 or 32 bits would go wrong."""
    left, right = (
        torch.randint(-99, 99, (elements,), device=device).to(torch.int8) for _ in range(2)
    )
    out = torch.full((elements,), -1, dtype=torch.int16, device=device)
    edges = (0, 1 << 31, 1 << 32, elements)
    near = [slice(max(edge - 500, 0), edge + 500) for edge in edges]
    results = tuple((out[n], left[n].to(torch.int16) + right[n]) for n in near)
    return Call((left, right, out), results, 4 * elements)


def layer_norm(columns: int) -> Callable[[str, int], Call]:
    def make(device: str, batch: int) -> Call:
        x, y = normal(device, batch, columns) + 100.0, torch.empty(batch, columns, device=device)
        weight, shift = normal(device, columns), normal(device, columns)
        return Call((x, weight, shift, y), ((y, layer(x, weight, shift)),), 8 * x.numel())

    return make


def softmax(columns: int, dtype: torch.dtype = torch.float32) -> Callable[[str, int], Call]:
    def make(device: str, batch: int) -> Call:
        x, y = (normal(device, batch, columns, dtype=dtype) for _ in range(2))
        x[:, 1::7] = float("-inf")
        x[3:4, 5] = float("nan")
        return Call((x, y), ((y, torch.softmax(x.double(), -1)),), 2 * x.numel() * x.element_size())

    return make


def batch_norm(channels: int, plane: int) -> Callable[[str, int], Call]:
    def make(device: str, batch: int) -> Call:
        x = normal(device, batch, channels, plane) + 3.0
        y, running = torch.empty_like(x), normal(device, channels)
        weight, shift = normal(device, channels), normal(device, channels)
        rows = x.transpose(0, 1).flatten(1)
        expected = (
            layer(rows, weight[:, None], shift[:, None])
            .view(channels, batch, plane)
            .transpose(0, 1)
        )
        mean = 0.9 * running.double() + 0.1 * rows.double().mean(-1)
        return Call((x, weight, shift, running, y), ((y, expected), (running, mean)), 8 * x.numel())

    return make


def group_norm(plane: int) -> Callable[[str, int], Call]:
    def make(device: str, batch: int) -> Call:
        x, y = normal(device, batch, 2, 8 * plane), torch.empty(batch, 2, 8 * plane, device=device)
        weight, shift = normal(device, 16), normal(device, 16)
        wide = [v.view(2, 8, 1).expand(2, 8, plane).reshape(2, -1) for v in (weight, shift)]
        return Call((x, weight, shift, y), ((y, layer(x, wide[0], wide[1])),), 8 * x.numel())

    return make


def fold_results(x: torch.Tensor, rows: torch.Tensor) -> Call:
    """The call on x, which `rows` views; the last row gets an infinity, the first one two NaNs.

    The mean is far from 0, where its error would have no scale.
    """
    rows.mul_(2).add_(1).round_().div_(2)
    if rows.shape[1] > 8 and rows.shape[0] > 1:
        rows[-1, 7], rows[0, 4], rows[0, 8] = float("inf"), float("nan"), float("nan")
    y, wide = torch.full((rows.shape[0], 10), -7.0, device=x.device), rows.double()
    mean = wide.mean(-1)
    m2 = (wide - mean[:, None]).square().sum(-1)
    found = [wide.sum(-1), (1 + 0.0001 * wide).prod(-1), wide.amax(-1), wide.amin(-1)]
    found += [
        (wide > 2.5).any(-1),
        (wide > -2.5).all(-1),
        mean,
        m2,
        wide.argmax(-1),
        wide.argmin(-1),
    ]
    expected = torch.stack([v.double() for v in found], -1)
    # each column has a scale of its own; deviations from the infinity are anything
    stops = [-1 if k in (6, 7) and rows.shape[0] > 1 else None for k in range(10)]
    return Call((x, y), tuple((y[:e, k], expected[:e, k]) for k, e in enumerate(stops)))


def sweep_results(x: torch.Tensor, rows: torch.Tensor) -> Call:
    """The call on x, which `rows` views: some rise, some have infinities or NaN, some nothing else.

    Rows that rise are those in which the sum so far has to be multiplied again and again.
    """
    rows.mul_(10.0)
    rows[0::7] = rows[0::7].sort(-1)[0] + 50.0
    rows[1::7] = float("-inf")
    rows[2::7, : rows.shape[1] // 2] = float("-inf")
    rows[3::7, -1:] = float("inf")
    rows[4::7, :1] = float("nan")
    rows[5::7] = 0.1
    y, wide = torch.full((rows.shape[0], 3), -7.0, device=x.device), rows.double()
    top = wide.amax(-1, keepdim=True)
    shift = torch.where(torch.isinf(top), 0.0, top)
    found = [top[:, 0], (wide - top).exp().sum(-1), (wide - shift).exp().sum(-1)]
    return Call((x, y), tuple((y[:, k], value) for k, value in enumerate(found)))


Results = Callable[[torch.Tensor, torch.Tensor], Call]


def fixed_folds(columns: int, results: Results = fold_results) -> Callable[[str, int], Call]:
    def make(device: str, batch: int) -> Call:
        x = normal(device, batch, columns)
        return results(x, x)

    return make


def sheet_folds(
    inner: int, outer: int = 0, results: Results = fold_results
) -> Callable[[str, int], Call]:
    def make(device: str, batch: int) -> Call:
        memory = normal(device, 3, (outer or batch) * inner)
        x = memory.view(3, -1, inner).transpose(0, 1).contiguous()
        call = results(memory, memory)
        x.copy_(memory.view(3, -1, inner).transpose(0, 1))
        return Call((x, call.pointers[1]), call.results)

    return make


def line_folds(device: str, batch: int, results: Results = fold_results) -> Call:
    x = normal(device, 3, (batch + 3) // 4 * 4)
    return results(x, x[:, :batch])


def flip(device: str, batch: int) -> Call:
    x = torch.randint(-99, 99, (batch, 60), device=device).double()
    y = torch.empty(batch, 60, dtype=torch.int32, device=device)
    near = x.view(batch, 5, 12)[:, :, 1:2].expand(batch, 5, 12).reshape(batch, 60)
    total = (
        x.view(batch, 12, 5).transpose(1, 2).reshape(batch, 60)
        + near
        + torch.arange(60, device=device)
    )
    return Call((x, y), ((y, total.flip(1)),))


X_TO_Y = "const float*, float*"
X_W_B_TO_Y = "const float*, const float*, const float*, float*"
NORM_POINTERS = "const float*, const float*, const float*, float*, float*"
# fmt: off
DTYPES = {
    "float": torch.float32, "double": torch.float64, "half_t": torch.float16,
    "bfloat_t": torch.bfloat16, "signed char": torch.int8, "unsigned char": torch.uint8,
    "short": torch.int16, "int": torch.int32, "long": torch.int64, "bool": torch.bool,
}
# fmt: on


def mixed(a: str, b: str, y: str, vector: int) -> Case:
    name = f"add {a} {b} {y}".replace(" ", "_")
    make = mixed_add(DTYPES[a], DTYPES[b], DTYPES[y])
    pointers = f"const {a}*, const {b}*, {y}*"
    sizes = (0, 1, 7, 4096, 100_003)
    return Case(
        name, f"mixed_add<{a}, {b}, {y}>", pointers, "1, batch", make, (f"map<{vector}>",), sizes
    )


def over(
    body: str,
    box: str,
    grid: str,
    make: Callable[[str, int], Call],
    launches: str,
    sizes: tuple[int, ...],
) -> Case:
    """The body on rows of that kind."""
    name = re.sub(r"\W+", "_", f"{body}_{box}").rstrip("_")
    return Case(name, f"{body}<{box}>", X_TO_Y, grid, make, tuple(launches.split("; ")), sizes)


fold, swept = partial(over, "folds"), partial(over, "sweep")


# fmt: off
CASES = (
    Case("swish_norm", "swish_norm", "const float*, " + X_W_B_TO_Y, "batch * 64", swish_norm,
         ("rows<16, 4>", "rows<4, 4>", "rows<8, 4>", "rows<32, 4>", "rows<16, 1>"),
         (0, 1, 3), 32768),
    Case("channel_relu", "channel_relu", "const float*, const float*, float*", "batch * 128, 15876",
         channel_relu, ("map<4>", "map<1, 4>", "map<1>"), (0, 1), 128),
    Case("turned", "turned", X_TO_Y, "batch, 70", turned,
         ("map_transposed<2, 2>", "map_transposed<1, 4>", "map_transposed<1>", "map<1, 4>"),
         (0, 1, 5, 33, 1000), 1 << 20),
    Case("both_turned", "both_turned", "const float*, const float*, float*",
         "batch * 72, 132, 72, 1", both_turned, ("map_staged<4, 2>",), (0, 1, 70), 1 << 12),
    Case("bias_relu", "bias_relu", "const float*, const float*, float*", "batch, 8192", bias_relu,
         ("map<4>",), (0, 1, 3), 1024),
    Case("in_place", "in_place", "float*", "1, batch", in_place, ("map<4>",),
         (0, 1, 6, 5001), 1 << 28),
    Case("shifted", "in_place", "float*", "1, batch", shifted, ("map<4>",), (0, 1, 5001),
         alignment_checked=True),
    mixed("half_t", "bfloat_t", "float", 8),
    mixed("float", "double", "half_t", 4),
    mixed("bfloat_t", "float", "bfloat_t", 8),
    mixed("signed char", "short", "int", 4),
    mixed("int", "long", "long", 2),
    mixed("bool", "unsigned char", "unsigned char", 16),
    mixed("signed char", "signed char", "double", 2),
    Case("huge", "mixed_add<signed char, signed char, short>",
         "const signed char*, const signed char*, short*", "1, batch", huge, ("map<8>", "map<1>"),
         (0, 1, 9000), (1 << 32) + 777),
    Case("layer_norm_1024", "layer_norm<1024>", X_W_B_TO_Y, "batch", layer_norm(1024),
         ("rows<128, 4>", "rows<32, 4>", "rows<64, 4>", "rows<256, 4>"), (0, 1, 5), 65536, 6e-5),
    Case("layer_norm_1000", "layer_norm<1000>", X_W_B_TO_Y, "batch", layer_norm(1000),
         ("rows<64, 4>", "rows<128, 1>"), (0, 1, 5), 65536, 6e-5),
    Case("layer_norm_16384", "layer_norm<16384>", X_W_B_TO_Y, "batch", layer_norm(16384),
         ("rows<1024, 4>", "rows<512, 4>"), (0, 1, 2), 4096, 3e-5),
    Case("softmax_4096", "softmax<4096, float>", X_TO_Y, "batch", softmax(4096),
         ("rows<256, 4>", "rows<128, 4>", "rows<512, 4>"), (0, 1, 5), 16384),
    Case("softmax_1023", "softmax<1023, float>", X_TO_Y, "batch", softmax(1023),
         ("rows<128, 1>", "rows<32, 4>"), (0, 1, 5), 65536),
    Case("softmax_half", "softmax<2048, half_t>", "const half_t*, half_t*", "batch",
         softmax(2048, torch.float16), ("rows<64, 8>", "rows<128, 8>"), (0, 1, 5), 65536, 1e-3),
    Case("long_softmax", "long_softmax<50258>", X_TO_Y, "batch", softmax(50258),
         ("rows<1024, 2>", "rows<512, 2>"), (0, 1, 5), 4096),
    Case("softmax_32768", "softmax<32768, float>", X_TO_Y, "batch", softmax(32768),
         ("rows<1024, 4>", "rows_cluster<2, 512, 4>", "rows_cluster<4, 256, 4>"), (0, 1, 5), 1024),
    Case("softmax_65536", "softmax<65536, float>", X_TO_Y, "batch", softmax(65536),
         ("rows_cluster<4, 512, 4>", "rows_cluster<8, 256, 4>", "rows_cluster<8, 512, 4>",
          "rows_cluster<4, 1024, 4>", "rows_cluster<2, 1024, 4>"), (0, 1, 5, 300), 512),
    Case("softmax_50257", "softmax<50257, float>", X_TO_Y, "batch", softmax(50257),
         ("rows_cluster<4, 512, 1>", "rows_cluster<8, 256, 4>"), (0, 1, 5), 512),
    Case("softmax_262144", "softmax<262144, float>", X_TO_Y, "batch", softmax(262144),
         ("rows_cluster<8, 1024, 4>", "rows_grid_resident<16, 512, 4>",
          "rows_grid_resident<8, 1024, 4>", "rows_grid_resident<64, 256, 4>"), (0, 1, 5, 100), 128),
    Case("softmax_1048576", "softmax<1048576, float>", X_TO_Y, "batch", softmax(1 << 20),
         ("rows_grid_resident<64, 512, 4>", "rows_grid_resident<128, 512, 4>"), (0, 1, 9), 64),
    Case("softmax_300001", "softmax<300001, float>", X_TO_Y, "batch", softmax(300001),
         ("rows_grid_resident<19, 512, 4>", "rows_grid_resident<20, 512, 1>"), (0, 1, 40), 128),
    Case("layer_norm_1048576", "layer_norm<1048576>", X_W_B_TO_Y, "batch", layer_norm(1 << 20),
         ("rows_grid_resident<64, 512, 4>", "rows_grid_resident<64, 512, 1>"), (0, 1, 9), 64, 3e-5),
    Case("softmax_bfloat", "softmax<70008, bfloat_t>", "const bfloat_t*, bfloat_t*", "batch",
         softmax(70008, torch.bfloat16), ("rows_cluster<8, 512, 8>", "rows_cluster<8, 512, 1>"),
         (0, 1, 5), 1024, 8e-3),
    Case("softmax_half_300008", "softmax<300008, half_t>", "const half_t*, half_t*", "batch",
         softmax(300008, torch.float16), ("rows_grid_resident<19, 512, 8>",), (0, 1, 40), 128,
         6e-3),
    Case("layer_norm_131072", "layer_norm<131072>", X_W_B_TO_Y, "batch", layer_norm(131072),
         ("rows_cluster<8, 512, 4>", "rows_cluster<8, 1024, 4>", "rows_cluster<4, 1024, 4>"),
         (0, 1, 3), 256, 3e-5),
    Case("group_norm_16384", "group_norm<16384>", X_W_B_TO_Y, "batch * 2", group_norm(16384),
         ("rows_cluster<8, 512, 4>", "rows_grid_resident<16, 512, 4>"), (0, 1, 3), 128),
    Case("group_norm_4801", "group_norm<4801>", X_W_B_TO_Y, "batch * 2", group_norm(4801),
         ("rows_cluster<4, 512, 4>", "rows_grid_resident<3, 512, 4>"), (0, 1, 3)),
    Case("batch_norm_128", "batch_norm<128, 15876>", NORM_POINTERS, "128", batch_norm(128, 15876),
         ("rows<1024, 4>", "rows_split<512, 4, 4>", "rows_split<512, 4, 2>",
          "rows_split<512, 4, 8>", "rows_split<1024, 4, 4>", "rows_split<256, 4, 4>"),
         (1,), 128, 1e-5),
    Case("batch_norm_12", "batch_norm<6, 12>", NORM_POINTERS, "6", batch_norm(6, 12),
         ("rows<64, 4>", "rows_split<128, 4, 4>"), (1, 3, 40), 0, 1e-5),
    Case("batch_norm_49", "batch_norm<16, 49>", NORM_POINTERS, "16", batch_norm(16, 49),
         ("rows<64, 1>", "rows_split<64, 1>"), (1, 3, 40), 0, 1e-5),
    Case("group_norm_49", "group_norm<49>", X_W_B_TO_Y, "batch * 2", group_norm(49),
         ("rows<32, 4>", "rows<32, 1>", "rows<64, 4>"), (0, 1, 3), 1 << 17),
    Case("group_norm_36", "group_norm<36>", X_W_B_TO_Y, "batch * 2", group_norm(36),
         ("rows<8, 4>",), (0, 1, 3)),
    fold("fixed_row<130>", "batch", fixed_folds(130), "rows<16, 2>; rows<32, 4>; rows<64, 2>; "
         "column_panels<1, 128>; column_panels<2, 64>; column_panels<8, 32>; "
         "column_panels<2, 64, 2>; "
         "rows_cluster<2, 64, 2>", (0, 1, 5, 70)),
    fold("fixed_row<4>", "batch", fixed_folds(4), "rows<8, 4>; rows<4, 1>", (0, 1, 40)),
    fold("fixed_row<5000>", "batch", fixed_folds(5000), "rows<128, 4>; rows_split<64, 4>; "
         "column_panels<64, 8>; column_panels<16, 32, 4>; column_panels_split<16, 32, 8>; "
         "rows_cluster<2, 64, 4>; "
         "rows_cluster<4, 128, 4>; rows_cluster<8, 64, 1>; rows_grid_resident<7, 64, 4>; "
         "rows_grid_resident<64, 64, 1>", (0, 1, 3, 40, 1000)),
    fold("fixed_sheet<5, 12>", "3", sheet_folds(12, 5), "rows<32, 4>; rows_split<64, 4, 2>", (1,)),
    fold("fixed_sheet<9, 7>", "3", sheet_folds(7, 9), "rows<8, 4>; rows_split<64, 4>; "
         "column_panels<4, 32>; rows_cluster<2, 64, 4>; rows_grid_resident<2, 64, 4>", (1,)),
    fold("sheet<12>", "3", sheet_folds(12), "rows<32, 4>; rows<256, 2>; rows_split<64, 4>; "
         "column_panels<32, 16>; column_panels_split<4, 32, 16>; "
         "rows_cluster<4, 64, 4>", (1, 3, 500)),
    fold("line", "3", line_folds, "rows<512, 4>; rows<64, 1>; rows_split<64, 4>; "
         "column_panels<16, 32>; column_panels_split<16, 32, 8>; "
         "rows_cluster<8, 64, 4>", (1, 9, 4000, 65537)),
    fold("line", "3", line_folds, "rows<4, 4>", (1, 9, 4000)),
    swept("fixed_row<130>", "batch", fixed_folds(130, sweep_results), "rows<16, 2>; rows<64, 2>; "
          "rows<64, 1>; column_panels<1, 128>; column_panels<8, 32>; "
          "rows_partial_reduction<64, 2, 4, 8, 32>; "
          "column_panels_partial_reduction<4, 32, 8, 32, 32>", (0, 1, 7, 70, 5000)),
    swept("fixed_row<5000>", "batch", fixed_folds(5000, sweep_results),
          "rows_split<512, 4, 64>; rows_split<64, 4>; rows<128, 4>; column_panels<16, 32, 4>; "
          "column_panels_split<16, 32, 8>; rows_partial_reduction<512, 4, 4, 8, 32>; "
          "column_panels_partial_reduction<16, 32, 16, 32, 32>",
          (0, 1, 7, 40)),
    swept("fixed_sheet<9, 7>", "3", sheet_folds(7, 9, sweep_results), "rows<8, 4>; "
          "rows_split<64, 4>; column_panels<4, 32>; rows_partial_reduction<64, 4, 4, 8, 32>", (1,)),
    swept("sheet<12>", "3", sheet_folds(12, 0, sweep_results), "rows<32, 4>; rows_split<64, 4>; "
          "column_panels_split<4, 32, 16>; rows_partial_reduction<512, 4, 4, 8, 32>; "
          "column_panels_partial_reduction<16, 32, 16, 0, 32>",
          (1, 3, 500)),
    swept("line", "3", partial(line_folds, results=sweep_results),
          "column_panels_split<16, 32, 8>; rows<512, 4>; rows<64, 1>; rows_split<64, 4>; "
          "column_panels<16, 32>; column_panels_partial_reduction<16, 32, 16, 32, 32>; "
          "rows_partial_reduction<512, 4, 4, 8, 32>",
          (1, 9, 4000, 65537)),
    Case("flip", "flip", "const double*, int*", "batch", flip,
         ("rows<32, 4>", "rows<64, 1>"), (0, 1, 9)),
)
# fmt: on


def for_arch(cases: Sequence[Case], arch: str) -> tuple[Case, ...]:
    """The cases without the launches that an architecture does not have: clusters, before 90."""
    if int(arch.rstrip("a")) >= 90:
        return tuple(cases)
    kept = [(c, tuple(e for e in c.launches if "cluster" not in e)) for c in cases]
    return tuple(replace(c, launches=launches) for c, launches in kept)


def build(text: str, folder: Path, name: str = "skeleton", arch: str = "90a") -> Path:
    """Compile one CUDA file to a shared library."""
    target = folder / f"{name}.so"
    (folder / f"{name}.cu").write_text(text)
    code = f"-gencode=arch=compute_{arch},code=sm_{arch}"
    command = [
        "nvcc",
        "-O3",
        "-std=c++17",
        code,
        "-shared",
        "-Xcompiler",
        "-fPIC",
        "-o",
        str(target),
    ]
    subprocess.run([*command, str(folder / f"{name}.cu")], check=True)
    return target


def launch(
    library: ctypes.CDLL, case: Case, entry: str, batch: int, call: Call, workspace: torch.Tensor
) -> int:
    """Run one entry on the current stream; return its error code."""
    on_gpu = workspace.is_cuda
    stream = torch.cuda.current_stream().cuda_stream if on_gpu else 0
    device = workspace.device.index or 0
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (*call.pointers, workspace)]
    run = getattr(library, case.entry(entry))
    return int(run(*pointers, ctypes.c_long(batch), ctypes.c_int(device), ctypes.c_void_p(stream)))


def error_of(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest error relative to value plus scale; inf where NaN or infinities differ."""
    ours, right = actual.double(), expected.double()
    finite = torch.isfinite(right)
    if not torch.equal(torch.nan_to_num(ours[~finite], 1.5), torch.nan_to_num(right[~finite], 1.5)):
        return float("inf")
    ours, right = ours[finite], right[finite]
    if not ours.numel():
        return 0.0
    scale = right.square().mean().sqrt() if right.dim() and right.numel() > 1 else right.abs()
    scale = torch.where(scale > 0, scale, 1.0)  # a mean of exactly 0 has no scale of its own
    error = ((ours - right).abs() / (right.abs() + scale + 1e-30)).max().item()
    return error if error == error else float("inf")


def check(
    library: ctypes.CDLL, device: str, case: Case, entry: str, batch: int
) -> tuple[float, Call]:
    """Run one entry on fresh inputs; return its largest error against float64, and the call."""
    torch.manual_seed(batch + len(entry))
    workspace = torch.full((WORKSPACE_BYTES,), 77, dtype=torch.uint8, device=device)
    call = case.make(device, batch)
    code = launch(library, case, entry, batch, call, workspace)
    if device != "cpu":
        torch.cuda.synchronize()
    if code:
        raise RuntimeError(f"{case.entry(entry)} with batch {batch} returned CUDA error {code}")
    return max(error_of(actual, expected) for actual, expected in call.results), call


def median_us(runs: Sequence[Callable[[], int]], launches: int) -> float:
    """Time `launches` at a time, taking turns through `runs` so that inputs do not stay in L2."""
    for k in range(3):
        runs[k % len(runs)]()
    times = []
    for _ in range(15):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for k in range(launches):
            runs[k % len(runs)]()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e3 / launches)
    return float(statistics.median(times))


def copies_of(bytes_moved: int) -> int:
    return max(1, (1 << 29) // max(bytes_moved, 1))


def copy_rate(bytes_moved: int) -> float:
    """GB/s, read plus written, of a copy that moves so many bytes."""
    half = bytes_moved // 8
    pairs = [torch.empty(2, half, device="cuda").normal_() for _ in range(copies_of(bytes_moved))]
    runs = [lambda p=p: int(p[0].copy_(p[1]).dim() < 0) for p in pairs]
    return bytes_moved / median_us(runs, max(4, len(runs))) / 1e3


def rate(library: ctypes.CDLL, case: Case, entry: str) -> float:
    """GB/s of one entry at its large size, from the fewest bytes that it can move."""
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    calls = [case.make("cuda", case.large)]
    calls[0] = Call(calls[0].pointers, (), calls[0].bytes_moved)
    torch.cuda.empty_cache()
    for _ in range(copies_of(calls[0].bytes_moved) - 1):
        calls.append(Call(tuple(p.clone() for p in calls[0].pointers), (), calls[0].bytes_moved))
    runs = [lambda c=c: launch(library, case, entry, case.large, c, workspace) for c in calls]
    return calls[0].bytes_moved / median_us(runs, max(4, len(runs))) / 1e3


# What the skeletons could do otherwise: name -> (text, replacement), for a first launch.
VARIANTS: dict[str, tuple[tuple[str, str], ...]] = {
    "store .cs": (("st.global.v4.b32", "st.global.cs.v4.b32"),),
    "load .cs": (("CONSTANT ? __ldg(source)", "CONSTANT ? __ldcs(source)"),),
    "both .cs": (
        ("st.global.v4.b32", "st.global.cs.v4.b32"),
        ("CONSTANT ? __ldg(source)", "CONSTANT ? __ldcs(source)"),
    ),
    "32 B flying": (
        (
            "BYTES >= 64 ? 1 : BYTES * MOST <= 64 ? MOST : 64 / BYTES",
            "BYTES >= 32 ? 1 : 32 / BYTES",
        ),
    ),
    "map 256": (("MAP_BLOCK = 128", "MAP_BLOCK = 256"),),
    "map 512": (("MAP_BLOCK = 128", "MAP_BLOCK = 512"),),
    "row 256": (("ROW_BLOCK = 128", "ROW_BLOCK = 256"),),
}
TIMED = tuple(case for case in CASES if case.large)


def check_small(library: ctypes.CDLL) -> list[str]:
    """Return a line for each entry that is wrong at some small size."""
    wrong = []
    for case in CASES:
        for entry in case.launches:
            errors = [check(library, "cuda", case, entry, batch)[0] for batch in case.small]
            if max(errors, default=0.0) > case.tolerance:
                wrong.append(f"{case.name} {entry}: errors {errors} at {case.small}")
    return wrong


def check_streams(library: ctypes.CDLL) -> list[str]:
    """Split rows on two streams at once, and replayed from a CUDA graph: right, and no deadlock."""
    case = next(case for case in CASES if case.name == "batch_norm_12")
    entry = next(entry for entry in case.launches if "split" in entry)
    streams = [torch.cuda.Stream() for _ in range(2)]  # type: ignore[no-untyped-call]
    calls = [case.make("cuda", 2000) for _ in streams]
    spaces = [torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda") for _ in streams]
    torch.cuda.synchronize()
    for _ in range(50):
        for stream, call, space in zip(streams, calls, spaces, strict=True):
            with torch.cuda.stream(stream):
                launch(library, case, entry, 2000, call, space)
    torch.cuda.synchronize()
    wrong = [
        f"{case.name} on two streams" for c in calls if error_of(*c.results[0]) > case.tolerance
    ]
    graph, call = torch.cuda.CUDAGraph(), case.make("cuda", 2000)
    with torch.cuda.graph(graph):
        launch(library, case, entry, 2000, call, spaces[0])
    for _ in range(3):
        call.pointers[4].fill_(float("nan"))
        graph.replay()
    torch.cuda.synchronize()
    return wrong + [f"{case.name} in a graph"] * (error_of(*call.results[0]) > case.tolerance)


def print_rates(library: ctypes.CDLL, copy: float) -> None:
    print(
        f"{'case':18}{'launch':26}{'GB/s':>7}{'of copy':>9}{'of same-size copy':>19}{'error':>10}"
    )
    for case in TIMED:
        same = 0.0
        for entry in case.launches:
            error, call = check(library, "cuda", case, entry, case.large)
            same = same or copy_rate(call.bytes_moved)
            flag = "" if error <= case.tolerance else "  WRONG"
            del call
            torch.cuda.empty_cache()
            ours = rate(library, case, entry)
            share = f"{ours / copy:9.1%}{ours / same:19.1%}"
            print(f"{case.name:18}{entry:26}{ours:7.0f}{share}{error:10.1e}{flag}", flush=True)


def print_variants(libraries: dict[str, ctypes.CDLL]) -> None:
    print(f"\n{'GB/s, first launch':20}" + "".join(f"{name:>13}" for name in libraries))
    for case in TIMED:
        rates = [rate(library, case, case.launches[0]) for library in libraries.values()]
        print(f"{case.name:20}" + "".join(f"{r:13.0f}" for r in rates), flush=True)


def changed(text: str, replacements: Sequence[tuple[str, str]]) -> str:
    for old, new in replacements:
        if old not in text:
            raise ValueError(f"a variant replaces {old!r}, which the skeletons no longer contain")
        text = text.replace(old, new)
    return text


def main() -> int:
    if not torch.cuda.is_available():
        print("bench/skeleton_cuda.py finds no CUDA GPU to time on: run it where there is one.")
        return 3
    texts = {"as is": source(CASES)}
    texts |= {name: changed(source(TIMED), pairs) for name, pairs in VARIANTS.items()}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        jobs = {
            n: pool.submit(build, t, Path(folder), n.replace(" ", "_")) for n, t in texts.items()
        }
        libraries = {name: ctypes.CDLL(str(job.result())) for name, job in jobs.items()}
    wrong = check_small(libraries["as is"]) + check_streams(libraries["as is"])
    copy = copy_rate(1 << 32)
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    print(f"{machine}; copy of 4 GiB moved: {copy:.0f} GB/s")
    print_rates(libraries["as is"], copy)
    print_variants(libraries)
    entries = sum(len(case.launches) for case in CASES)
    print(
        "\n".join(wrong)
        or f"all {entries} launches right at small sizes, on two streams, in a graph"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
