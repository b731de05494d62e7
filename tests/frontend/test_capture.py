"""nn.Module -> Graph: what it assumes, what it refuses and how, what eager would share."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._decomp import decompositions

from fusewright.common.problem_file import load_problem
from fusewright.errors import CaptureFailed
from fusewright.frontend.capture import Captured, capture, state_of
from fusewright.frontend.export import RECURRENT_LAYERS
from fusewright.ir.graph import BatchSize, base, toposort
from fusewright.ir.interpreter import interpret
from tests.support.folders import BAD_PROBLEMS as BAD


class Plain(nn.Module):
    """A module whose forward is a function, with attributes to read."""

    def __init__(self, function: Callable[..., object], **attributes: object) -> None:
        super().__init__()
        self.function = function
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> object:
        return self.function(self, x) if y is None else self.function(self, x, y)


def captured(function: Callable[..., object], *inputs: object, **attributes: object) -> Captured:
    return capture(Plain(function, **attributes), inputs or (torch.randn(4, 6),))


# ---- the batch -----------------------------------------------------------------------------------


def test_the_leading_size_stays_free() -> None:
    graph = captured(lambda m, x: x.reshape(x.shape[0] * 2, 3) + x.shape[0]).graph
    assert graph.example == {"batch": 4}
    assert graph.outputs[0].shape == (BatchSize(2), 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: x.reshape(2, 2, 6) + 1,
        lambda m, x: x @ x.t(),
        lambda m, x: x.t() @ x,
        lambda m, x: x[:, 0] + x[:, :1],
        lambda m, x: torch.cat([x, x[:1]]) * 2,
        lambda m, x: x if x.shape[0] == 4 else -x,
    ],
)
def test_a_batch_that_cannot_be_free_is_fixed(function: Callable[..., object]) -> None:
    graph = captured(function).graph
    assert graph.free == ()
    assert graph.inputs[0].shape == (4, 6)


def test_a_batch_of_one_is_fixed() -> None:
    assert captured(lambda m, x: x + 1, torch.randn(1, 6)).graph.free == ()


@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
def test_a_size_that_export_loses(loss: Callable[..., torch.Tensor]) -> None:
    """With a free batch, PyTorch 2.13 gives these no dimension; all sizes are fixed then."""
    inputs = torch.randn(6, 30), torch.randint(0, 30, (6,))
    found = captured(lambda _, x, y: loss(x, y, reduction="none"), *inputs)
    assert found.graph.free == ()
    assert found.graph.outputs[0].shape == (6,)


# ---- settings ------------------------------------------------------------------------------------


def test_plain_attributes_that_are_read_are_settings() -> None:
    made = captured(
        lambda m, x: x * m.factor + m.table[0] if m.flag else x,
        *(torch.randn(4, 6),),
        factor=2.5, flag=True, table=[1.0, 2.0], never=3,
    )  # fmt: skip
    plain = [s for s in made.settings if s.name != "function"]
    assert {(s.path, s.name): s.value for s in plain} == {
        ("", "factor"): 2.5,
        ("", "flag"): True,
        ("", "table"): [1.0, 2.0],
    }


def counts(module: Plain, x: torch.Tensor) -> torch.Tensor:
    module.count += 1  # type: ignore[operator]
    return x * module.count


def remembers(module: Plain, x: torch.Tensor) -> torch.Tensor:
    module.seen.append(x.shape)  # type: ignore[union-attr,operator]
    return x + 1


def caches(module: Plain, x: torch.Tensor) -> torch.Tensor:
    module.cache = 3
    return x + 1


@pytest.mark.parametrize(
    ("function", "attributes", "name"),
    [
        (counts, {"count": 0}, "Plain.count"),
        (remembers, {"seen": []}, "Plain.seen"),
        (caches, {}, "Plain.cache"),
    ],
)
def test_a_forward_that_changes_attributes_is_refused(
    function: Callable[..., object], attributes: dict[str, object], name: str
) -> None:
    module = Plain(function, **copy.deepcopy(attributes))
    before = sorted(vars(module))
    with pytest.raises(CaptureFailed, match=f"forward changes {name}: "):
        capture(module, [torch.randn(4, 6)])
    assert sorted(vars(module)) == before
    assert repr({key: getattr(module, key) for key in attributes}) == repr(attributes)


# ---- errors --------------------------------------------------------------------------------------


def test_what_cannot_be_exported_is_one_line_that_names_the_line(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = BAD / "branches_on_data.py"
    problem = load_problem(path)
    line = next(k for k, text in enumerate(path.read_text().splitlines(), 1) if "# here" in text)
    with caplog.at_level(logging.WARNING), pytest.raises(CaptureFailed) as caught:
        capture(problem.make_model(), problem.make_inputs())
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


def test_outputs_that_cannot_be_made_again_are_refused() -> None:
    with pytest.raises(CaptureFailed, match=r"returns a value of type object at \[1\]"):
        captured(lambda m, x: (x + 1, object()))


# ---- memory --------------------------------------------------------------------------------------


def test_equal_outputs_that_eager_keeps_apart_stay_apart() -> None:
    graph = captured(lambda m, x: (torch.relu(x), torch.relu(x))).graph
    first, second = graph.outputs
    assert first is not second
    assert second.op == "copy"


def test_views_and_repeated_outputs_share_as_in_eager() -> None:
    def forward(module: Plain, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(x)
        return y, y.view(-1), y, x.t()

    a, b, c, d = captured(forward).graph.outputs
    assert a is c
    assert base(b) is a
    assert base(d).op == "input"


def test_an_input_that_changes_is_returned_itself() -> None:
    def forward(module: Plain, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x.add_(1.0)
        return x.view(-1), x * 2

    made = captured(forward)
    shown, computed = made.graph.outputs
    assert base(shown) is made.graph.inputs[0]
    x = torch.randn(4, 6)
    results = interpret(made.graph, [x.clone()], {})
    assert torch.equal(results[0], (x + 1).view(-1))
    assert torch.equal(results[1], (x + 1) * 2)
    assert torch.equal(results[2], x + 1)
    assert computed.row.kind == "pointwise"


def test_a_copy_into_the_input_is_not_the_input() -> None:
    def forward(module: Plain, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        x.copy_(y)
        return y

    graph = captured(forward).graph
    assert base(graph.outputs[0]).op == "add"


def test_dropout_of_nothing_is_its_argument() -> None:
    graph = captured(lambda m, x: nn.functional.dropout(x, 0.0, True)).graph
    assert graph.outputs[0] is graph.inputs[0]


def test_random_calls_keep_their_order() -> None:
    def forward(module: Plain, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.5, True) + torch.rand_like(x)

    names = [n.called for n in captured(forward).graph.effects]
    assert names == ["aten.native_dropout", "aten.rand_like"]


def test_random_numbers_that_nobody_uses_are_refused() -> None:
    def forward(module: Plain, x: torch.Tensor) -> torch.Tensor:
        torch.rand(3)
        return x + torch.rand_like(x)

    with pytest.raises(CaptureFailed, match="draws random numbers and does not use them"):
        captured(forward)


def test_a_compiled_function_runs_as_written() -> None:
    def backend(*_: object) -> Callable[..., object]:
        raise AssertionError("nobody compiles here")

    double = torch.compile(lambda x: x * 2, backend=backend)
    assert [o.op for o in captured(lambda m, x: double(x)).graph.outputs] == ["mul"]


def test_a_batch_norm_that_weighs_by_its_counter_is_named() -> None:
    with pytest.raises(CaptureFailed, match="Give it a momentum"):
        capture(nn.BatchNorm1d(6, momentum=None), [torch.randn(4, 6)])


def test_attention_that_drops_nothing_may_go_unused() -> None:
    def forward(module: Plain, x: torch.Tensor) -> torch.Tensor:
        nn.functional.scaled_dot_product_attention(x, x, x)
        return x + torch.rand_like(x)

    assert len(captured(forward).graph.effects) == 1


# ---- recurrent layers ----------------------------------------------------------------------------

RECURRENT = (
    nn.LSTM(8, 6, 2, bidirectional=True, batch_first=True),
    nn.LSTM(8, 6, proj_size=3),
    nn.GRU(8, 6, 2, bidirectional=True),
    nn.RNN(8, 6, nonlinearity="relu", bias=False, batch_first=True),
)


def walked(*_: object, **__: object) -> None:
    raise AssertionError("each step is walked")


@pytest.mark.slow
@pytest.mark.parametrize("layer", RECURRENT, ids=str)
@torch.no_grad()
def test_no_step_of_a_recurrent_layer_is_walked(
    layer: nn.RNNBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in RECURRENT_LAYERS:
        monkeypatch.setattr(decompositions, name, walked)
    module, x = Plain(lambda m, x: m.layer(x)[0] * 2, layer=layer), torch.randn(4, 70, 8)
    made = capture(module, [x])
    assert all(getattr(decompositions, name) is walked for name in RECURRENT_LAYERS)
    (result,) = made.graph.outputs
    assert result.order == ((1, 0, 2) if layer.batch_first else ())
    found = interpret(made.graph, [x], state_of(made, module), sizes={"batch": len(x)})
    torch.testing.assert_close(found[0], module(x))


# ---- state ---------------------------------------------------------------------------------------


def test_tensors_kept_as_attributes_are_read_from_the_module() -> None:
    module = Plain(lambda m, x: x * m.table + torch.tensor([1.0] * 6), table=torch.randn(6))
    made = capture(module, [torch.randn(4, 6)])
    state = state_of(made, module)
    assert state["table"] is module.table
    assert len(made.constants) == 1
    assert "table" not in made.constants


class Twice(nn.Module):
    """A norm that is called twice in one call."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.norm(torch.tanh(self.norm(x)))
        return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_statistics_have_the_type_of_their_buffers(dtype: torch.dtype) -> None:
    graph = capture(Twice(dtype), [torch.randn(5, 6, dtype=dtype)]).graph
    assert len(graph.updates) == 3
    for update in graph.updates:
        read = [n for n in toposort([update.value]) if n.shape == (6,)]
        assert {n.dtype for n in read} <= {update.target.dtype}


