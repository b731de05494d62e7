"""`torch.compile(model, backend="fusewright")`: results, gradients and state are eager's.

What is computed is held against float64: it may be as far from it as eager is, and a little more
where both are close to it. Whether kernels ran is told by the log.
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed

from fusewright.backend import compiled_graph
from fusewright.backend.dynamo_backend import fusewright
from fusewright.errors import BadUsage, ToolMissing

KERNELS = re.compile(r"(inference|forward|backward) graph of \d+ nodes: (\d+) kernels")
SLACK = 2.0  # of eager's own distance to float64, in the largest element
ROUNDING = 4.0 * torch.finfo(torch.float32).eps  # of the largest element


@pytest.fixture(autouse=True)
def _fresh(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Each test compiles for itself, and reads the log."""
    torch._dynamo.reset()
    caplog.set_level(logging.INFO, logger="fusewright")
    yield
    torch._dynamo.reset()


def compiled(model: Any, **more: Any) -> Any:
    return torch.compile(model, backend=fusewright, **more)


def kernels(caplog: pytest.LogCaptureFixture) -> dict[str, int]:
    """How many kernels the graphs of each kind have together."""
    found: dict[str, int] = {}
    for record in caplog.records:
        if match := KERNELS.match(record.getMessage()):
            found[match[1]] = found.get(match[1], 0) + int(match[2])
    return found


