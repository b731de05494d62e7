"""Hand-written bodies of convolution kernels -> CUDA text, a library, launches, their meaning.

A subject is one instantiation of `run_conv` with one body, in the form that the compiler
prints. The tests and both benchmarks of convolutions import it.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod, sqrt
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from fusewright.codegen.device_library import select_sections
from fusewright.kernels.conv.subpixel_phases import SubpixelPhases, phases
from fusewright.kernels.conv.variants import (
    CONV_PINGPONG,
    FEW_CHANNELS,
    FLOAT32_WIDTHS,
    TRANSPOSED_PINGPONG,
)
from tests.support import gemm_subjects as subjects
from tests.support.gemm_half_subjects import KINDS
from tests.support.gemm_subjects import PARTS, Library

WIDTHS = (64, 128, 192, 256)
CHUNKS = (16, 32, 64)
TOGETHER = (1, 2, 4)
WORDS = ("relu", "sigmoid", "tanh", "log1p", "exp", "load", "store", "read", "write")

_FIELDS = "const float* in0; float* out0; long n; long channels;"
_MAP = """template <class Range, class Team, class Product>
  FN void operator()(long row, Range range, Team team, Product product) const"""


def _struct(name: str, value: str, setup: str = "", load: str = "") -> str:
    more = ", float v2" * bool(load)
    return f"""
struct {name} {{
  {_FIELDS}
  {_MAP} {{
    {setup}
    team.each(range, [&](float v0{more}, float& o0) {{ o0 = {value}; }},
              product{load}, store(out0, row * n));
  }}
}};"""


_BIAS = "const float v1 = read(in0, unsigned(row) % unsigned(channels));"
BODIES = "".join(
    (
        "FN float mish(float x) { return x * tanh(x > 20.f ? x : log1p(exp(x))); }",
        _struct("copy", "v0"),
        _struct("bias_relu", "relu(v0) + v1", _BIAS),
        _struct("mish_twice", "mish(mish(v0 + v1))", _BIAS),
        _struct("bias_sigmoid", "sigmoid(v0 + v1)", _BIAS),
        _struct("residual", "v0 * 0.5f + v2", load=", load(in0, row * n)"),
        # Channels last, they are columns.
        _struct("bias_relu_last", "relu(v0) + v2", load=", load(in0, 0)"),
        _struct("mish_twice_last", "mish(mish(v0 + v2))", load=", load(in0, 0)"),
        _struct("bias_sigmoid_last", "sigmoid(v0 + v2)", load=", load(in0, 0)"),
    )
)


def meaning(body: str, sums: Tensor, in0: Tensor) -> Tensor:
    """What the body makes of a convolution [N, K, ...], in its precision."""
    first = in0.to(sums.dtype)
    bias = (
        first.view(1, -1, *(1,) * (sums.dim() - 2)) if body not in ("copy", "residual") else first
    )
    return {
        "copy": lambda: sums,
        "bias_relu": lambda: sums.relu() + bias,
        "mish_twice": lambda: functional.mish(functional.mish(sums + bias)),
        "bias_sigmoid": lambda: (sums + bias).sigmoid(),
        "residual": lambda: sums * 0.5 + first,
    }[body]()


@dataclass(frozen=True)
class Subject:
    """One body with one schedule."""

    body: str
    width: int
    swapped: bool
    vector: int
    chunk: int
    blocks: int = 1  # that share a processor
    together: int = 0  # phases of a transposed convolution along its width; 0: it is none
    dtype: torch.dtype = torch.float32
    parts: int = 1  # float16 parts of a number of float32
    last: int = 0  # 1: images lie channels last; 2: weights, too
    cells: bool = False  # whether pixels of a cell are channels
    joined: bool = False  # whether tiles go on from image to image
    grouped: bool = False  # channels last: whether there may be several groups
    back: bool = False  # whether it is transposed, of stride 1

    @property
    def entry(self) -> str:
        """The name of its C function."""
        side = "swapped" if self.swapped else "straight"
        kind = f"transposed{self.together}_" * bool(self.together)
        kind += f"last{self.last}_" * bool(self.last)
        kind = f"{self.stored}_{kind}" if self.dtype in KINDS else kind
        kind += "full_" * (self.parts > 1) + "cells_" * self.cells + "joined_" * self.joined
        kind += "grouped_" * self.grouped + "back_" * self.back
        return f"{kind}{self.body}_{self.width}_{side}_{self.vector}_{self.chunk}_{self.blocks}"

    @property
    def stored(self) -> str:
        """The skeletons' name of its type."""
        return KINDS.get(self.dtype, "float")

    def text(self) -> str:
        """Its C function; `sizes`: the fields of conv_shape."""
        swapped = "true" if self.swapped else "false"
        chosen = f"{self.width}, {swapped}, 0, {self.vector}, {self.chunk}, {self.blocks}"
        run, shape = f"run_conv{'_multi_image' * self.joined}<{chosen}, {self.parts}>", "s"
        if self.together or self.back:
            run = f"run_conv_transpose<{chosen}, {self.together}, {self.parts}>"
            shape = "s, {{sizes[22], sizes[23], sizes[24]}, sizes[25]}"
        if self.cells:
            run = f"run_conv_space_to_depth<{chosen}, {self.parts}>"
            shape = "s, {{sizes[22], sizes[23], sizes[24]}}"
        if self.last:
            flags = ("false", "true")
            more = f"{flags[self.last == 2]}, {self.parts}, {flags[self.grouped]}"
            run = f"run_conv_channels_last<{chosen}, {more}>"
            if self.together:
                more = f"{flags[self.last == 2]}, {self.parts}"
                run, shape = f"run_conv_transpose_channels_last<{chosen}, {more}>", "s"
        kind = self.stored
        columns = "s.out_channels" if self.last else "s.out_pixels()"
        body = self.body + "_last" * (self.last > 0 and self.body not in ("copy", "residual"))
        body = f"{kind}_bodies::{body}" if self.dtype in KINDS else body
        return f"""
extern "C" int {self.entry}(const {kind}* image, const {kind}* weight, const {kind}* in0,
    {kind}* out0, const int* sizes, void* workspace, int device, void* stream) {{
  conv_shape s{{sizes[0], sizes[1], sizes[2], sizes[3]}};
  int* const fields[] = {{s.in_size, s.out_size, s.kernel, s.stride, s.pad, s.dilation}};
  for (int i = 0; i < 18; ++i) fields[i / 3][i % 3] = sizes[4 + i];
  const {body} body{{in0, out0, {columns}, s.out_channels}};
  return {run}(body, image, weight, {shape}, workspace, device, stream);
}}"""


