"""The untrusted worker's program: commands in, raw bytes and claims out, never a verdict.

It imports the candidate, builds instances, loads the parameters it is given and runs one call per
command. It has no seeds and no expected values, and every call comes the same way, timed or not.
The clean baseline (eager, torch.compile) runs in this program, too, so that both sides of a
timing do exactly the same.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import random
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from fusewright.common.call_arguments import call, split
from fusewright.common.default_device import default_device
from fusewright.judge.evidence.pytree import mapped
from fusewright.judge.isolation import (
    device_memory,
    model_attributes,
    tensor_transport,
    torch_globals,
)
from fusewright.judge.isolation.one_call import Copies, in_one_breath
from fusewright.judge.isolation.output_reuse import Kept
from fusewright.judge.isolation.parameter_holders import REPLACING, entries, hold
from fusewright.judge.isolation.pinned_memory import ASKED, map_pinned
from fusewright.judge.isolation.process_globals import generators
from fusewright.judge.isolation.protocol import (
    DONE,
    KINDS,
    NO_ROOM,
    RAISED,
    READY,
    Channel,
    Gone,
    Record,
    encode_record,
)
from fusewright.judge.isolation.worker_code import own_code

FOREVER = float("inf")
_NO_CLOCKS = (0, 0, 0)
_now, _cpu_now = time.perf_counter_ns, time.process_time_ns
_grad, _synchronize, _Event = torch.autograd.grad, torch.cuda.synchronize, torch.cuda.Event
_pop_mode = torch._C._pop_torch_function_stack
_copy, _clone, _detach = Tensor.copy_, Tensor.clone, Tensor.detach
_DELAY_CYCLES = 50_000_000  # about 30 ms, more than it takes to launch a model
_MAPPED_BYTES = 64 << 20  # glibc maps larger blocks anew, whatever its threshold has grown to
_KEPT_BYTES = 2 << 30  # of the arguments of one call
_TOLD = 10_000  # characters
_FLUSH_BYTES = {"cpu": 64 << 20, "cuda": 256 << 20}
Message = Mapping[str, Any]
Handler = Callable[["Host", Message], Record]
NOTHING_MORE: Mapping[str, Handler] = {}


class _NoRoom(Exception):
    """This program, not the candidate, could not write a file."""


def main(config: Message, more: Mapping[str, Handler] = NOTHING_MORE) -> None:
    """more: what a program that is built on this one can be told beside `HANDLERS`."""
    channel_fd, inputs_fd, outputs_fd = config["descriptors"]
    channel = Channel(socket.socket(fileno=channel_fd))
    nonce, options = bytes.fromhex(config["nonce"]), config["options"]
    warnings.filterwarnings("ignore", message="The given buffer is not writable")
    _draw_seeds()
    host = Host(inputs_fd, outputs_fd, str(options["device"]), cold=bool(options.get("cold")))
    host.handed = channel.receive_descriptors
    ready = f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    answer = Record(KINDS[READY], (), ready, _NO_CLOCKS)
    sequence, own, said, done = 0, own_code(), Record, KINDS[DONE]
    while True:
        channel.send(encode_record(nonce, sequence, answer), FOREVER)
        try:
            message = channel.receive_json(FOREVER)
        except Gone:
            return
        sequence = message["sequence"]  # type: ignore[assignment]
        if message["do"] == "leave":
            return
        answer = _answer(host, message, more)
        if message["do"] == "flags":
            # Nothing is called here: whatever is called could have been replaced.
            for holder, name, value, code in own:
                if name not in holder or holder[name] is not value:
                    answer = said(done, (), f"{name} of the worker's own was replaced", (0, 0, 0))
                elif code is not None and value.__code__ is not code:
                    answer = said(done, (), f"the code of {name} was replaced", (0, 0, 0))


def _draw_seeds() -> None:
    """Workers are forks of one process, and shall not draw the same numbers."""
    random.seed()
    numpy.random.seed()
    torch.default_generator.seed()


def _answer(host: Host, message: Message, more: Mapping[str, Handler] = NOTHING_MORE) -> Record:
    handler = HANDLERS.get(message["do"]) or more[message["do"]]
    begin = _now()
    try:
        record = handler(host, message)
        own = (_now() - begin, 0, 0)
        return record if record.clocks_ns != _NO_CLOCKS else replace(record, clocks_ns=own)
    except _NoRoom as error:
        return Record(KINDS[RAISED], (), f"{NO_ROOM}{error}", _NO_CLOCKS)
    # The candidate's code may raise anything, `sys.exit()` included.
    except BaseException as error:  # noqa: BLE001
        lines = traceback.format_exception_only(error)
        where = "".join(
            f" (line {p.lineno})" for p in traceback.extract_tb(error.__traceback__)[-1:]
        )
        kind = "refusal" if isinstance(error, Exception) else "exit"
        text = f"{kind}: {''.join(lines)[:3000].strip()}{where}"
        return Record(KINDS[RAISED], (), text, _NO_CLOCKS)


class Host:
    """The candidate's module, its instances, and what they have answered so far."""

    def __init__(self, inputs_fd: int, outputs_fd: int, device: str, *, cold: bool = False) -> None:
        self.device = device
        self.cold = cold  # are the caches flushed before every call of this process?
        on_gpu = device == "cuda"
        self.inputs = map_pinned(inputs_fd, writable=False, for_gpu=on_gpu, most=ASKED)
        self.outputs = map_pinned(outputs_fd, writable=True, for_gpu=on_gpu)
        self.handed: Callable[[int, float], list[int]]  # descriptors that come behind a message
        self.make: Callable[..., nn.Module] | None = None
        self.home: tensor_transport.Home | None = None
        self.instances: dict[int, nn.Module] = {}
        self.held: list[Tensor] = []  # results of earlier calls
        self.calls: list[tuple[list[Tensor], Any]] = []  # blocks and arguments of the last calls
        self.before: torch_globals.Snapshot = ({}, {})
        self.seed = torch.initial_seed()
        self.numbers: Mapping[str, Any] = {}  # of the random generators that everybody shares
        self.flush = torch.zeros(0)
        self.sizes: list[int] = []  # of the last results, in bytes
        self.clock = DeviceClock(device)
        self.strays: set[str] = set()  # what a call left changed, where the end would not show it

    def note_draws(self) -> None:
        """Constructors may draw: the generator was seeded for them. Calls may not."""
        now = generators()
        for name, state in self.numbers.items():
            if now[name] != state:
                self.strays.add(f"a call drew from {name} random generator")

    def poison(self) -> None:
        """What the allocator hands out next for an output holds 0xFF: NaN in every float type.

        Large blocks of a CPU come from the system, which gives out zeros whatever they held.
        """
        sizes = [n for n in self.sizes if n < _MAPPED_BYTES or self.device == "cuda"]
        blocks = [torch.full((n,), 255, dtype=torch.uint8, device=self.device) for n in sizes]
        blocks.clear()

    def done(
        self, text: str, results: list[Tensor | None], known: list[Tensor],
        clocks: tuple[int, int, int] = _NO_CLOCKS, copies: Copies = tensor_transport.NO_COPIES,
    ) -> Record:  # fmt: skip
        records = tensor_transport.put_results(results, self.outputs, self.device, known, copies)
        return Record(KINDS[DONE], records, text, clocks)


