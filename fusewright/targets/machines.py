"""What a machine is like beside its architecture: how much of it there is, and how fast it is.

Bandwidths and rates are for predictions and for choosing schedules only; nothing is ever claimed
from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """One machine, or what stands for all machines of an architecture.

    arch: the name of its architecture.  copy_bytes_per_s: read plus write of a large copy.
    matmul_flops: float32 matrix product rate of the library.  half_flops: the same of 16 bits.
    tf32_flops: the same for a convolution of float32, as PyTorch runs it by default.
    kernel_flops: the rate of our own products for float32.  processors: how many thread blocks of
    a product run at once.  busy_threads: so many threads keep it busy.  paged_bytes: library
    products whose results have so many bytes write to huge pages; None for none do.
    source: where the numbers are from.
    """

    name: str
    arch: str
    copy_bytes_per_s: float
    matmul_flops: float
    half_flops: float
    tf32_flops: float
    source: str
    kernel_flops: float = 0.0
    processors: int = 0
    busy_threads: int = 0
    paged_bytes: int | None = None


# One for each architecture that kernels are written for, so that a model gives the same file on all
# machines of an architecture.
MACHINES: Mapping[str, Machine] = {
    machine.name: machine
    for machine in (
        Machine(
            "server CPU",
            "cpu",
            copy_bytes_per_s=12e9,
            matmul_flops=0.1e12,
            half_flops=0.1e12,
            tf32_flops=0.1e12,
            paged_bytes=32 << 20,  # glibc maps blocks of this size afresh at every call
            source="two cores of a server CPU; 16 bits as float32 is a guess",
        ),
        Machine(
            "A100",
            "sm_80",
            copy_bytes_per_s=1.7e12,
            matmul_flops=19.5e12,
            half_flops=250e12,
            tf32_flops=100e12,
            kernel_flops=60e12,
            processors=108,
            busy_threads=132 * 2048,
            source="A100 40 GB datasheet; rates of product kernels and of 16 bits are "
            "predictions, and so many threads as keep an H200 busy",
        ),
        Machine(
            "RTX 3090",
            "sm_86",
            copy_bytes_per_s=0.84e12,
            matmul_flops=35.6e12,
            half_flops=57e12,
            tf32_flops=23e12,
            kernel_flops=14e12,
            processors=82,
            busy_threads=82 * 1536,
            source="Ampere GA102 whitepaper; all but sizes and float32 are predictions, as "
            "much below its peaks as an A100's",
        ),
        Machine(
            "RTX 4090",
            "sm_89",
            copy_bytes_per_s=0.91e12,
            matmul_flops=82.6e12,
            half_flops=132e12,
            tf32_flops=53e12,
            kernel_flops=32e12,
            processors=128,
            busy_threads=128 * 1536,
            source="Ada GPU architecture whitepaper; all but sizes and float32 are "
            "predictions, as much below its peaks as an A100's",
        ),
        Machine(
            "H200",
            "sm_90a",
            copy_bytes_per_s=4.3e12,
            matmul_flops=51e12,
            half_flops=770e12,
            tf32_flops=175e12,
            kernel_flops=250e12,
            processors=132,
            busy_threads=132 * 2048,
            source="measured [m: pointwise-0001, gemm-0001]: copy, products in float32 and "
            "float16, three for one in float32",
        ),
    )
}
