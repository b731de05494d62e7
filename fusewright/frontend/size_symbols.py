"""The symbols of a program's free sizes -> sizes of ours: products of free sizes with names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.functions import FloatTrueDiv, IntTrueDiv, ToFloat

from fusewright.frontend.asked_size import AskedSize
from fusewright.ir.graph import BatchSize, size_of


@dataclass(frozen=True)
class SizeSymbols:
    """names: what we call the size that each symbol stands for."""

    names: Mapping[Any, str]

    def size(self, number: torch.SymInt) -> BatchSize | None:
        """A number as a multiple of free sizes; None for what is none, or depends on the data."""
        return None if runtime_number(number) else self._product(number.node.expr)

    def quotient(self, number: torch.SymFloat) -> tuple[float, BatchSize] | None:
        """A number as another one by a multiple of free sizes; None for what is none."""
        if runtime_number(number):
            return None
        found = number.node.expr
        for function in (IntTrueDiv, FloatTrueDiv):
            found = found.replace(function, lambda a, b: a / b)
        found = found.replace(ToFloat, lambda a: a).replace(_is_whole, lambda a: a.round())
        above, below = found.as_numer_denom()
        size = self._product(below)
        return (float(above), size) if above.is_number and size is not None else None

    def _product(self, expression: Any) -> BatchSize | None:
        count, product = expression.as_coeff_Mul()
        powers = product.as_powers_dict().items()
        if not count.is_Integer or any(
            symbol not in self.names or not (power.is_Integer and power > 0)
            for symbol, power in powers
        ):
            return None
        found = size_of(int(count), (self.names[s] for s, power in powers for _ in range(power)))
        return found if isinstance(found, BatchSize) else None


def _is_whole(expression: Any) -> bool:
    return bool(expression.is_Float and expression == int(expression))


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
    found = []
    for expression in guards_of(program):
        named = _named(expression, symbols)
        if len({str(name) for name in named.values()}) > 1:
            found.append(str(expression.subs(named)))
    return found


def guards_of(program: ExportedProgram) -> list[Any]:
    """What has been asked of sizes, with yes for an answer, since they were traced first."""
    modes = {id(env): env for env in map(_env, _free_numbers(program))}
    return [env.replace(guard.expr) for env in modes.values() for guard in env.guards]


def asked_behind(program: ExportedProgram, symbols: SizeSymbols, known: int) -> list[str]:
    """What has been asked of free sizes behind so many questions, or what they have to be since."""
    found = []
    for number in _free_numbers(program):
        for symbol, name in symbols.names.items():
            if _env(number).replace(symbol) != symbol:
                found.append(f"{name} being {_env(number).replace(symbol)}")
    for expression in guards_of(program)[known:]:
        if named := _named(expression, symbols):
            found.append(str(expression.subs(named)))
    return found


def _free_numbers(program: ExportedProgram) -> list[torch.SymInt]:
    """Sizes of what a program is given that were free when it was traced."""
    places = [n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"]
    sizes: list[Any] = [s for v in places if isinstance(v, torch.Tensor) for s in v.shape]
    return [s for s in sizes if isinstance(s, torch.SymInt)]


def _env(number: torch.SymInt) -> Any:
    return number.node.shape_env


def _named(expression: Any, symbols: SizeSymbols) -> dict[Any, Any]:
    """What is put for the free sizes in it, to be read by people."""
    return {s: s.func(symbols.names[s]) for s in expression.free_symbols & {*symbols.names}}


def arguments_of(program: ExportedProgram, count: int) -> list[torch.Tensor]:
    """The last `count` tensors that a program is given: those of the model's arguments, behind its
    parameters, as they are traced."""
    places = [n.meta["val"] for n in program.graph.nodes if n.op == "placeholder"]
    return [value for value in places if isinstance(value, torch.Tensor)][-count:]


def runtime_number(value: object) -> bool:
    """Whether a number or size is known only from the data, as `.item()` is."""
    symbolic = isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)
    return symbolic and bool(free_unbacked_symbols(value))
