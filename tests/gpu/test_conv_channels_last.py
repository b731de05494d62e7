"""Convolution kernels for channels last: the exact convolution, of every type; whole models.

All need a GPU of compute capability 9.0.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import fusewright
from fusewright.kernels.conv import match
from tests.gpu.test_conv import (
    CONV,
    HAZARDS,
    PROBLEMS,
    both,
    check,
    check_nothing,
    hazards,
    make_strange,
    strange_truth,
)
from tests.kernels.conv.test_channels_last import LAYERS, Swapped, Tail, laid_out
from tests.kernels.conv.test_conv import Tailed
from tests.support import conv_subjects as convolutions
from tests.support.conv_subjects import LAST, Problem, Subject
from tests.support.gemm_subjects import Library

pytestmark = pytest.mark.gpu
TYPES = (torch.float32, torch.float16, torch.bfloat16)
every_type = pytest.mark.parametrize("dtype", TYPES, ids=str)
MORE = (
    Problem(5, 64, 128, (7, 7), (3, 3), pad=both(1, 1)),  # tiles of several images
    Problem(33, 32, 72, (5, 3), (2, 2)),
    Problem(3, 16, 24, (5, 9, 7), (3, 2, 3), (1, 2, 1), both(1, 0, 1)),
    Problem(2, 24, 40, (30, 30), (3, 3)),
    Problem(2, 128, 264, (24, 24), (3, 3), (2, 2), both(1, 1)),
)
ALL = (*(p for p in PROBLEMS if p.groups == 1), *MORE)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU for sm_90a here")
    return convolutions.library(LAST, tmp_path_factory.mktemp("last"))


def some(dtype: torch.dtype) -> Iterator[Subject]:
    """Each width, side and chunk; every other one has a tail."""
    return (s for s in LAST if s.dtype is dtype and s.body in ("copy", "bias_relu"))


def fits(subject: Subject, problem: Problem) -> bool:
    return subject.vector == 1 or problem.out_channels // problem.groups % 4 == 0


def check_all(
    library: Library,
    subjects: Iterable[Subject],
    problem: Problem,
    image: Tensor,
    weight: Tensor,
    parts: int = 1,
) -> None:
    """All kernels of a class, whatever their chunk."""
    truth = convolutions.exact(problem, image, weight, parts)
    for subject in subjects:
        if fits(subject, problem):
            check(library, subject, problem, image, weight, truth)


def operands(problem: Problem, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return problem.image().to(dtype), problem.weight().to(dtype)


@every_type
@pytest.mark.parametrize("problem", ALL, ids=lambda p: "-".join(map(str, p.numbers())))
def test_sizes(library: Library, problem: Problem, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    check_all(library, some(dtype), problem, *operands(problem, dtype))


@pytest.mark.parametrize("subject", LAST, ids=lambda s: str(s.entry))
def test_tails(library: Library, subject: Subject) -> None:
    torch.manual_seed(2)
    for problem in (
        Problem(2, 20, 28, (12, 11), (3, 3), pad=both(1, 1)),
        Problem(3, 64, 152, (26, 18), (3, 3)),
        Problem(3, 48, 151, (13, 18), (3, 3)),
    ):
        if fits(subject, problem):
            image, weight = operands(problem, subject.dtype)
            truth = convolutions.exact(problem, image, weight)
            check(library, subject, problem, image, weight, truth)


@pytest.mark.parametrize("name", HAZARDS)
def test_images_of_any_size(library: Library, name: str) -> None:
    image, weight = hazards()[name], CONV.weight()
    check_all(library, some(torch.float32), CONV, image, weight)
    truth = convolutions.exact(CONV, image, weight).sums
    theirs = CONV.torch(image, weight).double() - truth
    subject = next(s for s in some(torch.float32) if s.body == "copy")
    ours = convolutions.guarded(library, subject, CONV, image, weight, image)[0].double() - truth
    assert ours.norm() <= max(1.02 * theirs.norm(), 3.2e-4 * truth.norm())


def test_weights_of_any_size(library: Library) -> None:
    torch.manual_seed(4)
    image, weight = CONV.image(), CONV.weight()
    rows = torch.logspace(-30, 30, CONV.out_channels, device="cuda").view(-1, 1, 1, 1)
    check_all(library, some(torch.float32), CONV, image, weight * rows)
    weight[::3] = 0
    check_all(library, some(torch.float32), CONV, image * 1e25, weight * 1e-25)


@every_type
@pytest.mark.parametrize("channels", [72, 64])
@pytest.mark.parametrize("pad", [0, 1])
def test_infinities_and_nan_are_where_float64_has_them(
    library: Library, pad: int, channels: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(5)
    problem = replace(CONV, in_channels=channels, pad=both(pad, pad))
    image, weight = operands(problem, dtype)
    make_strange(image)
    truth = strange_truth(problem, image, weight)
    for subject in some(dtype):
        check(library, subject, problem, image, weight, truth)


@every_type
def test_nothing_to_do(library: Library, dtype: torch.dtype) -> None:
    check_nothing(library, some(dtype), dtype)


@every_type
def test_many_launches_one_after_the_other(library: Library, dtype: torch.dtype) -> None:
    """A kernel that starts early must not read what the one before it still writes: here, each
    result is the next one's image."""
    torch.manual_seed(7)
    problem = Problem(4, 64, 64, (20, 20), (3, 3), pad=both(1, 1))
    space = torch.empty(problem.workspace_bytes(64), dtype=torch.uint8, device="cuda")
    bias = torch.randn(64, device="cuda").to(dtype)
    for subject in (s for s in some(dtype) if s.chunk == 64):
        first, weight = (convolutions.last(x) for x in operands(problem, dtype))
        weight = weight if subject.last == 2 else weight.contiguous()
        found = []
        for waits in (True, False):
            images = [first, *(torch.empty_like(first) for _ in range(30))]
            for image, out in pairwise(images):
                call = convolutions.Call(problem, image, weight, bias, out, space)
                assert call.launch(library, subject) == 0
                if waits:
                    torch.cuda.synchronize()
            found.append(images[-1])
        assert found[0].isfinite().all()
        assert torch.equal(*found), subject.entry


