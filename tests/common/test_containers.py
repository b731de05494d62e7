"""Arguments and results as people write them: the emitted file takes and returns the same types."""

from __future__ import annotations

import collections
import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fusewright.common.call_arguments import Inputs, call, read, signature_of, split
from fusewright.common.containers import flatten, kind_of, rebuild
from fusewright.errors import CaptureFailed
from fusewright.judge.evidence.pytree import mapped
from fusewright.judge.isolation import tensor_transport
from tests.support.emitting import Emitted, emit_text

HEAD = """
import collections
import types
from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

import torch
import torch.nn as nn

Pair = namedtuple("Pair", "first second")

class Moments(NamedTuple):
    mean: torch.Tensor
    size: int

@dataclass
class Out:
    hidden: torch.Tensor
    scale: float = 1.0
    cache: Optional[tuple] = None

@dataclass
class Ordered(OrderedDict):
    logits: torch.Tensor = None
    loss: torch.Tensor = None

    def __post_init__(self):
        for name in ("logits", "loss"):
            if getattr(self, name) is not None:
                self[name] = getattr(self, name)

class Named(dict):
    def __getattr__(self, name):
        return self[name]

class Model(nn.Module):
    @dataclass
    class Inner:
        hidden: torch.Tensor

"""
X = "    return [torch.randn(4, 6)]"

# What forward returns -> whether kernels compute it at any batch size.
RESULTS = (
    "torch.max(y, dim=1)",
    "y.sort(dim=1)",
    "torch.topk(y, 2)",
    "Pair(y, y + 1)",
    "Moments(y.mean(1), 6)",
    "Out(y)",
    "Out(y, 0.5, (y + 1, y + 2))",
    "Ordered(logits=y)",
    "Ordered(y, y.mean())",
    "Named(a=y, b=None)",
    "Model.Inner(y)",
    "{'a': y, 'b': [y + 1, {2: y + 2}]}",
    "OrderedDict([('z', y), ('a', y + 1)])",
    "defaultdict(list, {'a': y})",
    "deque([y, y + 1], maxlen=3)",
    "types.SimpleNamespace(a=y)",
    "((y, y + 1), (y + 2, y + 3))",
    "[y, None, True, 3, -0.0, float('inf'), 1 - 2j, 'text', torch.float16]",
    "(y, y.shape)",
    "(y, y.shape[0], 2 * y.shape[0])",
    "(y, (), [], {})",
    "(y,)",
)

# Parameters of forward, what it computes, what get_inputs returns, and what else has the same
# tensors but is not built alike, so that it must run the original.
ARGUMENTS = (
    ("batch", "batch['x'] * 2 + batch['y']", "[{'x': a, 'y': b}]", "[{'y': b, 'x': a}]"),
    ("pair", "pair[0] + pair[1] * 2", "[(a, b)]", "[[a, b]]"),
    ("many", "many[0] + many[1] * 2", "[[a, b]]", "[[a, b, a]]"),
    ("p", "p.first * 2 + p.second", "[Pair(a, b)]", "[types.SimpleNamespace(first=a, second=b)]"),
    ("o", "o.hidden * o.scale", "[Out(a, 2.0)]", "[Out(a, 3.0)]"),
    ("o", "o.logits * 2 + o['loss']", "[Ordered(a, b)]", "[Named(logits=a, loss=b)]"),
    ("d", "d['x'] * 2", "[OrderedDict(x=a)]", "[{'x': a}]"),
    ("d", "d['x'] * 2", "[defaultdict(list, {'x': a})]", "[defaultdict(int, {'x': a})]"),
    ("d", "d[1] * 2", "[{1: a}]", "[{True: a}]"),
    ("kv", "kv[1][0] * kv[0][1]", "[((a, b), (b, a))]", "[((a, b), [b, a])]"),
    ("x, mask=None", "x * 2 if mask is None else x * mask", "[a, None]", "[a, b]"),
    ("x, *more", "x + more[0] * more[1]", "[a, b, a]", "[a, b, a, a]"),
    ("x, *, s, shift=0.0", "x * s + shift", "[[a], {'s': 2.0}]", "[[a], {'s': 3.0}]"),
    ("x, *, other", "x * 2 + other", "{'x': a, 'other': b}", "{'x': a, 'other': b[:, :1]}"),
    ("x, y, z=1.0", "x * y + z", "{'y': b, 'x': a}", "{'y': b, 'x': a, 'z': 2.0}"),
    ("x, **more", "x + more['y'] * 2", "[[a], {'y': b}]", "[[a], {'y': b, 'z': b}]"),
    ("x, flags", "x * flags['two'][0]", "[a, {'two': [2]}]", "[a, {'two': [2.0]}]"),
)  # fmt: skip


