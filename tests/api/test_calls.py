"""The arguments of fusewright.optimize are those of a call, and options have their own place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fusewright
from fusewright.errors import BadUsage, CaptureFailed
from tests.api.sample import Block, Encoder, Model, Output, Routed

X = torch.randn(4, 8)
STATES = torch.randn(5, 4, 8)
NESTED = (STATES, [STATES + 1, STATES * 2])
# Arguments of an encoder by position, and by name.
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "nested": ((NESTED,), {}),
    "all of them": ((NESTED, STATES > 0), {"pool": True, "extra": {"bias": STATES}}),
    "by name": ((), {"states": NESTED, "mask": STATES.relu(), "extra": {"bias": None}}),
    "None and a flag": ((NESTED, None), {"pool": False}),
}


@pytest.mark.compiler
@pytest.mark.filterwarnings("error")
@torch.no_grad()
@pytest.mark.parametrize("name", CALLS)
def test_any_nesting_of_arguments(name: str) -> None:
    args, named = CALLS[name]
    encoder = Encoder()
    fused = fusewright.optimize(encoder, *args, **named)
    found, wanted = fused(*args, **named), encoder(*args, **named)
    assert type(found) is Output
    assert list(found) == list(wanted)
    for key in wanted:
        torch.testing.assert_close(found[key], wanted[key])
        assert found[key] is getattr(found, key)
    assert fused.fusewright.status()["FusedEncoder"]["kernels"] == 1  # type: ignore[union-attr, operator]


@pytest.mark.compiler
@pytest.mark.filterwarnings("error")
@torch.no_grad()
def test_arguments_whose_names_optimize_has_too() -> None:
    model = Model()
    by_name = fusewright.optimize(model, module=X, args=3.0)
    torch.testing.assert_close(by_name(module=X, args=3.0), model(X, args=3.0))
    by_position = fusewright.optimize(model, X, X, options={"target": "cpu"})
    torch.testing.assert_close(by_position(X, X), model(X, X))


@pytest.mark.parametrize("given", [X, {"bias": X}])
def test_an_argument_called_options_goes_by_position(given: Any) -> None:
    words = r"options.* Model\.forward has an argument of that name, too: give it .* by position"
    with pytest.raises(BadUsage, match=words):
        fusewright.optimize(Model(), X, options=given)


def test_options_that_nobody_knows() -> None:
    with pytest.raises(
        BadUsage, match=r"no 'device'; choose among target, .*rules, dynamic_shapes, gradients\.$"
    ):
        fusewright.optimize(Block(), X, options={"device": "cpu"})
    with pytest.raises(
        BadUsage, match="a dict of target, precision, mode, rules, dynamic_shapes, gradients, not"
    ):
        fusewright.optimize(Block(), X, options="cpu")  # type: ignore[arg-type]


def test_a_call_that_forward_does_not_take() -> None:
    with pytest.raises(BadUsage, match=r"missing a required argument: 'x'\. Write those of a call"):
        fusewright.optimize(Block())
    with pytest.raises(BadUsage, match=r"argument 'target'.*, and options=\{\"target\": \.\.\.\}"):
        fusewright.optimize(Block(), X, target="cpu")
    with pytest.raises(BadUsage, match=r"takes an nn\.Module, .* not a builtin_function"):
        fusewright.optimize(torch.relu, X)  # type: ignore[type-var]


def test_a_list_of_all_arguments_is_one_argument() -> None:
    with pytest.raises(BadUsage, match=r"raises TypeError .*optimize\(module, x, y\), not in"):
        fusewright.optimize(Block(), [X])


def test_the_users_own_error_has_its_words() -> None:
    with pytest.raises(BadUsage, match=r"Block\.forward raises RuntimeError .*: mat1 and mat2"):
        fusewright.optimize(Block(), torch.randn(4, 7))


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_kernels_for_one_mode(mode: str) -> None:
    block = Block().train(mode == "eval")
    block.norm.train(mode == "train")
    flags = [child.training for child in block.modules()]
    fused = fusewright.optimize(block, X, options={"mode": mode})
    assert [child.training for child in fused.modules()] == flags
    assert [child.training for child in block.modules()] == flags
    assert "mode:" not in fused.fusewright.explain()  # type: ignore[union-attr, operator]
    assert "forward_in_" not in fused.fusewright.source  # type: ignore[union-attr, operator]


@pytest.mark.compiler
@torch.no_grad()
def test_kernels_for_one_mode_run_there() -> None:
    block = Block()
    fused: Any = fusewright.optimize(block, X, options={"mode": "eval"}).eval()
    torch.testing.assert_close(fused(X), block.eval()(X))
    with pytest.warns(UserWarning, match="training flag .* these kernels are for eval mode"):
        fused.train()(X)
    assert fused.fusewright.status()["FusedBlock"]["kernels"] == 1


@pytest.mark.slow
def test_precision_and_rules_are_those_of_the_command_line() -> None:
    fused: Any = fusewright.optimize(Block(), X, options={"precision": "ieee"})
    assert "PyTorch's own contractions run in full float32" in fused.fusewright.source
    with pytest.raises(BadUsage, match=r"no-library cannot be kept: linear, .* stays"):
        fusewright.optimize(Block(), X, options={"rules": ["no-library"]})
    with pytest.raises(BadUsage, match="no-workspace cannot be kept: the model can only be taken"):
        fusewright.optimize(Routed(), X, options={"rules": "no-workspace"})


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fusewright = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.fusewright(x))


def test_an_attribute_that_would_be_hidden() -> None:
    with pytest.raises(BadUsage, match=r"This Own has an attribute called fusewright.* Rename it"):
        fusewright.optimize(Own(), X)


def test_a_scripted_module() -> None:
    with pytest.warns((DeprecationWarning, FutureWarning), match=r"torch\.jit\.trace"):
        scripted = torch.jit.trace(nn.Tanh(), X)
    with pytest.raises(CaptureFailed, match=r"TorchScript module\. Give the module behind it"):
        fusewright.optimize(scripted, X)


@pytest.mark.compiler
@torch.no_grad()
def test_what_is_optimized_again_is_made_anew() -> None:
    block = Block().eval()
    inner = fusewright.optimize(block, X)
    again = fusewright.optimize(inner, X)
    assert type(again).__mro__[1] is Block
    outer: Any = fusewright.optimize(nn.Sequential(nn.Tanh(), inner), X)
    assert type(outer[1]) is Block
    torch.testing.assert_close(outer(X), block(torch.tanh(X)))
    assert outer.fusewright.status()["FusedSequential"]["kernels"] == 1
