"""torch.export gets all composite operators ready once per process, and not for every model.

To keep them whole, it writes some thousand entries into PyTorch's tables and takes them out again,
which is half of what a small model's capture takes. Here the same entries are remembered and put
back, as long as the tables are what they were. `make zoo`, and whatever else has a process of its
own, goes without.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._export import utils
from torch._subclasses.fake_impls import op_implementations_dict
from torch.export import exported_program

Kernels = dict[Any, Any]
_prepare = exported_program._override_composite_implicit_decomp
_materialize = utils._materialize_cpp_cia_ops
# Composite operator -> what it is asked to become, its kernels and its rule for fake tensors before
# an export, and both during it.
_known: dict[Any, tuple[tuple[object, Kernels, object], tuple[Kernels, object]]] = {}
_registered: list[object] = []


def keep() -> None:
    """From now on, in this process."""
    exported_program._override_composite_implicit_decomp = _prepared
    utils._materialize_cpp_cia_ops = _materialized


@contextmanager
def _prepared(table: Mapping[Any, object]) -> Iterator[None]:
    before = {op: (ask, *_now(op)) for op, ask in table.items()}
    if any(op not in _known or _known[op][0] != was for op, was in before.items()):
        _known.clear()
        with _prepare(table):
            _known.update((op, (was, _now(op))) for op, was in before.items())
    for op in table:
        _put(op, *_known[op][1])
    try:
        yield
    finally:
        for op, (_, kernels, _) in before.items():
            _put(op, kernels, None)  # as torch.export leaves it


def _now(op: Any) -> tuple[Kernels, object]:
    return op.py_kernels.copy(), op_implementations_dict.get(op)


def _put(op: Any, kernels: Kernels, rule: object) -> None:
    op.py_kernels.clear()
    op.py_kernels.update(kernels)
    op._dispatch_cache.clear()
    op_implementations_dict.pop(op, None)
    if rule is not None:
        op_implementations_dict[op] = rule


def _materialized() -> None:
    found = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
    if found != _registered:
        _materialize()
        _registered[:] = found
