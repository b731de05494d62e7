"""The Python that stands beside the kernels in an emitted file: build once, call by address, guard.

It uses PyTorch and the standard library only, works from PyTorch 2.0 on, and has none of the words
that the public harness refuses. Kernels are compiled in a folder of their own and moved into place,
so that neither a lock nor a half-written library can be in the way of another process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files

from fusewright.codegen.cpu_source import cpp_source
from fusewright.codegen.cuda_source import nvcc_source
from fusewright.codegen.kernel_symbols import entry
from fusewright.codegen.kernel_text import KernelText
from fusewright.emit.dynamo_fast_path import CPU_MEMORY, CUDA_MEMORY
from fusewright.emit.runtime_snippets import SNIPPETS, Snippet
from fusewright.targets.arch import Arch
from fusewright.targets.target import Target

BUILD_CALLS = frozenset({Snippet.GUARD_HIT})  # what the text below needs
LIBRARY_FUNCTION = "_fusewright_library"  # of the text below: compiles, and names the file
_BUILD = '''
_FUSEWRIGHT_FUNCTIONS = {{}}  # the compiled kernels by name, once the first call has built them


def _fusewright_library():
    """The file of the compiled kernels: found as an earlier process left it, or compiled now."""
    import hashlib
    import os
    import pathlib
    import re
    import shutil
    import tempfile

    from torch.utils import cpp_extension

    {machine}
    options = {{
{sources}
    }}
    digest = hashlib.sha256(repr(options).encode()).hexdigest()[:16]  # of the text and the flags
    name = f"fusewright_{{digest}}_" + re.sub(r"\\W", "_", machine)
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root()
    library = pathlib.Path(root, name, "kernels.so")
    if not library.exists():
        {compiler}
        missing = [tool for tool in tools if not shutil.which(tool)]
        if missing:
            raise RuntimeError(
                f"ModelNew compiles its kernels when it first runs, but finds no {{missing[0]}} on "
                "the PATH. Install {packages}."
            )
        place = next(p for p in library.parents if p.exists())
        if not os.access(place, os.W_OK):
            raise RuntimeError(
                f"ModelNew keeps its compiled kernels in {{library.parent}}, but {{place}} cannot "
                "be written to. Set TORCH_EXTENSIONS_DIR to a folder that can."
            )
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            # Empty headers in place of PyTorch's, which no kernel needs: a second, not a minute.
            headers = pathlib.Path(folder, "torch")
            headers.mkdir()
            for header in ("extension.h", "types.h"):
                (headers / header).touch()
            cpp_extension.load_inline(
                name,
                **options,
                extra_include_paths=[folder],
                build_directory=folder,
                is_python_module=False,
            )
            (built,) = pathlib.Path(folder).glob("*.so")
            built.replace(library)
    return library


def _fusewright_build():
    """Bind the compiled kernels."""
    global _fusewright_guard_hit, _fusewright_module_matches  # the same in C++ takes their place

    import ctypes

    calls = ctypes.PyDLL(str(_fusewright_library()))
    function, guard = calls.fusewright_function, calls.fusewright_guard
    function.restype = guard.restype = ctypes.py_object
    known = ctypes.py_object(_FUSEWRIGHT_GUARD_STATE)
    _fusewright_guard_hit, _fusewright_module_matches = (guard(k, known) for k in range(2))
    _FUSEWRIGHT_FUNCTIONS.update({{n: function(k) for k, n in enumerate(_FUSEWRIGHT_KERNELS)}})
    return _FUSEWRIGHT_FUNCTIONS
'''

# Behind the C++ that makes calls: Python's table of functions, a row for each kernel.
_CALLS = """
static PyMethodDef functions[] = {{
{rows}
}};
extern "C" PyObject* fusewright_function(int k) {{
  return PyCFunction_NewEx(functions + k, nullptr, nullptr);
}}
"""
_ROW = """  {{"{name}", [](PyObject*, PyObject* const* given, std::ptrdiff_t count) {{
     return call("{name}", fusewright::{entry}, given, count);
   }}, FASTCALL, nullptr}},"""

_GUARD = '''
_FUSEWRIGHT_TENSORS = (torch.Tensor, torch.nn.Parameter)
_fusewright_dynamo_guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
# PyTorch 2.0 has neither the first nor the second.
_fusewright_compiling = getattr(getattr(torch, "compiler", torch), "is_compiling", bool)
_fusewright_autocast = {autocast}
_fusewright_tracing = torch._C._is_tracing
_fusewright_transform = torch._C._functorch.peek_interpreter_stack
_fusewright_forward_ad = torch.autograd.forward_ad
_fusewright_dispatch_modes = torch._C._len_torch_dispatch_stack
_fusewright_function_modes = torch._C._len_torch_function_stack


def _fusewright_eager():
    """No compiler, tracer, autocast, function transform or mode of PyTorch is looking on."""
    return not (
        _fusewright_compiling()
        or _fusewright_autocast()
        or _fusewright_tracing()
        or _fusewright_transform() is not None
        or _fusewright_forward_ad._current_level >= 0
        or _fusewright_dispatch_modes()
        or (_fusewright_function_modes() and _fusewright_other_modes())
    )


def _fusewright_other_modes():
    """Whether a mode other than the default device sees every function that is called."""
    modes = torch.overrides._get_current_function_mode_stack()
    return any(type(mode).__module__ != "torch.utils._device" for mode in modes)
'''

_TENSOR = '''
def _fusewright_tensor_matches(tensor, shape, dtype, {parameter}order=None):
    """Whether a tensor is what the kernels were written for, and needs no gradient."""
    return (
        type(tensor) in _FUSEWRIGHT_TENSORS
        and tensor.dtype is dtype
        and {place}
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.shape == shape
        and (tensor.permute(order) if order else tensor).is_contiguous()
        and not tensor.is_neg()
        and not (tensor.requires_grad and torch.is_grad_enabled())
    )
'''

# Code for an architecture without `forward_ptx` runs on no other.
_ONLY = """gpus = range(torch.cuda.device_count())
    if ({major}, {minor}) not in [torch.cuda.get_device_capability(gpu) for gpu in gpus]:
        raise RuntimeError(
            "ModelNew has kernels for {arch}, which need a GPU of compute capability "
            "{major}.{minor}, and PyTorch finds none. Write the file again on this machine: "
            "fusewright optimize --target cuda."
        )
    """


@dataclass(frozen=True)
class LanguageRuntime:
    """What differs between the languages: new memory, pieces of `_BUILD`, `_GUARD`, `_TENSOR`."""

    machine: str
    compiler: str
    packages: str
    sources: str
    autocast: str
    parameter: str
    place: str
    empty: str


_CPP = LanguageRuntime(
    machine="""found = re.search(r"CPU capability usage: (\\w+)", torch.__config__.show())
    kinds = {"AVX512": "skylake-avx512", "AVX2": "haswell"}
    machine = kinds.get(found and found[1], "native")""",
    compiler='tools = ("ninja", os.environ.get("CXX", "c++").split()[0])',
    packages="a C++ compiler (such as g++) and ninja (pip install ninja)",
    sources="""        "cpp_sources": [_FUSEWRIGHT_CPP, _FUSEWRIGHT_BINDINGS],
        "extra_cflags": [
            "-march=" + machine,
{flags}
        ],
        "extra_ldflags": ["-fopenmp"],""",
    autocast='getattr(torch._C, "_is_any_autocast_enabled", torch.is_autocast_cpu_enabled)',
    parameter="",
    place="tensor.is_cpu",
    empty=CPU_MEMORY,
)
_CUDA = LanguageRuntime(
    machine='machine = f"{arch} cuda {{torch.version.cuda}}"',
    compiler="""nvcc = f"{cpp_extension.CUDA_HOME}/bin/nvcc" if cpp_extension.CUDA_HOME else "nvcc"
        tools = ("ninja", os.environ.get("CXX", "c++").split()[0], nvcc)""",
    packages="the CUDA toolkit 12.1 or newer, a C++ compiler and ninja (pip install ninja)",
    sources="""        "cpp_sources": [""],
        "cuda_sources": [_FUSEWRIGHT_CUDA, _FUSEWRIGHT_BINDINGS],
        "extra_cuda_cflags": [
{flags}
        ],""",
    autocast="torch.is_autocast_enabled",
    parameter="device, ",
    place="tensor.is_cuda\n        and tensor.get_device() == device",
    empty=CUDA_MEMORY,
)
# Neither compiler contracts a * b + c by itself: what a model computes once would have another
# value where a kernel computes it again. Device text says `fma` where it means one rounding.
# Clamps stay choices: paths of their own for what is clamped would be blended again in vectors.
CPP_FLAGS = (
    *("-O3", "-std=c++17", "-fopenmp", "-fwrapv", "-fno-math-errno", "-fno-trapping-math"),
    *("-ffp-contract=off", "-fno-thread-jumps", "-mtune=generic", "-Wno-psabi"),
)

CUDA_FLAGS = ("-O3", "-std=c++17", "-fmad=false")


def cuda_flags(arch: Arch) -> tuple[str, ...]:
    """nvcc's options for the kernels."""
    return (*CUDA_FLAGS, arch.gencode)


