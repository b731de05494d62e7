"""What nodes of contractions and pads are told beside their arguments: one record for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from fusewright.ir.graph import BatchSize, Node
from fusewright.ir.record import Record


@dataclass(frozen=True)
class GemmSpec(Record):
    """Of a matrix product.

    instance: keeps two products of the same factors apart: each has its own kernel, which stores
    what follows it and never the product.  origin: what the model called.
    """

    instance: int
    origin: Literal["matmul", "conv1x1"] = "matmul"


@dataclass(frozen=True)
class ConvSpec(Record):
    """Of a convolution, transposed or not.

    rank: of its images.  pads: of each dimension, low and high.  instance: keeps two of the same
    arguments apart.  numerics: operands of float32 rounded as TF32 does, or as they are; or of 16
    bits.  output_padding: of a transposed one, how much larger its result is at the high sides.
    reduces_channels: whether its tiles may reduce over channels.  cell: how many pixels along each
    of three dimensions are packed as channels of one.  pool_window, full_pixels: where each element
    is a window of pixels, their number along each dimension, and that of all pixels.
    """

    rank: int
    stride: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int
    instance: int
    numerics: Literal["tf32", "float32", "half"]
    output_padding: tuple[int, ...] | None = None
    reduces_channels: bool = False
    cell: tuple[int, int, int] | None = None
    pool_window: tuple[int, ...] | None = None
    full_pixels: tuple[int, ...] | None = None

    @property
    def padding(self) -> tuple[int, ...] | Literal["same"]:
        """The pads as PyTorch's convolutions take them: a number for both sides."""
        asymmetric = any(low != high for low, high in self.pads)
        return "same" if asymmetric else tuple(low for low, _ in self.pads)

    def words(self) -> Mapping[str, Any]:
        return {**self.values(), "padding": self.padding, "pads": as_functional_pad(self.pads)}


@dataclass(frozen=True)
class AttentionSpec(Record):
    """Of attention. score_mod: the function of scores, a graph of its own whose `input` 0 is the
    product of queries and keys.  instance: keeps two of the same operands apart."""

    score_mod: Node
    instance: int


@dataclass(frozen=True)
class ViewFill(Record):
    """Of a pad. pads: before and behind each dimension.  value: what is there.  unobserved: nobody
    looks at it, so it may be anything."""

    pads: tuple[tuple[int, int], ...]
    value: int | float | bool | BatchSize
    unobserved: bool = False

    def words(self) -> Mapping[str, Any]:
        return {**self.values(), "pads": as_functional_pad(self.pads)}


def as_functional_pad(pads: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    """The sides as `torch.nn.functional.pad` wants them: from the last dimension to the first."""
    return tuple(side for pair in reversed(pads) for side in pair)


Spec = TypeVar("Spec", bound=Record)


def spec_of(n: Node, kind: type[Spec]) -> Spec:
    """The node's record of this kind."""
    found = n["spec"]
    assert isinstance(found, kind), f"the spec of a node of {n.op} is a {kind.__name__}"
    return found