# Every tile with every chunk; all bodies occur with both sides.
SCHEDULES = tuple(
    Subject(("bias_relu", "copy")[vector == 1], width, swapped, vector, chunk, blocks)
    for width, blocks in (*((width, 1) for width in WIDTHS), (64, 2))
    for swapped in (False, True)
    for chunk in CHUNKS
    for vector in (1, 4)
)
# Every tile with any number of phases; other chunks differ in constants only.
TRANSPOSED = tuple(
    replace(s, together=together)
    for s in SCHEDULES
    for together in TOGETHER
    if s.chunk == 64 or (s.width == 128 and together == 2)
)
EXTRAS = tuple(
    Subject(body, width, swapped, 4, 64, blocks)
    for body in ("mish_twice", "bias_sigmoid", "residual")
    for width, swapped, blocks in ((256, False, 1), (128, True, 1), (64, True, 2))
)
# Of Hopper only: tiles whose last 64 columns are 32, of pixels or channels, and tiles that a group
# of warps owns.
BETWEEN = tuple(
    Subject(("bias_relu", "copy")[vector == 1], width, swapped, vector, chunk)
    for width, swapped in ((96, True), (160, True), (160, False), (224, True), (224, False))
    for chunk, vector in ((16, 1), (64, 1), (64, 4))
)
# The same for few channels, where blocks share a processor or not.
FEW = tuple(
    Subject(("bias_relu", "copy")[vector == 1], FEW_CHANNELS, True, vector, chunk, blocks)
    for blocks in (1, 2)
    for chunk, vector in ((16, 1), (32, 4), (64, 1), (64, 4))
)
BETWEEN += tuple(s for s in FEW if s.blocks == 2)
BETWEEN += tuple(
    Subject(("bias_relu", "copy")[vector == 1], width, swapped, vector, chunk, 2)
    for width, swapped in (*CONV_PINGPONG, *TRANSPOSED_PINGPONG)
    for chunk, vector in ((16, 1), (64, 4))
)
BETWEEN += tuple(replace(s, body="residual") for s in BETWEEN if s.chunk == 64 and s.vector == 4)
OWN_PHASES = tuple(
    Subject(("bias_relu", "copy")[vector == 1], width, True, vector, 64, 2, 2)
    for width, _ in TRANSPOSED_PINGPONG
    for vector in (1, 4)
)
HALF_BETWEEN = tuple(
    replace(s, dtype=dtype)
    for dtype in KINDS
    for s in BETWEEN
    if s.swapped and (s.blocks == 1 or s.width == FEW_CHANNELS)
)


