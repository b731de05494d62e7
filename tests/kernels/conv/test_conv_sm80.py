"""Convolutions on sm_80: which are kernels, that these compile, and their values.

Fibers of the CPU run the CUDA text (warps.py), so none of this needs a GPU.
"""

from __future__ import annotations

import ctypes
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from math import prod, sqrt
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fusewright.codegen.device_library import select_sections
from fusewright.fusion.planner import plan
from fusewright.ir.graph import Graph
from fusewright.kernels.conv import match
from fusewright.kernels.conv.match import convolution
from fusewright.kernels.registry import ANCHORS
from fusewright.targets.target import TARGETS
from tests.kernels.conv.test_conv import LAYERS, LEAST_FLOPS, LIBRARY, SIZES, Tailed
from tests.kernels.conv.test_conv import convolutions as found_in
from tests.kernels.conv.test_conv_half import POINTWISE
from tests.support import conv_subjects as convolutions
from tests.support.conv_subjects import CHUNKS, TRANSPOSED, WIDTHS, Exact, Problem, Subject
from tests.support.cuda_compilers import (
    compile_text,
    nvrtc_folder,
    nvrtc_log,
    strict_report,
    usages,
)
from tests.support.emitting import emit_file
from tests.support.emulator.warps import library_of
from tests.support.folders import ROOT
from tests.support.gemm_subjects import SHARED_BYTES
from tests.support.graphs import staged

AMPERE = TARGETS["sm_80"]
F16, BF16 = torch.float16, torch.bfloat16
needs_nvcc = pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")


@pytest.fixture(autouse=True, scope="module")
def small_ones_too() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(match, "LEAST_FLOPS", LEAST_FLOPS)
        yield


# ---- which ---------------------------------------------------------------------------------------


def graph_of(module: nn.Module, x: Tensor) -> Graph:
    def stage(graph: Graph) -> Graph:
        return convolution(graph, AMPERE, probe=lambda _: True)

    return staged(module, (x,), stage, "convolution")[1]


