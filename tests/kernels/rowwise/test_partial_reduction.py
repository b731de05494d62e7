"""Long rows of which one reduction is made: one kernel reduces parts of them, another one joins
these."""

from __future__ import annotations

import ctypes
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fusewright.codegen.cuda_source import cuda_source
from fusewright.compiler.compilation import Compilation, make
from fusewright.targets.compile_flags import cuda_flags
from fusewright.targets.target import TARGETS
from tests.support.cuda_compilers import compile_text
from tests.support.emulator.warps import library_of

# Rows of 70,004 (whole vectors) and 70,001, sheets of 5 x 14,003 and 5 x 14,004, and rows across
# memory, of which column panels of 32 are not whole.
ROWS, ODD, PLANES, EVEN, ACROSS = (
    (3, 70_004),
    (3, 70_001),
    (5, 4, 14_003),
    (5, 4, 14_004),
    (9001, 70),
)
Function = Callable[[Tensor], Tensor]
CASES: dict[str, tuple[Function, tuple[int, ...]]] = {
    "sum": (lambda x: x.sum(1), ROWS),
    "sum of odd rows": (lambda x: (x * 2).sum(1), ODD),
    "max": (lambda x: x.amax(1), ROWS),
    "logsumexp": (lambda x: torch.logsumexp(x, 1), ROWS),
    "var": (lambda x: x.var(1), ODD),
    "argmax": (lambda x: x.argmax(1), ROWS),
    "any": (lambda x: (x > 4).any(1), ROWS),
    "all": (lambda x: (x > -2).all(1), ROWS),
    "count": (lambda x: (x > 1).sum(1), ODD),
    "double": (lambda x: x.double().var(1), ROWS),
    "mean of planes": (lambda x: x.mean((0, 2)), PLANES),
    "var of planes": (lambda x: x.var((0, 2)), EVEN),
    "sum across": (lambda x: x.sum(0), ACROSS),
    "logsumexp across": (lambda x: torch.logsumexp(x, 0), ACROSS),
    "var across": (lambda x: x.var(0), ACROSS),
    "argmax across": (lambda x: x.argmax(0), ACROSS),
    "max across": (lambda x: x.double().amax(0), ACROSS),
}


class Every(nn.Module):
    """All cases, each with a tensor of its own and so a kernel."""

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        pairs = zip(CASES.values(), given, strict=True)
        return tuple(function(x) for (function, _), x in pairs)


def every(arch: str) -> tuple[Compilation, str, list[Tensor]]:
    """The plan of all cases, its CUDA text, and tensors."""
    torch.manual_seed(0)
    given = [torch.randn(shape) + 1 for _, shape in CASES.values()]
    made = make(Every(), given, TARGETS[arch])
    return made, cuda_source(made.texts, TARGETS[arch]), given


@pytest.mark.compiler
@pytest.mark.skipif(not shutil.which("g++"), reason="no g++ here")
def test_threads_compute_them(tmp_path: Path) -> None:
    """Both kernels' text, by threads of this CPU; scratch memory contains NaN."""
    made, text, given = every("sm_80")
    library = library_of(text, tmp_path)
    wanted = Every()(*given)
    found = [torch.full_like(x, 1) for x in wanted]
    number = {id(n): k for k, n in enumerate(made.captured.graph.inputs)}
    assert len(made.kernels) == len(CASES)
    for body, _, _ in made.kernels:
        entry = text.split(f"run_{body.name}(")[1].split('extern "C"')[0]
        assert re.search(r"run_(rows|column_panels)_partial_reduction<", entry)
        (k,) = (number[id(p.node)] for p in body.pointers if id(p.node) in number)
        scratch = torch.full((2_113_536,), 0xFF, dtype=torch.uint8)
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (given[k], found[k], scratch)]
        assert (
            library[f"run_{body.name}"](
                *pointers, ctypes.c_long(made.captured.graph.example["batch"]), 0, None
            )
            == 0
        )
    for name, x, y in zip(CASES, found, wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.compiler
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
def test_they_stay_in_registers(tmp_path: Path) -> None:
    kernels = compile_text(every("sm_90a")[1], cuda_flags(TARGETS["sm_90a"].arch), tmp_path)
    assert [k for k in kernels if k.stack_bytes or k.spill_bytes] == []


@pytest.mark.slow
def test_the_second_kernel_waits_for_the_first() -> None:
    text = every("sm_90a")[1]
    leave, join = (text.split(f"{kind}_kernel(")[1] for kind in ("partials", "join"))
    assert leave.index("let_next_kernel_start();") < leave.index("body(row")
    assert join.index("wait_for_previous_kernel();") < join.index("body(row")
    assert "on, early, may_start_early()}" in text
