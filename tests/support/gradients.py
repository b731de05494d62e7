"""Modules with kernels for calls that record gradients, beside eager and float64."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

import fusewright


def tensors(value: object) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(value)
    return [t for t in leaves if isinstance(t, torch.Tensor)]


def changed(value: Any, change: Any) -> Any:
    """The same containers with every tensor changed."""
    return torch.utils._pytree.tree_map_only(torch.Tensor, change, value)


def gradients(module: nn.Module, inputs: Sequence[Any], seed: int = 0) -> list[Any]:
    """Results, gradients of parameters and of inputs, buffers: in this order, as they come."""
    module.zero_grad()
    for x in tensors(inputs):
        x.grad = None
    torch.manual_seed(seed)
    results = tensors(module(*inputs))
    kept = [r for r in results if r.requires_grad]
    generator = torch.Generator().manual_seed(seed + 1)
    vectors = [torch.randn(r.shape, generator=generator).to(r) for r in kept]
    torch.autograd.backward(kept, vectors)
    grads = [p.grad for p in module.parameters()] + [x.grad for x in tensors(inputs)]
    return [*(r.detach() for r in results), *grads, *(b.clone() for b in module.buffers())]


def check(ours: nn.Module, theirs: nn.Module, inputs: Sequence[Any]) -> None:
    """Both have what float64 has, ours at most twice eager's distance, or some rounding, apart."""
    wide = copy.deepcopy(theirs).double()
    widened = changed(
        inputs,
        lambda x: (
            x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x
        ),
    )
    exact, eager = gradients(wide, widened), gradients(theirs, inputs)
    found = gradients(ours, inputs)
    for k, (mine, its, true) in enumerate(zip(found, eager, exact, strict=True)):
        assert (mine is None) == (its is None), k
        if mine is None or not mine.is_floating_point():
            assert mine is None or torch.equal(mine, its), k
            continue
        assert mine.dtype is its.dtype, k
        scale = float(true.abs().max()) + 1.0  # of sums that cancel, what is summed
        error, allowed = (float((t.double() - true).abs().max()) for t in (mine, its))
        assert error <= 2 * allowed + 2e-6 * scale, (k, error, allowed, scale)


def fused(module: nn.Module, inputs: Sequence[Any], **options: Any) -> Any:
    """What is made of a module, with parameters and buffers of its own."""
    faster = fusewright.optimize(module, *inputs, options={"gradients": True, **options})
    return copy.deepcopy(faster)


def counts(module: Any) -> dict[str, Any]:
    (found,) = module.fusewright.status().values()
    return dict(found)
