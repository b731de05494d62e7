"""Calls of PyTorch's kernels -> an exception where they would end CUDA for the whole process.

The trusted worker tries arguments that get_inputs() never draws. What such a kernel cannot take is
no legal argument of the problem; and a worker without CUDA could judge nothing any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fusewright.judge.tree import tensors

VECTOR_BYTES = 16
_aten = torch.ops.aten
# They load vectors from wherever a tensor begins, and do not look whether it is a multiple.
_VECTORISED = frozenset(
    getattr(_aten, f"_scaled_dot_product_{kind}_attention")
    for kind in ("efficient", "flash", "cudnn")
)


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if func.overloadpacket in _VECTORISED:
            given = tensors([list(args), kwargs or {}])
            if any(t.data_ptr() % VECTOR_BYTES for t in given):
                raise RuntimeError(f"{func} cannot take a tensor that begins between two vectors")
        return func(*args, **(kwargs or {}))
