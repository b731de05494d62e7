"""fusewright.optimize: a twin of the module with a fused forward, and the original as it was."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import fusewright
from fusewright.emit.model_guard import MOST_IN_FORWARD
from fusewright.errors import BadUsage, CaptureFailed, FusewrightError

FACTOR = 2.0


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.slope = 0.5

    def forward(self, x: torch.Tensor, shift: float = 1.0, *, scale: float = 2.0) -> torch.Tensor:
        return torch.relu(self.norm(self.linear(x)) * self.slope + shift) * scale * FACTOR


@pytest.fixture(scope="module")
def pair() -> tuple[nn.Module, nn.Module]:
    block = Block(8).eval()
    return block, fusewright.optimize(block, torch.randn(4, 8), options={"target": "cpu"})


def runs(module: nn.Module) -> bool:
    """Whether the fused kernels have been built, that is: have run."""
    return bool(type(module).forward.__globals__["_FUSEWRIGHT_FUNCTIONS"])


@pytest.mark.compiler
@torch.no_grad()
def test_same_values(pair: tuple[nn.Module, nn.Module]) -> None:
    block, fused = pair
    x = torch.randn(7, 8)
    torch.testing.assert_close(fused(x), block(x))
    assert runs(fused)
    for arguments, named in (((x, 3.0), {}), ((x,), {"scale": 0.5}), ((x[:1],), {})):
        torch.testing.assert_close(fused(*arguments, **named), block(*arguments, **named))


class Rows(nn.Module):
    """A norm of each of as many rows as there are."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(x))


@pytest.mark.compiler
@torch.no_grad()
def test_a_size_that_is_asked_for() -> None:
    module = Rows()
    options = {"target": "cpu", "dynamic_shapes": {"x": 1}}
    fused = fusewright.optimize(module, torch.randn(3, 6, 8), options=options)
    for length in (1, 9):
        x = torch.randn(3, length, 8)
        torch.testing.assert_close(fused(x), module(x))
    assert type(fused).fusewright_status()["kernels"] == 2  # type: ignore[attr-defined]
    with pytest.raises(BadUsage, match="y:1: forward is given no y; choose among x"):
        fusewright.optimize(module, x, options={"target": "cpu", "dynamic_shapes": {"y": 1}})


@pytest.mark.compiler
@torch.no_grad()
def test_several_sizes_that_are_asked_for() -> None:
    module = Rows()
    options = {"target": "cpu", "dynamic_shapes": {"x": (0, 1)}}
    fused = fusewright.optimize(module, torch.randn(3, 6, 8), options=options)
    for batch, length in ((1, 1), (1, 9), (7, 1), (5, 4)):
        x = torch.randn(batch, length, 8)
        torch.testing.assert_close(fused(x), module(x))
    status = type(fused).fusewright_status()  # type: ignore[attr-defined]
    assert (status["kernels"], status["reference_forward"]) == (4, 0)
    told = fused.fusewright.explain()  # type: ignore[union-attr, operator]
    assert "x:0 is free, as `batch` (1 or more)" in told
    assert "x:1 is free, as `length` (1 or more); other sizes are fixed" in told


@pytest.mark.compiler
def test_shares_tensors_and_is_of_the_class(pair: tuple[nn.Module, nn.Module]) -> None:
    block, fused = pair
    assert isinstance(fused, Block)
    assert [id(p) for p in fused.parameters()] == [id(p) for p in block.parameters()]
    assert [id(b) for b in fused.buffers()] == [id(b) for b in block.buffers()]
    assert list(fused.state_dict()) == list(block.state_dict())
    with torch.no_grad():
        block.linear.weight.mul_(0.5)
        x = torch.randn(5, 8)
        torch.testing.assert_close(fused(x), block(x))


def test_the_original_is_as_it_was(pair: tuple[nn.Module, nn.Module]) -> None:
    block, fused = pair
    assert type(block) is Block
    fused.train()
    fused.register_forward_hook(lambda module, inputs, output: output)
    fused.slope = 0.25
    fused.linear.register_forward_pre_hook(lambda module, inputs: None)
    assert not block.training
    assert not block.norm.training
    assert not block._forward_hooks
    assert not block.linear._forward_pre_hooks
    assert block.slope == 0.5
    fused.eval()
    fused.slope = 0.5
    fused._forward_hooks.clear()
    fused.linear._forward_pre_hooks.clear()


def test_hooks_and_attributes_are_kept() -> None:
    block = Block(8).eval()
    block.note = ["mine"]
    block.register_forward_hook(lambda module, inputs, output: output + 1)
    block.norm.register_forward_hook(lambda module, inputs, output: output * 2)
    with pytest.warns(UserWarning, match="original forward: norm has another class, or hooks"):
        fused: Any = fusewright.optimize(block, torch.randn(4, 8), options={"target": "cpu"})
    assert fused.note is block.note
    many = nn.Sequential(*[block, *(nn.ReLU() for _ in range(MOST_IN_FORWARD))])
    with pytest.warns(
        UserWarning, match=r"original forward: 0\._forward_hooks is not what it was\. Give it"
    ):
        fusewright.optimize(many, torch.randn(4, 8), options={"target": "cpu"})
    x = torch.randn(3, 8)
    with torch.no_grad():
        torch.testing.assert_close(fused(x), block(x))