def emitted(forward: str, inputs: str, folder: Path, parameters: str = "x") -> Emitted:
    text = f"{HEAD}    def forward(self, {parameters}):\n{forward}\n\ndef get_inputs():\n{inputs}\n"
    return emit_text(text, folder)


def same(ours: Any, theirs: Any) -> None:
    """Types, keys, attributes and values are the same, all the way down."""
    assert type(ours) is type(theirs)
    kind = kind_of(theirs)
    if isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(ours, theirs, equal_nan=True)
    elif kind is None:
        assert repr(ours) == repr(theirs)
    else:
        mine, other = kind.parts(ours), kind.parts(theirs)
        assert [k for k, _ in mine] == [k for k, _ in other]
        assert kind.extra(ours) == kind.extra(theirs)
        for (_, a), (_, b) in zip(mine, other, strict=True):
            same(a, b)
        if isinstance(theirs, dict):
            assert [*ours] == [*theirs]


def runs_kernels(model: Any, inputs: Any) -> bool:
    """Whether the guard holds: the original is not asked."""
    original, asked = type(model).reference_forward, []

    def watched(*given: Any, **named: Any) -> Any:
        asked.append(given)
        return original(*given, **named)

    type(model).reference_forward = watched
    call(model, inputs)
    type(model).reference_forward = original
    return not asked


@pytest.mark.slow
@pytest.mark.parametrize("result", RESULTS)
def test_results(result: str, tmp_path: Path) -> None:
    body = f"        y = torch.relu(x * 2) + 1\n        return {result}"
    file = emitted(body, X, tmp_path).load()
    model = file.ModelNew()
    for rows in (4, 7):
        x = torch.randn(rows, 6)
        same(model(x), model.reference_forward(x))
    assert runs_kernels(model, [torch.randn(4, 6)])


@pytest.mark.slow
@pytest.mark.parametrize(("parameters", "value", "inputs", "others"), ARGUMENTS)
def test_arguments(parameters: str, value: str, inputs: str, others: str, tmp_path: Path) -> None:
    draw = "    a, b = torch.randn(4, 6), torch.randn(4, 6)\n    return "
    file = emitted(
        f"        return torch.relu({value})", draw + inputs, tmp_path, parameters
    ).load()
    model = file.ModelNew()
    signature = signature_of(file.ModelNew.forward, bound=False)
    for text, kernels in ((inputs, True), (others, False)):
        file.given = lambda t=text: eval(
            t, vars(file) | dict(zip("ab", torch.randn(2, 4, 6), strict=True))
        )
        given = read(file.given(), signature)
        assert given is not None
        same(call(model, given), call(model.reference_forward, given))
        assert runs_kernels(model, given) is kernels, text


REFUSED = (
    ("x", "        class Own(tuple): pass\n        return Own((x + 1,))", "no name for that class"),
    ("x", "        return defaultdict(lambda: 0, {'a': x + 1})", "no name for that class"),
    ("x", "        return x + 1, object()", r"a value of type object at \[1\]"),
    ("x", "        return x + 1, {3.5: {frozenset(): x}}", "a frozenset among its keys"),
    ("x", "        return x * 2, x.sum().item()", "depends on the values of tensors|item"),
    ("d", "        d['y'] = d['x'] * 2\n        return d['y']", "changes the dict that it is"),
    ("d", "        d = d['x'].d\n        return d * 2", "has no attribute 'd'"),
)  # fmt: skip


@pytest.mark.parametrize(("parameter", "body", "words"), REFUSED)
def test_refused(parameter: str, body: str, words: str, tmp_path: Path) -> None:
    inputs = {"x": X, "d": "    return [{'x': torch.randn(4, 6)}]"}[parameter]
    with pytest.raises(CaptureFailed, match=words):
        emitted(body, inputs, tmp_path, parameter)


# ---- how a returned value becomes a call ---------------------------------------------------------


def two(sizes: Any, options: Any) -> None: ...
def named(width: Any = 3, depth: Any = 4) -> None: ...
def stars(*these: Any, **those: Any) -> None: ...
def only(x: Any, *, y: Any) -> None: ...
def none() -> None: ...


READINGS = (
    (two, [1, 2], ((1, 2), {})),
    (two, [[1, 2], {"a": 3}], (([1, 2], {"a": 3}), {})),  # named arguments would not fit
    (two, [[1], {"options": 3}], ((1, 3), {})),
    (two, ([1, 2], {}), (([1, 2], {}), {})),  # a tuple is never both
    (two, [(1, 2), {}], (((1, 2), {}), {})),
    (two, [[1, 2], {}], ((1, 2), {})),  # both fit: the convention
    (named, [[], {"depth": 5}], ((3, 5), {})),
    (named, [[], {}], ((), {})),
    (named, {"depth": 5}, ((3, 5), {})),
    (named, [], ((), {})),
    (stars, [[1], {"a": 2}], ((1,), {"a": 2})),
    (only, [[1], {"y": 2}], ((1,), {"y": 2})),
    (only, {"y": 2, "x": 1}, ((1,), {"y": 2})),
    (none, [[], {}], ((), {})),
    (None, [[1], {"y": 2}], (([1], {"y": 2}), {})),
    (named, 3, None),
    (named, {3: 4}, None),
)


