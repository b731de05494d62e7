"""Architecture + kernel -> whether it has the kernel, and why not; which tiles of it fit.

A kernel of tensor cores keeps tiles in shared memory. Kernels with mma.sync were written for 163 KB
of it, and run where their tiles fit less; those with wgmma take all 227 KB.
"""

from __future__ import annotations

from collections.abc import Mapping

from fusewright.targets.arch import Arch, KernelName

# Width of a tile -> the shared memory of a block in bytes, as the device text of a kernel works it
# out.
MMA_SYNC_BYTES: Mapping[KernelName, Mapping[int, int]] = {
    "gemm.packed": {64: 147456, 128: 163840, 192: 163840, 256: 163840},
    "gemm.unpacked": {64: 148992, 128: 165888, 192: 165888, 256: 166400},
    "conv": {64: 75776, 128: 133120, 192: 166912, 256: 151552},
    "attention": {64: 68816, 128: 120528},
}
WGMMA_BYTES = 227 << 10  # the stages of a tile are as many as fit
# Kernels that are only offered with all their tiles: what follows a product may need any width.
EVERY_WIDTH: frozenset[KernelName] = frozenset(("gemm.packed", "gemm.unpacked"))


def tile_fits(arch: Arch, kernel: KernelName, width: int) -> bool:
    """Whether shared memory has room for a tile of so many rows of the packed factor."""
    if arch.tensor_core == "wgmma":
        return arch.shared_bytes_per_block >= WGMMA_BYTES
    return MMA_SYNC_BYTES.get(kernel, {}).get(width, 0) <= arch.shared_bytes_per_block


def why_unsupported(arch: Arch, kernel: KernelName) -> str:
    """Why no kernel of ours of this kind runs on an architecture; "" if one does."""
    if kernel not in arch.kernels:
        return f"there is no kernel of ours for it on {arch.name}"
    widths = MMA_SYNC_BYTES.get(kernel, {})
    fit = [tile_fits(arch, kernel, width) for width in widths]
    if not widths or (all(fit) if kernel in EVERY_WIDTH else any(fit)):
        return ""
    have = arch.shared_bytes_per_block >> 10
    return (
        f"the tiles of our kernels do not fit the {have} KB of shared memory that {arch.name} has"
    )


def supports(arch: Arch, kernel: KernelName) -> bool:
    """Whether a kernel of ours of this kind runs on an architecture."""
    return not why_unsupported(arch, kernel)
