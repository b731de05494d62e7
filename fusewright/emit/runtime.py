"""The Python that stands beside the kernels in an emitted file: build once, call by address, guard.

It uses PyTorch and the standard library only, works from PyTorch 2.0 on, and has none of the words
that the public harness refuses. Kernels are compiled in a folder of their own and moved into place,
so that neither a lock nor a half-written library can be in the way of another process.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType

from fusewright.codegen.cpu_source import cpp_text
from fusewright.codegen.cuda_source import cuda_text
from fusewright.codegen.dead_code import drop_unreached
from fusewright.codegen.kernel_symbols import entry
from fusewright.codegen.kernel_text import KernelText
from fusewright.codegen.source_text import SourceText
from fusewright.emit.dynamo_fast_path import CPU_MEMORY, CUDA_MEMORY, GUARD_HIT_IN_PYTHON
from fusewright.emit.formatter import wrap
from fusewright.emit.guard_condition import REASONS
from fusewright.emit.guard_snapshot import LOOK_IN_PYTHON
from fusewright.emit.runtime_snippets import SNIPPETS, Snippet
from fusewright.targets.arch import Arch
from fusewright.targets.compile_flags import CAPABILITY, CPP_FLAGS, PROCESSORS, cuda_flags
from fusewright.targets.target import Target

FLAGS_WIDTH = 76
BUILD_CALLS = frozenset({Snippet.GUARD_HIT})  # what the text below needs
LIBRARY_FUNCTION = "_fusewright_library"  # of the text below: compiles, and names the file
_BUILD = '''
_FUSEWRIGHT_FUNCTIONS = {{}}  # the compiled kernels by name, once the first call has built them


def _fusewright_library():
    """The file of the compiled kernels: found as an earlier process left it, or compiled now."""
    import hashlib
    import os
    import shutil
    import tempfile
    from pathlib import Path

    from torch.utils import cpp_extension

    {machine}flags = {flags}
    options = {{
{sources}
    }}
    digest = hashlib.sha256(repr((torch.version.cuda, options)).encode()).hexdigest()[:16]
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root()
    library = Path(root, f"fusewright_{{digest}}", "kernels.so")
    if library.exists():
        return library
    {tools}
        if not shutil.which(tool):
            raise RuntimeError(
                f"ModelNew compiles its kernels when it first runs, but finds no {{tool}} on the "
                "PATH. Install {packages}."
            )
    place = next(p for p in library.parents if p.exists())
    if not os.access(place, os.W_OK):
        raise RuntimeError(
            f"ModelNew keeps its compiled kernels in {{library.parent}}, but {{place}} cannot be "
            "written to. Set TORCH_EXTENSIONS_DIR to a folder that can."
        )
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        # Empty headers in place of PyTorch's, which no kernel needs: a second, not a minute.
        Path(folder, "torch").mkdir()
        for header in ("extension.h", "types.h"):
            Path(folder, "torch", header).touch()
        options.update(extra_include_paths=[folder], build_directory=folder)
        cpp_extension.load_inline(library.parent.name, is_python_module=False, **options)
        (built,) = Path(folder).glob("*.so")
        return built.replace(library)


def _fusewright_build():
    """Bind the compiled kernels, and the C++ that answers the guard's busiest questions."""
    {answers}
    import ctypes

    function = ctypes.PyDLL(str(_fusewright_library())).fusewright_function
    function.restype = value = ctypes.py_object
{bound}
    names = {{name: function(k, value(name)) for k, name in enumerate(_FUSEWRIGHT_KERNELS)}}
    _FUSEWRIGHT_FUNCTIONS.update(names)
    return _FUSEWRIGHT_FUNCTIONS
