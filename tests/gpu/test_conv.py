"""Convolution kernels: every result is the exact convolution of operands rounded to 11 bits.

All need a GPU; the kernels of sm_90a need compute capability 9.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import prod

import pytest
import torch
from torch import Tensor

from tests.support import conv_subjects as convolutions
from tests.support.conv_subjects import (
    BETWEEN,
    CHUNKS,
    EXTRAS,
    OWN_PHASES,
    SCHEDULES,
    TOGETHER,
    TRANSPOSED,
    Problem,
    Subject,
)
from tests.support.gemm_subjects import PARTS, Library

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=PARTS)
def arch(request: pytest.FixtureRequest) -> str:
    if request.param == "sm_90a" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU for sm_90a here")
    return str(request.param)


@pytest.fixture(scope="module")
def library(arch: str, tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder = tmp_path_factory.mktemp("convolutions")
    more = (*BETWEEN, *OWN_PHASES) if arch == "sm_90a" else ()
    return convolutions.library((*SCHEDULES, *EXTRAS, *TRANSPOSED, *more), folder, arch=arch)


def both(*pads: int) -> tuple[tuple[int, int], ...]:
    return tuple((pad, pad) for pad in pads)


def copies(together: int = 0) -> Iterator[Subject]:
    """Each width, side and chunk with a body that only stores."""
    every = (*SCHEDULES, *BETWEEN, *TRANSPOSED, *OWN_PHASES)
    return (s for s in every if s.body == "copy" and s.together == together)


def here(library: Library) -> Iterator[Subject]:
    """Those that the library's architecture has."""
    return (s for s in copies() if s.entry in library.parts)


def check(library: Library, subject: Subject, problem: Problem, image: Tensor, weight: Tensor,
          truth: convolutions.Exact) -> None:  # fmt: skip
    if subject.entry not in library.parts:
        return  # of Hopper only
    in0 = convolutions.operand(subject, problem)
    out, code, outside = convolutions.guarded(library, subject, problem, image, weight, in0)
    assert code == 0, f"{subject.entry}: CUDA error {code}"
    assert not outside, f"{subject.entry} writes outside of its output or workspace"
    found = convolutions.excess(subject, truth, in0, out)
    assert found <= 1, f"{subject.entry}: {found:.3g} of what is allowed for {problem}"


def check_all(library: Library, problem: Problem, image: Tensor, weight: Tensor) -> None:
    """All copying kernels, whatever their chunk."""
    truth = convolutions.exact(problem, image, weight)
    for subject in copies(problem.together):
        check(library, subject, problem, image, weight, truth)


PROBLEMS = (
    Problem(1, 1, 1, (1, 1), (1, 1)),
    Problem(5, 8, 300, (1, 1), (1, 1)),
    Problem(2, 64, 128, (20, 20), (3, 3)),
    Problem(3, 32, 48, (17, 23), (3, 3), pad=both(1, 1)),
    Problem(2, 12, 20, (30, 111), (5, 5), pad=both(2, 2)),
    Problem(2, 100, 130, (14, 14), (3, 3), stride=(2, 2), pad=both(1, 1)),
    Problem(2, 20, 7, (111, 9), (3, 3), (3, 2), ((1, 0), (2, 3)), (2, 1)),
    Problem(1, 64, 96, (7, 7), (7, 7), pad=both(3, 3)),
    Problem(2, 64, 66, (20, 20), (3, 3), pad=both(1, 1), groups=2),
    Problem(3, 24, 24, (15, 15), (3, 3), groups=24),
    Problem(3, 24, 40, (100,), (5,), stride=(2,), pad=both(2)),
    Problem(1, 16, 8, (3000,), (255,), pad=both(127)),
    Problem(2, 16, 33, (9, 10, 11), (3, 3, 3), pad=both(1, 1, 1)),
    Problem(2, 40, 24, (6, 12, 10), (2, 3, 1), (2, 1, 2), ((0, 1), (1, 2), (0, 0)), (1, 2, 1)),
    Problem(40, 48, 64, (13, 13), (3, 3), pad=both(1, 1)),
    Problem(2, 48, 70, (40, 40), (1, 1), stride=(8, 8)),
    Problem(1, 256, 256, (28, 28), (3, 3), pad=both(1, 1)),
    Problem(700, 3, 5, (4, 4), (2, 2)),
    # Rows of its result begin within a sector of 32 bytes.
    Problem(2, 64, 144, (20, 32), (3, 3)),
    # All results are in the padding.
    Problem(1, 42, 2, (1, 2, 4), (1, 3, 5), (3, 1, 1), ((1, 0), (2, 2), (2, 2))),
)


