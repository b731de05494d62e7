"""Float64 twins: the same numbers whether kept or made anew, bounded in bytes, never stale."""

from __future__ import annotations

import torch
from torch import nn

from fusewright.judge.evidence.float64_twins import (
    POOL,
    SMALL,
    Doubles,
    generator,
    repeated,
    scaled,
    shaken,
)
from fusewright.judge.evidence.model_states import redrawn, twin
from fusewright.judge.evidence.probe_inputs import _lower, _odd, rounded

BIG = 2 * SMALL


def state(count: int = BIG) -> dict[str, torch.Tensor]:
    draws = torch.Generator().manual_seed(1)
    return {"w": torch.randn(count, generator=draws), "steps": torch.tensor(3)}


def test_kept_and_fresh_twins_are_equal() -> None:
    given = state()
    kept, fresh = Doubles(5, room=1 << 30), Doubles(5)
    for _ in range(2):
        assert torch.equal(kept.exact(given)["w"], given["w"].double())
        for size in (1e-6, -1e-6):
            moved = kept.moved(given, size, 0)
            assert torch.equal(moved["w"], fresh.moved(given, size, 0)["w"])
            assert torch.equal(moved["steps"], given["steps"])
    assert kept.exact(given)["w"] is kept.exact(given)["w"]


def test_opposite_moves_are_opposite_and_pairs_differ() -> None:
    given, doubles = state(), Doubles(5, room=1 << 30)
    up, down = (doubles.moved(given, size, 0)["w"] for size in (1e-3, -1e-3))
    assert torch.allclose(up + down, 2 * given["w"].double(), rtol=1e-12)
    assert not torch.allclose(up, doubles.moved(given, 1e-3, 1)["w"], rtol=1e-6)


def test_a_tensor_that_was_written_to_is_made_anew() -> None:
    given, doubles = state(), Doubles(5, room=1 << 30)
    twin = doubles.exact(given)["w"]
    given["w"].add_(1.0)
    assert torch.equal(doubles.exact(given)["w"], given["w"].double())
    again = doubles.exact(given)["w"]
    again.zero_()  # a model may write to its parameters
    assert torch.equal(doubles.exact(given)["w"], given["w"].double())
    assert twin is not again


def test_room_is_a_limit() -> None:
    doubles = Doubles(5, room=BIG * 8)  # one twin
    first, second = state(), state()
    twin = doubles.exact(first)["w"]
    assert doubles.exact(first)["w"] is twin
    doubles.exact(second)
    assert doubles.exact(first)["w"] is not twin
    assert Doubles(5, room=8).exact(first)["w"].dtype is torch.float64


def test_large_tensors_take_their_draws_from_a_pool() -> None:
    ones = torch.ones(2 * POOL + 5, dtype=torch.float32)
    steps = (shaken(ones, 1e-3, generator(ones, 7)) - 1) / 1e-3
    assert torch.allclose(steps[:5], steps[2 * POOL :])
    assert abs(float(steps.mean())) < 1e-2
    assert abs(float(steps.std()) - 1) < 1e-2
    assert float(steps.abs().max()) <= 3**0.5 + 1e-9


def test_repeated_and_scaled_cover_every_element() -> None:
    values = torch.arange(1.0, 8.0)
    for count in (0, 5, 7, 20):
        wanted = torch.tensor([float(i % 7 + 1) for i in range(count)])
        assert torch.equal(repeated(values, torch.Size([count])), wanted)
        assert torch.equal(scaled(torch.full((count,), 3.0), values), 3 * wanted)
    assert scaled(torch.ones(4, 5, dtype=torch.half), values).dtype is torch.float32


def test_large_weights_are_redrawn_everywhere() -> None:
    """Constants take draws over and over, other values are moved and scaled; none stays."""
    shape = (3, POOL)
    for old in (torch.zeros(shape), torch.ones(shape), torch.randn(shape)):
        new = redrawn(old, "P", torch.Generator().manual_seed(2))
        assert new.shape == old.shape
        assert float((new == old).double().mean()) < 1e-3
        assert new.unique().numel() > POOL // 2


def test_large_probes_are_like_small_ones() -> None:
    """Odd integers that the lower class cannot hold, and the same in the lower class."""
    large = _odd(torch.zeros(2, POOL + 3), 4)
    assert bool((large.abs() % 2 == 1).all())
    lower = _lower(large)
    assert torch.equal(lower.double(), rounded(large, 11))
    assert float((lower == large).double().mean()) < 0.5


def test_a_twin_takes_plain_tensors_and_closed_over_modules_along() -> None:
    model = nn.Sequential(layer := nn.Linear(4, 4))
    model.shift = torch.ones(4)  # type: ignore[assignment]
    model.function = lambda x, *, by=1.0: layer(x) * by  # type: ignore[assignment]
    wide = twin(model, model.state_dict(keep_vars=True))
    wide.load_state_dict(model.state_dict())
    x = torch.randn(2, 4)
    found = wide.function(x.double()) + wide.shift  # type: ignore[operator]
    assert found.dtype is torch.float64
    torch.testing.assert_close(found, (layer(x) + 1).double(), rtol=1e-5, atol=1e-6)
    assert model.shift.dtype is layer.weight.dtype is torch.float32
