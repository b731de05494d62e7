"""Importing this makes what is forked from here ready: judgings share nurseries, exports are warm.

The first export of a process takes three times as long as the second one. No number is drawn and
no thread is started. Where PyTorch knows CUDA, nothing is exported: what is asked of it before a
fork is spoiled for those who are forked.
"""

from __future__ import annotations

import gc

import torch

from fusewright.frontend.export import export
from fusewright.judge.isolation import worker_pool
from fusewright.judge.timing import sides

worker_pool.share((worker_pool.CHECKED, sides.ENVIRONMENT))
if torch.version.cuda is None:
    export(torch.nn.ReLU(), (torch.zeros(2, 2),))
gc.collect()
gc.freeze()  # the collector of a run would touch, and so copy, all of it
