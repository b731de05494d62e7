"""nn.Module + example inputs -> ExportedProgram: the model as ATen calls, and its free sizes.

`torch.export` runs the model on fake tensors, so nothing is computed, and functionalises it: first
with the leading size of the inputs free, or with those that are asked for, so that they stay
run-time values; of several, without those that the model needs fixed; else with all sizes fixed.
Nothing is printed; what cannot be exported is one error.
"""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, TypeVar

import torch
from torch import nn
from torch._decomp import decomposition_table, decompositions
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram, default_decompositions
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from fusewright.common.containers import Container, Plain, Slot, Tree
from fusewright.errors import CaptureFailed
from fusewright.frontend.asked_size import AskedSize, common_leading, equal_ones
from fusewright.frontend.batch_of_one import (
    CallOfOnes,
    Values,
    lies_the_same,
    other_examples,
    provable,
    same_calls,
    tree_at,
)
from fusewright.frontend.carried_state import NOTHING, Carried
from fusewright.frontend.data_exponents import unknown_powers
from fusewright.frontend.eager_strides import lay_as_eager
from fusewright.frontend.flat_module import Flat, flattened
from fusewright.frontend.layer_fast_paths import masked_as_eager
from fusewright.frontend.library_calls import ADDED_MATMULS, PLAIN_MATMULS
from fusewright.frontend.mask_counts import without_selections
from fusewright.frontend.memory_places import apart, refused, state_apart
from fusewright.frontend.program import Program
from fusewright.frontend.refusals import (
    IN_COMMON,
    cannot_capture,
    cannot_rewrite,
    largest,
    why_not_free,
)
from fusewright.frontend.size_symbols import (
    NO_SYMBOLS,
    SizeSymbols,
    relations,
    runtime_number,
    symbols_of,
)
from fusewright.frontend.unknown_sizes import inner_sizes
from fusewright.ir.graph import FreeSize, Sizes, size_at

# Calls that are other calls for PyTorch itself: second names, and compositions without a kernel.
COMPOSED = (
    *("multiply", "divide", "true_divide", "subtract", "negative", "absolute", "clip", "fix"),
    *("greater", "greater_equal", "less", "less_equal", "not_equal", "arcsin", "arccos", "arctan"),
    *("arctan2", "arcsinh", "arccosh", "arctanh", "special_expit", "special_softmax"),
    *("special_log_softmax", "special_logsumexp", "special_log1p", "special_expm1", "special_erf"),
    *("special_erfc", "special_exp2", "concat", "concatenate", "hstack", "vstack", "dstack"),
    *("column_stack", "atleast_1d", "atleast_2d", "tile", "type_as", "diff", "outer"),
    *("linalg_norm", "linalg_vecdot"),
    *("l1_loss", "pairwise_distance", "triplet_margin_loss", "cosine_embedding_loss"),
    *("hinge_embedding_loss", "margin_ranking_loss", "poisson_nll_loss"),
    *("binary_cross_entropy_with_logits", "soft_margin_loss", "glu", "count_nonzero"),
)
Result = TypeVar("Result")
TOO_SMALL = "it is 1 or less in the example"
RECURRENT_LAYERS = ("one_layer_lstm", "one_layer_rnn")  # of torch._decomp.decompositions


@dataclass(frozen=True)
class Exported:
    """The program from tensors to tensors, its free sizes, and the symbols that stand for them.

    arguments, results: how these hold the tensors; a number that free sizes make is a `BatchSize`.
    left: how replaced attributes hold the tensors behind those of the results.
    ones: calls with some of the free sizes 1, where the program is that of these, too.
    asked: the sizes that were asked for.  fixed: why those are not free that are not.
    """

    program: Program
    free: tuple[FreeSize, ...]
    arguments: tuple[Tree, ...]
    results: Tree
    left: tuple[Tree, ...] = ()
    symbols: SizeSymbols = NO_SYMBOLS
    ones: tuple[CallOfOnes, ...] = ()
    asked: tuple[AskedSize, ...] = ()
    fixed: Mapping[AskedSize, str] = field(default_factory=dict)