# Transposed ones of stride 1, of every class.
BACK = tuple(
    replace(s, back=True, dtype=dtype, parts=parts)
    for dtype, parts in ((torch.float32, 1), (torch.float32, 2), (torch.bfloat16, 1))
    for s in (*SCHEDULES, *EXTRAS, *BETWEEN)
    if (s.chunk == 64 and s.width in (64, 128) and s.blocks == (2 if s.width == 64 else 1))
    or (s.entry == "residual_160_swapped_4_64_1" and dtype is torch.float32)
    if parts == 1 or s.width == 128
)


# Channels last, of every type: each width, side and chunk, weights of either kind.
LAST = tuple(
    replace(s, dtype=dtype, last=1 + (s.vector == 4))
    for dtype in (torch.float32, *KINDS)
    for s in (*SCHEDULES, *EXTRAS)
    if s.chunk == 64 or s.width == (128 if s.swapped else 256)
)
# Of those, some for several groups, and in full float32 for one, too.
MORE_LAST = tuple(
    replace(s, grouped=grouped, parts=parts)
    for parts, grouped in ((1, True), (2, True), (2, False))
    for s in LAST
    if s.width == 128 or (s.width == 64 and s.blocks == (2 if parts == 1 else 1))
    if parts == 1 or s.dtype is torch.float32
)
# The same of transposed ones, whose phases are not stacked.
LAST_TRANSPOSED = tuple(
    replace(s, grouped=False, together=1)
    for s in MORE_LAST
    if s.parts == 2 - s.grouped and s.dtype is not torch.float16
)
# Of 16 bits: every tile with one chunk or another, all tails, and any number of phases.
HALVES = tuple(
    replace(s, dtype=dtype)
    for dtype in KINDS
    for s in (*SCHEDULES, *EXTRAS, *TRANSPOSED)
    if (s.chunk == 64 and s.width in (64, 256)) or (s.width == 128 and s.together in (0, 2))
)


# In full float32: every tile that has registers enough, all tails, and any number of phases.
FULL = tuple(
    replace(s, parts=2)
    for s in (*SCHEDULES, *EXTRAS, *TRANSPOSED)
    if s.width in FLOAT32_WIDTHS and s.blocks == 1
)
FULL += tuple(replace(s, parts=2) for s in FEW if s.blocks == 1)

# Pixels of cells as channels, which only packing knows of: every chunk, of every class.
CELLS = tuple(
    replace(s, cells=True, dtype=dtype, parts=parts)
    for dtype, parts in ((torch.float32, 1), (torch.float32, 2), (torch.bfloat16, 1))
    for s in SCHEDULES
    if s.width == 128 or (s.width == 256 and s.chunk == 16 and parts == 1)
)

# Tiles that go on from image to image: every tile of every class, and of one every chunk and tail.
JOINED = tuple(
    replace(s, joined=True, dtype=dtype, parts=parts)
    for dtype, parts in ((torch.float32, 1), (torch.float32, 2), (torch.bfloat16, 1))
    for s in (*SCHEDULES, *(EXTRAS if dtype is torch.float32 and parts == 1 else ()))
    if parts == 1 or (s.width in FLOAT32_WIDTHS and s.blocks == 1)
    if s.chunk == 64 or (s.width == 128 and dtype is torch.float32 and parts == 1)
)
JOINED += tuple(
    replace(s, joined=True)
    for s in BETWEEN
    if s.chunk == 64 and (s.blocks == 1 or s.width == FEW_CHANNELS)
)
JOINED += tuple(replace(s, joined=True, parts=2) for s in FEW if s.chunk == 64 and s.blocks == 1)


