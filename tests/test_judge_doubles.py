"""Float64 twins: the same numbers whether kept or made anew, bounded in bytes, never stale."""

from __future__ import annotations

import torch

from fusewright.judge.doubles import POOL, SMALL, Doubles, generator, shaken

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
