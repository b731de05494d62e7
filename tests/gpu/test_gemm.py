"""Product kernels are as accurate as eager's, and right with every shape, stride, special and tail.

All need a GPU: kernels for sm_90a run on their own hardware, those for sm_80 on any that is there.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support import gemm_subjects as subjects
from tests.support.gemm_subjects import (
    BETWEEN,
    EXTRAS,
    INLINE,
    PARTS,
    SCHEDULES,
    SHARED,
    Call,
    Library,
    Subject,
)

ARCHS = tuple(PARTS)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Library]:
    archs = [a for a in ARCHS if a == "sm_80" or torch.cuda.get_device_capability() == (9, 0)]
    folder = tmp_path_factory.mktemp("products")
    return subjects.libraries(archs, (*SCHEDULES, *BETWEEN, *EXTRAS, *SHARED, *INLINE), folder)


@pytest.fixture
def library(built: dict[str, Library], request: pytest.FixtureRequest) -> Library:
    if request.param not in built:
        pytest.skip(f"no GPU for {request.param} here")
    return built[request.param]


MARGIN = 64  # elements before and behind an output that nobody may touch
MARK = -12345.5


def run(library: Library, subject: Subject, left: Tensor, right: Tensor, *ins: Tensor) -> Tensor:
    """The result, with scratch memory full of NaN, and nothing written outside of the two."""
    batches = max(f.shape[0] if f.dim() == 3 else 1 for f in (left, right))
    rows, columns = left.shape[-2], right.shape[-2]
    if subject.body == "row_sum":
        columns //= subject.segment
    count = batches * rows * columns
    room = torch.full((count + 2 * MARGIN,), MARK, device="cuda")
    packed = left if subject.swapped else right
    need = subjects.workspace_bytes(packed, subject)
    space = torch.full((need + 256,), 0xFF, dtype=torch.uint8, device="cuda")
    nothing = torch.empty(1, device="cuda")
    first, second = (*ins, nothing, nothing)[:2]
    out = room[MARGIN : MARGIN + count]
    code = Call(left, right, first, second, out, space).launch(library, subject)
    torch.cuda.synchronize()
    assert code == 0, f"{subject.entry}: CUDA error {code}"
    assert bool((space[need:] == 0xFF).all()), f"{subject.entry} writes behind its workspace"
    outside = torch.cat([room[:MARGIN], room[MARGIN + count :]])
    assert bool((outside == MARK).all()), f"{subject.entry} writes outside its output"
    return out.view(batches, rows, columns)


def copies(library: Library) -> Iterator[Subject]:
    """Each width and side once, again with a shared depth, and packing nothing; only storing."""
    some = (s for s in (*SCHEDULES, *BETWEEN, *SHARED, *INLINE) if s.body == "copy")
    return (s for s in some if s.entry in library.parts)


def exact(left: Tensor, right: Tensor) -> Tensor:
    """The product in float64, [batches, rows, columns]."""
    product = left.double() @ right.double().transpose(-1, -2)
    return product if product.dim() == 3 else product.unsqueeze(0)


def eager(left: Tensor, right: Tensor) -> Tensor:
    product = torch.matmul(left, right.transpose(-1, -2))
    return product if product.dim() == 3 else product.unsqueeze(0)


@dataclass(frozen=True)
class Error:
    """relative: Frobenius norm of the error over that of the product; largest: of one element.

    Both after each element is divided by what its sum is without signs, so that no scale hides
    another. A product smaller than that of random factors, by cancellation, counts as one of that
    size: 1 / sqrt(depth) per element.
    """

    relative: float
    largest: float


def error_of(actual: Tensor, right_one: Tensor, left: Tensor, right: Tensor) -> Error:
    scale = exact(left.abs(), right.abs()).clamp_min(1e-300)
    wrong = (actual.double() - right_one) / scale
    size = max((right_one / scale).norm().item(), (wrong.numel() / left.shape[-1]) ** 0.5)
    return Error(wrong.norm().item() / size, wrong.abs().max().item())


# Eager's own error, and one rounding of float32 more.
ROUNDING = 2.0**-23
SPREAD = 1.1  # so much eager's own error moves from draw to draw
LEAST_DEPTH = 32  # shallower products stay library calls


def check(
    library: Library, left: Tensor, right: Tensor, some: Iterator[Subject], roundings: int = 1
) -> None:
    """Our error is at most eager's and a rounding, on every schedule of `some`."""
    product = exact(left, right)
    theirs = error_of(eager(left, right), product, left, right)
    # A few elements are no average, and a few k do not average out what lo * lo would add.
    few = 4 if left.shape[-1] < LEAST_DEPTH else 2 if product.numel() < 64 else 1
    more = ROUNDING * max(roundings, few)
    failures = []
    for subject in some:
        ours = error_of(run(library, subject, left, right), product, left, right)
        good = ours.relative <= SPREAD * theirs.relative + more
        if not (good and ours.largest <= SPREAD * theirs.largest + more):
            failures.append(f"{subject.entry}: {ours}, eager {theirs}")
    assert failures == []


