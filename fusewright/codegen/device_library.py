"""Words -> the sections of the device library that an emitted file needs, in file order.

What any kernel may use lies in devicelib/, the rest with its family. A file is cut by lines
`//@ name: needs a, b`; a section runs to the next such line, and `//@` alone ends the last one.
Text outside sections only serves to compile the file alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fusewright.errors import InternalError

_CPP = (
    "devicelib/cpp/math.h",
    "devicelib/cpp/team.h",
    "kernels/scan/cpp/scan.h",
    "devicelib/cpp/launch.h",
    "kernels/rowwise/cpp/simd_rows.h",
)
_CUDA = (
    "devicelib/cuda/math.cuh",
    "devicelib/cuda/operand.cuh",
    "devicelib/cuda/team.cuh",
    "devicelib/cuda/reductions.cuh",
    "kernels/scan/cuda/scan.cuh",
    "devicelib/cuda/launch.cuh",
    "kernels/rowwise/cuda/rows.cuh",
    "kernels/pointwise/cuda/map.cuh",
    "kernels/pointwise/cuda/sliding_window.cuh",
    "kernels/rowwise/cuda/split_rows.cuh",
    "kernels/rowwise/cuda/partial_reduction.cuh",
    "kernels/rowwise/cuda/grid_resident_rows.cuh",
    "kernels/scan/cuda/chunked_scan.cuh",
)
_TENSOR_CORE = (
    "kernels/tensor_core/cuda/split_float32.cuh",
    "kernels/tensor_core/cuda/epilogue.cuh",
    "kernels/gemm/cuda/triangular_tiles.cuh",
    "devicelib/cuda/instructions_sm80.cuh",
    "kernels/attention/cuda/packed_keys_values.cuh",
    "kernels/attention/cuda/attention_fixup.cuh",
    "kernels/attention/cuda/attention.cuh",
)
_SM80 = (
    "kernels/tensor_core/cuda/tile_order_sm80.cuh",
    "kernels/gemm/cuda/triangular_tiles_sm80.cuh",
    "kernels/tensor_core/cuda/tile_sm80.cuh",
    "kernels/gemm/cuda/gemm_sm80.cuh",
    "kernels/gemm/cuda/gemm_unpacked_sm80.cuh",
    "kernels/conv/cuda/pack_image.cuh",
    "kernels/conv/cuda/pack_half_image.cuh",
    "kernels/conv/cuda/conv.cuh",
    "kernels/conv/cuda/conv_sm80.cuh",
    "kernels/conv/cuda/transposed.cuh",
    "kernels/conv/cuda/space_to_depth.cuh",
)
_SM90 = (
    "devicelib/cuda/barriers_sm90.cuh",
    "kernels/rowwise/cuda/cluster_rows_sm90.cuh",
    "devicelib/cuda/instructions_sm90.cuh",
    "kernels/tensor_core/cuda/register_epilogue_sm90.cuh",
    "kernels/tensor_core/cuda/tile_sm90.cuh",
    "kernels/gemm/cuda/triangular_tiles_sm90.cuh",
    "kernels/tensor_core/cuda/split_k_sm90.cuh",
    "kernels/gemm/cuda/tma_pipeline_sm90.cuh",
    "kernels/gemm/cuda/gemm_sm90.cuh",
    "kernels/gemm/cuda/gemm_unpacked_sm90.cuh",
    "kernels/tensor_core/cuda/half_operands_sm90.cuh",
    "kernels/gemm/cuda/gemm_half_sm90.cuh",
    "kernels/rowwise/cuda/pipelined_rows_sm90.cuh",
    "kernels/conv/cuda/pack_image.cuh",
    "kernels/conv/cuda/pack_half_image.cuh",
    "kernels/conv/cuda/conv.cuh",
    "kernels/conv/cuda/channel_reduction_sm90.cuh",
    "kernels/conv/cuda/conv_sm90.cuh",
    "kernels/conv/cuda/conv_launch_sm90.cuh",
    "kernels/conv/cuda/transposed.cuh",
    "kernels/conv/cuda/subpixel_store_sm90.cuh",
    "kernels/conv/cuda/space_to_depth.cuh",
    "kernels/conv/cuda/channels_last_sm90.cuh",
    "kernels/conv/cuda/transposed_channels_last_sm90.cuh",
    "kernels/conv/cuda/pool_fusion_sm90.cuh",
    "kernels/conv/cuda/pixel_reduction_sm90.cuh",
    "kernels/conv/cuda/multi_image_tiles_sm90.cuh",
)
# A language, or the product kernels that a CUDA target has (`Target.product`) -> the files below
# fusewright/, in the order in which an emitted file has their sections.
FILES = {
    "cpp": _CPP,
    "cuda": _CUDA,
    "sm80": (*_CUDA, *_TENSOR_CORE, *_SM80),
    "sm90": (*_CUDA, *_TENSOR_CORE, *_SM90),
}


@dataclass(frozen=True)
class DeviceSection:
    """One piece of a file: its name, the names of those it calls, its text."""

    name: str
    needs: tuple[str, ...]
    text: str


@cache
def sections(language: str) -> tuple[DeviceSection, ...]:
    """All sections of a language, in order."""
    found: list[DeviceSection] = []
    for name in FILES[language]:
        text = (files("fusewright") / name).read_text(encoding="utf-8")
        found.extend(cut(text))
    return tuple(found)


def cut(text: str) -> list[DeviceSection]:
    """The sections of one file."""
    found: list[DeviceSection] = []
    name, lines = "", list[str]()
    needs: tuple[str, ...] = ()
    for line in [*text.splitlines(), "//@"]:
        if not line.startswith("//@"):
            lines.append(line)
            continue
        if name:
            found.append(DeviceSection(name, needs, "\n".join(lines).strip("\n")))
        head, _, tail = line.removeprefix("//@").partition(":")
        name = head.strip()
        words = tail.replace("needs", "").replace(",", " ").split()
        needs, lines = tuple(words), []
    return found


def select_sections(language: str, words: Iterable[str]) -> str:
    """The text of the sections called `words` and of all they need; unknown words are an error."""
    table = {s.name: s for s in sections(language)}
    wanted: set[str] = set()
    queue = ["begin", *words]
    while queue:
        word = queue.pop()
        if word not in table:
            raise InternalError(f"The device library for {language} has no section {word!r}.")
        if word not in wanted:
            wanted.add(word)
            queue.extend(table[word].needs)
    return "\n\n".join(s.text for s in sections(language) if s.name in wanted)


def sections_for(language: str, words: Iterable[str]) -> str:
    """`select_sections`, where not every word is a section."""
    return select_sections(language, sorted({s.name for s in sections(language)} & set(words)))
