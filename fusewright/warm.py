"""Importing this exports one small model, so that what is forked from here need not start anew.

The first export of a process takes three times as long as the second one. No number is drawn and
no thread is started. Where PyTorch knows CUDA, nothing is done: what is asked of it before a fork
is spoiled for those who are forked.
"""

from __future__ import annotations

import torch

from fusewright.export import export

if torch.version.cuda is None:
    export(torch.nn.ReLU(), (torch.zeros(2, 2),))