# --- setting up -------------------------------------------------------------------------------


def _warm_up(host: Host, _: Message) -> Record:
    """Have the context of CUDA that the model's construction would wait for."""
    torch.zeros(1, device=host.device)
    _synchronize()
    return host.done("", [], [])


def _share(host: Host, message: Message) -> Record:
    """Memory of the GPU, for arguments and for results."""
    inputs, outputs = host.handed(2, FOREVER)
    shared = [device_memory.open_shared(d, message["bytes"]) for d in (inputs, outputs)]
    host.inputs.device, host.outputs.device = shared
    return host.done("", [], [])


def _import(host: Host, message: Message) -> Record:
    host.instances.clear()
    host.held.clear()
    host.calls.clear()
    host.strays.clear()
    host.numbers = {}
    torch.set_num_threads(message["threads"])
    host.before = torch_globals.snapshot()
    if "problem" in message:
        from fusewright.common.problem_file import load_problem

        module = load_problem(Path(message["problem"]), message["overrides"]).module
    else:
        module = _module(message["source"], message["name"])
    host.make = getattr(module, message["class"])
    host.home = tensor_transport.Home(module, message["class"])
    if not callable(host.make):
        raise TypeError(f"{message['class']} is no class")
    return host.done("", [], [])


def _module(source: str, name: str) -> ModuleType:
    """A file of its own, because inspect, Triton and tracebacks want to read the source."""
    path = Path.cwd() / f"{name}.py"
    try:
        path.write_text(source, encoding="utf-8")
    except OSError as error:
        raise _NoRoom(str(error)) from error
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _construct(host: Host, message: Message) -> Record:
    assert host.make is not None
    host.note_draws()
    blocks = tensor_transport.fresh_blocks(message["arguments"], host.inputs, "cpu")
    host.seed = message["seed"]
    torch.manual_seed(host.seed)
    arguments = tensor_transport.values_in(message["arguments"], blocks, host.home)
    torch.manual_seed(host.seed)
    model = call(host.make, arguments)
    if not isinstance(model, nn.Module):
        raise TypeError(f"the constructor made a {type(model).__name__}, not an nn.Module")
    model = model.to(host.device)
    if message.get("dtype"):
        model = model.to(getattr(torch, message["dtype"]))
    if message.get("compile"):
        kept = str(message["compile"])
        os.environ.update(TORCHINDUCTOR_CACHE_DIR=kept, TRITON_CACHE_DIR=f"{kept}/triton")
        model.compile()
    host.instances[message["instance"]] = model
    host.numbers = generators()
    return host.done("", [], [])