@torch.no_grad()
def test_globals_of_the_module_are_watched(
    pair: tuple[nn.Module, nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    block, fused = pair
    x = torch.randn(3, 8)
    monkeypatch.setitem(Block.forward.__globals__, "FACTOR", 5.0)
    torch.testing.assert_close(fused(x), block(x))


@pytest.mark.compiler
@torch.no_grad()
@pytest.mark.parametrize("depth", [1, MOST_IN_FORWARD])
def test_a_class_without_a_module(depth: int) -> None:
    """As a text makes it that is run where nothing has a name."""
    scope: dict[str, Any] = {"nn": nn, "torch": torch}
    exec(
        "class Model(nn.Module):\n"
        "    def __init__(self, depth):\n"
        "        super().__init__()\n"
        "        self.layers = nn.Sequential(*[nn.LayerNorm(8) for _ in range(depth)])\n"
        "    def forward(self, x):\n"
        "        return torch.softmax(self.layers(x), -1)\n",
        scope,
    )
    model = scope["Model"](depth)
    fused = fusewright.optimize(model, torch.randn(4, 8), options={"target": "cpu"})
    x = torch.randn(3, 8)
    torch.testing.assert_close(fused(x), model(x))
    assert fused._get_name() == "FusedModel"
    looked = fused.__dict__.get("_fusewright_looked", [])  # what pickle finds in the model
    assert bool(looked) is (depth == MOST_IN_FORWARD)
    assert pickle.loads(pickle.dumps(looked)) == []


def test_gradients(pair: tuple[nn.Module, nn.Module]) -> None:
    block, fused = pair
    x = torch.randn(3, 8)
    found, wanted = fused(x), block(x)
    assert found.requires_grad
    torch.testing.assert_close(
        *(torch.autograd.grad(y.sum(), block.linear.weight) for y in (found, wanted))
    )


@pytest.mark.compiler
@torch.no_grad()
def test_sequential_and_deepcopy() -> None:
    """One inside the other: only the outer one is of a new class."""
    block = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.GELU()), nn.LayerNorm(8))
    fused = fusewright.optimize(block, torch.randn(4, 8), options={"target": "cpu"})
    twin = copy.deepcopy(fused)
    x = torch.randn(3, 8)
    for module in (fused, twin):
        torch.testing.assert_close(module(x), block(x))
        assert runs(module)
    twin[0][0].weight.zero_()
    torch.testing.assert_close(fused(x), block(x))
    assert len(fused) == 2


class Nested(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.inner = Nested(depth - 1) if depth else nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x)) + 1


@pytest.mark.compiler
@torch.no_grad()
def test_a_class_inside_itself() -> None:
    block, x = Nested(2), torch.randn(3, 8)
    fused = fusewright.optimize(block, x, options={"target": "cpu"})
    torch.testing.assert_close(fused(x), block(x))
    assert runs(fused)


@pytest.mark.compiler
@torch.no_grad()
def test_class_without_a_file() -> None:
    """As typed into an interpreter: there is no source to read."""
    scope: dict[str, Any] = {"torch": torch, "nn": nn, "__name__": "__main__"}
    text = (
        "class Typed(nn.Module):\n    def forward(self, x):\n"
        "        return torch.tanh(x) * K\nK = 3.0\n"
    )
    exec(text, scope)
    fused = fusewright.optimize(scope["Typed"](), torch.randn(4, 8), options={"target": "cpu"})
    x = torch.randn(3, 8)
    torch.testing.assert_close(fused(x), torch.tanh(x) * 3)
    assert runs(fused)
    scope["K"] = 4.0
    torch.testing.assert_close(fused(x), torch.tanh(x) * 4)


def test_forward_of_the_object_is_refused() -> None:
    block = Block(8)
    block.forward = lambda x: x  # type: ignore[method-assign]
    with pytest.raises(CaptureFailed, match="set on the object"):
        fusewright.optimize(block, torch.randn(4, 8), options={"target": "cpu"})


def test_no_gpu_is_a_clear_error() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(FusewrightError, match="GPU"):
        fusewright.optimize(Block(8), torch.randn(4, 8), options={"target": "cuda"})


@pytest.mark.gpu
@torch.no_grad()
def test_on_a_gpu() -> None:
    block = Block(8).eval().cuda()
    fused = fusewright.optimize(block, torch.randn(4, 8, device="cuda"), options={"target": "cuda"})
    x = torch.randn(300, 8, device="cuda")
    torch.testing.assert_close(fused(x), block(x))
    assert runs(fused)


@pytest.mark.compiler
@pytest.mark.filterwarnings("error")
def test_a_warning_where_the_kernels_would_not_run_on_the_example_inputs() -> None:
    model = nn.Sequential(nn.Softmax(-1), nn.Tanh())
    fusewright.optimize(model, torch.randn(4, 8), options={"target": "cpu"})
    with pytest.warns(UserWarning, match=r"Sequential's original forward: order of input"):
        gaps = fusewright.optimize(model, torch.randn(4, 16)[:, ::2], options={"target": "cpu"})
    x = torch.randn(4, 8)
    torch.testing.assert_close(gaps(x), model(x))
