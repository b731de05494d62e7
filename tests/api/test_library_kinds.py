"""Kinds of modules that model libraries have: decorated forwards, caches, all that is nested."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fusewright
from tests.api.sample import Around, Cache, Decoder, Wrapped

X = torch.randn(4, 8)


@pytest.mark.compiler
@torch.no_grad()
def test_a_wrapper_gets_by_name_what_nobody_need_give() -> None:
    model = Wrapped()
    fused: Any = fusewright.optimize(model, X)
    torch.testing.assert_close(fused(X), model(X))
    assert fused.fusewright.status()["FusedWrapped"]["kernels"] == 1
    for named in ({"scale": 3.0}, {"mask": X}, {"shift": 2.0}):
        with pytest.warns(UserWarning, match=f"original forward, .* argument {next(iter(named))}"):
            torch.testing.assert_close(fused(X, **named), model(X, **named))
    fused.scale = 4.0
    with pytest.warns(UserWarning, match="attribute scale is not 2.0"):
        torch.testing.assert_close(fused(X), Wrapped(4.0)(X))


@pytest.mark.compiler
@torch.no_grad()
@pytest.mark.parametrize(
    ("args", "named"), [((X,), {}), ((X, None), {"shift": 2.0}), ((), {"scale": 3.0, "x": X})]
)
def test_a_wrapper_gets_what_it_was_given(args: Any, named: Any) -> None:
    model = Wrapped()
    fused: Any = fusewright.optimize(model, *args, **named)
    torch.testing.assert_close(fused(*args, **named), model(*args, **named))
    assert fused.fusewright.status()["FusedWrapped"]["kernels"] == 1


@pytest.mark.compiler
@torch.no_grad()
def test_a_wrapper_around_a_part() -> None:
    model = Around()
    with pytest.warns(UserWarning, match="1 submodule fused"):
        fused: Any = fusewright.optimize(model, X)
    torch.testing.assert_close(fused(X), model(X))
    assert fused.fusewright.status()["FusedWrapped"]["kernels"] == 1


@pytest.mark.compiler
@torch.no_grad()
def test_an_object_that_is_changed_leaves_the_parts_beside_it() -> None:
    model, ours, theirs = Decoder(), Cache(), Cache()
    with pytest.warns(UserWarning, match="given a value of type Cache"):
        fused: Any = fusewright.optimize(model, torch.randn(2, 3, 8), Cache())
    for _ in range(3):
        x = torch.randn(2, 3, 8)
        torch.testing.assert_close(fused(x, ours), model(x, theirs))
    assert len(ours.rows) == 3
    assert fused.fusewright.status()["FusedSequential"]["kernels"] == 1
    assert "given a value of type Cache" in fused.fusewright.explain()
