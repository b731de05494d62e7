"""A chain of views -> StridedView: where its elements lie in the memory of the tensor below.

A piece, a turned or a padded tensor is read where it lies: each of its elements stands at an offset
plus strides times its place, and a guard of the same form says which elements exist; all others are
the fill, or, where a dimension goes round, stand elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from fusewright.ir.graph import Attribute, Node, Shape, Size, parts_of, quotient, size_of, times
from fusewright.ir.specs import ViewFill, spec_of

MANY = 1 << 40  # more rows and columns than a tensor has


class AffineIndex(NamedTuple):
    """offset + strides . place"""

    offset: Size
    strides: tuple[Size, ...]


@dataclass(frozen=True)
class AffineBound:
    """Elements exist where 0 <= form < size. beyond: elsewhere the memory is not the tensor's.

    wrap: how much further the others stand, where all exist.
    """

    form: AffineIndex
    size: Size
    beyond: bool
    wrap: Size = 0


@dataclass(frozen=True)
class StridedView:
    """The elements of a piece in memory. fill: what those are that a guard excludes."""

    form: AffineIndex
    guards: tuple[AffineBound, ...] = ()
    fill: Attribute = None


def strides(shape: Shape, order: tuple[int, ...] = ()) -> tuple[Size, ...]:
    """The strides, in elements, of a dense tensor whose dimensions lie in `order`."""
    result: list[Size] = [0] * len(shape)
    step: Size = 1
    for d in reversed(order or tuple(range(len(shape)))):
        result[d] = step
        step = times(step, shape[d] or 1)
    return tuple(result)


def strides_in_memory(n: Node) -> tuple[Size, ...]:
    """The strides of a tensor in memory, which may lie inside of a larger one."""
    inside = n.placement.inside
    if inside is None:
        return strides(n.shape, n.order)
    return strides((*n.shape[: inside.dim], inside.size, *n.shape[inside.dim + 1 :]))


@lru_cache(maxsize=1024)  # a kernel asks again for each node that might join it
def strided_view(n: Node) -> tuple[Node, StridedView] | None:
    """The tensor that a chain of views shows, and where; None if no Part describes it."""
    if n.row.kind != "view":
        return n, StridedView(AffineIndex(0, strides_in_memory(n)))
    found = strided_view(n.args[0])
    if found is None:
        return None
    leaf, part = found
    moved = [_moved(n, part.form), *(_moved(n, g.form, guards=True) for g in part.guards)]
    forms = [form for form in moved if form is not None]
    if len(forms) < len(moved):
        return None
    known = [replace(g, form=f) for g, f in zip(part.guards, forms[1:], strict=True)]
    here = StridedView(forms[0], tuple(g for g in known if _excludes(g, n.shape)), part.fill)
    new = _turns(n, part.form) if n.op == "roll" else _guards(n)
    if not new or n.op == "roll":
        return leaf, replace(here, guards=(*here.guards, *new))
    own = spec_of(n, ViewFill) if n.op == "pad" else None
    filled = not all(g.wrap for g in here.guards)
    fill: Attribute = own.value if own else 0
    fill = here.fill if filled and own and own.unobserved else fill
    if filled and (fill, type(fill)) != (here.fill, type(here.fill)):
        return None
    return leaf, StridedView(here.form, (*here.guards, *new), fill)


def _moved(n: Node, form: AffineIndex, *, guards: bool = False) -> AffineIndex | None:
    """The form of n's elements, where `form` is that of its argument's, or of a guard of these."""
    steps = list(form.strides)
    shape = n.args[0].shape
    if n.op == "permute":
        return form._replace(strides=tuple(steps[p] for p in as_ints(n["permutation"])))
    if n.op == "expand":
        wide = zip(shape, steps, strict=True)
        return form._replace(strides=tuple(0 if size == 1 else s for size, s in wide))
    if n.op == "reshape":
        return _reshaped(form, shape, n.shape)
    if n.op == "narrow":
        dim, start, step = as_ints((n["dim"], n["start"], n["step"]))
        return _shifted(form, {dim: start}, {dim: step})
    if n.op == "pad":
        return _shifted(form, {d: -low for d, (low, _) in enumerate(pad_sides(n))}, {})
    if n.op == "flip":
        dims = as_ints(n["dims"])
        last = {d: size - 1 for d, size in enumerate(shape) if d in dims and isinstance(size, int)}
        return _shifted(form, last, dict.fromkeys(dims, -1)) if len(last) == len(dims) else None
    if n.op == "roll":
        turned = _turned(n)
        plain = not guards or all(steps[d] == 0 for d in turned)
        return _shifted(form, {d: -far for d, (far, _) in turned.items()}, {}) if plain else None
    return form


def _reshaped(form: AffineIndex, old: Shape, new: Shape) -> AffineIndex | None:
    """The same for another row-major shape; None where dimensions join that do not lie evenly."""
    below = [(size, step) for size, step in zip(old, form.strides, strict=True) if size != 1]
    above = [d for d, size in enumerate(new) if size != 1]
    steps: list[Size] = [0] * len(new)
    while below and above:
        places, (size, first) = [above.pop()], below.pop()
        joined, step = new[places[0]], times(first, size)
        while joined != size:
            if above and _precedes(joined, size):
                places.append(above.pop())
                joined = times(joined, new[places[-1]])
            elif below and below[-1][1] == step:
                more, _ = below.pop()
                size, step = times(size, more), times(step, more)
            else:
                return None
        for place in places:
            steps[place] = first
            first = times(first, new[place])
    return None if below or above else form._replace(strides=tuple(steps))


def _precedes(a: Size, b: Size) -> bool:
    """Whether a is the smaller size, as far as they can be compared; one that depends on more of
    the free sizes is the larger one."""
    (number, names), (other, more) = parts_of(a), parts_of(b)
    if names == more:
        return number < other
    return quotient(size_of(1, more), size_of(1, names)) is not None


def _shifted(
    form: AffineIndex, starts: dict[int, int], factors: dict[int, int]
) -> AffineIndex | None:
    """From `starts` on, in steps of `factors`; None if the offset mixes numbers and free sizes."""
    offset: Size | None = form.offset
    for d, start in starts.items():
        offset = None if offset is None else _sum(offset, times(form.strides[d], start))
    steps = tuple(times(s, factors.get(d, 1)) for d, s in enumerate(form.strides))
    return None if offset is None else AffineIndex(offset, steps)


def _guards(n: Node) -> tuple[AffineBound, ...]:
    """What a view itself leaves out: the sides of a pad, one side of a diagonal."""
    rank = len(n.shape)
    if n.op == "pad":
        padded = [d for d in range(rank) if n.shape[d] != n.args[0].shape[d]]
        units = {d: tuple(int(k == d) for k in range(rank)) for d in padded}
        lows = [low for low, _ in pad_sides(n)]
        shape = n.args[0].shape
        return tuple(
            AffineBound(AffineIndex(-lows[d], units[d]), shape[d], beyond=True) for d in padded
        )
    if n.row.triangle:
        diagonal, sign = as_ints((n["diagonal"], n.row.triangle))
        form = AffineIndex(-sign * diagonal, (*(0,) * (rank - 2), -sign, sign))
        known = [s for s in n.shape[-2:] if isinstance(s, int)]
        size = sum(known) + abs(diagonal) if len(known) == 2 else MANY
        return (AffineBound(form, size, beyond=False),)
    return ()


def _turned(n: Node) -> dict[int, tuple[int, int]]:
    """The dimensions of a roll: how far they go, forwards or back, and their sizes."""
    by = zip(as_ints(n["dims"]), as_ints(n["shifts"]), strict=True)
    sizes = [(d, far, size) for d, far in by if isinstance(size := n.shape[d], int)]
    return {d: (far - size * (2 * far > size), size) for d, far, size in sizes}


def _turns(n: Node, form: AffineIndex) -> tuple[AffineBound, ...]:
    """The elements of a roll that do not go past an end; `form` is that of its argument's."""
    found = []
    for d, (far, size) in _turned(n).items():
        unit = tuple(int(k == d) for k in range(len(n.shape)))
        wrap = times(form.strides[d], size if far > 0 else -size)
        found += [AffineBound(AffineIndex(-far, unit), size, beyond=True, wrap=wrap)] * (wrap != 0)
    return tuple(found)


def _excludes(guard: AffineBound, shape: Shape) -> bool:
    """Whether any element of that shape may lie outside."""
    steps = [(n, s) for n, s in zip(shape, guard.form.strides, strict=True) if s != 0]
    first, size = guard.form.offset, guard.size
    ends = [s * (n - 1) for n, s in steps if isinstance(n, int) and isinstance(s, int)]
    if len(ends) < len(steps) or not isinstance(first, int) or not isinstance(size, int):
        return True
    lowest, highest = (first + sum(e for e in ends if e * sign > 0) for sign in (-1, 1))
    return lowest < 0 or highest >= size


def pad_sides(n: Node) -> tuple[tuple[int, int], ...]:
    """What a pad adds before and behind each dimension."""
    return spec_of(n, ViewFill).pads


def as_ints(values: Any) -> Any:
    """Attributes that are whole numbers."""
    assert all(isinstance(v, int) for v in values)
    return values


def _sum(a: Size, b: Size) -> Size | None:
    """None if they are no multiples of the same free sizes."""
    (number, names), (other, more) = parts_of(a), parts_of(b)
    if names == more:
        return size_of(number + other, names)
    return a if b == 0 else b if a == 0 else None
