"""What every test file shares: the `gpu` marker, the option that rewrites golden files, exports."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import compiler_record
from tests.support.folders import EXAMPLES, TESTS


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the files of tests/golden instead of comparing with them; read the diff",
    )
    parser.addoption(
        "--without-compilers",
        action="store_true",
        help="a test that calls a compiler fails: it lacks the mark `compiler`",
    )


# Files that take longest, in processor seconds; they come first, so that two processes, which take
# whole files in turn, end together.
LONGEST = (
    "judge/test_cheats",
    "judge/test_mutation",
    "compile/test_nvrtc",
    "tune/test_tuner",
    "kernels/attention/test_attention",
    "kernels/scan/test_scan",
    "compile/test_gemm",
    "judge/test_controls",
    "kernels/rowwise/test_simd_rows",
    "compile/test_device_library_cuda",
    "compile/test_conv",
    "compiler/test_zoo",
    "compile/test_gemm_half",
    "frontend/lowering/test_lowering",
    "compile/test_attention",
    "judge/test_chaos",
    "emulated/test_conv_multi_image_tiles",
    "kernels/rowwise/test_grid_resident_rows",
    "judge/isolation/test_processes",
)

# Room -> what all its tests need.
ROOMS = {"compile": "compiler", "emulated": "compiler", "fuzz": "compiler"}
# What --without-compilers hides.
COMPILERS = ("c++", "g++", "gcc", "cc", "clang++", "nvcc", "ninja")
NO_COMPILER = "#!/bin/sh\necho This test needs the mark compiler >&2\nexit 1\n"


def pytest_collectstart(collector: pytest.Collector) -> None:
    """What a file of tests draws while it is imported is the same, whatever was imported before."""
    if isinstance(collector, pytest.Module) and "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


def _inside(item: pytest.Item) -> str:
    """The file of a test, below tests/ and without its suffix."""
    return item.path.relative_to(TESTS).with_suffix("").as_posix()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if mark := ROOMS.get(_inside(item).partition("/")[0]):
            item.add_marker(mark)
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(_inside(item), len(LONGEST)))
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
        from tests.support import composites

        composites.keep()


@pytest.fixture(autouse=True, scope="module")
def _what_is_old_stays() -> None:
    """The collector looks at what one file of tests makes, not at all that is there before: half a
    million objects of PyTorch and of earlier files, each time that a test, or a judge, collects."""
    gc.collect()
    gc.freeze()


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


def pytest_configure(config: pytest.Config) -> None:
    compiler_record.Settings.update = config.getoption("--update-golden")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def examples() -> Path:
    return EXAMPLES


@pytest.fixture(autouse=True, scope="session")
def _no_compilers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """In the place of compilers stand programs that fail, and say which mark is missing."""
    if not request.config.getoption("--without-compilers"):
        yield
        return
    folder = tmp_path_factory.mktemp("no_compilers")
    for name in COMPILERS:
        (folder / name).write_text(NO_COMPILER)
        (folder / name).chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        yield