def _state(host: Host, message: Message) -> Record:
    """Names as text, values as results if they are wanted; P parameter, B buffer."""
    held = entries(host.instances[message["instance"]])
    kinds = ("P" if isinstance(t, nn.Parameter) else "B" for t in held.values())
    text = "\n".join(f"{kind} {name}" for kind, name in zip(kinds, held, strict=True))
    if message["values"]:
        return host.done(text, list(held.values()), [])
    return Record(
        KINDS[DONE], tuple(map(tensor_transport.outline, held.values())), text, _NO_CLOCKS
    )


def _load(host: Host, message: Message) -> Record:
    model, arguments = host.instances[message["instance"]], message["arguments"]
    how = message["how"]
    if how in ("inplace", "data"):  # nobody but the judge sees these tensors
        values = tensor_transport.values_in(
            arguments, tensor_transport.seen_blocks(arguments, host.inputs)
        )[0]
    else:  # the candidate's own code may keep what it gets here
        blocks = tensor_transport.fresh_blocks(arguments, host.inputs, host.device)
        values = tensor_transport.values_in(arguments, blocks)[0]
        if how in REPLACING:
            values = {name: _clone(value) for name, value in values.items()}
    hold(model, values, how)
    tensor_transport.settle_all(host.inputs)
    return host.done("", [], [])


# --- calls ------------------------------------------------------------------------------------


def _call(host: Host, message: Message) -> Record:
    """One call on arguments that this process has not seen before."""
    model = host.instances[message["instance"]]
    if message["mode"] is not None:
        model.train(message["mode"] == "train")
    if message["stream"]:
        return _early_call(host, model, message)
    blocks, arguments = _arguments(host, message)
    if message["exact"]:
        arguments = mapped(arguments, tensor_transport.exact)
    host.poison()
    _make_cold(host)
    with torch.set_grad_enabled(message["grad"]):
        model_attributes.give(model, arguments)
        with default_device(message["default_device"]) as placed:
            outputs, copies, clocks, popped = host.clock.time(model, arguments, placed)
        if popped is not placed:
            host.strays.add("a call left a mode of PyTorch's on")
        if torch.is_grad_enabled() != message["grad"]:
            host.strays.add("a call switched the recording of gradients")
    results: list[Tensor] = []
    tensor_transport.describe(outputs, results)
    _demand_copied(results, copies)
    results, left = [], model_attributes.with_left(model, arguments, outputs)
    text = tensor_transport.describe(left, results)
    own = (t for n, t in entries(model).items() if n not in arguments.places)
    known = [*tensor_transport.tensors_of(arguments), *own, *host.held]
    answers: list[Tensor | None] = [*results]
    if message["cotangents"] is not None:
        answers += _gradients(host, model, arguments, results, message["cotangents"])
    if message["echo"]:
        answers += blocks
    record = host.done(text, answers, known, clocks, copies)
    host.sizes = [r.numel() * r.element_size() for r in results]
    host.held = [*host.held, *results][-message["hold"] :] if message["hold"] else []
    return record