def cuda_runtime(
    kernels: Sequence[KernelText], target: Target, snippets: frozenset[Snippet]
) -> str:
    """The block for CUDA: kernels as text, build, guard. snippets: those that `forward` calls."""
    source, arch = nvcc_source(kernels, target), target.arch
    table = {b.name: len(b.addresses) for b in kernels}
    return _runtime(_CUDA, "_FUSEWRIGHT_CUDA", source, table, cuda_flags(arch), snippets, arch)


def cpp_runtime(bodies: Sequence[KernelText], snippets: frozenset[Snippet]) -> str:
    """The block for the CPU: kernels as text, build, guard. snippets: as for CUDA."""
    table = {b.name: len(b.addresses) for b in bodies}
    return _runtime(_CPP, "_FUSEWRIGHT_CPP", cpp_source(bodies), table, CPP_FLAGS, snippets, None)


def _runtime(
    language: LanguageRuntime,
    name: str,
    source: str,
    table: dict[str, int],
    flags: Sequence[str],
    snippets: frozenset[Snippet],
    arch: Arch | None,
) -> str:
    text = "\n".join(f'{" " * 12}"{flag}",' for flag in flags)
    machine = language.machine
    if arch is not None:
        machine = _only(arch) + machine.format(arch=arch.name)
    calls = calls_text(table)
    build = _BUILD.format(
        machine=machine,
        compiler=language.compiler,
        packages=language.packages,
        sources=language.sources.format(flags=text),
    )
    kernels = [
        f'_FUSEWRIGHT_BINDINGS = r"""\n{calls}"""',
        f'{name} = r"""\n{source}"""\n\n# kernel -> how many addresses it takes\n{_table(table)}',
        build,
    ]
    texts = {Snippet.EMPTY: language.empty, **SNIPPETS}
    called = snippets | BUILD_CALLS if table else snippets
    pieces = [
        *(kernels if table else []),
        _GUARD.format(autocast=language.autocast),
        *(texts[snippet] for snippet in Snippet if snippet in called),
        _TENSOR.format(parameter=language.parameter, place=language.place),
    ]
    return "\n\n\n".join(p.strip("\n") for p in pieces if p) + "\n"


def _only(arch: Arch) -> str:
    """The refusal of all other GPUs, where they cannot run what nvcc makes for an architecture."""
    if arch.forward_ptx or arch.capability is None:
        return ""
    major, minor = arch.capability
    return _ONLY.format(arch=arch.name, major=major, minor=minor)


def calls_text(kernels: Iterable[str]) -> str:
    """The C++ text by which Python calls the kernels."""
    calls = (files("fusewright") / "devicelib/python/calls.h").read_text(encoding="utf-8")
    rows = (_ROW.format(name=name, entry=entry(name)) for name in kernels)
    return calls + _CALLS.format(rows="\n".join(rows))


def _table(entries: dict[str, int]) -> str:
    inside = ", ".join(f'"{name}": {count}' for name, count in entries.items())
    return f"_FUSEWRIGHT_KERNELS = {{{inside}}}"