def factors(batches: int, rows: int, columns: int, depth: int) -> tuple[Tensor, Tensor]:
    """Two random factors, [rows, depth] without batches."""
    torch.manual_seed(rows * 7 + columns * 3 + depth)
    batch = (batches,) if batches > 1 else ()
    return (
        torch.randn(*batch, rows, depth, device="cuda"),
        torch.randn(*batch, columns, depth, device="cuda"),
    )


# batches, rows, columns, depth
SHAPES = (
    (1, 1, 1, 4), (1, 1, 1, 36), (1, 1, 300, 100), (1, 300, 1, 100), (1, 2, 3, 32), (1, 63, 65, 36),
    (1, 64, 64, 64), (1, 129, 257, 8192), (1, 33, 1000, 128), (1, 1000, 33, 132), (1, 257, 513, 96),
    (1, 1024, 768, 544), (1, 7, 2049, 36), (3, 65, 100, 100), (3, 1, 7, 4), (3, 130, 259, 64),
    (1, 5, 5, 16384), (70000, 2, 3, 4),
)  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("library", ARCHS, indirect=True)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sizes(library: Library, shape: tuple[int, int, int, int]) -> None:
    check(library, *factors(*shape), copies(library))


def sliced(factor: Tensor, more: int) -> Tensor:
    """The same numbers in rows that are `more` elements longer."""
    wide = torch.full((*factor.shape[:-1], factor.shape[-1] + more), 7.0, device="cuda")
    wide[..., : factor.shape[-1]] = factor
    return wide[..., : factor.shape[-1]]


def transposed(factor: Tensor) -> Tensor:
    """The same numbers with neighbouring rows."""
    return factor.transpose(-1, -2).contiguous().transpose(-1, -2)


@pytest.mark.gpu
@pytest.mark.parametrize("library", ARCHS, indirect=True)
@pytest.mark.parametrize("batches", [1, 3])
def test_strides_of_both_factors(library: Library, batches: int) -> None:
    """The split factor may have longer rows, in steps of 4; the packed one anything."""
    left, right = factors(batches, 133, 197, 292)
    for swapped in (False, True):
        some = [s for s in copies(library) if s.swapped == swapped and not s.inline]
        split, packed = (right, left) if swapped else (left, right)
        shifted = torch.cat([packed.new_zeros(3), packed.flatten()])[3:].view_as(packed)
        every_other = packed.repeat_interleave(2, -1)[..., ::2]
        padded = sliced(packed.mT.contiguous(), 5).mT
        for back in (packed, sliced(packed, 3), transposed(packed), padded, shifted, every_other):
            for front in (split, sliced(split, 8)):
                pair = (back, front) if swapped else (front, back)
                check(library, *pair, iter(some))


@pytest.mark.gpu
@pytest.mark.parametrize("library", ARCHS, indirect=True)
@pytest.mark.parametrize("depth", [33, 130, 1001, 1087])
def test_a_depth_that_is_no_multiple_of_four(library: Library, depth: int) -> None:
    """Rows of the split factor go on with zeros up to 16 bytes; the packed one lies as it likes."""
    left, right = factors(1, 133, 197, depth)
    for swapped in (False, True):
        some = [s for s in copies(library) if s.swapped == swapped and not s.inline]
        split, packed = (right, left) if swapped else (left, right)
        front = torch.nn.functional.pad(split, (0, -depth % 4))[:, :depth]
        for back in (packed, transposed(packed)):
            check(library, *((back, front) if swapped else (front, back)), iter(some))