def _demand_copied(results: list[Tensor], copies: Copies) -> None:
    """What was not there when the call returned is no output; numbers become tensors only now."""
    late = [t for t in results if id(t) not in copies and t.dim()]
    if copies and late:
        raise tensor_transport.UnusableOutput(
            "the outputs hold other tensors than when the call returned"
        )


def _early_call(host: Host, model: nn.Module, message: Message) -> Record:
    """CUDA: a call before its inputs have their content, which its stream writes a little later.

    The outputs are read on that stream, too: it is all that a caller has to wait for.
    """
    contents = tensor_transport.fresh_blocks(message["arguments"], host.inputs, host.device)
    blocks = [torch.full_like(block, 255) for block in contents]
    arguments = tensor_transport.values_in(message["arguments"], blocks, host.home)
    _synchronize()
    own = message["stream"] == "own"
    with torch.cuda.stream(torch.cuda.Stream() if own else None):  # type: ignore[no-untyped-call]
        host.poison()
        torch.cuda._sleep(_DELAY_CYCLES)  # type: ignore[no-untyped-call]
        for block, content in zip(blocks, contents, strict=True):
            _copy(block, content)
        model_attributes.give(model, arguments)
        with torch.no_grad():
            with default_device(message["default_device"]):
                outputs = call(model, arguments)
            outputs = model_attributes.with_left(model, arguments, outputs)
        results: list[Tensor] = []
        text = tensor_transport.describe(outputs, results)
        taken: list[Tensor | None] = [_clone(_detach(result)) for result in results]
    _synchronize()
    host.sizes = [r.numel() * r.element_size() for r in results]
    return host.done(text, taken, [])


def _arguments(host: Host, message: Message) -> tuple[list[Tensor], Any]:
    """New addresses; with `reuse`, the last call's objects under new content, unannounced."""
    blocks = tensor_transport.fresh_blocks(message["arguments"], host.inputs, host.device)
    if message["reuse"] and host.calls:
        for old, new in zip(host.calls[-1][0], blocks, strict=True):
            old.data.copy_(new)  # `.data`: pointer and version counter stay as they were
        return host.calls[-1]
    made = blocks, tensor_transport.values_in(message["arguments"], blocks, host.home)
    # The last two stay alive, so that an address does not come back at once; of large ones one.
    size = sum(block.numel() for block in blocks)
    host.calls = [*host.calls, made][-2 if size <= _KEPT_BYTES else -1 :]
    return made