MODELS: dict[str, tuple[nn.Module, tuple[int, ...], bool]] = {
    **{name: (Tailed(layer), shape, last) for name, (layer, shape, last) in LAYERS.items()},
    "batch norm": (Tail(nn.Conv2d(64, 64, 3, padding=1, bias=False), 64), (8, 64, 36, 36), True),
    "one pixel": (Tailed(nn.Conv2d(256, 512, 1)), (8, 256, 20, 18), True),
    "small images": (Tailed(nn.Conv2d(128, 256, 3, padding=1)), (32, 128, 7, 7), True),
}


@every_type
@pytest.mark.parametrize("name", [*MODELS, "views"])
@torch.no_grad()
def test_whole_models_are_as_good_as_eager(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = dict.fromkeys(match.LEAST_FLOPS, 0)
    monkeypatch.setattr(match, "LEAST_FLOPS", every)
    torch.manual_seed(8)
    if name == "views":
        module, x = Swapped(), torch.randn(8, 36, 36, 64)
    else:
        module, x = laid_out(*copy.deepcopy(MODELS[name]))
    module, x = module.to(dtype).cuda(), x.to(dtype).cuda()
    new = fusewright.optimize(module, x, options={"target": "cuda"}).cuda()
    exact = copy.deepcopy(module).double()
    strange = x.clone()
    strange[0, 3, 5 % x.shape[2], 6], strange[-1, 9, 0, 2] = float("inf"), float("nan")
    for given in (x, x[:7] * 3, x[:2], x[:1], x[:0]):
        truth, theirs, ours = exact(given.double()), module(given), new(given)
        assert ours.stride() == theirs.stride()
        error, allowed = (ours.double() - truth).norm(), (theirs.double() - truth).norm()
        assert error <= (1.1 if dtype is torch.float32 else 1.01) * allowed + 1e-12
    theirs, ours = module(strange), new(strange)
    assert torch.equal(ours.isfinite(), theirs.isfinite())
