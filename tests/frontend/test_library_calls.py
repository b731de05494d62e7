"""Calls that stay PyTorch's: record and text, effects, new memory, how many operations."""

from __future__ import annotations

import math
import operator
from dataclasses import replace

import pytest
import torch

from fusewright.frontend.data_scalars import computed, item
from fusewright.frontend.library_calls import (
    NEW_MEMORY,
    contraction_flops,
    library_call,
    without_bias,
)
from fusewright.frontend.lowering.call import AtenCall, AtenResult
from fusewright.ir.builder import TensorExpr
from fusewright.ir.graph import BatchSize, Graph, Node, Shape, fresh_copy, node, show
from fusewright.ir.interpreter import interpret
from fusewright.ir.library_call import (
    ComputedNumber,
    DtypeRef,
    HugePages,
    LibraryCall,
    ListArg,
    MethodView,
    Scalar,
    SizeRef,
    TensorRef,
)
from fusewright.rewrite.contraction import contraction_of


def leaf(position: int = 0) -> TensorExpr:
    return TensorExpr(node("input", position=position, shape=(2, 3), dtype=torch.float32))


def called(name: str, overload: str, *args: object, results: int = 1, **kwargs: object) -> object:
    result = AtenResult((2, 3), torch.float32, ())
    return library_call(AtenCall(name, overload, args, kwargs, (result,) * results), [], alone=True)


def made(name: str, overload: str, *args: object, **kwargs: object) -> Node:
    value = called(name, overload, *args, **kwargs)
    assert isinstance(value, TensorExpr)
    return value.node


def text_of(n: Node) -> str:
    return rendered(n.call)


def rendered(call: LibraryCall) -> str:
    return call.render(["{0}", "{1}", "{2}"], "{device}", {})


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
    (("aten.foo", "x", (leaf(),), (leaf(1), -0.0), ()),
     "torch.ops.aten.foo.x(({0},), ({1}, -0.0), ())"),
    (("aten.foo", "x", float("nan"), -math.inf, True, 1, 1 + 2j, torch.channels_last),
     "torch.ops.aten.foo.x(float('nan'), float('-inf'), True, 1, (1+2j), torch.channels_last)"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "text"), TEXTS, ids=[t[1] for t in TEXTS])
def test_the_text_of_a_call(arguments: tuple[str, str, object], text: str) -> None:
    assert text_of(made(*arguments)) == text  # type: ignore[arg-type]


def test_the_device_is_left_open() -> None:
    call = made("aten.arange", "default", 3, device=torch.device("cpu"), pin_memory=False).call
    assert rendered(call) == "torch.ops.aten.arange.default(3, device={device})"
    assert call.render([], "x.device", "n") == "torch.ops.aten.arange.default(3, device=x.device)"


