"""Hand-written bodies of product kernels -> CUDA text, libraries, and their meaning in float64.

A subject is one instantiation of `run_gemm` with one body, in exactly the form that the compiler
prints them. The tests and both benchmarks of product kernels import it.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from fusewright.codegen.device_library import select_sections
from fusewright.kernels.gemm.variants import GEMM_PACKED
from fusewright.targets.compile_flags import CUDA_FLAGS

# Name of an architecture -> its skeleton, and what nvcc is asked for. The sm_80 kernels run on a
# newer GPU: their PTX is compiled for it ahead, because the driver would take minutes for all.
PARTS = {"sm_80": "sm80", "sm_90a": "sm90"}
SHARED_BYTES = {"sm_80": 163 * 1024, "sm_90a": 227 * 1024}
WIDTHS = (64, 128, 192, 256)
SEGMENTS = (0, 4, 16, 64, 128, 256)

_FIELDS = "const float* in0; const float* in1; float* out0; long n;"
_MAP = """template <class Range, class Team, class Product>
  FN void operator()(long row, Range range, Team team, Product product) const"""
_FOLD = """template <class Team, class Product>
  FN void operator()(long row, Team team, Product product) const"""
BODIES = f"""
struct copy {{
  {_FIELDS}
  {_MAP} {{
    team.each(range, [&](float v0, float& o0) {{ o0 = v0; }}, product, store(out0, row * n));
  }}
}};
struct bias_relu {{
  {_FIELDS}
  {_MAP} {{
    team.each(range, [&](float v0, float v1, float& o0) {{ o0 = relu(v0 + v1); }},
              product, load(in0, 0), store(out0, row * n));
  }}
}};
// Half of the product, a residual of its shape, and one number per row.
struct residual_scale {{
  {_FIELDS}
  {_MAP} {{
    const float v1 = read(in1, row);
    team.each(range, [&](float v0, float v2, float& o0) {{ o0 = v0 * 0.5f + v2 + v1; }},
              product, load(in0, row * n), store(out0, row * n));
  }}
}};
template <long SEGMENT> struct group_norm {{
  {_FIELDS}
  {_FOLD} {{
    const long r1 = row % (n / SEGMENT);
    const auto m0 = team.moments(fixed<SEGMENT>, [&](float v0) {{ return v0; }}, product);
    const float v1 = rsqrt(m0.m2 / float(SEGMENT) + 1e-05f);
    team.each(fixed<SEGMENT>, [&](float v0, float v2, float v3, float& o0) {{
      o0 = (v0 - m0.mean) * v1 * v2 + v3;
    }}, product, load(in0, r1 * SEGMENT), load(in1, r1 * SEGMENT), store(out0, row * SEGMENT));
  }}
}};
template <long SEGMENT> struct softmax {{
  {_FIELDS}
  {_FOLD} {{
    auto k0 = team.template keep<float, SEGMENT>();
    const float v1 = team.max(fixed<SEGMENT>, [&](float v0) {{ return v0; }}, product);
    const float v2 = team.sum(fixed<SEGMENT>, [&](float v0, float& k) {{
      k = exp(v0 - v1);
      return k;
    }}, product, store(k0));
    team.each(fixed<SEGMENT>, [&](float v3, float& o0) {{ o0 = v3 / v2; }},
              load(k0), store(out0, row * SEGMENT));
  }}
}};
// One number per segment; the only output that is not written column by column.
template <long SEGMENT> struct row_sum {{
  {_FIELDS}
  {_FOLD} {{
    const float v1 = team.sum(fixed<SEGMENT>, [&](float v0) {{ return v0; }}, product);
    team.once([&] {{ write(out0, row, v1); }});
  }}
}};
"""
# The sections that the bodies name.
WORDS = ("relu", "exp", "rsqrt", "moments", "max", "sum", "fixed", "load", "store")


class Entry(Protocol):
    """Anything with a C function of its own."""

    @property
    def entry(self) -> str: ...


@dataclass(frozen=True)
class Subject:
    """One body with one schedule."""

    body: str
    width: int
    swapped: bool
    segment: int
    vector: int
    inline: bool = False  # both factors split on the fly
    parts: int = 0  # room for so many parts of tiles; sm_90a only

    @property
    def entry(self) -> str:
        """The name of its C function."""
        side = "swapped" if self.swapped else "straight"
        how = "_inline" * self.inline + f"_{self.parts}_parts" * (self.parts > 0)
        return f"{self.body}_{self.width}_{side}_{self.segment}_{self.vector}{how}"

    @property
    def launcher(self) -> str:
        """The skeleton's function that it calls."""
        return "run_gemm_unpacked" if self.inline else "run_gemm"

    @property
    def struct(self) -> str:
        """What the body is called in CUDA."""
        return f"{self.body}<{self.segment}>" if self.segment else self.body

    def text(self) -> str:
        """Its C function."""
        swapped = "true" if self.swapped else "false"
        chosen = f"{self.width}, {swapped}, {self.segment}, {self.vector}"
        chosen += f", {self.parts}" * (self.parts > 0)
        workspace = "" if self.inline else "workspace, "
        return f"""
extern "C" int {self.entry}(const float* left, const long* l, const float* right, const long* r,
    const float* in0, const float* in1, float* out0, const long* sizes, void* workspace, int device,
    void* stream) {{
  const {self.struct} body{{in0, in1, out0, sizes[2]}};
  return {self.launcher}<{chosen}>(
      body, {{left, l[0], l[1], l[2]}}, {{right, r[0], r[1], r[2]}},
      sizes[0], sizes[1], sizes[2], sizes[3], {workspace}device, stream);
}}"""


