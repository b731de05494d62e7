"""Product kernels for float16 and bfloat16: every result is the exact product, rounded once more.

All need a GPU of compute capability 9.0.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.support import gemm_half_subjects as half_subjects
from tests.support import gemm_subjects as subjects
from tests.support.gemm_half_subjects import HALVES, Half
from tests.support.gemm_subjects import Library

pytestmark = pytest.mark.gpu
MARGIN = 64  # elements before and behind an output that nobody may touch
MARK = -12344.0


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU for sm_90a here")
    return half_subjects.library(HALVES, tmp_path_factory.mktemp("halves"))


def run(library: Library, half: Half, left: Tensor, right: Tensor, *ins: Tensor) -> Tensor:
    """The result, and nothing written outside of it."""
    batches = max(f.shape[0] if f.dim() == 3 else 1 for f in (left, right))
    rows, columns = left.shape[-2], right.shape[-2]
    if half.subject.body == "row_sum":
        columns //= half.subject.segment
    count = batches * rows * columns
    room = torch.full((count + 2 * MARGIN,), MARK, device="cuda", dtype=half.dtype)
    mark = room[0].item()
    out = room[MARGIN : MARGIN + count]
    nothing = torch.empty(1, device="cuda", dtype=half.dtype)
    first, second = (*ins, nothing, nothing)[:2]
    code = half_subjects.launch(library, half, left, right, first, second, out)
    torch.cuda.synchronize()
    assert code == 0, f"{half.entry}: CUDA error {code}"
    outside = torch.cat([room[:MARGIN], room[MARGIN + count :]])
    assert bool((outside == mark).all()), f"{half.entry} writes outside its output"
    return out.view(batches, rows, columns)


def copies() -> Iterator[Half]:
    """Each width, side and layout with a body that only stores."""
    return (h for h in HALVES if h.subject.body == "copy")


def lines(values: Tensor, turned: bool, more: int = 0) -> Tensor:
    """The same numbers in lines that start at 16 bytes; behind each line lies something else."""
    base = values.mT if turned else values
    length = base.shape[-1]
    wide = base.new_full((*base.shape[:-1], -(-length // 8) * 8 + more), 7.0)
    wide[..., :length] = base
    found = wide[..., :length]
    return found.mT if turned else found


def factors(shape: tuple[int, int, int, int], half: Half) -> tuple[Tensor, Tensor]:
    """Two random factors as `half` wants them, [rows, depth] without batches."""
    batches, rows, columns, depth = shape
    torch.manual_seed(rows * 7 + columns * 3 + depth)
    batch = (batches,) if batches > 1 else ()
    left = torch.randn(*batch, rows, depth, device="cuda").to(half.dtype)
    right = torch.randn(*batch, columns, depth, device="cuda").to(half.dtype)
    return lines(left, half.turned[0]), lines(right, half.turned[1])


def exact(left: Tensor, right: Tensor) -> Tensor:
    """The product in float64, [batches, rows, columns]."""
    product = left.double() @ right.double().mT
    return product if product.dim() == 3 else product.unsqueeze(0)


def allowed(product: Tensor, left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """One rounding to 16 bits, and one step of a truncated float32 sum for each 16 k."""
    info = torch.finfo(dtype)
    rounding = info.eps / 2 * product.abs() + info.smallest_normal * info.eps / 2
    steps = left.shape[-1] / 16 + 1
    return rounding * 1.01 + steps * 2.0**-23 * exact(left.abs(), right.abs())


def check(library: Library, half: Half, left: Tensor, right: Tensor) -> None:
    product = exact(left, right)
    wrong = (run(library, half, left, right).double() - product).abs()
    bound = allowed(product, left, right, half.dtype)
    assert bool((wrong <= bound).all()), f"{half.entry}: {(wrong / bound).max().item():.3g} of it"
    # Not worse than eager, which rounds at the same place.
    theirs = torch.matmul(left, right.mT).double().view_as(product) - product
    if product.numel() >= 4096:
        assert wrong.norm() <= theirs.norm() * 1.01 + 1e-12, half.entry


# batches, rows, columns, depth
SHAPES = (
    (1, 1, 1, 8), (1, 1, 1, 36), (1, 1, 300, 100), (1, 300, 1, 100), (1, 2, 3, 32), (1, 63, 65, 37),
    (1, 64, 64, 64), (1, 129, 257, 8192), (1, 33, 1000, 128), (1, 1000, 33, 129),
    (1, 257, 513, 192), (1, 1024, 768, 544), (1, 7, 2049, 36), (3, 65, 100, 100), (3, 1, 7, 8),
    (3, 130, 259, 256), (1, 5, 5, 16384), (3000, 2, 3, 8), (1, 4100, 5000, 320),
)  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sizes(library: Library, shape: tuple[int, int, int, int]) -> None:
    for half in copies():
        check(library, half, *factors(shape, half))


# Couples of tiles that fill no wave: in a column, in a row, neither; parts of few and many k;
# ranges that end one couple and begin the next; a wave of whole tiles before.
SHARED = (
    (1, 1, 300, 2048), (1, 96, 1500, 4104), (1, 160, 3000, 5000), (1, 300, 300, 3001),
    (1, 300, 513, 16384), (5, 129, 200, 4000), (1, 2300, 2500, 2056), (7, 640, 1100, 1500),
    (1, 1536, 3072, 6144), (2, 127, 129, 2047),
)  # fmt: skip


@pytest.mark.parametrize("shape", SHARED, ids=str)
def test_tiles_that_share_their_depth(library: Library, shape: tuple[int, int, int, int]) -> None:
    for half in (h for h in copies() if h.subject.parts or h.turned != (False, False)):
        left, right = factors(shape, half)
        check(library, half, left, right)
        first = run(library, half, left, right)
        assert torch.equal(first, run(library, half, left, right)), f"{half.entry}: other bits"


def test_all_numbers_of_rows(library: Library) -> None:
    some = [h for h in copies() if h.subject.parts and h.subject.width in (64, 256)]
    for rows in range(1, 301, 13):
        for half in some:
            check(library, half, *factors((1, rows, 777, 1100), half))


def test_longer_lines_and_one_factor_for_all_batches(library: Library) -> None:
    for half in copies():
        left, right = factors((3, 133, 197, 292), half)
        check(library, half, lines(left, half.turned[0], 24), right)
        check(library, half, left, lines(right, half.turned[1], 8))
        check(library, half, left, right[0])
        check(library, half, left[0], right)
        check(library, half, left[:1].expand(3, -1, -1), right)


def test_rows_of_many_sizes(library: Library) -> None:
    for half in copies():
        left, right = factors((1, 200, 136, 4096), half)
        decades = 3 if half.dtype is torch.float16 else 15
        sizes = torch.logspace(-decades, 0, 200, device="cuda").unsqueeze(-1)
        check(library, half, lines((left * sizes).to(half.dtype), half.turned[0]), right)


def test_infinities_nan_and_overflow_are_where_eager_has_them(library: Library) -> None:
    for half in copies():
        left, right = (f.clone() for f in factors((1, 150, 200, 264), half))
        left, right = lines(left, half.turned[0]), lines(right, half.turned[1])
        for i, value in enumerate((float("inf"), float("-inf"), float("nan"), 0.0)):
            left[i * 7, i * 37] = right[i * 31, i * 11] = value
        # Beyond float16, but never beyond the float32 sums, where the order would decide.
        left[40] = 8192.0
        expected = torch.matmul(left, right.mT).unsqueeze(0)
        actual = run(library, half, left, right)
        assert torch.equal(actual.isnan(), expected.isnan()), half.entry
        assert torch.equal(actual.isinf(), expected.isinf()), half.entry
        infinite = expected.isinf()
        assert torch.equal(actual[infinite], expected[infinite]), half.entry
        assert int(infinite.sum()) > 300


# rows, columns, depth of the tests of tails; all segments divide these columns.
TAILS = ((1, 256, 40), (37, 768, 100), (300, 1280, 512))
# The same where lanes have eight neighbouring columns: few columns, edges, many tiles, parts.
EIGHTS = ((130, 8, 40), (37, 328, 104), (256, 520, 72), (4100, 5000, 320), (96, 1512, 4104))
ODD_TAILS = ((1, 1, 8), (37, 333, 100), (130, 65, 36))


@pytest.mark.parametrize("half", HALVES, ids=lambda h: str(h.entry))
def test_tails(library: Library, half: Half) -> None:
    s = half.subject
    sizes = TAILS + (ODD_TAILS if s.segment == 0 and s.vector == 1 else ())
    sizes += ((70, 64, 64), (9, 192, 72)) if s.segment in (4, 16, 32, 64) else ()
    sizes += EIGHTS if s.vector == 8 and s.segment == 0 else ()
    for batches in (1, 3):
        for rows, columns, depth in sizes:
            left, right = factors((batches, rows, columns, depth), half)
            ins = subjects.operands(s, batches, rows, columns, "cuda")
            ins = (ins[0].to(half.dtype), ins[1].to(half.dtype))
            actual = run(library, half, left, right, *ins)
            product = exact(left, right)
            expected = subjects.meaning(s, product, *ins)
            # What rounding the product to 16 bits costs, as eager does.
            rounded = product.to(half.dtype).float()
            typical = subjects.meaning(s, rounded, *ins).to(half.dtype)
            limit = torch.finfo(half.dtype).eps + _distance(typical, expected)
            assert _distance(actual, expected) <= limit, (batches, rows, columns, depth)


def _distance(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the value and to the typical size of all."""
    size = expected.square().mean().sqrt()
    return ((actual.double() - expected).abs() / (expected.abs() + size)).max().item()


def test_the_same_bits_every_time_and_inside_a_cuda_graph(library: Library) -> None:
    for half in copies():
        left, right = factors((1, 500, 704, 1000), half)
        first = run(library, half, left, right).clone()
        assert torch.equal(run(library, half, left, right), first), half.entry
        out = torch.zeros(500 * 704, device="cuda", dtype=half.dtype)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            code = half_subjects.launch(library, half, left, right, out, out, out)
        assert code == 0
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out.view_as(first), first), half.entry
