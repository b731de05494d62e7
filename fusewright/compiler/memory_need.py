"""A captured model -> the memory that optimizing and judging it takes at most, on paper.

A suite has no other way to know how many problems fit beside each other. The factors count the
copies that the judge's processes hold at once of each kind of tensor (docs/judge.md, *Memory*).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fusewright.common.timing_lock import Need
from fusewright.frontend.library_calls import CONVOLUTION_CALLS
from fusewright.fusion.planner import nbytes
from fusewright.ir.graph import Graph, Node, memory_of, toposort
from fusewright.judge.counts import concurrency, mapped_bytes, process_bytes

Settle = Callable[[Need], None]  # it waits until there is as much


@dataclass(frozen=True)
class Sizes:
    """Bytes of a model. live: of all that one run of eager makes, at the moment of the most.

    convolves: whether it has convolutions, whose libraries ask for room of their own, in float64
    most of all.
    """

    inputs: int
    outputs: int
    state: int
    live: int
    convolves: bool = False


@dataclass(frozen=True)
class Copies:
    """How often each kind of tensor is there at once, beside so many bytes for the processes."""

    processes: int
    inputs: float
    outputs: float
    state: float
    live: float

    def of(self, sizes: Sizes) -> int:
        """The bytes of all of them."""
        tensors = self.inputs * sizes.inputs + self.outputs * sizes.outputs
        return int(self.processes + tensors + self.state * sizes.state + self.live * sizes.live)


def need(sizes: Sizes, device: str) -> Need:
    """What a run for this device takes at most."""
    beside = _side_by_side(sizes, device)
    if device == "cpu":
        return Need(HOST.of(sizes) + beside)
    on_gpu = ON_GPU_CONVOLVING if sizes.convolves else ON_GPU
    return Need(BESIDE_GPU.of(sizes), on_gpu.of(sizes) + beside)


def _side_by_side(sizes: Sizes, device: str) -> int:
    """What the judge's processes of a candidate take that are asked beside the first, and, on a
    GPU, what each of them and the trusted worker both map."""
    tensors = sizes.inputs + sizes.outputs + sizes.state
    count = concurrency(device, tensors, sizes.live)
    others = (count - 1) * (process_bytes(tensors, sizes.live) + PROCESS[device])
    mapped = 2 * mapped_bytes(sizes.inputs + sizes.outputs, sizes.state)
    return others + (count * mapped if device == "cuda" else 0)


def sizes_of(graph: Graph) -> Sizes:
    """Of a captured model, at the batch size that it was captured with."""
    order = toposort((*graph.inputs, *graph.roots))
    leaves = {id(n) for n in order if n.row.kind == "leaf"}
    inputs = _bytes(graph, (memory_of(n) for n in graph.inputs))
    given = {id(memory_of(n)) for n in graph.inputs}
    state = _bytes(graph, (n for n in order if id(n) in leaves and id(n) not in given))
    outputs = [m for m in map(memory_of, graph.roots) if id(m) not in leaves]
    live = _most_live(graph, order, leaves, outputs)
    convolves = any(n.called in CONVOLUTION_CALLS for n in order)
    return Sizes(inputs, _bytes(graph, outputs), state, live, convolves)


def sizes_observed(module: nn.Module, inputs: Iterable[Tensor], live: int) -> Sizes:
    """Of a model that is taken in parts, of which one run has taken `live` bytes."""
    state = [*module.parameters(), *module.buffers()]
    given, held = (sum(t.numel() * t.element_size() for t in ts) for ts in (inputs, state))
    convolves = any(isinstance(m, _ConvNd) for m in module.modules())
    return Sizes(given, live, held, live, convolves)


def _bytes(graph: Graph, nodes: Iterable[Node]) -> int:
    return sum(nbytes(n, graph) for n in {id(n): n for n in nodes}.values())


def _most_live(
    graph: Graph, order: Sequence[Node], leaves: set[int], outputs: Sequence[Node]
) -> int:
    """Bytes, if each result is made in this order and dropped behind its last reader."""
    memories = {id(n): memory_of(n) for n in order}
    last: dict[int, int] = {}
    for at, n in enumerate(order):
        last |= {id(memories[id(a)]): at for a in (n, *n.args)}
    last |= {id(m): len(order) for m in outputs}
    made: Mapping[int, Node] = {id(m): m for m in memories.values() if id(m) not in leaves}
    live = most = 0
    begun: set[int] = set()
    for at, n in enumerate(order):
        memory = memories[id(n)]
        if id(memory) in made and id(memory) not in begun:
            begun.add(id(memory))
            live += nbytes(memory, graph)
        most = max(most, live)
        over = [k for k in {id(memories[id(a)]) for a in (n, *n.args)} if last[k] == at]
        live -= sum(nbytes(made[k], graph) for k in over if k in begun)
    return most


# A process with PyTorch, in what it does not share; with a context of CUDA, on the GPU.
PROCESS: Mapping[str, int] = {"cpu": 150_000_000, "cuda": 600_000_000}
# Measured with bench/verdicts.py [m: judge-0004, judge-0008, judge-0015, judge-0031, judge-0050].
HOST = Copies(2_000_000_000, 18, 16, 12, 6)
BESIDE_GPU = Copies(4_800_000_000, 8, 13, 8, 0)
ON_GPU = Copies(10_000_000_000, 22, 25, 24, 0)
ON_GPU_CONVOLVING = Copies(11_500_000_000, 14, 40, 24, 7)


class Sized:
    """Told a model's sizes: what it needs is said and asked for, once."""

    def __init__(
        self,
        device: str,
        settle: Settle,
        progress: Callable[[str], None],
        begin: Callable[[], None],
    ) -> None:
        """begin: called as soon as there is memory for all that comes."""
        self.need: Need | None = None
        self._device, self._settle, self._progress = device, settle, progress
        self._begin = begin

    def __call__(self, sizes: Sizes) -> None:
        if self.need is None:
            self.need = need(sizes, self._device)
            self._progress(f"having {self.need}")
            self._settle(self.need)
            self._begin()
