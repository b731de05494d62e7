"""How images and weights of full float32 are packed, run by threads of the CPU: places and bits.

What tensor cores make of that is told in tests/kernels/conv/test_full_float32.py, from the same two
parts.
"""

from __future__ import annotations

import ctypes
import math
import re
import shutil
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from fusewright.codegen.device_library import select_sections
from tests.kernels.conv.test_full_float32 import EVEN, split
from tests.support.conv_subjects import CHUNKS, Problem
from tests.support.emulator.threads import library_of

# Warps: 32 threads that meet. What only a GPU understands, and the same in C++.
WARPS = r"""
#include <type_traits>
#define __host__
#define __grid_constant__
using std::max;
using std::min;
inline barrier meetings[8];
inline unsigned said[256];
inline int wrong;
inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
inline void meet() { wait_at(meetings[threadIdx.x / 32]); }
inline unsigned __shfl_xor_sync(unsigned, unsigned mine, int distance) {
  said[threadIdx.x] = mine, meet();
  const unsigned found = said[threadIdx.x ^ distance];
  return meet(), found;
}
inline unsigned __reduce_max_sync(unsigned, unsigned mine) {
  said[threadIdx.x] = mine, meet();
  const unsigned* const warp = said + threadIdx.x / 32 * 32;
  const unsigned found = *std::max_element(warp, warp + 32);
  return meet(), found;
}
inline int __syncthreads_or(int mine) {
  if (mine) wrong = 1;
  __syncthreads();
  const int found = wrong;
  __syncthreads();
  return wrong = 0, __syncthreads(), found;
}
inline void atomicMax(unsigned* to, unsigned x) { *to = max(*to, x); }
inline void atomicMin(unsigned* to, unsigned x) { *to = min(*to, x); }
inline float of_half(unsigned bits) { return __builtin_bit_cast(_Float16, (unsigned short)bits); }
inline unsigned to_half(float x) { return __builtin_bit_cast(unsigned short, _Float16(x)); }
"""
TWINS = (
    (r'asm\("\{[^;]*;[^;]*; cvt.f32.f16 %0, low;[^;]*;', "x = of_half(both & 0xffff);"),
    (r'asm\("\{[^;]*;[^;]*; cvt.f32.f16 %0, high;[^;]*;', "x = of_half(both >> 16);"),
    (r'asm\("cvt.rn.f16x2[^;]*;[^;]*;', "both = to_half(x) | to_half(y) << 16;"),
    (r'asm\("max.NaN[^;]*;[^;]*;',
     "{ const float size = fabsf(x[i / 8][i / 4 % 2][i % 4]);"
     " most = most != most || size != size ? NAN : max(most, size); }"),
)  # fmt: skip
ENTRY = """
extern "C" void pack_{name}{chunk}(const float* image, const float* weight, const int* sizes,
    char* to, long* places) {{
  using namespace fusewright;
  conv_shape given{{sizes[0], sizes[1], sizes[2], sizes[3]}};
  int* const fields[] = {{given.in_size, given.out_size, given.kernel, given.stride, given.pad,
                         given.dilation}};
  for (int i = 0; i < 18; ++i) fields[i / 3][i % 3] = sizes[4 + i];
  using shape = {shape};
  const shape s{{given}};
  constexpr int CHUNK = {chunk};
  packed_image all;
  packed_image_in<{chunk}, 2>(to, s, all);
  for (auto& one : meetings) one = {{32}};
  const bool vectors = s.side_by_side() % 4 == 0;
  launch(grid_of(s.out_channels), 256, [=] {{ pack_weights<2>(weight, s, all); }});
  launch(grid_of(image_tile<{chunk}>::count(s, all) * s.images), 256, [=] {{
    const auto pack = vectors ? &pack_image<true, CHUNK, 2, shape>
                              : &pack_image<false, CHUNK, 2, shape>;
    pack(image, s, all);
  }});
  launch(grid_of(s.images), 256, [=] {{
    const auto check = vectors ? &check_images<true, CHUNK, 2, shape>
                               : &check_images<false, CHUNK, 2, shape>;
    check(image, s, all);
  }});
  const void* const parts[] = {{all.pixels, all.weights, all.image_exponents,
                               all.weight_exponents}};
  for (int i = 0; i < 4; ++i) places[i] = static_cast<const char*>(parts[i]) - to;
}}
"""
FULL, SUSPECT, UNEVEN = 1 << 12, 1 << 20, 1 << 21


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if not shutil.which("g++"):
        pytest.skip("no g++ here")
    text = select_sections("sm90", ["pack_weights", "pack_image", "channels_last_packing"])
    for pattern, twin in TWINS:
        text, count = re.subn(pattern, lambda _, twin=twin: twin, text)  # type: ignore[misc]
        assert count == 1, pattern
    shapes = {"": "conv_shape", "last_": "channels_last_shape<{chunk}, true, float, true>"}
    entries = "".join(
        ENTRY.format(chunk=chunk, name=name, shape=shape.format(chunk=chunk))
        for name, shape in shapes.items()
        for chunk in CHUNKS
    )
    whole = f"#include <algorithm>\n{WARPS}\n{text}\n}}\n{entries}"
    return library_of(whole, tmp_path_factory.mktemp("packing"))


