"""Exported program -> the same program without tensors whose length is the count of a mask's
trues, wherever that length never leaves: `w[m] = f(q[m])`, `w[m] += v`, `q[m].mean()`.

`q[m]` becomes all of `q`, its masked dimensions as one, and remembers the mask. What computes
element by element goes on with all elements; what puts them back under the same mask is a
`where`; sums and means take zeros where the mask is false. Everything else stays as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node

from fusewright.frontend.program import Program

aten = torch.ops.aten
ALIKE = (aten.clone.default, aten._to_copy.default, aten.detach.default, aten.alias.default)
# Losses without limits for what they are given -> the place of their reduction.
LOSSES = {aten.mse_loss.default: 2, aten.smooth_l1_loss.default: 2, aten.huber_loss.default: 2}
NONE, MEAN = 0, 1  # reductions, as ATen numbers them
# Of integers, these raise for some values, which the mask may keep out.
RAISE = ("div", "floor_divide", "remainder", "fmod", "pow")


@dataclass(frozen=True)
class Selection:
    """all: every element that the mask could take, [masked elements, rest...].  mask: as given."""

    all: Node
    mask: Node


def without_selections(program: Program) -> None:
    """Rewrite the program in place."""
    places = (n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder")
    given = [v for v in places if isinstance(v, FakeTensor)]
    if given and any(_by_mask(n) is not None for n in program.graph.nodes):
        with given[0].fake_mode:
            _Rewriter(program).run()


def _by_mask(n: Node) -> Node | None:
    """The mask of a call that indexes, or assigns at, leading dimensions by one mask alone."""
    if n.target in (aten.index.Tensor, aten.index_put.default):
        indices: Any = n.args[1]
        mask = indices[0] if len(indices) == 1 else None
    elif n.target in (aten.masked_select.default, aten.masked_scatter.default):
        mask = n.args[1]
        if isinstance(mask, Node) and _value(mask).shape != _value(n.args[0]).shape:
            return None
    else:
        return None
    known = isinstance(mask, Node) and _value(mask).dtype is torch.bool and _value(mask).dim()
    return mask if isinstance(mask, Node) and known else None


def _value(n: Any) -> torch.Tensor:
    value = n.meta["val"]
    assert isinstance(value, torch.Tensor), "only tensors are asked for"
    return value


def _is_tensor(n: object) -> bool:
    return isinstance(n, Node) and isinstance(n.meta.get("val"), torch.Tensor)


class _Rewriter:
    def __init__(self, program: Program) -> None:
        self.graph = program.graph
        self.selections: dict[Node, Selection] = {}
        self.replaced: set[Node] = set()

    def run(self) -> None:
        for n in list(self.graph.nodes):
            if n.op != "call_function" or n in self.selections:
                continue
            with self.graph.inserting_before(n):
                self._node(n)
        self._drop()

    def _node(self, n: Node) -> None:
        chosen = [self.selections[a] for a in n.all_input_nodes if a in self.selections]
        mask = _by_mask(n)
        if n.target in (aten.index.Tensor, aten.masked_select.default) and mask is not None:
            if not chosen:
                self._select(n, mask)
        elif mask is not None:
            self._put(n, mask)
        elif chosen and all(_same(chosen[0].mask, s.mask) for s in chosen):
            self._follow(n, chosen[0])

    def _select(self, n: Node, mask: Node) -> None:
        x, dims = n.args[0], _value(mask).dim()
        rest = _value(x).shape[dims:]
        if all(isinstance(s, int) and s for s in rest):
            self.selections[n] = Selection(
                self._call(n, aten.reshape.default, x, [-1, *rest]), mask
            )

    def _put(self, n: Node, mask: Node) -> None:
        """What holds `source` where the mask is true."""
        target, source = n.args[0], n.args[2]
        add = n.target is aten.index_put.default and len(n.args) > 3 and bool(n.args[3])
        rest = _value(target).dim() - _value(mask).dim()
        chosen = self.selections.get(source) if isinstance(source, Node) else None
        if chosen is not None and _same(chosen.mask, mask):
            if _value(chosen.all).shape[1:] != _value(target).shape[_value(mask).dim() :]:
                return
            spread = self._call(n, aten.view_as.default, chosen.all, target)
        elif chosen is None and n.target is aten.index_put.default and _is_tensor(source):
            shape = _value(source).shape
            if len(shape) > rest and any(
                not isinstance(s, int) or s != 1 for s in shape[: len(shape) - rest]
            ):
                return
            kept = list(shape[len(shape) - rest :]) if len(shape) > rest else list(shape)
            if not all(isinstance(s, int) for s in kept):
                return
            spread = self._call(n, aten.reshape.default, source, kept)
        else:
            return
        if add:
            spread = self._call(n, aten.add.Tensor, target, spread)
        column = self._column(n, mask, rest)
        made = self._call(n, aten.where.self, column, spread, target)
        if _value(made).dtype is _value(n).dtype:
            made.meta["val"] = n.meta["val"]  # it lies as what is assigned to
        self._replace(n, made)

    def _column(self, n: Node, mask: Node, rest: int) -> Node:
        """The mask with `rest` more dimensions of size 1."""
        for _ in range(rest):
            mask = self._call(n, aten.unsqueeze.default, mask, -1)
        return mask

    def _follow(self, n: Node, chosen: Selection) -> None:
        """What becomes of a call whose arguments are selected."""
        place = LOSSES.get(n.target)  # type: ignore[call-overload]
        dims: Any = n.args[1] if len(n.args) > 1 else None
        if n.target is aten.broadcast_tensors.default:
            self._broadcast(n)
        elif n.target is aten.sym_size.int and n.args[1] == 0:
            count = self._call(n, aten.sum.default, chosen.mask)
            number = self.graph.call_function(aten.item.default, (count,))
            number.meta.update(n.meta)
            self._replace(n, number)
        elif place is not None and self._fits(n, chosen):
            reduction = n.args[place] if len(n.args) > place else MEAN
            loss = self._everywhere(n, {place: NONE})
            if reduction == NONE:
                self.selections[n] = Selection(loss, chosen.mask)
            else:
                self._replace(n, self._total(n, loss, chosen.mask, mean=reduction == MEAN))
        elif n.target in (aten.sum.default, aten.mean.default):
            self._replace(n, self._total(n, chosen.all, chosen.mask, mean="mean" in str(n.target)))
        elif n.target in (aten.sum.dim_IntList, aten.mean.dim) and dims:
            rank = _value(chosen.all).dim()
            if 0 in {int(d) % rank for d in dims}:
                mean = n.target is aten.mean.dim
                self._replace(n, self._total(n, chosen.all, chosen.mask, mean=mean))
        elif self._elementwise(n) and self._fits(n, chosen):
            self.selections[n] = Selection(self._everywhere(n, {}), chosen.mask)

    def _broadcast(self, n: Node) -> None:
        """Selections of the same sizes are what they were."""
        tensors: Any = n.args[0]
        found = [self.selections.get(a) for a in tensors]
        shapes = {tuple(_value(s.all).shape[1:]) for s in found if s is not None}
        if None not in found and len(shapes) == 1:
            for user in n.users:
                one = found[int(user.args[1])]  # type: ignore[arg-type]
                if one is not None:
                    self.selections[user] = one
            self.replaced.add(n)

    def _elementwise(self, n: Node) -> bool:
        tags = getattr(n.target, "tags", ())
        if not (torch.Tag.pointwise in tags or n.target in ALIKE):
            return False
        if torch.Tag.nondeterministic_seeded in tags or not _is_tensor(n):
            return False
        name = str(n.target).removeprefix("aten.").partition(".")[0]
        return _value(n).dtype.is_floating_point or name not in RAISE

    def _fits(self, n: Node, chosen: Selection) -> bool:
        """Whether what is not selected meets all elements as it met the selected ones."""
        rank = _value(chosen.all).dim()
        others = [a for a in n.all_input_nodes if a not in self.selections]
        alike = [self.selections[a].all for a in n.all_input_nodes if a in self.selections]
        if any(_value(a).dim() != rank for a in alike) or not all(map(_is_tensor, others)):
            return False
        first = [_value(a).shape[0] for a in others if _value(a).dim() >= rank]
        return all(isinstance(size, int) and size == 1 for size in first)

    def _everywhere(self, n: Node, changed: Mapping[int, Any]) -> Node:
        """The same call on all elements."""
        pick = lambda a: self.selections[a].all if a in self.selections else a  # noqa: E731
        args = list(torch.fx.map_arg(n.args, pick))
        for place, value in changed.items():
            args += [None] * (place + 1 - len(args))
            args[place] = value
        return self._call(n, n.target, *args, **torch.fx.map_arg(n.kwargs, pick))

    def _total(self, n: Node, x: Node, mask: Node, *, mean: bool) -> Node:
        """A sum or mean, of what `n` says, where the mask is true."""
        flat = self._call(n, aten.reshape.default, mask, [-1])
        column = self._column(n, flat, _value(x).dim() - 1)
        zero = self._call(n, aten.zeros_like.default, x)
        kept = self._call(n, aten.where.self, column, x, zero)
        dims: Any = list(range(_value(x).dim()))
        keep, kwargs = False, dict(n.kwargs)
        if n.target in (aten.sum.dim_IntList, aten.mean.dim):
            given: Any = n.args[1]
            dims = sorted({int(d) % len(dims) for d in given})
            keep = len(n.args) > 2 and bool(n.args[2])
        if not mean:
            return self._call(n, aten.sum.dim_IntList, kept, dims, keep, **kwargs)
        made = _value(n).dtype
        wide = torch.promote_types(made, torch.float32)
        total = self._call(n, aten.sum.dim_IntList, kept, dims, keep, dtype=wide)
        count = self._call(n, aten.sum.default, mask)
        others = prod(int(_value(x).shape[d]) for d in dims if d)
        number = self._call(n, aten.mul.Tensor, count, others)
        share = self._call(n, aten.div.Tensor, total, number)
        return share if wide is made else self._call(n, aten._to_copy.default, share, dtype=made)

    def _call(self, n: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
        made: Node = self.graph.call_function(target, args, kwargs)
        made.meta = {k: v for k, v in n.meta.items() if k in ("stack_trace",)}
        values, named = torch.fx.map_arg((args, kwargs), lambda a: a.meta["val"])
        made.meta["val"] = target(*values, **named)
        return made

    def _replace(self, n: Node, other: Node) -> None:
        n.replace_all_uses_with(other)
        self.replaced.add(n)

    def _drop(self) -> None:
        """Take out what nobody reads any more, and what was asserted of its lengths."""
        asserted = (aten._assert_scalar.default, aten.sym_constrain_range_for_size.default)
        for n in reversed(list(self.graph.nodes)):
            if n.op != "call_function" or n.users:
                continue
            value = n.meta.get("val")
            unread = (
                isinstance(value, torch.SymBool | torch.SymInt)
                or n in self.selections
                or n in self.replaced
            )
            if unread or n.target in asserted or _by_mask(n) is not None:
                with suppress(RuntimeError):
                    self.graph.erase_node(n)


def _same(a: object, b: object) -> bool:
    """Whether two masks are computed alike from the same tensors."""
    if not (isinstance(a, Node) and isinstance(b, Node)):
        return type(a) is type(b) and a == b
    if a is b:
        return True
    seeded = torch.Tag.nondeterministic_seeded in getattr(a.target, "tags", ())
    if a.op != "call_function" or a.target is not b.target or seeded or a.kwargs != b.kwargs:
        return False
    return len(a.args) == len(b.args) and all(map(_same, a.args, b.args))
