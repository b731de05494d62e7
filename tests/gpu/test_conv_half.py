"""Convolution kernels of 16 bits: every result is the exact convolution, rounded once more.

All need a GPU; the kernels of sm_90a need compute capability 9.0.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import fusewright
from fusewright.kernels.conv import match
from tests.gpu.test_conv import (
    BACK,
    BACKWARDS,
    CONV,
    PROBLEMS,
    both,
    check,
    check_nothing,
    make_strange,
    strange_truth,
    tail_problems,
    turned,
)
from tests.kernels.conv.test_conv import LAYERS, Tailed
from tests.kernels.conv.test_conv_half import PACKED, POINTWISE
from tests.support import conv_subjects as convolutions
from tests.support.conv_subjects import HALF_BETWEEN, HALVES, KINDS, TOGETHER, Problem, Subject
from tests.support.gemm_subjects import PARTS, Library

pytestmark = pytest.mark.gpu
both_types = pytest.mark.parametrize("dtype", KINDS, ids=str)


@pytest.fixture(scope="module", params=PARTS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Library:
    if request.param == "sm_90a" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU for sm_90a here")
    folder = tmp_path_factory.mktemp("halves")
    every = (*HALVES, *HALF_BETWEEN) if request.param == "sm_90a" else HALVES
    return convolutions.library(every, folder, arch=request.param)


def copies(dtype: torch.dtype, together: int = 0) -> Iterator[Subject]:
    """Each width, side and chunk with a body that only stores."""
    every = (*HALVES, *HALF_BETWEEN)
    some = (s for s in every if s.dtype is dtype and s.together == together)
    return (s for s in some if s.body == "copy")


def operands(problem: Problem, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return problem.image().to(dtype), problem.weight().to(dtype)


def check_all(library: Library, problem: Problem, image: Tensor, weight: Tensor) -> None:
    """All copying kernels, whatever their chunk; and none is less accurate than eager."""
    truth = convolutions.exact(problem, image, weight)
    theirs = (problem.torch(image, weight).double() - truth.sums).norm()
    for subject in copies(image.dtype, problem.together):
        check(library, subject, problem, image, weight, truth)
        if subject.entry not in library.parts:
            continue  # of Hopper only
        if truth.sums.numel() >= 4096 and truth.sums.isfinite().all() and theirs.isfinite():
            found = convolutions.guarded(library, subject, problem, image, weight, image)[0]
            ours = (found.double() - truth.sums).norm()
            assert ours <= theirs * 1.01 + 1e-12, subject.entry


@both_types
@pytest.mark.parametrize(
    "problem", [*PROBLEMS, *BACKWARDS], ids=lambda p: "-".join(map(str, p.numbers()))
)
def test_sizes(library: Library, problem: Problem, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    check_all(library, problem, *operands(problem, dtype))


@pytest.mark.parametrize("subject", [*HALVES, *HALF_BETWEEN], ids=lambda s: str(s.entry))
def test_tails(library: Library, subject: Subject) -> None:
    torch.manual_seed(2)
    for problem in tail_problems(subject):
        image, weight = operands(problem, subject.dtype)
        truth = convolutions.exact(problem, image, weight)
        check(library, subject, problem, image, weight, truth)


HAZARDS = ("positive", "large", "tiny", "spike", "sparse", "rest")


@both_types
@pytest.mark.parametrize("name", HAZARDS)
@pytest.mark.parametrize("problem", [CONV, BACK], ids=["ordinary", "transposed"])
def test_images_of_any_size(
    library: Library, problem: Problem, name: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(3)
    large, tiny = {torch.float16: (3e4, 1e-6), torch.bfloat16: (1e37, 1e-30)}[dtype]
    image, weight = operands(problem, dtype)
    if name == "positive":
        image.abs_()
    elif name == "large":  # some results are infinite
        image = (image * large).clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max)
        weight *= 4
    elif name == "tiny":
        image *= tiny
    elif name == "spike":
        image[1, 5, 20, 20] = large
    elif name == "sparse":
        image *= torch.rand_like(image) < 0.001
    else:
        image[0], image[2, :, 25:] = 0, image[2, :, 25:] * tiny
    check_all(library, problem, image, weight)


@both_types
@pytest.mark.parametrize("pad", [0, 1])
def test_infinities_and_nan_are_where_float64_has_them(
    library: Library, pad: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(5)
    problem = replace(CONV, pad=both(pad, pad))
    image, weight = operands(problem, dtype)
    make_strange(image)
    truth = strange_truth(problem, image, weight)
    for subject in copies(dtype):
        check(library, subject, problem, image, weight, truth)


@both_types
@pytest.mark.parametrize("together", TOGETHER)
@pytest.mark.parametrize("more", [0, 1], ids=["even", "odd"])
def test_transposed_infinities_and_nan(
    library: Library, together: int, more: int, dtype: torch.dtype
) -> None:
    """A phase multiplies taps that it does not have by zero, and nobody shall see that."""
    torch.manual_seed(5)
    problem = turned(3, 72, 40, (30, 24), (4, 2 * together + more), (2, together), both(1, 0))
    image, weight = operands(problem, dtype)
    make_strange(image)
    truth = convolutions.exact(problem, image, weight)
    assert int((~truth.sums.isfinite()).sum()) > 300
    for subject in copies(dtype, together):
        check(library, subject, problem, image, weight, truth)


@both_types
def test_nothing_to_do(library: Library, dtype: torch.dtype) -> None:
    check_nothing(library, (s for s in copies(dtype) if s.entry in library.parts), dtype)


@both_types
def test_images_that_start_anywhere(library: Library, dtype: torch.dtype) -> None:
    """A view need not start at 8 bytes, and then single elements are read."""
    torch.manual_seed(6)
    image, weight = operands(CONV, dtype)
    room = torch.empty(image.numel() + 1, dtype=dtype, device="cuda")
    moved = room[1:].view(image.shape).copy_(image)
    subject = next(s for s in copies(dtype) if s.chunk == 64)
    found = [convolutions.guarded(library, subject, CONV, x, weight, x)[0] for x in (image, moved)]
    assert torch.equal(*found)


@both_types
def test_many_launches_one_after_the_other(library: Library, dtype: torch.dtype) -> None:
    """A kernel that starts early must not read what the one before it still writes; not where an
    infinity of another image is remembered, either."""
    torch.manual_seed(7)
    for problem in (CONV, BACK):
        subject = next(s for s in copies(dtype, problem.together) if s.chunk == 64)
        weight = problem.weight().to(dtype)
        images = [problem.image().to(dtype) for _ in range(6)]
        images[2][0, 0, 9, 9] = float("inf")
        alone = [convolutions.guarded(library, subject, problem, x, weight, x)[0] for x in images]
        space = torch.empty(problem.workspace_bytes(64), dtype=torch.uint8, device="cuda")
        outs = [torch.empty(problem.result(), dtype=dtype, device="cuda") for _ in range(60)]
        for number, out in enumerate(outs):
            x = images[number % len(images)]
            call = convolutions.Call(problem, x, weight, x, out, space)
            assert call.launch(library, subject) == 0
        for number, out in enumerate(outs):
            torch.testing.assert_close(
                out, alone[number % len(images)], rtol=0, atol=0, equal_nan=True
            )


EMITTED = {
    **{name: LAYERS[name] for name in ("padded, strided", "groups", "transposed, odd")},
    "1 dimension": POINTWISE["1 dimension"],
    "one pixel": POINTWISE["2 dimensions"],
    "odd pixels": PACKED["odd pixels"],
}


@both_types
@pytest.mark.parametrize("name", EMITTED)
@torch.no_grad()
def test_whole_models_are_as_good_as_eager(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = dict.fromkeys(match.LEAST_FLOPS, 0)
    monkeypatch.setattr(match, "LEAST_FLOPS", every)
    torch.manual_seed(8)
    layer, shape = EMITTED[name]
    module = Tailed(copy.deepcopy(layer)).to(dtype)
    new = fusewright.optimize(
        module, torch.randn(shape).to(dtype), options={"target": "cuda"}
    ).cuda()
    module = module.cuda()
    exact = copy.deepcopy(module).double()
    for batch in (shape[0], 7, 2, 1, 0):
        x = torch.randn(batch, *shape[1:], device="cuda").to(dtype)
        truth, theirs, ours = exact(x.double()), module(x).double(), new(x).double()
        assert ours.shape == truth.shape
        assert (ours - truth).norm() <= 1.01 * (theirs - truth).norm() + 1e-12
    x = torch.randn(shape, device="cuda").to(dtype)
    x.flatten()[:: x.numel() // 3 - 5] = float("inf")
    x.flatten()[x.numel() // 5] = float("nan")
    truth, ours = exact(x.double()), new(x)
    assert torch.equal(ours.isfinite(), truth.isfinite())
    assert torch.equal(ours.isnan(), truth.isnan())
