"""Ten networks of the zoo, in every situation of everyday use: right, by the path that is promised.

{train, eval} x {gradients, no_grad, inference_mode} x {the example's size, a batch of 1, another
batch, another length} x {plain, torch.compile, deep copy, two instances}. What is expected of each
is a table: kernels, or the original, with a warning that says why.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

import fusewright
from fusewright.common.problem_file import load_problem
from tests.support.folders import ROOT

pytestmark = [pytest.mark.compiler, pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Network:
    """length: which dimension of its inputs is one, if any.  sizes: constants of the file.  alone:
    whether kernels record gradients of a batch of 1, too: what PyTorch differentiates is the same
    there."""

    length: int | None = None
    sizes: Mapping[str, str] = field(default_factory=dict)
    alone: bool = True


NETWORKS = {
    "network_autoencoder_tied": Network(None, {"rows": "24", "width": "48"}),
    "network_channel_shuffle_unit": Network(2, {"side": "12"}),
    "network_convnext_block": Network(2, {"side": "10"}),
    "network_gated_mlp": Network(1, {"length": "16", "width": "32", "hidden": "48"}),
    "network_highway": Network(None, {"rows": "24", "width": "40"}),
    "network_mixer_block": Network(None, {"length": "16", "width": "32"}, alone=False),
    "network_mlp_residual": Network(None, {"rows": "24", "width": "40"}),
    "network_point_cloud": Network(2, {"count": "32"}),
    "network_residual_block": Network(2, {"side": "12"}),
    "network_squeeze_excitation": Network(2, {"side": "12"}),
}
RECORDING = {
    "gradients": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}
SIZES = ("example", "one", "other batch", "other length")
WAYS = ("plain", "compiled", "deep copy", "two instances")


@dataclass(frozen=True)
class Pair:
    """A network as it was, and what is made of it."""

    theirs: nn.Module
    ours: Any
    inputs: tuple[Any, ...]


@pytest.fixture(scope="module", params=NETWORKS)
def pair(request: pytest.FixtureRequest) -> tuple[str, Pair]:
    network = NETWORKS[request.param]
    problem = load_problem(ROOT / f"zoo/{request.param}.py", network.sizes)
    torch.manual_seed(0)
    theirs, inputs = problem.make_model(), tuple(problem.make_inputs())
    ours = fusewright.optimize(theirs, *inputs, options={"gradients": True})
    return request.param, Pair(theirs, copy.deepcopy(ours), inputs)


def resized(inputs: tuple[Any, ...], size: str, length: int | None) -> tuple[Any, ...] | None:
    """The inputs with another size; None where they have no such size."""
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    batch = tensors[0].shape[0]
    wanted = {"example": batch, "one": 1, "other batch": batch + 1, "other length": batch}[size]
    if size == "other length" and length is None:
        return None
    found = []
    for x in inputs:
        new = x
        if isinstance(x, torch.Tensor):
            new = x[:wanted] if wanted <= batch else torch.cat([x, x[: wanted - batch]])
            if size == "other length":
                assert length is not None
                new = new.narrow(length, 0, x.shape[length] // 2).contiguous()
        found.append(new)
    return tuple(found)


def expected(size: str, recording: str, way: str, *, changes: bool, alone: bool) -> str:
    """The path: "kernels", or a part of what the warning says. changes: whether the call changes
    buffers, which no operator of PyTorch's compiler does.  alone: as `Network` has it."""
    if way == "compiled" and (recording == "gradients" or changes):
        return "PyTorch's compiler traces it"
    if size == "one" and recording == "gradients" and not alone:
        return "the batch size is less than 2"
    return "shape of" if size == "other length" else "kernels"


def leaves(value: object) -> list[torch.Tensor]:
    found = torch.utils._pytree.tree_leaves(value)
    return [t for t in found if isinstance(t, torch.Tensor)]


def outcome(module: nn.Module, call: Any, inputs: tuple[Any, ...], recording: str) -> list[Any]:
    """Results, gradients of parameters and inputs, and buffers after one call."""
    module.zero_grad()
    given = tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in inputs)
    how: AbstractContextManager[Any] = RECORDING[recording]()
    grads: list[Any] = []
    with how:
        results = leaves(call(*given))
        if recording == "gradients":
            kept = [r for r in results if r.requires_grad]
            torch.autograd.backward(kept, [torch.full_like(r, 0.5) for r in kept])
            grads = [p.grad for p in module.parameters()]
    return [*(r.detach() for r in results), *grads, *(b.clone() for b in module.buffers())]


def calls(module: Any) -> tuple[int, int]:
    (found,) = module.fusewright.status().values()
    return found["kernels"], found["reference_forward"]


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("way", WAYS)
def test_every_situation(pair: tuple[str, Pair], way: str, training: bool) -> None:
    name, given = pair
    for size in SIZES:
        inputs = resized(given.inputs, size, NETWORKS[name].length)
        for recording in RECORDING if inputs is not None else ():
            _check(name, given, inputs, size, recording, way, training=training)


def _check(
    name: str,
    given: Pair,
    inputs: Any,
    size: str,
    recording: str,
    way: str,
    *,
    training: bool,
) -> None:
    situation = f"{name}, {size}, {recording}, {way}"
    theirs, ours = (copy.deepcopy(one).train(training) for one in (given.theirs, given.ours))
    made = {"plain": given.ours.train(training), "compiled": ours}.get(way, ours)
    run: Any = made
    if way == "plain":
        made.load_state_dict(theirs.state_dict())
    if way == "compiled":
        torch.compiler.reset()
        run = torch.compile(made, backend="eager")
    if way == "two instances":
        other = copy.deepcopy(given.ours).train(training)
        with torch.no_grad():
            for p in other.parameters():
                p.mul_(0.5)
    try:
        wanted = outcome(theirs, theirs, inputs, recording)
    except (RuntimeError, ValueError) as error:  # as BatchNorm of one value in train mode
        with pytest.raises(type(error)):
            outcome(made, run, inputs, recording)
        return
    before = calls(made)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = outcome(made, run, inputs, recording)
    kernels, original = (now - then for now, then in zip(calls(made), before, strict=True))
    norms = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in theirs.modules())
    alone = NETWORKS[name].alone
    path = expected(size, recording, way, changes=norms and training, alone=alone)
    assert (kernels, original) == ((1, 0) if path == "kernels" else (0, 1)), situation
    texts = [str(w.message) for w in told if "original forward" in str(w.message)]
    if path != "kernels" and way not in ("compiled", "plain"):  # said once for each instance
        assert path in "".join(texts), situation
    for mine, its in zip(found, wanted, strict=True):
        assert (mine is None) == (its is None), situation
        if mine is not None:
            scale = max(1.0, float(its.abs().max())) if its.numel() else 1.0
            torch.testing.assert_close(mine, its, rtol=2e-4, atol=2e-5 * scale, msg=situation)
    if way == "two instances":
        second = outcome(other, other, inputs, recording)
        assert not torch.equal(second[0], found[0]), situation
