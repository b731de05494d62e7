"""Model + inputs + the text of a choice -> its outputs, and what its calls take on this machine.

What runs is the text that would be emitted, so that a choice is timed as it will run. Its kernels
are timed where they are called, with the addresses and sizes of the call. Caches are flushed before
every call. On a GPU, a call whose kernels are timed is queued behind the flush, so that what the
host does is not in their times; a call that is timed as a whole is not.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fusewright.build.fused_module import build_all, fused_module
from fusewright.common.call_arguments import call, like
from fusewright.common.containers import Slot, flatten, leaves, rebuilt, taken
from fusewright.common.default_device import default_device, placing
from fusewright.frontend.carried_state import holds_tensors
from fusewright.frontend.forward_trace import plain_attributes, restore
from fusewright.ir.graph import Graph
from fusewright.targets.target import Target
from fusewright.tune.search_space import TuneChoice

FLUSH_BYTES = {"cpu": 64 << 20, "cuda": 512 << 20}
CHUNK = 1 << 24  # elements compared at once
WHOLE = ""  # the name of a whole call among those of kernels
Times = Mapping[str, float]
Outputs = Sequence[object]


@dataclass(frozen=True)
class CandidateText:
    """A choice as text. runtime: the block that compiles itself.  kind: the whole, with the class.
    compiles: whether it has kernels."""

    runtime: str
    kind: str
    compiles: bool


class Stopwatches(defaultdict[str, list[Callable[[], float]]]):
    """How to ask for the seconds of each call of a function, by its name."""

    def __init__(self) -> None:
        super().__init__(list)


class EagerRaises(Exception):
    """The model as it was does not run where the choices would: nothing can be compared."""


class BenchProtocol(Protocol):
    """Where choices are built, run and timed; None is the model as it was."""

    def build(self, choices: Sequence[TuneChoice], deadline: float) -> tuple[str, ...]:
        """Why each could not be built; "" if it is."""

    def outputs(self, choice: TuneChoice | None) -> Outputs:
        """What a call returns and what it leaves in the buffers; always from the same state."""

    def kernel_times(self, choice: TuneChoice) -> Times:
        """Seconds of each function in one call, of all steps that run it together; empty if the
        guard refused the call."""

    def whole_time(self, choice: TuneChoice | None) -> Times:
        """Seconds of one call, by the name WHOLE."""


@dataclass
class TuneBench:
    """The real one. write: how a choice is emitted.  progress: told how many are compiled."""

    module: nn.Module
    inputs: Sequence[object]
    target: Target
    write: Callable[[TuneChoice], CandidateText]
    progress: Callable[[str], None] = lambda _: None
    _built: list[tuple[TuneChoice, nn.Module]] = field(default_factory=list)
    _default_device: str = ""  # under which every call is made

    def __post_init__(self) -> None:
        device = self.target.device
        self.module = self.module.to(device)
        self.inputs = _mapped(self.inputs, lambda t: t.to(device))
        children = [*self.module.named_modules()]
        self._attributes = {path: plain_attributes(child) for path, child in children}
        self._buffers = {path: dict(child._buffers) for path, child in children}
        self._values = {name: b.clone() for name, b in self.module.named_buffers()}
        self._cold = torch.zeros(FLUSH_BYTES[device] // 4, device=device)

    def build(self, choices: Sequence[TuneChoice], deadline: float) -> tuple[str, ...]:
        written = [self.write(choice) for choice in choices]
        self._begin(self.module)
        compiled = [k for k, w in enumerate(written) if w.compiles]
        reasons = build_all([written[k].runtime for k in compiled], deadline, self._told)
        said = dict(zip(compiled, reasons, strict=True))
        for k, (choice, text) in enumerate(zip(choices, written, strict=True)):
            if not said.get(k):
                self._built.append((choice, fused_module(self.module, text.kind)))
        return tuple(said.get(k, "") for k in range(len(choices)))

    def _told(self, done: int, of: int) -> None:
        self.progress(f"tuning: compiled {done} of {of} variants")

    def outputs(self, choice: TuneChoice | None) -> Outputs:
        run = partial(self._run_from_the_start, self._module(choice))
        try:
            return run()
        except torch.OutOfMemoryError:
            raise
        # A model may raise anything.
        except Exception as error:
            found = placing(run, self.target.device)
            if found.device:
                self._default_device = found.device
                return run()
            if choice is None:
                raise EagerRaises(f"eager raises on {self.target.device}: {error}") from error
            raise

    def _run_from_the_start(self, module: nn.Module) -> Outputs:
        self._begin(module)
        torch.manual_seed(0)
        with torch.no_grad():
            for name, b in module.named_buffers():
                b.copy_(self._values[name])
            found = self._left_by_a_call(module)
            if self._has_replaced(module):  # the first call may have found no state to go on from
                found += self._left_by_a_call(module)
        return found

    def _left_by_a_call(self, module: nn.Module) -> list[object]:
        """Results, then buffers, then tensors in replaced attributes."""
        with default_device(self._default_device):
            made = _leaves(call(module, _mapped(self.inputs, Tensor.clone)))
        kept = [b for _, b in module.named_buffers()]
        replaced = [v for value in self._replaced(module) for v in _leaves(value)]
        every = (*made, *kept, *replaced)
        return [v.clone() if isinstance(v, Tensor) else v for v in every]

    def _begin(self, module: nn.Module) -> None:
        """Attributes and buffers are what they were when the bench was made."""
        for path, child in module.named_modules():
            restore(child, self._attributes[path])
            child._buffers.update(self._buffers[path])

    def _replaced(self, module: nn.Module) -> list[object]:
        """What attributes hold that a call has replaced by tensors."""
        return [
            value
            for path, child in module.named_modules()
            for name, value in plain_attributes(child).items()
            if value is not self._attributes[path].get(name) and holds_tensors(value)
        ]

    def _has_replaced(self, module: nn.Module) -> bool:
        buffers = (
            child._buffers.get(name) is not b
            for path, child in module.named_modules()
            for name, b in self._buffers[path].items()
        )
        return any(buffers) or bool(self._replaced(module))

    def kernel_times(self, choice: TuneChoice) -> Times:
        module, times = self._module(choice), Stopwatches()
        kernels = _kernels(module)
        plain = dict(kernels)
        kernels.update({n: partial(self._timed, times, n, f) for n, f in plain.items()})
        try:
            self._call(module, wait=False)
        finally:
            kernels.update(plain)
        return {name: sum(seconds() for seconds in some) for name, some in times.items()}

    def whole_time(self, choice: TuneChoice | None) -> Times:
        return {WHOLE: self._call(self._module(choice), wait=True)}

    def _module(self, choice: TuneChoice | None) -> nn.Module:
        if choice is None:
            return self.module
        return next(module for built, module in self._built if built == choice)

    def _call(self, module: nn.Module, *, wait: bool) -> float:
        """Seconds of a call on cold caches."""
        self._cold.add_(1.0)
        if wait:
            self._wait()
        times = Stopwatches()
        with torch.no_grad(), default_device(self._default_device):
            self._timed(times, WHOLE, partial(call, module, self.inputs))
        self._wait()
        (seconds,) = times[WHOLE]
        return seconds()

    def _wait(self) -> None:
        if self.target.device == "cuda":
            torch.cuda.synchronize()

    def _timed(
        self,
        times: Stopwatches,
        name: str,
        function: Callable[..., object],
        *arguments: object,
    ) -> None:
        """Call the function, and leave in `times` how to ask for its seconds afterwards: it may be
        called many times."""
        if self.target.device == "cpu":
            begin = time.perf_counter()
            function(*arguments)
            seconds = time.perf_counter() - begin
            times[name].append(lambda: seconds)
            return
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        function(*arguments)
        stop.record()
        times[name].append(lambda: float(start.elapsed_time(stop)) / 1e3)


def distance(ours: Outputs, theirs: Outputs) -> float:
    """The largest relative L2 distance of their tensors; infinite where something else differs."""
    if len(ours) != len(theirs):
        return float("inf")
    return max((_apart(a, b) for a, b in zip(ours, theirs, strict=True)), default=0.0)


def output_epsilon(outputs: Outputs) -> float:
    """The rounding of the coarsest type among the floating-point outputs."""
    kinds = [v.dtype for v in outputs if isinstance(v, Tensor) and v.dtype.is_floating_point]
    return max((torch.finfo(kind).eps for kind in kinds), default=0.0)


def about_inputs(inputs: Sequence[object], graph: Graph) -> list[str]:
    """Types, sizes and strides of what a model is given, and the free sizes."""
    _, tensors = taken(inputs)
    kinds = [f"{v.dtype} {tuple(v.shape)} {v.stride()}" for v in tensors]
    return [str(dict(graph.example)), *kinds]


def about_machine(target: Target) -> list[str]:
    """What a time depends on beside the text: the processor, the driver, PyTorch."""
    facts = [target.name, torch.__version__, str(torch.version.cuda)]
    if target.device == "cuda":
        return [*facts, torch.cuda.get_device_name(), *_lines("/proc/driver/nvidia/version")]
    name = next((n for n in _lines("/proc/cpuinfo") if n.startswith("model name")), "")
    return [*facts, name, str(torch.get_num_threads())]


def _lines(path: str) -> list[str]:
    """What the system says there, if it says anything."""
    file = Path(path)
    return file.read_text(encoding="utf-8").splitlines() if file.is_file() else []


def _mapped(inputs: Sequence[object], change: Callable[[Tensor], Tensor]) -> Sequence[object]:
    """The arguments with each tensor changed."""
    trees, tensors = taken(inputs)
    return like(inputs, rebuilt(trees, [change(t) for t in tensors]))


def _leaves(value: object) -> list[object]:
    """Tensors and plain values, in order."""
    tree, tensors = flatten(value)
    return [tensors[n.number] if isinstance(n, Slot) else n.value for n in leaves(tree)]


def _kernels(module: nn.Module) -> dict[str, Any]:
    """The compiled kernels of a module's text, by name; empty before its first call."""
    scope: dict[str, Any] = type(module).forward.__globals__
    found: dict[str, Any] = scope.get("_FUSEWRIGHT_FUNCTIONS", {})
    return found


def _apart(a: object, b: object) -> float:
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return 0.0 if a == b else float("inf")
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return float("inf")
    wrong = whole = 0.0
    pieces = (torch.split(_flat(t), CHUNK) for t in (a, b))
    for x, y in zip(*pieces, strict=True):
        finite = x.isfinite() & y.isfinite()
        if not bool((finite | (x == y) | (x.isnan() & y.isnan())).all()):
            return float("inf")
        x, y = (torch.where(finite, t.double(), 0.0) for t in (x, y))
        wrong, whole = wrong + float((x - y).square().sum()), whole + float(y.square().sum())
    return math.sqrt(wrong / whole) if whole else math.sqrt(wrong)


def _flat(t: Tensor) -> Tensor:
    return (torch.view_as_real(t) if t.is_complex() else t).flatten()
