"""What a machine is, as the planner needs it: a name goes in, a `Target` comes out.

A new machine is one more constant here. Bandwidths and rates are for predictions and for choosing
schedules only; nothing is ever claimed from them.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusewright.errors import BadUsage


@dataclass(frozen=True)
class Target:
    """One machine.

    name: what `--target` calls it.  language: "cpp" or "cuda".  arch: nvcc's architecture or "".
    copy_bytes_per_s: read plus write of a large copy.  matmul_flops: float32 matrix product rate of
    the library.  fast_bytes: memory near one worker (L2 of a core; registers of a thread block).
    product: the skeleton of its product kernels, `cuda/product_<this>.cuh`, or "".  product_flops:
    the rate of these kernels for float32.  half_flops: the rate of library products of 16 bits.
    tf32_flops: the same for a convolution of float32, as PyTorch runs it by default.
    half_products: whether there are product kernels for these.  inline_products: whether there are
    float32 ones that pack nothing.  convolutions: what its convolution kernels can do: round
    as TF32 does ("rounded"), full float32 ("full"), fold over channels ("folded"), take channels
    that lie last ("last"), pixels as channels ("cells"), compute windows of pixels together
    ("windowed"), be maps where they are depthwise ("depthwise").
    processors: how many thread blocks of a product run at once.  cluster: how many thread blocks
    can share a row, since they reach each other's shared memory; 1 for none do.  paged_bytes:
    library products whose results have so many bytes write to huge pages; 0 for none.
    """

    name: str
    language: str
    arch: str
    copy_bytes_per_s: float
    matmul_flops: float
    fast_bytes: int
    source: str
    product: str = ""
    product_flops: float = 0.0
    half_flops: float = 0.0
    tf32_flops: float = 0.0
    half_products: bool = False
    inline_products: bool = False
    convolutions: tuple[str, ...] = ()
    processors: int = 0
    cluster: int = 1
    paged_bytes: int = 0

    @property
    def device(self) -> str:
        """PyTorch's device type."""
        return "cuda" if self.language == "cuda" else "cpu"


TARGETS = {
    target.name: target
    for target in (
        Target(
            "cpu",
            "cpp",
            "",
            12e9,
            0.1e12,
            128 * 1024,
            source="two cores of a server CPU, facts.md; 16 bits as float32 is a guess",
            half_flops=0.1e12,
            tf32_flops=0.1e12,
            paged_bytes=32 << 20,  # glibc maps blocks of this size afresh at every call
        ),
        Target(
            "sm_80",
            "cuda",
            "sm_80",
            1.7e12,
            19.5e12,
            64 * 1024,
            source="A100 40 GB datasheet; rates of product kernels and of 16 bits are predictions",
            product="sm80",
            product_flops=60e12,
            half_flops=250e12,
            tf32_flops=100e12,
            inline_products=True,
            convolutions=("rounded", "cells", "depthwise"),
            processors=108,
        ),
        Target(
            "sm_90a",
            "cuda",
            "sm_90a",
            4.3e12,
            51e12,
            64 * 1024,
            source="H200: copy, products in float32 and float16, three for one in float32 measured",
            product="sm90",
            product_flops=250e12,
            half_flops=770e12,
            tf32_flops=175e12,
            half_products=True,
            inline_products=True,
            convolutions=("rounded", "full", "folded", "last", "cells", "windowed", "depthwise"),
            processors=132,
            cluster=8,
        ),
    )
}


def target(name: str) -> Target:
    """Return the machine called `name`; raises BadUsage for an unknown one."""
    if name not in TARGETS:
        raise BadUsage(f"Unknown target {name!r}: choose one of {', '.join(TARGETS)} or cuda.")
    return TARGETS[name]