'''

# Behind the C++ that makes calls: Python's table of functions, a row for each kernel and then for
# each question of the guard.
_CALLS = """
static PyMethodDef functions[] = {{
{rows}
}};
extern "C" object fusewright_function(int k, object known) {{
  return PyCFunction_NewEx(functions + k, known, nullptr);
}}
"""
_ROW = '  {{"{name}", {function}, FASTCALL, nullptr}},'


@dataclass(frozen=True)
class Answer:
    """A question of the guard that C++ answers. function: its name there.  known: lines of Python
    that give this name to what the function is handed."""

    function: str
    known: str


ANSWERS: Mapping[Snippet, Answer] = MappingProxyType(
    {
        Snippet.GUARD_HIT: Answer(
            "guard_hit",
            """\
    known = (*_FUSEWRIGHT_GUARD_CACHE, torch.is_grad_enabled, "is_nested", "layout", torch.strided)
    known += _FUSEWRIGHT_LOOKING_ON""",
        ),
        Snippet.MODULE_MATCHES: Answer(
            "module_matches", '    known = ("_forward_hooks", "_forward_pre_hooks", "forward")'
        ),
        Snippet.STATE: Answer("state", '    known = "_fusewright_looked", _fusewright_look'),
        Snippet.COPY_BYTES: Answer("kernel<copy_bytes>", '    known = "a copy"'),
        Snippet.LAUNCH_GRAPH: Answer("kernel<launch_graph>", '    known = "a CUDA graph"'),
        Snippet.AGAIN: Answer(
            "again",
            """\
    known = "_fusewright_looked", "_fusewright_graphs", "last", "is_nested", "layout"
    known += torch.strided, torch.Tensor.data_ptr, _fusewright_empty_strided_cuda
    known += _fusewright_increment_version, False""",
        ),
    }
)

_CALLED = """
# Class -> its calls that ran kernels.
_FUSEWRIGHT_CALLS = {{{}}}
"""

_GUARD = '''
# PyTorch 2.0 has neither the first nor the second.
_fusewright_dynamo_guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
_fusewright_compiling = getattr(getattr(torch, "compiler", torch), "is_compiling", bool)


def _fusewright_watched():
    """Whether derivatives forward, or a mode other than the default device, see every call."""
    if torch._C._len_torch_function_stack():
        modes = torch.overrides._get_current_function_mode_stack()
        if any(type(mode).__module__ != "torch.utils._device" for mode in modes):
            return True
    return torch.autograd.forward_ad._current_level >= 0


# Autocast, tracers, function transforms, modes: what each of them says while it looks on is true.
_FUSEWRIGHT_LOOKING_ON = (
    {autocast},
    torch._C._is_tracing,
    torch._C._functorch.peek_interpreter_stack,
    torch._C._len_torch_dispatch_stack,
    _fusewright_watched,
)


def _fusewright_eager():
    """True where nobody looks on, of those in `_FUSEWRIGHT_LOOKING_ON`; else who does."""
    names = "autocast", "a tracer", "a function transform", "a dispatch mode", "another mode"
    for name, looks_on in zip(names, _FUSEWRIGHT_LOOKING_ON, strict=True):
        if looks_on():
            return _fusewright_no(f"{{name}} looks on")
    return True
'''

_TENSOR = '''
_FUSEWRIGHT_PLAIN = torch.Tensor, torch.nn.Parameter


def _fusewright_tensor_matches(
    name, tensor, shape, dtype, {device}, order=None, plain=_FUSEWRIGHT_PLAIN
):
    """True for a tensor like the one that the kernels were written for; else what is different."""
    if type(tensor) not in plain:
        return _fusewright_no(f"{{name}} is no plain tensor", f" but a {{type(tensor).__name__}}")
    if tensor.dtype is not dtype:
        return _fusewright_no(f"dtype of {{name}}", f" is {{tensor.dtype}}, not {{dtype}}")
    if not ({place}):
        return _fusewright_no(f"device of {{name}}", f" is {{tensor.device}}")
    if tensor.layout is not torch.strided or tensor.is_nested:
        return _fusewright_no(f"layout of {{name}}", " is not strided")
    if tensor.shape != shape:
        return _fusewright_no(f"shape of {{name}}", f" is {{tuple(tensor.shape)}}, not {{shape}}")
    if not (tensor.permute(order) if order else tensor).is_contiguous():
        return _fusewright_no(f"order of {{name}} in memory", f": strides {{tensor.stride()}}")
    if tensor.is_neg():
        return _fusewright_no(f"{{name}} is negated lazily")
    if tensor.requires_grad and torch.is_grad_enabled():
        return _fusewright_no(f"{{name}} needs a gradient", ", which kernels do not record")
    return True
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
class Runtime:
    """The blocks of an emitted file that stand behind its model, as Python.

    kernels: what is generated for the model; "" without kernels.  support: all else that the model
    calls, which is not about it.  tables: what modules have to be like; "" where there are none.
    """

    kernels: str
    support: str
    tables: str = ""

    def __str__(self) -> str:
        """What builds itself without the model, behind `import torch`."""
        return "\n\n\n".join(filter(None, (self.kernels, self.support)))


