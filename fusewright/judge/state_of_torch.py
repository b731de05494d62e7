"""A process -> what is global in it: flags, modes, hooks, patched functions; and what changed.

A candidate that changes any of these changes other people's results, or the judge's clocks.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as nn_module

_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1, signal.SIGSEGV)

# name -> how to read it; values must compare with ==.
_FLAGS: Mapping[str, Callable[[], Any]] = {
    "default dtype": torch.get_default_dtype,
    "default device": lambda: str(torch.get_default_device()),
    "number of threads": torch.get_num_threads,
    "float32 matmul precision": torch.get_float32_matmul_precision,
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "gradient mode": torch.is_grad_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "anomaly mode": torch.is_anomaly_enabled,
    "autocast": lambda: (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")),
    "flush denormals": lambda: bool((torch.tensor([1e-40]) * 1.0 == 0).item()),
    "TF32 in matmul": lambda: torch.backends.cuda.matmul.allow_tf32,
    "TF32 in cuDNN": lambda: torch.backends.cudnn.allow_tf32,
    "cuDNN enabled": lambda: torch.backends.cudnn.enabled,
    "cuDNN benchmark": lambda: torch.backends.cudnn.benchmark,
    "cuDNN deterministic": lambda: torch.backends.cudnn.deterministic,
    "mkldnn": lambda: torch.backends.mkldnn.enabled,
    "function modes": torch._C._len_torch_function_stack,
    "dispatch modes": torch._C._len_torch_dispatch_stack,
    "global module hooks": lambda: [len(getattr(nn_module, name)) for name in _HOOKS],
    "answers of PyTorch's own operators": lambda: _known_answers(),
    "signal handlers": lambda: [str(signal.getsignal(s)) for s in _SIGNALS],
    "trace function": lambda: (sys.gettrace(), sys.getprofile()),
    "import hooks": lambda: [_named(hook) for hook in (*sys.meta_path, *sys.path_hooks)],
}
_OWNERS: Mapping[str, Any] = {
    "torch": torch, "torch.nn.functional": nn.functional, "torch.Tensor": Tensor,
    "torch.nn.Module": nn.Module, "torch.cuda": torch.cuda, "torch.cuda.Event": torch.cuda.Event,
    "torch.autograd": torch.autograd, "torch.testing": torch.testing, "time": time,
    "builtins": sys.modules["builtins"],
}  # fmt: skip
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodDescriptorType, type)
# What torch._dynamo itself replaces when torch.compile is first used.
_DYNAMO = ("torch.manual_seed", "torch.nn.Module.__init__", "torch.nn.Module.__setstate__")
Snapshot = tuple[Mapping[str, Any], Mapping[str, Any]]


def snapshot() -> Snapshot:
    return {name: read() for name, read in _FLAGS.items()}, _functions()


def changes(before: Snapshot) -> list[str]:
    """One line per global thing that is not what it was."""
    flags, functions = before
    found = []
    for name, read in _FLAGS.items():
        if (now := read()) != flags[name]:
            found += _lines(name, flags[name], now)
    later = _functions()
    excused = _DYNAMO if "torch._dynamo.eval_frame" in sys.modules else ()
    patched = [
        name
        for name, (function, code) in functions.items()
        if name not in excused and not _same(later.get(name), function, code)
    ]
    return found + [f"{name} was replaced" for name in patched[:20]]


def _lines(name: str, old: Any, new: Any) -> list[str]:
    """What became of one flag; of a list of names, what came and went."""
    if name != "import hooks":
        return [f"{name}: {str(old)[:80]} became {str(new)[:80]}"]
    came, went = Counter(new) - Counter(old), Counter(old) - Counter(new)
    lines = [f"{name}: {count} more of {hook}" for hook, count in came.items()]
    lines += [f"{name}: {count} less of {hook}" for hook, count in went.items()]
    return lines or [f"{name}: in another order"]


def _named(hook: Any) -> str:
    return str(getattr(hook, "__qualname__", type(hook).__qualname__))[:80]


def _same(later: tuple[Any, Any] | None, function: Any, code: Any) -> bool:
    return later is not None and later[0] is function and later[1] is code


def _functions() -> dict[str, tuple[Any, Any]]:
    """Functions of torch and of the clocks, each with its code, which can be swapped, too."""
    return {
        f"{owner}.{name}": (value, getattr(value, "__code__", None))
        for owner, holder in _OWNERS.items()
        for name, value in vars(holder).items()
        if isinstance(value, _FUNCTIONS) and not isinstance(value, ModuleType)
    }


def _known_answers() -> list[float]:
    """Small sums whose results leave no doubt: a replaced kernel shows here."""
    with torch.no_grad():
        a = torch.arange(1.0, 7.0).reshape(2, 3)
        answers = (
            a @ a.T, a + a, a * a, a - 1, a / 2, torch.relu(a - 3), torch.softmax(a * 0, 1),
            a.sum(), torch.nn.functional.linear(a, a), a.clone(), a.mean(), a.max(),
            torch.exp(a * 0),
        )  # fmt: skip
        return [float(answer.double().sum()) for answer in answers]
