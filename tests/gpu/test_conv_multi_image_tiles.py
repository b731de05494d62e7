"""Convolutions whose tiles go on from image to image: right wherever an image ends.

All need a GPU of compute capability 9.0.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.gpu.test_conv import both, check, strange_truth
from tests.support import conv_subjects as convolutions
from tests.support.conv_subjects import JOINED, Problem, Subject
from tests.support.gemm_subjects import Library

pytestmark = pytest.mark.gpu
TILE_ROWS = 128
PROBLEMS = (
    Problem(6, 64, 130, (28, 28), (3, 3), pad=both(1, 1)),
    # Rows that begin anywhere, and every second image within a sector of 32 bytes.
    Problem(5, 32, 48, (17, 23), (3, 3), pad=both(1, 1)),
    Problem(7, 48, 300, (18, 18), (3, 3), pad=both(1, 1)),
    # Images end where tiles do.
    Problem(9, 40, 70, (16, 16), (3, 3), pad=both(1, 1)),
    # Only where 128 pixels are a tile's rows, or its columns.
    Problem(40, 48, 64, (13, 13), (3, 3), pad=both(1, 1)),
    Problem(33, 40, 66, (14, 14), (3, 3), pad=both(1, 1)),
    Problem(4, 64, 66, (20, 20), (3, 3), pad=both(1, 1), groups=2),
    Problem(5, 40, 24, (40, 36), (3, 3), (2, 2), both(1, 1)),
    Problem(4, 24, 40, (600,), (5,), pad=both(2)),
    Problem(3, 16, 33, (9, 10, 11), (3, 3, 3), pad=both(1, 1, 1)),
    Problem(1, 32, 48, (20, 20), (3, 3)),
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU for sm_90a here")
    return convolutions.library(JOINED, tmp_path_factory.mktemp("joined"))


def fits(subject: Subject, problem: Problem) -> bool:
    """Whether an image fills a tile, and rows lie evenly for its vectors."""
    pixels = torch.Size(problem.out_size).numel()
    side = TILE_ROWS if subject.swapped else subject.width
    return pixels >= side and (subject.vector == 1 or pixels % 4 == 0)


def changed(kind: str, image: Tensor) -> Tensor:
    """An image of this kind; neighbouring images differ."""
    powers = {"apart": 1e9, "far apart": 1e25}.get(kind, 1.0)
    for n in range(len(image)):
        image[n] *= powers ** (n % 3 - 1)
    if kind == "uneven":
        image[1::2, :, :3] *= 1e-6
    return image


@pytest.mark.parametrize("kind", ["plain", "apart", "far apart", "uneven"])
@pytest.mark.parametrize("subject", JOINED, ids=lambda s: str(s.entry))
def test_values(library: Library, subject: Subject, kind: str) -> None:
    torch.manual_seed(1)
    for problem in PROBLEMS:
        if not fits(subject, problem):
            continue
        image, weight = changed(kind, problem.image()).to(subject.dtype), problem.weight()
        weight = weight.to(subject.dtype)
        truth = convolutions.exact(problem, image, weight, subject.parts)
        check(library, subject, problem, image, weight, truth)


@pytest.mark.parametrize("subject", JOINED, ids=lambda s: str(s.entry))
def test_infinities_and_nan_are_where_float64_has_them(library: Library, subject: Subject) -> None:
    torch.manual_seed(5)
    problem = PROBLEMS[0]
    image, weight = problem.image(), problem.weight()
    for i, value in enumerate((float("inf"), float("-inf"), float("nan"))):
        image[i % 2 + 2, i * 7, 3 + i * 8, i * 9] = value
    image, weight = image.to(subject.dtype), weight.to(subject.dtype)
    truth = strange_truth(problem, image, weight, subject.parts)
    check(library, subject, problem, image, weight, truth)


def test_small_images_are_an_error(library: Library) -> None:
    problem = Problem(3, 32, 40, (7, 7), (3, 3), pad=both(1, 1))
    for subject in JOINED:
        image, weight = problem.image().to(subject.dtype), problem.weight().to(subject.dtype)
        code, outside = convolutions.guarded(library, subject, problem, image, weight, image)[1:]
        assert code != 0
        assert not outside
