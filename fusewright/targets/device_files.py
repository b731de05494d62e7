"""Which hand-written C++ and CUDA an architecture runs: the files of its device library.

`Arch.device_library` names a row. Its files lie below fusewright/, what any kernel may use in
devicelib/, the rest with its family; an emitted file has their sections in this order.
"""

from __future__ import annotations

from collections.abc import Mapping

_CPP = (
    "devicelib/cpp/math.h",
    "devicelib/cpp/team.h",
    "devicelib/cpp/scan.h",
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
    "kernels/tensor_core/cuda/tensor_maps_sm90.cuh",
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
DEVICE_FILES: Mapping[str, tuple[str, ...]] = {
    "cpp": _CPP,
    "cuda": _CUDA,
    "sm80": (*_CUDA, *_TENSOR_CORE, *_SM80),
    "sm90": (*_CUDA, *_TENSOR_CORE, *_SM90),
}