def export(
    module: nn.Module,
    inputs: Sequence[object],
    state: Carried = NOTHING,
    device: str = "cpu",
    asked: Sequence[AskedSize] | None = None,
) -> Exported:
    """The exported program; raises CaptureFailed. state: attributes that forward replaces.
    device: "cpu" or "cuda", where it will run; strides are those of eager there.
    asked: the sizes that are to be free; None: the leading one of all tensors that have the same as
    the first, if no other size is a product of it."""
    with flattened(module, inputs, state) as flat:
        tensors = apart(flat.tensors)
        wanted = [common_leading(tensors)] if asked is None else asked
        by_request = any(size.text for size in wanted)
        given = _Given(module, tensors, flat, device, by_request)
        asked, found, fixed = _largest_free(given, tuple(wanted))
        if found is not None:
            _check_memory(found.traced.program, module, flat)
            ones = tuple(_calls_of_ones(given, found))
            return replace(found.exported, ones=ones, asked=asked, fixed=fixed)
        program = _fixed_export(module, tensors, flat, device)
        made = _exported(program, flat, (), NO_SYMBOLS)
        if made is None:
            raise CaptureFailed(
                f"{type(module).__name__}.forward returns a number that depends on the values of "
                "tensors, as .item() does. Return the tensor that it is taken from."
            )
        _check_memory(program, module, flat)
        return replace(made, asked=asked, fixed=fixed)


# ---- free sizes ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Given:
    """What is exported. by_request: somebody has asked for free sizes."""

    module: nn.Module
    tensors: tuple[torch.Tensor, ...]
    flat: Flat
    device: str
    by_request: bool


@dataclass(frozen=True)
class _Found:
    """A program with free sizes."""

    exported: Exported
    traced: Traced
    asked: tuple[AskedSize, ...]

    @property
    def most(self) -> Mapping[str, int]:
        """The largest of each size that has one."""
        return {size.name: size.most for size in self.exported.free if size.most is not None}


def _largest_free(
    given: _Given, asked: tuple[AskedSize, ...]
) -> tuple[tuple[AskedSize, ...], _Found | None, Mapping[AskedSize, str]]:
    """The sizes that are asked for, those that are equal as one where they cannot be several; the
    program with all of them free, or with as many as can be, taken in their order; and why the
    others cannot."""
    fixed = {size: TOO_SMALL for size in asked if size.of(given.tensors) <= 1}
    wanted = tuple(size for size in asked if size not in fixed)
    tried: dict[tuple[AskedSize, ...], _Found | str] = {}
    for some in filter(None, (wanted, equal_ones(wanted, given.tensors))):
        tried[some] = tried.get(some) or _with_free(given, some)
        if isinstance(made := tried[some], _Found):
            return (*some, *fixed), made, fixed
    found, kept = None, tuple[AskedSize, ...]()
    for size in wanted:
        some = (*kept, size)
        made = tried.get(some) or _with_free(given, some)
        if isinstance(made, _Found):
            found, kept = made, some
        else:
            fixed[size] = made
    return asked, found, fixed


def _with_free(given: _Given, asked: tuple[AskedSize, ...]) -> _Found | str:
    """The program with these sizes free; or why they cannot be."""
    module, tensors, flat, most = given.module, given.tensors, given.flat, dict[str, int]()
    traced: Traced | Exception = RuntimeError()
    for _ in range(1 + len(asked)):  # the error may name a bound of one size at a time
        traced = _try_export(module, tensors, dimensions(tensors, asked, most), given.device)
        if isinstance(traced, Traced) or not given.by_request:
            break
        bounds = {size.name: largest(traced, size.name) for size in asked}
        new = {name: n for name, n in bounds.items() if n is not None and name not in most}
        if not new:
            break
        most |= new
    if isinstance(traced, Exception):
        return why_not_free(traced)
    free = tuple(
        FreeSize(size.of(tensors), name=size.name, most=most.get(size.name)) for size in asked
    )
    symbols = symbols_of(traced.program, asked, len(tensors))
    if asks := [a for p in (traced.calls, traced.program) for a in relations(p, symbols)]:
        return f"what the model does depends on {asks[0]}"
    made = _exported(traced.program, flat, free, symbols)
    if made is None:
        return FROM_DATA
    why = _why_fixed(made, traced.program, by_request=given.by_request)
    return why or _Found(made, traced, asked)