# What a model changes in place lies as before; the same call elsewhere lays its result otherwise.
IN_PLACE = {
    "masked_fill_": lambda v, x: v.masked_fill_(x > 0, 0.5),
    "cumsum_": lambda v, _: v.cumsum_(1),
    "tril_": lambda v, _: v.tril_(),
    "two": lambda v, x: v.masked_fill_(x > 0, 0.5).cumsum_(0),
    "what follows": lambda v, x: v.masked_fill_(x > 0, 0.5) * 2,
    "what follows in place": lambda v, x: (v.masked_fill_(x > 0, 0.5) * 2).tril_(),
    "not in place": lambda v, x: v.masked_fill(x > 0, 0.5),
    "add_": lambda v, x: v.add_(x.mT.contiguous().mT),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_PLACE)
def test_what_changes_in_place_lies_as_before(name: str) -> None:
    class Changed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return IN_PLACE[name](x * 3, x)

    x = torch.randn(13, 5).T
    (output,) = capture(Changed(), [x]).graph.outputs
    strides = Changed()(x).stride()
    assert output.order == ((1, 0) if strides == (1, 5) else ())
    assert output.op != "library"  # PyTorch's call lays its result otherwise


# With a free size, PyTorch's fake tensors lay some of these otherwise than with its number.
FREE = {
    "masked_fill_": lambda x: torch.zeros_like(x).masked_fill_(x < -9, 0.5),
    "lerp with a number": lambda x: torch.lerp(
        torch.zeros_like(x).masked_fill_(x < 0, 2).transpose(1, -1) * 0.5, x.mean(), 0.25
    ),
    "lerp": lambda x: torch.lerp(x.transpose(1, -1), x.transpose(1, -1) * 2, 0.25),
    "behind a mask": lambda x: torch.lerp(masked(x.transpose(1, -1) * 0.5), x.mean(), 0.25),
    "where": lambda x: torch.where(x > 0, x, x.mean()),
    "clamp": lambda x: x.clamp(x.mean(), x.amax()),
    "addcmul": lambda x: torch.addcmul(x, x[:, :1], x.mean()),
}


