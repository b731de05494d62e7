"""Convolution kernels of full float32: as precise as PyTorch's own without TF32.

All need a GPU of compute capability 9.0.
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
from fusewright.kernels.gemm.match import K_BLOCK
from tests.gpu.test_conv import (
    BACK,
    BACKWARDS,
    CONV,
    HAZARDS,
    PROBLEMS,
    both,
    check,
    check_nothing,
    hazards,
    make_strange,
    odd_weights,
    strange_truth,
    tail_problems,
    turned,
)
from tests.kernels.conv.test_conv import LAYERS, Tailed
from tests.kernels.conv.test_full_float32 import UNROUNDED
from tests.support import conv_subjects as convolutions
from tests.support.conv_subjects import FULL, TOGETHER, Problem, Subject
from tests.support.gemm_subjects import Library

pytestmark = pytest.mark.gpu
LEAST = 2e-7  # of a result: what sums lose of which PyTorch loses next to nothing


@pytest.fixture(autouse=True, scope="module")
def no_tf32() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU for sm_90a here")
    return convolutions.library(FULL, tmp_path_factory.mktemp("full"))


def copies(together: int = 0) -> Iterator[Subject]:
    """Each width, side and chunk with a body that only stores."""
    return (s for s in FULL if s.body == "copy" and s.together == together)


def sizes_of(images: Tensor) -> Tensor:
    """The norm of each image, whatever the size of its numbers."""
    most = images.abs().flatten(1).amax(1).clamp(min=1e-300)
    return (images.flatten(1) / most[:, None]).norm(dim=1) * most


def check_all(library: Library, problem: Problem, image: Tensor, weight: Tensor) -> None:
    """All copying kernels are within their bound, and no image is less precise than PyTorch's."""
    truth = convolutions.exact(problem, image, weight, parts=2)
    theirs = problem.torch(image, weight).double() - truth.sums
    shortest = problem.phases.taps if problem.transposed else problem.kernel
    depth = problem.in_channels // problem.groups
    for taps in shortest:
        depth *= taps
    for subject in copies(problem.together):
        check(library, subject, problem, image, weight, truth)
        if depth >= K_BLOCK and truth.sums.isfinite().all() and theirs.isfinite().all():
            found = convolutions.guarded(library, subject, problem, image, weight, image)[0]
            ours = sizes_of(found.double() - truth.sums)
            limit = torch.maximum(1.05 * sizes_of(theirs), LEAST * sizes_of(truth.sums))
            assert bool((ours <= limit + 1e-44).all()), (subject.entry, ours / sizes_of(theirs))


@pytest.mark.parametrize(
    "problem", [*PROBLEMS, *BACKWARDS], ids=lambda p: "-".join(map(str, p.numbers()))
)
def test_sizes(library: Library, problem: Problem) -> None:
    torch.manual_seed(1)
    check_all(library, problem, problem.image(), problem.weight())


@pytest.mark.parametrize("subject", FULL, ids=lambda s: str(s.entry))
def test_tails(library: Library, subject: Subject) -> None:
    torch.manual_seed(2)
    for problem in tail_problems(subject):
        image, weight = problem.image(), problem.weight()
        truth = convolutions.exact(problem, image, weight, parts=2)
        check(library, subject, problem, image, weight, truth)


@pytest.mark.parametrize("name", HAZARDS)
@pytest.mark.parametrize("problem", [CONV, BACK], ids=["ordinary", "transposed"])
def test_images_of_any_size(library: Library, problem: Problem, name: str) -> None:
    check_all(library, problem, hazards()[name], problem.weight())


MORE = {
    # Pixels far below the largest one: plain sums take over.
    "gap": lambda x: x * torch.where(torch.arange(x.shape[-1], device="cuda") < 9, 1e-12, 1.0),
    "fading": lambda x: x * torch.logspace(0, -20, x.shape[-1], device="cuda"),
    "channels": lambda x: x * torch.logspace(0, -12, x.shape[1], device="cuda").view(-1, 1, 1),
    "subnormal": lambda x: x * 1e-41,
    "spikes": lambda x: torch.where(torch.rand_like(x) < 1e-3, x * 1e7, x),
    "small numbers": lambda x: (x * 4).round(),
}


