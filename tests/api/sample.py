"""Modules of someone's own, in a file that can be imported."""

from __future__ import annotations

import functools
from abc import ABC
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

FACTOR = 2.0


class Block(nn.Module):
    """Reads a number of the module level, and has arguments that go by name."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.slope = 0.5

    def forward(self, x: Tensor, shift: float = 1.0, *, scale: float = 2.0) -> Tensor:
        return torch.relu(self.norm(self.linear(x)) * self.slope + shift) * scale * FACTOR


class Routed(nn.Module):
    """Asks for values of its data, so that only its blocks are captured."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.second = Block(width), Block(width)
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x) if x.sum().item() > -1e9 else -x
        return self.head(self.second(x))


class Tied(nn.Module):
    """Two submodules with one parameter, and buffers of both kinds."""

    steps: Tensor
    mask: Tensor

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.out.weight = self.into.weight
        self.register_buffer("steps", torch.linspace(0.5, 1.5, width))
        self.register_buffer("mask", torch.ones(width), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.out(torch.tanh(self.into(x) * self.steps) + self.mask))


@dataclass
class Output(OrderedDict[str, Tensor]):
    """As those of model libraries: a dict whose keys are its fields."""

    hidden: Tensor | None = None
    pooled: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("hidden", "pooled"):
            if getattr(self, name) is not None:
                OrderedDict.__setitem__(self, name, getattr(self, name))


class Encoder(nn.Module):
    """Nested arguments, flags and None go in; a dataclass that is a dict comes out."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(
        self,
        states: tuple[Tensor, list[Tensor]],
        mask: Tensor | None = None,
        *,
        pool: bool = False,
        extra: dict[str, Tensor | None] | None = None,
    ) -> Output:
        first, (second, third) = states
        x = torch.tanh(self.norm(first + second)) * third
        if mask is not None:
            x = x * mask
        if extra is not None and (bias := extra["bias"]) is not None:
            x = x + bias
        return Output(hidden=x, pooled=x.mean(1) if pool else None)


class Abstract(nn.Module, ABC):
    """Its class has a class of its own."""

    class Inner(nn.Module):
        """A class in a class."""

        def forward(self, x: Tensor) -> Tensor:
            return torch.sigmoid(x) * 3 + 1

    def __init__(self) -> None:
        super().__init__()
        self.inner = self.Inner()

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.inner(x))


class Model(nn.Module):
    """With arguments whose names those of `fusewright.optimize` have, too."""

    def forward(self, module: Tensor, options: Tensor | None = None, args: float = 2.0) -> Tensor:
        return torch.tanh(module if options is None else module + options) * args


def with_scale(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """As decorators of model libraries: an argument that nobody gives is the model's, by name."""

    @functools.wraps(forward)
    def wrapper(self: Any, *args: Any, **named: Any) -> Tensor:
        if named.get("scale") is None:
            named["scale"] = self.scale
        return forward(self, *args, **named)

    return wrapper


class Wrapped(nn.Module):
    """Its forward stands behind a decorator."""

    def __init__(self, scale: float = 2.0) -> None:
        super().__init__()
        self.scale = scale

    @with_scale
    def forward(
        self, x: Tensor, mask: Tensor | None = None, scale: float | None = None, shift: float = 1.0
    ) -> Tensor:
        assert scale is not None
        x = torch.tanh(x) * scale + shift
        return x if mask is None else x * mask


class Around(nn.Module):
    """Calls that, and asks for values of its data."""

    def __init__(self) -> None:
        super().__init__()
        self.wrapped = Wrapped()

    def forward(self, x: Tensor) -> Tensor:
        return self.wrapped(x, shift=2.0) if x.sum().item() > -1e9 else -x


RECORDS: dict[str, type[nn.Module]] = {}  # by the name of a class: of what it can tell


class Recorder(nn.Module):
    """Sets hooks on its submodules when their results are first asked for."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        RECORDS[str(type(self))] = nn.GELU
        self.into = nn.Sequential(nn.Tanh(), nn.LayerNorm(width))
        self.layers = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.hooked, self.recorded = False, list[Tensor]()

    def forward(self, x: Tensor, *, record: bool = False) -> tuple[Tensor, ...]:
        if record and not self.hooked:
            found = (c for c in self.modules() if type(c) is RECORDS.get(str(type(self))))
            for child in found:
                child.register_forward_hook(lambda _, __, made: self.recorded.append(made))
            self.hooked = True
        self.recorded = []
        made = self.layers(self.into(x))
        return (made, *self.recorded) if record else (made,)


class Cache:
    """Grows with each call, as the keys and values of a decoder do."""

    def __init__(self) -> None:
        self.rows: list[Tensor] = []

    def update(self, x: Tensor) -> Tensor:
        self.rows.append(x)
        return torch.cat(self.rows, 1)


class Decoder(nn.Module):
    """Changes an object that it is given."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        return self.inside(cache.update(x)).sum(1)
