"""Outputs that are one memory for eager are one for the graph, and no others are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fusewright.frontend.capture import capture, state_of
from fusewright.ir.graph import memory_of, numel
from fusewright.ir.interpreter import interpret
from fusewright.rewrite.simplify import rewrite


def _passing(call: Callable[..., object]) -> Callable[[torch.Tensor], torch.Tensor]:
    """x itself, after a call that hands it on."""

    def passed(x: torch.Tensor) -> torch.Tensor:
        call(x * 2, x)
        return x

    return passed


# What may be its argument itself, a view of it, or new memory.
CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mse_loss": _passing(F.mse_loss),
    "l1_loss": _passing(F.l1_loss),
    "smooth_l1_loss": _passing(F.smooth_l1_loss),
    "huber_loss": _passing(F.huber_loss),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x * 2, x)[1],
    "broadcast_tensors, wider": lambda x: torch.broadcast_tensors(x, torch.ones(2, 1, 1, 1))[0],
    "meshgrid": lambda x: torch.meshgrid(x[0, :, 0], x[0, 0], indexing="ij")[1],
    "atleast_1d": lambda x: torch.atleast_1d(x, x + 1)[0],
    "atleast_3d": lambda x: torch.atleast_3d(x[0], x[1])[1],
    "expand_as": lambda x: x.expand_as(x * 2),
    "reshape": lambda x: x.reshape(-1),
    "reshape to a copy": lambda x: x.mT.reshape(-1),
    "contiguous": lambda x: x.contiguous(),
    "type_as": lambda x: x.type_as(x),
    "positive": lambda x: x.positive(),
    "unsafe_split": lambda x: torch.unsafe_split(x, 2)[0],
    "tensor_split": lambda x: x.tensor_split(2)[1],
    "einsum": lambda x: torch.einsum("abc->acb", x),
    "diagonal of einsum": lambda x: torch.einsum("aab->ab", x[:, :4]),
    "dropout in eval": lambda x: F.dropout(x, 0.5, False),
    "cat of one": lambda x: torch.cat([x]),
    "roll by nothing": lambda x: x.roll(0, 0),
    "sum over nothing": lambda x: x.sum_to_size(x.shape),
    "repeat once": lambda x: x.repeat(1, 1, 1),
}
# How the results are returned beside others.
RETURNED: dict[str, Callable[[Callable[[torch.Tensor], torch.Tensor], torch.Tensor], object]] = {
    "behind a view": lambda call, x: (x[:, 0], call(x), x),
    "before": lambda call, x: (call(x), x, x[0]),
    "twice": lambda call, x: (call(x), call(x)),
    "of what is made": lambda call, x: _of_made(call, x * 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("call", [F.mse_loss, F.l1_loss, F.huber_loss])
def test_what_a_loss_hands_on_shows_the_input_that_changed(call: Callable[..., object]) -> None:
    """Losses broadcast their arguments, and what is read of them later is a view of a view."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            rows = x.reshape(-1)
            call(rows, rows)
            return rows.unsqueeze(0).reshape(-1)

    x = torch.randn(1, 31)
    captured = capture(Model(), [x])
    (result,) = captured.graph.outputs
    assert memory_of(result).op == "input"


def _of_made(call: Callable[[torch.Tensor], torch.Tensor], y: torch.Tensor) -> object:
    first = y[:, 0]
    return call(y), first, y


def _memories(results: Sequence[torch.Tensor], x: torch.Tensor) -> list[int]:
    """Of each result: who was the first to show its memory, the input before all."""
    where = [t.untyped_storage().data_ptr() for t in (x, *results)]
    return [where.index(here) for here in where[1:]]


def _model(name: str, how: str) -> nn.Module:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> object:
            return RETURNED[how](CALLS[name], x)

    return Model()


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_outputs_share_memory_as_eager_does(name: str) -> None:
    for how in RETURNED:
        module, x = _model(name, how), torch.randn(4, 5, 8)
        eager = module(x)
        captured = capture(module, [x])
        for graph in (captured.graph, rewrite(captured.graph)[0]):
            ours = interpret(graph, [x], state_of(captured, module))
            assert _memories(ours, x) == _memories(eager, x), how
            assert all(torch.equal(a, b) for a, b in zip(ours, eager, strict=True)), how


# Views that show less than all of a memory, or parts of it several times.
PARTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "select": lambda y: y[:, 2],
    "narrow": lambda y: y[:, 1:3],
    "every second": lambda y: y[..., ::2],
    "diagonal": lambda y: y.diagonal(dim1=1, dim2=2),
    "split": lambda y: y.split(3, 1)[1],
    "chunk": lambda y: y.chunk(2, 2)[0],
    "unbind": lambda y: y.unbind(1)[3],
    "expand": lambda y: y[:, :1].expand(4, 5, 8),
    "unfold": lambda y: y.unfold(2, 4, 2),
    "bits": lambda y: y.view(torch.int32)[:, 2].view(torch.float32),
}
# What algebra takes for its argument; eager gives it memory of its own.
SAME: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "times one": lambda y: y * 1.0,
    "minimum with itself": lambda y: torch.minimum(y, y),
    "maximum with itself": lambda y: torch.maximum(y, y),
}


@pytest.mark.slow
@pytest.mark.parametrize("same", SAME)
@pytest.mark.parametrize("part", PARTS)
def test_what_is_computed_of_a_part_has_memory_of_that_size(part: str, same: str) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return SAME[same](PARTS[part](x * 2))

    captured = capture(Model(), [torch.randn(4, 5, 8)])
    (result,) = rewrite(captured.graph)[0].outputs
    memory = memory_of(result)
    assert captured.graph.hint(numel(memory.shape)) == captured.graph.hint(numel(result.shape))
