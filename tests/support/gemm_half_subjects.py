"""Bodies of product kernels for float16 and bfloat16 -> CUDA text, a library, launches.

The bodies are those of `product_subjects`, with tensors of 16 bits. Each kernel is one
instantiation of `run_gemm_half`, in the form that the compiler prints.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fusewright.codegen.device_library import select_sections
from fusewright.kernels.gemm.split_cost import STREAM_K
from tests.support import gemm_subjects as subjects
from tests.support.gemm_subjects import BODIES, SCHEDULES, WIDTHS, WORDS, Library, Subject

KINDS = {torch.float16: "half_t", torch.bfloat16: "bfloat_t"}
OWN_WIDTHS = (128, 160, 192)
OWN_REDUCTIONS = (
    ("group_norm", 64, 8),
    ("softmax", 32, 8),
    ("row_sum", 64, 1),
    ("group_norm", 128, 4),
)
PARTS = 264  # room for those of two tiles of each block, on any Hopper
# What is compiled beside the schedules of bfloat16 with rows along k: left, right turned -> type.
LAYOUTS = {
    (False, False): torch.float16,
    (True, False): torch.bfloat16,
    (False, True): torch.float16,
    (True, True): torch.bfloat16,
}


@dataclass(frozen=True)
class Half:
    """One body with one schedule for one type; turned: whether left and right lie k by k; own:
    whether each consumer group has tiles of its own."""

    subject: Subject
    dtype: torch.dtype
    turned: tuple[bool, bool] = (False, False)
    own: bool = False

    @property
    def entry(self) -> str:
        """The name of its C function."""
        sides = "".join("t" if turned else "k" for turned in self.turned)
        return f"{KINDS[self.dtype]}_{self.subject.entry}_{sides}{'_own' * self.own}"

    @property
    def scratch_bytes(self) -> int:
        """What sharing the depth of tiles needs."""
        return self.subject.parts * (128 * self.subject.width * 4 + 8)

    def text(self) -> str:
        """Its C function."""
        kind, s = KINDS[self.dtype], self.subject
        chosen = f"{s.width}, {'true' if s.swapped else 'false'}, {s.segment}, {s.vector}"
        chosen += f", {s.parts}, false, {STREAM_K.once}, {STREAM_K.part}" * (s.parts > 0)
        chosen += ", 0, true" * self.own
        left, right = (f"half_gemm_operand<{kind}{', true' * turned}>" for turned in self.turned)
        return f"""
extern "C" int {self.entry}(const {kind}* left, const long* l, const {kind}* right, const long* r,
    const {kind}* in0, const {kind}* in1, {kind}* out0, const long* sizes,
    void* workspace, int device, void* stream) {{
  const {kind}_bodies::{s.struct} body{{in0, in1, out0, sizes[2]}};
  return run_gemm_half<{chosen}>(body, {left}{{left, l[0], l[1]}}, {right}{{right, r[0], r[1]}},
                                    sizes[0], sizes[1], sizes[2], sizes[3], workspace, device,
                                    stream);
}}"""


def _chosen() -> Iterable[Half]:
    kinds = {(0, 4), (0, 1), (4, 1), (16, 4), (64, 4), (128, 4), (256, 4), (256, 1)}
    for s in SCHEDULES:
        if (s.segment, s.vector) in kinds:
            yield Half(s, torch.bfloat16)
        if (s.segment, s.vector) == (0, 4):
            yield Half(s, torch.float16)
    for width in WIDTHS:
        for swapped in (False, True):
            for turned, dtype in LAYOUTS.items():
                yield Half(Subject("copy", width, swapped, 0, 1), dtype, turned)
            yield Half(Subject("copy", width, swapped, 0, 1, parts=PARTS), torch.bfloat16)
            yield Half(Subject("bias_relu", width, swapped, 0, 4, parts=PARTS), torch.bfloat16)
    yield Half(Subject("group_norm", 256, False, 256, 4, parts=PARTS), torch.bfloat16)
    for width in WIDTHS:  # eight neighbouring columns in a lane
        yield Half(Subject("bias_relu", width, False, 0, 8), torch.bfloat16)
        yield Half(Subject("bias_relu", width, False, 0, 8, parts=PARTS), torch.bfloat16)
        yield Half(Subject("group_norm", width, False, 64, 8), torch.bfloat16)
    for body, segment in (("residual_scale", 0), ("softmax", 64), ("softmax", 32), ("row_sum", 64)):
        yield Half(Subject(body, 256, False, segment, 8), torch.float16)
        yield Half(Subject(body, 128, False, segment, 8, parts=PARTS), torch.bfloat16)
    for width in OWN_WIDTHS:
        yield Half(Subject("copy", width, False, 0, 1), torch.bfloat16, own=True)
        yield Half(Subject("bias_relu", width, False, 0, 8), torch.bfloat16, own=True)
        if width % 64 == 0:
            turned = (width > 128, True)
            yield Half(Subject("copy", width, False, 0, 1), torch.float16, turned, own=True)
        yield Half(Subject("residual_scale", width, False, 0, 8), torch.float16, own=True)
    for body, segment, vector in OWN_REDUCTIONS:
        yield Half(Subject(body, 128, False, segment, vector), torch.bfloat16, own=True)


HALVES = tuple(_chosen())


def source(halves: Iterable[Half]) -> str:
    """The CUDA text with the entries of `halves`, from the sections that they need."""
    skeleton = select_sections("sm90", [*WORDS, "run_gemm_half", "keep", "read", "write"])
    bodies = "".join(
        f"namespace {kind}_bodies {{{re.sub(r'float[*]', f'{kind}*', BODIES)}}}\n"
        for kind in KINDS.values()
    )
    entries = "".join(half.text() for half in halves)
    return f"{skeleton}\n{bodies}\n{entries}\n}}  // namespace fusewright\n"


def library(
    halves: Sequence[Half], folder: Path, edit: Callable[[str], str] = lambda text: text
) -> Library:
    """Compile `halves`, as many compilers at once as there are cores; `edit` changes the text."""
    return subjects.library_for(halves, lambda part: edit(source(part)), folder)


def strides(factor: Tensor, turned: bool) -> tuple[int, int]:
    """Batch and line stride of a factor [rows, depth] or [batches, rows, depth]."""
    assert factor.stride(-2 if turned else -1) == 1, "the neighbours in memory are in one line"
    return factor.stride(0) if factor.dim() == 3 else 0, factor.stride(-1 if turned else -2)


def launch(found: Library, half: Half, left: Tensor, right: Tensor, *more: Tensor) -> int:
    """Run on the current stream, `more` being in0, in1 and out0; the CUDA error."""
    batches = max(f.shape[0] if f.dim() == 3 else 1 for f in (left, right))
    sizes = (batches, left.shape[-2], right.shape[-2], left.shape[-1])
    both = [strides(f, turned) for f, turned in zip((left, right), half.turned, strict=True)]
    numbers = [(ctypes.c_long * len(v))(*v) for v in (*both, sizes)]
    address = ctypes.c_void_p
    scratch = torch.empty(half.scratch_bytes, dtype=torch.uint8, device=left.device)
    return found.function(half)(
        address(left.data_ptr()), numbers[0], address(right.data_ptr()), numbers[1],
        *(address(t.data_ptr()) for t in more), numbers[2], address(scratch.data_ptr()),
        ctypes.c_int(left.device.index or 0),
        address(torch.cuda.current_stream().cuda_stream),
    )  # fmt: skip