def holds(width: int, swapped: bool, segment: int) -> bool:
    """Whether a tile of this width can hold whole segments."""
    if segment > 64:
        return not swapped and width % segment == 0
    return segment == 0 or 64 % segment == 0


# Which body stands for which kind of tail: (segment, vector) -> body.
_KINDS = {
    (0, 4): "bias_relu", (0, 1): "copy", (4, 4): "group_norm", (4, 1): "softmax",
    (16, 4): "group_norm", (16, 1): "softmax", (64, 4): "softmax", (64, 1): "group_norm",
    (128, 4): "group_norm", (128, 1): "softmax", (256, 4): "group_norm", (256, 1): "row_sum",
}  # fmt: skip
# Everything that a schedule can choose, each once: one of the two small segments stands for both.
SCHEDULES = tuple(
    Subject(body, width, swapped, segment, vector)
    for width in WIDTHS
    for swapped in (False, True)
    for (segment, vector), body in _KINDS.items()
    if holds(width, swapped, segment) and segment != (4 if width != 128 else 16)
)
# The kernels that write nothing but their result; their tails are the same.
INLINE = tuple(
    replace(s, inline=True)
    for s in SCHEDULES
    if (s.segment, s.vector) in ((0, 1), (0, 4), (4, 4), (16, 4), (64, 1), (64, 4), (128, 4))
    and (s.segment == 0 or s.width < 256)
)
# A few tiles, each shared by many thread blocks.
SHARED = tuple(
    replace(s, parts=512)
    for s in SCHEDULES
    if (s.segment, s.vector) in ((0, 1), (0, 4), (64, 4), (128, 4), (256, 4))
)
# Widths between those, on Hopper where the left factor is packed; what is asked for ahead, too.
BETWEEN = tuple(
    Subject(body, width, True, 0, vector, parts=parts)
    for width in (96, 160, 224)
    for body, vector, parts in (("copy", 1, 0), ("residual_scale", 4, 512))
)
# What else runs, on a few schedules only.
EXTRAS = (
    Subject("residual_scale", 256, False, 0, 4),
    Subject("residual_scale", 192, False, 0, 1),
    Subject("residual_scale", 128, True, 0, 4),
    Subject("residual_scale", 64, True, 0, 1),
    Subject("copy", 256, False, 0, 4),
    Subject("softmax", 256, False, 64, 1),
    Subject("group_norm", 128, True, 64, 4),
    Subject("row_sum", 128, False, 128, 4),
    Subject("row_sum", 192, True, 16, 4),
    Subject("row_sum", 64, False, 64, 1),
)


