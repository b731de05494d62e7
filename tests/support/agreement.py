"""Two modules that must be the same to every caller: what they return, share, change and refuse.

`disagreements` calls both on equal inputs with equal random states and says how they differ: values
(against float64: at most twice eager's error and one rounding; against eager: 8 roundings), shape,
type, strides, aliasing, what happened to the inputs and to the buffers.

Where a value would be wrong, eager runs on inputs nearby, too, since one answer of its may be luck:
the sum of a normalised row is 0 but for what the roundings of its terms leave over. Where float64
itself leaves an answer open (whether elements are larger than their mean, where all are equal), so
does the judge. And a chain of 16-bit operators may be calculated in float32: then the judge
calculates it in float64, from the values that the model rounds itself. Where eager's own answer
would be another one had its sums been added in another order, so may ours (roundings.py). Where
its squares overflow and leave NaN, ours may leave the zero that its other norms have there, and a
large number where only a product on eager's way is infinite. On a
GPU, eager's float64 is the last word only where the CPU's agrees: hardswish and hardsigmoid divide
by 6 in float32 there, and norms of rows with an infinity are NaN for some lengths of rows.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fusewright.judge.evidence.float64_forward import InDouble, native
from tests.support.roundings import opened

SEED = 20
ON_THE_WAY = 6  # the largest factor by which a formula of PyTorch's multiplies on its way
NEAR = (2.0**-4, 2.0**-5, 2.0**-6, 2.0**-7) * 4  # inputs nearby are smaller by up to such shares


def disagreements(
    ours: nn.Module,
    theirs: nn.Module,
    inputs: Sequence[object],
    *,
    exact: bool = True,
    roundings: int = 1,
    bits: Sequence[int] = (),
) -> list[str]:
    """How `ours` differs from `theirs` on `inputs`, one call each, from the buffers of `theirs`.

    exact: float64 can judge.  bits: which results have to be eager's to the bit.
    """
    begin_alike(ours, theirs)
    before = copy.deepcopy(theirs) if any(True for _ in theirs.buffers()) else theirs
    mine, other = copied(inputs), copied(inputs)
    wide = copy.deepcopy(theirs).double() if exact else theirs
    judge = called(wide, widened(inputs)) if exact else None
    returned, expected_form = ran(ours, mine), ran(theirs, other)
    a, b = tensors(returned), tensors(expected_form)
    if (form := structure(returned)) != (wanted := structure(expected_form)):
        return [f"{form} instead of {wanted}"]
    found = [*compared(a, b, judge or b, roundings)]
    if found and judge:
        found = [*compared(a, b, judge, roundings, usual(theirs, inputs, b, judge))]
    if found and all(t.dtype is torch.float64 for t in floating(a)):
        found = [*compared(a, b, judge or b, roundings, moves(theirs, inputs, b))]
    if found and judge:
        twin = copy.deepcopy(theirs).double()
        found = [*compared(a, b, judge, roundings, moves(twin, widened(inputs), judge))]
    if found and judge:
        truth = chained(theirs, inputs)
        found = [*compared(a, b, truth, roundings)]
        found = found and [*compared(*overflowed(a, b, truth), roundings)]
    if found and judge and any(t.is_cuda for t in a):
        truth = doubled(copy.deepcopy(theirs).cpu(), moved(inputs, "cpu"))
        found = [*compared(a, *elsewhere(a, b, truth), roundings)]
    if found:
        spread, unsure = opened(called, theirs, inputs, b, error)
        sure = [[t.masked_fill(u, 0) for t, u in zip(r, unsure, strict=True)] for r in (a, b)]
        truth = [x.masked_fill(u, 0) for x, u in zip(judge or b, unsure, strict=True)]
        found = [*compared(sure[0], sure[1], truth, roundings, spread)]
    found += [text for k in bits for text in other_bits(k, a[k], b[k])]
    found += layouts(a, b)
    if aliases(a, mine, ours) != aliases(b, other, theirs):
        found.append(
            f"memory is shared otherwise: {aliases(a, mine, ours)} {aliases(b, other, theirs)}"
        )
    found += [f"input: {text}" for text in compared(tensors(mine), tensors(other), tensors(other))]
    one, two, three = (dict(m.named_buffers()) for m in (ours, theirs, wide))
    found += [f"buffer {text}" for text in kept(one, two, three, before, inputs)]
    return found


def elsewhere(
    ours: Sequence[torch.Tensor], eager: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What eager and float64 say if float64 ran on another device: where only eager here is NaN,
    NaN is right, and what float64 says there, too."""
    said, truth = [], []
    for a, b, x in zip(ours, eager, exact, strict=True):
        x = x.to(b.device)
        if b.shape == x.shape == a.shape and b.is_floating_point():
            lost = b.isnan() & ~x.isnan()
            b = torch.where(lost & ~a.isnan(), x.to(b.dtype), b)
            x = torch.where(lost & a.isnan(), x.new_tensor(float("nan")), x)
        said.append(b)
        truth.append(x)
    return said, truth


