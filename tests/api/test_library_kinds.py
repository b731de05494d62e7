"""Kinds of modules that model libraries have: decorated forwards, caches, all that is nested."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fusewright
from tests.api.sample import Around, Cache, Decoder, Recorder, Wrapped

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


@torch.no_grad()
def test_what_a_run_sets_on_the_way_is_taken_back() -> None:
    model = Recorder()
    with pytest.warns(UserWarning, match="1 submodule fused"):
        fused: Any = fusewright.optimize(model, X, record=True)
    assert not any(child._forward_hooks for child in model.modules())
    assert not model.hooked
    assert (
        "layers (Sequential): Sequential sets forward hooks on GELU" in fused.fusewright.explain()
    )


@pytest.mark.compiler
@torch.no_grad()
@pytest.mark.parametrize("record", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_a_class_is_known_by_its_name(record: bool) -> None:
    """To tables of libraries, also where it is the original that runs."""
    fused: Any = fusewright.optimize(Recorder(), X, record=record)
    fresh = Recorder()
    fresh.load_state_dict(fused.state_dict())
    for asked in (False, True, False, True):
        found, wanted = fused(X, record=asked), fresh(X, record=asked)
        assert len(found) == len(wanted) == 1 + asked
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b)