def known_to(arch: str, subjects: Iterable[Subject]) -> tuple[Subject, ...]:
    """Those that an architecture has kernels for."""
    return tuple(s for s in subjects if arch == "sm_90a" or not (s.parts or s in BETWEEN))


def source(arch: str, subjects: Iterable[Subject]) -> str:
    """The CUDA text with the entries of `subjects`, from the sections that they need."""
    some = tuple(subjects)
    launchers = {subject.launcher for subject in some}
    skeleton = select_sections(PARTS[arch], [*WORDS, *launchers, "keep", "read", "write"])
    entries = "".join(subject.text() for subject in some)
    return f"{skeleton}\n{BODIES}\n{entries}\n}}  // namespace fusewright\n"


def build(text: str, target: Path, code: str) -> None:
    """Compile to a shared library; `code`: what follows nvcc's -gencode."""
    target.with_suffix(".cu").write_text(text, encoding="utf-8")
    command = ["nvcc", *CUDA_FLAGS, f"-gencode={code}", "-shared", "-Xcompiler", "-fPIC"]
    done = subprocess.run(
        [*command, "-o", str(target), str(target.with_suffix(".cu"))],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"nvcc refuses {target.with_suffix('.cu')}:\n{done.stdout}{done.stderr}")


def code_for(arch: str, capability: tuple[int, int]) -> str:
    """nvcc's -gencode for kernels of `arch` on a GPU of this capability."""
    if arch == "sm_90a":
        return "arch=compute_90a,code=sm_90a"
    return f"arch=compute_80,code=sm_{capability[0]}{capability[1]}"


@dataclass(frozen=True)
class Library:
    """Where each subject's function is, by its entry, for one architecture."""

    parts: Mapping[str, ctypes.CDLL]

    def function(self, subject: Entry) -> Callable[..., int]:
        """The C function of a subject."""
        found: Callable[..., int] = getattr(self.parts[subject.entry], subject.entry)
        return found


E = TypeVar("E", bound=Entry)


def library_for(
    some: Sequence[E],
    source_of: Callable[[Sequence[E]], str],
    folder: Path,
    arch: str = "sm_90a",
) -> Library:
    """Compile `some`, as many compilers at once as there are cores, and load them."""
    pieces = max(1, min(len(some), len(os.sched_getaffinity(0))))
    jobs = {folder / f"piece_{k}.so": some[k::pieces] for k in range(pieces)}
    code = code_for(arch, torch.cuda.get_device_capability())
    with ThreadPoolExecutor(pieces) as pool:
        running = [pool.submit(build, source_of(part), to, code) for to, part in jobs.items()]
        for job in running:
            job.result()
    loaded = {target: ctypes.CDLL(str(target)) for target in jobs}
    return Library({s.entry: loaded[target] for target, part in jobs.items() for s in part})