@pytest.mark.parametrize(("function", "returned", "wanted"), READINGS)
def test_readings(function: Any, returned: Any, wanted: Any) -> None:
    found = read(returned, signature_of(function, bound=True) if function else None)
    assert (found if found is None else split(found)) == wanted


def test_names_that_do_not_fit() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'height'"):
        read({"height": 3}, signature_of(named, bound=True))


@pytest.mark.compiler
def test_constructor_without_get_init_inputs(tmp_path: Path) -> None:
    text = (
        f"{HEAD}    def forward(self, x):\n        return torch.relu(x)\ndef get_inputs():\n{X}\n"
    )
    assert "def get_init_inputs" not in text
    assert runs_kernels(emit_text(text, tmp_path).load().ModelNew(), [torch.randn(4, 6)])


# ---- trees and the judge's shipping --------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("result", RESULTS)
def test_trees_and_shipping(result: str, tmp_path: Path) -> None:
    """A value is taken apart, put together, mapped, shipped and described as what it is."""
    file = emitted("        return x + 1", X, tmp_path).load()
    value = eval(result, vars(file) | {"y": torch.randn(4, 6), "Model": file.ModelNew})
    tree, tensors = flatten(value)
    same(rebuild(tree, tensors), value)
    inputs = Inputs([value, 3], ["last"])
    again = mapped(inputs, torch.Tensor.clone)
    same(again[0], value)
    assert again.names == ("last",)
    shipment = tensor_transport.pack(inputs, 0)
    where = {"tree": shipment.tree, "tensors": shipment.tensors}
    shipped = tensor_transport.values_in(
        where, shipment.blocks, tensor_transport.Home(file, "ModelNew")
    )
    same(shipped[0], value)
    assert shipped.names == ("last",)
    assert tensor_transport.describe(shipped[0], []) == tensor_transport.describe(value, [])


def test_descriptions_tell_types_apart() -> None:
    t = torch.zeros(2)
    values = [
        (t, t), [t, t], {"a": t, "b": t}, {"b": t, "a": t}, collections.OrderedDict(a=t, b=t),
        collections.namedtuple("max", "values indices")(t, t), torch.return_types.max((t, t)),
        collections.namedtuple("max", "values places")(t, t), (t, t, None), (t, t, 1), (t, t, True),
        (t, t, 1.0), (t, 1.0, t), torch.Size([2]), (2,),
    ]  # fmt: skip
    assert len({tensor_transport.describe(value, []) for value in values}) == len(values)


def test_numbers_are_judged_as_tensors() -> None:
    tensors = tensor_transport.results_of((torch.zeros(2), 1.5, {"a": 2 + 1j}, 3))
    assert [t.dtype for t in tensors] == [torch.float32, torch.float32, torch.complex64]
    assert [t.dtype for t in tensor_transport.results_of((1.5,), wide=True)] == [torch.float64]


def test_what_nobody_can_ship_is_made_by_the_receiver() -> None:
    """Generators, functions and locks come from the file's own get_init_inputs."""
    import threading
    from types import ModuleType

    file = ModuleType("candidate")
    lock = threading.Lock()
    exec("class Model:\n    def __init__(self, width, tools): ...", vars(file))
    file.get_init_inputs = lambda: [5, {"lock": lock, "act": torch.relu}]  # type: ignore[attr-defined]
    given = Inputs([7, {"lock": threading.Lock(), "act": lambda x: x}])
    shipment = tensor_transport.pack(given, 0, constructor=True)
    where = {"tree": shipment.tree, "tensors": shipment.tensors}
    found = tensor_transport.values_in(where, shipment.blocks, tensor_transport.Home(file))
    assert found == [7, {"lock": lock, "act": torch.relu}]
    del file.get_init_inputs  # type: ignore[attr-defined]
    with pytest.raises(LookupError, match="define it in this file, too"):
        tensor_transport.values_in(where, shipment.blocks, tensor_transport.Home(file))


class _Uncopyable(nn.Module):
    def __init__(self) -> None:
        import threading

        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.again = [self.linear]
        self.lock, self.generator = threading.Lock(), torch.Generator()


def test_models_that_hold_what_nobody_can_copy() -> None:
    from fusewright.judge.evidence.model_states import copied

    model: Any = _Uncopyable()
    with pytest.raises(TypeError):
        copy.deepcopy(model)
    other: Any = copied(model, {})
    assert other.linear is not model.linear
    assert other.again[0] is other.linear
    assert other.lock is model.lock
    assert other.generator is not model.generator
