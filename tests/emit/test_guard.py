"""The guard: in every situation the emitted model does what eager does; kernels run where they may.

One model that reads a little of everything is emitted once. A case changes one thing, in the same
way on the emitted model and on the user's own class, runs both, and compares values, types, layout
and gradients.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import parametrizations, prune
from torch.overrides import TorchFunctionMode
from torch.torch_version import TorchVersion

from fusewright.common.atomic_write import STANDARD_OUTPUT
from fusewright.compiler.pipeline import emit_only
from fusewright.emit.model_guard import MOST_IN_FORWARD
from fusewright.errors import CaptureFailed
from tests.support.emitting import FEW_AND_MANY, Emitted, built_few_and_many, emit_text

SOURCE = """
    import torch
    import torch.nn as nn

    scale = 1.5


    def shifted(x):
        return x * scale


    class Gate(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(width))

        def squash(self, x):
            return torch.tanh(x)

        def forward(self, x):
            return self.squash(x) * self.weight


    class Model(nn.Module):
        factor = 3.0

        def __init__(self, width, slope):
            super().__init__()
            self.linear = nn.Linear(width, width)
            self.gates = nn.Sequential(Gate(width), Gate(width))
            self.norm = nn.BatchNorm1d(width)
            self.slope = slope
            self.sizes = [1, 2]
            self._bias = 0.25
            self.register_buffer("offset", torch.randn(width))
            self.kept = torch.randn(width)
            self.eval()

        def forward(self, x, y, mode="plain", *, twice=False):
            x = self.gates(self.linear(x)) + self.slope * y + self._bias
            x = self.norm(x) + self.offset * self.factor + self.kept * self.sizes[1]
            if twice:
                x = x * 2
            return shifted(x) if mode == "plain" else x


    def get_inputs():
        return [torch.randn(6, 16), torch.randn(6, 16)]


    def get_init_inputs():
        return [16, 0.5]
"""


# The same with many modules, of which a table says what they have to be like.
MANY = SOURCE.replace(
    "self.slope = slope",
    f"self.slope, self.rest = slope, nn.ModuleList([nn.ReLU() for _ in range({MOST_IN_FORWARD})])",
)


@pytest.fixture(scope="module", params=FEW_AND_MANY)
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Emitted]:
    yield from built_few_and_many(SOURCE, MANY, request, tmp_path_factory)


@pytest.fixture(params=["new", "seen"])
def emitted(request: pytest.FixtureRequest, built: Emitted) -> Any:
    """A fresh module: some cases change its globals. That it ran before changes no answer."""
    module = built.load()
    if request.param == "seen":
        model = module.ModelNew(*module.get_init_inputs())
        with torch.no_grad():
            model(*module.get_inputs())
        model.requires_grad_(False)(*module.get_inputs())
        assert [{*cache} for cache in module._FUSEWRIGHT_GUARD_CACHE] == [{6}, {6}]
    return module


class Pair:
    """The emitted model and eager's: the same class with `forward` as the user wrote it."""

    def __init__(self, emitted: Any, *, train: bool = False) -> None:
        self.emitted = emitted
        self.ours = emitted.ModelNew(*emitted.get_init_inputs()).train(train)
        self.eager = copy.deepcopy(self.ours)
        self.eager.forward = self.eager.reference_forward
        self.inputs = emitted.get_inputs()
        self.calls = 0

    def both(self, change: Callable[[Any], object]) -> None:
        change(self.ours)
        change(self.eager)

    def check(self, *inputs: Any, kernels: bool, **named: Any) -> None:
        """Run both; `kernels` says whether the kernels should have run."""
        given = inputs or tuple(self.inputs)
        wanted = outcome(self.eager, copies(given), named)
        with counted(self.emitted, self):
            found = outcome(self.ours, copies(given), named)
        same(found, wanted)
        assert (self.calls > 0) is kernels
        state = zip(self.ours.state_dict().items(), self.eager.state_dict().items(), strict=True)
        for (name, mine), (other, theirs) in state:
            assert name == other
            torch.testing.assert_close(mine, theirs)


def copies(values: Sequence[Any]) -> list[Any]:
    """The arguments as they are: what a case prepares must not be lost by copying."""
    return list(values)


