"""A call -> its outputs, what clocks said right after it, and copies taken in the same breath.

An output may be filled in after its return: by a hook of a profiler or debugger, the handler of a
signal, a finalizer that the garbage collector runs, a thread. All but the last run between two
bytecodes of Python. So between the return and the copies there are none: one call of a function
written in C makes the call, reads the clocks, stops the collector, and copies. Whatever comes later
writes into tensors of which nobody reads the content.
"""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, islice, tee
from typing import Any

import torch
from torch import Tensor

# Bound before any candidate is imported.
_call, _first, _partial = operator.call, operator.itemgetter(0), partial
_detach, _clone, _flatten = Tensor.detach, Tensor.clone, torch._C._jit_flatten
_chained, _head, _twice = chain.from_iterable, islice, tee
_stop, _go_on, _runs = gc.disable, gc.enable, gc.isenabled
Copies = Mapping[int, Tensor]  # by the identity of what was copied


def in_one_breath(
    run: Callable[[], object], after: Sequence[Callable[[], Any]]
) -> tuple[object, list[Any], Copies]:
    """The outputs, what each of `after` returned, and copies of the outputs' tensors.

    No copies come of outputs whose containers only Python can look into.
    """
    answers: list[Any] = []
    copies: list[Tensor] = []
    found, same = _twice(_chained(map(_first, map(_flatten, _head(answers, 1)))))
    stages = (
        _partial(answers.extend, map(_call, (run, *after, _runs, _stop))),
        _partial(copies.extend, map(_clone, map(_detach, found))),
    )
    wanted = len(after) + 3
    try:
        any(map(_call, stages))
    except Exception:
        if len(answers) < wanted:
            raise  # the model's own
        return answers[0], answers[1:-2], {}
    finally:
        if len(answers) == wanted and answers[-2]:
            _go_on()
    return answers[0], answers[1:-2], dict(zip(map(id, same), copies, strict=True))
