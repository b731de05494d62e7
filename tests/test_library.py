"""Calls that stay PyTorch's: their text, what is random, what is fresh, how many operations."""

from __future__ import annotations

import pytest
import torch

from fusewright.frontend.library_calls import FRESH, library_call, product_flops
from fusewright.frontend.lowering.call import AtenCall, AtenResult
from fusewright.ir.builder import TensorExpr
from fusewright.ir.graph import BatchSize, Graph, Node, Shape, node
from fusewright.ir.interpreter import interpret


def leaf(position: int = 0) -> TensorExpr:
    return TensorExpr(node("input", position=position, shape=(2, 3), dtype=torch.float32))


def called(name: str, overload: str, *args: object, results: int = 1, **kwargs: object) -> object:
    result = AtenResult((2, 3), torch.float32, ())
    return library_call(AtenCall(name, overload, args, kwargs, (result,) * results), [], alone=True)


def text_of(value: object) -> str:
    assert isinstance(value, TensorExpr)
    return str(value.node["call"])


TEXTS = [
    (("aten.cumsum", "default", leaf(), 1), "torch.cumsum({0}, 1)"),
    (("aten.cat", "default", [leaf(), leaf(1), leaf()], 1), "torch.cat([{0}, {1}, {0}], 1)"),
    (("aten.flip", "default", leaf(), [1]), "torch.ops.aten.flip.default({0}, [1])"),
    (("aten.nan_to_num", "default", leaf(), float("inf")),
     "torch.ops.aten.nan_to_num.default({0}, float('inf'))"),
    (("aten.repeat", "default", leaf(), [BatchSize(2), 1]),
     "torch.ops.aten.repeat.default({0}, [batch * 2, 1])"),
    (("aten.foo", "x", leaf(), torch.float16, None, "sum"),
     "torch.ops.aten.foo.x({0}, torch.float16, None, 'sum')"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "text"), TEXTS, ids=[t[1] for t in TEXTS])
def test_the_text_of_a_call(arguments: tuple[str, str, object], text: str) -> None:
    assert text_of(called(*arguments)) == text


def test_the_device_is_left_open() -> None:
    made = called("aten.arange", "default", 3, device=torch.device("cpu"), pin_memory=False)
    assert text_of(made) == "torch.ops.aten.arange.default(3, device={device})"


def test_random_calls_are_effects_in_their_order() -> None:
    effects: list[Node] = []
    result = (AtenResult((2, 3), torch.float32, ()),)
    for name in ("aten.rand_like", "aten.bernoulli"):
        library_call(AtenCall(name, "default", (leaf(),), {}, result), effects, alone=True)
    library_call(AtenCall("aten.layer_norm", "default", (leaf(),), {}, result), effects, alone=True)
    assert [(n["name"], n["random"]) for n in effects] == [
        ("aten.rand_like", 0),
        ("aten.bernoulli", 1),
    ]


def test_the_same_random_call_twice_is_two_calls() -> None:
    effects: list[Node] = []
    call = AtenCall(
        "aten.rand_like", "default", (leaf(),), {}, (AtenResult((2, 3), torch.float32, ()),)
    )
    first, second = (library_call(call, effects, alone=True) for _ in range(2))
    assert isinstance(first, TensorExpr)
    assert isinstance(second, TensorExpr)
    assert first.node is not second.node


def test_several_results_are_items_of_one_call() -> None:
    made = called("aten.sort", "default", leaf(), 1, results=2)
    assert isinstance(made, tuple)
    values, positions = (v.node for v in made if isinstance(v, TensorExpr))
    assert values.args == positions.args
    x = torch.randn(2, 3)
    graph = Graph((leaf().node,), (values,))
    assert torch.equal(interpret(graph, [x], {})[0], x.sort(1)[0])


SAMPLES = {
    "aten.linear": lambda f, x: f(x, torch.ones(3, 3)),
    "aten.mm": lambda f, x: f(x, torch.ones(3, 3)),
    "aten.matmul": lambda f, x: f(x, torch.ones(3, 3)),
    "aten.addmm": lambda f, x: f(torch.zeros(2, 3), x, torch.ones(3, 3)),
    "aten.bmm": lambda f, x: f(x[None], torch.ones(1, 3, 3)),
    "aten.baddbmm": lambda f, x: f(torch.zeros(1, 2, 3), x[None], torch.ones(1, 3, 3)),
    "aten.cat": lambda f, x: f([x]),
    "aten.stack": lambda f, x: f([x]),
    "aten.cumsum": lambda f, x: f(x, 1),
    "aten.conv1d": lambda f, x: f(x[None], torch.ones(1, 2, 1)),
    "aten.conv2d": lambda f, x: f(x[None, None], torch.ones(1, 1, 1, 1)),
    "aten.conv3d": lambda f, x: f(x[None, None, None], torch.ones(1, 1, 1, 1, 1)),
    "aten.conv_transpose1d": lambda f, x: f(x[None], torch.ones(2, 1, 1)),
    "aten.conv_transpose2d": lambda f, x: f(x[None, None], torch.ones(1, 1, 1, 1)),
    "aten.conv_transpose3d": lambda f, x: f(x[None, None, None], torch.ones(1, 1, 1, 1, 1)),
}


@pytest.mark.parametrize("name", sorted(FRESH))
def test_what_is_called_fresh_shares_no_memory(name: str) -> None:
    x = torch.randn(2, 3)
    made = SAMPLES[name](getattr(torch.ops.aten, name.removeprefix("aten.")), x)
    assert made.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("name", "shapes", "result", "flops"),
    [
        ("aten.linear", [(BatchSize(1), 8), (5, 8)], (BatchSize(1), 5), 2 * 4 * 8 * 5),
        ("aten.addmm", [(5,), (4, 8), (8, 5)], (4, 5), 2 * 4 * 8 * 5),
        ("aten.bmm", [(3, 4, 8), (3, 8, 5)], (3, 4, 5), 2 * 3 * 4 * 8 * 5),
        ("aten.conv2d", [(4, 6, 9, 9), (8, 3, 3, 3)], (4, 8, 7, 7), 2 * 4 * 8 * 49 * 27),
        (
            "aten.conv_transpose2d",
            [(4, 6, 9, 9), (6, 8, 3, 3)],
            (4, 8, 11, 11),
            2 * 4 * 6 * 81 * 72,
        ),
        ("aten.relu", [(4, 4)], (4, 4), 0),
    ],
)
def test_operations_of_products(name: str, shapes: list[Shape], result: Shape, flops: int) -> None:
    assert product_flops(name, shapes, result, 4) == flops
