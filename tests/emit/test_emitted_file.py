"""The examples' emitted files run: eager's values, the same state, on the CPU and on a GPU."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import fusewright
from fusewright.common.problem_file import load_problem
from fusewright.compiler.compilation import make
from fusewright.targets.target import TARGETS
from tests.support.emitting import EXAMPLES, SMALL, emit_example, tiles
from tests.support.folders import ROOT


@pytest.fixture(scope="module", autouse=True)
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path_factory.mktemp("kernels")))
        yield


@pytest.mark.compiler
@pytest.mark.parametrize("name", EXAMPLES)
def test_values_and_state(name: str, tmp_path: Path) -> None:
    problem = load_problem(ROOT / "examples" / f"{name}.py", SMALL[name])
    emitted = emit_example(name, tmp_path).load()
    torch.manual_seed(3)
    reference = problem.make_model()
    torch.manual_seed(3)
    ours = emitted.ModelNew(*problem.make_init_inputs())
    for (key, mine), (other, theirs) in zip(
        ours.state_dict().items(), reference.state_dict().items(), strict=True
    ):
        assert key == other
        assert torch.equal(mine, theirs), "the constructor draws the same numbers"
    reference.load_state_dict(ours.state_dict(), strict=True)
    ours.load_state_dict(reference.state_dict(), strict=True)
    for scale in (1.0, 100.0):
        inputs = [scale * (x - 0.5) for x in problem.make_inputs()]
        with torch.no_grad():
            found, wanted = ours(*inputs), reference(*inputs)
            exact = copy.deepcopy(reference).double()(*(x.double() for x in inputs))
        eager = (wanted.double() - exact).abs().max()
        assert (found.double() - exact).abs().max() <= 4 * eager + 1e-6 * exact.abs().max()
        assert found.stride() == wanted.stride()
    assert emitted._FUSEWRIGHT_FUNCTIONS, "the kernels ran"


def test_imports_only_torch(tmp_path: Path) -> None:
    tree = ast.parse(emit_example("gemm_add_relu", tmp_path).text)
    found = set()
    for n in ast.walk(tree):
        if isinstance(n, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in n.names}
        elif isinstance(n, ast.ImportFrom):
            found.add(str(n.module).partition(".")[0])
    own = {"ctypes", "hashlib", "os", "pathlib", "shutil", "tempfile", "warnings"}
    own |= {"collections", "contextlib", "sys"}  # where PyTorch's compiler traces
    assert found == {"torch", *own}


def test_cuda_file_runs_without_a_gpu(tmp_path: Path) -> None:
    """Tensors on the CPU go to the original forward, and nothing is compiled."""
    emitted = emit_example("gemm_add_relu", tmp_path, "sm_90a").load()
    model = emitted.ModelNew(48, 80, (80,))
    x = torch.rand(4, 48)
    with torch.no_grad():
        assert torch.equal(model(x), model.reference_forward(x))
    assert not emitted._FUSEWRIGHT_FUNCTIONS


# ---- on a GPU ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory: pytest.TempPathFactory) -> object:
    major, _ = torch.cuda.get_device_capability()
    target = "sm_90a" if major == 9 else "sm_80"
    emitted = emit_example("swish_bias_groupnorm", tmp_path_factory.mktemp("gpu"), target)
    return emitted.load()


def gpu_model(on_gpu: object, device: str = "cuda") -> torch.nn.Module:
    torch.manual_seed(0)
    return on_gpu.ModelNew(24, 128, 64, (128,)).to(device)  # type: ignore[attr-defined, no-any-return]


def agree(model: torch.nn.Module, x: torch.Tensor) -> None:
    no_worse(model(x), model, x)


def no_worse(found: torch.Tensor, model: torch.nn.Module, x: torch.Tensor) -> None:
    """Against float64, at most four times eager's error: small groups amplify roundings."""
    eager = model.reference_forward(x)
    exact = copy.deepcopy(model).double().reference_forward(x.double())
    ours, theirs = ((y - exact).abs().max().item() for y in (found, eager))
    assert found.shape == eager.shape
    assert found.dtype is eager.dtype
    assert ours <= 4 * theirs + 4 * torch.finfo(eager.dtype).eps * exact.abs().max().item()


@pytest.mark.gpu
@torch.no_grad()
def test_gpu_values_shapes_and_offsets(on_gpu: object) -> None:
    model = gpu_model(on_gpu)
    for batch in (2, 6, 1000):
        agree(model, torch.randn(batch, 24, device="cuda"))
    room = torch.randn(6 * 24 + 1, device="cuda")
    agree(model, room[1:].view(6, 24))
    model.linear.weight.data.mul_(0.5)
    agree(copy.deepcopy(model), torch.randn(6, 24, device="cuda"))
    with torch.inference_mode():
        agree(model, torch.randn(6, 24, device="cuda"))
    assert on_gpu._FUSEWRIGHT_FUNCTIONS  # type: ignore[attr-defined]


@pytest.mark.gpu
@torch.no_grad()
def test_gpu_other_stream(on_gpu: object) -> None:
    model, x = gpu_model(on_gpu), torch.randn(4096, 24, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)  # a kernel on the default stream would read x too early
        y = x * 2
        found = model(y * 0.5)
    side.synchronize()
    no_worse(found, model, x)


@pytest.mark.gpu
@torch.no_grad()
def test_gpu_graph(on_gpu: object) -> None:
    model, x = gpu_model(on_gpu), torch.randn(64, 24, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = model(x)
    for _ in range(2):
        x.copy_(torch.randn(64, 24, device="cuda"))
        graph.replay()
        no_worse(found, model, x)


@pytest.mark.gpu
@torch.no_grad()
def test_gpu_second_device(on_gpu: object) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    model = gpu_model(on_gpu, "cuda:1")
    assert torch.cuda.current_device() == 0
    agree(model, torch.randn(6, 24, device="cuda:1"))
    assert torch.cuda.current_device() == 0


@pytest.mark.gpu
@torch.no_grad()
def test_gpu_falls_back(on_gpu: object) -> None:
    model, x = gpu_model(on_gpu), torch.randn(6, 24, device="cuda")
    with torch.autocast("cuda", torch.float16):
        assert model(x).dtype is model.reference_forward(x).dtype
    agree(model, x[:1])
    agree(model.double(), x.double())


class AnyDepth(torch.nn.Module):
    """Products whose factors no kernel reads as they lie."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(1024, 1001))
        self.left = torch.nn.Parameter(torch.randn(1027, 1100))
        self.right = torch.nn.Parameter(torch.randn(1027, 1200))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.relu(torch.nn.functional.linear(x, self.weight)), self.left.t() @ self.right


def test_products_of_any_depth_are_kernels() -> None:
    for target in ("sm_80", "sm_90a"):
        made = make(AnyDepth(), [torch.randn(1100, 1001)], TARGETS[target])
        assert len(tiles(made)) == 2


@pytest.mark.gpu
@torch.no_grad()
def test_gpu_products_of_any_depth() -> None:
    torch.manual_seed(0)
    model = AnyDepth().cuda()
    ours = fusewright.optimize(
        model, torch.randn(1100, 1001, device="cuda"), options={"target": "cuda"}
    )
    for rows in (2, 1100, 1333):
        x = torch.randn(rows, 1001, device="cuda")
        exact = copy.deepcopy(model).double()(x.double())
        for found, eager, wanted in zip(ours(x), model(x), exact, strict=True):
            assert (found - wanted).norm() <= (eager - wanted).norm() + 1e-7 * wanted.norm()