@pytest.mark.parametrize("name", MORE)
@pytest.mark.parametrize("problem", [CONV, BACK], ids=["ordinary", "transposed"])
def test_more_images(library: Library, problem: Problem, name: str) -> None:
    torch.manual_seed(3)
    weight = problem.weight()
    if name == "small numbers":  # every product and every sum is exact
        weight = (weight * 100).round().clamp(-8, 8)
    image = MORE[name](problem.image())
    check_all(library, problem, image, weight)
    if name == "small numbers":
        subject = next(copies(problem.together))
        found = convolutions.guarded(library, subject, problem, image, weight, image)[0]
        assert torch.equal(found.double(), problem.torch(image.double(), weight.double()))


def test_weights_of_any_size(library: Library) -> None:
    for image, weight in odd_weights():
        check_all(library, CONV, image, weight)


@pytest.mark.parametrize("pad", [0, 1])
def test_infinities_and_nan_are_where_float64_has_them(library: Library, pad: int) -> None:
    torch.manual_seed(5)
    problem = replace(CONV, pad=both(pad, pad))
    image, weight = problem.image(), problem.weight()
    make_strange(image)
    truth = strange_truth(problem, image, weight, parts=2)
    for subject in copies():
        check(library, subject, problem, image, weight, truth)


@pytest.mark.parametrize("together", TOGETHER)
def test_transposed_infinities_and_nan(library: Library, together: int) -> None:
    torch.manual_seed(5)
    problem = turned(3, 72, 40, (30, 24), (4, 2 * together + 1), (2, together), both(1, 0))
    image, weight = problem.image(), problem.weight()
    make_strange(image)
    truth = convolutions.exact(problem, image, weight, parts=2)
    for subject in copies(together):
        check(library, subject, problem, image, weight, truth)


def test_nothing_to_do(library: Library) -> None:
    check_nothing(library, copies(), torch.float32)


def test_the_same_bits_every_time(library: Library) -> None:
    """Where images follow each other, too: no kernel reads what the one before still writes."""
    torch.manual_seed(7)
    images, weight = [CONV.image() * 10.0**k for k in range(-3, 3)], CONV.weight()
    for subject in copies():
        alone = [convolutions.guarded(library, subject, CONV, x, weight, x)[0] for x in images]
        need = CONV.workspace_bytes(subject.chunk, subject.parts)
        space = torch.empty(need, dtype=torch.uint8, device="cuda")
        outs = [torch.empty(CONV.result(), device="cuda") for _ in range(30)]
        for number, out in enumerate(outs):
            x = images[number % len(images)]
            call = convolutions.Call(CONV, x, weight, x, out, space)
            assert call.launch(library, subject) == 0
        for number, out in enumerate(outs):
            assert torch.equal(out, alone[number % len(images)]), subject.entry


EMITTED = {
    **{
        name: LAYERS[name]
        for name in ("padded, strided", "one pixel", "3 dimensions", "transposed, odd")
    },
    "one pixel, strided": UNROUNDED["one pixel, strided"],
    "groups": UNROUNDED["groups"],
}


@pytest.mark.parametrize("name", EMITTED)
@torch.no_grad()
def test_whole_models_are_as_good_as_eager(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    every = dict.fromkeys(match.LEAST_FLOPS, 0)
    monkeypatch.setattr(match, "LEAST_FLOPS", every)
    torch.manual_seed(8)
    layer, shape = EMITTED[name]
    module = Tailed(copy.deepcopy(layer))
    new = fusewright.optimize(module, torch.randn(shape), options={"target": "cuda"}).cuda()
    module = module.cuda()
    exact = copy.deepcopy(module).double()
    for batch in (shape[0], 7, 2, 1, 0):
        x = torch.randn(batch, *shape[1:], device="cuda")
        truth, theirs, ours = exact(x.double()), module(x).double(), new(x).double()
        assert ours.shape == truth.shape
        limit = max(float((theirs - truth).norm()) * 1.05, LEAST * float(truth.norm()))
        assert (ours - truth).norm() <= limit
    x = torch.randn(shape, device="cuda")
    x.flatten()[:: x.numel() // 3 - 5] = float("inf")
    x.flatten()[x.numel() // 5] = float("nan")
    truth, ours = exact(x.double()), new(x)
    assert torch.equal(ours.isfinite(), truth.isfinite())
    assert torch.equal(ours.isnan(), truth.isnan())
