"""Elements divided by a number of their row: it is inverted once, and every quotient is exact.

The text of the CUDA skeletons runs on this CPU. The proof for normal numbers is complete: only a
quotient within 4 / 2^24 of half a unit could be rounded otherwise, and all of those are tried.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fusewright.codegen.cuda_source import cuda_source
from fusewright.codegen.device_library import select_sections
from fusewright.codegen.kernel_symbols import entry
from fusewright.targets.target import TARGETS
from tests.kernels.rowwise.test_cluster_rows import planned, softmax
from tests.support.emulator.threads import library_of
from tests.support.numbered import numbered

PROGRAM = r"""
static unsigned bits(float x) { return __builtin_bit_cast(unsigned, x); }
static float number(unsigned long b) { return __builtin_bit_cast(float, unsigned(b)); }
// Whether a divided element is right, or called for again; alone it has to be right.
static bool right(float x, float s) {
  denominator d(s);
  const float q = divided(x, d), exact = x / s, alone = divided_alone(x, d);
  const auto same = [&](float y) { return bits(y) == bits(exact) || (y != y && exact != exact); };
  return (d.inexact || same(q)) && same(alone);
}
static bool sure(float x, float s) {
  denominator d(s);
  return divided(x, d), !d.inexact;
}
// x 2^k = m s + n with odd m of 25 bits: 24-bit integers x and s with quotients next to halfway.
extern "C" long halfway(int near) {
  long wrong = 0;
  for (unsigned s = 1u << 23; s < 1u << 24; ++s) {
    const int zeros = __builtin_ctz(s);
    const unsigned odd = s >> zeros;
    unsigned inverse = odd;  // modulo 2^32
    for (int k = 0; k < 4; ++k) inverse *= 2 - odd * inverse;
    for (int k = 24; k <= 25; ++k)
      for (long n = -near; n <= near; ++n) {
        if (n == 0 || __builtin_ctzl(n) != zeros) continue;
        const long period = 1L << (k - zeros);
        for (long m = -(n >> zeros) * long(inverse) & (period - 1); m < 1 << 25; m += period) {
          const long x = (m * s + n) >> k;
          if (m < 1 << 24 || x < 1 << 23 || x >= 1 << 24 || (x >= s) != (k == 24)) continue;
          wrong += !right(float(x), float(s)) || !sure(float(x), float(s));
        }
      }
  }
  return wrong;
}
extern "C" long anywhere(int tries) {
  const unsigned ends[] = {0, 1, 2, 0x7fffff, 0x7ffffe, 0x400000, 0x3fffff, 0x400001};
  unsigned long state = 88172645463325252ul;
  const auto random = [&] {
    return state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  };
  long wrong = 0;
  for (unsigned long s = 0; s < 512 * 9; ++s)
    for (unsigned long x = 0; x < 512 * 9; ++x)
      wrong += !right(number(x / 9 << 23 | (x % 9 ? ends[x % 9 - 1] : random() >> 41)),
                      number(s / 9 << 23 | (s % 9 ? ends[s % 9 - 1] : random() >> 41)));
  for (long k = 0; k < tries; ++k) wrong += !right(number(random()), number(random()));
  return wrong;
}
extern "C" long doubted() {
  long count = 0;  // zeros, and what softmax and means come to, are no doubt
  for (float s : {1.f, 3.f, 0.1f, 1e9f})
    for (float x : {0.f, -0.f, 1.f, 1e-20f, -3e4f}) count += !sure(x, s);
  return count;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    text = select_sections("cuda", ["denominator"]) + PROGRAM + "}\n"
    return library_of(text, tmp_path_factory.mktemp("quotient"))


def test_quotients_next_to_halfway_are_rounded_rightly(library: ctypes.CDLL) -> None:
    assert library.halfway(8) == 0


def test_any_two_floats(library: ctypes.CDLL) -> None:
    assert library.anywhere(3_000_000) == 0


def test_ordinary_quotients_are_not_called_for_again(library: ctypes.CDLL) -> None:
    assert library.doubted() == 0


def text_of(function: object, x: Tensor, machine: str = "sm_90a") -> str:
    return cuda_source(numbered(planned(function, x, machine)).texts, TARGETS[machine])


def test_which_divisions_are_taken_apart() -> None:
    rows = torch.empty(512, 4096)
    text = text_of(softmax, rows)
    assert "denominator d0(v3);" in text
    assert "team.each(fixed<4096>, divides(d0, [&](" in text
    halves = text_of(lambda x: x / x.sum(1, keepdim=True), rows.half(), "sm_80")
    assert "divided(x0, d0)" in halves
    two = text_of(lambda x: x / x.amax(1, True) / x.sum(1, True), rows)
    assert two.count("= divided(") == 1
    assert "denominator" not in text_of(lambda x: x / x.sum(1, keepdim=True), rows.double())
    assert "denominator" not in text_of(lambda x: x.sum(1) / 3.0, rows)
    reduced = text_of(lambda x: (x / x.amax(1, True)).sum(1), rows)
    assert "= divided_alone(x0, d0);" in reduced
    assert "divides(" not in reduced.rpartition("namespace {")[2]
    assert "denominator" not in text_of(lambda x: (x.softmax(1), x.exp()), rows)
    assert "denominator" not in text_of(lambda x: x.sum(1, True) / x, rows)


def test_a_map_divides_by_a_constant_to_the_bit(tmp_path: Path) -> None:
    """Doubts in some vectors only, and in the last, short one."""
    x = torch.randn(33, 516)
    made = planned(lambda x: x / 3.0, x, "sm_90a")
    (kernel,) = made.texts
    text = cuda_source(numbered(made).texts, TARGETS["sm_90a"])
    assert "denominator d0(3.0f);" in text
    x[::3, ::7] = torch.tensor([0.0, -0.0, 1e-40, 3e-38, float("inf"), -float("inf"), 3e38] * 11)[
        :74
    ]
    x[5, 3] = float("nan")
    out = torch.full_like(x, 7)
    run = getattr(library_of(text, tmp_path), entry(kernel.name))
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (x, out)]
    assert run(*pointers, ctypes.c_long(33), 0, None) == 0
    assert np.array_equal(out.numpy(), (x / np.float32(3.0)).numpy(), equal_nan=True)
    assert np.array_equal(np.signbit(out.numpy()), np.signbit(x.numpy()))
