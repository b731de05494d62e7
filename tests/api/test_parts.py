"""Models that are taken in parts: each part has kernels for both modes, and for gradients."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fusewright
from fusewright.compiler import pipeline
from fusewright.compiler.modes import InModes
from fusewright.errors import CaptureFailed

pytestmark = [pytest.mark.compiler, pytest.mark.filterwarnings("error:.*runs its original forward")]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.project, self.norm = nn.Linear(width, width), nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Any:
        return x + self.drop(torch.nn.functional.gelu(self.norm(self.project(x))))


class Gate(nn.Module):
    """The same in both modes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Any:
        return self.norm(torch.tanh(x) * torch.sigmoid(x))


class Branching(nn.Module):
    """Asks for a value of its data, so that it cannot be captured as a whole."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second, self.gate = Block(width), Block(width), Gate(width)

    def forward(self, x: Tensor) -> Any:
        x = self.first(x)
        return self.gate(self.second(x) if x.isfinite().all() else x)


def fused(model: nn.Module, x: Tensor, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="fusewright.optimize: Branching")
        return fusewright.optimize(model, x, options=options)


def drawn(rows: int = 12) -> Tensor:
    return torch.randn(rows, 16)


def of_float64(faster: nn.Module) -> nn.Module:
    """The original, with the same state, in the same mode."""
    exact = Branching().double().train(faster.training)
    exact.load_state_dict(copy.deepcopy(faster.state_dict()))
    return exact


def calls(faster: Any) -> int:
    return sum(one["kernels"] for one in faster.fusewright.status().values())


@pytest.mark.parametrize("made_in", ["train", "eval"])
@torch.no_grad()
def test_both_modes_have_kernels(made_in: str) -> None:
    model = Branching().train(made_in == "train")
    faster = fused(model, drawn())
    other = "eval" if made_in == "train" else "train"
    assert f"in {other} mode" in faster.fusewright.explain()
    for k, mode in enumerate((made_in, other, made_in)):
        faster.train(mode == "train")
        exact = of_float64(faster)
        before, x = calls(faster), drawn(12 + k)
        torch.testing.assert_close(faster(x), exact(x.double()).float(), rtol=1e-4, atol=1e-5)
        assert calls(faster) == before + 3


@torch.no_grad()
def test_one_mode_where_that_is_asked_for() -> None:
    faster = fused(Branching().train(), drawn(), mode="train")
    assert "mode:" not in faster.fusewright.explain()
    with pytest.warns(UserWarning, match="training flag"):
        faster.eval()(drawn())


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_gradients(training: bool) -> None:
    """Of both modes, from kernels, against float64."""
    faster = fused(Branching().eval(), drawn(), gradients=True).train(training)
    exact = of_float64(faster)
    for rows in (12, 20):
        x = drawn(rows).requires_grad_()
        wide = x.detach().double().requires_grad_()
        before, found = calls(faster), faster(x)
        assert calls(faster) == before + 3
        assert "Fusewright" in type(found.grad_fn).__name__
        for model in (faster, exact):
            model.zero_grad(set_to_none=True)
        slope = drawn(rows)
        (found * slope).sum().backward()
        (exact(wide) * slope.double()).sum().backward()
        pairs = [(x.grad, wide.grad)]
        names = dict(exact.named_parameters())
        pairs += [(p.grad, names[name].grad) for name, p in faster.named_parameters()]
        for mine, right in pairs:
            assert mine is not None
            assert right is not None
            scale = max(right.abs().max().item(), 1.0)
            torch.testing.assert_close(mine.double(), right, rtol=1e-3, atol=1e-4 * scale)


@torch.no_grad()
def test_what_else_was_made_and_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part keeps its own mode, and the record says of all else what stopped it."""
    writes = pipeline.code_in_modes

    def fails(modes: InModes, *given: Any) -> Any:
        if len(modes.made) > 1:
            raise CaptureFailed("no name for a class")
        return writes(modes, *given)

    monkeypatch.setattr(pipeline, "code_in_modes", fails)
    faster = fused(Branching().train(), drawn(), gradients=True)
    said = faster.fusewright.explain()
    assert "in eval mode as written: no name for a class" in said
    assert said.count("with gradients as written: no name for a class") == 2, "of both classes"
    faster(drawn())
    assert calls(faster) == 3
