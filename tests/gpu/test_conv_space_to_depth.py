"""Kernels of convolutions of cells on a GPU: as good as what PyTorch computes.

All need a GPU of compute capability 9.0; what is packed is tested without one, too.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fusewright
from fusewright.kernels.conv import match
from tests.gpu.test_conv import check
from tests.gpu.test_conv_full_float32 import LEAST
from tests.kernels.conv.test_conv import Tailed
from tests.kernels.conv.test_space_to_depth import VALUES
from tests.support import conv_subjects as convolutions
from tests.support.conv_subjects import CELLS, Subject
from tests.support.gemm_subjects import Library

pytestmark = pytest.mark.gpu
PROBLEMS = tuple(problem for _, problem in VALUES)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU for sm_90a here")
    return convolutions.library(CELLS, tmp_path_factory.mktemp("cells"))


@pytest.mark.parametrize("kind", ["plain", "blocks", "huge", "infinities", "at the edge"])
@pytest.mark.parametrize("subject", CELLS, ids=lambda s: str(s.entry))
def test_values(library: Library, subject: Subject, kind: str) -> None:
    torch.manual_seed(1)
    for problem in PROBLEMS:
        if subject.vector > 1 and problem.out_size[-1] * problem.out_size[0] % 4:
            continue
        image, weight = (x.to(subject.dtype) for x in (problem.image(), problem.weight()))
        if kind == "blocks":
            image[:, :, :3] *= 1e-6
        elif kind == "huge":
            image, weight = image * 1e30, weight * 1e-30
        elif kind == "infinities":
            image.view(-1)[7::190] = float("nan")
            image.view(-1)[20::170] = float("-inf")
        elif kind == "at the edge":
            image[..., -1], image[..., 0] = float("inf"), float("inf")
        truth = convolutions.exact(problem, image, weight, subject.parts)
        check(library, subject, problem, image, weight, truth)


LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "7 x 7 of stride 2": (nn.Conv2d(3, 64, 7, 2, 3, bias=False), (8, 3, 112, 112)),
    "3 x 3": (nn.Conv2d(4, 64, 3, padding=1), (8, 4, 56, 56)),
    "patches": (nn.Conv2d(3, 192, 16, 16), (8, 3, 112, 112)),
    "sound": (nn.Conv1d(1, 128, 40, 5), (8, 1, 16000)),
    "video": (nn.Conv3d(3, 64, (3, 7, 7), (1, 2, 2), (1, 3, 3)), (4, 3, 8, 56, 56)),
}


@pytest.mark.parametrize("precision", ["tf32", "ieee", "bfloat16"])
@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_whole_models_are_as_good_as_eager(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = dict.fromkeys(match.LEAST_FLOPS, 0)
    monkeypatch.setattr(match, "LEAST_FLOPS", every)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", precision != "ieee")
    torch.manual_seed(8)
    layer, shape = LAYERS[name]
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
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
        limit = max(float((theirs - truth).norm()) * 1.05, LEAST * float(truth.norm()))
        assert (ours - truth).norm() <= limit
    x = torch.randn(shape, device="cuda").to(dtype)
    x.flatten()[:: x.numel() // 3 - 5] = float("inf")
    x.flatten()[x.numel() // 5] = float("nan")
    truth, ours = exact(x.double()), new(x)
    assert torch.equal(ours.isfinite(), truth.isfinite())
    assert torch.equal(ours.isnan(), truth.isnan())
