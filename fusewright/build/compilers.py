"""The tools that build kernels: what they are called, where they are, which are missing; and where
what they build is kept.

They are looked for where PyTorch's `load_inline` does, which builds an emitted file. PyTorch is
only needed to say where it keeps extensions.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType

from fusewright.errors import ToolMissing
from fusewright.targets.target import Target


def cxx() -> tuple[str, ...]:
    """The words that call the C++ compiler: those of CXX, or c++; "" for a CXX that is empty."""
    return tuple(os.environ.get("CXX", "c++").split()) or ("",)


def ninja() -> str | None:
    """The path of ninja, beside this Python or on the PATH."""
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return shutil.which("ninja", path=folders)


def nvcc() -> str | None:
    """The path of nvcc."""
    return shutil.which("nvcc")


def cpp_extension() -> ModuleType:
    """PyTorch's `torch.utils.cpp_extension`. Where there is a CUDA toolkit and no GPU, a CUDA build
    of PyTorch logs so at the first import: a kernel for a CPU has no use for it."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        from torch.utils import cpp_extension as found
    finally:
        logging.disable(disabled)
    return found


def cache_folder() -> Path:
    """Where an emitted file keeps its compiled kernels."""
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension().get_default_build_root()
    return Path(root)


def require_tools(target: Target) -> None:
    """Raise ToolMissing unless the C++ compiler and ninja (and nvcc for CUDA) are here."""
    compiler = cxx()[0]
    if shutil.which(compiler) is None:
        raise ToolMissing(
            f"No C++ compiler: {compiler or 'CXX is empty, and that'} is not on the PATH, and "
            "PyTorch's load_inline needs one. Install g++ (Debian, Ubuntu: apt install g++), or "
            "set CXX to the compiler to use."
        )
    if ninja() is None:
        raise ToolMissing(
            "ninja is not on the PATH, and PyTorch's load_inline needs it: pip install ninja."
        )
    if target.language == "cuda" and nvcc() is None:
        raise ToolMissing(
            f"nvcc is not on the PATH, and kernels for {target.name} are compiled by it. Install "
            "the CUDA toolkit 12.1 or newer and put its bin folder on the PATH."
        )