def inline_copies(library: Library) -> list[Subject]:
    some = [s for s in copies(library) if s.inline]
    assert some
    return some


@pytest.mark.gpu
@pytest.mark.parametrize("library", ARCHS, indirect=True)
@pytest.mark.parametrize("batches", [1, 3])
def test_longer_rows_where_nothing_is_packed(library: Library, batches: int) -> None:
    left, right = factors(batches, 133, 197, 292)
    some = inline_copies(library)
    for front in (left, sliced(left, 8)):
        for back in (right, sliced(right, 4)):
            check(library, front, back, iter(some))


@pytest.mark.gpu
@pytest.mark.parametrize("library", ARCHS, indirect=True)
def test_what_only_a_scale_for_every_64_k_can_hold(library: Library) -> None:
    """Factors whose sizes run against each other, or out of the range of any one power of two."""
    left, right = factors(1, 150, 140, 256)
    blocks = torch.logspace(-30, 30, 4, device="cuda").repeat_interleave(64)
    some = inline_copies(library)
    for a, b in ((1e-19, 1e-19), (1e30, 1e-44), (1e-44, 1e30), (1e37, 1e-40), (1e-40, 5e36)):
        check(library, left * a, right * b, iter(some), roundings=3)  # subnormal on the way
    check(library, left * blocks, right / blocks, iter(some), roundings=3)
    check(library, left / blocks, right * blocks, iter(some), roundings=3)


@pytest.mark.gpu
@pytest.mark.parametrize("library", ARCHS, indirect=True)
def test_the_same_bits_every_time(library: Library) -> None:
    """Many tiles for each processor: shared memory is filled again while it is read elsewhere."""
    left, right = factors(1, 2048, 1536, 1024)
    for subject in copies(library):
        first = run(library, subject, left, right)
        again = [run(library, subject, left, right) for _ in range(4)]
        assert all(torch.equal(first, other) for other in again), subject.entry
    check(library, left, right, copies(library))


@pytest.mark.gpu
@pytest.mark.parametrize("library", ARCHS, indirect=True)
def test_one_factor_for_all_batches(library: Library) -> None:
    left, right = factors(3, 70, 130, 100)
    check(library, left, right[0], copies(library))
    check(library, left[0], right, copies(library))
    check(library, left[:1].expand(3, -1, -1), right, copies(library))


def scaled(factor: Tensor, decades: float) -> Tensor:
    """Rows of sizes 1e-decades to 1e+decades."""
    return factor * torch.logspace(-decades, decades, factor.shape[-2], device="cuda").unsqueeze(-1)


def spiked(factor: Tensor) -> Tensor:
    found = factor.clone()
    places = torch.randint(factor.shape[-1], factor.shape[:-1], device="cuda").unsqueeze(-1)
    return found.scatter_(-1, places, 1e5)