def turned(*sizes: object, **more: object) -> Problem:
    return Problem(*sizes, **more, transposed=True)  # type: ignore[arg-type]


BACKWARDS = (
    turned(1, 8, 5, (1, 1), (1, 1)),
    turned(2, 64, 48, (10, 12), (4, 4), (2, 2), both(1, 1)),
    turned(3, 20, 30, (7, 9), (3, 3), (2, 2)),
    turned(2, 20, 30, (7, 9), (3, 3), (2, 2), both(1, 1), behind=(1, 1)),
    turned(2, 48, 7, (5, 6, 7), (3, 3, 3), (2, 2, 2)),
    turned(1, 32, 96, (4, 9, 13), (3, 3, 3), (2, 2, 2)),
    turned(2, 32, 48, (5, 6, 8), (4, 2, 4), (2, 2, 2), both(1, 0, 1)),
    turned(2, 64, 66, (20, 20), (3, 3), (1, 1), both(1, 1), groups=2),
    turned(2, 33, 12, (20, 11), (5, 5), (3, 3), both(2, 1), (1, 2), groups=3, behind=(0, 1)),
    turned(2, 33, 10, (50,), (8,), (4,), both(2)),
    turned(2, 33, 10, (50,), (5,), (4,), both(1)),
    turned(2, 33, 150, (50,), (3,), (8,)),
    turned(2, 16, 150, (9, 10), (2, 3), (4, 4), both(0, 1), behind=(3, 2)),
    turned(2, 16, 150, (9, 10), (3, 3), (2, 2), both(1, 2), (2, 3)),
    turned(1, 256, 256, (14, 14), (3, 3), (2, 2), both(1, 1), behind=(1, 1)),
    turned(1, 16, 16, (14, 14), (1, 1), (2, 2)),
    turned(1, 16, 24, (6, 5, 7), (4, 4, 4), (4, 4, 4)),
    turned(2, 16, 24, (9, 9), (3, 3), (2, 2), both(3, 4), behind=(1, 0)),
    turned(300, 8, 3, (3, 3), (2, 2), (2, 2)),
)


@pytest.mark.parametrize("problem", BACKWARDS, ids=lambda p: "-".join(map(str, p.numbers())))
def test_transposed_sizes(library: Library, problem: Problem) -> None:
    torch.manual_seed(1)
    check_all(library, problem, problem.image(), problem.weight())


def tail_problems(subject: Subject) -> Iterator[Problem]:
    """What its tail is tried on; transposed, shifted by one pixel, too, and even for vectors."""
    step = subject.together
    ordinary = (
        Problem(2, 20, 7, (12, 12), (3, 3), pad=both(1, 1)),
        Problem(3, 48, 150, (26, 18), (3, 3)),
    )
    shifted = [turned(2, 40, 28, (9, 12), (4, 2 * step), (2, step), both(1, p)) for p in (0, 1)]
    for problem in shifted if step else ordinary:
        if subject.vector == 1 or problem.out_size[1] * problem.out_size[0] % 4 == 0:
            yield problem


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: "-".join(map(str, p.numbers())))
def test_sizes(library: Library, problem: Problem) -> None:
    torch.manual_seed(1)
    check_all(library, problem, problem.image(), problem.weight())


@pytest.mark.parametrize(
    "subject", [*SCHEDULES, *EXTRAS, *BETWEEN, *TRANSPOSED, *OWN_PHASES], ids=lambda s: str(s.entry)
)
def test_tails(library: Library, subject: Subject) -> None:
    torch.manual_seed(2)
    for problem in tail_problems(subject):
        image, weight = problem.image(), problem.weight()
        truth = convolutions.exact(problem, image, weight)
        check(library, subject, problem, image, weight, truth)


CONV = Problem(3, 72, 80, (50, 44), (3, 3), pad=both(1, 1))
BACK = Problem(3, 72, 40, (50, 44), (4, 3), (2, 2), both(1, 1), transposed=True)


HAZARDS = (
    "positive", "spike", "blocks", "huge", "tiny", "border", "rest", "sparse", "one by one",
)  # fmt: skip