def assert_as_good(got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> None:
    assert (got.shape, got.dtype, got.stride()) == (eager.shape, eager.dtype, eager.stride())
    if not exact.numel():
        return
    allowed = SLACK * (eager.double() - exact).abs().max() + ROUNDING * exact.abs().max()
    assert (got.double() - exact).abs().max() <= allowed


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide = nn.LayerNorm(48), nn.Linear(48, 96)
        self.narrow, self.scale = nn.Linear(96, 48), nn.Parameter(torch.full((48,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * self.narrow(F.gelu(self.wide(self.norm(x))))


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.second, self.groups = nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.head(F.silu(self.groups(self.second(x))).mean((2, 3)))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(32, 96), nn.Linear(32, 32), nn.RMSNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (2, 16)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        weights = torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1)
        return self.norm(x + self.out((weights @ v).transpose(1, 2).flatten(2)))


class Losses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(40, 24), nn.Linear(24, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.head(torch.tanh(self.words(x)))
        return F.cross_entropy(logits.flatten(0, 1), x.flatten()) + F.mse_loss(
            logits.softmax(-1), torch.zeros_like(logits)
        )


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "perceptron": (Perceptron, lambda: torch.randn(6, 10, 48)),
    "images": (Images, lambda: torch.randn(4, 3, 12, 12)),
    "attention": (Attention, lambda: torch.randn(3, 8, 32)),
    "losses": (Losses, lambda: torch.randint(0, 40, (4, 7))),
}


def made(name: str, device: str = "cpu") -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model, given = MODELS[name]
    return model().to(device), given().to(device)


def as_double(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).double()


def double(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x


DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_results_without_gradients(
    name: str, device: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, x = made(name, device)
    model.eval()
    with torch.no_grad():
        assert_as_good(compiled(model)(x), model(x), as_double(model)(double(x)))
    assert kernels(caplog)["inference"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_a_training_step(name: str, device: str, caplog: pytest.LogCaptureFixture) -> None:
    """Results, gradients of parameters and of the input, and running statistics."""
    model, x = made(name, device)
    weights = torch.rand(model(x).shape, device=device)  # a gradient that is no constant
    sides = [model, copy.deepcopy(model), as_double(model)]
    seen = []
    for side, run in zip(sides, (compiled(model), *sides[1:]), strict=True):
        own = (double(x) if side is sides[2] else x).clone()
        own.requires_grad_(own.is_floating_point())
        result = run(own)
        (result * weights).sum().backward()
        given = [own.grad] if own.grad is not None else []
        seen.append([result.detach(), *given, *(p.grad for p in side.parameters())])
    names = ["result", *["input"] * x.is_floating_point(), *dict(model.named_parameters())]
    for what, got, eager, exact in zip(names, *seen, strict=True):
        if what != "conv.bias":  # BatchNorm takes it away: nothing but rounding is left of it
            assert_as_good(got, eager, exact)
    for (key, got), eager in zip(model.named_buffers(), sides[1].buffers(), strict=True):
        torch.testing.assert_close(got, eager, msg=key)
    assert kernels(caplog).keys() == {"forward", "backward"}


def test_dropout_draws_what_eager_draws() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.4), nn.LayerNorm(32))
    x, weights, seen = torch.randn(5, 32), torch.rand(5, 32), []
    for run in (compiled(model), model):
        torch.manual_seed(3)
        model.zero_grad()
        result = run(x)
        (result * weights).sum().backward()
        grads = (p.grad for p in model.parameters())
        seen.append([result.detach(), *(g.clone() for g in grads if g is not None)])
    torch.testing.assert_close(seen[0], seen[1])


def test_free_sizes_share_kernels(caplog: pytest.LogCaptureFixture) -> None:
    model = Perceptron()
    run = compiled(model, dynamic=True)
    with torch.no_grad():
        for shape in ((3, 5, 48), (7, 5, 48), (11, 5, 48), (2, 5, 48), (4, 6, 48)):
            x = torch.randn(shape)
            torch.testing.assert_close(run(x), model(x))
    graphs = [r for r in caplog.records if KERNELS.match(r.getMessage())]
    assert len(graphs) == 2, "one for every batch of 5 rows, and one for 6 rows"


def test_a_free_size_that_is_not_the_leading_one(caplog: pytest.LogCaptureFixture) -> None:
    model = Perceptron()
    run = compiled(model)
    with torch.no_grad():
        for length in (5, 6, 9):
            x = torch.randn(3, length, 48)
            torch._dynamo.mark_dynamic(x, 1)
            torch.testing.assert_close(run(x), model(x))
    assert len([r for r in caplog.records if KERNELS.match(r.getMessage())]) == 1


def test_more_kinds_of_sizes_than_kernels_are_made_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_graph, "MOST_VARIANTS", 1)
    run = compiled(lambda x: torch.tanh(x) * x + 1, dynamic=True)
    for length in (5, 6, 7):
        x = torch.randn(4, length)
        torch.testing.assert_close(run(x), torch.tanh(x) * x + 1)
    assert kernels(caplog) == {"inference": 1}


def test_a_graph_break(caplog: pytest.LogCaptureFixture) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = torch.sigmoid(x) * x
        torch._dynamo.graph_break()
        return torch.softmax(y, -1) + y

    x = torch.randn(8, 16)
    torch.testing.assert_close(compiled(run)(x), run(x))
    assert kernels(caplog) == {"inference": 2}


def test_an_input_that_is_changed_and_one_that_is_returned() -> None:
    def run(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.add_(torch.tanh(y) * y)
        return x, y, y.t(), torch.exp(x)

    given = [torch.randn(4, 6), torch.randn(4, 6)]
    mine, eagers = [t.clone() for t in given], [t.clone() for t in given]
    got, expected = compiled(run)(*mine), run(*eagers)
    torch.testing.assert_close(mine, eagers)
    torch.testing.assert_close(got, expected)
    assert got[0] is mine[0]
    assert got[1] is mine[1]
    assert got[2].data_ptr() == mine[1].data_ptr()


def test_a_parameter_that_changes_between_calls() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.SiLU())
    run, x = compiled(model), torch.randn(4, 16)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(run(x), model(x))
            for p in model.parameters():
                p.mul_(1.5)
        model[0].weight = nn.Parameter(torch.randn(16, 16))
        torch.testing.assert_close(run(x), model(x))


def test_what_has_no_kernels_runs_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(4, 4, dtype=torch.complex64)
    torch.testing.assert_close(compiled(lambda x: x @ x)(x), x @ x)
    assert not kernels(caplog)
    assert any("runs as it is: no kernel would be faster" in r.getMessage() for r in caplog.records)


def test_a_second_derivative_is_refused() -> None:
    """By AOTAutograd, which made the graphs."""
    x = torch.randn(4, 8, requires_grad=True)
    (first,) = torch.autograd.grad(
        compiled(lambda x: (torch.tanh(x) * x).sum())(x), x, create_graph=True
    )
    with pytest.raises(RuntimeError, match="double backward"):
        first.sum().backward()


def test_tensors_of_other_devices(caplog: pytest.LogCaptureFixture) -> None:
    found = compiled(lambda x: torch.tanh(x) * x)(torch.randn(4, 8, device="meta"))
    assert (found.device.type, found.shape) == ("meta", (4, 8))
    assert any("its tensors are on meta" in r.getMessage() for r in caplog.records)


def test_autocast() -> None:
    model = Perceptron()
    x = torch.randn(6, 10, 48)

    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    with torch.no_grad():
        got, expected = compiled(run)(x), run(x)
    assert got.dtype is expected.dtype
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


def test_options() -> None:
    x = torch.randn(4, 8)

    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * x

    torch.testing.assert_close(compiled(run, options={"precision": "ieee"})(x), run(x))
    torch._dynamo.reset()
    with pytest.raises(BackendCompilerFailed, match="there is no 'speed'; choose among target"):
        compiled(run, options={"speed": 11})(x)


def test_modes_are_refused() -> None:
    with pytest.raises(BackendCompilerFailed, match="modes are those of PyTorch's own backend"):
        compiled(lambda x: x * 2, mode="reduce-overhead")(torch.randn(4))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ToolMissing("No C++ compiler."), "runs as it is: No C"),
        (KeyError("k"), "runs as it is: KeyError: 'k'"),
    ],
)
def test_what_fails_is_a_warning(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(compiled_graph, "fused_as", fails)
    x = torch.randn(4, 8)
    run = compiled(lambda x: torch.tanh(x) * x)
    with pytest.warns(UserWarning, match=said):
        torch.testing.assert_close(run(x), torch.tanh(x) * x)


def test_rules_that_cannot_be_kept_are_an_error() -> None:
    run = compiled(nn.Linear(8, 8), options={"rules": "no-library"})
    with pytest.raises(BadUsage, match="--rules no-library cannot be kept"), torch.no_grad():
        run(torch.randn(4, 8))


def test_it_is_found_by_name() -> None:
    assert "fusewright" in torch.compiler.list_backends()


def test_saved_parts_of_a_packed_projection(caplog: pytest.LogCaptureFixture) -> None:
    """What the forward pass leaves to the backward pass has gaps: kernels get copies."""

    def run(x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in x.chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True) * torch.sigmoid(v)

    torch.manual_seed(0)
    drawn, weights = torch.randn(3, 6, 48), torch.rand(3, 2, 6, 8)
    seen = []
    for call, x in ((compiled(run), drawn), (run, drawn), (run, drawn.double())):
        own = x.clone().requires_grad_()
        (call(own) * weights).sum().backward()
        seen.append(own.grad)
    assert_as_good(*seen)
    assert kernels(caplog)["backward"]


@pytest.fixture(autouse=True)
def _no_fallback(recwarn: pytest.WarningsRecorder) -> Iterator[None]:
    """No call runs its original behind kernels: that warns."""
    yield
    told = [str(w.message) for w in recwarn if "runs its original forward" in str(w.message)]
    assert not told
