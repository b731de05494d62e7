"""Groups of PyTorch's types, named once: what kernels compute, and in which precision.

A tensor of any other type (complex numbers, float8, the unsigned types beyond uint8, quantised
ones) may be an input, an output or a library call's; no kernel reads or writes it.
"""

from __future__ import annotations

import torch

HALF = (torch.float16, torch.bfloat16)  # stored in 16 bits, computed in float32
FLOAT = (torch.float32, *HALF)  # computed as float
FLOATS = (torch.float32, torch.float64, *HALF)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
OF_KERNELS = frozenset([*FLOATS, *INTEGERS, torch.bool])
