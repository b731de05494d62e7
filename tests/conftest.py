"""What every test file shares: the `gpu` marker, the option that rewrites golden files, exports."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from folders import EXAMPLES


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the files of tests/golden instead of comparing with them; read the diff",
    )


# Files that take longest, in processor seconds; they come first, so that two processes, which take
# whole files in turn, end together.
LONGEST = (
    "test_cheats", "test_mutation", "test_nvrtc", "test_tune", "test_attention", "test_scan",
    "test_product_compile", "test_controls", "test_abreast", "test_skeleton_cuda",
    "test_convolution_compile", "test_zoo", "test_product_half_compile", "test_lower",
    "test_attention_compile", "test_judge_chaos", "test_convolution_joined", "test_gathered",
    "test_judge_processes",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONGEST)))
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if torch.cuda.is_available():
        return
    for item in marked:
        item.add_marker(pytest.mark.skip(reason="no CUDA GPU here"))


@pytest.fixture(autouse=True, scope="session")
def _composites_once() -> None:
    if "fusewright.frontend.export" in sys.modules:  # else no test here exports anything
        import composites

        composites.keep()


@pytest.fixture(autouse=True, scope="session")
def _warm_once() -> Iterator[None]:
    """All judgings of this process fork their workers from the same warm processes."""
    site = sys.modules.get("fusewright.judge.isolation.worker_pool")
    if site is None:  # no test here judges anything
        yield
        return
    site.share((site.CHECKED,))
    yield
    for nursery in site.SHARED.values():
        nursery.close()
    site.SHARED.clear()


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def examples() -> Path:
    return EXAMPLES
