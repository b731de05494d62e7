"""Operators of floats that few models use, one result each."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        y = torch.nn.functional.silu(x) + torch.special.erfc(x)
        results = [
            torch.neg(x),
            torch.sign(x),
            torch.floor(x),
            torch.ceil(x),
            torch.trunc(x),
            torch.exp2(x),
            torch.log10(x),
            torch.tan(x),
            torch.asin(x),
            torch.acos(x),
            torch.atan(x),
            torch.sinh(x),
            torch.cosh(x),
            torch.asinh(x),
            torch.acosh(x),
            torch.atanh(x),
            torch.erfc(x),
            torch.isnan(x),
        ]
        results += [torch.fmax(x, y), torch.fmin(x, y), torch.hypot(x, y), torch.copysign(x, y)]
        return [*results, torch.fmod(x, y), torch.remainder(x, y), y]


batch_size = 16


def get_inputs():
    return [torch.rand(batch_size, 48)]


def get_init_inputs():
    return []