def hazards() -> dict[str, Tensor]:
    """Images of all sizes and shapes of numbers."""
    torch.manual_seed(3)
    plain = CONV.image()
    spike, blocks, border, rest = (plain.clone() for _ in range(4))
    spike[1, 5, 20, 20] = 1e6
    blocks[:, :, :20] *= 1e-3
    blocks[:, :, 20:40] *= 1e-6
    border[:, :, 1:] = 0
    rest[0] = 0
    rest[1] *= 1e-40
    rest[2, :, 25:] *= 1e-20
    return {
        "positive": plain.abs(),
        "spike": spike,
        "blocks": blocks,
        "huge": plain * 1e30,
        "tiny": plain * 1e-30,
        "border": border,
        "rest": rest,
        "sparse": plain * (torch.rand_like(plain) < 0.001),
        "one by one": plain * torch.tensor([1.0, 1e-12, 1e12], device="cuda").view(3, 1, 1, 1),
    }


@pytest.mark.parametrize("name", HAZARDS)
def test_images_of_any_size(library: Library, name: str) -> None:
    image, weight = hazards()[name], CONV.weight()
    check_all(library, BACK, image, BACK.weight())
    check_all(library, CONV, image, weight)
    # Not worse than eager, which rounds to the same 11 bits or fewer.
    truth = convolutions.exact(CONV, image, weight).sums
    theirs = CONV.torch(image, weight).double() - truth
    subject = next(s for s in copies() if s.chunk == 64)
    ours = convolutions.guarded(library, subject, CONV, image, weight, image)[0].double() - truth
    assert ours.norm() <= max(1.02 * theirs.norm(), 3.2e-4 * truth.norm())
    assert ours.abs().max() <= max(1.2 * theirs.abs().max(), 6e-4 * truth.abs().max())


def odd_weights() -> Iterator[tuple[Tensor, Tensor]]:
    """Images of CONV, and weights whose rows or channels are of all sizes."""
    torch.manual_seed(4)
    image, weight = CONV.image(), CONV.weight()
    yield image, weight * torch.logspace(-30, 30, len(weight), device="cuda").view(-1, 1, 1, 1)
    channels = torch.ones(CONV.in_channels, device="cuda")
    channels[:40] = 1e-9
    channels = channels.view(1, -1, 1, 1)
    yield image / channels, weight * channels
    weight[::3] = 0
    yield image * 1e25, weight * 1e-25


def test_weights_of_any_size(library: Library) -> None:
    for image, weight in odd_weights():
        check_all(library, CONV, image, weight)


def make_strange(image: Tensor) -> None:
    """Infinities and NaN in two images."""
    for i, value in enumerate((float("inf"), float("-inf"), float("nan"))):
        image[i % 2, i * 7, 3 + i * 11, i * 9] = value


def strange_truth(
    problem: Problem, image: Tensor, weight: Tensor, parts: int = 1
) -> convolutions.Exact:
    """What is exact for such images; the weights get some, too, where nothing is padded."""
    if not any(map(any, problem.pad)):  # an infinity times what is not there has no meaning
        weight[3, 5, 1, 1], weight[9, 7, 0, 2] = float("inf"), float("nan")
    truth = convolutions.exact(problem, image, weight, parts)
    assert int((~truth.sums.isfinite()).sum()) > 300
    # What is not finite is repaired in float32: no bound is derived from infinite weights.
    finite = torch.where(weight.isfinite(), weight, 0.0)
    return replace(truth, allowed=convolutions.exact(problem, image, finite, parts).allowed)


@pytest.mark.parametrize("pad", [0, 1])
def test_infinities_and_nan_are_where_float64_has_them(library: Library, pad: int) -> None:
    torch.manual_seed(5)
    problem = replace(CONV, pad=both(pad, pad))
    image, weight = problem.image(), problem.weight()
    make_strange(image)
    truth = strange_truth(problem, image, weight)
    for subject in copies():
        check(library, subject, problem, image, weight, truth)


@pytest.mark.parametrize("together", TOGETHER)
def test_transposed_infinities_and_nan(library: Library, together: int) -> None:
    torch.manual_seed(5)
    problem = turned(3, 72, 40, (30, 24), (4, 2 * together + 1), (2, together), both(1, 0))
    image, weight = problem.image(), problem.weight()
    make_strange(image)
    truth = convolutions.exact(problem, image, weight)
    assert int((~truth.sums.isfinite()).sum()) > 300
    for subject in copies(together):
        check(library, subject, problem, image, weight, truth)