@contextmanager
def counted(emitted: Any, pair: Pair) -> Iterator[None]:
    """Count the calls of kernels within the block."""
    emitted._FUSEWRIGHT_FUNCTIONS or emitted._fusewright_build()
    table = dict(emitted._FUSEWRIGHT_FUNCTIONS)
    pair.calls = 0

    def counting(function: Any) -> Callable[..., None]:
        def call(*arguments: int) -> None:
            pair.calls += 1
            function(*arguments)

        return call

    emitted._FUSEWRIGHT_FUNCTIONS.update({name: counting(f) for name, f in table.items()})
    yield
    emitted._FUSEWRIGHT_FUNCTIONS.update(table)


def outcome(model: Any, inputs: Sequence[Any], named: dict[str, Any]) -> Any:
    """The result, or the type of what was raised."""
    try:
        return model(*inputs, **named)
    except (RuntimeError, TypeError, AttributeError, NotImplementedError) as error:
        return type(error)


def same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, type):
        assert found is wanted
        return
    assert type(found) is type(wanted)
    assert (found.dtype, found.device, found.shape) == (wanted.dtype, wanted.device, wanted.shape)
    assert found.requires_grad == wanted.requires_grad
    assert (found.grad_fn is None) == (wanted.grad_fn is None)
    assert found.is_inference() == wanted.is_inference()
    wide = [d for d, size in enumerate(wanted.shape) if size > 1]
    assert [found.stride(d) for d in wide] == [wanted.stride(d) for d in wide]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


# ---- inputs --------------------------------------------------------------------------------------


def uneven(x: torch.Tensor) -> torch.Tensor:
    """The same values at an odd offset in memory."""
    room = torch.empty(x.numel() + 3)[3:].view(x.shape)
    return room.copy_(x)


INPUTS: dict[str, tuple[bool, Callable[[torch.Tensor, torch.Tensor], Sequence[Any]]]] = {
    "as captured": (True, lambda x, y: (x, y)),
    "another batch": (True, lambda x, y: (torch.randn(11, 16), torch.randn(11, 16))),
    "a large batch": (True, lambda x, y: (torch.randn(70000, 16), torch.randn(70000, 16))),
    "batch 1": (True, lambda x, y: (x[:1], y[:1])),
    "batch 1, in strides of its own": (True, lambda x, y: (x[::2][:1], y[::2][:1])),
    "empty batch": (False, lambda x, y: (x[:0], y[:0])),
    "batches that differ": (False, lambda x, y: (x[:1], y)),
    "other width": (False, lambda x, y: (torch.randn(6, 8), torch.randn(6, 8))),
    "one dimension": (False, lambda x, y: (x[0], y)),
    "three dimensions": (False, lambda x, y: (x[None], y[None])),
    "no dimension": (False, lambda x, y: (x, y.sum())),
    "float64": (False, lambda x, y: (x.double(), y.double())),
    "float64 beside float32": (False, lambda x, y: (x, y.double())),
    "integers": (False, lambda x, y: (x, y.long())),
    "meta": (False, lambda x, y: (x, y.to("meta"))),
    "transposed": (False, lambda x, y: (x, torch.randn(16, 6).t())),
    "every other row": (False, lambda x, y: (x, torch.randn(12, 16)[::2])),
    "expanded": (False, lambda x, y: (x, y[:1].expand(6, 16))),
    "odd storage offset": (True, lambda x, y: (uneven(x), uneven(y))),
    "the same tensor twice": (True, lambda x, y: (x, x)),
    "overlapping views": (True, lambda x, y: (x, x.view(-1)[:96].view(6, 16))),
    "a parameter": (True, lambda x, y: (nn.Parameter(x), y)),
    "needs a gradient": (True, lambda x, y: (x, y.clone().requires_grad_())),
    "a subclass": (False, lambda x, y: (x, y.as_subclass(Mine))),
    "sparse": (False, lambda x, y: (x, y.to_sparse())),
    "sparse rows": (False, lambda x, y: (x, y.to_sparse_csr())),
    "mkldnn": (False, lambda x, y: (x, y.to_mkldnn())),
    "nested": (False, lambda x, y: (torch.nested.nested_tensor([x, y]), y)),
    "nested, as many elements": (False, lambda x, y: (halves(x), y)),
    "the second nested": (False, lambda x, y: (x, halves(y))),
    "negative bit": (False, lambda x, y: (x, torch._neg_view(y))),
    "conjugate bit": (False, lambda x, y: (x, torch.complex(y, y).conj())),
    "not a tensor": (False, lambda x, y: (x, 2.0)),
    "nothing": (False, lambda x, y: (x, None)),
    "special values": (True, lambda x, y: (x, y / torch.zeros(16).copysign(y))),
}


