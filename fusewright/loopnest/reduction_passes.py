"""Nest + what is said of keeping -> the passes over a row, and which values are kept between them.

A kernel with reductions walks each row several times: once per reduction or scan (those of one
level may follow each other), once more to store. A value that an earlier pass had and a later pass
needs is kept in fast memory if computing it again costs more than the policy's `min_cost`; what a
scan finds is always kept.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

from fusewright.fusion.axes import Load, elementwise_args
from fusewright.ir.graph import Node
from fusewright.loopnest.nest import AffineAccess, Nest


@dataclass(frozen=True)
class KeepPolicy:
    """What is said of keeping.

    keep: values needed twice are kept near by when computing them costs `min_cost` or more.
    shared_row: threads share a row: exponentials then cost them less than reading it again.
    """

    keep: bool
    min_cost: int
    shared_row: bool


# What a strategy asks before it is chosen: the registers that most of a row takes; the passes of
# threads that share a row of which nothing is kept.
KEEP_ALL, KEEP_NOTHING = KeepPolicy(True, 0, False), KeepPolicy(False, 0, True)


@dataclass(frozen=True)
class RowPass:
    """One sweep over a row. reductions: what it makes known (mean and m2 come together, and so may
    a maximum and a sum of exponentials), or () for the last pass, which stores `outputs`."""

    level: int
    reductions: tuple[Node, ...]
    outputs: tuple[Node, ...]


# The number of what stands before the first pass, which is pass 0.
BEFORE_PASSES = -1


@dataclass(frozen=True)
class KeptValue:
    """A value kept from pass `first` to pass `last`; what is loaded ahead is kept from before all
    passes."""

    key: Hashable
    node: Node
    first: int
    last: int


@dataclass(frozen=True)
class OnlineSoftmax:
    """A sum of exp(x - shift) that comes from the sweep which finds the maximum of x."""

    top: Node
    shift: Node


@dataclass(frozen=True)
class RowPlan:
    """What happens along one row: which members vary along it, the passes, what is kept, the
    sums that have no pass of their own, the divisions by one number for the whole row, and reads
    (as the argument of a member) that come before the first pass."""

    element: frozenset[int]
    level: Mapping[int, int]
    passes: tuple[RowPass, ...]
    keeps: Mapping[Hashable, KeptValue]
    exponentials: Mapping[int, OnlineSoftmax]
    quotients: frozenset[int]
    ahead: tuple[tuple[Node, int], ...] = ()

    @property
    def registers(self) -> int:
        """What one element of the row takes while most is kept of it."""
        kept = [(keep, max(1, keep.node.dtype.itemsize // 4)) for keep in self.keeps.values()]
        ends = range(len(self.passes))
        return max(sum(size for k, size in kept if k.first <= end < k.last) for end in ends)


def plan_row(nest: Nest, policy: KeepPolicy) -> RowPlan:
    """Decide the passes of `nest` and what they keep."""
    element = _element(nest)
    level = _levels(nest)
    kept = (policy.keep and not nest.kernel.loops.stored_length) or nest.kernel.scans
    together = _exponentials(nest, element) if policy.shared_row and not kept else {}
    passes = _passes(nest, level, together)
    keeps = _keeps(nest, element, passes, policy) if kept else {}
    stored = passes[-1].outputs
    known = _behind(nest, element.union(map(id, stored)), level) if stored else level
    early = _ahead(nest, passes, keeps) if policy.shared_row else {}
    keeps |= {key: replace(keeps[key], first=BEFORE_PASSES) for key in early}
    quotients, ahead = _quotients(nest, element), tuple(early.values())
    return RowPlan(element, known, passes, keeps, together, quotients, ahead)


def read_key(access: AffineAccess) -> Hashable:
    """Two reads with the same key are the same value."""
    place = (access.base, access.columns, access.outer, access.gather, access.limits)
    return (id(access.leaf), *place, repr(access.fill))


def _element(nest: Nest) -> frozenset[int]:
    """The members that vary along a row."""
    found: set[int] = set()
    for m in nest.kernel.members:
        for k in elementwise_args(m):
            edge = nest.kernel.loops.edges[id(m), k]
            varies = nest.reads[id(m), k].varies if isinstance(edge, Load) else id(edge) in found
            if varies and m.row.kind != "reduction":
                found.add(id(m))
        if m.row.kind in ("contraction", "scan"):
            found.add(id(m))
    return frozenset(found)


def _quotients(nest: Nest, element: frozenset[int]) -> frozenset[int]:
    """The divisions of elements, in float32, by what does not vary along a row."""
    found: set[int] = set()
    for m in nest.kernel.members:
        single = all(n.dtype.is_floating_point and n.dtype.itemsize < 8 for n in (m, *m.args))
        if m.op == "div" and id(m) in element and single:
            edge = nest.kernel.loops.edges[id(m), 1]
            varies = nest.reads[id(m), 1].varies if isinstance(edge, Load) else id(edge) in element
            found.update([] if varies else [id(m)])
    return frozenset(found)


def _ahead(
    nest: Nest, passes: tuple[RowPass, ...], keeps: Mapping[Hashable, KeptValue]
) -> dict[Hashable, tuple[Node, int]]:
    """Who reads what several reductions of the first level keep: a thread that asks for all of it
    at once waits for memory once."""
    some = sum(p.level == 0 and bool(p.reductions) for p in passes)
    found = {
        read_key(nest.reads[id(m), k]): (m, k)
        for m in nest.kernel.members
        for k in elementwise_args(m)
        if isinstance(nest.kernel.loops.edges[id(m), k], Load)
    }
    kept = {key: keep for key, keep in keeps.items() if key in found and keep.first < some}
    firsts = {keep.first for keep in kept.values()}
    alive = all(keep.last >= max(firsts) for keep in kept.values())
    return {key: found[key] for key in kept} if len(firsts) > 1 and alive else {}


def _levels(nest: Nest) -> dict[int, int]:
    """How many reductions, one after the other, must be done before a member is known."""
    level: dict[int, int] = {}
    for m in nest.kernel.members:
        edges = [nest.kernel.loops.edges[id(m), k] for k in elementwise_args(m)]
        below = [level[id(e)] for e in edges if not isinstance(e, Load)]
        level[id(m)] = max(below, default=0) + (m.row.kind in ("reduction", "scan"))
    return level


def _behind(nest: Nest, wanted: frozenset[int], level: Mapping[int, int]) -> Mapping[int, int]:
    """The same levels, but what neither a reduction nor `wanted` needs (running means) comes behind
    all, which frees registers."""
    needed, edges = set[int](), nest.kernel.loops.edges
    for m in reversed(nest.kernel.members):
        if id(m) in needed or id(m) in wanted or m.row.kind == "reduction":
            below = [edges[id(m), k] for k in elementwise_args(m)]
            needed |= {id(m)} | {id(e) for e in below if not isinstance(e, Load)}
    last = max(level.values()) + 1
    return {m: at if m in needed else last for m, at in level.items()}


def _exponentials(nest: Nest, element: frozenset[int]) -> dict[int, OnlineSoftmax]:
    """The sums of exp(x - shift) whose shift is the maximum of x, or that where it is finite."""
    edges, found = nest.kernel.loops.edges, dict[int, OnlineSoftmax]()
    tops = [f for f in nest.kernel.reductions if f.op == "max"]
    for f in nest.kernel.reductions:
        power = edges[id(f), 0]
        less = edges[id(power), 0] if not isinstance(power, Load) and power.op == "exp" else power
        if f.op != "sum" or less is power or isinstance(less, Load) or less.op != "sub":
            continue
        shift = edges[id(less), 1]
        if isinstance(shift, Load) or id(shift) in element:
            continue
        top = next((t for t in tops if shift is t or _is_finite_part(nest, shift, t)), None)
        if top and _source(nest, top) == _source(nest, less):
            found[id(f)] = OnlineSoftmax(top, shift)
    return found


def _is_finite_part(nest: Nest, shift: Node, top: Node) -> bool:
    """Whether `shift` is where(isinf(top), number, top)."""
    if shift.op != "where":
        return False
    condition, number, value = (nest.kernel.loops.edges[id(shift), k] for k in range(3))
    infinite = not isinstance(condition, Load) and condition.op == "isinf"
    asked = nest.kernel.loops.edges[id(condition), 0] if infinite else None
    return asked is top and value is top and isinstance(number, Load)


def _passes(
    nest: Nest, level: Mapping[int, int], together: Mapping[int, OnlineSoftmax]
) -> tuple[RowPass, ...]:
    passes: list[RowPass] = []
    for height in range(1, max(level.values(), default=0) + 1):
        reductions = [
            f for f in nest.kernel.reductions if level[id(f)] == height and id(f) not in together
        ]
        centred = {_source(nest, f) for f in reductions if f.op == "m2"}
        done: set[int] = set()
        for f in reductions:
            if id(f) in done:
                continue
            pair = f.row.pass_group and _source(nest, f) in centred
            group = [g for g in reductions if g.row.pass_group == f.row.pass_group] if pair else []
            twins = [g for g in group if _source(nest, g) == _source(nest, f)]
            sums = [
                g for g in nest.kernel.reductions if id(g) in together and together[id(g)].top is f
            ]
            known = tuple(twins) if pair else (f, *sums)
            done.update(id(g) for g in known)
            passes.append(RowPass(height - 1, known, ()))
    # A value that is the same along the row is stored at each of its elements all the same.
    stored = tuple(
        n for n in nest.kernel.outputs if nest.writes[id(n)].varies or not nest.kernel.reductions
    )
    if stored:
        passes.append(RowPass(max(level.values(), default=0), (), stored))
    return tuple(passes)


def _source(nest: Nest, f: Node) -> Hashable:
    edge = nest.kernel.loops.edges[id(f), 0]
    return read_key(nest.reads[id(f), 0]) if isinstance(edge, Load) else id(edge)


def _keeps(
    nest: Nest, element: frozenset[int], passes: tuple[RowPass, ...], policy: KeepPolicy
) -> dict[Hashable, KeptValue]:
    keeps: dict[Hashable, KeptValue] = {}
    seen: dict[Hashable, int] = {}
    for number, sweep in enumerate(passes):
        fresh: set[Hashable] = set()
        walker = _Walker(nest, element, policy, number, keeps, seen, fresh)
        for f in sweep.reductions[:1]:
            walker.argument(f, 0)
            fresh.update(id(m) for m in (f,) if m.row.kind == "scan")
        for n in sweep.outputs:
            walker.member(n)
        seen.update({key: number for key in fresh if key not in seen})
    return keeps


@dataclass
class _Walker:
    """Visits what one pass needs, and keeps what an earlier pass had."""

    nest: Nest
    element: frozenset[int]
    policy: KeepPolicy
    number: int
    keeps: dict[Hashable, KeptValue]
    seen: Mapping[Hashable, int]
    fresh: set[Hashable]

    def argument(self, m: Node, k: int) -> None:
        edge = self.nest.kernel.loops.edges[id(m), k]
        if not isinstance(edge, Load):
            self.member(edge)
        elif self.nest.reads[id(m), k].varies:
            key = read_key(self.nest.reads[id(m), k])
            self._visit(key, edge.leaf, self.policy.keep and self.policy.min_cost == 0)

    def member(self, m: Node) -> None:
        if id(m) not in self.element:
            return
        if self._visit(id(m), m, m.row.kind == "scan" or self._worth(m)):
            return
        for k in elementwise_args(m):
            self.argument(m, k)

    def _visit(self, key: Hashable, n: Node, worth: bool) -> bool:
        """True when the value comes from memory near by and its arguments are not needed."""
        if key in self.keeps:
            self.keeps[key] = KeptValue(key, n, self.keeps[key].first, self.number)
            return True
        if key in self.seen and worth:
            self.keeps[key] = KeptValue(key, n, self.seen[key], self.number)
            return True
        self.fresh.add(key)
        return False

    def _worth(self, m: Node) -> bool:
        enough = self.policy.min_cost
        return self.policy.keep and self._cost(m, enough) >= enough

    def _cost(self, m: Node, enough: int) -> int:
        """Float operations to compute `m` from what is read or kept, up to `enough`."""
        if m.row.kind == "scan":
            return 0
        total = m.row.cost
        for k in elementwise_args(m):
            edge = self.nest.kernel.loops.edges[id(m), k]
            inside = not isinstance(edge, Load) and id(edge) in self.element
            if inside and id(edge) not in self.keeps and total < enough:
                total += self._cost(edge, enough - total)  # type: ignore[arg-type]
        return total
