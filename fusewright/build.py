"""An emitted file -> its built kernels, or the compiler's complaint as one paragraph.

On the CPU the judge builds by importing the file; here is what runs without the machine's GPU: a
cross-compilation of the CUDA text, and the search for the tools that a target needs.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from fusewright.codegen.runtime import gencode
from fusewright.errors import BuildFailed, ToolMissing
from fusewright.target import Target

COMPILE_SECONDS = 300


def require_tools(target: Target) -> None:
    """Raise ToolMissing unless the C++ compiler and ninja (and nvcc for CUDA) are here."""
    if shutil.which("c++") is None and shutil.which("g++") is None:
        raise ToolMissing(
            "No C++ compiler is on the PATH: PyTorch's load_inline needs one. Install g++, or set CXX."
        )
    if target.language == "cuda" and shutil.which("nvcc") is None:
        raise ToolMissing(
            "nvcc is not on the PATH: kernels for CUDA need the CUDA toolkit 12.1 or newer."
        )


def cross_compile(source: str, target: Target) -> str:
    """Compile CUDA text for a GPU that is not here; return nvcc's resource report.

    Raises ToolMissing without nvcc and BuildFailed when nvcc refuses the text.
    """
    require_tools(target)
    with tempfile.TemporaryDirectory(prefix="fusewright-") as folder:
        text = Path(folder) / "kernels.cu"
        text.write_text(source, encoding="utf-8")
        command = ["nvcc", "-O3", "-std=c++17", gencode(target.arch), "-Xptxas", "-v", "-cubin"]
        if target.arch == "sm_80":  # two kinds of code need an object file
            command[-1] = "-c"
        done = subprocess.run(
            [*command, str(text), "-o", str(Path(folder) / "kernels.o")],
            capture_output=True,
            text=True,
            timeout=COMPILE_SECONDS,
            check=False,
        )
    if done.returncode:
        first = " ".join(done.stderr.strip().splitlines()[:6])
        raise BuildFailed(f"nvcc refused the generated kernels for {target.name}: {first}")
    return done.stderr


def import_emitted(path: Path) -> ModuleType:
    """Import an emitted file under a private name."""
    name = f"_fusewright_emitted_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, f"{path} is not a Python file"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
