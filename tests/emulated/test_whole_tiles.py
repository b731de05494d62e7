"""Tiles whose lanes have four or eight neighbouring columns reach the body, whole or not.

Threads of the CPU run the text (tiles.py), from the tensor core's registers on.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support import gemm_subjects as subjects
from tests.support.emulator.tiles import compiled
from tests.support.gemm_subjects import BODIES, WORDS, Subject

# A lane's fragment i of a quarter lies in row g or g + 8, and is number (i / 4) * 2 + i % 2 of the
# lane's columns there; EACH of those are neighbours, four lanes side by side. Four warps hand out
# all eight slabs, as where a group has a tile of its own.
HANDED = """
template <int WIDTH, int SEGMENT, int EACH, class Body>
void run_epilogue(const Body& body, const float* sums, int rows, int columns, int slab) {
  static float boxes[8 * SMEM_TILE], scales[WIDTH];
  for (int i = 0; i < WIDTH; ++i) scales[i] = i % 2 ? -0.5f : 0.5f;  // negative ones tell of more
  using factors = std::conditional_t<EACH == 4, split_operands<>, whole_operands<EACH, WIDTH % 128 ? 64 : 128>>;
  const gemm_operand none{nullptr, 0, 0, 0};
  const gemm_shape shape{1, rows, columns, 0};
  const auto both = [&]() -> factors {
    if constexpr (EACH == 4) return {none, none}; else return {};
  }();
  const consumer<Body, factors> me{body, both, shape, boxes, slab};
  const int lane = threadIdx.x % 32;
  for (int row = 0; row * TILE_ROWS < rows; ++row)
    for (int column = 0; column * WIDTH < columns; ++column) {
      float held[quarters<WIDTH>][32];
      for (int i = 0; i < WIDTH / 2; ++i) {
        const int r = row * TILE_ROWS + slab * 16 + lane / 4 + i / 2 % 2 * 8, mine = i / 4 * 2 + i % 2;
        const int c = column * WIDTH + mine / EACH * 4 * EACH + lane % 4 * EACH + mine % EACH;
        held[i / 32][i % 32] = r < rows && c < columns ? sums[long(r) * columns + c] * (EACH == 4 ? 2 : 1) : 0;
      }
      me.template rows_out<WIDTH, SEGMENT, EACH>(held, {0, row, column}, scales);
    }
}
"""  # noqa: E501
ENTRY = """
extern "C" void {entry}(const float* sums, const float* in0, const float* in1, float* out0,
                        int rows, int columns) {{
  const {struct} body{{in0, in1, out0, columns}};
  for (int slab = 0; slab < 8; ++slab)
    launch(dim3(1), 32, [=] {{
      threadIdx.x += 128 + slab % 4 * 32;
      run_epilogue<{chosen}>(body, sums, rows, columns, slab);
      threadIdx.x -= 128 + slab % 4 * 32;
    }});
}}
"""
SUBJECTS = tuple(
    Subject(body, width, False, segment, each)
    for each in (4, 8)
    for width in (64, 160, 192, 256)
    for body, segment in (
        ("bias_relu", 0), ("residual_scale", 0), ("group_norm", 64), ("softmax", 32),
        ("row_sum", 64),
    )
    if width % 64 == 0 or (each == 8 and segment == 0)
)  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("whole")
    entries = (
        ENTRY.format(entry=s.entry, struct=s.struct, chosen=f"{s.width}, {s.segment}, {s.vector}")
        for s in SUBJECTS
    )
    words = {*WORDS, "keep", "read", "write", "tile_out"}
    return compiled(words, HANDED + BODIES + "".join(entries), folder)


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: str(s.entry))
@pytest.mark.parametrize(("rows", "columns"), [(128, 256), (150, 320), (37, 768), (144, 344)])
def test_every_tail(library: ctypes.CDLL, subject: Subject, rows: int, columns: int) -> None:
    if subject.segment and columns % subject.segment:
        pytest.skip("columns are whole segments")
    torch.manual_seed(rows)
    sums = torch.randn(1, rows, columns)
    ins = subjects.operands(subject, 1, rows, columns, "cpu")
    wanted = subjects.meaning(subject, sums.double(), *ins)
    out = torch.full(wanted.shape, torch.nan)
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (sums, *ins, out)]
    getattr(library, subject.entry)(*pointers, rows, columns)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-5)


def test_fewer_columns_than_a_vector_has(library: ctypes.CDLL) -> None:
    """Columns behind a tile's last vector belong to nobody."""
    subject = replace(SUBJECTS[0], body="bias_relu", vector=8, segment=0)
    sums, bias = torch.randn(1, 20, 8), torch.randn(8)
    out = torch.full((200,), torch.nan)
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (sums, bias, bias, out)]
    getattr(library, subject.entry)(*pointers, 20, 8)
    torch.testing.assert_close(out[:160].view(20, 8), (sums[0] + bias).relu())
    assert out[160:].isnan().all()