class Buffers(nn.Module):
    """A module whose results are the buffers that a call of `inner` leaves."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *inputs: object) -> list[torch.Tensor]:
        self.inner(*inputs)
        return [b.clone() for b in self.inner.buffers()]


def kept(
    ours: Mapping[str, torch.Tensor],
    eager: Mapping[str, torch.Tensor],
    exact: Mapping[str, torch.Tensor],
    before: nn.Module,
    inputs: Sequence[object],
) -> Iterator[str]:
    """How buffers differ after a call that found the module as it was `before`."""
    spread: list[float] = []
    for k, (name, b) in enumerate(eager.items()):
        a, x = [ours[name]], [exact[name]]
        if not [*compared(a, [b], [b])] or not (found := [*compared(a, [b], x)]):
            continue
        spread = spread or opened(called, Buffers(before), inputs, [*eager.values()], error)[0]
        if [*compared(a, [b], x, usually=spread[k : k + 1])]:
            yield from (f"{name}: {text}" for text in found)


@torch.no_grad()
def begin_alike(ours: nn.Module, theirs: nn.Module) -> None:
    """Give `ours` the buffers of `theirs`, where they have parted by roundings in earlier calls: a
    call is judged by what it does itself."""
    wanted = dict(theirs.named_buffers())
    for name, buffer in ours.named_buffers():
        there = wanted.get(name)
        if there is not None and there.shape == buffer.shape and not torch.equal(buffer, there):
            buffer.copy_(there)


def ran(module: nn.Module, inputs: Sequence[object]) -> object:
    torch.manual_seed(SEED)
    with torch.no_grad():
        return module(*inputs)


def called(module: nn.Module, inputs: Sequence[object]) -> list[torch.Tensor]:
    return tensors(ran(module, inputs))


def widened(inputs: Sequence[object]) -> list[object]:
    """In float64, and what shared memory shares it still."""
    owners: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    def wide(value: object) -> object:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        memory = value.untyped_storage()
        key = memory.data_ptr(), value.dtype
        if key not in owners:
            whole = torch.empty(0, dtype=value.dtype, device=value.device).set_(memory)
            owners[key] = whole.double()
        return owners[key].as_strided(value.shape, value.stride(), value.storage_offset())

    return [pytree.tree_map(wide, v) for v in copied(inputs)]


def moved(inputs: Sequence[object], device: str) -> list[object]:
    """The inputs on a device, with their strides; what shared memory shares it there."""
    memories: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    def there(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        memory = value.untyped_storage()
        key = memory.data_ptr(), value.dtype
        if key not in memories:
            whole = torch.empty(0, dtype=value.dtype, device=value.device).set_(memory)
            memories[key] = whole.to(device)
        return memories[key].as_strided(value.shape, value.stride(), value.storage_offset())

    return [pytree.tree_map(there, v) for v in inputs]


def structure(value: object) -> str:
    """Of which types a result is built: containers, the numbers beside tensors."""
    if isinstance(value, torch.Tensor):
        return "tensor"
    kind = type(value).__name__
    if isinstance(value, Mapping):
        return f"{kind}({', '.join(f'{k!r}: {structure(v)}' for k, v in value.items())})"
    if isinstance(value, tuple | list):
        return f"{kind}({', '.join(map(structure, value))})"
    if dataclasses.is_dataclass(value):
        return f"{kind}({', '.join(f'{k}={structure(v)}' for k, v in vars(value).items())})"
    return f"{kind} {value!r}"


def other_bits(k: int, a: torch.Tensor, b: torch.Tensor) -> Iterator[str]:
    """What must be eager's number, and is not; NaN is NaN, and zeros are equal."""
    if a.is_floating_point() and a.dtype is b.dtype and a.shape == b.shape:
        x, y = (t.float() if t.element_size() < 4 else t for t in (a, b))
        other = (x != y) & ~(x.isnan() & y.isnan())
        if other.any():
            place = tuple(other.nonzero()[0].tolist())
            yield f"{k}: {int(other.sum())} are not eager's to the bit: {x[place]} for {y[place]}"


