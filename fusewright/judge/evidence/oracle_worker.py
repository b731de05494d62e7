"""The trusted worker: the parent's orders -> steps for a candidate, and rows of evidence.

It never imports a candidate. The parent relays: it takes the next step of an experiment from here
to a candidate's worker and the checked answer back.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewright.errors import FusewrightError
from fusewright.judge import outlook
from fusewright.judge.counts import concurrency
from fusewright.judge.evidence import experiment_table
from fusewright.judge.evidence.legal_inputs import (
    DeviceLost,
    Illegal,
    ShortOfMemory,
    is_lost,
    is_short,
)
from fusewright.judge.evidence.oracle import NotJudgeable, Oracle
from fusewright.judge.evidence.trial import Refused, Starved, Steps, Trial, options_of
from fusewright.judge.isolation import device_memory, memory_limit, sandbox, tensor_transport
from fusewright.judge.isolation.pinned_memory import ASKED, Pinned, map_pinned
from fusewright.judge.isolation.protocol import Channel, Gone
from fusewright.judge.timing.timed_answers import Timed

FOREVER = float("inf")
# Exceptions after which nothing can be said of a candidate -> how the sentence about them begins.
NOT_VERIFIABLE: Sequence[tuple[tuple[type[Exception], ...], str]] = (
    ((NotJudgeable,), ""),
    ((Illegal,), "the reference raises: "),
    ((ShortOfMemory, MemoryError, torch.OutOfMemoryError), "the reference needs more memory: "),
)
Message = Mapping[str, Any]


def main(config: Message) -> None:
    warnings.filterwarnings("ignore")
    # Expected values live here: another process of the same user shall not read this memory.
    sandbox.prctl(sandbox.PR_SET_DUMPABLE, 0)
    channel_fd, *fds = config["descriptors"]
    channel = Channel(socket.socket(fileno=channel_fd))
    slots = [
        (map_pinned(i, writable=True, most=ASKED), map_pinned(o, writable=False))
        for i, o in zip(fds[::2], fds[1::2], strict=True)
    ]
    bench = Bench(slots)
    while True:
        try:
            message = channel.receive_json(FOREVER)
        except Gone:
            return
        if message["do"] == "leave":
            return
        if message.get("device") == "cpu":  # of a problem that is opened
            memory_limit.limit_worker()
        channel.send_json(_reply(bench, message), FOREVER)
        bench.hand_over(channel)
        bench.meanwhile()


def _reply(bench: Bench, message: Message) -> Message:
    handler: Callable[[Message], Message] = getattr(bench, f"do_{message['do']}")
    try:
        return handler(message)
    # A fault of the problem's or of the judge's code: the parent must hear of it, not wait.
    except Exception as error:  # noqa: BLE001
        return _fault(error)


def _fault(error: Exception) -> Message:
    """What the parent is told of an exception: its kind there, and its text."""
    if isinstance(error, FusewrightError):
        return {"error": type(error).__name__, "text": str(error)}
    if isinstance(error, DeviceLost):
        return {"error": "DeviceLost", "text": str(error), "case": error.case}
    for kinds, begin in NOT_VERIFIABLE:
        if isinstance(error, kinds):
            return {"error": "NotVerifiable", "text": f"{begin}{error}"}
    if is_lost(error):
        return {"error": "DeviceLost", "text": str(error), "case": ""}
    if is_short(error):
        return {"error": "NotVerifiable", "text": f"the judge needs more memory: {error}"}
    lines = "".join(traceback.format_exception(error)[-6:])
    return {"error": "InternalError", "text": lines}


class Taker:
    """Copies an answer out of memory that its sender can write to, whatever else is going on.

    So what is judged is what was there when the answer came, as the parent sees to it where answers
    come through the host.
    """

    def __init__(self, memory: Tensor, line: Channel) -> None:
        self.memory = memory
        self._line = line
        self._taken: Tensor | Exception | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def taken(self) -> Tensor | None:
        """The last answer; None if nothing of it was there."""
        found, self._taken = self._taken, None
        if isinstance(found, Exception):
            raise found
        return found

    def end(self) -> None:
        self._line.shut()
        self._thread.join()
        self._line.close()

    def _serve(self) -> None:
        # It does not wait for what is being computed.
        stream = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]
        while True:
            try:
                size = int(str(self._line.receive_json(FOREVER)["bytes"]))
            except Gone:
                return
            try:
                with torch.cuda.stream(stream):
                    found = self.memory[:size].clone()
                found.record_stream(torch.cuda.default_stream())
                stream.synchronize()
            except Exception as error:  # noqa: BLE001 -- it is told where the answer is judged
                self._taken = error
            else:
                self._taken = found
            self._line.send_json({}, FOREVER)


class Bench:
    """The labs (the problem, the canaries) and the experiments that are under way, one a slot."""

    def __init__(self, slots: Sequence[tuple[Pinned, Pinned]]) -> None:
        self._slots = slots
        self._labs: dict[str, Oracle] = {}
        self._running: dict[int, tuple[Steps, Trial]] = {}
        self._after: Callable[[], None] | None = None
        self._timed: dict[str, Timed] = {}
        # By slot: memory of the GPU for what is asked, and who takes what is answered there.
        self._shared: dict[int, tuple[Tensor, Taker]] = {}
        self._shared_bytes = 0  # at most, so far
        self._to_hand: list[int] = []  # descriptors that the last message has promised

    def hand_over(self, channel: Channel) -> None:
        """What was promised comes behind the message."""
        if self._to_hand:
            channel.send_descriptors(self._to_hand, FOREVER)
            for descriptor in self._to_hand:
                os.close(descriptor)
            self._to_hand = []

    def meanwhile(self) -> None:
        """Compute what will be expected while the candidate is at work."""
        if self._after is not None:
            after, self._after = self._after, None
            # What fails here is computed, and fails, again when the answer is there.
            with contextlib.suppress(Exception):
                after()

    def do_open(self, message: Message) -> Message:
        lab = self._labs[message["lab"]] = Oracle(message)
        for region in (r for pair in self._slots for r in pair):
            region.for_gpu = lab.device == "cuda"
        return {
            "modes": lab.modes, "random_modes": lab.random_modes,
            "parameters": sum(k == "P" for k in lab.kinds.values()),
            "threads": torch.get_num_threads(), "torch": torch.__version__,
            "beside": lab.beside, "placing": lab.placing.says,
        }  # fmt: skip

    def do_examine(self, message: Message) -> Message:
        lab = self._labs[message["lab"]]
        lab.examine()
        planned = {part: lab.counts.calls(part, most) for part, most in outlook.PLANNED.items()}
        return {
            "weak": lab.weak, "counts": lab.counts.written(), "planned": planned,
            "concurrency": concurrency(lab.device, lab.call_bytes + lab.held, lab.own_peak),
        }  # fmt: skip

    def do_share(self, message: Message) -> Message:
        """Memory of the GPU for what a slot's worker is asked and answers; of 0 bytes, if none.

        Three descriptors come behind the message: of both, and of a line on which the parent says
        how much of an answer is there.
        """
        lab, slot = self._labs[message["lab"]], int(message["slot"])
        self.do_unshare(message)
        size = lab.mapped_bytes()
        if not size:
            return {"bytes": 0}
        made: list[tuple[Tensor, int]] = []
        try:
            for _ in range(2):
                made.append(device_memory.create(size))
        except OSError:  # it is full, or the driver cannot: then through the host
            for memory, descriptor in made:
                os.close(descriptor)
                device_memory.discard(memory)
            return {"bytes": 0}
        for memory, _ in made:
            memory.zero_()  # it may have held what this process expects
        device_memory.settle()
        line, other = socket.socketpair()
        taker = Taker(made[1][0], Channel(line))
        self._shared[slot] = made[0][0], taker
        held = sum(2 * inputs.numel() for inputs, _ in self._shared.values())
        self._shared_bytes = max(self._shared_bytes, held)
        self._slots[slot][0].device = made[0][0]
        self._to_hand = [*(descriptor for _, descriptor in made), other.detach()]
        return {"bytes": size}

    def do_unshare(self, message: Message) -> Message:
        """This slot's memory of the GPU is not used any more, if it has any."""
        slot = int(message["slot"])
        for region in self._slots[slot]:
            region.device = None
        if slot in self._shared:
            inputs, taker = self._shared.pop(slot)
            taker.end()
            for memory in (inputs, taker.memory):
                device_memory.discard(memory)
        return {}

    def do_begin(self, message: Message) -> Message:
        lab, slot = self._labs[message["lab"]], int(message["slot"])
        trial = Trial(lab, *self._slots[slot], message["options"])
        self._running[slot] = (experiment_table.EXPERIMENTS[message["experiment"]](trial), trial)
        return self._advance(slot, None)

    def do_answer(self, message: Message) -> Message:
        slot = int(message["slot"])
        if slot in self._shared:
            self._slots[slot][1].device = self._shared[slot][1].taken()
        return self._advance(slot, message["record"])

    def do_abort(self, message: Message) -> Message:
        """The candidate's worker is gone: close the experiment, keep its rows."""
        steps, trial = self._running.pop(int(message["slot"]))
        steps.close()
        trial.died(str(message["why"]))
        return {"over": trial.rows, "cases": trial.cases}

    def do_stop(self, message: Message) -> Message:
        """Nothing more is asked, and that is nobody's fault: keep the rows."""
        steps, trial = self._running.pop(int(message["slot"]))
        steps.close()
        return {"over": trial.rows, "cases": trial.cases}

    def do_summary(self, message: Message) -> Message:
        lab = self._labs[message["lab"]]
        outputs = sorted(lab.output_numbers.items())
        return {
            "accuracy": lab.accuracy_numbers, "outputs": outputs, "compared": lab.calls_compared
        }  # fmt: skip

    def do_costs(self, _: Message) -> Message:
        """Runs of the reference, and the most memory that all of this has taken."""
        runs = sum((lab.runs for lab in self._labs.values()), Counter[str]())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        if any(lab.device == "cuda" for lab in self._labs.values()):
            peak = torch.cuda.max_memory_reserved() + self._shared_bytes
        return {"runs": dict(runs), "peak_bytes": peak}

    # --- timing -----------------------------------------------------------------------------

    def do_prepare(self, message: Message) -> Message:
        """Construction, parameters and one call, laid out one behind the other."""
        lab, (inputs, _) = self._labs[message["lab"]], self._slots[message["slot"]]
        made: list[dict[str, Any]] = []
        offset = 0
        for values in (lab.init_inputs, [dict(lab.state)], lab.inputs("first call")):
            arguments = tensor_transport.ship_only(
                values, lab.seed("guard"), inputs, offset, constructor=not made
            )
            offset = tensor_transport.end_of(arguments)
            made.append({"arguments": arguments, "instance": 0})
        construct = {"do": "construct", "seed": lab.model_seed, **made[0]}
        load = {"do": "load", "how": "load_state_dict", **made[1]}
        call = {"do": "call", "mode": lab.modes[0], **options_of(lab), **made[2]}
        return {"steps": [construct, load, call]}

    def do_between(self, message: Message) -> Message:
        """What is asked between the counted calls."""
        timed = self._timed[message["lab"]] = Timed(self._labs[message["lab"]])
        return timed.plan()

    def do_ship(self, message: Message) -> Message:
        """The next timed call, and what comes before."""
        inputs, _ = self._slots[message["slot"]]
        return {"steps": self._timed[message["lab"]].steps(message, inputs)}

    def do_check(self, message: Message) -> Message:
        lab = self._labs[message["lab"]]
        trial = Trial(lab, *self._slots[message["slot"]], {})
        with contextlib.nullcontext() if message["counts"] else lab.unrecorded():
            self._timed[message["lab"]].judge(trial, message)
        return {"rows": trial.rows}

    def do_pace(self, message: Message) -> Message:
        """Is the device so busy with others that nobody could answer in time?"""
        return {"lack": self._labs[message["lab"]].crowded()}

    def do_memory(self, _: Message) -> Message:
        free, total = torch.cuda.mem_get_info()
        own = torch.cuda.memory_reserved()
        return {
            "text": f"Of the GPU's {total >> 20} MB, {free >> 20} MB are free now; the judge's own "
            f"worker has {own >> 20} MB."
        }

    def do_floor(self, message: Message) -> Message:
        return self._labs[message["lab"]].floors(float(message["eager_s"]))

    def _advance(self, slot: int, record: Message | None) -> Message:
        steps, trial = self._running[slot]
        try:
            step = steps.send(record)
        except StopIteration:
            self._running.pop(slot)
            return {"over": trial.rows, "cases": trial.cases, "stop": trial.stopped}
        except Refused as refusal:
            self._running.pop(slot)
            trial.refused(refusal)
            return {"over": trial.rows, "cases": trial.cases, "stop": True}
        except Starved as why:
            self._running.pop(slot)
            trial.starved(why)
            return {"over": trial.rows, "cases": trial.cases, "stop": True}
        self._after = trial.prepare
        return {"step": step, "seconds": trial.seconds}
