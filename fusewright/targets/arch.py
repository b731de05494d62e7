"""What an architecture can do, as planner and printer ask for it: one `Arch` a row.

Nobody else asks for an architecture by name. A new one is one row here: its instructions, its
limits, how nvcc is called for it, which device text it runs, and which kernels of that it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

# Kernels that not every GPU has. Those without tensor cores are not listed: all GPUs run them, but
# for rows that blocks of a cluster or tensor maps bring, which `cluster` and `async_copy` decide.
KernelName = Literal[
    "gemm.packed",  # float32 as two float16 terms, the smaller factor packed first
    "gemm.unpacked",  # the same, packing nothing
    "gemm.half",  # 16 bits
    "attention",  # one pass over keys and values
    "conv",  # 16 bits, and float32 rounded as TF32 rounds it
    "conv.float32",  # float32 in full
    "conv.channel_reduction",  # reductions over channels in the tiles
    "conv.channels_last",  # images that lie channels last
    "conv.space_to_depth",  # few channels: pixels of a cell as channels
    "conv.pool_fusion",  # pixels of a pool's window together
    "conv.multi_image",  # tiles with pixels of two images
    "conv.depthwise",  # depthwise ones as maps
]

MMA_SYNC_KERNELS: frozenset[KernelName] = frozenset(
    ("gemm.packed", "gemm.unpacked", "attention", "conv", "conv.space_to_depth", "conv.depthwise")
)
WGMMA_KERNELS: frozenset[KernelName] = MMA_SYNC_KERNELS | {
    "gemm.half",
    "conv.float32",
    "conv.channel_reduction",
    "conv.channels_last",
    "conv.pool_fusion",
    "conv.multi_image",
}


@dataclass(frozen=True)
class Arch:
    """One architecture.

    name: nvcc's, or "cpu".  language: of its kernels.  capability: how a GPU says that it is one.
    device_library: which row of `targets/device_files.py` its kernels are written with; None: none
    are written for it, and a GPU of it runs those of an older one, if that has `forward_ptx`.
    tensor_core: the instruction of its tensor cores that kernels use.  async_copy: how tiles come
    into shared memory: by copies of each thread, or by tensor maps.  cluster: how many thread
    blocks reach each other's shared memory; 1 for none do.  shared_bytes_per_block: the most that
    one block may ask for.  forward_ptx: newer GPUs run its text, too, which nvcc then also keeps as
    PTX.  kernels: what is written for its instructions; which of them fit its shared memory is
    asked of `kernels/tensor_core/support.py`.
    """

    name: str
    language: Literal["cpp", "cuda"] = "cuda"
    capability: tuple[int, int] | None = None
    device_library: str | None = "cuda"
    tensor_core: Literal["mma.sync", "wgmma"] | None = None
    async_copy: Literal["cp.async", "tensor map"] | None = None
    cluster: int = 1
    shared_bytes_per_block: int = 0
    forward_ptx: bool = False
    kernels: frozenset[KernelName] = frozenset()

    @property
    def gencode(self) -> str:
        """nvcc's option for it: machine code, and PTX where newer GPUs can run that."""
        number = self.name.removeprefix("sm_")
        code = f"[sm_{number},compute_{number}]" if self.forward_ptx else self.name
        return f"-gencode=arch=compute_{number},code={code}"


# To a kernel, a GPU of this kind is an A100 with less shared memory for a block.
_WITH_99_KB = Arch(
    "sm_86",
    capability=(8, 6),
    device_library="sm80",
    tensor_core="mma.sync",
    async_copy="cp.async",
    shared_bytes_per_block=99 << 10,
    forward_ptx=True,
    kernels=MMA_SYNC_KERNELS,
)
_BLACKWELL = Arch(
    "sm_100a",
    capability=(10, 0),
    device_library=None,
    async_copy="tensor map",
    cluster=8,
    shared_bytes_per_block=227 << 10,
)
# Limits are those of the CUDA C++ Programming Guide, "Compute Capabilities", technical
# specifications for each compute capability.
ARCHES: Mapping[str, Arch] = {
    arch.name: arch
    for arch in (
        Arch("cpu", language="cpp", device_library="cpp"),
        # Neither bfloat16 nor cp.async, which the device text takes for granted.
        Arch("sm_70", capability=(7, 0), device_library=None, shared_bytes_per_block=96 << 10),
        Arch("sm_75", capability=(7, 5), device_library=None, shared_bytes_per_block=64 << 10),
        Arch(
            "sm_80",
            capability=(8, 0),
            device_library="sm80",
            tensor_core="mma.sync",
            async_copy="cp.async",
            shared_bytes_per_block=163 << 10,
            forward_ptx=True,
            kernels=MMA_SYNC_KERNELS,
        ),
        # An RTX 3090. Convolutions with tiles of 64 and attention of up to 64 columns fit 99 KB;
        # the least tile of a product does not, so products stay PyTorch's
        # (kernels/tensor_core/support.py). It has neither wgmma nor tensor maps, so what is in
        # WGMMA_KERNELS alone is not written for it.
        _WITH_99_KB,
        # An RTX 4090. Convolutions with tiles of 64 and attention of up to 64 columns fit 99 KB;
        # the least tile of a product does not, so products stay PyTorch's
        # (kernels/tensor_core/support.py). It has neither wgmma nor tensor maps, so what is in
        # WGMMA_KERNELS alone is not written for it.
        replace(_WITH_99_KB, name="sm_89", capability=(8, 9)),
        Arch(
            "sm_90a",
            capability=(9, 0),
            device_library="sm90",
            tensor_core="wgmma",
            async_copy="tensor map",
            cluster=8,
            shared_bytes_per_block=227 << 10,
            kernels=WGMMA_KERNELS,
        ),
        # A B200. No wgmma: its tensor cores want kernels that nobody has written yet.
        _BLACKWELL,
        # An RTX 5090. No wgmma: its tensor cores want kernels that nobody has written yet.
        replace(_BLACKWELL, name="sm_120a", capability=(12, 0), shared_bytes_per_block=99 << 10),
    )
}
