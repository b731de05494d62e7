"""Emitted files on PyTorch 2.0: what they call exists there; and a run, where there is one.

FUSEWRIGHT_OLD_PYTHON names a Python whose environment has an old PyTorch, NumPy < 2, ninja and
setuptools.
"""

from __future__ import annotations

import ast
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.emitting import emit_example

# load_inline of PyTorch 2.0.
ACCEPTED = {
    "name", "cpp_sources", "cuda_sources", "functions", "extra_cflags", "extra_cuda_cflags",
    "extra_ldflags", "extra_include_paths", "build_directory", "verbose", "with_cuda",
    "is_python_module", "with_pytorch_error_handling", "keep_intermediates",
}  # fmt: skip
# Private names of PyTorch that emitted files use; all of them exist in 2.0.1 and in 2.13.0.
PRIVATE = {
    "torch._C", "torch._C._is_tracing", "torch._C._functorch",
    "torch._C._functorch.peek_interpreter_stack", "torch._C._len_torch_dispatch_stack",
    "torch._C._len_torch_function_stack", "torch._C._cuda_getCurrentRawStream",
    "torch._C._cuda_getDevice", "torch._C._cuda_isCurrentStreamCapturing",
    "torch.autograd.forward_ad._current_level",
    "torch.__config__", "torch.__config__.show", "torch.__version__",
    "torch.overrides._get_current_function_mode_stack",
    "torch.nn.modules.module._global_forward_hooks",
    "torch.nn.modules.module._global_forward_pre_hooks",
}  # fmt: skip
# Those that are only asked for where PyTorch's compiler traces, in versions that have them.
FOR_ITS_COMPILER = {
    "torch._C._AutoDispatchBelowAutograd", "torch._C._get_fp32_precision_getter",
    "torch.compiler._is_exporting_flag",
    "torch.utils._device", "torch.utils._device.CURRENT_DEVICE", "torch.utils._python_dispatch",
    "torch.utils._python_dispatch._get_current_dispatch_mode_stack",
}  # fmt: skip
# Those that record a CUDA graph, from PyTorch 2.11 on.
FOR_GRAPHS = {
    "torch._C._cuda_beginAllocateCurrentThreadToPool", "torch._C._cuda_endAllocateToPool",
    "torch._C._cuda_releasePool",
}  # fmt: skip
RUN = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("emitted", sys.argv[1])
emitted = importlib.util.module_from_spec(spec)
spec.loader.exec_module(emitted)
torch = emitted.torch
model, x = emitted.ModelNew(24, 128, 64, (128,)), torch.randn(6, 24)
with torch.no_grad():
    assert torch.allclose(model(x), model.reference_forward(x), rtol=1e-4, atol=1e-5)
assert emitted._FUSEWRIGHT_FUNCTIONS, "the kernels ran"
with torch.no_grad(), torch.device("cpu"):
    assert torch.allclose(model(x), model.reference_forward(x), rtol=1e-4, atol=1e-5)
assert model(x).requires_grad
print("PyTorch", torch.__version__)
"""


def dotted(n: ast.expr) -> str:
    """`torch.a.b` of an attribute chain, or ""."""
    if isinstance(n, ast.Attribute):
        inner = dotted(n.value)
        return f"{inner}.{n.attr}" if inner else ""
    return n.id if isinstance(n, ast.Name) else ""


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_calls_only_what_is_there(target: str, tmp_path: Path) -> None:
    tree = ast.parse(emit_example("swish_bias_groupnorm", tmp_path, target).text)
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    (build,) = [c for c in calls if dotted(c.func) == "cpp_extension.load_inline"]
    assigned = [n for n in ast.walk(tree) if isinstance(n, ast.Assign)]
    (options,) = [n.value for n in assigned if dotted(n.targets[0]) == "options"]
    assert isinstance(options, ast.Dict)
    named = {ast.literal_eval(key) for key in options.keys if key}
    assert {"extra_cflags", "extra_cuda_cflags"} & named
    assert {k.arg for k in build.keywords if k.arg} | named <= ACCEPTED
    names = {dotted(n) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    known = PRIVATE | FOR_ITS_COMPILER | FOR_GRAPHS
    assert {n for n in names if n.startswith("torch.") and "._" in n} <= known


@pytest.mark.skipif(
    "FUSEWRIGHT_OLD_PYTHON" not in os.environ, reason="FUSEWRIGHT_OLD_PYTHON not set"
)
def test_runs_on_an_old_torch(tmp_path: Path) -> None:
    python = os.environ["FUSEWRIGHT_OLD_PYTHON"]
    emitted = emit_example("swish_bias_groupnorm", tmp_path)
    tools = os.pathsep.join([str(Path(python).parent), os.environ["PATH"]])
    environment = {"PATH": tools, "TORCH_EXTENSIONS_DIR": str(tmp_path / "kernels")}
    done = subprocess.run(
        [python, "-c", RUN, str(emitted.path)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("PyTorch 2.")