def _make_cold(host: Host) -> None:
    """Push the arguments out of the caches by writing, then reading, more than they hold.

    In a process that is timed, before every call; so no call tells whether it is counted.
    """
    if not host.cold:
        return
    if not host.flush.numel():
        host.flush = torch.zeros(_FLUSH_BYTES[host.device] // 4, device=host.device)
    host.flush.add_(1.0)
    host.clock.wait()


def _gradients(host: Host, model: nn.Module, arguments: list[object], results: list[Tensor],
               shipped: Message) -> list[Tensor | None]:  # fmt: skip
    blocks = tensor_transport.fresh_blocks(shipped, host.inputs, host.device)
    cotangents = tensor_transport.values_in(shipped, blocks)
    inputs = [t for t in tensor_transport.tensors_of(arguments) if t.requires_grad]
    parameters = [p for p in entries(model).values() if p.requires_grad]
    pairs = [(r, v) for r, v in zip(results, cotangents, strict=True) if r.grad_fn is not None]
    if not pairs:
        return [None] * len(inputs + parameters)
    outputs, vectors = zip(*pairs, strict=True)
    return list(_grad(outputs, inputs + parameters, vectors, allow_unused=True))


def _held(host: Host, _: Message) -> Record:
    """What earlier calls returned, as it is now."""
    return host.done("", [*host.held], [])


def _flags(host: Host, _: Message) -> Record:
    host.note_draws()
    found = [*torch_globals.changes(host.before), *sorted(host.strays)]
    if torch.initial_seed() != host.seed:
        found.append("the global random generator was seeded anew")
    return host.done("\n".join(found), [], [])


def _status(host: Host, _: Message) -> Record:
    """What the class itself says of its calls, as emitted ones do; "" of others."""
    told = ""
    with suppress(Exception):  # it says nothing then, which is no mistake
        told = json.dumps(host.make.fusewright_status())  # type: ignore[union-attr]
    return host.done(told[:_TOLD], [], [])


def _repeat(host: Host, message: Message) -> Record:
    """Many calls on one content: the growth of memory in bytes from half to end, and, on a line of
    its own, what is wrong with the memory of the outputs of the first half."""
    model = host.instances[message["instance"]]
    _, arguments = _arguments(host, {**message, "reuse": False})
    used, reuse, opened = [], "", []
    for half in range(2):
        kept = Kept([*tensor_transport.tensors_of(arguments), *entries(model).values()])
        for _ in range(message["calls"]):
            model_attributes.give(model, arguments)
            with torch.no_grad(), default_device(message["default_device"]):
                outputs = call(model, arguments)
            if not half:
                kept.add(tensor_transport.results_of(outputs))
            del outputs
        host.clock.wait()
        reuse = reuse or kept.says()
        del kept
        gc.collect()
        used.append(host.clock.used_bytes())
        opened.append([len(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task")])
    for what, before, after in zip(("a file open", "a thread"), *opened, strict=True):
        if after - before > message["calls"] // 2:
            host.strays.add(f"calls leave {what} each time")
    return host.done(f"{used[1] - used[0]}\n{reuse}".strip(), [], [])


class DeviceClock:
    """The worker's own clocks around one call: host, device events, CPU time of the process."""

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"

    def wait(self) -> None:
        if self._cuda:
            _synchronize()

    def used_bytes(self) -> int:
        if self._cuda:
            return int(torch.cuda.memory_allocated())
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def time(
        self, model: nn.Module, arguments: list[object], placed: object | None
    ) -> tuple[object, Copies, tuple[int, int, int], object | None]:
        """What in_one_breath says, and the mode that a call had on top at its end.

        placed: the mode that it runs under. It is taken off before anything is copied: copies are
        made without a bytecode of Python between them, and a mode is that.
        """
        positional, named = split(arguments)
        run = partial(model, *positional, **named)
        leave = [_pop_mode] if placed is not None else []
        if not self._cuda:
            cpu, begin = _cpu_now(), _now()
            outputs, said, copies = in_one_breath(run, (*leave, _now, _cpu_now))
            *popped, end, cpu_end = said
            return outputs, copies, (end - begin, 0, cpu_end - cpu), next(iter(popped), None)
        first = _Event(enable_timing=True)  # type: ignore[no-untyped-call]
        last = _Event(enable_timing=True)  # type: ignore[no-untyped-call]
        _synchronize()
        cpu, begin = _cpu_now(), _now()
        first.record()
        # The whole device is waited for: side streams count, too.
        after = (*leave, _synchronize, last.record, _now, _cpu_now)
        outputs, said, copies = in_one_breath(run, after)
        *popped, _, _, end, cpu_end = said
        last.synchronize()
        event_ns = int(first.elapsed_time(last) * 1e6)
        return outputs, copies, (end - begin, event_ns, cpu_end - cpu), next(iter(popped), None)


HANDLERS: Mapping[str, Handler] = {
    "import": _import, "construct": _construct, "state": _state, "load": _load, "call": _call,
    "held": _held, "flags": _flags, "repeat": _repeat, "warm up": _warm_up,
    "share": _share, "status": _status,
}  # fmt: skip
