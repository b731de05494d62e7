"""How precise PyTorch's own convolutions of float32 are: what its flags say, and a question to ask.

cuDNN chooses an algorithm for every size, and most, but not all of them round where flags let them.
"""

from __future__ import annotations

import torch

# Of the emitted file, and of this process where a GPU is asked while kernels are chosen.
CONV_USES_TF32 = '''
_FUSEWRIGHT_TF32_ANSWERS = {}


def _fusewright_conv_uses_tf32(convolve, image, weight, *settings, last=(False, False)):
    """Whether PyTorch's own convolution rounds its operands to 11 bits, as the kernels do.

    cuDNN decides that for every size. It is asked once, with two images that rounding makes equal.
    last: whether images and weights lie channels last.
    """
    if hasattr(torch._C, "_get_fp32_precision_getter"):  # PyTorch 2.9 and newer
        precision = torch._C._get_fp32_precision_getter("cuda", "conv")
    else:
        precision = torch._C._get_cudnn_allow_tf32()
    cudnn = torch.backends.cudnn
    switches = precision, cudnn.enabled, cudnn.benchmark, cudnn.deterministic
    switches += (torch.are_deterministic_algorithms_enabled(),)
    key = (convolve, image, weight, settings, last, switches)
    if key not in _FUSEWRIGHT_TF32_ANSWERS:
        if torch.cuda.is_current_stream_capturing():
            return False
        *settings, device = settings

        def full(size, value, last):
            size = (size[0], *size[2:], size[1]) if last else size
            made = torch.full(size, value, dtype=torch.float32, device=device)
            return made.movedim(-1, 1) if last else made

        ones = full(weight, 1.0, last[1])
        first = convolve(full(image, 1.0, last[0]), ones, None, *settings)
        second = convolve(full(image, 1 + 2**-12, last[0]), ones, None, *settings)
        _FUSEWRIGHT_TF32_ANSWERS[key] = torch.equal(first, second)
    return _FUSEWRIGHT_TF32_ANSWERS[key]
'''


def allows_tf32() -> bool:
    """Whether PyTorch's flags let its own convolutions of float32 round."""
    if hasattr(torch._C, "_get_fp32_precision_getter"):  # PyTorch 2.9 and newer
        return bool(torch._C._get_fp32_precision_getter("cuda", "conv") == "tf32")
    return bool(torch._C._get_cudnn_allow_tf32())
