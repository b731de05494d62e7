"""Hand-written scores and bodies of attention kernels -> CUDA text, libraries, launches.

A subject is one instantiation of `run_attention`, in the form that the compiler prints them. The
tests and the benchmark of attention import it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fusewright.codegen.device_library import select_sections
from tests.support import gemm_subjects as product_subjects
from tests.support.gemm_subjects import Library, strides

PARTS = {"sm_80": "sm80", "sm_90a": "sm90"}
WIDTHS = (64, 128)
TEXT = """
// Queries times keys: scaled; then masked by bytes [rows, columns], or with numbers added.
struct scaled {
  float by; const unsigned char* mask; const float* bias; long columns;
  FN float operator()(long, int, int, float score) const { return score * by; }
};
struct masked {
  float by; const unsigned char* mask; const float* bias; long columns;
  FN float operator()(long, int row, int column, float score) const {
    return where(mask[row * columns + column] != 0, -infinity<float>(), score * by);
  }
};
struct biased {
  float by; const unsigned char* mask; const float* bias; long columns;
  FN float operator()(long, int row, int column, float score) const {
    return score * by + bias[row * columns + column];
  }
};
struct copy {
  const float* in0; float* out0; long n;
  template <class Range, class Team, class Product>
  FN void operator()(long row, Range range, Team team, Product product) const {
    team.each(range, [&](float v0, float& o0) { o0 = v0; }, product, store(out0, row * n));
  }
};
struct residual {
  const float* in0; float* out0; long n;
  template <class Range, class Team, class Product>
  FN void operator()(long row, Range range, Team team, Product product) const {
    team.each(range, [&](float v0, float v1, float& o0) { o0 = v0 + v1; },
              product, load(in0, row * n), store(out0, row * n));
  }
};
"""


@dataclass(frozen=True)
class Subject:
    """One function of scores and one body with one schedule."""

    scores: str
    body: str
    width: int
    vector: int

    @property
    def entry(self) -> str:
        """The name of its C function."""
        return f"{self.scores}_{self.body}_{self.width}_{self.vector}"

    def text(self) -> str:
        """Its C function."""
        return f"""
extern "C" int {self.entry}(const float* q, const long* qs, const float* k, const long* ks,
    const float* v, const long* vs, const void* mask, const float* bias, float by, const float* in0,
    float* out0, const long* sizes, void* workspace, int device, void* stream) {{
  const {self.body} body{{in0, out0, sizes[2]}};
  const {self.scores} scores{{by, static_cast<const unsigned char*>(mask), bias, sizes[3]}};
  return run_attention<{self.width}, {self.vector}>(
      body, scores, {{q, qs[0], qs[1], qs[2]}}, {{k, ks[0], ks[1], ks[2]}},
      {{v, vs[0], vs[1], vs[2]}},
      sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], workspace, device, stream);
}}"""


SCHEDULES = tuple(
    Subject(scores, body, width, vector)
    for width in WIDTHS
    for scores, body, vector in (
        ("scaled", "copy", 1), ("scaled", "residual", 4), ("masked", "copy", 4),
        ("biased", "copy", 1), ("masked", "copy", 1),
    )
)  # fmt: skip


def source(arch: str, subjects: Iterable[Subject]) -> str:
    """The CUDA text with the entries of `subjects`, from the sections that they need."""
    words = ["run_attention", "load", "store", "where", "infinity"]
    entries = "".join(subject.text() for subject in subjects)
    return (
        f"{select_sections(PARTS[arch], words)}\n{TEXT}\n{entries}\n}}  // namespace fusewright\n"
    )


def packed_bytes(factor: Tensor) -> int:
    """The compiler's `Factor.packed_bytes`."""
    rows, depth = -(-factor.shape[-2] // 64) * 64, -(-factor.shape[-1] // 32)
    batches = factor.shape[0] if strides(factor)[0] else 1
    return batches * rows * (depth * 128 + 4 + -(-depth // 2) * 4)


@dataclass(frozen=True)
class Call:
    """Operands of one launch: q, k, v are [batches, rows, head] or, for all, [rows, head]."""

    q: Tensor
    k: Tensor
    v: Tensor
    by: float = 1.0
    mask: Tensor | None = None  # bool [rows, keys]: what becomes -infinity
    bias: Tensor | None = None  # float [rows, keys]
    residual: Tensor | None = None

    @property
    def batches(self) -> int:
        return max(t.shape[0] if t.dim() == 3 else 1 for t in (self.q, self.k, self.v))

    @property
    def workspace_bytes(self) -> int:
        return -(-packed_bytes(self.k) // 256) * 256 + packed_bytes(self.v.mT)

    def launch(self, library: Library, subject: Subject, out: Tensor, space: Tensor) -> int:
        """Run on the current stream; the CUDA error."""
        sizes = (
            self.batches, self.q.shape[-2], self.v.shape[-1], self.k.shape[-2], self.q.shape[-1]
        )  # fmt: skip
        factors = (self.q, self.k, self.v.mT)
        numbers = [(ctypes.c_long * len(n))(*n) for n in (*map(strides, factors), sizes)]
        given = [ctypes.c_void_p(t.data_ptr()) for t in factors]
        rest = [
            ctypes.c_void_p(0 if t is None else t.data_ptr())
            for t in (self.mask, self.bias, self.residual)
        ]
        return library.function(subject)(
            given[0], numbers[0], given[1], numbers[1], given[2], numbers[2], *rest[:2],
            ctypes.c_float(self.by), rest[2], ctypes.c_void_p(out.data_ptr()), numbers[3],
            ctypes.c_void_p(space.data_ptr()), ctypes.c_int(self.q.device.index or 0),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        )  # fmt: skip


def meaning(call: Call, subject: Subject, dtype: torch.dtype) -> Tensor:
    """What eager makes of it, computed in `dtype`: [batches, rows, columns]."""
    scores = call.q.to(dtype) @ call.k.to(dtype).mT
    # The number is a float32 to eager and to us.
    scores = scores * torch.tensor(call.by, dtype=torch.float32).to(scores)
    if subject.scores == "masked":
        assert call.mask is not None
        scores = scores.masked_fill(call.mask, float("-inf"))
    if subject.scores == "biased":
        assert call.bias is not None
        scores = scores + call.bias
    result = scores.softmax(-1) @ call.v.to(dtype)
    if subject.body == "residual":
        assert call.residual is not None
        result = result + call.residual.view_as(result)
    return result


def library(some: Sequence[Subject], folder: Path) -> Library:
    """Compile `some` for the GPU that is here, and load them."""
    capability = torch.cuda.get_device_capability()
    arch = "sm_90a" if capability == (9, 0) else "sm_80"
    target = folder / "attention.so"
    product_subjects.build(source(arch, some), target, product_subjects.code_for(arch, capability))
    loaded = ctypes.CDLL(str(target))
    return Library({s.entry: loaded for s in some})
