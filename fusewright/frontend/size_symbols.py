"""The symbols of a program's free sizes -> sizes of ours: products of free sizes with names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from fusewright.frontend.asked_size import AskedSize
from fusewright.ir.graph import BatchSize, size_of


@dataclass(frozen=True)
class SizeSymbols:
    """names: what we call the size that each symbol stands for."""

    names: Mapping[Any, str]

    def size(self, number: torch.SymInt) -> BatchSize | None:
        """A number as a multiple of free sizes; None for what is none, or depends on the data."""
        if runtime_number(number):
            return None
        count, product = number.node.expr.as_coeff_Mul()
        powers = product.as_powers_dict().items()
        if not count.is_Integer or any(
            symbol not in self.names or not (power.is_Integer and power > 0)
            for symbol, power in powers
        ):
            return None
        found = size_of(int(count), (self.names[s] for s, power in powers for _ in range(power)))
        return found if isinstance(found, BatchSize) else None


NO_SYMBOLS = SizeSymbols({})


def symbols_of(program: ExportedProgram, asked: Iterable[AskedSize], count: int) -> SizeSymbols:
    """The symbols of sizes in a program whose last `count` arguments are the model's tensors."""
    tensors = arguments_of(program, count)
    sizes: list[tuple[Any, str]] = [
        (tensors[k].shape[d], size.name) for size in asked for k, d in size.places
    ]
    return SizeSymbols({s.node.expr: name for s, name in sizes if isinstance(s, torch.SymInt)})


def relations(program: ExportedProgram, symbols: SizeSymbols) -> list[str]:
    """What a trace has asked of several free sizes together, whatever the answer was.

    torch.export says where one size is not as free as it is to be, but it takes what relates two of
    them (`batch != length`, `batch * length == 186`) for granted.
    """
    places = [n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"]
    sizes: list[Any] = [s for v in places if isinstance(v, torch.Tensor) for s in v.shape]
    modes = {id(s.node.shape_env): s.node.shape_env for s in sizes if isinstance(s, torch.SymInt)}
    asked = [env.replace(guard.expr) for env in modes.values() for guard in env.guards]
    found = []
    for expression in asked:
        named = {s: s.func(symbols.names[s]) for s in expression.free_symbols & {*symbols.names}}
        if len({str(name) for name in named.values()}) > 1:
            found.append(str(expression.subs(named)))
    return found


def arguments_of(program: ExportedProgram, count: int) -> list[torch.Tensor]:
    """The last `count` tensors that a program is given: those of the model's arguments, behind its
    parameters, as they are traced."""
    places = [n.meta["val"] for n in program.graph.nodes if n.op == "placeholder"]
    return [value for value in places if isinstance(value, torch.Tensor)][-count:]


def runtime_number(value: object) -> bool:
    """Whether a number or size is known only from the data, as `.item()` is."""
    symbolic = isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)
    return symbolic and bool(free_unbacked_symbols(value))