def dimensions(
    tensors: Sequence[torch.Tensor],
    asked: Iterable[AskedSize],
    most: Mapping[str, int],
) -> tuple[dict[int, Any] | None, ...]:
    """The dimensions of each tensor that are free sizes, as torch.export is told of them."""
    found: list[dict[int, Any]] = [{} for _ in tensors]
    for size in asked:
        free = Dim(size.name, min=2, max=most.get(size.name))
        for k, d in sorted(size.places):
            found[k][d] = free
    return tuple(dims or None for dims in found)


def _calls_of_ones(given: _Given, found: _Found) -> Iterator[CallOfOnes]:
    """Calls with some free sizes of 1, all that are needed for as many sizes as can be 1, if the
    program that has them free is that of these calls, too."""
    if given.flat.state.places:  # a state has the sizes that it was left with
        return
    made: dict[frozenset[str], CallOfOnes | None] = {}

    def is_proved(names: frozenset[str]) -> bool:
        made[names] = _call_of_ones(given, found, names)
        return made[names] is not None

    provable([size.name for size in found.exported.free], is_proved)
    yield from (one for one in made.values() if one is not None)


def _call_of_ones(given: _Given, found: _Found, names: frozenset[str]) -> CallOfOnes | None:
    """The call with these sizes 1, if the program is that of it, whatever the others are."""
    exported, traced, count = found.exported, found.traced, len(given.tensors)
    others = [size for size in found.asked if size.name not in names]
    ones = dict.fromkeys(names, 1)
    known = [{**each, **ones} for each in other_examples(exported.free)]
    tensors = Values.at(exported.symbols, known[0]).inputs(traced.program, count)
    shapes = (dimensions(tensors, others, found.most),) if others else None
    with silence(), torch.no_grad(), _whole_recurrences(), traced_as_eager(given.device):
        try:
            single = torch.export.export(
                given.module, (tensors,), dynamic_shapes=shapes, strict=False
            )
            its, free = (symbols_of(p, found.asked, count) for p in (single, traced.calls))
            both = (traced.calls, Values.at(free, ones)), (single, Values.as_in(its, free))
            parameters = frozenset(traced.program.graph_signature.inputs_to_parameters)
            read = traced.program.graph_module, parameters
            assert given.flat.results is not None, "a program was exported, so forward has run"
            proved = (
                not relations(single, its)
                and same_calls(*both)
                and _known(given.flat.results, its) == tree_at(exported.results, ones)
                and all(
                    run_fake(partial(lies_the_same, *read, values, given.device))
                    for values in (Values.at(exported.symbols, each) for each in known)
                )
            )
        except Exception:  # noqa: BLE001 - what eager says at 1, the original will say
            return None
    return CallOfOnes(names, tuple(given.flat.arguments(tensors))) if proved else None


def _exported(
    program: ExportedProgram, flat: Flat, free: tuple[FreeSize, ...], symbols: SizeSymbols
) -> Exported | None:
    """The program and how it is called; None if a result is a number that depends on data."""
    assert flat.results is not None, "a program was exported, so forward has run"
    found = [_known(tree, symbols) for tree in (flat.results, *flat.left.trees)]
    known = [tree for tree in found if tree is not None]
    if len(known) < len(found):
        return None
    results, *left = known
    return Exported(program, free, flat.trees, results, tuple(left), symbols)


