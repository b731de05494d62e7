"""What the comparison of two modules takes for luck, and what for an error."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support.agreement import disagreements


class Sum(nn.Module):
    """The sum of a normalised row: 0, but for what roundings leave over."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (31,)).sum()


class Moved(Sum):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 0.0 + self.by


@pytest.mark.slow
def test_the_sum_of_what_cancels_has_the_error_of_its_terms() -> None:
    torch.manual_seed(3)
    x = torch.randn(13, 31)
    assert not disagreements(Moved(2e-6), Sum(), [x])
    assert not disagreements(Moved(0.0), Sum(), [x])
    assert disagreements(Moved(1e-4), Sum(), [x])


class Nothing(nn.Module):
    """0, but for the roundings of the terms: the divergence of a distribution from itself."""

    def __init__(self, by: float = 0.0) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.nn.functional.kl_div(x.log_softmax(-1), x.softmax(-1), reduction="sum")
        return made + self.by


def test_what_roundings_leave_over_in_float64_is_what_they_move() -> None:
    x = torch.linspace(-4, 5, 31, dtype=torch.float64)[None]
    assert not disagreements(Nothing(3e-16), Nothing(), [x], roundings=8)
    assert disagreements(Nothing(1e-13), Nothing(), [x], roundings=8)


class Running(nn.Module):
    """A running mean, which is off by a share of itself behind each call."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self.register_buffer("mean", torch.ones(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.9).add_(0.1 * x).mul_(1 + self.share)
        return x + 1


def test_a_call_is_not_judged_by_what_earlier_calls_left_over() -> None:
    rounds, errs, theirs = Running(1.2e-7), Running(4e-6), Running(0.0)
    for _ in range(30):
        x = torch.rand(5) + 0.5
        assert not disagreements(rounds, theirs, [x])
    assert disagreements(errs, theirs, [x])


def test_one_error_among_many_values_is_none_of_luck() -> None:
    class Off(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.exp() * (1 + 4e-7)

    class Exp(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.exp()

    assert disagreements(Off(), Exp(), [torch.randn(50)])


class OverMean(nn.Module):
    """Elements that are larger than their mean; by: what roundings make of the mean."""

    def __init__(self, by: float = 0.0) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(-1, keepdim=True) + self.by
        return torch.where(mean > x, mean, 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tie_may_be_decided_either_way(dtype: torch.dtype) -> None:
    equal = torch.full((4, 8), 1.5, dtype=dtype)
    by = torch.finfo(dtype).eps
    assert not disagreements(OverMean(2 * by), OverMean(), [equal], roundings=8)
    apart = equal + torch.linspace(0, 1, 8, dtype=dtype)
    assert not disagreements(OverMean(2 * by), OverMean(), [apart], roundings=8)
    assert disagreements(OverMean(0.1), OverMean(), [apart], roundings=8)
    assert disagreements(OverMean(0.1), OverMean(), [apart - 9.0], roundings=8)


class Normalised(nn.Module):
    """x by its norm, of which 16 bits lose the least: 0 / 0 there, and 0 in float64."""

    def __init__(self, made: float | None = None) -> None:
        super().__init__()
        self.made = made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = torch.nn.functional.normalize(x, dim=0)
        return result if self.made is None else torch.full_like(result, self.made)


def test_what_only_16_bits_make_nan_may_be_what_it_is() -> None:
    zeros = torch.zeros(5, dtype=torch.float16)
    assert Normalised()(zeros).isnan().all()
    assert not disagreements(Normalised(0.0), Normalised(), [zeros], roundings=8)
    assert disagreements(Normalised(0.5), Normalised(), [zeros], roundings=8)
    nan = torch.full((5,), float("nan"), dtype=torch.float16)
    assert disagreements(Normalised(0.0), Normalised(), [nan], roundings=8)


class Overflown(nn.Module):
    """A square over itself, of what `nan_to_num` makes of an infinity."""

    def __init__(self, made: float | None = None) -> None:
        super().__init__()
        self.made = made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        squares = (torch.nan_to_num(x) / 16).square()
        result = squares / squares
        return result if self.made is None else torch.full_like(result, self.made)


@pytest.mark.parametrize(("made", "right"), [(0.0, True), (float("nan"), True), (0.5, False)])
def test_squares_that_overflow_may_leave_zeros(made: float, right: bool) -> None:
    x = torch.full((3, 16), float("inf"))
    assert Overflown()(x).isnan().all()
    assert bool(disagreements(Overflown(made), Overflown(), [x], roundings=8)) is not right


class Hardswish(nn.Module):
    def __init__(self, by: float = 0.0) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (x + 3.0).clamp(0.0, 6.0) / 6.0 + self.by


@pytest.mark.gpu
def test_the_last_word_of_float64_is_the_cpus() -> None:
    """CUDA's hardswish multiplies by a sixth of float32."""
    x = torch.linspace(-4, 4, 64, dtype=torch.float64, device="cuda")
    assert not disagreements(Hardswish(), nn.Hardswish(), [x], roundings=8)
    assert disagreements(Hardswish(1e-5), nn.Hardswish(), [x], roundings=8)


class Ordered(nn.Module):
    """NaN where a sum is below its rounding to four places: in another order it may not be."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x.sum(-1)
        return torch.sqrt(total - total.double().round(decimals=4).float())


class Reduced(nn.Module):
    """The same sum, reduced in halves first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x[..., ::2].sum(-1) + x[..., 1::2].sum(-1)
        return torch.sqrt(total - total.double().round(decimals=4).float())


class Scaled(nn.Module):
    """The smallest of what was scaled, subtracted: at least 0, whoever calculates it."""

    def __init__(self, *, wrong: bool = False) -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 0.3
        least = y.amin(-1, keepdim=True)
        return torch.sqrt(torch.where(y == least, -1e-9, y - least) if self.wrong else y - least)


class Shorter(Ordered):
    """A sum that leaves out an element."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x[..., 1:])


def test_the_order_of_a_sum_is_luck_and_a_product_is_not() -> None:
    torch.manual_seed(5)
    x = torch.rand(4096, 6)
    ordered, reduced = Ordered()(x), Reduced()(x)
    assert (ordered.isnan() != reduced.isnan()).any(), "the inputs must tell the orders apart"
    assert not disagreements(Reduced(), Ordered(), [x])
    assert disagreements(Shorter(), Ordered(), [x])
    assert not disagreements(Scaled(), Scaled(), [x])
    assert disagreements(Scaled(wrong=True), Scaled(), [x])


class Twice(nn.Module):
    """A norm of a norm, whose running mean is 0, but for what roundings leave over."""

    def __init__(self, by: float = 0.0) -> None:
        super().__init__()
        self.by = by
        self.norm = nn.BatchNorm1d(7, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.norm(self.norm(x))
        assert self.norm.running_mean is not None
        self.norm.running_mean += self.by
        return x * 2


def test_what_roundings_leave_over_in_a_buffer_is_what_they_move() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 7, 6, dtype=torch.float64)
    x -= x.mean(-1, keepdim=True)
    assert not disagreements(Twice(4e-18), Twice(), [x], roundings=8)
    assert disagreements(Twice(1e-15), Twice(), [x], roundings=8)
