"""Kernels for channels last of several groups, in full float32, and transposed; whole models.

All need a GPU of compute capability 9.0.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

import fusewright
from fusewright.kernels.conv import match
from tests.gpu.test_conv import (
    BACK,
    BACKWARDS,
    CONV,
    HAZARDS,
    PROBLEMS,
    both,
    check,
    hazards,
    make_strange,
    strange_truth,
)
from tests.gpu.test_conv_channels_last import MORE, check_all
from tests.kernels.conv.test_channels_last import laid_out
from tests.kernels.conv.test_conv import Tailed
from tests.support import conv_subjects as convolutions
from tests.support.conv_subjects import LAST_TRANSPOSED, MORE_LAST, Problem, Subject
from tests.support.gemm_subjects import Library

pytestmark = pytest.mark.gpu
ALL = (*MORE_LAST, *LAST_TRANSPOSED)
Kind = tuple[torch.dtype, int, bool, int]


def kind_of(subject: Subject) -> Kind:
    return subject.dtype, subject.parts, subject.grouped, subject.together


CLASSES = tuple(dict.fromkeys(map(kind_of, ALL)))
every_class = pytest.mark.parametrize("kind", CLASSES, ids=str)
GROUPS = (
    *(p for p in PROBLEMS if p.groups > 1),
    Problem(5, 128, 128, (7, 7), (3, 3), pad=both(1, 1), groups=4),  # tiles of several images
    Problem(3, 66, 150, (20, 18), (3, 3), (1, 2), both(0, 1), (2, 1), groups=3),
    Problem(2, 96, 80, (9, 7, 6), (3, 3, 3), (2, 1, 2), both(1, 0, 1), groups=2),
    Problem(2, 128, 520, (12, 12), (3, 3), groups=2),
    Problem(2, 128, 64, (20, 20), (1, 1), groups=2),
)
SINGLE = (*(p for p in PROBLEMS if p.groups == 1), *MORE)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU for sm_90a here")
    return convolutions.library(ALL, tmp_path_factory.mktemp("groups"))


def some(kind: Kind) -> Iterator[Subject]:
    """The kernels of a class; every other one has a tail."""
    return (s for s in ALL if kind_of(s) == kind and s.body in ("copy", "bias_relu"))


def takes(kind: Kind, problem: Problem) -> bool:
    """Of one group, or of any; and, of 16 bits, each result sees some pixel."""
    if bool(kind[3]) is not problem.transposed or (problem.groups > 1 and not any(kind[2:])):
        return False
    every = zip(problem.kernel, problem.steps, problem.spread, strict=True)
    seen = all(len({t * d % s for t in range(k)}) == s for k, s, d in every)
    return kind[0] is torch.float32 or not problem.transposed or seen


def name(problem: Problem) -> str:
    return "-".join(map(str, problem.numbers()))


@every_class
@pytest.mark.parametrize("problem", [*GROUPS, *SINGLE, *BACKWARDS], ids=name)
def test_sizes(library: Library, problem: Problem, kind: Kind) -> None:
    if not takes(kind, problem):
        pytest.skip("another kernel's")
    torch.manual_seed(1)
    image, weight = problem.image().to(kind[0]), problem.weight().to(kind[0])
    check_all(library, some(kind), problem, image, weight, kind[1])


@pytest.mark.parametrize("subject", ALL, ids=lambda s: str(s.entry))
def test_tails(library: Library, subject: Subject) -> None:
    torch.manual_seed(2)
    groups, back = 2 if subject.grouped else 1, subject.together > 0
    steps = (2, 2) if back else (1, 1)
    for problem in (
        Problem(2, 24, 40, (12, 11), (3, 3), steps, both(1, 1), groups=groups, transposed=back),
        Problem(3, 128, 304, (26, 18), (3, 3), steps, groups=groups, transposed=back),
    ):
        image, weight = problem.image().to(subject.dtype), problem.weight().to(subject.dtype)
        truth = convolutions.exact(problem, image, weight, subject.parts)
        check(library, subject, problem, image, weight, truth)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("together", [0, 1])
@pytest.mark.parametrize("hazard", HAZARDS)
def test_images_of_any_size(library: Library, hazard: str, together: int, parts: int) -> None:
    problem, kind = BACK if together else replace(CONV, groups=2), (torch.float32, parts)
    image = hazards()[hazard]
    subjects = some((*kind, not together, together))
    check_all(library, subjects, problem, image, problem.weight(), parts)


@every_class
def test_infinities_and_nan_are_where_float64_has_them(library: Library, kind: Kind) -> None:
    torch.manual_seed(5)
    problem = BACK if kind[3] else replace(CONV, groups=2 if kind[2] else 1)
    image, weight = problem.image().to(kind[0]), problem.weight().to(kind[0])
    make_strange(image)
    truth = strange_truth(problem, image, weight)
    for subject in some(kind):
        if subject.vector == 1 or problem.out_channels // problem.groups % 4 == 0:
            check(library, subject, problem, image, weight, truth)


def test_vectors_across_two_groups_are_an_error(library: Library) -> None:
    problem = Problem(2, 64, 60, (20, 20), (3, 3), groups=2)
    for dtype in (torch.float32, torch.bfloat16):
        image, weight = problem.image().to(dtype), problem.weight().to(dtype)
        for subject in some((dtype, 1, True, 0)):
            in0 = convolutions.operand(subject, problem)
            _, code, outside = convolutions.guarded(library, subject, problem, image, weight, in0)
            assert (code != 0) is (subject.vector == 4)
            assert not outside


# name -> the layer, the input's sizes
MODELS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "groups": (nn.Conv2d(128, 256, 3, padding=1, groups=4), (8, 128, 36, 36)),
    "odd groups": (nn.Conv2d(66, 150, 3, stride=2, groups=3), (8, 66, 36, 36)),
    "one group": (nn.Conv2d(61, 127, 3, padding=1), (8, 61, 36, 36)),
    "three dimensions": (nn.Conv3d(64, 64, 3, groups=2), (4, 64, 8, 20, 20)),
    "one pixel": (nn.Conv2d(256, 512, 1, groups=2), (8, 256, 20, 18)),
    "transposed": (nn.ConvTranspose2d(96, 64, 4, stride=2, padding=1), (8, 96, 36, 36)),
    "odd phases": (nn.ConvTranspose2d(66, 45, 3, 2, 1, 1, groups=3), (8, 66, 20, 20)),
    "volumes": (nn.ConvTranspose3d(48, 40, 3, stride=2), (4, 48, 8, 12, 12)),
    "no taps": (nn.ConvTranspose2d(96, 64, 1, stride=2), (8, 96, 36, 36)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("model", MODELS)
@torch.no_grad()
def test_whole_models_are_as_good_as_eager(
    model: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = dict.fromkeys(match.LEAST_FLOPS, 0)
    monkeypatch.setattr(match, "LEAST_FLOPS", every)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(8)
    layer, x = laid_out(copy.deepcopy(MODELS[model][0]), MODELS[model][1], True)
    module, x = Tailed(layer).to(dtype).cuda(), x.to(dtype).cuda()
    new = fusewright.optimize(module, x, options={"target": "cuda"}).cuda()
    exact = copy.deepcopy(module).double()
    strange = x.clone()
    strange[0, 3].view(-1)[5], strange[-1, 9].view(-1)[0] = float("inf"), float("nan")
    for given in (x, x[:3] * 3, x[:1], x[:0]):
        truth, theirs, ours = exact(given.double()), module(given), new(given)
        assert ours.stride() == theirs.stride()
        error, allowed = (ours.double() - truth).norm(), (theirs.double() - truth).norm()
        assert error <= (1.1 if dtype is torch.float32 else 1.01) * allowed + 1e-12
    theirs, ours = module(strange), new(strange)
    assert torch.equal(ours.isfinite(), theirs.isfinite())
