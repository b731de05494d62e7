"""Kernel texts -> one CUDA source: device sections, structs, and an `extern "C"` entry per kernel.

Entries take pointers (first what is read as a whole, last scratch memory, if a kernel wants them),
the free sizes, the device and the stream, and return a cudaError_t. If a pointer is not aligned for
vectors, the scalar instantiation runs, where a launch has one; else the caller aligns tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.codegen.dead_code import drop_unreached, for_nvcc
from fusewright.codegen.device_library import sections_for
from fusewright.codegen.instantiation import only_instantiated
from fusewright.codegen.kernel_symbols import entry
from fusewright.codegen.kernel_text import KernelText, words
from fusewright.codegen.source_text import SourceText, source_text
from fusewright.targets.target import Target


def cuda_source(kernels: Sequence[KernelText], target: Target) -> str:
    """A whole CUDA text, for nvcc and for NVRTC, with all of the library that its names reach."""
    return _text(kernels, target, nvrtc=True).whole


def cuda_text(kernels: Sequence[KernelText], target: Target) -> SourceText:
    """The CUDA text of an emitted file, which nvcc compiles, in two."""
    return _text(kernels, target, nvrtc=False)


def _text(kernels: Sequence[KernelText], target: Target, *, nvrtc: bool) -> SourceText:
    """nvrtc: whether that can compile it, too.

    The structs have no name outside of it: what a device function remembers per kernel would
    otherwise be one variable for all files in a process whose kernels have the same name.
    """
    parts = [function(body) for body in kernels]
    generated = "\n\n".join(parts)
    library = target.arch.device_library
    assert library is not None, "a target has a device library"
    sections = sections_for(library, _words(kernels, generated))
    if nvrtc:  # what is for the host alone stands under conditions, which are not resolved
        return source_text(drop_unreached(sections, generated), parts)
    return source_text(only_instantiated(for_nvcc(sections), generated), parts)


def function(body: KernelText) -> str:
    """All that stands in the source for one kernel alone: structs, the fallback's, the entry."""
    texts = [*body.launch.structs, body.text]
    texts += [body.fallback.text] if body.fallback else []
    return "\n\n".join(["\n".join([*body.notes, "namespace {", *texts, "}"]), _entry(body)])


def _words(kernels: Sequence[KernelText], generated: str) -> set[str]:
    """The device sections that a text calls, and those that launches need besides."""
    found = words(generated) - {"team"}  # what bodies call theirs
    return found.union(*(body.launch.needs for body in kernels))


def _entry(body: KernelText) -> str:
    """The function that Python calls."""
    launch = body.launch
    arguments = ", ".join([*body.addresses, *body.sizes, "int device", "void* stream"])
    lines = [f'extern "C" int {entry(body.name)}({arguments}) {{']
    if body.fallback and launch.fallback:  # for single elements, too
        other = launch.fallback
        unlike = [f"{name} != {size}" for name, size in other.fixed_sizes]
        unlike += [f"!{_are_aligned(body)}"] * (launch.vector > 1)
        unlike += [f"!{other.resident}"] if other.resident else []
        lines += [f"  if ({' || '.join(unlike)}) {{"]
        lines += [*(f"  {line}" for line in _runs(body.fallback)), "  }"]
    return "\n".join([*lines, *_runs(body), "}"])


def _runs(body: KernelText) -> list[str]:
    """The lines that start the kernel, with vectors if pointers are aligned for them."""
    launch = body.launch
    names = ", ".join([*(p.name for p in body.pointers), *body.free])
    lines = [f"  const {body.name} body{{{names}}};"]
    lines += [f"  {line}" for line in launch.statements]
    asked = body.fallback is None and launch.vector > 1 and _vectors(body)
    if asked and launch.scalar:
        able = "".join(f"{name} % {multiple} == 0 && " for name, multiple in launch.multiples)
        lines.append(f"  if ({able}{_are_aligned(body)}) return {launch.call.text};")
    call = launch.scalar if asked and launch.scalar else launch.call
    return [*lines, f"  return {call.text};"]


def _are_aligned(body: KernelText) -> str:
    return f"aligned<{body.launch.vector}>({', '.join(_vectors(body))})"


def _vectors(body: KernelText) -> list[str]:
    """The pointers that are walked by vectors."""
    return [p.name for p in body.pointers if id(p.node) in body.launch.vector_tensors]
