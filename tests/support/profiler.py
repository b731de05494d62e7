"""Events as PyTorch's profiler (Kineto) writes them, for tests that have no GPU to profile."""

from __future__ import annotations

import json
from typing import Any

BASE = 5_170_691_055_000.0  # microseconds since a machine has started
THREAD, STREAM = 641, 7


def entry(name: str, begin: float, us: float, tid: int = THREAD, **more: Any) -> dict[str, Any]:
    """An operator or a range of the host, `begin` microseconds after BASE."""
    return {
        "ph": "X", "cat": "cpu_op", "name": name, "pid": 640, "tid": tid, "ts": BASE + begin,
        "dur": us, "args": {"External id": 1}, **more,
    }  # fmt: skip


def launch(begin: float, correlation: int, us: float = 3.0) -> dict[str, Any]:
    """A call of CUDA's that asks for work."""
    args = {"cbid": 211, "correlation": correlation}
    return entry("cudaLaunchKernel", begin, us, cat="cuda_runtime", args=args)


def kernel(
    name: str, begin: float, us: float, correlation: int, stream: int = STREAM
) -> dict[str, Any]:
    """Work of a GPU."""
    args = {"device": 0, "stream": stream, "correlation": correlation, "grid": [1, 1, 1]}
    return entry(name, begin, us, tid=stream, cat="kernel", pid=0, args=args)


def text(*entries: dict[str, Any]) -> bytes:
    """What the profiler exports, with what it writes beside events."""
    around = [
        {"ph": "M", "name": "process_name", "pid": 640, "tid": 0, "args": {"name": "python"}},
        {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "x",
         "ts": BASE, "dur": 1.0},
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": BASE},
    ]  # fmt: skip
    return json.dumps({"schemaVersion": 1, "traceEvents": [*around, *entries]}).encode()
