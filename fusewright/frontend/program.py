"""What a capture reads: ATen calls, what each gives on fake tensors, and what goes in and out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph
from torch.utils import _pytree as pytree

SYMBOLS = torch.SymInt | torch.SymFloat | torch.SymBool


def is_fixed(value: object) -> bool:
    """Whether all numbers, and all sizes and strides of tensors, are known."""
    return not any(
        isinstance(number, SYMBOLS)
        for leaf in pytree.tree_leaves(value)
        for number in ((*leaf.shape, *leaf.stride()) if isinstance(leaf, torch.Tensor) else [leaf])
    )


class Program(Protocol):
    """An `ExportedProgram`, or what else has these."""

    @property
    def graph(self) -> Graph: ...

    @property
    def graph_signature(self) -> ExportGraphSignature: ...

    @property
    def constants(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class TracedProgram:
    """A functional graph whose placeholders, and whose outputs, are tensors.

    inputs, outputs: what each of them is; where these are left out, all is given, and returned.
    """

    graph: Graph
    constants: Mapping[str, Any] = field(default_factory=dict)
    inputs: Sequence[InputSpec] | None = None
    outputs: Sequence[OutputSpec] | None = None

    @property
    def graph_signature(self) -> ExportGraphSignature:
        (output,) = (n for n in self.graph.nodes if n.op == "output")
        places = [n for n in self.graph.nodes if n.op == "placeholder"]
        given = [InputSpec(InputKind.USER_INPUT, TensorArgument(n.name), None) for n in places]
        returned = [
            OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(n.name), None) for n in output.args[0]
        ]
        return ExportGraphSignature([*(self.inputs or given)], [*(self.outputs or returned)])