@pytest.mark.parametrize(
    "problem",
    [
        Problem(1, 16, 16, (90, 90), (3, 3), stride=(1, 9)),
        Problem(1, 16, 16, (300,), (3,), pad=((129, 0),)),
        Problem(1, 16, 16, (600,), (3,), dilation=(128,), pad=both(128)),
        Problem(1, 16, 16, (4, 4, 40), (1, 1, 33), pad=((0, 0), (0, 0), (0, 40))),
        Problem(1, 16, 16, (4, 4, 40), (1, 1, 19)),
        turned(1, 16, 16, (20,), (12,), (9,)),
        turned(1, 16, 16, (200,), (2,), (1,), dilation=(140,)),
        turned(1, 16, 16, (4, 4, 40), (1, 1, 50)),
    ],
    ids=["stride", "pad", "dilation", "far tap", "end", "phases", "back", "deep"],
)
def test_what_the_copy_engine_cannot_do_is_an_error(
    library: Library, arch: str, problem: Problem
) -> None:
    image, weight = problem.image(), problem.weight()
    if arch == "sm_80" and not (problem.transposed and max(problem.steps) > 8):
        check_all(library, problem, image, weight)
        return
    for subject in copies(problem.together):
        code, outside = convolutions.guarded(library, subject, problem, image, weight, image)[1:]
        assert code != 0
        assert not outside


def check_nothing(library: Library, some: Iterable[Subject], dtype: torch.dtype) -> None:
    """No images are no work, and no error."""
    problem = replace(CONV, images=0)
    out = torch.empty(problem.result(), dtype=dtype, device="cuda")
    for subject in some:
        empty = convolutions.Call(problem, out, problem.weight().to(dtype), out, out, out)
        assert empty.launch(library, subject) == 0


@pytest.fixture(scope="module")
def back(tmp_path_factory: pytest.TempPathFactory) -> Library:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU for sm_90a here")
    return convolutions.library(convolutions.BACK, tmp_path_factory.mktemp("back"))


@pytest.mark.parametrize("subject", convolutions.BACK, ids=lambda s: str(s.entry))
def test_transposed_ones_of_stride_1(back: Library, subject: Subject) -> None:
    """Their tiles leave as those of any convolution do."""
    torch.manual_seed(9)
    for problem in (
        turned(2, 64, 66, (20, 20), (3, 3), (1, 1), both(1, 1), groups=2),
        turned(3, 72, 80, (50, 44), (4, 3), (1, 1), both(1, 2), (2, 1)),
        turned(2, 40, 264, (7, 9, 11), (3, 2, 3), (1, 1, 1), both(0, 1, 1)),
        turned(5, 8, 5, (40,), (5,), (1,), both(2)),
    ):
        if subject.vector > 1 and prod(problem.out_size) % 4:
            continue
        image, weight = (x.to(subject.dtype) for x in (problem.image(), problem.weight()))
        image[0, 1].view(-1)[7], image[-1, 2].view(-1)[0] = float("inf"), float("nan")
        truth = convolutions.exact(problem, image, weight, subject.parts)
        check(back, subject, problem, image, weight, truth)


def test_nothing_to_do(library: Library) -> None:
    check_nothing(library, here(library), torch.float32)


def test_the_same_bits_every_time_and_inside_a_cuda_graph(library: Library) -> None:
    torch.manual_seed(6)
    image, weight = CONV.image(), CONV.weight()
    for subject in here(library):
        first = convolutions.guarded(library, subject, CONV, image, weight, image)[0].clone()
        again = convolutions.guarded(library, subject, CONV, image, weight, image)[0]
        assert torch.equal(again, first), subject.entry
        out = torch.zeros_like(first)
        need = CONV.workspace_bytes(subject.chunk)
        call = convolutions.Call(
            CONV, image, weight, image, out, torch.empty(need, dtype=torch.uint8, device="cuda")
        )
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            code = call.launch(library, subject)
        assert code == 0
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, first), subject.entry


def test_many_launches_one_after_the_other(library: Library) -> None:
    """A kernel that starts early must not read what the one before it still writes."""
    torch.manual_seed(7)
    subject = Subject("copy", 128, False, 1, 64)
    images, weight = [CONV.image() * 10.0**k for k in range(-3, 3)], CONV.weight()
    alone = [
        convolutions.guarded(library, subject, CONV, image, weight, image)[0] for image in images
    ]
    space = torch.empty(CONV.workspace_bytes(64), dtype=torch.uint8, device="cuda")
    outs = [torch.empty(CONV.result(), device="cuda") for _ in range(60)]
    for number, out in enumerate(outs):
        image = images[number % len(images)]
        call = convolutions.Call(CONV, image, weight, image, out, space)
        assert call.launch(library, subject) == 0
    for number, out in enumerate(outs):
        assert torch.equal(out, alone[number % len(images)])


def test_every_chunk_is_used() -> None:
    assert {p.chunk() for p in PROBLEMS} == set(CHUNKS)