# What a tensor map cannot hold is no limit here; nothing of 16 bits is a product.
JOINING = {
    **{name: LAYERS[name] for name in ("plain", "padded, strided", "groups", "transposed, odd")},
    **{name: LIBRARY[name][:2] for name in ("large stride", "reach", "transposed, far")},
    "one pixel": POINTWISE["2 dimensions"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", JOINING)
def test_what_follows_joins_its_kernel(name: str) -> None:
    layer, shape = JOINING[name]
    dtype = BF16 if name in ("groups", "one pixel") else torch.float32
    try:
        after = graph_of(Tailed(layer).to(dtype), torch.randn(shape).to(dtype))
    finally:
        layer.float()
    (n,) = found_in(after)
    made = plan(after, AMPERE, ANCHORS)
    names = ["mul", f"{n.op} {'copy' if layer.bias is None else 'add'} relu add"]
    assert [" ".join(m.op for m in k.members) for k in made.kernels] == names
    assert not made.libraries


def test_too_many_phases_stay_with_the_library() -> None:
    after = graph_of(nn.ConvTranspose2d(64, 64, 9, stride=9), torch.randn(4, 64, 32, 32))
    (step,) = plan(after, AMPERE, ANCHORS).libraries
    assert "a stride above 8 has too many phases" in step.reason


def test_the_emitted_file(tmp_path: Path) -> None:
    emitted = emit_file(ROOT / "examples" / "conv_relu_bias.py", tmp_path, "sm_80", SIZES)
    head = emitted.text.partition('"""')[0]
    assert "conv_bias_relu_add  conv, add x2, relu -> [batch, 128, 34, 34]" in head
    assert "its conv as tf32" in head
    assert re.search(r"the input .* and conv\.weight .* are packed first", head)
    assert "_fusewright_conv_uses_tf32(" in emitted.text
    assert "cp.async.cg" in emitted.text
    assert "wgmma" not in emitted.text
    assert emitted.text.count("return run_conv<") == 1, "with vectors alone"


# ---- compilers -----------------------------------------------------------------------------------

# All tiles and chunks; both sides where registers are few; the bodies that need most; phases.
COMPILED = (
    Subject("bias_relu", 256, False, 4, 64),
    Subject("mish_twice", 256, True, 4, 32),
    Subject("residual", 192, False, 4, 16),
    Subject("mish_twice", 128, True, 4, 64),
    Subject("mish_twice", 64, False, 1, 64),
    Subject("residual", 64, True, 4, 16, 2),
    Subject("bias_relu", 256, False, 4, 16, dtype=BF16),
    Subject("mish_twice", 256, True, 4, 64, together=4),
    Subject("copy", 256, False, 1, 32, together=1, dtype=F16),
    Subject("bias_relu", 64, True, 4, 64, 2, together=2),
)


@pytest.mark.compiler
@needs_nvcc
def test_schedules_stay_in_registers(tmp_path: Path) -> None:
    text = convolutions.source(COMPILED, "sm_80")
    kernels = usages(strict_report(text, tmp_path / "convolutions.cu", "80"))
    assert sum("conv_kernel" in k.name for k in kernels) == len(COMPILED)
    assert [k for k in kernels if k.stack_bytes or k.spill_bytes] == []


@pytest.mark.compiler
@needs_nvcc
def test_tiles_fit_shared_memory(tmp_path: Path) -> None:
    most = SHARED_BYTES["sm_80"]
    checks = "".join(
        f"static_assert(conv_tile<{width}, {blocks}>::stages >= 3);\n"
        f"static_assert(({blocks} * (conv_tile<{width}, {blocks}>::shared_bytes + 1024)) "
        f"<= {most} + 1024);\n"
        for width, blocks in (*((width, 1) for width in WIDTHS), (64, 2))
    )
    text = f"{select_sections('sm80', ['run_conv'])}\n{checks}}}\n"
    compile_text(text, ["-std=c++17", "-arch=sm_80", "-ptx"], tmp_path)


@pytest.mark.compiler
@pytest.mark.skipif(nvrtc_folder() is None, reason="no NVRTC 12.1.105 here")
def test_the_oldest_supported_compiler_takes_them() -> None:
    folder = nvrtc_folder()
    assert folder is not None
    some = convolutions.source(COMPILED[1::2], "sm_80")
    assert nvrtc_log(folder, some, "compute_80") == (0, "")


# ---- values --------------------------------------------------------------------------------------


def both(*pads: int) -> tuple[tuple[int, int], ...]:
    return tuple((pad, pad) for pad in pads)


def turned(*sizes: object, **more: object) -> Problem:
    return Problem(*sizes, **more, transposed=True)  # type: ignore[arg-type]


PLAIN, WIDE = Subject("copy", 64, False, 1, 64), Subject("bias_relu", 128, False, 4, 32)
# Every tile, side, chunk and kind, each with sizes that leave something over.
VALUES = (
    (PLAIN, Problem(2, 64, 130, (5, 7), (3, 3), pad=both(1, 1))),
    (PLAIN, Problem(1, 42, 2, (1, 2, 4), (1, 3, 5), (3, 1, 1), ((1, 0), (2, 2), (2, 2)))),
    (Subject("residual", 64, True, 4, 16, 2),
     Problem(2, 20, 70, (13, 9), (3, 3), (3, 2), ((1, 0), (2, 3)), (2, 1))),
    (WIDE, Problem(2, 66, 40, (6, 6), (3, 3), pad=both(1, 1), groups=2)),
    (Subject("copy", 256, False, 1, 16), Problem(1, 16, 8, (300,), (5,), pad=both(2))),
    (Subject("bias_relu", 192, True, 4, 32),
     Problem(2, 40, 24, (4, 6, 8), (2, 3, 1), (2, 1, 2), ((0, 1), (1, 2), (0, 0)), (1, 2, 1))),
    (Subject("copy", 128, True, 1, 16, dtype=F16),
     Problem(1, 16, 24, (20, 3), (2, 2), stride=(9, 1))),
    (Subject("bias_relu", 64, False, 4, 64, dtype=BF16), Problem(2, 70, 12, (6, 6), (1, 1))),
    (replace(PLAIN, together=2), turned(1, 64, 48, (6, 8), (4, 4), (2, 2), both(1, 1))),
    (replace(WIDE, chunk=64, swapped=True, together=2),
     turned(1, 20, 30, (5, 6), (3, 3), (2, 2), both(1, 1), behind=(1, 1))),
    (replace(PLAIN, swapped=True, together=1, dtype=BF16),
     turned(1, 33, 12, (6, 5), (5, 5), (3, 3), both(2, 1), (1, 2), groups=3, behind=(0, 1))),
)  # fmt: skip


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    some = {s.entry: s for s, _ in VALUES}.values()
    return library_of(convolutions.source(some, "sm_80"), tmp_path_factory.mktemp("ampere"))


def operands(subject: Subject, problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """An image, a weight, and what the body reads."""
    torch.manual_seed(1)
    p, each = problem, problem.in_channels // problem.groups
    channels = (p.out_channels, each)
    if p.transposed:
        channels = (p.in_channels, p.out_channels // p.groups)
    image = torch.randn(p.images, p.in_channels, *p.in_size)
    weight = torch.randn(*channels, *p.kernel) / sqrt(each * prod(p.kernel))
    in0 = torch.randn(p.result() if subject.body == "residual" else (p.out_channels,))
    return image.to(subject.dtype), weight.to(subject.dtype), in0.to(subject.dtype)


def check(
    library: ctypes.CDLL, subject: Subject, problem: Problem, truth: Exact, *given: Tensor
) -> None:
    out = torch.full(problem.result(), -12345.5, dtype=subject.dtype)
    need = problem.workspace_bytes(subject.chunk)
    space = torch.full((need + 64,), 0xFF, dtype=torch.uint8)
    numbers = problem.numbers()
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (*given, out)]
    code = getattr(library, subject.entry)(
        *pointers, (ctypes.c_int * len(numbers))(*numbers), ctypes.c_void_p(space.data_ptr()), 0,
        None,
    )  # fmt: skip
    assert code == 0
    assert bool((space[need:] == 0xFF).all())
    assert convolutions.excess(subject, truth, given[2], out) <= 1


@pytest.mark.compiler
@pytest.mark.parametrize(("subject", "problem"), VALUES, ids=lambda x: getattr(x, "entry", ""))
def test_values(emulated: ctypes.CDLL, subject: Subject, problem: Problem) -> None:
    given = operands(subject, problem)
    check(emulated, subject, problem, convolutions.exact(problem, *given[:2]), *given)


def test_every_kind_has_values() -> None:
    some = [s for s, _ in VALUES]
    assert {(s.width, s.blocks) for s in some} == {*((w, 1) for w in WIDTHS), (64, 2)}
    assert {s.chunk for s in some} == set(CHUNKS)
    assert {s.swapped for s in some} == {False, True}


STRANGE = (
    (PLAIN, Problem(2, 18, 12, (5, 6), (3, 3), pad=both(1, 1))),
    (replace(PLAIN, together=2), turned(2, 18, 12, (5, 6), (4, 4), (2, 2), both(1, 1))),
    (replace(PLAIN, swapped=True, together=1, dtype=BF16),
     turned(2, 18, 12, (5, 6), (3, 3), (3, 3), both(1, 0))),
)  # fmt: skip
HAZARDS = ("spike", "blocks", "huge", "infinities", "infinite weights")


@pytest.mark.compiler
@pytest.mark.parametrize("name", HAZARDS)
@pytest.mark.parametrize(("subject", "problem"), STRANGE, ids=lambda x: getattr(x, "entry", ""))
def test_hazards(emulated: ctypes.CDLL, name: str, subject: Subject, problem: Problem) -> None:
    """An image without room for one scale, and what is not finite, are computed again."""
    image, weight, in0 = operands(subject, problem)
    image[0, 1] *= 1e-6 if name == "blocks" else 1
    finite = weight
    if name == "spike":
        image[0, 2, 1, 2] = 1e6
    elif name == "huge":
        image *= 1e30
        weight *= 1e-30
    elif name == "infinities":
        image[0, 2, 1, 2], image[-1, 5, 0, 0] = float("nan"), float("-inf")
    elif name == "infinite weights":
        problem = replace(problem, pad=both(0, 0), behind=())
        if problem.transposed:
            return  # an infinity times what is not there has no meaning
        weight[3, 5, 1, 1], weight[1, 7, 0, 2] = float("inf"), float("nan")
        finite = torch.where(weight.isfinite(), weight, 0.0)
    truth = convolutions.exact(problem, image, weight)
    allowed = convolutions.exact(problem, image, finite).allowed
    check(emulated, subject, problem, replace(truth, allowed=allowed), image, weight, in0)


def test_all_phases_are_known() -> None:
    assert {s.together for s in COMPILED} == {0, *(s.together for s in TRANSPOSED)}
