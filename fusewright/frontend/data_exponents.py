"""Powers with numbers that only the data knows: `x ** n.item()`, `n.item() ** x`, `n.item() ** 2`.

A trace needs the type of such a number and nothing else. PyTorch 2.11 asks whether it is 1, 2 or
1/2, which nobody can answer, and notes that a base is not negative, which Python does not ask of it
and which 2.11 has no words for when it writes its notes down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensorMode

from fusewright.frontend.unknown_sizes import fake_rules

POWERS = (
    torch.ops.aten.pow.Tensor_Scalar,
    torch.ops.aten.pow.Scalar,
    torch.ops.aten.pow_.Scalar,
)
STAND_IN = 3  # no power of it, and no power by it, is another operator


@contextmanager
def unknown_powers() -> Iterator[None]:
    """Within the block, fake tensors and numbers take such numbers in powers, whatever they are."""
    kept = {name: vars(torch.SymFloat)[name] for name in ("__pow__", "__rpow__")}
    written: dict[Any, Any] = {power: decomposition_table[power] for power in POWERS}
    setattr(torch.SymFloat, "__pow__", _power)  # noqa: B010
    setattr(torch.SymFloat, "__rpow__", _power_of_other)  # noqa: B010
    for power, composition in written.items():
        decomposition_table[power] = _composed(composition)
    try:
        with fake_rules(dict.fromkeys(POWERS, _sizes)):
            yield
    finally:
        decomposition_table.update(written)
        for name, function in kept.items():
            setattr(torch.SymFloat, name, function)


def _sizes(mode: FakeTensorMode, power: Any, *args: Any, **kwargs: Any) -> Any:
    """What a known number of the same type gives; PyTorch's own rule where no number is unknown."""
    known = [_known(a) for a in args]
    if all(a is k for a, k in zip(args, known, strict=True)):
        return NotImplemented
    with mode:
        return power(*known, **kwargs)


def _composed(written: Callable[..., Any]) -> Callable[..., Any]:
    """The same for how PyTorch writes a power with other operators: fake tensors take that first,
    where a size or a whole number is unknown."""

    def compose(*args: Any, **kwargs: Any) -> Any:
        return written(*map(_known, args), **kwargs)

    return compose


def _known(argument: Any) -> Any:
    if isinstance(argument, torch.SymFloat):
        return float(STAND_IN)
    return STAND_IN if isinstance(argument, torch.SymInt) else argument


def _power(base: Any, exponent: Any) -> Any:
    return base.__float_pow__(exponent) if _is_number(exponent) else NotImplemented


def _power_of_other(exponent: Any, base: Any) -> Any:
    return exponent.__rfloat_pow__(base) if _is_number(base) else NotImplemented


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | torch.SymInt | torch.SymFloat)
