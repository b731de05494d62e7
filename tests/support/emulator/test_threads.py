"""Threads of the CPU: they wait for each other, and for nobody who has left."""

from __future__ import annotations

import ctypes

import pytest

from tests.support.emulator.threads import library_of

TEXT = """
template <bool BETWEEN> __global__ void neighbours(int* out, int late, int by) {
  __shared__ int all[64];
  if (threadIdx.x >= 48) return;
  all[threadIdx.x] = -1;
  for (int i = 0; i <= late; ++i) __syncthreads();
  all[threadIdx.x] = threadIdx.x + 100 * blockIdx.x;
  if (BETWEEN) __syncthreads();
  out[blockIdx.x * 48 + threadIdx.x] = all[(threadIdx.x + 48 + by) % 48];
}
extern "C" int run(int* out, int late, int by, bool between) {
  if (between) neighbours<true><<<dim3(2), 64, 0, nullptr>>>(out, late, by);
  else neighbours<false><<<dim3(2), 64, 0, nullptr>>>(out, late, by);
  return cudaGetLastError();
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return library_of(TEXT, tmp_path_factory.mktemp("threads"))


def found(library: ctypes.CDLL, late: int, by: int, *, between: bool) -> bool:
    """Whether every thread of both blocks has read what its neighbour wrote."""
    out = (ctypes.c_int * 96)()
    assert library.run(out, late, by, between) == 0
    rows = (out[:48], out[48:])
    return all(
        row == [(t + by) % 48 + 100 * block for t in range(48)] for block, row in enumerate(rows)
    )


@pytest.mark.compiler
@pytest.mark.parametrize("late", range(3))
def test_a_barrier_is_waited_at_and_a_missing_one_shows(library: ctypes.CDLL, late: int) -> None:
    for by in (1, -1):
        assert found(library, late, by, between=True)
        assert not found(library, late, by, between=False)
