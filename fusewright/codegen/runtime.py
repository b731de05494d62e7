"""The Python that stands beside the kernels in an emitted file: build once, call by address.

It uses PyTorch and the standard library only, and works from PyTorch 2.0 on: options that an older
`load_inline` does not have are left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from fusewright.codegen.body import Body
from fusewright.codegen.cpp import cpp_source
from fusewright.codegen.cuda import cuda_source, launcher
from fusewright.nest import Nest
from fusewright.schedule import Schedule

_IMPORTS = "import ctypes\nimport functools\nimport inspect\n\nimport torch\nimport torch.utils.cpp_extension"

_SHARED = '''
def _fusewright_plain_mode():
    """No autocast, tracing, function transform, forward-mode gradient or dispatch mode is active."""
    return not (
        _fusewright_autocast()
        or torch.jit.is_tracing()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._len_torch_dispatch_stack()
    )


def _fusewright_autocast():
    """Whether autocast is on for this device."""
    if hasattr(torch, "get_autocast_dtype"):
        return torch.is_autocast_enabled("{device}")
    return torch.{old_autocast}()


def _fusewright_is(tensor, shape, dtype, device):
    """Whether a parameter or buffer is still what the kernels were written for."""
    return (
        type(tensor) in (torch.nn.Parameter, torch.Tensor)
        and tensor.shape == shape
        and tensor.dtype is dtype
        and tensor.device == device
        and tensor.is_contiguous()
    )
'''

_DENSE = '''

def _fusewright_dense(tensor, order):
    """The tensor with its dimensions in this order in memory, copied only if they are not."""
    back = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(back)
'''

_CPP = '''
@functools.lru_cache(maxsize=None)
def _fusewright_library():
    """Compile the kernels, once per machine: a later process finds the built file."""
    cpu = getattr(getattr(torch.backends, "cpu", None), "get_cpu_capability", lambda: "native")()
    machine = {{"AVX512": "x86-64-v4", "AVX2": "x86-64-v3"}}.get(cpu, "native")
    name = "fusewright_{digest}_" + machine.replace("-", "_")
    accepted = inspect.signature(torch.utils.cpp_extension.load_inline).parameters
    lean = {{"no_implicit_headers": True}} if "no_implicit_headers" in accepted else {{}}
    flags = ["-O3", "-march=" + machine, "-fopenmp", "-fwrapv"]
    torch.utils.cpp_extension.load_inline(
        name,
        cpp_sources=[_FUSEWRIGHT_CPP],
        extra_cflags=[*flags, "-fno-math-errno", "-fno-trapping-math"],
        extra_ldflags=["-fopenmp"],
        is_python_module=False,
        **lean,
    )
    library = ctypes.CDLL(next(path for path in torch.ops.loaded_libraries if name in path))
    for kernel, pointers in _FUSEWRIGHT_KERNELS.items():
        function = getattr(library, kernel)
        function.argtypes = [ctypes.c_void_p] * pointers + [ctypes.c_long] * 2
        function.restype = None
    return library


def _fusewright_run(kernel, *arguments):
    """Run one kernel: tensors go in as addresses, then the batch size and the number of threads."""
    *tensors, batch = arguments
    addresses = [tensor.data_ptr() for tensor in tensors]
    getattr(_fusewright_library(), kernel)(*addresses, batch, torch.get_num_threads())
'''

_CUDA = '''
@functools.lru_cache(maxsize=None)
def _fusewright_library():
    """Compile the kernels, once per machine: a later process finds the built file."""
    name = "fusewright_{digest}_{arch}"
    accepted = inspect.signature(torch.utils.cpp_extension.load_inline).parameters
    lean = {{"no_implicit_headers": True}} if "no_implicit_headers" in accepted else {{}}
    torch.utils.cpp_extension.load_inline(
        name,
        cpp_sources=[""],
        cuda_sources=[_FUSEWRIGHT_CUDA],
        extra_cuda_cflags=["-O3", "-std=c++17", "{gencode}"],
        is_python_module=False,
        **lean,
    )
    library = ctypes.CDLL(next(path for path in torch.ops.loaded_libraries if name in path))
    for kernel, pointers in _FUSEWRIGHT_KERNELS.items():
        function = getattr(library, kernel)
        scratch = [ctypes.c_void_p] * (kernel in _FUSEWRIGHT_SPLIT)
        tail = [ctypes.c_long, *scratch, ctypes.c_int, ctypes.c_void_p]
        function.argtypes = [ctypes.c_void_p] * pointers + tail
    return library


def _fusewright_run(kernel, *arguments):
    """Run one kernel on the tensors' device and its current stream."""
    *tensors, batch = arguments
    device = tensors[0].device
    addresses = [tensor.data_ptr() for tensor in tensors]
    scratch = []
    if kernel in _FUSEWRIGHT_SPLIT:
        workspace = torch.empty(_FUSEWRIGHT_SPLIT[kernel], dtype=torch.uint8, device=device)
        scratch = [workspace.data_ptr()]
    stream = torch.cuda.current_stream(device).cuda_stream
    error = getattr(_fusewright_library(), kernel)(*addresses, batch, *scratch, device.index, stream)
    if error:
        raise RuntimeError(f"{{kernel}} failed with CUDA error {{error}}.")
'''
SPLIT_BYTES = 270336  # skeletons/cuda/launch.cuh asserts the same number


def cuda_runtime(
    kernels: Sequence[tuple[Body, Nest, Schedule]], arch: str, dense: bool
) -> str:
    """The whole block for CUDA: imports, kernels, build, call, guard functions."""
    source = cuda_source(kernels)
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    table = {f"run_{b.name}": len(b.pointers) for b, _, _ in kernels}
    split = {f"run_{b.name}": SPLIT_BYTES for b, _, s in kernels if launcher(b, s) == "run_rows_split"}
    parts = [
        _IMPORTS,
        f'\n_FUSEWRIGHT_CUDA = r"""\n{source}"""\n',
        f"# kernel -> number of tensors it takes\n_FUSEWRIGHT_KERNELS = {_table(table)}",
        f"# kernel -> bytes of scratch memory it wants\n_FUSEWRIGHT_SPLIT = {_table(split)}\n",
        _CUDA.format(digest=digest, arch=arch, gencode=gencode(arch)),
        _SHARED.format(device="cuda", old_autocast="is_autocast_enabled"),
        _DENSE if dense else "",
    ]
    return "\n".join(parts).rstrip() + "\n"


def gencode(arch: str) -> str:
    """nvcc's option for one architecture; sm_80 also as PTX, which newer GPUs can run."""
    number = arch.removeprefix("sm_")
    code = f"[sm_{number},compute_{number}]" if arch == "sm_80" else arch
    return f"-gencode=arch=compute_{number},code={code}"


def cpp_runtime(bodies: Sequence[Body], dense: bool) -> str:
    """The whole block for the CPU: imports, kernels as C++, build, call, guard functions."""
    source = cpp_source(bodies)
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    kernels = {f"run_{b.name}": len(b.pointers) for b in bodies}
    parts = [
        _IMPORTS,
        f'\n_FUSEWRIGHT_CPP = r"""\n{source}"""\n',
        f"# kernel -> number of tensors it takes\n_FUSEWRIGHT_KERNELS = {_table(kernels)}\n",
        _CPP.format(digest=digest),
        _SHARED.format(device="cpu", old_autocast="is_autocast_cpu_enabled"),
        _DENSE if dense else "",
    ]
    return "\n".join(parts).rstrip() + "\n"


def _table(entries: dict[str, int]) -> str:
    return "{" + ", ".join(f'"{name}": {count}' for name, count in entries.items()) + "}"
