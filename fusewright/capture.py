"""nn.Module + example inputs -> Captured: the graph, and what it assumes about the module.

The model is exported by `torch.export` on fake tensors (nothing is computed), functionalised, with
composite operators kept whole. Two attempts: first with the leading size of the inputs free, so that
the batch stays a run-time value; if the model needs a fixed batch, with every size fixed.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Iterator

import torch
from torch import nn
from torch.export import Dim
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from fusewright.errors import CaptureFailed
from fusewright.formula import Value
from fusewright.ir import Batch, Graph, Node, Size, Update, check, concrete, node, numel
from fusewright.library import library_call, product_flops
from fusewright.lower import Call, Result, lower, reordered


@dataclass(frozen=True)
class Setting:
    """A plain value that `forward` read from the module: the graph holds only while it is the same."""

    path: str
    name: str
    value: object


@dataclass(frozen=True)
class Argument:
    """One argument of `forward`: a tensor (position among the graph's inputs) or a plain value."""

    index: int
    tensor: int | None
    value: object = None


@dataclass(frozen=True)
class Captured:
    """A model as a graph.

    arguments: one per argument given.  settings: the module's values that forward read.
    spec: how the flat outputs are packed.  constants: small tensors that forward made itself.
    """

    graph: Graph
    arguments: tuple[Argument, ...]
    settings: tuple[Setting, ...]
    spec: pytree.TreeSpec
    constants: Mapping[str, torch.Tensor]
    calls: tuple[EagerCall, ...]


@dataclass(frozen=True)
class EagerCall:
    """One operator as eager runs it: the bytes it reads and writes, its floating-point operations."""

    name: str
    bytes: int
    flops: int


def capture(module: nn.Module, inputs: Sequence[object]) -> Captured:
    """Turn `module` applied to `inputs` into a graph; raises CaptureFailed where it cannot."""
    program, batch = _export(module, inputs)
    builder = _Builder(batch)
    graph = builder.build(program)
    arguments = _arguments(inputs)
    settings = _settings_read(module, inputs)
    out_spec = program.call_spec.out_spec
    assert out_spec is not None
    return Captured(
        check(graph, "capture"), arguments, settings, out_spec, builder.constants, tuple(builder.calls)
    )


def _arguments(inputs: Sequence[object]) -> tuple[Argument, ...]:
    tensors = iter(range(len(inputs)))
    return tuple(
        Argument(i, next(tensors)) if isinstance(v, torch.Tensor) else Argument(i, None, v)
        for i, v in enumerate(inputs)
    )


# ---- export --------------------------------------------------------------------------------------


def _export(module: nn.Module, inputs: Sequence[object]) -> tuple[torch.export.ExportedProgram, int]:
    batch = _batch_size(inputs)
    if batch > 1:
        free = Dim("batch", min=2)
        shapes = tuple(
            {0: free} if isinstance(v, torch.Tensor) and v.dim() and v.shape[0] == batch else None
            for v in inputs
        )
        program = _try_export(module, inputs, shapes)
        if program is not None and _linear_in_batch(program):
            return program, batch
    return _fixed_export(module, inputs), 0


def _batch_size(inputs: Sequence[object]) -> int:
    """The leading size of the first tensor that has one."""
    return next((v.shape[0] for v in inputs if isinstance(v, torch.Tensor) and v.dim()), 0)


def _run_export(
    module: nn.Module, inputs: Sequence[object], shapes: tuple[Any, ...] | None
) -> torch.export.ExportedProgram:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.export.export(module, tuple(inputs), dynamic_shapes=shapes, strict=False)
        return program.run_decompositions({})


def _try_export(
    module: nn.Module, inputs: Sequence[object], shapes: tuple[Any, ...]
) -> torch.export.ExportedProgram | None:
    """None when the model fixes the batch size; torch.export has no narrower error for it."""
    import logging

    level = logging.getLogger("torch").level
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    try:
        return _run_export(module, inputs, shapes)
    except Exception:  # noqa: BLE001 - the fixed export that follows reports what is wrong
        return None
    finally:
        logging.getLogger("torch").setLevel(level)


def _fixed_export(module: nn.Module, inputs: Sequence[object]) -> torch.export.ExportedProgram:
    try:
        return _run_export(module, inputs, None)
    except Exception as error:  # noqa: BLE001 - anything that user code can raise
        where = _user_line(error, type(module))
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CaptureFailed(
            f"{where}: the model cannot be turned into a graph ({type(error).__name__}: {first}). "
            "Control flow that depends on tensor values cannot be exported: use torch.where, or move "
            "that part out of forward."
        ) from error


def _user_line(error: BaseException, model: type) -> str:
    """`file:line` of the innermost traceback entry that lies in the model's own file."""
    import sys

    path = getattr(sys.modules.get(model.__module__), "__file__", None)
    found, step = model.__name__, error.__traceback__
    while step is not None:
        if path and step.tb_frame.f_code.co_filename == path:
            found = f"{path}:{step.tb_lineno}"
        step = step.tb_next
    return found


def _linear_in_batch(program: torch.export.ExportedProgram) -> bool:
    """Whether every size is a fixed number or a multiple of one symbol."""
    for n in program.graph.nodes:
        values = pytree.tree_leaves(n.meta.get("val"))
        for value in values:
            sizes = [*value.shape, *value.stride()] if isinstance(value, torch.Tensor) else [value]
            if any(_multiple(s) is None for s in sizes if isinstance(s, torch.SymInt)):
                return False
            if isinstance(value, torch.SymBool | torch.SymFloat):
                return False
    return True


def _multiple(size: torch.SymInt) -> int | None:
    """k for the expression k * symbol, else None."""
    expression = size.node.expr
    symbols = expression.free_symbols
    if not symbols:
        return None
    (symbol, *more) = symbols
    factor = expression / symbol
    return int(factor) if not more and factor.is_Integer else None


# ---- settings ------------------------------------------------------------------------------------


def _settings_read(module: nn.Module, inputs: Sequence[object]) -> tuple[Setting, ...]:
    """Run `forward` once on fake tensors and note which plain attributes of which modules it reads."""
    reads: dict[tuple[str, str], object] = {}
    with _recording(module, reads):
        _run_fake(module, inputs)
    return tuple(Setting(path, name, value) for (path, name), value in sorted(reads.items(), key=str))


def _run_fake(module: nn.Module, inputs: Sequence[object]) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.func import functional_call

    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        fake = [mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for v in inputs]
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        state = {name: mode.from_tensor(t) for name, t in tensors.items()}
        functional_call(module, state, tuple(fake))


@contextmanager
def _recording(module: nn.Module, reads: dict[tuple[str, str], object]) -> Iterator[None]:
    """Within the block, plain attributes read from `module` and its children land in `reads`."""
    paths = {id(child): path for path, child in module.named_modules()}
    plain = (bool, int, float, str, type(None), tuple)
    original = nn.Module.__dict__.get("__getattribute__")

    def watch(self: nn.Module, name: str) -> object:
        value = object.__getattribute__(self, name)
        known = id(self) in paths and not name.startswith("_") and name in self.__dict__
        if known and isinstance(value, plain) and _is_plain(value):
            reads.setdefault((paths[id(self)], name), value)
        return value

    nn.Module.__getattribute__ = watch  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        if original is None:
            del nn.Module.__getattribute__
        else:
            nn.Module.__getattribute__ = original  # type: ignore[method-assign]


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(_is_plain(v) for v in value)
    return isinstance(value, bool | int | float | str | None)


# ---- graph ---------------------------------------------------------------------------------------


class _Builder:
    """Walks the exported program and builds our graph; one instance per capture."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.values: dict[torch.fx.Node, Any] = {}
        self.effects: list[Node] = []
        self.constants: dict[str, torch.Tensor] = {}
        self.calls: list[EagerCall] = []

    def build(self, program: torch.export.ExportedProgram) -> Graph:
        inputs = self._leaves(program)
        for n in program.graph.nodes:
            if n.op == "call_function":
                self.values[n] = self._call(n)
        outputs, updates = self._results(program)
        return Graph(inputs, outputs, updates, tuple(self.effects), self.batch)

    def _leaves(self, program: torch.export.ExportedProgram) -> tuple[Node, ...]:
        inputs: list[Node] = []
        kinds = {s.arg.name: s for s in program.graph_signature.input_specs if hasattr(s.arg, "name")}
        for n in program.graph.nodes:
            if n.op != "placeholder":
                continue
            if not isinstance(n.meta.get("val"), torch.Tensor):
                self.values[n] = n.meta.get("val")
                continue
            leaf = self._leaf(n, kinds[n.name], len(inputs), program)
            self.values[n] = Value(leaf)
            if leaf.op == "input":
                inputs.append(leaf)
        return tuple(inputs)

    def _leaf(self, n: torch.fx.Node, spec: Any, position: int, program: Any) -> Node:
        result = self._result(n.meta["val"])
        shared: dict[str, Any] = {"shape": result.shape, "dtype": result.dtype, "order": result.order}
        if spec.kind is InputKind.PARAMETER:
            return node("parameter", name=spec.target, **shared)
        if spec.kind is InputKind.BUFFER:
            return node("buffer", name=spec.target, **shared)
        if spec.kind is InputKind.CONSTANT_TENSOR:
            self.constants[spec.target] = program.constants[spec.target]
            return node("buffer", name=spec.target, **shared)
        return node("input", position=position, **shared)

    def _result(self, value: torch.Tensor) -> Result:
        shape = tuple(self._size(s) for s in value.shape)
        return Result(shape, value.dtype, _order(value))

    def _size(self, size: int | torch.SymInt) -> Size:
        if isinstance(size, torch.SymInt):
            multiple = _multiple(size)
            assert multiple is not None, "capture checked that sizes are linear in the batch"
            return Batch(multiple)
        return int(size)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            known = self.values[value]
            return self._size(known) if isinstance(known, torch.SymInt) else known
        if isinstance(value, torch.SymInt):
            return self._size(value)
        if isinstance(value, list | tuple):
            return type(value)(self._argument(v) for v in value)
        return value

    def _call(self, n: torch.fx.Node) -> Any:
        value = n.meta.get("val")
        if isinstance(value, torch.SymInt | int | float | bool):
            return value
        if n.target is operator.getitem:
            source, index = self._argument(n.args[0]), n.args[1]
            return source[index]
        if value is None:
            return None
        call = self._as_call(n)
        self.calls.append(_eager_call(call, self.batch))
        lowered = lower(call)
        if lowered is None or not _covers(lowered, n):
            lowered = library_call(call, self.effects)
        if isinstance(lowered, tuple):
            return lowered
        return reordered(lowered, call.results[0].order)

    def _as_call(self, n: torch.fx.Node) -> Call:
        value = n.meta["val"]
        many = value if isinstance(value, tuple | list) else (value,)
        results = tuple(self._result(v) for v in many if isinstance(v, torch.Tensor))
        name, _, overload = str(n.target).rpartition(".")
        kwargs = {k: self._argument(v) for k, v in n.kwargs.items()}
        args = tuple(self._argument(a) for a in n.args)
        return Call(name, overload, args, kwargs, results)

    def _results(
        self, program: torch.export.ExportedProgram
    ) -> tuple[tuple[Node, ...], tuple[Update, ...]]:
        (output,) = (n for n in program.graph.nodes if n.op == "output")
        inputs = {s.target: s.arg.name for s in program.graph_signature.input_specs if s.target}
        by_name = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
        outputs: list[Node] = []
        updates: list[Update] = []
        for spec, given in zip(program.graph_signature.output_specs, output.args[0], strict=True):
            value = self._argument(given)
            if spec.kind is OutputKind.USER_OUTPUT:
                outputs.append(_tensor_output(value, len(outputs)))
                continue
            target = spec.target if spec.kind is OutputKind.USER_INPUT_MUTATION else inputs[spec.target]
            leaf = self.values[by_name[target]].node
            if value.node is not leaf:  # a library call may have updated it itself
                updates.append(Update(leaf, value.node))
        return tuple(outputs), tuple(updates)


VIEWS = frozenset(
    f"aten.{name}"
    for name in """view reshape _unsafe_view flatten unsqueeze squeeze unflatten transpose t permute
    expand alias detach select slice split split_with_sizes chunk unbind""".split()
)


def _eager_call(call: Call, batch: int) -> EagerCall:
    if call.name in VIEWS:
        return EagerCall(call.name, 0, 0)
    tensors = [a for a in pytree.tree_leaves((call.args, dict(call.kwargs))) if isinstance(a, Value)]
    read = sum(concrete(numel(t.shape), batch) * t.dtype.itemsize for t in tensors)
    written = sum(concrete(numel(r.shape), batch) * r.dtype.itemsize for r in call.results)
    results = sum(concrete(numel(r.shape), batch) for r in call.results[:1])
    shapes = [t.shape for t in tensors]
    return EagerCall(call.name, read + written, product_flops(call.name, shapes, call.shape, batch) or results)


def _covers(lowered: object, n: torch.fx.Node) -> bool:
    """Whether every result that is used exists."""
    if not isinstance(lowered, tuple):
        return not isinstance(n.meta["val"], tuple | list)
    return all(
        lowered[int(user.args[1])] is not None  # type: ignore[arg-type]
        for user in n.users
        if user.target is operator.getitem
    )


def _tensor_output(value: object, position: int) -> Node:
    if not isinstance(value, Value):
        raise CaptureFailed(
            f"Output {position} of forward is {value!r}, not a tensor. Return tensors only (or a tuple, "
            "list or dict of tensors)."
        )
    return value.node


def _order(value: torch.Tensor) -> tuple[int, ...]:
    """Dimensions from the outermost to the innermost in memory; () for row-major or overlapping."""
    shape, strides = value.shape, value.stride()
    sizes = [int(s) if not isinstance(s, torch.SymInt) else s.node.hint for s in shape]
    steps = [int(s) if not isinstance(s, torch.SymInt) else s.node.hint for s in strides]
    wide = [d for d in range(len(sizes)) if sizes[d] != 1]
    by_stride = sorted(wide, key=lambda d: -steps[d])
    expected = 1
    for d in reversed(by_stride):
        if steps[d] != expected:
            return ()
        expected *= sizes[d]
    if by_stride == wide:
        return ()
    rest = [d for d in range(len(sizes)) if d not in wide]
    return (*rest, *by_stride)