def _known(tree: Tree, symbols: SizeSymbols) -> Tree | None:
    """The results with numbers that free sizes make; None if others depend on data."""
    if isinstance(tree, Slot):
        return tree
    if isinstance(tree, Container):
        inside = [_known(t, symbols) for t in tree.inside]
        known = tuple(t for t in inside if t is not None)
        return replace(tree, inside=known) if len(known) == len(inside) else None
    if isinstance(tree.value, torch.SymInt):
        expression = tree.value.node.expr
        if expression.is_Integer:
            return Plain(int(expression))
        size = symbols.size(tree.value)
        return None if size is None else Plain(size)
    return None if isinstance(tree.value, torch.SymBool | torch.SymFloat) else tree


@contextmanager
def silence() -> Iterator[None]:
    """Within the block nothing is printed: torch.export shows graphs, logs and warnings. What
    `torch.compile` decorates runs as written: its kernels would take fake tensors for memory."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            redirect_stdout(io.StringIO()),
            redirect_stderr(io.StringIO()),
            torch.compiler.set_stance("force_eager"),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


@contextmanager
def traced_as_eager(device: str = "cpu") -> Iterator[None]:
    """Within the block, traces go where eager goes on a device, and stop for no number that they
    can do without."""
    with inner_sizes(), unknown_powers(), masked_as_eager(device):
        yield


@contextmanager
def _whole_recurrences() -> Iterator[None]:
    """Within the block, fake layers of LSTM, GRU and RNN only have sizes: torch.export keeps the
    call whole, but would walk all of its steps for them, some 0.05 s each."""
    kept = {name: f for name, f in vars(decompositions).items() if name in RECURRENT_LAYERS}
    vars(decompositions).update(dict.fromkeys(kept, _recurrent_layer))
    try:
        yield
    finally:
        vars(decompositions).update(kept)


def _recurrent_layer(x: torch.Tensor, hidden: Any, *_: object, **__: object) -> tuple[Any, Any]:
    """The results of all steps [steps, batch, ...] and the last state, which may be a pair."""
    states = hidden if isinstance(hidden, tuple) else (hidden,)
    steps = x.new_empty((*x.shape[:-1], states[0].shape[-1]))
    last = tuple(torch.empty_like(s, memory_format=torch.contiguous_format) for s in states)
    return steps, last if isinstance(hidden, tuple) else last[0]


@cache
def compositions() -> dict[Any, Any]:
    """How the calls of `COMPOSED` are written with others; what PyTorch lacks is left out."""
    packets = [getattr(torch.ops.aten, name, None) for name in COMPOSED]
    calls = [getattr(p, kind) for p in packets if p for kind in p.overloads() if "out" not in kind]
    table = {**decomposition_table, **default_decompositions()}
    return {call: table[call] for call in calls if call in table}


@dataclass(frozen=True)
class Traced:
    """calls: the program as `forward` makes its calls.  program: as it is read."""

    calls: ExportedProgram
    program: ExportedProgram


def _run_export(
    module: nn.Module,
    tensors: Sequence[torch.Tensor],
    shapes: tuple[Any, ...] | None,
    device: str = "cpu",
) -> Traced:
    free = None if shapes is None else (shapes,)
    with silence(), torch.no_grad(), _whole_recurrences(), traced_as_eager(device):
        program = torch.export.export(module, (tuple(tensors),), dynamic_shapes=free, strict=False)
        decomposed = _rewritten(program, type(module))
        lay_as_eager(decomposed, device)
        type_as_eager(decomposed)
        without_selections(decomposed)
    if _draws(program) > _draws(decomposed):
        raise CaptureFailed(
            f"{type(module).__name__}.forward draws random numbers and does not use them, which "
            "torch.export leaves out: all later ones would differ. Remove the call."
        )
    return Traced(program, decomposed)


def _rewritten(program: ExportedProgram, model: type) -> ExportedProgram:
    """The program without what is changed in place, and without `COMPOSED`."""
    try:
        rewritten: ExportedProgram = program.run_decompositions(compositions())
    except Exception as error:
        if (refusal := cannot_rewrite(error, program.graph, model)) is not None:
            raise refusal from error
        raise
    return rewritten


def type_as_eager(program: Program) -> None:
    """Give running statistics the type that they have: PyTorch says float32 of those of 16 bits."""
    for n in program.graph.nodes:
        if str(n.target) == "aten._native_batch_norm_legit_functional.default":
            statistics = {k: n.args[k].meta["val"] for k in (3, 4)}  # as arguments and as results
            n.meta["val"] = tuple(statistics.get(k, v) for k, v in enumerate(n.meta["val"]))


def _draws(program: ExportedProgram) -> int:
    """How many calls draw random numbers; dropout that is off does not."""
    seeded = torch.Tag.nondeterministic_seeded
    calls = [n for n in program.graph.nodes if seeded in getattr(n.target, "tags", ())]
    return sum(not _is_idle(n) for n in calls)


def _is_idle(n: torch.fx.Node) -> bool:
    """Whether the call drops nothing."""
    if "dropout" in str(n.target):
        return not (n.args[1] and n.args[2])
    share = n.args[4] if len(n.args) > 4 else n.kwargs.get("dropout_p", 0.0)
    return "scaled_dot_product_attention" in str(n.target) and not share


def _try_export(
    module: nn.Module, tensors: Sequence[torch.Tensor], shapes: tuple[Any, ...], device: str
) -> Traced | Exception:
    """The error where the model fixes the size; torch.export has no narrower one for it."""
    try:
        return _run_export(module, tensors, shapes, device)
    except Exception as error:  # noqa: BLE001 - the fixed export that follows reports what is wrong
        return error


def _fixed_export(
    module: nn.Module, tensors: Sequence[torch.Tensor], flat: Flat, device: str
) -> ExportedProgram:
    try:
        return _run_export(module, tensors, None, device).program
    except CaptureFailed:
        raise
    except Exception as error:
        shared = bool(re.search(IN_COMMON, str(error)))
        why = _change_in_common(module, tensors, flat) if shared else None
        raise why or cannot_capture(error, type(module)) from error


def _change_in_common(
    module: nn.Module, tensors: Sequence[torch.Tensor], flat: Flat
) -> CaptureFailed | None:
    """What is changed, and who shares its memory, which PyTorch does not say."""
    try:
        with state_apart(module):
            program = _run_export(module, tensors, None).program
    except Exception as error:  # noqa: BLE001 - whatever else stops it is the better reason
        return cannot_capture(error, type(module))
    return refused(program, module, flat)


def _check_memory(program: ExportedProgram, module: nn.Module, flat: Flat) -> None:
    """Raise CaptureFailed where the program changes memory in which others lie, too."""
    if (why := refused(program, module, flat)) is not None:
        raise why


def _multiplied_along_batch(program: ExportedProgram) -> bool:
    """Whether a matrix product sums over the free size: its kernel has to know the depth."""
    for n in program.graph.nodes:
        name = str(n.target).rpartition(".")[0]
        place = int(name in ADDED_MATMULS)  # of the left factor
        if name in (*PLAIN_MATMULS, *ADDED_MATMULS) and len(n.args) > place:
            left = n.args[place].meta["val"]
            if left.dim() and isinstance(left.shape[-1], torch.SymInt):
                return True
    return False


FROM_DATA = "a result of forward is a number that depends on the values of tensors"


def _why_fixed(made: Exported, program: ExportedProgram, *, by_request: bool) -> str:
    """Why the program may not run with any such sizes; "" where it may. by_request: somebody has
    asked for that; else sizes that are products of several, and matrix products along a free one,
    are better fixed."""
    symbols, example = made.symbols, {size.name: size.example for size in made.free}
    if not are_products(program.graph, symbols, 0 if by_request else 1):
        return "another size of the model is no product of free ones"
    if _multiplied_along_batch(program) and not by_request:
        return "a matrix product sums along it, and how it is cut is decided beforehand"
    hold = _sizes_hold(program, symbols, example)
    return "" if hold else "torch.export gives other sizes with it free"


class _Concrete(torch.fx.Interpreter):
    """Runs a program on fake tensors; false once a size is another than the program says."""

    holds = True

    def __init__(self, program: ExportedProgram, symbols: SizeSymbols, example: Sizes) -> None:
        super().__init__(program.graph_module)
        self.symbols, self.example_sizes = symbols, example

    def run_node(self, n: torch.fx.Node) -> Any:
        made = super().run_node(n)
        said = n.meta.get("val") if n.op == "call_function" else made
        self.holds &= [self.sizes(v) for v in pytree.tree_leaves(made)] == [
            self.sizes(v) for v in pytree.tree_leaves(said)
        ]
        return made

    def sizes(self, value: object) -> list[int]:
        """Of a tensor or of a number, with free sizes as they are in the example."""
        found: Iterable[Any] = value.shape if isinstance(value, torch.Tensor) else [value]
        return [
            size_at(self.symbols.size(s) or 0, self.example_sizes)
            if isinstance(s, torch.SymInt)
            else s
            for s in found
            if not isinstance(s, torch.SymFloat | torch.SymBool) and not runtime_number(s)
        ]

    def example(self, value: object) -> object:
        """A placeholder's value with fixed sizes."""
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty(self.sizes(value), dtype=value.dtype, device=value.device)