def source(some: Iterable[Subject], arch: str = "sm_90a") -> str:
    """The CUDA text with the entries of `some`, from the sections that they need."""
    names = [*WORDS, "run_conv", "run_conv_transpose", "run_conv_space_to_depth"]
    more = ["run_conv_channels_last", "run_conv_transpose_channels_last", "run_conv_multi_image"]
    names += more * (arch == "sm_90a")
    skeleton = select_sections(PARTS[arch], names)
    every = list(some)
    bodies = BODIES + "".join(
        f"namespace {kind}_bodies {{{re.sub(r'float[*]', f'{kind}*', BODIES)}}}\n"
        for kind in dict.fromkeys(s.stored for s in every if s.dtype in KINDS)
    )
    entries = "".join(subject.text() for subject in every)
    return f"{skeleton}\n{bodies}\n{entries}\n}}  // namespace fusewright\n"


def check_rooms(section: str, checks: str, folder: Path) -> None:
    """Run C++ of which each of `checks` returns no 0 where the skeleton counts other bytes than
    Python does; needs nvcc and no GPU."""
    main = f"int main() {{\n  packed_image packed;\n{checks}  return 0;\n}}\n"
    text, program = folder / "check.cu", folder / "check"
    skeleton = select_sections("sm90", [section])
    text.write_text(f"{skeleton}\n}}\nusing namespace fusewright;\n{main}", encoding="utf-8")
    command = ["nvcc", "-std=c++17", "-arch=sm_90a", "-o", str(program), str(text)]
    subprocess.run(command, check=True, capture_output=True)
    assert subprocess.run([str(program)], check=False).returncode == 0


def library(
    some: Sequence[Subject],
    folder: Path,
    edit: Callable[[str], str] = lambda text: text,
    arch: str = "sm_90a",
) -> Library:
    """Compile `some`, as many compilers at once as there are cores; `edit` changes the text."""
    return subjects.library_for(some, lambda part: edit(source(part, arch)), folder, arch)


def _three(sizes: Sequence[int], missing: int) -> tuple[int, int, int]:
    depth, height, width = (*(missing,) * (3 - len(sizes)), *sizes)
    return depth, height, width