def halves(x: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor([x[:3], x[3:]])


class Mine(torch.Tensor):
    """A subclass that does nothing."""


@pytest.mark.compiler
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", INPUTS)
def test_inputs(emitted: Any, case: str) -> None:
    kernels, prepare = INPUTS[case]
    pair = Pair(emitted)
    with torch.no_grad():
        pair.check(*prepare(*pair.inputs), kernels=kernels)


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("named", "kernels"),
    [({}, True), ({"mode": "plain"}, True), ({"mode": "bare"}, False), ({"twice": True}, False)],
)
def test_arguments_with_defaults(emitted: Any, named: dict[str, Any], kernels: bool) -> None:
    with torch.no_grad():
        Pair(emitted).check(kernels=kernels, **named)


# ---- modes of PyTorch ----------------------------------------------------------------------------


class Doubled(TorchFunctionMode):
    """A mode that changes a result."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        return result * 2 if function is torch.tanh else result


MODES: dict[str, tuple[bool, Callable[[], AbstractContextManager[Any]]]] = {
    "no_grad": (True, torch.no_grad),
    "inference_mode": (True, torch.inference_mode),
    "gradients": (False, nullcontext),
    "autocast": (False, lambda: torch.autocast("cpu", torch.bfloat16)),
    "autocast, but off": (True, lambda: torch.autocast("cpu", enabled=False)),
    "a function mode": (False, Doubled),
    "the default device": (True, lambda: torch.device("cpu")),
    "fake tensors": (False, lambda: FakeTensorMode(allow_non_fake_inputs=True)),
    "forward gradients": (False, forward_ad.dual_level),
}


@pytest.mark.compiler
@pytest.mark.parametrize("case", MODES)
def test_modes(emitted: Any, case: str) -> None:
    kernels, mode = MODES[case]
    pair = Pair(emitted)
    with ExitStack() as stack:
        if case != "gradients":
            stack.enter_context(torch.no_grad())
        stack.enter_context(mode())
        if case == "fake tensors":
            found, wanted = (
                outcome(pair.ours, pair.inputs, {}),
                outcome(pair.eager, pair.inputs, {}),
            )
            assert (type(found), found.shape) == (type(wanted), wanted.shape)
        else:
            pair.check(kernels=kernels)


@pytest.mark.compiler
def test_another_default_dtype(emitted: Any) -> None:
    """This model takes no type from the default, so the kernels may run."""
    pair = Pair(emitted)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            pair.check(kernels=True)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.compiler
def test_function_transforms(emitted: Any) -> None:
    pair = Pair(emitted)
    x, y = pair.inputs
    with torch.no_grad():
        for wrap in (
            lambda f: torch.func.vmap(f)(x[:, None], y[:, None]),
            lambda f: torch.func.jvp(f, (x, y), (y, x))[1],
            lambda f: make_fx(lambda a, b: f(a, b))(x, y)(x, y),
        ):
            same(wrap(pair.ours.forward), wrap(pair.eager.forward))
    grad = [torch.func.grad(lambda a, m=m: m(a, y).sum())(x) for m in (pair.ours, pair.eager)]
    torch.testing.assert_close(*grad)


@pytest.mark.compiler
def test_gradients_are_right(emitted: Any) -> None:
    pair = Pair(emitted, train=True)
    for model in (pair.ours, pair.eager):
        model(*pair.inputs).square().sum().backward()
    for mine, theirs in zip(pair.ours.parameters(), pair.eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.compiler
@pytest.mark.filterwarnings("ignore")
def test_traced(emitted: Any) -> None:
    pair = Pair(emitted)
    traced = torch.jit.trace(pair.ours, tuple(pair.inputs), check_trace=False)
    with torch.no_grad():
        same(traced(*pair.inputs), pair.eager(*pair.inputs))


@pytest.mark.compiler
@pytest.mark.filterwarnings("ignore")
def test_exported_and_compiled(emitted: Any) -> None:
    pair = Pair(emitted)
    with torch.no_grad():
        wanted = pair.eager(*pair.inputs)
        program = torch.export.export(pair.ours, tuple(pair.inputs))
        same(program.module()(*pair.inputs), wanted)
        compiled = torch.compile(pair.ours, backend="eager", fullgraph=True)
        same(compiled(*pair.inputs), wanted)


# ---- the module ----------------------------------------------------------------------------------


def replaced_layer(m: Any) -> None:
    torch.manual_seed(1)
    m.linear = nn.Sequential(nn.Linear(16, 16), nn.ReLU())


def quiet_subclass(m: Any) -> None:
    class Loud(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 2

    torch.manual_seed(1)
    m.linear = Loud(16, 16)


def step(m: Any) -> None:
    """One step of an optimiser, with gradients that are the same on both."""
    for p in m.parameters():
        p.grad = torch.ones_like(p)
    torch.optim.SGD(m.parameters(), 0.1).step()


def in_place(m: Any) -> None:
    m.linear.weight.data.copy_(torch.ones(16, 16))
    m.offset.fill_(2.0)
    m.kept.mul_(3.0)


def set_data(m: Any) -> None:
    m.linear.weight.data = torch.full((16, 16), 0.5)


def transposed_data(m: Any) -> None:
    m.linear.weight.data = m.linear.weight.data.t()


def new_parameter(m: Any) -> None:
    m.gates[0].weight = nn.Parameter(torch.full((16,), 0.75))


def one_for_all(m: Any) -> None:
    m.gates[0].weight = nn.Parameter(torch.full((1,), 0.75))


def plain_tensor(m: Any) -> None:
    del m.gates[0].weight
    m.gates[0].weight = torch.full((16,), 0.75)


def one_more_gate(m: Any) -> None:
    m.gates.append(nn.ReLU())


def other_order(m: Any) -> None:
    m.gates[0].weight.data.fill_(0.3)
    first = m.gates._modules.pop("0")
    m.gates._modules["0"] = first


def hook(m: Any) -> None:
    m.linear.register_forward_hook(lambda module, inputs, output: output * 2)


def pre_hook(m: Any) -> None:
    m.gates[1].register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))


def instance_forward(m: Any) -> None:
    m.linear.forward = lambda x: x * 2


def instance_method(m: Any) -> None:
    m.gates[0].squash = torch.relu


def setting(name: str, value: object) -> Callable[[Any], None]:
    def change(m: Any) -> None:
        owner, _, last = name.rpartition(".")
        setattr(m.get_submodule(owner), last, value)

    return change


def grown_list(m: Any) -> None:
    m.sizes[1] = 7


CHANGES: dict[str, tuple[bool, Callable[[Any], None]]] = {
    "nothing": (True, lambda m: None),
    "weights in place": (True, in_place),
    "weights by .data": (True, set_data),
    "transposed weights": (False, transposed_data),
    "an optimiser step": (True, step),
    "a new parameter": (True, new_parameter),
    "a parameter of another shape": (False, one_for_all),
    "a plain tensor for a parameter": (False, plain_tensor),
    "no bias": (False, setting("linear.bias", None)),
    "frozen": (True, lambda m: m.requires_grad_(False)),
    "float64": (False, lambda m: m.double()),
    "half of the module in bfloat16": (False, lambda m: m.linear.bfloat16()),
    "another layer": (False, replaced_layer),
    "a layer's subclass": (False, quiet_subclass),
    "one more layer": (False, one_more_gate),
    "other order of layers": (False, other_order),
    "weight norm": (False, lambda m: parametrizations.weight_norm(m.linear)),
    "pruned": (False, lambda m: prune.l1_unstructured(m.linear, "weight", 0.5)),
    "a hook": (False, hook),
    "a pre-hook": (False, pre_hook),
    "forward of an object": (False, instance_forward),
    "method of an object": (False, instance_method),
    "eps": (False, setting("norm.eps", 0.1)),
    "slope": (False, setting("slope", 2.0)),
    "slope as an integer": (False, setting("slope", 1)),
    "slope as a tensor": (False, setting("slope", torch.full((16,), 0.5))),
    "slope as a parameter": (False, setting("slope", nn.Parameter(torch.full((16,), 0.5)))),
    "a private attribute": (False, setting("_bias", 1.0)),
    "an attribute of the class": (False, setting("factor", -1.0)),
    "a list in place": (False, grown_list),
    "train mode": (False, lambda m: m.train()),
    "only the norm in train mode": (False, lambda m: m.norm.train()),
    "tied buffers": (True, setting("norm.running_mean", torch.zeros(16))),
    "a buffer of the wrong type": (False, setting("offset", torch.zeros(16).double())),
}


@pytest.mark.compiler
@pytest.mark.parametrize("case", CHANGES)
def test_changes_of_the_module(emitted: Any, case: str) -> None:
    kernels, change = CHANGES[case]
    if change is plain_tensor:  # a table finds tensors wherever an attribute may be
        kernels = hasattr(emitted, "_fusewright_modules")
    pair = Pair(emitted)
    pair.both(change)
    with torch.no_grad():
        pair.check(kernels=kernels)


@pytest.mark.compiler
def test_frozen_needs_no_no_grad(emitted: Any) -> None:
    pair = Pair(emitted)
    pair.both(lambda m: m.requires_grad_(False))
    pair.check(kernels=True)
    x, y = pair.inputs
    pair.check(x, y.requires_grad_(), kernels=False)


@pytest.mark.compiler
def test_globals_of_the_file(emitted: Any) -> None:
    pair = Pair(emitted)
    emitted.scale = 4.0
    with torch.no_grad():
        pair.check(kernels=False)


@pytest.mark.compiler
def test_attribute_of_the_class_for_all(emitted: Any) -> None:
    pair = Pair(emitted)
    emitted.ModelNew.factor = 5.0
    with torch.no_grad():
        pair.check(kernels=False)


@pytest.mark.compiler
def test_other_constructor_arguments(emitted: Any) -> None:
    pair = Pair(emitted)
    for arguments in ([16, 0.75], [8, 0.5]):
        pair.ours = emitted.ModelNew(*arguments).eval()
        pair.eager = copy.deepcopy(pair.ours)
        pair.eager.forward = pair.eager.reference_forward
        with torch.no_grad():
            pair.check(*(torch.randn(3, arguments[0]) for _ in range(2)), kernels=False)


@pytest.mark.compiler
def test_subclass_of_the_emitted_class(emitted: Any) -> None:
    class Louder(emitted.ModelNew):
        factor = 7.0

    pair = Pair(emitted)
    pair.ours = Louder(16, 0.5).eval()
    pair.eager = copy.deepcopy(pair.ours)
    pair.eager.forward = pair.eager.reference_forward
    with torch.no_grad():
        pair.check(kernels=False)


@pytest.mark.compiler
def test_global_hooks(emitted: Any) -> None:
    pair = Pair(emitted)
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: output + 1 if isinstance(module, nn.Linear) else None
    )
    try:
        with torch.no_grad():
            pair.check(kernels=False)
    finally:
        handle.remove()


@pytest.mark.compiler
def test_state_dict_both_ways(emitted: Any, tmp_path: Path) -> None:
    pair = Pair(emitted)
    other = emitted.ModelNew(16, 0.5).eval()
    torch.save(other.state_dict(), tmp_path / "state.pt")
    pair.both(lambda m: m.load_state_dict(torch.load(tmp_path / "state.pt"), strict=True))
    pair.both(lambda m: setattr(m, "kept", other.kept))
    with torch.no_grad():
        pair.check(kernels=True)
        other.load_state_dict(pair.eager.state_dict(), strict=True)
        same(other(*pair.inputs), pair.eager(*pair.inputs))


@pytest.mark.compiler
def test_copies_and_several_instances(emitted: Any) -> None:
    pair = Pair(emitted)
    with torch.no_grad():
        pair.check(kernels=True)
        for _ in range(2):
            twin = copy.deepcopy(pair.ours)
            twin.linear.weight.zero_()
            same(twin(*pair.inputs), twin.reference_forward(*pair.inputs))
        pair.check(kernels=True)


@pytest.mark.compiler
@pytest.mark.filterwarnings("ignore")
def test_replicas(emitted: Any) -> None:
    """As nn.DataParallel makes them: parameters are plain attributes there."""
    pair = Pair(emitted)
    replica = pair.ours._replicate_for_data_parallel()
    replica._former_parameters = {}
    for name, child in pair.ours._modules.items():
        replica._modules[name] = child
    with torch.no_grad():
        same(replica(*pair.inputs), pair.eager(*pair.inputs))


@pytest.mark.compiler
def test_functional_call(emitted: Any) -> None:
    pair = Pair(emitted)
    state = {name: torch.full_like(t, 0.1) for name, t in pair.ours.named_parameters()}
    call = torch.func.functional_call
    with torch.no_grad():
        found, wanted = (call(m, state, tuple(pair.inputs)) for m in (pair.ours, pair.eager))
    same(found, wanted)


@pytest.mark.compiler
@pytest.mark.filterwarnings("ignore")
def test_a_nested_parameter(emitted: Any) -> None:
    pair = Pair(emitted)
    nested = torch.nested.nested_tensor([torch.ones(8), torch.ones(8)])
    pair.both(lambda m: setattr(m.gates[0], "weight", nn.Parameter(nested)))
    for model in (pair.ours, pair.eager):
        with torch.no_grad(), pytest.raises(RuntimeError, match="to be nested"):
            model(*pair.inputs)


@pytest.mark.compiler
def test_tensors_like_those_seen_are_asked_once(emitted: Any) -> None:
    """Once they were right, one test of PyTorch's stands for all conditions of every tensor."""
    pair = Pair(emitted)
    with torch.no_grad():
        pair.check(kernels=True)
        asked: list[Any] = []
        emitted._fusewright_tensor_matches = lambda name, *wanted: asked.append(name)
        pair.check(kernels=True)
        assert asked == []
        x, y = pair.inputs
        pair.check(x, y.double(), kernels=False)
        assert asked == ["x"]


