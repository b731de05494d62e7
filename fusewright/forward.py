"""Plan + Storage -> the body of the emitted `forward`: the plan's steps as lines of Python.

Every tensor that must exist gets a variable; views are PyTorch's own views; a variable is deleted after
its last use, so memory is free as early as in the original.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn
from torch.utils import _pytree as pytree

from fusewright.capture import Captured
from fusewright.codegen.body import Body
from fusewright.errors import CaptureFailed
from fusewright.guard import batch_source, device_source, place
from fusewright.interpret import python_text
from fusewright.ir import Batch, Node, Shape, size_text, toposort
from fusewright.plan import Kernel, Library, Plan


@dataclass(frozen=True)
class _Line:
    """One statement, and the variable it defines (or "")."""

    text: str
    defines: str = ""


def forward_lines(
    captured: Captured,
    plan: Plan,
    bodies: Sequence[Body],
    module: nn.Module,
    names: Sequence[str],
) -> tuple[str, ...]:
    """The statements between the guard and the end of `forward`."""
    return _Forward(captured, plan, bodies, module, names).lines()


class _Forward:
    def __init__(
        self,
        captured: Captured,
        plan: Plan,
        bodies: Sequence[Body],
        module: nn.Module,
        names: Sequence[str],
    ) -> None:
        self.captured, self.plan, self.module, self.names = captured, plan, module, names
        self.graph = captured.graph
        self.bodies = {b.name: b for b in bodies}
        self.text: dict[int, str] = {}
        self.used: set[str] = set(names) | {"self", "batch", "torch"}
        self.statements: list[_Line] = []

    def lines(self) -> tuple[str, ...]:
        self._name_leaves()
        batch = batch_source(self.captured, self.names)
        head = [f"batch = {batch}"] if batch else []
        for step in self.plan.steps:
            if isinstance(step, Kernel):
                self._kernel(step)
            else:
                self._library(step)
        self._updates()
        result = f"return {self._packed()}"
        return (*head, *self._with_deletes(result), result)

    # -- names

    def _name_leaves(self) -> None:
        positions = {a.tensor: a.index for a in self.captured.arguments if a.tensor is not None}
        for k, leaf in enumerate(self.graph.inputs):
            self.text[id(leaf)] = self.names[positions[k]]
        for n in toposort(self.graph.roots):
            if n.op in ("parameter", "buffer"):
                self.text[id(n)] = self._state(str(n["name"]))
            elif n.op == "constant":
                self.text[id(n)] = python_text(n["value"], 0) if not _is_batch(n) else "batch"

    def _state(self, name: str) -> str:
        if name not in self.captured.constants:
            return place(self.module, name)
        tensor = self.captured.constants[name]
        return f"torch.tensor({tensor.tolist()!r}, dtype={tensor.dtype}, device={self._device()})"

    def _device(self) -> str:
        names = [self.names[a.index] for a in self.captured.arguments if a.tensor is not None]
        state = [place(self.module, p) for p, _ in self.module.named_parameters()]
        return f"{device_source(self.captured, names, state)}.device" if names or state else "'cpu'"

    def _fresh_name(self, wanted: str) -> str:
        name, k = wanted, 1
        while name in self.used:
            k += 1
            name = f"{wanted}_{k}"
        self.used.add(name)
        return name

    # -- tensors

    def _reach(self, n: Node) -> str:
        """Python text of a tensor; views are taken where they are used."""
        if id(n) not in self.text:
            assert n.row.kind == "view", f"{n!r} is used before it exists"
            pairs = {"shape": _shape(n.shape)}
            if n.op == "permute":
                pairs = {"permutation": python_text(n["permutation"], 0)}
            self.text[id(n)] = n.row.torch.format(self._reach(n.args[0]), **pairs)
        return self.text[id(n)]

    def _dense(self, n: Node) -> str:
        """The tensor with the layout that the kernels assume."""
        text = self._reach(n)
        ours = n.row.kind in ("map", "fold") or n.op in ("input", "parameter", "buffer")
        if ours:
            return text
        return f"_fusewright_dense({text}, {n.order})" if n.order else f"{text}.contiguous()"

    def _define(self, n: Node, name: str, text: str) -> None:
        self.text[id(n)] = name
        self.statements.append(_Line(f"{name} = {text}", name))

    # -- steps

    def _library(self, step: Library) -> None:
        n = step.node
        arguments = [self._reach(a) for a in n.args]
        name = self._fresh_name(_short_name(n))
        if n.op == "library":
            text = str(n["call"]).format(*arguments, device=self._device())
        elif n.op == "item":
            text = f"{arguments[0]}[{n['index']}]"
        else:
            attributes = {key: python_text(value, 0) for key, value in n.attributes}
            text = n.row.torch.format(*arguments, **attributes)
        if self._read_by_kernel(n):
            dense = f"_fusewright_dense({text}, {n.order})" if n.order else f"{text}.contiguous()"
            text = dense
        self._define(n, name, text)

    def _read_by_kernel(self, n: Node) -> bool:
        return any(n is leaf for kernel in self.plan.kernels for leaf in kernel.leaves)

    def _kernel(self, kernel: Kernel) -> None:
        body = self.bodies[kernel.name]
        reused = {id(out): leaf for out, leaf in body.in_place}
        for k, output in enumerate(kernel.outputs):
            if id(output) in reused:
                self.text[id(output)] = self._reach(reused[id(output)])
                continue
            name = self._fresh_name(f"{kernel.name}_{k}" if len(kernel.outputs) > 1 else kernel.name)
            self._define(output, name, _empty(output, self._device()))
        tensors = [self._dense(p.node) for p in body.pointers]
        batch = ["batch"] if self.graph.batch else ["0"]
        arguments = ", ".join([repr(f"run_{kernel.name}"), *tensors, *batch])
        self.statements.append(_Line(f"_fusewright_run({arguments})"))

    def _updates(self) -> None:
        for update in self.graph.updates:
            target, value = self._reach(update.target), self._reach(update.value)
            if target != value:
                self.statements.append(_Line(f"{target}.copy_({value})"))

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
        leaves = iter([self._reach(o) for o in self.graph.outputs])
        return _pack(self.captured.spec, lambda: next(leaves))


def _pack(spec: pytree.TreeSpec, leaf: Callable[[], str]) -> str:
    if spec.is_leaf():
        return leaf()
    inside = [_pack(child, leaf) for child in spec.children_specs]
    if spec.type is tuple:
        return f"({', '.join(inside)}{',' if len(inside) == 1 else ''})"
    if spec.type is list:
        return f"[{', '.join(inside)}]"
    if spec.type is dict:
        return "{" + ", ".join(f"{k!r}: {v}" for k, v in zip(spec.context, inside, strict=True)) + "}"
    raise CaptureFailed(
        f"forward returns a {getattr(spec.type, '__name__', spec.type)}. Return a tensor, or a tuple, "
        "list or dict of tensors."
    )


def _mentions(text: str, name: str) -> bool:
    words = "".join(c if c.isalnum() or c == "_" else " " for c in text).split()
    return name in words


def _short_name(n: Node) -> str:
    if n.op == "library":
        return str(n["name"]).removeprefix("aten.").strip("_")
    return f"{n.op}_result"


def _is_batch(n: Node) -> bool:
    return isinstance(n["value"], Batch)


def _shape(shape: Shape) -> str:
    inside = ", ".join(map(size_text, shape))
    return f"({inside},)" if len(shape) == 1 else f"({inside})"


def _empty(n: Node, device: str) -> str:
    """Fresh memory of the node's shape, type and layout."""
    tail = f"dtype={n.dtype}, device={device}"
    if not n.order:
        return f"torch.empty({_shape(n.shape)}, {tail})"
    laid = tuple(n.shape[d] for d in n.order)
    back = tuple(n.order.index(d) for d in range(len(n.order)))
    return f"torch.empty({_shape(laid)}, {tail}).permute({back})"