@dataclass(frozen=True)
class Packed:
    """pixels: [images, pixels, part, group, channel].  weights: [part, row, tap, channel].

    images, rows: their exponents, without the mark of full ones, which are in `full`.
    """

    pixels: Tensor
    weights: Tensor
    images: list[int]
    rows: list[int]
    full: tuple[list[bool], list[bool]]


def packed(
    library: ctypes.CDLL,
    p: Problem,
    image: Tensor,
    weight: Tensor,
    chunk: int,
    name: str = "",
) -> Packed:
    """name: "last_" if both lie channels last."""
    if name:
        image, weight = (x.movedim(1, -1).contiguous() for x in (image, weight))
    room = np.full(p.workspace_bytes(chunk, 2), 0xFF, dtype=np.uint8)
    numbers, places = np.array(p.numbers(), dtype=np.int32), np.zeros(4, dtype=np.int64)
    given = (image.numpy(), weight.numpy(), numbers, room, places)
    getattr(library, f"pack_{name}{chunk}")(*(ctypes.c_void_p(x.ctypes.data) for x in given))
    each, taps = p.in_channels // p.groups, math.prod(p.kernel)
    channels, pixels = -(-each // chunk) * chunk, math.prod(p.in_size)

    def part(k: int, kind: type, *shape: int) -> np.ndarray:
        count = math.prod(shape)
        return np.frombuffer(room.data, kind, count, int(places[k])).reshape(shape).copy()

    said = part(2, np.int32, p.images).tolist(), part(3, np.int32, p.out_channels).tolist()
    full = tuple([(e + FULL // 2) & FULL != 0 for e in each] for each in said)
    images, rows = (
        [e - FULL * f for e, f in zip(*both, strict=True)] for both in zip(said, full, strict=True)
    )
    return Packed(
        torch.from_numpy(part(0, np.float16, p.images, pixels, 2, p.groups, channels)),
        torch.from_numpy(part(1, np.float16, 2, p.out_channels, taps, channels)),
        images, rows, (full[0], full[1]),
    )  # fmt: skip


def filled(x: Tensor, channels: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, channels - x.shape[-1]))


def check(p: Problem, image: Tensor, weight: Tensor, found: Packed) -> None:
    """Every part of every element is where it belongs, with the exponent that is said of it."""
    each, channels = p.in_channels // p.groups, found.weights.shape[-1]
    for n, exponent in enumerate(found.images):
        if exponent < SUSPECT // 2:
            lines = image[n].reshape(p.groups, each, -1).permute(2, 0, 1)
            for part, wanted in enumerate(split(lines, 2.0**-exponent)):
                assert torch.equal(found.pixels[n, :, part].double(), filled(wanted, channels))
    for row, exponent in enumerate(found.rows):
        if exponent < SUSPECT // 2:
            lines = weight[row].reshape(each, -1).T
            for part, wanted in enumerate(split(lines, 2.0**-exponent)):
                assert torch.equal(found.weights[part, row].double(), filled(wanted, channels))


PROBLEMS = (
    Problem(2, 20, 5, (13, 11), (3, 3)),
    Problem(2, 72, 3, (8, 9), (1, 2), groups=3),
    Problem(1, 70, 2, (300,), (3,)),
)


@pytest.mark.parametrize("name", ["", "last_"])
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: "-".join(map(str, p.numbers())))
def test_every_element_has_its_place(
    library: ctypes.CDLL, problem: Problem, chunk: int, name: str
) -> None:
    torch.manual_seed(12)
    image = torch.randn(problem.images, problem.in_channels, *problem.in_size)
    image[-1] *= 1e-30
    shape = (problem.out_channels, problem.in_channels // problem.groups, *problem.kernel)
    weight = torch.randn(shape) * torch.logspace(-9, 9, shape[0]).view(-1, *(1,) * (len(shape) - 1))
    found = packed(library, problem, image, weight, chunk, name)
    assert max(found.images + found.rows) < SUSPECT // 2
    check(problem, image, weight, found)


HAZARDS = {
    "spike": (1.0, 1e6, False),
    "spike behind the sample": (1.0, 1e4, False),
    "far apart": (1.0, 1e9, True),
    "zeros": (0.0, 1.0, False),
    "subnormal": (1e-41, 1e-41, False),
    "infinite": (1.0, math.inf, False),
    "not a number": (1.0, math.nan, False),
}


@pytest.mark.parametrize("name", HAZARDS)
def test_what_is_said_of_an_image(library: ctypes.CDLL, name: str) -> None:
    size, spike, uneven = HAZARDS[name]
    torch.manual_seed(13)
    problem = Problem(2, 20, 5, (13, 12), (3, 3))
    image, weight = torch.randn(2, 20, 13, 12) * size, torch.randn(5, 20, 3, 3)
    image[1, 7, 5, 3] = spike
    weight[2, 3, 1, 1] = spike
    found = packed(library, problem, image, weight, 32)
    strange = not math.isfinite(spike)
    kinds = [
        e if e == UNEVEN else SUSPECT * (e > SUSPECT // 2) for e in (found.images[1], found.rows[2])
    ]
    assert kinds == [UNEVEN if uneven else SUSPECT * strange] * 2
    check(problem, image, weight, found)
    most = float(image[1].abs().max())
    if not strange and not uneven:
        power = 2.0 ** -found.images[1]
        assert most * power < 65504
        pixels = image[1].abs().amax(0)
        assert float(pixels[pixels > 0].min()) * power >= EVEN


@pytest.mark.parametrize("name", ["", "last_"])
def test_who_is_full(library: ctypes.CDLL, name: str) -> None:
    """Elements of more bits than float16's; not whole numbers, ones, or sums of few products."""
    torch.manual_seed(15)
    problem = Problem(2, 40, 5, (13, 12), (1, 1))
    image, weight = torch.randn(2, 40, 13, 12), torch.randn(5, 40, 1, 1)
    image[0] = torch.randint(-2047, 2048, image[0].shape)
    weight[1], weight[3] = 1.0, 0.0
    weight[4] = 0.0
    weight[4, 7] = 1.0
    found = packed(library, problem, image, weight, 32, name)
    assert found.full == ([False, True], [True, False, True, False, False])
    few = Problem(2, 20, 5, (13, 12), (1, 1))
    found = packed(library, few, image[:, :20].contiguous(), torch.randn(5, 20, 1, 1), 32, name)
    assert found.full == ([False, True], [False] * 5)


@pytest.mark.parametrize("name", ["", "last_"])
def test_one_small_pixel_is_seen(library: ctypes.CDLL, name: str) -> None:
    """Whatever its channels are, in both images of 20 channels and of more than one chunk."""
    torch.manual_seed(14)
    problem = Problem(1, 40, 2, (13, 12), (1, 1))
    for chunk, first in ((16, 32), (32, 0), (64, 0)):
        image, weight = torch.randn(1, 40, 13, 12), torch.randn(2, 40, 1, 1)
        image[0, first : first + chunk, 12, 11] = 0
        assert packed(library, problem, image, weight, chunk, name).images[0] < SUSPECT // 2
        image[0, first + 3, 12, 11] = 1e-9
        assert packed(library, problem, image, weight, chunk, name).images[0] == UNEVEN