def _sizes_hold(program: ExportedProgram, symbols: SizeSymbols, example: Sizes) -> bool:
    """Whether sizes with some of them free are those that the example gives.

    PyTorch 2.13 loses the size of nll_loss and cross_entropy with reduction="none".
    """
    places = [n for n in program.graph.nodes if n.op == "placeholder"]

    def holds() -> bool:
        with FakeTensorMode(shape_env=ShapeEnv()):
            run = _Concrete(program, symbols, example)
            run.run(*(run.example(n.meta["val"]) for n in places), enable_io_processing=False)
        return run.holds

    with silence(), torch.no_grad(), traced_as_eager():
        try:
            return run_fake(holds)
        except Exception:  # noqa: BLE001 - sizes that fixed ones cannot confirm are not taken
            return False


def run_fake(run: Callable[[], Result]) -> Result:
    """What a run on fake tensors gives: as eager calls its operators, or, if that fails, with
    PyTorch's Python dispatcher, as torch.export traces.

    What C++ puts together of several operators (`bilinear`) asks there for sizes that an index of
    the data leaves open; the Python dispatcher has them put together in Python. It comes second
    because it also takes recurrent layers apart, step by step, and copies what eager's dropout of
    nothing hands on (PyTorch 2.13). If both fail, the first error is raised.
    """
    try:
        return run()
    except CaptureFailed:
        raise
    except Exception:
        with suppress(Exception), enable_python_dispatcher():
            return run()
        raise


def _is_constant(stride: int | torch.SymInt) -> bool:
    """Whether a stride is the same for every free size, as the smaller one of 64 and of 64 for each
    row is."""
    if not isinstance(stride, torch.SymInt):
        return True
    bounds = stride.node.shape_env.bound_sympy(stride.node.expr)
    return bool(bounds.lower == bounds.upper)


def are_products(graph: torch.fx.Graph, symbols: SizeSymbols, most: int) -> bool:
    """Whether every size, and every number of elements, is fixed or a multiple of free sizes.
    most: of how many; 0: any."""

    def is_product(number: torch.SymInt) -> bool:
        size = symbols.size(number)
        return size is not None and (not most or size.degree <= most)

    for n in graph.nodes:
        values = pytree.tree_leaves(n.meta.get("val"))
        for value in values:
            tensor = isinstance(value, torch.Tensor)
            strides = [s for s in value.stride() if not _is_constant(s)] if tensor else []
            sizes = [*value.shape, *strides, value.numel()] if tensor else [value]
            if not tensor and runtime_number(value):
                continue
            if not all(is_product(s) for s in sizes if isinstance(s, torch.SymInt)):
                return False
            if isinstance(value, torch.SymBool | torch.SymFloat):
                return False
    return True
