"""Names of kernels: the module that asks for them, then what they calculate."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fusewright.codegen.kernel_symbols import CXX_NAMES, symbols
from fusewright.common.problem_file import load_problem
from fusewright.compiler.compilation import Compilation, make
from fusewright.errors import FusewrightError
from fusewright.fusion.kernel_names import LONGEST, NameRules, identifier, kernel_names
from fusewright.fusion.planner import Kernel
from fusewright.ir.builder import TensorExpr, pointwise
from fusewright.ir.graph import Graph, Node, node, origin_of
from fusewright.ir.origin import Origin
from fusewright.targets.target import TARGETS
from tests.support.folders import ROOT

ROWS = torch.randn(8, 16)
MANY = torch.randn(2048, 1024)


def names(module: nn.Module, *inputs: Tensor, target: str = "cpu") -> list[str]:
    """The names of a model's kernels, in the order of the plan."""
    return [k.name for k in made_of(module, *inputs, target=target).plan.kernels]


def made_of(module: nn.Module, *inputs: Tensor, target: str = "cpu") -> Compilation:
    return make(module.eval(), inputs, TARGETS[target])


class Layers(nn.Module):
    """A model of some layers, one after the other, under their names."""

    def __init__(self, **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = layer(x)
        return x


class Block(nn.Module):
    """A linear layer, a function, and a norm of what was added."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.norm(F.gelu(self.fc1(x)) + x)
        return made


class Calls(nn.Module):
    """A model without modules."""

    def __init__(self, calls: str) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, x: Tensor) -> Tensor:
        if self.calls == "mean":
            return (x + 1.5).relu().mean(-1)
        if self.calls == "norm":
            return F.normalize(F.softmax(x, -1) - x)
        if self.calls == "linear":
            return F.linear(x, x[:1024], x[0]).tanh()
        return 2.5 - x


@pytest.mark.parametrize(
    ("layers", "name"),
    [
        ({"relu": nn.ReLU()}, "relu_fused"),  # a function of the device library
        ({"relu1": nn.ReLU(), "tanh1": nn.Tanh()}, "relu1_tanh"),
        ({"act": nn.SiLU()}, "act_silu"),
        ({"softmax": nn.Softmax(-1)}, "softmax"),
        ({"ln": nn.LayerNorm(16)}, "ln_layer_norm"),
        ({"norm": nn.LayerNorm(16), "act": nn.ReLU()}, "norm_relu"),
        ({"act": nn.Hardswish(), "norm": nn.LayerNorm(16)}, "norm_hardswish_layer_norm"),
        ({"bn1": nn.BatchNorm1d(16), "act": nn.GELU()}, "bn1_batch_norm_gelu"),
        ({"while": nn.Sigmoid()}, "while_sigmoid"),
        ({"int": nn.Softmax(-1), "softmax": nn.ReLU()}, "int_softmax_relu"),
    ],
)
def test_modules_and_what_they_calculate(layers: Mapping[str, nn.Module], name: str) -> None:
    assert names(Layers(**layers), ROWS) == [name]


@pytest.mark.parametrize(
    ("calls", "target", "found"),
    [
        ("mean", "cpu", ["add_relu_mean"]),
        ("norm", "cpu", ["softmax_sub_normalize"]),
        ("sub", "cpu", ["sub"]),
        ("linear", "sm_90a", ["linear_bias_tanh"]),
    ],
)
def test_functions_outside_of_modules(calls: str, target: str, found: list[str]) -> None:
    assert names(Calls(calls), MANY, target=target) == found


def test_contractions_are_named_after_their_modules() -> None:
    model = Layers(
        fc1=nn.Linear(1024, 1024),
        act=nn.ReLU(),
        keys=nn.Linear(1024, 1024, bias=False),
        fc2=nn.Linear(1024, 1024, bias=False),
        net=nn.Sequential(nn.Linear(1024, 1024), nn.Tanh()),
    )
    found = names(model, MANY, target="sm_90a")
    assert found == ["fc1_bias_relu", "keys_fused", "fc2", "net_0_bias_tanh"]


def test_a_module_of_several_contractions_says_which() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left = nn.Parameter(torch.zeros(1024, 1024))
            self.right = nn.Parameter(torch.zeros(1024, 1024))

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(torch.tanh(x @ self.left), self.right)

    found = names(Layers(both=Twice()), MANY, target="sm_90a")
    assert found == ["both_matmul_tanh", "both_linear"]


def test_equal_blocks_have_paths_of_their_own() -> None:
    blocks = nn.Sequential(Block(), Block(), Block())
    found = names(Layers(blocks=blocks), ROWS)
    wanted = [f"blocks_{k}_norm_linear_gelu_add_layer_norm" for k in range(3)]
    assert found == wanted


def test_a_module_that_is_called_again_and_one_with_two_names() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Block(), Block()])
            self.last = self.blocks[1]

        def forward(self, x: Tensor) -> Tensor:
            x = self.blocks[0](self.blocks[0](x))
            made: Tensor = self.last(x)
            return made

    name = "norm_linear_gelu_add_layer_norm"
    wanted = [f"blocks_0_{name}", f"blocks_0_{name}_2", f"blocks_1_{name}"]
    assert names(Tied(), ROWS) == wanted


def test_equal_calls_are_the_first_module_s() -> None:
    class Equal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Softmax(-1), nn.Softmax(-1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.first(x), self.second(x)

    assert names(Equal(), ROWS) == ["first_softmax"]


def test_a_long_path_keeps_its_end() -> None:
    inner: nn.Module = Block()
    for name in ("attention_output", "encoder_of_images", "transformer_of_both"):
        inner = Layers(**{name: inner})
    (found,) = names(inner, ROWS)
    path = "transformer_of_both_encoder_of_images_attention_output_norm"
    start = found.removesuffix("_gelu")
    assert len(found) <= LONGEST
    assert path.endswith(start)
    assert start.endswith("attention_output_norm")


def test_words_that_do_not_fit_are_left_out() -> None:
    (found,) = names(
        nn.Sequential(*(kind() for kind in (nn.Softsign, nn.Hardswish, nn.SiLU, nn.ELU, nn.GELU))),
        ROWS,
    )
    assert found == "at_0_softsign_hardswish_silu_elu_gelu"
    assert len(names(Layers(a_module_whose_name_is_longer_than_others=nn.GELU()), ROWS)[0]) <= 40


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("fc2", "fc2"),
        ("größe", "gro_e"),
        ("conv-1 b", "conv_1_b"),
        ("слой1", "1"),
        ("__x__y_", "x_y"),
        ("é", "e"),
    ],
)
def test_identifiers(text: str, wanted: str) -> None:
    assert identifier(text) == wanted
    assert identifier(text).isascii()


def test_keys_of_a_module_dict() -> None:
    class Keyed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleDict({"é-1": nn.Softmax(-1), "слой": nn.Softmax(0)})

        def forward(self, x: Tensor) -> Tensor:
            for part in self.parts.values():
                x = part(x)
            return x

    assert names(Keyed(), ROWS) == ["parts_e_1_softmax", "parts_softmax"]


# ---- plans that are made by hand -----------------------------------------------------------------


def chain(count: int, module: str = "") -> tuple[Graph, list[tuple[Sequence[Node], None]]]:
    """So many kernels of one operator each, which all come from calls of one module."""
    x = TensorExpr(node("input", position=0, shape=(4,), dtype=torch.float32))
    value, kernels = x, list[tuple[Sequence[Node], None]]()
    origins = dict[Node, Origin]()
    for _ in range(count):
        value = pointwise("sin", value)
        origins[value.node] = Origin(module, "sin")
        kernels.append(([value.node], None))
    return Graph((x.node,), (value.node,), origins=origins), kernels


def test_names_are_unique_and_deterministic() -> None:
    graph, kernels = chain(4, "wave")
    found = kernel_names(kernels, graph, CXX_NAMES)
    assert found == ["wave_sin", "wave_sin_2", "wave_sin_3", "wave_sin_4"]
    assert found == kernel_names(kernels, graph, CXX_NAMES)


def test_nodes_that_come_from_nowhere_have_operators() -> None:
    graph, kernels = chain(1)
    bare = Graph(graph.inputs, graph.outputs)
    assert kernel_names(kernels, bare, NameRules()) == ["sin"]


def test_names_that_are_taken_already() -> None:
    graph, kernels = chain(2, "wave")
    taken = symbols("wave_sin") | symbols("wave_sin_2")
    rules = NameRules(symbols, taken=taken)
    assert kernel_names(kernels, graph, rules) == ["wave_sin_3", "wave_sin_4"]


@pytest.mark.parametrize("module", ["run_wave", "wave"])
def test_no_name_is_another_s_entry(module: str) -> None:
    graph, kernels = chain(1, module)
    other = {"run_wave": "wave_sin", "wave": "run_wave_sin"}[module]
    rules = NameRules(symbols, taken=symbols(other))
    (found,) = kernel_names(kernels, graph, rules)
    assert not symbols(found) & symbols(other)
    assert found == f"{module}_sin_2"


def test_time_is_linear() -> None:
    def seconds(count: int) -> float:
        graph, kernels = chain(count, "wave")
        begin = time.process_time()
        kernel_names(kernels, graph, CXX_NAMES)
        return time.process_time() - begin

    seconds(10)
    assert seconds(2000) < 1.0  # 0.05 s where nothing else runs


# ---- the corpus ----------------------------------------------------------------------------------

CORPUS = sorted(path.stem for path in (ROOT / "tests/replay").glob("*.py"))


def path_of(kernel: Kernel, graph: Graph) -> list[str]:
    """The module of a kernel's anchor, as parts of a name."""
    origin = origin_of(graph, kernel.anchor) if kernel.anchor else None
    return [identifier(part) for part in origin.module.split(".")] if origin else []


@pytest.mark.slow
@pytest.mark.parametrize("name", CORPUS)
def test_kernels_begin_with_the_module_of_their_anchor(name: str) -> None:
    problem = load_problem(Path(ROOT / f"tests/replay/{name}.py"))
    module, inputs = problem.make_model(), problem.make_inputs()
    for target in ("sm_80", "sm_90a"):
        try:
            plan = make(module, inputs, TARGETS[target]).plan
        except FusewrightError:
            continue  # a model that is taken in parts
        for kernel in plan.kernels:
            path = "_".join(filter(None, path_of(kernel, plan.graph)))
            assert kernel.name.startswith(path)
            assert kernel.name.isidentifier()
            assert len(kernel.name) <= LONGEST + 4