@pytest.mark.compiler
@pytest.mark.parametrize("version", ["2.1.2", "2.16.0.dev1"])
def test_other_versions_of_pytorch_ask_every_time(
    built: Emitted, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    emitted = built.load()
    pair = Pair(emitted)
    with torch.no_grad():
        pair.check(kernels=True)
    assert emitted._FUSEWRIGHT_GUARD_CACHE == ({}, {})


@pytest.mark.compiler
def test_what_was_seen_has_a_limit(emitted: Any) -> None:
    pair = Pair(emitted)
    with torch.no_grad():
        for batch in range(2, 72):
            pair.ours(torch.randn(batch, 16), torch.randn(batch, 16))
        pair.check(torch.randn(71, 16), torch.randn(71, 16), kernels=True)
    assert len(emitted._FUSEWRIGHT_GUARD_CACHE[False]) == 64


@pytest.mark.compiler
def test_threads(emitted: Any) -> None:
    pair = Pair(emitted)
    batches = [torch.randn(20 + k, 16) for k in range(4)]
    found: dict[int, torch.Tensor] = {}

    def work(k: int) -> None:
        with torch.no_grad():
            for _ in range(50):
                found[k] = pair.ours(batches[k], batches[k])

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    with torch.no_grad():
        for k, x in enumerate(batches):
            same(found[k], pair.eager(x, x))


def test_an_unguardable_default_is_refused(tmp_path: Path) -> None:
    source = SOURCE.replace("twice=False", "twice=torch.nn.Identity()")
    with pytest.raises(CaptureFailed, match="the default of twice is a Identity"):
        emit_text(source, tmp_path)


def test_one_element_that_only_library_calls_read(tmp_path: Path) -> None:
    """It may lie on the CPU beside a GPU's tensors, as eager takes it."""
    problem = tmp_path / "problem.py"
    problem.write_text(
        """
import torch

class Model(torch.nn.Module):
    def forward(self, x, edge, factor):
        return torch.tanh(x) * factor + torch.searchsorted(torch.sort(x[0])[0], edge)

def get_inputs():
    return [torch.randn(4, 64), torch.tensor(0.5), torch.tensor(2.0)]

def get_init_inputs():
    return []
"""
    )
    _, text = emit_only(problem, out=STANDARD_OUTPUT, target="sm_90a")
    assert 'edge is not one element of torch.float32"' in text
    assert '_fusewright_tensor_matches("factor", factor, (), torch.float32, device)' in text
    assert "not edge.requires_grad" in text


FAST_PATH = """import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.layer(x)


def get_inputs():
    return [torch.randn(3, 5, 8)]


def get_init_inputs():
    return []
"""


@pytest.mark.compiler
@torch.no_grad()
def test_a_fast_path_that_is_off(tmp_path: Path) -> None:
    """PyTorch's layers compute another function without it, as where a mask hides a whole row."""
    loaded = emit_text(FAST_PATH, tmp_path).load()
    model, x = loaded.ModelNew(), torch.randn(3, 5, 8)
    model(x)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with pytest.warns(UserWarning, match="PyTorch's fast paths are off"):
            model(x)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    said = model.fusewright_status()
    assert (said["kernels"], said["reference_forward"]) == (1, 1)