@dataclass(frozen=True)
class Problem:
    """One convolution; sizes have one number per dimension, `pad` before and behind."""

    images: int
    in_channels: int
    out_channels: int
    in_size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...] = ()
    pad: tuple[tuple[int, int], ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1
    transposed: bool = False
    behind: tuple[int, ...] = ()  # output padding
    cells: tuple[int, int, int] | None = None  # pixels of one that are channels, from D to W

    @property
    def rank(self) -> int:
        return len(self.in_size)

    @property
    def steps(self) -> tuple[int, ...]:
        return self.stride or (1,) * self.rank

    @property
    def spread(self) -> tuple[int, ...]:
        return self.dilation or (1,) * self.rank

    @property
    def margins(self) -> tuple[tuple[int, int], ...]:
        return self.pad or ((0, 0),) * self.rank

    @property
    def output_padding(self) -> tuple[int, ...]:
        return self.behind or (0,) * self.rank

    @property
    def out_size(self) -> tuple[int, ...]:
        every = zip(self.in_size, self.kernel, self.steps, self.margins, self.spread, strict=True)
        if self.transposed:
            sizes = [(i - 1) * s - sum(p) + (k - 1) * d + 1 for i, k, s, p, d in every]
            return tuple(a + b for a, b in zip(sizes, self.output_padding, strict=True))
        return tuple((i + sum(p) - (k - 1) * d - 1) // s + 1 for i, k, s, p, d in every)

    @property
    def flops(self) -> float:
        taps = prod(self.kernel) * self.in_channels // self.groups
        pixels = prod(self.in_size if self.transposed else self.out_size)
        return 2.0 * self.images * self.out_channels * pixels * taps

    @property
    def phases(self) -> SubpixelPhases:
        """Of a transposed convolution."""
        lows = tuple(low for low, _ in self.margins)
        kernel, steps, spread, out = (
            _three(s, 1) for s in (self.kernel, self.steps, self.spread, self.out_size)
        )
        return phases(kernel, steps, _three(lows, 0), spread, out, self.out_channels // self.groups)

    @property
    def together(self) -> int:
        """The `together` of the subjects that compute it."""
        return self.phases.stacked[2] if self.transposed else 0

    def chunk(self) -> int:
        """The chunk that leaves the fewest channels empty, the widest of several."""
        channels = self.in_channels // self.groups
        return min(CHUNKS, key=lambda chunk: (-(-channels // chunk) * chunk, -chunk))

    def numbers(self) -> list[int]:
        """The fields of conv_shape."""
        lows = tuple(low for low, _ in self.margins)
        ones = (self.in_size, self.out_size, self.kernel, self.steps)
        sizes = [_three(size, 1) for size in ones] + [_three(lows, 0), _three(self.spread, 1)]
        head = (self.images, self.groups, self.in_channels, self.out_channels)
        numbers = [*head, *(number for size in sizes for number in size), *(self.cells or ())]
        return [*numbers, *self.phases.stacked, self.phases.shift] if self.transposed else numbers

    def workspace_bytes(self, chunk: int, each: int = 1) -> int:
        """With `each` parts."""
        channels = self.in_channels // self.groups * prod(self.cells or ())
        channels = -(-channels // chunk) * chunk
        rows, taps, pixels = self.out_channels, prod(self.kernel), prod(self.in_size)
        if self.transposed:
            rows, taps = rows * prod(self.steps), prod(self.phases.taps)
        if self.cells:
            every = zip(_three(self.kernel, 1), self.cells, strict=True)
            along = [-(-k // cell) for k, cell in every]
            sizes = zip(
                _three(self.out_size, 1), along, self.cells, self.numbers()[4:7], strict=True
            )
            taps, pixels = prod(along), prod(i if c == 1 else o + k - 1 for o, k, c, i in sizes)
        parts = (
            self.images * pixels * self.groups * channels * 2 * each,
            rows * taps * channels * 2 * each,
            (rows + 256) * 4,
            self.images * 4,
            self.images * 16,
        )
        return sum(-(-part // 256) * 256 for part in parts)

    def image(self) -> Tensor:
        return torch.randn(self.images, self.in_channels, *self.in_size, device="cuda")

    def weight(self) -> Tensor:
        depth = self.in_channels // self.groups * prod(self.kernel)
        channels = (self.out_channels, self.in_channels // self.groups)
        if self.transposed:
            channels = (self.in_channels, self.out_channels // self.groups)
        return torch.randn(*channels, *self.kernel, device="cuda") / sqrt(depth)

    def result(self) -> tuple[int, ...]:
        """The shape of what comes out."""
        return (self.images, self.out_channels, *self.out_size)

    def torch(self, image: Tensor, weight: Tensor) -> Tensor:
        """The same by PyTorch, in the tensors' precision."""
        if self.transposed:
            functions = functional.conv_transpose1d, functional.conv_transpose2d
            transposed: Callable[..., Tensor] = (*functions, functional.conv_transpose3d)[
                self.rank - 1
            ]
            pads = tuple(low for low, _ in self.margins)
            more = (self.output_padding, self.groups, self.spread)
            return transposed(image, weight, None, self.steps, pads, *more)
        if any(low != high for low, high in self.margins):
            sides = [side for margin in reversed(self.margins) for side in margin]
            image, margins = functional.pad(image, sides), (0,) * self.rank
        else:
            margins = tuple(low for low, _ in self.margins)
        every = (functional.conv1d, functional.conv2d, functional.conv3d)
        run: Callable[..., Tensor] = every[self.rank - 1]
        return run(image, weight, None, self.steps, margins, self.spread, self.groups)


@dataclass(frozen=True)
class Call:
    """Operands of one launch."""

    problem: Problem
    image: Tensor
    weight: Tensor
    in0: Tensor
    out: Tensor
    workspace: Tensor

    def launch(self, found: Library, subject: Subject) -> int:
        """Run on the current stream; the CUDA error."""
        numbers = self.problem.numbers()
        operands = (self.image, self.weight, self.in0, self.out)
        return found.function(subject)(
            *(ctypes.c_void_p(t.data_ptr()) for t in operands),
            (ctypes.c_int * len(numbers))(*numbers),
            ctypes.c_void_p(self.workspace.data_ptr()),
            ctypes.c_int(self.image.device.index or 0),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        )


MARGIN, MARK = 64, -12345.5  # elements before and behind an output that nobody may touch


def last(x: Tensor) -> Tensor:
    """The same with its channels innermost."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def operand(subject: Subject, problem: Problem) -> Tensor:
    """A random in0 of the size that the body reads."""
    shape = problem.result() if subject.body == "residual" else (problem.out_channels,)
    return torch.randn(shape, device="cuda").to(subject.dtype)


def guarded(
    found: Library,
    subject: Subject,
    problem: Problem,
    image: Tensor,
    weight: Tensor,
    in0: Tensor,
) -> tuple[Tensor, int, bool]:
    """The result, the CUDA error, and whether something was written outside of the result."""
    shape = problem.result()
    count = prod(shape)
    if subject.last:
        image, in0 = last(image), last(in0) if subject.body == "residual" else in0
        weight = last(weight) if subject.last == 2 else weight
        shape = (shape[0], *shape[2:], shape[1])
    room = torch.full((count + 2 * MARGIN,), MARK, dtype=subject.dtype, device="cuda")
    mark = room[0].item()
    out = room[MARGIN : MARGIN + count].view(shape)
    need = problem.workspace_bytes(subject.chunk, subject.parts)
    space = torch.full((need + MARGIN,), 0xFF, dtype=torch.uint8, device="cuda")
    code = Call(problem, image, weight, in0, out, space).launch(found, subject)
    torch.cuda.synchronize()
    edges = (room[:MARGIN] != mark, room[MARGIN + count :] != mark, space[need:] != 0xFF)
    out = out.movedim(-1, 1) if subject.last else out
    return out, code, any(bool(edge.any()) for edge in edges)


@dataclass(frozen=True)
class Exact:
    """The sums in float64, and the largest error that each may have."""

    sums: Tensor
    allowed: Tensor


def exact(problem: Problem, image: Tensor, weight: Tensor, parts: int = 1) -> Exact:
    """Both factors are rounded to 11 bits, or to 2^-33 of the image's largest element.

    A rounding is at most 2^-12; those of many products are as good as independent. The tensor cores
    drop bits below 2^-23 at each of their steps of 16 products. Factors of 16 bits stay as they
    are. Two parts keep 22 bits, or 2^-51 of the largest element; sums of 64 are rounded once more.
    """
    x, w = image.double(), weight.double()
    finite = torch.where(x.isfinite(), x.abs(), 0.0)
    largest = finite.flatten(1).amax(1).view(-1, *(1,) * (x.dim() - 1))
    depth = problem.in_channels // problem.groups * prod(problem.kernel)
    allowed = (depth / 16 + 1) * 2.0**-23 * problem.torch(finite, w.abs())
    if image.dtype in KINDS:
        return Exact(problem.torch(x, w), allowed)
    if parts == 2:
        allowed = (2.0**-20 + depth / 64 * 2.0**-24) * problem.torch(finite, w.abs())
        allowed += 2.0**-51 * problem.torch(torch.ones_like(x) * largest, w.abs())
        rows = _largest_of_rows(problem, w)
        allowed += 2.0**-51 * problem.torch(finite, torch.ones_like(w) * rows)
        return Exact(problem.torch(x, w), allowed)
    allowed += 6 * 2.0**-12 * problem.torch(finite.square(), w.square()).abs().sqrt()
    allowed += 2.0**-33 * problem.torch(torch.ones_like(x) * largest, w.abs())
    return Exact(problem.torch(x, w), allowed)


def _largest_of_rows(problem: Problem, weight: Tensor) -> Tensor:
    """Of each result's weights, the largest size that is finite."""
    sizes = torch.where(weight.isfinite(), weight.abs(), 0.0)
    if not problem.transposed:
        return sizes.flatten(1).amax(1).view(-1, *(1,) * (weight.dim() - 1))
    every = tuple(k for k in range(weight.dim()) if k != 1)
    return sizes.amax(every, keepdim=True)


def excess(subject: Subject, truth: Exact, in0: Tensor, actual: Tensor) -> float:
    """The largest error over what is allowed: fine up to 1; what is not finite must be equal."""
    expected = meaning(subject.body, truth.sums, in0)
    tail = 0.0 if subject.body == "copy" else in0.abs().max().item()
    # No body is steeper than 1.2; 1e-6: of its own arithmetic.
    allowed = 1.2 * truth.allowed + 1e-6 * (expected.abs() * bool(tail) + tail) + 1e-45
    if subject.dtype in KINDS:  # rounded once more, maybe to an infinity
        info = torch.finfo(subject.dtype)
        allowed += 1.01 * info.eps / 2 * (expected.abs() + info.smallest_normal)
        expected = torch.where(expected.abs() > info.max, expected.to(subject.dtype), expected)
    same = (expected.isnan() & actual.isnan()) | (actual == expected)
    found = torch.where(same, 0.0, (actual.double() - expected).abs() / allowed)
    return float(found.max().nan_to_num(nan=float("inf")).item())