@dataclass(frozen=True)
class GuardNeeds:
    """What the classes of a file call, and their names."""

    snippets: frozenset[Snippet]
    classes: tuple[str, ...]


@dataclass(frozen=True)
class LanguageRuntime:
    """What differs between the languages: new memory, pieces of `_BUILD`, `_GUARD`, `_TENSOR`."""

    machine: str
    tools: str
    packages: str
    sources: str
    autocast: str
    device: str
    place: str
    empty: str


CXX_TOOL = 'cxx = os.environ.get("CXX", "c++").split() or ["C++ compiler (CXX is empty)"]'
_CPP = LanguageRuntime(
    machine=f"""kinds = {json.dumps(PROCESSORS)}
    found = (kinds[k] for k in kinds if f"{CAPABILITY}{{k}}" in torch.__config__.show())
    """,
    tools=f"""{CXX_TOOL}
    for tool in ("ninja", cxx[0]):""",
    packages="a C++ compiler (such as g++) and ninja (pip install ninja)",
    sources="""\
        "cpp_sources": [_FUSEWRIGHT_DEVICE_LIBRARY, _FUSEWRIGHT_CPP, _FUSEWRIGHT_BINDINGS],
        "extra_cflags": [f"-march={next(found, 'native')}", *flags.split()],
        "extra_ldflags": ["-fopenmp"],""",
    autocast='getattr(torch._C, "_is_any_autocast_enabled", torch.is_autocast_cpu_enabled)',
    device='device="cpu"',
    place="tensor.is_cpu",
    empty=CPU_MEMORY,
)
_CUDA = LanguageRuntime(
    machine="",
    tools=f"""nvcc = f"{{cpp_extension.CUDA_HOME}}/bin/nvcc" if cpp_extension.CUDA_HOME else "nvcc"
    {CXX_TOOL}
    for tool in ("ninja", cxx[0], nvcc):""",
    packages="""the CUDA toolkit 12.1 or newer, a C++ compiler and "
                "ninja (pip install ninja)""",
    sources="""        "cpp_sources": [""],
        "cuda_sources": [_FUSEWRIGHT_DEVICE_LIBRARY, _FUSEWRIGHT_CUDA, _FUSEWRIGHT_BINDINGS],
        "extra_cuda_cflags": flags.split(),""",
    autocast="torch.is_autocast_enabled",
    device="device",
    place="tensor.is_cuda and tensor.get_device() == device",
    empty=CUDA_MEMORY,
)


def cuda_runtime(
    kernels: Sequence[KernelText],
    target: Target,
    snippets: frozenset[Snippet],
    classes: Sequence[str] = (),
) -> Runtime:
    """The blocks for CUDA: kernels as text; build, guard. snippets: those that `forward` calls.
    classes: names of those that have kernels."""
    source, arch = cuda_text(kernels, target), target.arch
    table = {b.name: len(b.addresses) for b in kernels}
    asked = GuardNeeds(snippets, tuple(classes))
    return _runtime(_CUDA, "_FUSEWRIGHT_CUDA", source, table, cuda_flags(arch), asked, arch)


def cpp_runtime(
    bodies: Sequence[KernelText], snippets: frozenset[Snippet], classes: Sequence[str] = ()
) -> Runtime:
    """The blocks for the CPU: kernels as text; build, guard. snippets, classes: as for CUDA."""
    table = {b.name: len(b.addresses) for b in bodies}
    asked = GuardNeeds(snippets, tuple(classes))
    return _runtime(_CPP, "_FUSEWRIGHT_CPP", cpp_text(bodies), table, CPP_FLAGS, asked, None)


