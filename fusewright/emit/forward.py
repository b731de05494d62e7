"""Plan + Storage + Guard -> the body of the emitted `forward`: the plan's steps as lines of Python.

Every tensor that must exist gets a variable; views are PyTorch's own views; a variable is deleted
after its last use, so memory is free as early as in the original. Kernels get addresses, and every
tensor behind an address is held by a variable until the call is over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusewright.codegen.kernel_text import KernelText
from fusewright.emit.guard import ForwardGuard
from fusewright.emit.python_text import literal, shape_tuple
from fusewright.frontend.capture import Captured
from fusewright.frontend.library_calls import is_float_product, writes_itself
from fusewright.fusion.batch_counters import call_counters
from fusewright.fusion.planner import Kernel, LibraryStep, Plan
from fusewright.ir.graph import BatchSize, Graph, Node, Size, base, times, toposort
from fusewright.ir.interpreter import python_text
from fusewright.ir.strided_view import as_ints
from fusewright.kernels.tensor_core.tile import Tile
from fusewright.kernels.tensor_core.variant import variant_of


@dataclass(frozen=True)
class _Statement:
    """One statement, and the variable it defines (or "")."""

    text: str
    defines: str = ""


def forward_lines(
    captured: Captured,
    plan: Plan,
    bodies: Sequence[KernelText],
    guard: ForwardGuard,
    scratch: Mapping[str, str],
    tiles: Mapping[str, Tile],
) -> tuple[str, ...]:
    """The statements between the guard and the end of `forward`.

    scratch: name of a kernel -> bytes of memory it takes as its last address, as Python text.
    tiles: of the kernels with a product, by name.
    """
    return _ForwardPrinter(captured, plan, bodies, guard, scratch, tiles).lines()


class _ForwardPrinter:
    def __init__(
        self,
        captured: Captured,
        plan: Plan,
        bodies: Sequence[KernelText],
        guard: ForwardGuard,
        scratch: Mapping[str, str],
        tiles: Mapping[str, Tile],
    ) -> None:
        self.captured, self.plan, self.guard = captured, plan, guard
        self.scratch, self.tiles = scratch, tiles
        self.graph = captured.graph
        self.bodies = {b.name: b for b in bodies}
        self.text: dict[int, str] = {}
        self.statements: list[_Statement] = []
        self.dense: dict[int, str] = {}
        self.fresh: set[int] = set()  # what torch.empty made, at a multiple of 16 bytes
        self.shown = _shown(self.graph)
        self.counted = call_counters(plan)
        joints = [n for n in toposort(self.graph.roots) if n.has("joint")]
        wholes = {id(piece): n for n in joints if not n.has("inside") for piece in n.args}
        self.wholes = wholes | {id(n): wholes[id(n.args[0])] for n in joints if n.has("inside")}

    def lines(self) -> tuple[str, ...]:
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
        result = f"return {self._packed()}"
        return (*self._head(), *self._with_deletes(result), result)

    def _head(self) -> list[str]:
        """What the kernels need beside tensors, asked for once."""
        if not self.plan.kernels:
            return []
        ready = f"{self.run} = _FUSEWRIGHT or _fusewright_build()"
        if self.plan.target.language == "cuda":
            return [ready, "stream = torch._C._cuda_getCurrentRawStream(device)"]
        return [ready, f"{self.last} = torch.get_num_threads()"]

    def _last(self) -> str:
        """The arguments of every kernel behind its tensors and the batch size."""
        cuda = self.plan.target.language == "cuda"
        return "device, stream" if cuda else self.guard.names.fresh("threads")

    # -- names

    def _name_leaves(self) -> None:
        for name, leaf in zip(self.guard.inputs, self.graph.inputs, strict=True):
            self.text[id(leaf)] = name
        for n in self.graph.leaves:
            if n.op in ("parameter", "buffer"):
                self.text[id(n)] = self._state(n)
            elif n.op == "constant":
                batch = isinstance(n["value"], BatchSize)
                self.text[id(n)] = self.guard.batch if batch else python_text(n["value"], 0)

    def _state(self, n: Node) -> str:
        name = str(n["name"])
        if name in self.guard.locals:
            return self.guard.locals[name]
        tensor = self.captured.constants[name]
        variable = self.guard.names.fresh("constant")
        one = tensor.numel() == 1  # a GPU fills it, and nobody waits for a copy
        made = f"full({tuple(tensor.shape)}, " if one else "tensor("
        values = python_text(tensor.item() if one else tensor.tolist(), 0)
        text = f"torch.{made}{values}, dtype={tensor.dtype}, device={self._device()})"
        self.statements.append(_Statement(f"{variable} = {text}", variable))
        return variable

    def _device(self) -> str:
        tensors = [*self.guard.inputs, *self.guard.locals.values()]
        return f"{tensors[0]}.device" if tensors else '"cpu"'

    # -- tensors

    def _reach(self, n: Node) -> str:
        """Python text of a tensor; views are taken where they are used."""
        if n.has("joint") and n.has("inside"):
            return self._inside(n)
        if id(n) not in self.text:
            assert n.row.kind == "view", f"{n!r} is used before it exists"
            pairs = {"shape": self._renamed(shape_tuple(n.shape))}
            pairs |= {name: python_text(value, 0) for name, value in n.attributes}
            self.text[id(n)] = n.row.torch.format(self._reach(n.args[0]), **pairs)
        return self.text[id(n)]

    def _renamed(self, text: str) -> str:
        """Sizes in the words of the guard: `batch` may be a name of the model's own."""
        new = self.guard.batch
        return re.sub(r"(?<![\w.])batch\b", new, text) if new else text

    def _define(self, n: Node, name: str, text: str) -> None:
        self.text[id(n)] = name
        self.statements.append(_Statement(f"{name} = {text}", name))

    def _dense(self, text: str, n: Node) -> str:
        """The tensor with the layout that kernels assume."""
        return f"_fusewright_dense({text}, {n.order})" if n.order else f"{text}.contiguous()"

    def _operand(self, n: Node) -> str:
        """A variable that holds the tensor, laid out as the kernels assume."""
        if id(n) in self.dense:
            return self.dense[id(n)]
        if n.row.computed or n.op in (
            "input",
            "parameter",
            "buffer",
            "library",
            "item",
        ):
            return self._reach(n)
        variable = self.guard.names.fresh(f"{n.op}_result")
        text = self._dense(self._reach(n), n)
        self.statements.append(_Statement(f"{variable} = {text}", variable))
        return variable

    # -- steps

    def _library(self, step: LibraryStep) -> None:
        n = step.node
        if id(n) in self.counted:  # in place, with the updates
            return
        arguments = [self._reach(a) for a in n.args]
        if n.op == "library":
            text = self._renamed(str(n["call"])).format(*arguments, device=self._device())
        elif n.op == "item":
            text = f"{arguments[0]}[{n['index']}]"
        else:
            attributes = {key: python_text(value, 0) for key, value in n.attributes}
            text = n.row.torch.format(*arguments, **attributes)
        if self.plan.precision == "ieee" and is_float_product(n):
            text = f"_fusewright_ieee(lambda: {text})"
        name = self.guard.names.fresh(_short_name(n))
        self._define(n, name, text)
        if any(n is leaf for kernel in self.plan.kernels for leaf in _walked(kernel)):
            dense = self.guard.names.fresh(f"{name}_dense") if id(n) in self.shown else name
            self.dense[id(n)] = dense
            self.statements.append(_Statement(f"{dense} = {self._dense(name, n)}", dense))

    def _kernel(self, kernel: Kernel) -> None:
        body = self.bodies[kernel.name]
        reused = {id(out): leaf for out, leaf in body.in_place}
        read = [*self._factors(kernel), *(self._operand(n) for n in _given(body))]
        for k, output in enumerate(kernel.outputs):
            if id(output) in reused:
                self.text[id(output)] = self._operand(reused[id(output)])
                continue
            wanted = f"{kernel.name}_{k}" if len(kernel.outputs) > 1 else kernel.name
            name = self.guard.names.fresh(wanted)
            self._define(output, name, self._inside(output) or self._empty(output))
            self.fresh.add(id(output))
        self.text.update((id(n), self._operand(n.args[0])) for n in kernel.counters)
        written = [self.text[id(p.node)] for p in body.pointers if p.written]
        addresses = [f"{name}.data_ptr()" for name in (*read, *written, *self._scratch(kernel))]
        batch = self.guard.batch or "0"
        arguments = ", ".join([*addresses, batch, self.last])
        self.statements.append(_Statement(f"{self.run}[{literal(kernel.name)}]({arguments})"))

    def _inside(self, n: Node) -> str:
        """Its place in the memory of a joined tensor; "" where it has memory of its own."""
        if not n.has("inside"):
            return ""
        whole = self.wholes[id(n)]
        if id(whole) not in self.text:
            self._define(whole, self.guard.names.fresh("joined"), self._empty(whole))
            self.fresh.add(id(whole))
        dim, start, _ = as_ints(n["inside"])
        return f"{self.text[id(whole)]}.narrow({dim}, {start}, {n.shape[dim]})"

    def _factors(self, kernel: Kernel) -> list[str]:
        """What the kernel's product reads as a whole, aligned where tensor maps read it."""
        if kernel.product is None:
            return []
        tile = self.tiles[kernel.name]
        kind = variant_of(kernel.product, inline=tile.inline)
        found = kind.whole(kernel.product)
        names = [self._operand(n) for n in found]
        aligned: dict[str, str] = {}
        read = kind.boxed[tile.swapped]
        for k in read:
            if id(found[k]) not in self.fresh and names[k] not in aligned:
                name = aligned[names[k]] = self.guard.names.fresh(f"{names[k]}_aligned")
                self.statements.append(
                    _Statement(f"{name} = _fusewright_aligned({names[k]})", name)
                )
        return [aligned.get(name, name) if k in read else name for k, name in enumerate(names)]

    def _scratch(self, kernel: Kernel) -> list[str]:
        if kernel.name not in self.scratch:
            return []
        name = self.guard.names.fresh("scratch")
        count = self._renamed(self.scratch[kernel.name])
        size = f"{count}, dtype=torch.uint8, device={self._device()}"
        self.statements.append(_Statement(f"{name} = torch.empty({size})", name))
        return [name]

    def _empty(self, n: Node) -> str:
        """Fresh memory of the node's shape, type and layout."""
        strides: dict[int, Size] = {}
        step: Size = 1
        for d in reversed(n.order or range(len(n.shape))):
            strides[d], step = step, times(step, n.shape[d] or 1)
        laid = f"{shape_tuple(n.shape)}, {shape_tuple(tuple(strides[d] for d in sorted(strides)))}"
        device = ", device" if self.plan.target.language == "cuda" else ""
        return f"_fusewright_empty({self._renamed(laid)}, {n.dtype}{device})"

    def _updates(self) -> None:
        counters: dict[str, list[str]] = {}
        for update in self.graph.updates:
            target = self._reach(update.target)
            if id(update.value) in self.counted:
                counters.setdefault(self._reach(update.value.args[1]), []).append(target)
                continue
            value = self._reach(update.value)
            if writes_itself(update.value):
                continue
            changed = f"_fusewright_changed({target})"
            text = changed if target == value else f"{target}.copy_({value})"
            self.statements.append(_Statement(text))
        for more, some in counters.items():  # those of many layers in one launch
            together = f"torch._foreach_add_([{', '.join(some)}], {more})"
            self.statements.append(
                _Statement(f"{some[0]}.add_({more})" if len(some) == 1 else together)
            )

    def _replace(self) -> None:
        """Give attributes that the model replaces their new values."""
        tensors = [self._reach(o) for o in self.graph.outputs]
        for r in self.captured.replaced:
            value = self.guard.containers.written(r.after, tensors, self.guard.batch)
            self.statements.append(
                _Statement(f"{self.guard.modules[r.place.path]}.{r.place.name} = {value}")
            )

    # -- memory and results

    def _with_deletes(self, result: str) -> list[str]:
        """Statements, each followed by the deletion of what nobody reads any more."""
        defined = [s.defines for s in self.statements if s.defines]
        texts = [s.text for s in self.statements] + [result]
        last = {name: max(i for i, t in enumerate(texts) if _mentions(t, name)) for name in defined}
        lines: list[str] = []
        for i, statement in enumerate(self.statements):
            lines.append(statement.text)
            dead = [name for name in dict.fromkeys(defined) if last[name] == i]
            if dead and i + 1 < len(self.statements):
                lines.append(f"del {', '.join(dead)}")
        return lines

    def _packed(self) -> str:
        tensors = [self._reach(o) for o in self.graph.outputs]
        return self.guard.containers.written(self.captured.results, tensors, self.guard.batch)


def _shown(graph: Graph) -> set[int]:
    """Nodes whose very memory an output may show, so that it must stay as PyTorch laid it out."""
    found: set[int] = set()
    waiting = [base(o) for o in graph.outputs]
    while waiting:
        n = waiting.pop()
        if id(n) not in found:
            found.add(id(n))
            views = n.op == "item" or (n.op == "library" and n["fresh"] is not True)
            waiting += [base(a) for a in n.args] if views else []
    return found


def _mentions(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w.]){name}\b", text) is not None


def _given(body: KernelText) -> list[Node]:
    return [p.node for p in body.pointers if not p.written]


def _walked(kernel: Kernel) -> list[Node]:
    """The tensors whose addresses and strides a kernel takes."""
    whole = variant_of(kernel.product).whole(kernel.product) if kernel.product else ()
    return [*kernel.leaves, *whole]


def _short_name(n: Node) -> str:
    if n.op == "library":
        return str(n["name"]).removeprefix("aten.").strip("_") + "_out"
    return f"{n.op}_out"
