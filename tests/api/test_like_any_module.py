"""The result is copied, pickled, moved, loaded and hooked like any module, and runs kernels."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import fusewright
from tests.api import sample
from tests.api.sample import Block, Tied
from tests.support.folders import ROOT

X = torch.randn(4, 8)
KINDS = ("Block", "Routed", "Tied", "Abstract", "Model")
ELSEWHERE = """
import sys
sys.path.insert(0, {root!r})
import torch
torch.set_grad_enabled(False)
x, wanted, fused = torch.load({data!r}, weights_only=False)
assert "fusewright" in sys.modules
torch.testing.assert_close(fused(x), wanted)
assert all(c["kernels"] and not c["reference_forward"] for c in fused.fusewright.status().values())
print(fused.fusewright.source, end="")
"""
pytestmark = pytest.mark.filterwarnings("ignore:fusewright.optimize. Routed")


def kernel_calls(fused: Any) -> int:
    """How many ran kernels, if none ran anything else."""
    counts = fused.fusewright.status().values()
    assert not any(count["reference_forward"] for count in counts), counts
    return sum(count["kernels"] for count in counts)


def optimized(name: str) -> tuple[nn.Module, Any]:
    model = getattr(sample, name)().eval()
    return model, fusewright.optimize(model, X)


@pytest.mark.compiler
@torch.no_grad()
@pytest.mark.parametrize("name", KINDS)
def test_copies_have_tensors_of_their_own_and_run_kernels(name: str) -> None:
    model, fused = optimized(name)
    wanted = model(X)
    for twin in (copy.deepcopy(fused), pickle.loads(pickle.dumps(fused))):
        assert type(twin) is type(fused)
        assert [*twin.state_dict()] == [*model.state_dict()]
        before = kernel_calls(fused)
        torch.testing.assert_close(twin(X), wanted)
        assert kernel_calls(fused) > before
        for tensor in twin.parameters():
            tensor.zero_()
        torch.testing.assert_close(fused(X), wanted)


@pytest.mark.compiler
@torch.no_grad()
@pytest.mark.parametrize("name", KINDS)
def test_another_process_loads_it(name: str, tmp_path: Path) -> None:
    model, fused = optimized(name)
    data = tmp_path / "data.pt"
    torch.save((X, model(X), fused), data)
    code = ELSEWHERE.format(root=str(ROOT), data=str(data))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == fused.fusewright.source


def test_a_pickle_has_text_and_no_compiled_code() -> None:
    _, fused = optimized("Block")
    stored = pickle.dumps(fused)
    assert b"struct linear_batch_norm_mul_add_relu" in stored
    assert b"\x7fELF" not in stored


def test_a_process_without_fusewright_says_what_it_lacks() -> None:
    stored = pickle.dumps(optimized("Block")[1])
    code = (
        f"import sys, pickle; sys.path.insert(0, {str(ROOT)!r}); sys.modules['fusewright'] = None\n"
        "pickle.loads(sys.stdin.buffer.read())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=stored, capture_output=True, check=False
    )
    assert done.returncode
    assert b"ModuleNotFoundError: No module named 'fusewright" in done.stderr


@pytest.mark.filterwarnings("error")
def test_other_code_of_the_users_class_has_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = pickle.dumps(optimized("Tied")[1])

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    monkeypatch.setattr(Tied, "forward", forward)
    with pytest.warns(UserWarning, match="FusedTied is loaded without its kernels: Tied or a"):
        loaded = pickle.loads(stored)
    assert type(loaded) is Tied
    assert torch.equal(loaded(X), X + 1)


def test_a_class_derived_from_the_result_is_pickled_by_name() -> None:
    _, fused = optimized("Block")
    derived = type("Derived", (type(fused),), {"__module__": __name__, "__qualname__": "Derived"})
    globals()["Derived"] = derived
    assert pickle.loads(pickle.dumps(derived)) is derived
    del globals()["Derived"]


@pytest.mark.compiler
@torch.no_grad()
def test_tied_weights_and_buffers() -> None:
    model, fused = optimized("Tied")
    loaded = pickle.loads(pickle.dumps(fused))
    for twin in (fused, copy.deepcopy(fused), loaded):
        assert twin.out.weight is twin.into.weight
        assert [n for n, _ in twin.named_parameters()] == [n for n, _ in model.named_parameters()]
        assert [n for n, _ in twin.named_buffers()] == ["steps", "mask"]
        assert [*twin.state_dict()] == [*model.state_dict()]
    assert "mask" not in fused.state_dict()
    other = Tied()
    other.mask.fill_(3.0)
    loaded.load_state_dict(other.state_dict(), strict=True)
    loaded.mask.fill_(3.0)
    torch.testing.assert_close(loaded(X), other(X))
    assert kernel_calls(fused) == 1
    with pytest.raises(RuntimeError, match="Missing key"):
        fused.load_state_dict({}, strict=True)


@pytest.mark.compiler
@torch.no_grad()
def test_what_is_moved_to_another_type_is_refused_and_right() -> None:
    model, fused = optimized("Block")
    twin, double = copy.deepcopy(fused).to(torch.float64), copy.deepcopy(model).double()
    with pytest.warns(UserWarning, match="original forward, .*: dtype of x is torch.float64"):
        torch.testing.assert_close(twin(X.double()), double(X.double()))
    half = copy.deepcopy(fused).half()
    with pytest.warns(UserWarning, match="dtype of x is torch.float16"):
        assert half(X.half()).dtype is torch.float16
    torch.testing.assert_close(twin.float().to("cpu")(X), model(X))
    assert fused.fusewright.status()["FusedBlock"]["kernels"] == 1


@pytest.mark.compiler
@torch.no_grad()
def test_hooks_of_the_module_itself_run_around_kernels() -> None:
    model = Block().eval()
    model.register_forward_pre_hook(lambda _, given: (given[0] * 2,))
    model.register_forward_hook(lambda _, __, made: made + 1)
    fused: Any = fusewright.optimize(model, X)
    torch.testing.assert_close(fused(X), model(X))
    fused.register_forward_hook(lambda _, __, made: made * 3)
    torch.testing.assert_close(fused(X), model(X) * 3)
    assert kernel_calls(fused) == 2


@pytest.mark.compiler
@torch.no_grad()
def test_hooks_of_children_run_the_original() -> None:
    model, fused = optimized("Block")
    seen: list[torch.Tensor] = []
    fused.norm.register_forward_hook(lambda _, __, made: seen.append(made))
    with pytest.warns(UserWarning, match="norm has another class, or hooks"):
        torch.testing.assert_close(fused(X), model(X))
    assert len(seen) == 1


@pytest.mark.compiler
@torch.no_grad()
def test_parametrized_weights() -> None:
    norm = parametrizations.weight_norm(nn.Linear(8, 8))
    model = nn.Sequential(norm, nn.Tanh(), nn.LayerNorm(8))
    fused: Any = fusewright.optimize(model, X)
    assert [*fused.state_dict()] == [*model.state_dict()]
    twin = copy.deepcopy(fused)
    norm.parametrizations.weight.original0.mul_(2)
    torch.testing.assert_close(fused(X), model(X))
    twin.load_state_dict(model.state_dict(), strict=True)
    torch.testing.assert_close(twin(X), model(X))
    assert kernel_calls(fused) == 2
    with pytest.raises(RuntimeError, match="parametrized modules is only supported through"):
        pickle.dumps(fused)


@pytest.mark.compiler
@torch.no_grad()
def test_inside_another_module() -> None:
    block = Block().eval()
    fused: Any = fusewright.optimize(block, X)
    whole = nn.Sequential(nn.Tanh(), fused)
    wanted = nn.Sequential(nn.Tanh(), block)(X)
    stored = io.BytesIO()
    torch.save(whole, stored)
    stored.seek(0)
    loaded = torch.load(stored, weights_only=False)
    for twin in (whole, copy.deepcopy(whole), loaded):
        torch.testing.assert_close(twin(X), wanted)
    assert [*whole.state_dict()] == [f"1.{name}" for name in block.state_dict()]
    assert kernel_calls(fused) == 3