def masked(v: torch.Tensor) -> torch.Tensor:
    chosen = v[..., 0] > 0
    v[chosen] = v[chosen] * 2.0
    return v


@pytest.mark.slow
@pytest.mark.parametrize("name", FREE)
def test_free_sizes_leave_results_as_numbers_lay_them(name: str) -> None:
    class Free(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return FREE[name](x)

    x = torch.randn(4, 17, 11, 3).permute(2, 0, 3, 1)
    (output,) = capture(Free(), [x]).graph.outputs
    strides = Free()(x).stride()
    assert list(output.order or range(4)) == sorted(range(4), key=lambda d: -strides[d])


# Python calls the method of the right-hand side first where that is a parameter.
COMPARED = {
    ">": lambda x, p: x > p,
    "<=": lambda x, p: x <= p,
    "==": lambda x, p: x == p,
    "what follows": lambda x, p: torch.where(x > p, x, 0.5),
    "the parameter first": lambda x, p: p < x,
    "a function": lambda x, p: torch.gt(x, p),
    "a view of the parameter": lambda x, p: x > p[:, :1],
}


@pytest.mark.parametrize("name", [*COMPARED, "a method"])
def test_a_comparison_with_a_parameter_lies_as_eagers(name: str) -> None:
    class Compared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p = nn.Parameter(torch.randn(13, 1, 11, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if name == "a method":
                return x.gt(self.p)
            return COMPARED[name](x, self.p)

    x, model = torch.randn(4, 2, 13, 11).permute(2, 0, 3, 1), Compared()
    (output,) = capture(model, [x]).graph.outputs
    strides = model(x).stride()
    order = sorted(range(4), key=lambda d: -strides[d])
    assert list(output.order or range(4)) == order
