"""Memory of a GPU that two processes share: what one writes there, the other reads.

Arguments and results of a model on a GPU need not take the way through the host: the trusted
worker creates memory on the device, and the candidate's worker maps the same memory, which comes to
it as a file descriptor. Two copies within a GPU take the place of four through the host, each of
which takes longer than both [m: judge-0043].
What a candidate may write to is what it could write to before, too: the memory of its answers,
which are taken out of it at once, and of its arguments, of which the judge keeps its own copy.

The functions are CUDA's driver's (*CUDA Driver API*, Virtual Memory Management); their numbers are
those of cuda.h.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

import torch
from torch import Tensor

_PINNED = _POSIX_DESCRIPTOR = _ON_DEVICE = 1
_READ_AND_WRITE = 3
GRANULE = 2 << 20  # bytes: what a GPU's memory is handed out in
# Bound before any candidate is imported.
_as_tensor, _zeros, _current_stream = torch.as_tensor, torch.zeros, torch.cuda.current_stream


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("of_windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class _Mapped:
    """Bytes of the device that are mapped here, as tensors are made of them."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3,
        }  # fmt: skip


def create(size: int) -> tuple[Tensor, int]:
    """New memory on the first device, here and for others. size: bytes, in whole GRANULEs.

    Returns: uint8 [size], and a descriptor of the same memory, which the caller closes. Raises
    OSError where the driver has none to give.
    """
    _zeros(1, device="cuda")  # the driver wants a context
    properties = _Properties(_PINNED, _POSIX_DESCRIPTOR, _Location(_ON_DEVICE, 0))
    handle, descriptor = ctypes.c_uint64(), ctypes.c_int()
    _do("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(properties), _NONE)
    try:
        mapped = _map(handle, size)
        _do("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, 1, _NONE)
    finally:
        _do("cuMemRelease", handle)  # what is mapped stays
    return mapped, descriptor.value


def open_shared(descriptor: int, size: int) -> Tensor:
    """The memory that another process has created: uint8 [size]. Closes the descriptor.

    Raises OSError where the driver refuses.
    """
    try:
        _zeros(1, device="cuda")
        handle = ctypes.c_uint64()
        _do("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(descriptor), 1)
    finally:
        os.close(descriptor)
    try:
        return _map(handle, size)
    finally:
        _do("cuMemRelease", handle)


def discard(memory: Tensor) -> None:
    """It is not mapped here any more; nobody may use the tensor."""
    address, size = ctypes.c_uint64(memory.data_ptr()), ctypes.c_size_t(memory.numel())
    settle()
    _do("cuMemUnmap", address, size)
    _do("cuMemAddressFree", address, size)


def settle() -> None:
    """What this process has copied to or from shared memory has been copied."""
    _current_stream().synchronize()


_NONE = ctypes.c_uint64(0)


def _map(handle: ctypes.c_uint64, size: int) -> Tensor:
    address, length = ctypes.c_uint64(), ctypes.c_size_t(size)
    _do("cuMemAddressReserve", ctypes.byref(address), length, ctypes.c_size_t(0), _NONE, _NONE)
    try:
        _do("cuMemMap", address, length, ctypes.c_size_t(0), handle, _NONE)
        access = _Access(_Location(_ON_DEVICE, 0), _READ_AND_WRITE)
        _do("cuMemSetAccess", address, length, ctypes.byref(access), ctypes.c_size_t(1))
    except OSError:
        _do("cuMemAddressFree", address, length)
        raise
    return _as_tensor(_Mapped(address.value, size), device="cuda")


def _do(name: str, *arguments: object) -> None:
    code = getattr(_driver(), name)(*arguments)
    if code:
        raise OSError(f"{name} says {code}")


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
