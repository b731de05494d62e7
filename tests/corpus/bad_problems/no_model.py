"""Defines no Model."""

import torch
import torch.nn as nn


batch_size, width = 4, 8


def get_inputs():
    return [torch.rand(batch_size, width)]


def get_init_inputs():
    return [width]
