"""Gradients at other sizes than the example's: as far from float64 as eager is, by kernels."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.gradients import changed, check, counts, fused

pytestmark = pytest.mark.compiler
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))


class Chain(nn.Module):
    """Linear, norm of rows, and what is pointwise."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 40)
        self.norm = nn.LayerNorm(40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.linear(x)))


class Images(nn.Module):
    """A convolution with statistics of the batch, whose derivative divides by their count."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x))).mean((2, 3))


class Features(nn.Module):
    """Statistics of a batch of rows, of which eager takes none of one row in train mode."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 16)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.linear(x)))


class Block(nn.Module):
    """Attention and a part of each row by itself, each added to what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.project, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count, length, _ = x.shape
        parts = self.project(self.norms[0](x)).view(count, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(parts[0] @ parts[1].transpose(-1, -2) * 8**-0.5, -1)
        x = x + self.out((weights @ parts[2]).transpose(1, 2).reshape(count, length, 16))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


class Words(nn.Module):
    """An embedding, and a loss that is a mean over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.head = nn.Linear(16, 11)

    def forward(self, words: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(torch.tanh(self.embed(words))), wanted)


class Distance(nn.Module):
    """A mean over all, whose derivative is a number of Python by the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(torch.tanh(self.linear(x)), y)


class Total(nn.Module):
    """A sum, whose derivative reads nothing that has the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.full((24,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + self.shift).sum()


class Spread(nn.Module):
    """A deviation over the batch, whose derivative divides by one less than the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        return torch.tanh(h / (h.std(0) + 1))


class Otherwise(nn.Module):
    """It asks for the batch where gradients are recorded, and only there."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.linear(x))
        return y * 2 if y.requires_grad and x.shape[0] > 4 else y


class Steps(nn.Module):
    """Rows of sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x)).mean(1)


def rows(count: int) -> list[Any]:
    return [torch.randn(count, 24)]


def words(count: int) -> list[Any]:
    return [torch.randint(11, (count,)), torch.randint(11, (count,))]


@dataclass(frozen=True)
class Case:
    """make: the module.  draw: its arguments, of so many rows.  least: the smallest batch with
    kernels, in train mode and in eval mode."""

    make: Callable[[], nn.Module]
    draw: Callable[[int], list[Any]]
    least: tuple[int, int] = (1, 1)


CASES = {
    "chain": Case(Chain, rows),
    "images": Case(Images, lambda count: [torch.randn(count, 4, 10, 9)]),
    "features": Case(Features, rows, (2, 1)),
    "block": Case(Block, lambda count: [torch.randn(count, 7, 16)]),
    "words": Case(Words, words),
    "distance": Case(Distance, lambda count: [*rows(count), torch.randn(count, 8)]),
    "total": Case(Total, rows),
}
EXAMPLE = 6
COUNTS = (EXAMPLE, EXAMPLE - 2, 1, 5 * EXAMPLE + 3)


def with_gradients(inputs: Sequence[Any], wanted: bool, device: str = "cpu") -> list[Any]:
    def leaf(x: torch.Tensor) -> torch.Tensor:
        return x.to(device).requires_grad_(wanted and x.is_floating_point())

    found: list[Any] = changed(list(inputs), leaf)
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_any_batch_are_eagers(name: str, device: str) -> None:
    """Of all, of parameters alone, and with some parameters frozen."""
    case = CASES[name]
    torch.manual_seed(3)
    module = case.make().to(device)
    faster = fused(module, with_gradients(case.draw(EXAMPLE), wanted=False, device=device))
    record = faster.fusewright.explain()
    assert "as written" not in record
    assert "at fixed sizes" not in record
    for training, least in zip((True, False), case.least, strict=True):
        module.train(training)
        faster.train(training)
        for count in (n for n in COUNTS if n >= least):
            before = counts(faster)
            for wanted in (False, True):
                check(faster, module, with_gradients(case.draw(count), wanted, device))
            frozen = [next(iter(one.parameters())) for one in (module, faster)]
            for p in frozen:
                p.requires_grad_(False)
            check(faster, module, with_gradients(case.draw(count), wanted=True, device=device))
            for p in frozen:
                p.requires_grad_(True)
            after = counts(faster)
            assert after["kernels"] == before["kernels"] + 3, (training, count)
            assert after["reference_forward"] == before["reference_forward"], (training, count)


def test_a_batch_that_is_not_proved_runs_the_original() -> None:
    """One row, where statistics of one row raise; none at all."""
    module = Features()
    faster = fused(module, rows(EXAMPLE), mode="train")
    with (
        pytest.warns(UserWarning, match="the batch size is less than 2"),
        pytest.raises(ValueError, match="more than 1 value"),
    ):
        faster(torch.randn(1, 24))
    other = fused(Chain(), rows(EXAMPLE))
    with pytest.warns(UserWarning, match="the batch size is 0"):
        other(*rows(0)).sum().backward()
    assert not any(p.grad is None or p.grad.any() for p in other.parameters())
    assert counts(other)["kernels"] == 0


@pytest.mark.parametrize(
    ("kind", "why"),
    [(Spread, "is no product of free sizes"), (Otherwise, "torch.export says: .*batch")],
)
def test_a_batch_that_is_not_free_is_fixed_and_the_record_says_why(kind: Any, why: str) -> None:
    """The kernels without gradients leave it free."""
    module = kind()
    faster = fused(module, rows(EXAMPLE), mode="train")
    record = faster.fusewright.explain()
    (line,) = (line for line in record.splitlines() if "with gradients at fixed sizes: " in line)
    assert re.search(why, line)
    check(faster, module, with_gradients(rows(EXAMPLE), wanted=True))
    assert counts(faster)["kernels"] == 1
    with torch.no_grad():
        faster(torch.randn(3, 24))
    assert counts(faster)["kernels"] == 2
    with pytest.warns(UserWarning, match="shape of x"):
        check(faster, module, with_gradients(rows(3), wanted=True))
    assert counts(faster)["kernels"] == 2


def test_several_sizes_that_are_asked_for_are_free() -> None:
    module, x = Steps(), torch.randn(4, 6, 8)
    faster = fused(module, [x], dynamic_shapes={"x": (0, 1)})
    shapes = [(4, 6), (3, 6), (4, 9), (7, 2), (1, 6), (4, 1), (1, 1)]
    for shape in shapes:
        check(faster, module, with_gradients([torch.randn(*shape, 8)], wanted=True))
    assert counts(faster) == {
        "kernels": len(shapes), "reference_forward": 0, "because": {}
    }  # fmt: skip


def test_backward_reads_the_size_of_what_it_is_handed() -> None:
    """From what forward left, or a gradient; as `batch`, as forward has it."""
    for kind, text in ((Chain, r"batch = \w+\.size\(0\)"), (Total, r"batch = x\.size\(0\)")):
        source = fused(kind(), rows(EXAMPLE)).fusewright.source
        _, _, behind = source.partition("def _fusewright_backward_")
        assert re.search(text, behind.partition("\ndef ")[0])


def test_a_training_loop_whose_last_batch_is_smaller() -> None:
    torch.manual_seed(5)
    module = Words()
    faster = fused(module, words(EXAMPLE))
    for one in (module, faster):
        step = torch.optim.SGD(one.parameters(), lr=0.5)
        torch.manual_seed(7)
        for count in (EXAMPLE, EXAMPLE, 2):
            step.zero_grad()
            one(*words(count)).backward()
            step.step()
    for mine, its in zip(faster.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)
    assert counts(faster) == {"kernels": 3, "reference_forward": 0, "because": {}}