def test_random_calls_are_effects_in_their_order() -> None:
    effects: list[Node] = []
    result = (AtenResult((2, 3), torch.float32, ()),)
    for name in ("aten.rand_like", "aten.bernoulli"):
        library_call(AtenCall(name, "default", (leaf(),), {}, result), effects, alone=True)
    library_call(AtenCall("aten.layer_norm", "default", (leaf(),), {}, result), effects, alone=True)
    assert [(n.called, n.call.effect) for n in effects] == [
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
    several = called("aten.sort", "default", leaf(), 1, results=2)
    assert isinstance(several, tuple)
    values, positions = (v.node for v in several if isinstance(v, TensorExpr))
    assert values.args == positions.args
    x = torch.randn(2, 3)
    graph = Graph((leaf().node,), (values,))
    assert torch.equal(interpret(graph, [x], {})[0], x.sort(1)[0])


# ---- the record ----------------------------------------------------------------------------------


def plain(*args: object, **kwargs: object) -> LibraryCall:
    return made("aten.foo", "x", *args, **kwargs).call


def test_arguments_are_bound_to_what_they_are() -> None:
    call = plain(leaf(1), [leaf(), leaf(1)], -0.0, (2, [3]), None, dim="sum", scale=math.inf)
    args, kwargs = call.bind(["x", "y"]) or ((), {})
    assert args == ("x", ["y", "x"], -0.0, [2, [3]], None)
    assert math.copysign(1, args[2]) == -1
    assert kwargs == {"dim": "sum", "scale": math.inf}


UNKNOWN = [
    torch.float16,
    torch.strided,
    torch.contiguous_format,
    torch.device("cpu"),
    BatchSize(2),
    [1, BatchSize(1)],
    [[torch.float32]],
    item(leaf()),
]


@pytest.mark.parametrize("value", UNKNOWN, ids=str)
def test_one_unknown_argument_leaves_all_unread(value: object) -> None:
    assert plain(leaf(), value).bind(["x", "y"]) is None
    assert plain(leaf(), 1, last=value).bind(["x", "y"]) is None
    assert plain(leaf(), 1).bind(["x"]) is not None


def test_a_call_that_is_seen_otherwise_is_not_read() -> None:
    call = LibraryCall("aten.mm", "default", "torch.mm", (TensorRef(0), TensorRef(1)))
    assert call.bind("xy") == (("x", "y"), {})
    flat = MethodView("flatten", (Scalar(0), Scalar(-2)))
    for other in (
        replace(call, out=HugePages(ListArg((SizeRef(1), Scalar(4)), is_tuple=True))),
        replace(call, result_views=(flat,)),
        replace(call, args=(TensorRef(0, (flat,)), TensorRef(1))),
    ):
        assert other.bind("xy") is None


def test_one_argument_by_its_place_or_its_name() -> None:
    call = plain(leaf(), 1, dtype=torch.float64)
    assert call.argument(1, "dim") == Scalar(1)
    assert call.argument(2, "dtype") == DtypeRef(torch.float64)
    assert call.argument(2, "dim") is None


@pytest.mark.parametrize(
    ("a", "b"), [(0.0, -0.0), (1, True), (1, 1.0), (0, None), ("1", 1), ([1], (1,)), (0.0, -0j)]
)
def test_calls_of_values_that_python_takes_for_equal_are_two(a: object, b: object) -> None:
    one, other = (made("aten.foo", "x", leaf(), v) for v in (a, b))
    assert one is not other
    assert one is made("aten.foo", "x", leaf(), a)
    assert plain([a]) != plain([b])
    assert hash(plain(a)) == hash(plain(a))


def test_a_call_of_nan_is_one() -> None:
    assert made("aten.foo", "x", math.nan) is made("aten.foo", "x", -math.nan)


def test_a_reason_makes_another_node() -> None:
    n = made("aten.linear", "default", leaf(), leaf(1))
    call = n.call.because("it is small")
    assert (call.why_library, n.call.why_library) == ("it is small", None)
    assert call != n.call
    assert rendered(call) == text_of(n)


def test_without_a_tensor_the_others_move_up() -> None:
    call = plain(leaf(), leaf(1), [leaf(2), leaf(1)], last=leaf(2))
    text = "torch.ops.aten.foo.x({0}, None, [{1}, None], last={1})"
    assert rendered(call.without(1)) == text


def test_without_bias_a_node_has_no_last_argument() -> None:
    n = without_bias(made("aten.conv2d", "default", leaf(), leaf(1), leaf(2), [1]), "so")
    assert n.args == (leaf().node, leaf(1).node)
    assert text_of(n) == "torch.nn.functional.conv2d({0}, {1}, None, [1])"
    assert n.call.why_library == "so"


def test_sizes_are_called_as_where_they_are_written() -> None:
    call = plain(leaf(), [BatchSize(1), BatchSize(3)], item(leaf()))
    assert call.render(["a"], "", {"batch": "n"}) == "torch.ops.aten.foo.x(a, [n, n * 3], a.item())"


def test_numbers_of_the_data_are_computed_in_the_call() -> None:
    double = computed(operator.mul, [item(leaf()), 2], floating=True)
    both = computed(operator.add, [double, item(leaf(1))], floating=True)
    assert both is not None
    assert isinstance(both.number, ComputedNumber)
    call = plain(leaf(1), both)
    assert rendered(call) == "torch.ops.aten.foo.x({0}, (({1}.item() * (2)) + {0}.item()))"


def test_copies_in_another_order_are_permuted_there_and_back() -> None:
    x = node("input", position=0, shape=(2, 3, 4), dtype=torch.complex64)
    n = fresh_copy(x, (1, 2, 0), 0)
    there = "{0}.permute((1, 2, 0)), memory_format=torch.contiguous_format"
    assert text_of(n) == f"torch.clone({there}).permute((2, 0, 1))"
    value = torch.randn(2, 3, 4, dtype=torch.complex64)
    (found,) = interpret(Graph((x,), (n,)), [value], {})
    assert torch.equal(found, value)
    assert found.stride() == (1, 8, 2)


def test_a_graph_shows_calls_as_text() -> None:
    n = made("aten.cat", "default", [leaf(), leaf(1), leaf()], 1)
    other = node("library", n.args, shape=n.shape, dtype=n.dtype, call=n.call.because("small"))
    text = show(Graph((), (n, other)))
    assert "call=torch.cat([{0}, {1}, {0}], 1) [aten.cat, new memory])" in text
    assert "[aten.cat, new memory, because small]" in text


@pytest.mark.parametrize("scale", [math.inf, -math.inf, math.nan, 0.0])
def test_a_product_times_no_plain_number_is_pytorchs(scale: float) -> None:
    args = leaf(), leaf(1), TensorExpr(node("input", position=2, shape=(3, 3), dtype=torch.float32))
    assert contraction_of(made("aten.addmm", "default", *args, beta=2, alpha=0.5)) is not None
    assert contraction_of(made("aten.addmm", "default", *args, alpha=scale)) is None
    free = contraction_of(made("aten.addmm", "default", *args, beta=scale))
    assert (free is None) == (scale != 0)


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
    "aten.native_layer_norm": lambda f, x: f(x, [3], None, None, 1e-5)[0],
    "aten.native_group_norm": lambda f, x: f(x, None, None, 2, 3, 1, 3, 1e-5)[0],
    "aten.native_dropout": lambda f, x: f(x, 0.0, True)[0],
    "aten.scatter.src": lambda f, x: f(x, 1, torch.zeros(2, 1, dtype=torch.int64), x),
}


@pytest.mark.parametrize("name", sorted(NEW_MEMORY))
def test_new_memory_is_nobody_elses(name: str) -> None:
    x = torch.randn(2, 3)
    packet, *overload = name.removeprefix("aten.").split(".")
    call = getattr(torch.ops.aten, packet)
    result = SAMPLES[name](getattr(call, overload[0]) if overload else call, x)
    assert result.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


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
    assert contraction_flops(name, shapes, result, {"batch": 4}) == flops
