"""A process -> what of PyTorch is global in it: flags, modes, hooks, functions; and what changed.

A candidate that changes any of these changes other people's results, or the judge's clocks.
"""

from __future__ import annotations

import builtins
import copy
import gc
import json
import math
import mmap
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn.modules import module as nn_module

from fusewright.judge.isolation import process_globals

_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")

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
    "cuDNN benchmark limit": lambda: torch.backends.cudnn.benchmark_limit,
    "mkldnn": lambda: torch.backends.mkldnn.enabled,
    "mkldnn deterministic": lambda: torch.backends.mkldnn.deterministic,
    "float32 precision": lambda: _precisions(),
    "sums of half-precision products": lambda: _sums(),
    "attention kernels": lambda: _attention(),
    "linear algebra library": lambda: str(torch.backends.cuda.preferred_linalg_library()),
    "matrix product library": lambda: str(torch.backends.cuda.preferred_blas_library()),
    "einsum's paths": lambda: (
        torch.backends.opt_einsum.enabled,
        torch.backends.opt_einsum.strategy,
    ),
    "quantized engine": lambda: torch.backends.quantized.engine,
    "memory filled where deterministic": lambda: (
        torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    ),
    "autograd multithreading": torch.autograd.is_multithreading_enabled,
    "function modes": torch._C._len_torch_function_stack,
    "dispatch modes": torch._C._len_torch_dispatch_stack,
    "global module hooks": lambda: [len(getattr(nn_module, name)) for name in _HOOKS],
    "answers of PyTorch's own operators": lambda: _known_answers(),
}
_LAYERS = {n: v for n, v in vars(nn).items() if isinstance(v, type) and issubclass(v, nn.Module)}
_OWNERS: Mapping[str, Any] = {
    "torch": torch, "torch.nn.functional": nn.functional, "torch.Tensor": Tensor,
    "torch.linalg": torch.linalg, "torch.fft": torch.fft, "torch.special": torch.special,
    "torch.nn.init": nn.init, "torch.cuda": torch.cuda, "torch.cuda.Event": torch.cuda.Event,
    "torch.autograd": torch.autograd, "torch.autograd.Function": torch.autograd.Function,
    "torch.testing": torch.testing, "torch.optim": torch.optim,
    "torch.utils.data": torch.utils.data, "builtins": builtins, "time": time, "os": os,
    "sys": sys, "gc": gc, "math": math,
    "random": random, "threading": threading, "signal": signal, "copy": copy, "json": json,
    "socket": socket, "mmap": mmap, "numpy": numpy, "numpy.linalg": numpy.linalg,
    "numpy.random": numpy.random,
    **{f"torch.nn.{name}": layer for name, layer in _LAYERS.items()},
}  # fmt: skip
# What torch._dynamo itself replaces when torch.compile is first used.
_DYNAMO = ("torch.manual_seed", "torch.nn.Module.__init__", "torch.nn.Module.__setstate__")
_READ: Mapping[str, Callable[[], Any]] = {**_FLAGS, **process_globals.FLAGS}
Snapshot = tuple[Mapping[str, Any], Mapping[str, Any]]


def snapshot() -> Snapshot:
    return {name: _answer(read) for name, read in _READ.items()}, _functions()


def changes(before: Snapshot) -> list[str]:
    """One line per global thing that is not what it was."""
    flags, functions = before
    found = []
    for name, read in _READ.items():
        if (now := _answer(read)) != flags[name]:
            found += process_globals.lines(name, flags[name], now)
    later = _functions()
    excused = _DYNAMO if "torch._dynamo.eval_frame" in sys.modules else ()
    patched = [
        name
        for name, (function, code) in functions.items()
        if name not in excused and not _same(later.get(name), function, code)
    ]
    return found + [f"{name} was replaced" for name in patched[:20]]


def _answer(read: Callable[[], Any]) -> Any:
    """PyTorch refuses to read a setting that was made through two of its interfaces."""
    try:
        return read()
    except RuntimeError as error:
        return str(error).splitlines()[0]


def _same(later: tuple[Any, Any] | None, function: Any, code: Any) -> bool:
    return later is not None and later[0] is function and later[1] is code


def _functions() -> dict[str, tuple[Any, Any]]:
    """Functions of torch and of the clocks, each with its code, which can be swapped, too."""
    return {
        f"{owner}.{name}": (value, value.__code__ if isinstance(value, FunctionType) else None)
        for owner, holder in _OWNERS.items()
        for name, value in vars(holder).items()
        if callable(value)
    }


def _precisions() -> dict[str, str]:
    """What float32 products, convolutions and recurrences may be rounded to, by backend."""
    if not hasattr(torch.backends, "fp32_precision"):  # of PyTorch 2.9 and later
        return {}
    names = [(b, op) for b in ("cuda", "mkldnn") for op in ("all", "conv", "rnn", "matmul")]
    read = torch._C._get_fp32_precision_getter
    found = {f"{b} {op}": str(read(b, op)) for b, op in (("generic", "all"), *names)}
    # The older interface writes "ieee" where it restores what nobody had said anything about.
    return {name: "ieee" if value == "none" else value for name, value in found.items()}


def _sums() -> dict[str, bool]:
    """How cuBLAS may add up products of half precision."""
    names = ("fp16_reduced_precision_reduction", "bf16_reduced_precision_reduction")
    settings = [*(f"allow_{name}" for name in names), "allow_fp16_accumulation"]
    matmul = torch.backends.cuda.matmul
    return {name: getattr(matmul, name, False) for name in settings}


def _attention() -> dict[str, bool]:
    """Which kernels PyTorch's own attention may choose."""
    cuda = torch.backends.cuda
    kinds = ("flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp")
    found = {kind: bool(getattr(cuda, f"{kind}_enabled")()) for kind in kinds}
    allowed = getattr(cuda, "fp16_bf16_reduction_math_sdp_allowed", lambda: False)
    return found | {"half-precision sums": bool(allowed())}


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