def libraries(
    archs: Sequence[str], subjects: Sequence[Subject], folder: Path
) -> dict[str, Library]:
    """Compile all subjects for all architectures, as many compilers at once as there are cores."""
    capability = torch.cuda.get_device_capability()
    cores = len(os.sched_getaffinity(0))
    pieces = max(1, min(len(subjects), cores // len(archs)))
    known = {arch: known_to(arch, subjects) for arch in archs}
    jobs = {
        (arch, piece): (folder / f"{arch}_{piece}.so", tuple(known[arch][piece::pieces]))
        for arch in archs
        for piece in range(pieces)
    }
    with ThreadPoolExecutor(cores) as pool:
        running = [
            pool.submit(build, source(arch, some), target, code_for(arch, capability))
            for (arch, _), (target, some) in jobs.items()
        ]
        for job in running:
            job.result()
    found: dict[str, dict[str, ctypes.CDLL]] = {arch: {} for arch in archs}
    for (arch, _), (target, some) in jobs.items():
        loaded = ctypes.CDLL(str(target))
        found[arch] |= {subject.entry: loaded for subject in some}
    return {arch: Library(parts) for arch, parts in found.items()}


def strides(factor: Tensor) -> tuple[int, int, int]:
    """Batch, row and depth stride of a factor [rows, depth] or [batches, rows, depth]."""
    batch = factor.stride(0) if factor.dim() == 3 else 0
    return batch, factor.stride(-2), factor.stride(-1)


def workspace_bytes(packed: Tensor, subject: Subject) -> int:
    """What packing this factor needs, and what sharing the depth of tiles needs."""
    rows, depth = -(-packed.shape[-2] // 64) * 64, -(-packed.shape[-1] // 32)
    batches = packed.shape[0] if strides(packed)[0] else 1
    high = GEMM_PACKED.high.get(subject.width, 128)
    sums = subject.parts * (high * subject.width * 4 + high // 16)
    return batches * rows * (depth * 128 + 4 + -(-depth // 2) * 4) + sums


@dataclass(frozen=True)
class Call:
    """Operands of one launch; a factor is [rows, depth] or [batches, rows, depth]."""

    left: Tensor
    right: Tensor
    in0: Tensor
    in1: Tensor
    out: Tensor
    workspace: Tensor

    def launch(self, library: Library, subject: Subject) -> int:
        """Run on the current stream; the CUDA error."""
        batches = max(f.shape[0] if f.dim() == 3 else 1 for f in (self.left, self.right))
        sizes = (batches, self.left.shape[-2], self.right.shape[-2], self.left.shape[-1])
        numbers = [
            (ctypes.c_long * len(v))(*v) for v in (strides(self.left), strides(self.right), sizes)
        ]
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (self.in0, self.in1, self.out)]
        return library.function(subject)(
            ctypes.c_void_p(self.left.data_ptr()), numbers[0],
            ctypes.c_void_p(self.right.data_ptr()), numbers[1],
            *pointers, numbers[2], ctypes.c_void_p(self.workspace.data_ptr()),
            ctypes.c_int(self.left.device.index or 0),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        )  # fmt: skip


def meaning(subject: Subject, product: Tensor, in0: Tensor, in1: Tensor) -> Tensor:
    """What the body makes of a product [batches, rows, columns], in the product's precision."""
    first, second = in0.to(product.dtype), in1.to(product.dtype)
    if subject.body == "copy":
        return product
    if subject.body == "bias_relu":
        return (product + first).relu()
    if subject.body == "residual_scale":
        return product * 0.5 + first.view_as(product) + second.view(*product.shape[:2], 1)
    segments = product.view(*product.shape[:2], -1, subject.segment)
    if subject.body == "softmax":
        return segments.softmax(-1).flatten(-2)
    if subject.body == "row_sum":
        return segments.sum(-1)
    centred = segments - segments.mean(-1, keepdim=True)
    normal = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return normal.flatten(-2) * first + second


def operands(
    subject: Subject, batches: int, rows: int, columns: int, device: str
) -> tuple[Tensor, Tensor]:
    """Random in0 and in1 of the sizes that the body reads."""
    shapes = {
        "residual_scale": ((batches * rows * columns,), (batches * rows,)),
        "bias_relu": ((columns,), (1,)),
        "group_norm": ((columns,), (columns,)),
    }
    first, second = shapes.get(subject.body, ((1,), (1,)))
    return torch.randn(first, device=device), torch.randn(second, device=device)