def hazards(left: Tensor, right: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """What goes wrong when scales, truncation or small numbers are not thought of."""
    third = torch.ones(left.shape[0], 1, device="cuda")
    third[::3] = 0
    tiny = torch.ones(left.shape[0], 1, device="cuda")
    tiny[1::3] = 1e-40
    blocks = torch.logspace(-6, 6, left.shape[1] // 64, device="cuda").repeat_interleave(64)
    columns = torch.logspace(-2, 2, 64, device="cuda").repeat(left.shape[1] // 64)
    ones = torch.ones_like(right)
    return {
        "left rows 1e-30 to 1e30": (scaled(left, 30), right * 1e-3),
        "right rows 1e-30 to 1e30": (left * 1e-3, scaled(right, 30)),
        "both": (scaled(left, 18), scaled(right, 18)),
        "spikes on the left": (spiked(left), right),
        "spikes on the right": (left, spiked(right)),
        "zero rows": (left * third, right * third[: right.shape[0]]),
        "subnormal rows": (left * tiny, right),
        "blocks of 64 k": (left * blocks, right),
        "opposite blocks": (left * blocks, right / blocks),
        # Within 64 k, elements down to 2^-16 of the largest keep all their bits.
        "opposite columns": (left * columns, right / columns),
        "wide range": ((left * 3).exp() * left.sign(), (right * 3).exp()),
        "integers": ((left * 8).round(), ones),
        "cancelling": (torch.cat([left, -left], 1), torch.cat([right, right * (1 + 1e-4)], 1)),
        "beyond 1e34": (left * 1e18, right * 1e16),
    }


HAZARDS = (
    "left rows 1e-30 to 1e30", "right rows 1e-30 to 1e30", "both", "spikes on the left",
    "spikes on the right", "zero rows", "subnormal rows", "blocks of 64 k", "opposite blocks",
    "opposite columns", "wide range", "integers", "cancelling", "beyond 1e34",
)  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("library", ARCHS, indirect=True)
@pytest.mark.parametrize("name", HAZARDS)
def test_hazards(library: Library, name: str) -> None:
    check(library, *hazards(*factors(1, 200, 136, 4096))[name], copies(library))


@pytest.mark.gpu
@pytest.mark.parametrize("library", ARCHS, indirect=True)
@pytest.mark.parametrize("depth", [1024, 4096, 16384])
def test_long_sums_of_positive_numbers(library: Library, depth: int) -> None:
    """Truncation would only lose. Eager shares out the depth of so small a result; so do we."""
    torch.manual_seed(depth)
    left, right = torch.rand(256, depth, device="cuda"), torch.rand(512, depth, device="cuda")
    some = [s for s in copies(library) if s.parts] or copies(library)
    check(library, left, right, iter(some))


@pytest.mark.gpu
@pytest.mark.parametrize("library", ARCHS[:1], indirect=True)
@pytest.mark.parametrize("depth", [640, 1000])
def test_a_wave_of_whole_tiles_and_the_rest_in_parts(library: Library, depth: int) -> None:
    torch.manual_seed(depth)
    for subject in (s for s in copies(library) if s.parts):
        lines, across = 128 * 67 - 3, 2 * subject.width - 1  # 134 tiles
        shape = (across, lines) if subject.swapped else (lines, across)
        left, right = (torch.randn(size, depth, device="cuda") for size in shape)
        check(library, left, right, iter([subject]))


def with_specials(factor: Tensor, step: int, *more: float) -> Tensor:
    """Infinities, NaN and zeros in different rows and at different depths; one row of zeros."""
    found = factor.clone()
    for i, value in enumerate((float("inf"), float("-inf"), float("nan"), 0.0, *more)):
        found[(i * step) % factor.shape[0], (i * 37) % factor.shape[1]] = value
    found[11] = 0.0
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("library", ARCHS, indirect=True)
@pytest.mark.parametrize("where", ["left", "right", "both"])
def test_infinities_and_nan_are_where_eager_has_them(library: Library, where: str) -> None:
    left, right = factors(1, 150, 200, 260)
    # Large numbers in both make overflows whose outcome depends on the order of additions.
    huge = () if where == "both" else (3e38, -3e38)
    left = with_specials(left, 7, *huge) if where != "right" else left
    right = with_specials(right, 31, *huge) if where != "left" else right
    expected, product = eager(left, right), exact(left, right)
    for subject in copies(library):
        actual = run(library, subject, left, right)
        assert torch.equal(actual.isnan(), expected.isnan()), subject.entry
        assert torch.equal(actual.isinf(), expected.isinf()), subject.entry
        infinite = expected.isinf()
        assert torch.equal(actual[infinite], expected[infinite]), subject.entry
        plain = expected.isfinite()
        close = torch.isclose(actual.double(), product, rtol=1e-4, atol=1e-4)
        assert bool(close[plain].all()), subject.entry


@pytest.mark.gpu
@pytest.mark.parametrize("library", ARCHS, indirect=True)
def test_overflow_becomes_infinity_and_nothing_else(library: Library) -> None:
    left, right = factors(1, 100, 120, 64)
    left, right = left.abs() + 0.5, right.abs() + 0.5
    left[::2], right[::3] = left[::2] * 1e20, right[::3] * -1e19
    product, expected = exact(left, right), eager(left, right)
    assert int(expected.isinf().sum()) == 50 * 40
    for subject in copies(library):
        actual = run(library, subject, left, right)
        assert torch.equal(actual.isinf(), expected.isinf()), subject.entry
        assert torch.equal(actual[expected.isinf()], expected[expected.isinf()]), subject.entry
        plain = expected.isfinite()
        assert bool(((actual.double() / product - 1).abs()[plain] < 1e-6).all()), subject.entry


# rows, columns, depth of the tests of tails; all segments divide these columns.
TAILS = ((1, 256, 36), (37, 768, 100), (300, 1280, 512))
ODD_TAILS = ((1, 1, 4), (37, 333, 100), (130, 65, 36))


@pytest.mark.gpu
@pytest.mark.parametrize("library", ARCHS, indirect=True)
@pytest.mark.parametrize(
    "subject", [*SCHEDULES, *BETWEEN, *EXTRAS, *SHARED, *INLINE], ids=lambda s: str(s.entry)
)
def test_tails(library: Library, subject: Subject) -> None:
    if subject.entry not in library.parts:
        pytest.skip("no such kernel on this architecture")
    sizes = TAILS + (ODD_TAILS if subject.segment == 0 and subject.vector == 1 else ())
    if subject.segment in (4, 16, 64):
        sizes += ((70, 64, 64), (9, 192, 68))
    for batches in (1, 3):
        for rows, columns, depth in sizes:
            left, right = factors(batches, rows, columns, depth)
            ins = subjects.operands(subject, batches, rows, columns, "cuda")
            actual = run(library, subject, left, right, *ins)
            product = exact(left, right)
            expected = subjects.meaning(subject, product, *ins)
            # In float32 with an exact product: what the tail itself costs, whoever computes it.
            typical = subjects.meaning(subject, eager(left, right), *ins)
            allowed = 2e-6 + 4 * _distance(typical, expected)
            assert _distance(actual, expected) <= allowed, (batches, rows, columns, depth)


@pytest.mark.gpu
@pytest.mark.parametrize("library", ARCHS, indirect=True)
@pytest.mark.parametrize("rows", [150, 16, 9])
def test_a_row_that_is_not_finite_leaves_its_neighbours_alone(library: Library, rows: int) -> None:
    """Whole segments of finite rows never see shared memory; the others, and edges, do."""
    reductions = (s for s in (*SCHEDULES, *EXTRAS, *SHARED) if s.body in ("group_norm", "softmax"))
    left, right = factors(1, rows, 768, 260)
    left[rows // 2, 5], left[rows - 1, 7] = float("inf"), float("nan")
    for subject in (s for s in reductions if s.entry in library.parts):
        ins = subjects.operands(subject, 1, rows, 768, "cuda")
        actual = run(library, subject, left, right, *ins)
        expected = subjects.meaning(subject, exact(left, right), *ins)
        assert torch.equal(actual.isnan(), expected.isnan()), subject.entry
        plain = expected.isfinite()
        assert bool((actual.double() - expected)[plain].abs().max() < 1e-4), subject.entry


def _distance(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the value and to the typical size of all."""
    size = expected.square().mean().sqrt()
    return ((actual.double() - expected).abs() / (expected.abs() + size)).max().item()


@pytest.mark.gpu
@pytest.mark.parametrize("library", ARCHS, indirect=True)
def test_the_same_bits_every_time_and_inside_a_cuda_graph(library: Library) -> None:
    left, right = factors(1, 500, 700, 1000)
    for subject in copies(library):
        first = run(library, subject, left, right).clone()
        assert torch.equal(run(library, subject, left, right), first), subject.entry
    out = torch.zeros(500 * 700, device="cuda")
    packed = left if subject.swapped else right
    space = torch.empty(subjects.workspace_bytes(packed, subject), dtype=torch.uint8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        code = Call(left, right, out, out, out, space).launch(library, subject)
    assert code == 0
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out.view_as(first), first)


@pytest.mark.gpu
def test_the_driver_takes_the_ptx_of_sm_80(tmp_path: Path) -> None:
    """What an emitted file for sm_80 would hold on a newer GPU."""
    subject = next(s for s in SCHEDULES if s.body == "copy")
    target = tmp_path / "ptx.so"
    text = subjects.source("sm_80", [subject])
    assert re.search(r"mma\.sync", text)
    subjects.build(text, target, "arch=compute_80,code=compute_80")
    library = Library({subject.entry: ctypes.CDLL(str(target))})
    check(library, *factors(1, 130, 100, 132), iter([subject]))
