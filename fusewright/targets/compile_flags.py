"""How compilers are called for kernels: options of C++ and of nvcc; nothing here needs PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

from fusewright.targets.arch import Arch

# Neither compiler contracts a * b + c by itself: what a model computes once would have another
# value where a kernel computes it again. Device text says `fma` where it means one rounding.
# Clamps stay choices: paths of their own for what is clamped would be blended again in vectors.
CPP_FLAGS = (
    *("-O3", "-std=c++17", "-fopenmp", "-fwrapv", "-fno-math-errno", "-fno-trapping-math"),
    *("-ffp-contract=off", "-fno-thread-jumps", "-mtune=generic", "-Wno-psabi"),
)
CUDA_FLAGS = ("-O3", "-std=c++17", "-fmad=false")

# What PyTorch says that it uses of a processor -> what -march calls it; "native" for any other.
PROCESSORS: Mapping[str, str] = {"AVX512": "skylake-avx512", "AVX2": "haswell"}
CAPABILITY = "CPU capability usage: "  # in front of its word for that, in torch.__config__.show()


def march(config: str) -> str:
    """The processor that kernels are compiled for. config: what torch.__config__.show() says."""
    found = (PROCESSORS[k] for k in PROCESSORS if f"{CAPABILITY}{k}" in config)
    return next(found, "native")


def cuda_flags(arch: Arch) -> tuple[str, ...]:
    """nvcc's options for the kernels."""
    return (*CUDA_FLAGS, arch.gencode)
