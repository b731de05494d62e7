"""The Python that stands beside the kernels in an emitted file: build once, call by address, guard.

It uses PyTorch and the standard library only, works from PyTorch 2.0 on, and has none of the words that
the public harness refuses. Kernels are compiled in a folder of their own and moved into place, so that
neither a lock nor a half-written library can be in the way of the next process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from fusewright.codegen.body import Body
from fusewright.codegen.cpp import cpp_source
from fusewright.codegen.cuda import cuda_source, launcher
from fusewright.nest import Nest
from fusewright.schedule import Schedule

_BUILD = '''
_FUSEWRIGHT = {{}}  # the compiled kernels by name; the first call fills it


def _fusewright_build():
    """Compile the kernels, or find them compiled by an earlier process, and bind them."""
    import ctypes
    import os
    import pathlib
    import re
    import shutil
    import tempfile

    from torch.utils import cpp_extension

    {machine}
    name = "fusewright_{digest}_" + re.sub(r"\\W", "_", machine)
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root()
    library = pathlib.Path(root) / name / "kernels.so"
    if not library.exists():
        compiler = os.environ.get("CXX", "c++").split()[0]
        for tool in {tools}:
            if not shutil.which(tool):
                raise RuntimeError(
                    f"ModelNew compiles its kernels when it first runs, and {{tool}} is not on the PATH. "
                    "Install {packages}."
                )
        os.makedirs(library.parent, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            # An empty header in place of PyTorch's, which the kernels do not need: seconds, not a minute.
            headers = pathlib.Path(folder, "torch")
            headers.mkdir()
            for header in ("extension.h", "types.h"):
                (headers / header).touch()
            cpp_extension.load_inline(
                name,
{sources}
                extra_include_paths=[folder],
                build_directory=folder,
                is_python_module=False,
            )
            (built,) = pathlib.Path(folder).glob("*.so")
            built.replace(library)
    functions = ctypes.CDLL(str(library))
    for kernel, pointers in _FUSEWRIGHT_KERNELS.items():
        function = getattr(functions, "run_" + kernel)
        function.argtypes = [ctypes.c_void_p] * pointers + {tail}
        function.{result}
        _FUSEWRIGHT[kernel] = function
    return _FUSEWRIGHT
'''