def _runtime(
    language: LanguageRuntime,
    name: str,
    source: SourceText,
    table: dict[str, int],
    flags: Sequence[str],
    asked: GuardNeeds,
    arch: Arch | None,
) -> Runtime:
    snippets = asked.snippets
    called = snippets | BUILD_CALLS if table else snippets
    answers = [snippet for snippet in ANSWERS if snippet in called]
    bound = [
        f"{ANSWERS[a].known}\n    {a} = function({len(table) + k}, value(known))"
        for k, a in enumerate(answers)
    ]
    build = _BUILD.format(
        machine=_only(arch) + language.machine,
        flags=_flags(flags),
        tools=language.tools,
        packages=language.packages,
        sources=language.sources,
        answers=_declared(answers),
        bound="\n".join(bound),
    )
    building = [
        _string("_FUSEWRIGHT_DEVICE_LIBRARY", f"{source.library}\n"),
        _string("_FUSEWRIGHT_BINDINGS", calls_text(table, answers)),
        f"# kernel -> how many addresses it takes\n{_table(table)}",
        build,
    ]
    texts = {Snippet.EMPTY: language.empty, **SNIPPETS}
    if not table:
        texts |= {Snippet.GUARD_HIT: GUARD_HIT_IN_PYTHON, Snippet.STATE: LOOK_IN_PYTHON}
    pieces = [
        *(building if table else []),
        _CALLED.format(", ".join(f'"{name}": 0' for name in asked.classes)),
        REASONS,
        _GUARD.format(autocast=language.autocast),
        *(texts[snippet] for snippet in Snippet if snippet in called),
        _TENSOR.format(device=language.device, place=language.place),
    ]
    support = "\n\n\n".join(p.strip("\n") for p in pieces if p)
    return Runtime(_string(name, source.kernels) if table else "", support)


def _declared(names: Sequence[str]) -> str:
    """These names as global ones, in lines that are not too long."""
    lines = textwrap.wrap(", ".join(names), FLAGS_WIDTH)
    return "\n    ".join(f"global {line.rstrip(',')}" for line in lines)


def _string(name: str, text: str) -> str:
    """C++ as a string of Python."""
    return f'{name} = r"""\n{text}"""'


def _flags(flags: Sequence[str]) -> str:
    """All flags as one text, in lines that are not too long."""
    lines = textwrap.wrap(" ".join(flags), FLAGS_WIDTH, break_on_hyphens=False)
    if len(lines) == 1:
        return f'"{lines[0]}"'
    texts = [*(f'        "{line} "' for line in lines[:-1]), f'        "{lines[-1]}"']
    return "\n".join(["(", *texts, "    )"])


def _only(arch: Arch | None) -> str:
    """The refusal of all other GPUs, where they cannot run what nvcc makes for an architecture."""
    if arch is None or arch.forward_ptx or arch.capability is None:
        return ""
    major, minor = arch.capability
    return _ONLY.format(arch=arch.name, major=major, minor=minor)


def calls_text(kernels: Iterable[str], answers: Collection[Snippet] = ()) -> str:
    """The C++ text by which Python calls the kernels, and what answers questions of the guard."""
    called = {name: f"kernel<fusewright::{entry(name)}>" for name in kernels}
    called |= {str(name): ANSWERS[name].function for name in answers}
    rows = (_ROW.format(name=name, function=function) for name, function in called.items())
    table = _CALLS.format(rows="\n".join(rows))
    table = f"{_python_call('replay') if Snippet.AGAIN in answers else ''}{table}"
    return f"{drop_unreached(_python_call('calls'), table)}\n{table}"


def _python_call(name: str) -> str:
    """C++ that Python calls."""
    return (files("fusewright") / f"devicelib/python/{name}.h").read_text(encoding="utf-8")


def _table(entries: dict[str, int]) -> str:
    inside = ", ".join(f'"{name}": {count}' for name, count in entries.items())
    return "\n".join(wrap(f"_FUSEWRIGHT_KERNELS = {{{inside}}}", 0))
