"""Tensors <-> bytes in a region: exact strides, offsets, sharing and guard bands survive the trip.

Both the trusted worker and the candidate's worker use this file. A *block* is the memory that one
or several tensors share, with random bytes on both sides; a *tree* is a JSON picture of arguments.
"""

from __future__ import annotations

import importlib
import mmap
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MappingProxyType, ModuleType
from typing import Any

import torch
from torch import Tensor

from fusewright.common.call_arguments import Inputs, names_of, places_of, read, signature_of
from fusewright.common.containers import BY_NAME, kind_of
from fusewright.common.problem_file import PRIVATE
from fusewright.judge.evidence.pytree import tensors as every_tensor
from fusewright.judge.isolation.device_memory import settle
from fusewright.judge.isolation.pinned_memory import Pinned, reach
from fusewright.judge.isolation.protocol import (
    ABSENT,
    DTYPE_CODES,
    HAS_GRAD_FN,
    MAX_DIMS,
    ON_DEVICE,
    OTHER_DEVICE,
    OVERLAPPING,
    REQUIRES_GRAD,
    TensorRecord,
)

GUARD_BYTES = 4096
ALIGN = 64
_PAGE = 4096
NAMED = (type, FunctionType, BuiltinFunctionType)  # what can be found by its name elsewhere
FIELDS = "dict with fields"  # its items follow from its fields
NUMBERS = {float: (torch.float32, torch.float64), complex: (torch.complex64, torch.complex128)}
_NAMES: Mapping[torch.dtype, str] = {
    dtype: name for name in DTYPE_CODES if (dtype := getattr(torch, name, None)) is not None
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
NO_COPIES: Mapping[int, Tensor] = MappingProxyType({})
# Bound before any candidate is imported: its process uses these and never `x.method()`.
_detach, _contiguous, _copy = Tensor.detach, Tensor.contiguous, Tensor.copy_
_view_as, _narrow = Tensor.view, Tensor.narrow
_frombuffer, _empty, _tensor = torch.frombuffer, torch.empty, torch.tensor


class UnusableOutput(Exception):
    """An output that has no plain bytes: a subclass, a sparse tensor, an unknown dtype."""


@dataclass(frozen=True)
class Shipment:
    """Arguments laid out as bytes; `blocks` are private copies of what lies in the region."""

    tree: Any
    tensors: tuple[dict[str, Any], ...]
    blocks: tuple[Tensor, ...]

    def message(self, offsets: Sequence[int]) -> dict[str, Any]:
        blocks = [
            {"offset": o, "nbytes": b.numel()} for o, b in zip(offsets, self.blocks, strict=True)
        ]
        return {"tree": self.tree, "tensors": list(self.tensors), "blocks": blocks}


def _up(count: int, step: int = _PAGE) -> int:
    return -(-count // step) * step


# --- trees ------------------------------------------------------------------------------------


def encode(value: object, tensors: list[Tensor], path: tuple[int, ...] | None = None) -> Any:
    """A JSON picture of `value`; its tensors are appended to `tensors` in order.

    path: where the value stands among the arguments of a constructor. What has no picture there is
    what the receiver's own get_init_inputs() returns at that place.
    """
    if isinstance(value, Tensor):
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"plain": value}
    if kind := kind_of(value):
        parts = kind.parts(value)
        places = [None if path is None else (*path, k) for k in range(len(parts))]
        return {
            "container": [
                kind.name,
                encode(type(value), []),
                [encode(key, []) for key, _ in parts],
                [encode(v, tensors, at) for (_, v), at in zip(parts, places, strict=True)],
                [encode(v, []) for v in (() if kind.name == FIELDS else kind.extra(value))],
            ]
        }
    where = _place_of(value) if isinstance(value, NAMED) else None
    if where:
        return {"named": where}
    if path is not None:
        return {"own": list(path)}
    raise UnusableOutput(f"a value of type {type(value).__name__} cannot be handed over")


@dataclass(frozen=True)
class Home:
    """The file of whoever decodes: where the classes of a problem are found, and what its own
    get_init_inputs() returns. model: the name of its class."""

    module: ModuleType
    model: str = "Model"

    def named(self, name: str) -> Any:
        first, _, rest = name.partition(".")
        found: Any = self.module
        for part in [self.model if first == "Model" else first, *rest.split(".") * bool(rest)]:
            if not hasattr(found, part):
                raise LookupError(f"{name}, which the arguments need, is not defined in the file")
            found = getattr(found, part)
        return found

    def own(self, path: Sequence[int]) -> Any:
        """What stands there among the arguments that the file itself would construct with."""
        function = getattr(self.module, "get_init_inputs", None)
        if function is None:
            raise LookupError(
                "get_init_inputs() of the problem returns what no other process can be given; "
                "define it in this file, too"
            )
        signature = signature_of(getattr(self.module, self.model), bound=True)
        value: Any = read(function(), signature)
        for number in path:
            kind = kind_of(value)
            assert kind is not None, "both files construct with the same containers"
            value = kind.parts(value)[number][1]
        return value


def decode(tree: Mapping[str, Any], tensors: Sequence[Tensor], home: Home | None = None) -> Any:
    ((kind, value),) = tree.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "container":
        name, typed, keys, items, extra = value
        made = [[decode(v, tensors, home) for v in each] for each in (keys, items, extra)]
        return BY_NAME[name].make(decode(typed, [], home), tuple(made[2]), made[0], made[1])
    if kind == "complex":
        return complex(*value)
    if kind == "named" and value[0]:
        found: Any = importlib.import_module(value[0])
        for part in value[1].split("."):
            found = getattr(found, part)
        return found
    if kind in ("named", "own"):
        assert home is not None, "only arguments have classes of a file's own"
        return home.named(value[1]) if kind == "named" else home.own(value)
    return getattr(torch, value) if kind == "dtype" else value


def _place_of(value: Any) -> list[str] | None:
    """Module and name by which a class or function is found; "" for the problem's own file."""
    module, name = str(getattr(value, "__module__", "")), str(getattr(value, "__qualname__", ""))
    place = sys.modules.get(module)
    if place is None:
        return None
    names = [name, *(n for n, v in vars(place).items() if v is value)]
    found = next((n for n in names if _reached(place, n) is value), None)
    return None if found is None else ["" if module.startswith(PRIVATE) else module, found]


def _reached(place: object, name: str) -> object:
    for part in name.split("."):
        place = getattr(place, part, None)
    return place


def describe(value: object, tensors: list[Tensor], wide: bool = False) -> str:
    """The structure of an output as text, strict about types; its tensors in order.

    A floating-point number is judged as a tensor of one: in float32, or `wide`.
    """
    kind = type(value)
    if kind is Tensor or kind is torch.nn.Parameter:
        tensors.append(value)  # type: ignore[arg-type]
        return "tensor"
    if isinstance(value, Tensor):
        raise UnusableOutput(f"output of type {kind.__name__}, a subclass of Tensor")
    row = kind_of(value)
    if row is not None:
        held = row.parts(value)
        inner = ", ".join(f"{k!r}: " * row.keyed + describe(v, tensors, wide) for k, v in held)
        # Each file has a class of its own: what makes them the same is kind, name and fields.
        own = "" if row.name == kind.__name__ else f"{row.name} "
        return f"{own}{re.sub('^ModelNew', 'Model', kind.__qualname__)}({inner})"
    if kind in (float, complex):
        tensors.append(_tensor(value, dtype=NUMBERS[kind][wide]))
        return kind.__name__
    return f"{kind.__name__} {str(value)[:80]}"


def results_of(value: object, wide: bool = False) -> list[Tensor]:
    """The tensors of an output, as `describe` has them."""
    tensors: list[Tensor] = []
    describe(value, tensors, wide)
    return tensors


# --- out: values -> blocks --------------------------------------------------------------------


Room = Callable[[int, Tensor], Tensor]


def _beside(size: int, t: Tensor) -> Tensor:
    """Memory for a private copy of `t`, where `t` lives."""
    return _empty(size, dtype=torch.uint8, device=t.device)


def pack(
    values: Sequence[object], seed: int, room: Room = _beside, *, constructor: bool = False
) -> Shipment:
    """Copy arguments into blocks between random guard bytes, in the caller's exact layout."""
    tensors: list[Tensor] = []
    picture = encode(list(values), tensors, () if constructor else None)
    tree = {"names": list(names_of(values)), "places": list(places_of(values)), **picture}
    generator = torch.Generator().manual_seed(seed)
    blocks: list[Tensor] = []
    places: list[dict[str, Any]] = []
    spans = [_span(t) for t in tensors]
    owners = _owners(spans)
    made: dict[int, tuple[int, int]] = {}  # owner -> (number of its block, address of its start)
    for t, owner in zip(tensors, owners, strict=True):
        if owner not in made:
            members = [s for s, o in zip(spans, owners, strict=True) if o == owner]
            low, high = min(s[0] for s in members), max(s[1] for s in members)
            base = low - low % ALIGN  # the block starts aligned, so `low % ALIGN` is kept
            size = 2 * GUARD_BYTES + _up(high - base, ALIGN)
            blocks.append(_fill(room(size, t), t, base, low, high, generator))
            made[owner] = (len(blocks) - 1, base)
        number, base = made[owner]
        start = GUARD_BYTES + (t.data_ptr() - base if t.numel() else 0)
        places.append(
            {
                "dtype": _NAMES[t.dtype], "shape": list(t.shape), "strides": list(t.stride()),
                "block": number, "start": start, "grad": t.requires_grad,
            }
        )  # fmt: skip
    return Shipment(tree, tuple(places), tuple(blocks))


def _span(t: Tensor) -> tuple[int, int]:
    """First byte and the byte after the last one that the elements of `t` cover."""
    if t.layout is not torch.strided or t.dtype not in _NAMES or t.is_meta:
        raise UnusableOutput(f"a tensor of layout {t.layout} and dtype {t.dtype} on {t.device}")
    if t.numel() == 0:
        return (0, 0)
    last = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return t.data_ptr(), t.data_ptr() + (last + 1) * t.element_size()


def _owners(spans: Sequence[tuple[int, int]]) -> list[int]:
    """For each tensor the first one whose bytes overlap its own: they share a block."""
    owners: list[int] = []
    for i, (low, high) in enumerate(spans):
        shared = (j for j in range(i) if low < spans[j][1] and spans[j][0] < high)
        first = next(shared, None)
        owners.append(i if first is None else owners[first])
    return owners


def _fill(block: Tensor, t: Tensor, base: int, low: int, high: int,
          generator: torch.Generator) -> Tensor:  # fmt: skip
    begin, end = GUARD_BYTES + low - base, GUARD_BYTES + high - base
    for guard in (block[:begin], block[end:]):
        _copy(guard, torch.randint(256, guard.shape, generator=generator, dtype=torch.uint8))
    if high > low:
        first = low - t.untyped_storage().data_ptr()
        raw = torch.empty(0, dtype=torch.uint8, device=t.device)
        raw.set_(t.untyped_storage(), first, (high - low,), (1,))
        _copy(block[begin:end], raw)
    return block


def ship(shipment: Shipment, region: mmap.mmap, offset: int = 0) -> dict[str, Any]:
    """Write the blocks into the region; returns what the reader needs to find them."""
    offsets = []
    offset = _start(region, sum(_up(block.numel()) for block in shipment.blocks), offset)
    for block in shipment.blocks:
        write(block, region, offset)
        offsets.append(offset)
        offset += _up(block.numel())
    settle_all(region)
    return shipment.message(offsets)


def ship_only(
    values: Sequence[object], seed: int, region: mmap.mmap, offset: int = 0, *,
    constructor: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """`pack` straight into the region: for what nobody compares with later."""
    offsets: list[int] = []
    offset = _start(region, _size_of(values), offset)

    def room(size: int, _: Tensor) -> Tensor:
        nonlocal offset
        offsets.append(offset)
        offset += _up(size)
        return _part(region, size, offsets[-1])

    shipment = pack(values, seed, room, constructor=constructor)
    settle_all(region)
    return shipment.message(offsets)


def _size_of(values: Sequence[object]) -> int:
    """Bytes that the blocks of these arguments take at most."""
    spans = map(_span, every_tensor(list(values)))
    return sum(_up(2 * GUARD_BYTES + 2 * ALIGN + high - low) for low, high in spans)


def _start(region: mmap.mmap, size: int, behind: int = 0) -> int:
    """Where so many bytes begin: on the device, if two processes share enough of it.

    behind: what comes before them ends there.
    """
    shared = region.device if isinstance(region, Pinned) else None
    if shared is None or 0 < behind < ON_DEVICE:
        return behind
    first = max(behind, ON_DEVICE)
    return first if first - ON_DEVICE + size <= shared.numel() else 0


def settle_all(region: mmap.mmap) -> None:
    """What was copied to or from there has been copied: the other end may go on."""
    if isinstance(region, Pinned) and region.device is not None:
        settle()


def end_of(message: Mapping[str, Any]) -> int:
    """The first offset behind everything that a message points to."""
    return max((_up(b["offset"] + b["nbytes"]) for b in message["blocks"]), default=0)


def write(raw: Tensor, region: mmap.mmap, offset: int) -> None:
    if raw.numel():
        _copy(_part(region, raw.numel(), offset), raw)


def _part(region: mmap.mmap, size: int, offset: int) -> Tensor:
    """So many bytes of shared memory from there on."""
    if offset + size > len(region) and offset < ON_DEVICE:
        raise MemoryError(
            f"{offset + size} bytes do not fit into the {len(region)} bytes of memory between two "
            "processes: raise the limits on file sizes and addresses (ulimit -f, -v), or make the "
            "problem smaller"
        )
    return _raw(region, size, offset)


def _raw(region: mmap.mmap, size: int, offset: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    """So many bytes of shared memory, which somebody is about to copy."""
    if offset >= ON_DEVICE:
        assert isinstance(region, Pinned)
        assert region.device is not None
        return _view_as(_narrow(region.device, 0, offset - ON_DEVICE, size), dtype)
    reach(region, offset + size)
    return _frombuffer(region, dtype=dtype, count=size // dtype.itemsize, offset=offset)


# --- in: blocks -> values ---------------------------------------------------------------------


def fresh_blocks(message: Mapping[str, Any], region: mmap.mmap, device: str) -> list[Tensor]:
    """New memory, at addresses of this process's choosing, filled from the region."""
    blocks = [aligned(raw, device) for raw in seen_blocks(message, region)]
    settle_all(region)
    return blocks


def seen_blocks(message: Mapping[str, Any], region: mmap.mmap) -> list[Tensor]:
    """The region itself, where nobody but the judge sees these tensors, and only to copy them."""
    return [_raw(region, b["nbytes"], b["offset"]) for b in message["blocks"]]


def aligned(raw: Tensor, device: str) -> Tensor:
    block = _empty(raw.numel() + ALIGN, dtype=torch.uint8, device=device)
    skip = -block.data_ptr() % ALIGN
    return _copy(block[skip : skip + raw.numel()], raw)


def values_in(
    message: Mapping[str, Any], blocks: Sequence[Tensor], home: Home | None = None
) -> Inputs:
    """The arguments, as views into their blocks."""
    tensors = [_place(place, blocks[place["block"]]) for place in message["tensors"]]
    tree = dict(message["tree"])
    names, places = tree.pop("names"), tree.pop("places")
    return Inputs(decode(tree, tensors, home), names, places)


def _place(place: Mapping[str, Any], block: Tensor) -> Tensor:
    dtype = _DTYPES[place["dtype"]]
    t = torch.empty(0, dtype=dtype, device=block.device)
    start = (block.storage_offset() + place["start"]) // dtype.itemsize
    t.set_(block.untyped_storage(), start, place["shape"], place["strides"])
    return t.requires_grad_() if place["grad"] else t


def exact(t: Tensor) -> Tensor:
    """The same values without guard bands: a byte further, and a tool sees it."""
    return t.clone() if t.is_contiguous() else t


def covered(shipment: Shipment) -> list[Tensor]:
    """Per block a mask of the bytes that belong to tensors: the rest is guard."""
    masks = [torch.zeros(b.numel(), dtype=torch.bool, device=b.device) for b in shipment.blocks]
    for place in shipment.tensors:
        item = _DTYPES[place["dtype"]].itemsize
        strides = (*(s * item for s in place["strides"]), 1)
        mask = masks[place["block"]]
        mask.as_strided((*place["shape"], item), strides, place["start"]).fill_(True)
    return masks


# --- results ----------------------------------------------------------------------------------


def put_results(
    results: Sequence[Tensor | None], region: mmap.mmap, device: str, known: Sequence[Tensor],
    copies: Mapping[int, Tensor] = NO_COPIES,
) -> tuple[TensorRecord, ...]:  # fmt: skip
    """Write each result's elements, contiguous, to the region. `known`: memory they may share.

    copies: what was in them when they were returned, by their identity.
    """
    pointers = {t.untyped_storage().data_ptr(): i for i, t in reversed(list(enumerate(known)))}
    pointers.pop(0, None)
    sizes = (t.numel() * t.element_size() for t in results if t is not None)
    records, offset = [], _start(region, sum(_up(size, ALIGN) for size in sizes))
    for result in results:
        if result is None:
            records.append(TensorRecord("uint8", (), offset, 0, ABSENT, -1))
            continue
        record = _record(result, offset, device, pointers)
        pointers.setdefault(result.untyped_storage().data_ptr(), len(known) + len(records))
        write(_bytes_of(copies.get(id(result), result)), region, offset)
        records.append(record)
        offset += _up(record.nbytes, ALIGN)
    settle_all(region)
    return tuple(records)


def overlaps(t: Tensor) -> bool:
    """Does it repeat memory, as expanded tensors do?"""
    repeated = (s == 0 and n > 1 for s, n in zip(t.stride(), t.shape, strict=True))
    return t.numel() > 0 and any(repeated)


def _record(t: Tensor, offset: int, device: str, pointers: Mapping[int, int]) -> TensorRecord:
    _span(t)  # refuses what has no plain bytes
    if t.dim() > MAX_DIMS:
        raise UnusableOutput(f"an output of {t.dim()} dimensions")
    flags = REQUIRES_GRAD * bool(t.requires_grad) | HAS_GRAD_FN * (t.grad_fn is not None)
    flags |= OVERLAPPING * overlaps(t) | OTHER_DEVICE * (t.device.type != device)
    pointer = t.untyped_storage().data_ptr()
    alias = pointers.get(pointer, -1) if pointer else -1
    size = t.numel() * t.element_size()
    return TensorRecord(_NAMES[t.dtype], tuple(t.shape), offset, size, flags, alias)


def outline(t: Tensor) -> TensorRecord:
    """What a tensor is, without its bytes."""
    _span(t)
    return TensorRecord(_NAMES[t.dtype], tuple(t.shape), 0, 0, ABSENT, -1)


def _bytes_of(t: Tensor) -> Tensor:
    plain = _contiguous(_detach(t).resolve_conj().resolve_neg())
    return _view_as(plain.reshape(-1), torch.uint8) if plain.numel() else plain.new_empty(0)


def get_result(record: Mapping[str, Any], region: mmap.mmap, device: str) -> Tensor | None:
    """A private copy of one result that a worker put into its region."""
    if record["flags"] & ABSENT:
        return None
    dtype, shape = _DTYPES[record["dtype"]], record["shape"]
    if not record["nbytes"]:
        return torch.empty(shape, dtype=dtype, device=device)
    raw = _raw(region, record["nbytes"], record["offset"], dtype)
    return raw.reshape(shape).to(device, copy=True)


def holds(record: Mapping[str, Any], region: mmap.mmap, wanted: Tensor) -> bool:
    """Are the bytes of one result these? Each is read once, so no private copy is needed."""
    raw = _bytes_of(wanted)
    same = record["dtype"] == _NAMES[wanted.dtype] and tuple(record["shape"]) == wanted.shape
    if not same or record["flags"] & ABSENT or not raw.numel():
        return same and not record["flags"] & ABSENT
    found = _raw(region, raw.numel(), record["offset"])
    return torch.equal(found.to(raw.device), raw)


def tensors_of(values: object) -> Iterator[Tensor]:
    """The tensors of arguments."""
    yield from every_tensor(values)
