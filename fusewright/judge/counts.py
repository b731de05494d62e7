"""The reference's work on paper -> how often a candidate is asked what; no clock has a say in that.

A clock would let the candidate decide, by being slow, how much it is asked, and the neighbours,
too. So operators and bytes are counted in one run of the reference and priced with the rates of an
ordinary machine, and that price is rounded to a power of two. The same problem on the same kind of
device has the same counts, whoever is judged and whatever else runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from fusewright.judge.evidence.operator_observer import Observer
from fusewright.judge.evidence.pytree import tensors
from fusewright.judge.isolation import device_memory

# All experiments share so many seconds, on paper; one that costs more makes fewer calls, not none.
EFFORT_S: Mapping[str, float] = {"cpu": 8.0, "cuda": 8.0}
# Calls that need not be of full size have a sixteenth of the rows at most, three at least, and as
# many as an expectation takes so long for; and they cost less than such a share of the others.
LEAST_SHORTENED, FEWEST_ROWS, SHORT_S, WORTH = 16, 3, 0.02, 0.6
COSTLY_S = 0.25  # an expectation that takes longer borrows its sensitivity where it may
# A call that takes longer, with all that is sent for it, need not be of full size. On a CPU only
# the expectation counts, which takes longest there.
LONG_S: Mapping[str, float] = {"cpu": math.inf, "cuda": 0.06}
# What each experiment may take of these seconds.
PART: Mapping[str, float] = {
    "fresh": 0.1, "warm": 0.04, "modes": 0.06, "determinism": 0.08, "soak": 0.2, "leak": 0.05,
    "hazards": 0.3, "between": 0.1, "dtypes": 0.06, "probes": 0.2,
}  # fmt: skip
DOUBLE_RUNS = 9  # of a case that has its own sensitivity: the truth, and four draws of two
PROBE_RUNS = 3
UNPRICED_S, UNPRICED_TIMES = 0.1, 16.0  # a run that takes so long, and so many times its price
LOADS = 2  # of a probe: its state, and then the problem's own again
_aten = torch.ops.aten
_RECURRENT = frozenset(
    getattr(_aten, name)
    for name in ("mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn")
    if hasattr(_aten, name)
)
# At most so many processes of a candidate side by side, with so many bytes of tensors together;
# each, and what is expected of it, hold so many copies of them.
MOST_CONCURRENT, HELD = 4, 6
CONCURRENT_BYTES: Mapping[str, int] = {"cpu": 6 << 30, "cuda": 16 << 30}
# Memory of a GPU that both sides map: the first such multiple of the bytes of a call, or of the
# state, that there is room for; two results are asked for at once, and some cases have more rows.
ROOMS, SMALL_ROOM = (2.0, 1.25), 64 << 20
# What takes much longer for an element than reading and writing it does.
_SLOW: Mapping[Any, float] = {
    getattr(_aten, name): 20.0
    for name in ("sort", "topk", "median", "kthvalue", "mode", "unique2", "_unique2", "cumprod")
    if hasattr(_aten, name)
}
# Of square matrices: operations in cubes of the side.
_CUBIC: Mapping[Any, float] = {
    getattr(_aten, name): times
    for name, times in (
        ("linalg_inv_ex", 2.0), ("linalg_lu_factor_ex", 0.7), ("linalg_cholesky_ex", 0.4),
        ("_linalg_solve_ex", 0.7), ("_linalg_det", 0.7), ("_linalg_slogdet", 0.7),
        ("linalg_qr", 4.0), ("_linalg_svd", 25.0), ("_linalg_eigh", 10.0), ("linalg_eig", 25.0),
    )
    if hasattr(_aten, name)
}  # fmt: skip


@dataclass(frozen=True)
class Rates:
    """What an ordinary machine does in a second; what is written twice is for float64 as well."""

    call_s: float  # of one operator
    bytes: float
    products: tuple[float, float]  # operations of matrix products
    convolutions: tuple[float, float]
    sent: float  # bytes of arguments: drawn (on a GPU in no time), laid out, copied, and back again
    returned: float
    compared_s: float  # an element of the output: its error at five zoom levels, its sensitivity
    message_s: float  # a call with everything around it, if there were nothing to compute


RATES: Mapping[str, Rates] = {
    "cpu": Rates(5e-6, 6e9, (60e9, 25e9), (60e9, 15e9), 0.4e9, 0.7e9, 130e-9, 4e-3),
    "cuda": Rates(10e-6, 1e12, (30e12, 15e12), (20e12, 1e12), 1.5e9, 1.5e9, 1e-9, 10e-3),
}


@dataclass(frozen=True)
class Work:
    """What one run of the reference does."""

    calls: int = 0  # of operators
    bytes: int = 0  # of all that they read and write
    products: int = 0
    convolutions: int = 0

    def seconds(self, device: str, *, double: bool = False) -> float:
        rates, wide = RATES[device], int(double)
        moved = self.bytes * (1 + wide) / rates.bytes
        products, convolutions = rates.products[wide], rates.convolutions[wide]
        arithmetic = self.products / products + self.convolutions / convolutions
        return self.calls * rates.call_s + moved + arithmetic


class Counter(Observer):
    """Counts what happens within."""

    def __init__(self) -> None:
        super().__init__()
        self._calls = self._bytes = self._products = self._convolutions = 0

    @property
    def work(self) -> Work:
        return Work(self._calls, self._bytes, self._products, self._convolutions)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given, kind = [*tensors(list(args))], func.overloadpacket
        made = [*tensors([out])]
        self._calls += 1
        if not func.is_view:
            size = sum(map(_bytes, (*given, *made)))
            self._bytes += int(size * _SLOW.get(kind, 1.0))
        if (known := flop_registry.get(kind)) is not None:
            count = int(known(*args, **(kwargs or {}), out_val=out))
            if kind is _aten.convolution:
                self._convolutions += count
            else:
                self._products += count
        elif kind in _RECURRENT:
            steps = given[0].numel() // max(given[0].shape[-1], 1)
            self._products += 2 * steps * sum(t.numel() for t in given[1:] if t.ndim == 2)
        elif kind in _CUBIC and given and given[0].ndim:
            self._products += int(_CUBIC[kind] * given[0].numel() * given[0].shape[-1])
        return out


def work_of(run: Callable[[], list[Tensor]]) -> tuple[Work, list[Tensor]]:
    """What a run does, and its results."""
    counter = Counter()
    with counter, torch.no_grad():
        made = run()
    return counter.work, made


def stepped(seconds: float, step: float = 2.0) -> float:
    """The nearest power of two, so that what a draw happens to contain makes no difference."""
    return step ** round(math.log(max(seconds, 2.0**-13), step))


def priced(work: Work, device: str, measured: float) -> float:
    """How many times the rates' price one run costs; more than once only for what has no price.

    measured: seconds of one run. It counts where the price is far from it: operators that nobody
    has listed, or Python. The steps are so coarse that neighbours are within one.
    """
    price = work.seconds(device)
    if measured < UNPRICED_S or measured < UNPRICED_TIMES * price:
        return 1.0
    return stepped(measured, 8.0) / price


def _bytes(t: Tensor) -> int:
    return t.numel() * t.element_size()


@dataclass(frozen=True)
class Counts:
    """Seconds on paper, and how many calls they allow."""

    device: str
    call: float  # one judged call with its own sensitivity
    plain: float  # one that may borrow it
    eager: float  # one that nobody judges
    probe: float
    expectation: float  # what float64 says, and its sensitivity
    few: int = 0  # rows of a call that need not be of full size; 0: all calls are

    @property
    def costly(self) -> bool:
        return self.expectation > COSTLY_S

    def share(self, part: str) -> float:
        """So many seconds of all that the experiments may take."""
        return PART[part] * EFFORT_S[self.device]

    def calls(self, part: str, most: int, least: int = 2, each: float = 0.0) -> int:
        """How many calls an experiment makes: `most`, or what its share allows.

        each: seconds of one, where it is not a plain one.
        """
        return max(least, min(most, int(self.share(part) / (each or self.plain))))

    def rows(self, size: int) -> int:
        """How many of `size` rows a call has that need not be of full size, if that is legal and
        cheaper. An odd number: some vectors are not full."""
        long = self.plain > LONG_S[self.device]
        cost = max(self.expectation, self.plain) if long else self.expectation
        rows = (min(size // LEAST_SHORTENED, int(size * SHORT_S / cost)) - 1) | 1
        return rows if (long or self.costly) and rows >= FEWEST_ROWS else 0

    def written(self) -> dict[str, object]:
        """What a report prints, and a replay is given."""
        return asdict(self)


def concurrency(device: str, tensors: int, live: int) -> int:
    """How many processes of a candidate are asked side by side: what they hold is all there at
    once. No clock and no neighbour has a say in it.

    tensors: bytes of arguments, results and state; live: bytes that one run takes beside them.
    """
    return max(
        1, min(MOST_CONCURRENT, CONCURRENT_BYTES[device] // max(process_bytes(tensors, live), 1))
    )


def process_bytes(tensors: int, live: int) -> int:
    """Of one such process, and of what is expected of it."""
    return HELD * tensors + 2 * live


def mapped_bytes(call: int, held: int, most: float = math.inf) -> int:
    """Of the memory on a GPU that a process of a candidate and the trusted worker both map for what
    is asked, and as much again for what is answered; 0 where even the least is more than `most`.

    call: bytes of arguments and results; held: of the state.
    """
    rooms = (int(room * max(call, held)) + SMALL_ROOM for room in ROOMS)
    sizes = (-(-room // device_memory.GRANULE) * device_memory.GRANULE for room in rooms)
    return next((size for size in sizes if size <= most), 0)


def counts_of(
    work: Work, device: str, given: int, made: Sequence[Tensor], held: int, times: float = 1.0
) -> Counts:
    """given, held: bytes of arguments and of the state; made: results; times: see `priced`."""
    rates = RATES[device]
    single, double = (stepped(times * work.seconds(device, double=d)) for d in (False, True))
    elements, size = (sum(f(t) for t in made) for f in (Tensor.numel, _bytes))
    around = rates.message_s + given / rates.sent + size / rates.returned + single
    compared = elements * rates.compared_s
    expectation = DOUBLE_RUNS * double + compared
    call = around + expectation
    plain = around + double + compared / 3 if expectation > COSTLY_S else call
    probe = around + PROBE_RUNS * double + LOADS * held / rates.sent
    return Counts(device, call, plain, single, probe, expectation)