def doubled(module: nn.Module, inputs: Sequence[object]) -> list[torch.Tensor]:
    return called(copy.deepcopy(module).double(), widened(inputs))


def chained(module: nn.Module, inputs: Sequence[object]) -> list[torch.Tensor]:
    """The module in float64, and what it makes of 16 bits rounded once, and calculated with in
    float64."""
    widest = native([*tensors(list(inputs)), *module.parameters()])
    wide, given = copy.deepcopy(module).double(), widened(inputs)
    with InDouble(widest, widened=True):
        return called(wide, given)


def overflowed(
    ours: Sequence[torch.Tensor], eager: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """The three with float64's values where a square overflowed: eager has NaN for what has a
    value, and ours NaN, too, or the zero that remains if an infinite deviation divides.

    Eager's own norms differ there: of a row of 1e25, `layer_norm` and `group_norm` are NaN, and
    `batch_norm`, `rms_norm` and `normalize` are 0 (PyTorch 2.13 on a CPU). And of the largest
    numbers eager's x * 6 / 6 (hardswish) is infinite, and ours x.
    """
    made = list[torch.Tensor](), list[torch.Tensor](), list[torch.Tensor]()
    for a, b, x in zip(ours, eager, exact, strict=True):
        replaced = torch.zeros(a.shape, dtype=torch.bool, device=a.device)
        if a.is_floating_point() and a.shape == b.shape == x.shape:
            replaced = b.isnan() & x.isfinite() & (a.isnan() | (a == 0))
            large = a.isfinite() & (a.abs() > torch.finfo(a.dtype).max / ON_THE_WAY)
            replaced |= b.isinf() & x.isinf() & large & (a.sign() == b.sign())
        for values, t in zip(made, (a, b, x), strict=True):
            values.append(torch.where(replaced, x.to(t.dtype), t) if replaced.any() else t)
    return made


def usual(
    module: nn.Module,
    inputs: Sequence[object],
    eager: Sequence[torch.Tensor],
    exact: Sequence[torch.Tensor],
) -> list[float]:
    """Eager's usual error in each output: the largest but one here and on inputs nearby."""
    module = copy.deepcopy(module)  # buffers stay as they are
    found = [[error(*pair) for pair in zip(eager, exact, strict=True)]]
    for seed, share in enumerate(NEAR):
        draws = torch.Generator().manual_seed(seed)
        near = [nearer(v, share, draws) for v in copied(inputs)]
        pairs = zip(called(module, copied(near)), doubled(module, near), strict=True)
        found.append([error(*pair) for pair in pairs])
    return [sorted(each)[-2] for each in zip(*found, strict=True)]


def floating(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [t for t in values if t.is_floating_point()]


def moves(
    module: nn.Module, inputs: Sequence[object], eager: Sequence[torch.Tensor]
) -> list[float]:
    """How far each output moves where inputs move by roundings: what float64 itself leaves open.

    A kernel rounds some ten times where this moves inputs once, so this counts eightfold.
    """
    module = copy.deepcopy(module)
    found = [[0.0] * len(eager)]
    for seed in range(4):
        draws = torch.Generator().manual_seed(seed)
        near = [nearer(v, 2.0**-51, draws) for v in copied(inputs)]
        pairs = zip(called(module, near), eager, strict=True)
        found.append([8 * error(*p) if p[0].shape == p[1].shape else 0.0 for p in pairs])
    return [max(each) for each in zip(*found, strict=True)]


def nearer(value: object, share: float, draws: torch.Generator) -> object:
    """What was equal stays equal: the errors of equal rows add up."""

    def less(v: object) -> object:
        if not isinstance(v, torch.Tensor) or not v.is_floating_point():
            return v
        different, which = torch.unique(v.double(), return_inverse=True)
        part = share * torch.rand(different.shape, generator=draws, dtype=torch.float64)
        return v * (1 - part.to(v.device)[which]).to(v.dtype)

    return pytree.tree_map(less, value)


def tensors(values: object) -> list[torch.Tensor]:
    """Those inside of tuples, lists, dicts and dataclasses, in order."""
    found = []
    for leaf in pytree.tree_leaves(values):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            found += tensors(list(vars(leaf).values()))
    return found


def copied(inputs: Sequence[object]) -> list[object]:
    """Equal inputs with the same strides in new memory; what shared memory shares it again."""
    return copy.deepcopy(list(inputs))


def compared(
    ours: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor],
    exact: Sequence[torch.Tensor],
    roundings: int = 1,
    usually: Sequence[float] = (),
) -> Iterator[str]:
    """usually: eager's usual error in each output, where it is not the one of this call."""
    if len(ours) != len(eager):
        yield f"{len(ours)} tensors instead of {len(eager)}"
        return
    for k, (a, b, x) in enumerate(zip(ours, eager, exact, strict=True)):
        if a.shape != b.shape or a.dtype is not b.dtype:
            yield f"{k}: {list(a.shape)} {a.dtype} instead of {list(b.shape)} {b.dtype}"
        elif a.is_complex():
            one, two, three = ([torch.view_as_real(t.resolve_conj())] for t in (a, b, x))
            yield from (f"{k}, complex: {text}" for text in compared(one, two, three, roundings))
        elif not a.is_floating_point():
            if not torch.equal(a, b):
                yield f"{k}: {int((a != b).sum())} integers differ"
        elif a.element_size() == 1:
            yield from other_bits(k, a, b)
        elif not (alike := torch.equal(a.isnan(), b.isnan())) and not _only_of_16_bits(a, x):
            yield f"{k}: NaN stands elsewhere"
        else:
            judged = x.dtype is torch.float64 and a.dtype is not x.dtype
            steps = roundings if judged else 8 * roundings**2
            eagers = (usually[k] if usually else error(b, x)) if alike else 0.0
            allowed = 2 * eagers + steps * torch.finfo(a.dtype).eps
            if error(a, x) > allowed:
                yield f"{k}: error {error(a, x):.2e}, allowed {allowed:.2e}"


def _only_of_16_bits(ours: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether eager's NaN, which are not ours, come of its 16 bits: 1e-12 is 0 there, and a zero
    divided by it has a value in float64."""
    wide = exact.dtype is torch.float64 and ours.element_size() == 2
    return wide and torch.equal(ours.isnan(), exact.isnan())


def error(values: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest difference in units of the largest value, or 1e-3; infinities must agree."""
    a, b = values.double(), exact.double()
    finite = torch.isfinite(b)
    if not torch.equal(a[torch.isinf(b)], b[torch.isinf(b)]):
        return float("inf")
    if not finite.any():
        return 0.0
    scale = b[finite].abs().max().clamp_min(1e-3)
    return float(((a - b)[finite].abs() / scale).nan_to_num(float("inf")).max())


def layouts(ours: Sequence[torch.Tensor], eager: Sequence[torch.Tensor]) -> Iterator[str]:
    for k, (a, b) in enumerate(zip(ours, eager, strict=False)):
        steps = [[s for s, n in zip(t.stride(), t.shape, strict=True) if n != 1] for t in (a, b)]
        if a.shape == b.shape and steps[0] != steps[1]:
            yield f"{k}: strides {a.stride()} instead of {b.stride()}"
        if type(a) is not type(b) or a.requires_grad != b.requires_grad:
            yield f"{k}: {type(a).__name__} instead of {type(b).__name__}"


def aliases(
    outputs: Sequence[torch.Tensor], inputs: Sequence[object], module: nn.Module
) -> list[str]:
    """For each output, the first tensor that shares its memory: input, parameter or output."""
    named = [(f"input {k}", t) for k, t in enumerate(tensors(inputs))]
    named += [*module.named_parameters(), *module.named_buffers()]
    named += [(f"output {k}", t) for k, t in enumerate(outputs)]
    owner: dict[int, str] = {}
    for name, t in named:
        owner.setdefault(t.untyped_storage().data_ptr(), name)
    return [owner[t.untyped_storage().data_ptr()] for t in outputs]
