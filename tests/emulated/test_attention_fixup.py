"""What attention computes again, in plain sums: run by threads of this CPU, a block to a row."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from fusewright.codegen.device_library import select_sections
from tests.support.emulator import threads

# What these sections ask of a GPU beyond tests/support/emulator/threads.py: shuffles by a barrier
# for each warp.
MORE = r"""
#undef __global__
#define __global__ inline
#define __grid_constant__
struct float2 { float x, y; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
inline barrier warps[8];
template <class T> T __shfl_xor_sync(unsigned, T x, int distance) {
  static T room[256];
  barrier& here = warps[threadIdx.x / 32];
  room[threadIdx.x] = x;
  wait_at(here);
  x = room[threadIdx.x ^ distance];
  wait_at(here);
  return x;
}
using std::fma, std::fabs;
// Named by sections that come along, and never called.
void __syncwarp(), __builtin_assume(bool);
bool __all_sync(unsigned, bool);
int __shfl_sync(unsigned, int, int);
unsigned long __cvta_generic_to_shared(const void*);
unsigned umin(unsigned, unsigned);
"""
ENTRY = r"""
struct shifted {
  int last;
  float operator()(long, int row, int key, float score) const {
    return key > row + last ? -INFINITY : score * .125f;
  }
};
extern "C" void again(const float* q, const float* k, const float* v, float* out, int rows,
                      int length, int depth, int columns, int last) {
  using namespace fusewright;
  static float box[(attention_tile<64>::seen + 4096) / 4];
  for (auto& one : warps) one = {32};
  launch(dim3(1), 256, [=] {
    const attention_shape shape{1, rows, columns, length, depth};
    for (int row = 0; row < rows; ++row)
      fixup_attention<64>(box, row, shifted{last}, gemm_operand{q, 0, depth, 1},
                          gemm_operand{k, 0, depth, 1}, gemm_operand{v, 0, 1, columns}, shape, 0,
                          row);
  });
  for (int i = 0; i < rows * columns; ++i)
    out[i] = box[smem_tile_place<false, 64>(i / columns, i % columns)];
}
extern "C" bool doubted(float x, float seen, bool faint) {
  return fusewright::needs_fixup(x, fusewright::fixup_limit(faint), seen, faint);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("exact")
    text = select_sections("sm90", ["fixup_attention", "fixup_limit"])
    return threads.library_of(MORE + text + "}\n" + ENTRY, folder)


def again(
    library: ctypes.CDLL, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, last: int = 1 << 20
) -> torch.Tensor:
    """Each row computed again; a row sees keys up to its own number + `last`."""
    out = torch.empty(len(q), v.shape[1])
    given = (ctypes.c_void_p(t.data_ptr()) for t in (q, k, v, out))
    library.again(*given, len(q), len(k), q.shape[1], v.shape[1], last)
    return out


def eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, last: int = 1 << 20) -> torch.Tensor:
    future = torch.ones(len(q), len(k), dtype=torch.bool).triu(last + 1)
    scores = (q @ k.T * 0.125).masked_fill(future, float("-inf"))
    return scores.softmax(-1) @ v


@pytest.mark.parametrize(
    ("rows", "length", "depth", "columns", "last"),
    [
        (2, 1, 1, 1, 9), (2, 33, 64, 64, 0), (2, 130, 40, 37, 3), (2, 300, 64, 63, -1),
        (1, 6200, 8, 5, 6180),
    ],
)  # fmt: skip
def test_rows_are_as_float64_has_them(
    library: ctypes.CDLL, rows: int, length: int, depth: int, columns: int, last: int
) -> None:
    torch.manual_seed(length)
    q, k, v = torch.randn(rows, depth), torch.randn(length, depth), torch.randn(length, columns)
    exact = eager(q.double(), k.double(), v.double(), last)
    size = eager(q.double(), k.double(), v.double().abs(), last)
    found = again(library, q, k, v, last)
    assert torch.equal(found.isnan(), exact.isnan())  # where nothing is seen
    assert ((found - exact).abs() <= 5e-7 * size).logical_or(exact.isnan()).all()


def test_weights_far_below_the_largest_are_kept(library: ctypes.CDLL) -> None:
    q, k = torch.full((1, 1), 8.0), -torch.arange(64.0).view(-1, 1)
    found = again(library, q, k, torch.eye(64)).view(-1)
    exact = eager(q.double(), k.double(), torch.eye(64).double()).view(-1)
    assert torch.allclose(found.double(), exact, rtol=1e-6, atol=0)


def test_specials(library: ctypes.CDLL) -> None:
    torch.manual_seed(3)
    q, k, v = torch.randn(2, 8), torch.randn(40, 8), torch.randn(40, 6)
    for value in (float("inf"), float("-inf"), float("nan")):
        special = v.clone()
        special[30, 2] = value  # masked for all rows, so 0 * value
        special[1, 3] = value
        other = k.clone()
        other[5] = value
        for given in ((q, k, special), (q, other, v)):
            expected, found = eager(*given, 20), again(library, *given, 20)
            assert torch.equal(found.isnan(), expected.isnan())
            assert torch.equal(found.isinf(), expected.isinf())


def test_the_order_decides_after_an_overflow(library: ctypes.CDLL) -> None:
    q, v = torch.full((1, 3), 1.5), torch.ones(2, 1)
    early = torch.tensor([[3e38, 3e38, -3e38], [0.0, 0.0, 0.0]])
    assert again(library, q, early, v).isnan().all()  # infinity, as eager's score
    assert again(library, q, early[:, [0, 2, 1]] / 1.5, v).item() == 1


def test_what_is_in_doubt(library: ctypes.CDLL) -> None:
    def doubted(x: float, seen: float, faint: bool) -> bool:
        library.doubted.restype = ctypes.c_bool
        return library.doubted(ctypes.c_float(x), ctypes.c_float(seen), faint)

    one = 2.0**-14  # the inverse scale of values from 1 to 2
    assert doubted(float("nan"), one, False)
    assert doubted(float("inf"), one, False)
    assert not doubted(0.0, one, False)
    assert doubted(0.0, one, True)
    assert not doubted(0.0, 2.0**-126, True)  # a column of zeros
    assert not doubted(0.0, 0.0, True)
    for faint, limit in ((False, 2.0**-28), (True, 2.0**-26)):
        assert doubted(-limit / 2, one, faint)
        assert not doubted(limit, one, faint)
