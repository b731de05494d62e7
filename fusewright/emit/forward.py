"""Plan + ForwardGuard -> the body of the emitted `forward`: the plan's steps as lines of Python.

Every tensor that must exist gets a variable; views are PyTorch's own views; a variable is deleted
after its last use, so memory is free as early as in the original. Kernels get addresses, and every
tensor behind an address is held by a variable until the call is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusewright.codegen.kernel_text import KernelText
from fusewright.common.containers import Slot, Tree, leaves
from fusewright.emit.blocks import with_loops
from fusewright.emit.guard import ForwardGuard
from fusewright.emit.python_text import literal, shape_tuple
from fusewright.emit.runtime_snippets import Snippet
from fusewright.emit.statement import (
    Expression,
    Statement,
    assign,
    evaluate,
    expression,
    variable,
)
from fusewright.emit.steps_function import StepsFunction, steps_function
from fusewright.emit.traced_operator import TracedOperator, traced_operator
from fusewright.frontend.capture import Captured
from fusewright.frontend.library_calls import is_float32_contraction, writes_itself
from fusewright.fusion.batch_counters import call_counters
from fusewright.fusion.planner import Kernel, LibraryStep, Plan
from fusewright.fusion.value_words import module_word, variable_of
from fusewright.ir.graph import (
    Graph,
    Node,
    Size,
    base,
    is_memory_of_pieces,
    size_text,
    times,
    toposort,
)
from fusewright.ir.interpreter import python_text
from fusewright.ir.origin import calls_of_modules
from fusewright.loopnest.vector_width import starts_aligned

# What launching all steps at once takes.
REPLAYING = frozenset(
    {
        *(Snippet.REPLAYED, Snippet.AGAIN, Snippet.COPY_BYTES, Snippet.LAUNCH_GRAPH),
        *(Snippet.EMPTY, Snippet.INCREMENT_VERSION),
    }
)


@dataclass(frozen=True)
class ForwardBody:
    """The statements between the guard and the end of `forward`, and the snippets they call.

    steps: where they are a function of their own, that one; they return what it makes then.
    operator: where PyTorch's compiler can call that, as which operator.
    """

    statements: tuple[str, ...]
    snippets: frozenset[Snippet]
    steps: StepsFunction | None = None
    operator: TracedOperator | None = None


def forward_body(
    captured: Captured,
    plan: Plan,
    bodies: Sequence[KernelText],
    function_of: Mapping[str, str],
    guard: ForwardGuard,
    workspaces: Mapping[str, str],
    *,
    traced: bool = False,
) -> ForwardBody:
    """What `forward` does where its guard holds.

    function_of: name of a kernel -> the function that runs it, which equal kernels share.
    workspaces: name of a kernel -> bytes of memory it takes as its last address, as Python text
    with slots for the free sizes.  traced: whether others than the guard are to call it, if they
    can: PyTorch's compiler, or a CUDA graph.
    """
    printer = _ForwardPrinter(captured, plan, bodies, function_of, guard, workspaces)
    return printer.body(traced=traced)


class _ForwardPrinter:
    """expressions: of every node that exists so far.  dense: what library calls return, laid out as
    kernels assume.  fresh: nodes in new memory, which starts at a multiple of 16 bytes.
    wholes: the tensor in whose memory a piece of a concatenation lies."""

    def __init__(
        self,
        captured: Captured,
        plan: Plan,
        bodies: Sequence[KernelText],
        function_of: Mapping[str, str],
        guard: ForwardGuard,
        workspaces: Mapping[str, str],
    ) -> None:
        self.captured, self.plan, self.guard = captured, plan, guard
        self.workspaces, self.function_of = workspaces, function_of
        self.graph = captured.graph
        self.calls = calls_of_modules(self.graph.origins.values())
        self.bodies = {b.name: b for b in bodies}
        self.expressions: dict[int, Expression] = {}
        self.statements: list[Statement] = []
        self.dense: dict[int, Expression] = {}
        self.fresh: set[int] = set()
        self.aligned: dict[int, Expression] = {}
        self.exposed = _exposed_memory(self.graph)
        self.counted = call_counters(plan)
        joints = [n for n in toposort(self.graph.roots) if is_memory_of_pieces(n)]
        wholes = {id(piece): n for n in joints if not n.placement.inside for piece in n.args}
        self.wholes = wholes | {id(n): wholes[id(n.args[0])] for n in joints if n.placement.inside}

    def body(self, *, traced: bool) -> ForwardBody:
        self._name_leaves()
        self.run = self.guard.names.fresh("run")
        self.last = self._last()
        for step in self.plan.steps:
            if isinstance(step, Kernel):
                self._kernel(step)
            else:
                self._library(step)
        self._updates()
        self._replace()
        packed = self._written(self.captured.results)
        steps, operator = self._as_function(packed) if traced else (None, None)
        returned = steps.returned if steps else packed.text
        result = evaluate(expression(f"return {returned}", [packed]))
        snippets = [s.snippets for s in (*self.statements, result)]
        snippets += [frozenset({Snippet.TRACED})] * bool(operator)
        if steps and steps.replayed:
            snippets.append(REPLAYING)
        state = self.guard.state
        tensors = {name: at for at, name in enumerate(self.guard.tensors if state else ())}
        body = with_loops(self.statements, result, tensors, state, self.guard.names)
        lines = (*self._unpacked(tensors, body.outside), *self._ready(), *body.lines)
        return ForwardBody(lines, frozenset[Snippet]().union(*snippets), steps, operator)

    def _as_function(
        self, packed: Expression
    ) -> tuple[StepsFunction | None, TracedOperator | None]:
        """The statements, whose results `packed` holds, as others than the guard can call them."""
        made = [self._tensor_expression(n).text for n in self.graph.made]
        if not packed.reads <= {*made, *self.guard.inputs}:
            return None, None
        steps = steps_function(self.captured, self.plan.target, self.guard, made, packed.text)
        operator = traced_operator(self.captured, self.guard, steps) if steps else None
        return (steps if operator or self.guard.replayed else None), operator

    def _unpacked(self, tensors: Mapping[str, int], needed: frozenset[str]) -> list[str]:
        """The model's tensors by name, but for those that only loops read."""
        if needed == tensors.keys():
            return [f"[{', '.join(tensors)}] = {self.guard.state}"] * bool(tensors)
        names = (name for name in tensors if name in needed)
        return [f"{name} = {self.guard.state}[{tensors[name]}]" for name in names]

    def _ready(self) -> list[str]:
        """What kernels need beside tensors, asked for once."""
        if not self.plan.kernels:
            return []
        ready = f"{self.run} = _FUSEWRIGHT_FUNCTIONS or _fusewright_build()"
        if self.plan.target.language == "cuda":
            return [ready, "stream = torch._C._cuda_getCurrentRawStream(device)"]
        return [ready, f"{self.last} = torch.get_num_threads()"]

    def _last(self) -> str:
        """The arguments of every kernel behind its tensors and the free sizes."""
        cuda = self.plan.target.language == "cuda"
        return "device, stream" if cuda else self.guard.names.fresh("threads")

    # -- names

    def _name_leaves(self) -> None:
        for name, leaf in zip(self.guard.inputs, self.graph.inputs, strict=True):
            self.expressions[id(leaf)] = variable(name)
        for n in self.graph.leaves:
            if n.row.state:
                self.expressions[id(n)] = variable(self._state(n))
            elif n.op == "constant":
                self.expressions[id(n)] = Expression(self._attribute(n["value"]))

    def _size(self, size: Size) -> str:
        return size_text(size, self.guard.sizes)

    def _attribute(self, value: object) -> str:
        return python_text(value, self._size)

    def _state(self, n: Node) -> str:
        """The variable of a parameter or buffer, or of a tensor that is written down."""
        path = str(n["name"])
        if path in self.guard.locals:
            return self.guard.locals[path]
        tensor = self.captured.constants[path]
        name = self.guard.names.fresh("constant")
        one = tensor.numel() == 1  # a GPU fills it, and nobody waits for a copy
        made = f"full({tuple(tensor.shape)}, " if one else "tensor("
        values = self._attribute(tensor.item() if one else tensor.tolist())
        device = self._device()
        text = f"torch.{made}{values}, dtype={tensor.dtype}, device={device.text})"
        self.statements.append(assign(name, expression(text, [device])))
        return name

    def _device(self) -> Expression:
        tensors = [*self.guard.inputs, *self.guard.locals.values()]
        if not tensors:
            return Expression('"cpu"')
        return expression(f"{tensors[0]}.device", [variable(tensors[0])])

    # -- tensors

    def _tensor_expression(self, n: Node) -> Expression:
        """A tensor in Python; views are taken where they are used."""
        if n.placement.inside and is_memory_of_pieces(n):
            return self._inside(n)
        if id(n) not in self.expressions:
            assert n.row.kind == "view", f"{n!r} is used before it exists"
            pairs = {"shape": shape_tuple(n.shape, self.guard.sizes)}
            pairs |= {name: self._attribute(value) for name, value in n.words.items()}
            of = self._tensor_expression(n.args[0])
            self.expressions[id(n)] = expression(n.row.torch.format(of.text, **pairs), [of])
        return self.expressions[id(n)]

    def _local(self, n: Node, otherwise: str) -> str:
        """What the variable of a result is to be called: as in the model's text, if it says so."""
        return variable_of(self.graph, n) or otherwise

    def _called(self, n: Node) -> str:
        """What a library call is called: as its module, if that is this call, or its function."""
        short = n.short_name.strip("_") if n.op == "library" else n.op
        return module_word(self.graph, n, self.calls) or short

    def _assign(self, wanted: str, value: Expression) -> Expression:
        """A new variable that holds the value."""
        name = self.guard.names.fresh(wanted)
        self.statements.append(assign(name, value))
        return variable(name)

    def _as_laid_out(self, tensor: Expression, n: Node) -> Expression:
        """The tensor with the layout that kernels assume."""
        if n.order:
            text = f"{Snippet.WITH_MEMORY_ORDER}({tensor.text}, {n.order})"
            return expression(text, [tensor], [Snippet.WITH_MEMORY_ORDER])
        return expression(f"{tensor.text}.contiguous()", [tensor])

    def _operand(self, n: Node) -> Expression:
        """A variable that holds the tensor, laid out as the kernels assume."""
        if id(n) in self.dense:
            return self.dense[id(n)]
        made = n.row.computed or n.row.kind == "library"
        if made or (n.row.kind == "leaf" and n.op != "constant"):
            return self._tensor_expression(n)
        value = self._as_laid_out(self._tensor_expression(n), n)
        return self._assign(self._local(base(n), f"{n.op}_result"), value)

    # -- steps

    def _library(self, step: LibraryStep) -> None:
        n = step.node
        if id(n) in self.counted:  # in place, with the updates
            return
        arguments = [self._tensor_expression(a) for a in n.args]
        texts = [a.text for a in arguments]
        snippets = [Snippet.ON_HUGE_PAGES] if n.op == "library" and n.call.out else []
        if n.op == "library":
            text = n.call.render(texts, self._device().text, self.guard.sizes)
        elif n.op == "getitem":
            text = f"{texts[0]}[{n['index']}]"
        else:
            attributes = {key: self._attribute(value) for key, value in n.words.items()}
            text = n.row.torch.format(*texts, **attributes)
        if self.plan.precision == "ieee" and is_float32_contraction(n):
            text = f"{Snippet.IEEE}(lambda: {text})"
            snippets.append(Snippet.IEEE)
        made = self._assign(
            self._local(n, f"{self._called(n)}_out"), expression(text, arguments, snippets)
        )
        self.expressions[id(n)] = made
        if any(n is leaf for kernel in self.plan.kernels for leaf in self._walked(kernel)):
            value = self._as_laid_out(made, n)
            if id(n) in self.exposed:
                self.dense[id(n)] = self._assign(f"{made.text}_dense", value)
            else:
                self.statements.append(assign(made.text, value))
                self.dense[id(n)] = made

    def _kernel(self, kernel: Kernel) -> None:
        body = self.bodies[kernel.name]
        reused = {id(out): leaf for out, leaf in body.in_place}
        asked = body.launch.aligned_tensors
        read = [*self._factors(kernel), *(self._aligned_operand(n, asked) for n in _given(body))]
        for k, output in enumerate(kernel.outputs):
            if id(output) in reused:
                self.expressions[id(output)] = self._aligned_operand(reused[id(output)], asked)
                continue
            wanted = f"{kernel.name}_{k}" if len(kernel.outputs) > 1 else kernel.name
            self._new_memory(output, self._local(output, wanted))
        self.expressions.update((id(n), self._operand(n.args[0])) for n in kernel.counters)
        written = [self.expressions[id(p.node)] for p in body.pointers if p.written]
        given = [*read, *written, *self._workspace(kernel)]
        addresses = [f"{tensor.text}.data_ptr()" for tensor in given]
        sizes = [*self.guard.sizes.values()] or ["0"]
        arguments = ", ".join([*addresses, *sizes, self.last])
        text = f"{self.run}[{literal(self.function_of[kernel.name])}]({arguments})"
        self.statements.append(evaluate(expression(text, given)))

    def _new_memory(self, n: Node, wanted: str) -> None:
        """A variable for a result of a kernel, with memory of its own or inside another's."""
        name = self.guard.names.fresh(wanted)
        value = self._inside(n) if n.placement.inside else self._empty(n)
        self.statements.append(assign(name, value))
        self.expressions[id(n)] = variable(name)
        if starts_aligned(n):
            self.fresh.add(id(n))

    def _inside(self, n: Node) -> Expression:
        """Its place in the memory of a joined tensor."""
        inside, whole = n.placement.inside, self.wholes[id(n)]
        assert inside is not None
        if id(whole) not in self.expressions:
            self._new_memory(whole, "joined")
        found = self.expressions[id(whole)]
        text = f"{found.text}.narrow({inside.dim}, {inside.start}, {n.shape[inside.dim]})"
        return expression(text, [found])

    def _factors(self, kernel: Kernel) -> list[Expression]:
        """What the kernel reads as a whole, aligned where tensor maps read it."""
        found = self.bodies[kernel.name].launch.whole_tensors
        aligned = frozenset(id(t.node) for t in found if t.aligned)
        return [self._aligned_operand(t.node, aligned) for t in found]

    def _aligned_operand(self, n: Node, aligned: frozenset[int]) -> Expression:
        """The operand, or a copy that is aligned where it has to be. aligned: ids of such nodes."""
        tensor = self._operand(n)
        if id(n) not in aligned or id(n) in self.fresh:
            return tensor
        if id(n) not in self.aligned:
            text = f"{Snippet.ALIGNED}({tensor.text})"
            value = expression(text, [tensor], [Snippet.ALIGNED])
            self.aligned[id(n)] = self._assign(f"{tensor.text}_aligned", value)
        return self.aligned[id(n)]

    def _walked(self, kernel: Kernel) -> list[Node]:
        """The tensors whose addresses and strides a kernel takes."""
        whole = self.bodies[kernel.name].launch.whole_tensors
        return [*kernel.leaves, *(t.node for t in whole)]

    def _workspace(self, kernel: Kernel) -> list[Expression]:
        if kernel.name not in self.workspaces:
            return []
        device = self._device()
        count = self.workspaces[kernel.name].format(**self.guard.sizes)
        text = f"torch.empty({count}, dtype=torch.uint8, device={device.text})"
        return [self._assign("workspace", expression(text, [device]))]

    def _empty(self, n: Node) -> Expression:
        """Fresh memory of the node's shape, type and layout."""
        strides: dict[int, Size] = {}
        step: Size = 1
        for d in reversed(n.order or range(len(n.shape))):
            strides[d], step = step, times(step, n.shape[d] or 1)
        ordered = tuple(strides[d] for d in sorted(strides))
        laid = ", ".join(shape_tuple(sizes, self.guard.sizes) for sizes in (n.shape, ordered))
        device = ", device" if self.plan.target.language == "cuda" else ""
        text = f"{Snippet.EMPTY}({laid}, {n.dtype}{device})"
        return expression(text, snippets=[Snippet.EMPTY])

    def _updates(self) -> None:
        counters: dict[Expression, list[Expression]] = {}
        for update in self.graph.updates:
            target = self._tensor_expression(update.target)
            if id(update.value) in self.counted:
                more = self._tensor_expression(update.value.args[1])
                counters.setdefault(more, []).append(target)
                continue
            value = self._tensor_expression(update.value)
            if writes_itself(update.value):
                continue
            if target == value:
                increment = Snippet.INCREMENT_VERSION
                text, snippets = f"{increment}({target.text})", [increment]
            else:
                text, snippets = f"{target.text}.copy_({value.text})", []
            self.statements.append(evaluate(expression(text, [target, value], snippets)))
        for more, some in counters.items():  # those of many layers in one launch
            together = f"torch._foreach_add_([{', '.join(t.text for t in some)}], {more.text})"
            text = f"{some[0].text}.add_({more.text})" if len(some) == 1 else together
            self.statements.append(evaluate(expression(text, [*some, more])))

    def _replace(self) -> None:
        """Give attributes that the model replaces their new values."""
        for r in self.captured.replaced:
            value = self._written(r.after)
            text = f"{self.guard.modules[r.place.path]}.{r.place.name} = {value.text}"
            self.statements.append(evaluate(expression(text, [value])))

    def _written(self, tree: Tree) -> Expression:
        """A value that holds tensors among the outputs."""
        tensors = [self._tensor_expression(o) for o in self.graph.outputs]
        texts = [tensor.text for tensor in tensors]
        text = self.guard.containers.written(tree, texts, self.guard.sizes)
        held = [tensors[leaf.number] for leaf in leaves(tree) if isinstance(leaf, Slot)]
        return expression(text, held)


def _exposed_memory(graph: Graph) -> set[int]:
    """Nodes whose very memory an output may show, so that it must stay as PyTorch laid it out."""
    found: set[int] = set()
    waiting = [base(o) for o in graph.outputs]
    while waiting:
        n = waiting.pop()
        if id(n) not in found:
            found.add(id(n))
            views = n.op == "getitem" or (n.op == "library" and not n.call.new_memory)
            waiting += [base(a) for a in n.args] if views else []
    return found


def _given(body: KernelText) -> list[Node]:
    return [p.node for p in body.pointers if not p.written]
