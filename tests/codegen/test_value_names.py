"""What kernels call their tensors and values: the model's words, of which none means another."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fusewright.codegen.cpu_source import cpp_source
from fusewright.codegen.cuda_source import cuda_source
from fusewright.codegen.kernel_symbols import is_spoken
from fusewright.codegen.kernel_text import words
from fusewright.codegen.value_names import LONGEST, NUMBERED, KernelNames, Role, ValueNames, word_of
from fusewright.common.problem_file import load_problem
from fusewright.compiler.compilation import make
from fusewright.ir.graph import Node, node
from fusewright.targets.target import TARGETS
from tests.support.folders import ROOT
from tests.support.numbered import numbered

SHAPE = (4,)


def leaf(name: str) -> Node:
    return node("parameter", name=name, shape=SHAPE, dtype=torch.float32)


def named(*paths: str) -> tuple[KernelNames, list[Node]]:
    """The names of a kernel that reads some parameters."""
    leaves = [leaf(path) for path in paths]
    names = ValueNames({n: tuple(str(n["name"]).split(".")) for n in leaves})
    return KernelNames(names, leaves), leaves


@pytest.mark.parametrize(
    ("paths", "pointers"),
    [
        (["fc2.bias"], ["bias_ptr"]),
        (["fc.weight", "norm.weight"], ["fc_weight_ptr", "norm_weight_ptr"]),
        (["norm.weight", "norm.bias", "bias"], ["weight_ptr", "norm_bias_ptr", "bias_ptr"]),
        (["net.0.weight", "net.2.weight"], ["net_0_weight_ptr", "net_2_weight_ptr"]),
        (["scales.0"], ["scales_0_ptr"]),
        (["WQ"], ["wq_ptr"]),  # capitals alone may be a macro
    ],
)
def test_pointers_have_the_end_of_a_path_that_tells_them_apart(
    paths: list[str], pointers: list[str]
) -> None:
    names, leaves = named(*paths)
    assert [names.give(Role.OPERAND, k, n) for k, n in enumerate(leaves)] == pointers


def test_a_value_has_the_bare_word_and_a_number_where_it_needs_one() -> None:
    names, (bias,) = named("bias")
    assert names.give(Role.READ, 0, bias) == "bias"
    assert [names.give(Role.MEMBER, k, "bias", k) for k in range(2)] == ["bias_2", "bias_3"]
    assert [names.give(Role.MEMBER, k, "relu", ("r", k)) for k in range(2)] == ["relu_1", "relu_2"]
    assert names.give(Role.READ, 7, bias) == "bias"


def test_numbers_without_words() -> None:
    names = KernelNames(NUMBERED, [leaf("bias")])
    assert names.give(Role.OPERAND, 3, leaf("bias")) == "in3"
    assert names.give(Role.KEPT_PLACE, 0, leaf("bias")) == "k0_"


def test_long_words_keep_their_end() -> None:
    path = ("encoder_of_many_images", "transformer_of_both", "weight")
    assert word_of(path) == "weight"
    assert len(word_of(["a_name_that_is_much_longer_than_others_are"])) == LONGEST


@pytest.mark.parametrize(
    "symbol", ["relu", "load", "team", "row", "r0", "float", "exp", "denominator"]
)
def test_what_a_body_may_say_is_no_value(symbol: str) -> None:
    assert is_spoken(symbol)


# ---- whole kernels -------------------------------------------------------------------------------


class Hazards(nn.Module):
    """A model whose variables and parameters are called as the device library's functions are."""

    def __init__(self) -> None:
        super().__init__()
        self.load = nn.Parameter(torch.ones(16))
        self.team = nn.Parameter(torch.ones(16))
        self.EOF = nn.Parameter(torch.ones(16))

    def forward(self, row: Tensor) -> Tensor:
        exp = torch.relu(row * self.load) + self.team
        denominator = torch.exp(exp - self.EOF)
        where = denominator / denominator.sum(-1, keepdim=True)
        float_of = F.layer_norm(where, (16,))
        return torch.tanh(float_of) * torch.sigmoid(exp)


def problems() -> dict[str, tuple[nn.Module, list[object]]]:
    found: dict[str, tuple[nn.Module, list[object]]] = {
        "hazards": (Hazards(), [torch.randn(8, 16)])
    }
    for name in ("network_transformer_block", "linear_gelu_softmax", "half_mixed_types"):
        problem = load_problem(Path(ROOT / f"zoo/{name}.py"))
        found[name] = (problem.make_model(), list(problem.make_inputs()))
    return found


PROBLEMS = problems()


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_words_reach_the_same_library_as_numbers_do(name: str, target: str) -> None:
    module, inputs = PROBLEMS[name]
    made = make(module, inputs, TARGETS[target])
    texts, plain = list(made.texts), list(numbered(made).texts)
    sources = [
        cpp_source(some) if target == "cpu" else cuda_source(some, TARGETS[target])
        for some in (texts, plain)
    ]
    libraries = [s[: s.index(t[0].text)] for s, t in zip(sources, (texts, plain), strict=True)]
    assert libraries[0] == libraries[1]
    for one, other in zip(texts, plain, strict=True):
        pointers = [p.name for p in one.pointers]
        assert len({*pointers}) == len(pointers)
        assert not {p for p in pointers if is_spoken(p)}
        assert len(one.text.splitlines()) == len(other.text.splitlines())
        assert words(one.text) & {"in0", "out0", "v0", "v1", "x0"} == set()
