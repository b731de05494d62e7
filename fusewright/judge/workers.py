"""The processes of one judging: started, told what to do, and their answers taken.

The trusted worker is asked and answers in JSON. A candidate's answers are records whose form is
checked; their bytes are taken out of memory that the candidate can write to when they come, and not
later. What is asked lies in memory of the host, or, where that can be shared, of the GPU.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusewright.errors import (
    BadUsage,
    FusewrightError,
    InternalError,
    NotVerifiable,
    UnusableProblem,
)
from fusewright.judge.costs import Costs
from fusewright.judge.isolation import problem_files
from fusewright.judge.isolation.processes import CANDIDATE, Worker
from fusewright.judge.isolation.protocol import (
    ON_DEVICE,
    RECORD_LIMIT,
    Channel,
    Gone,
    Late,
    ProtocolViolation,
    Record,
    TensorRecord,
    decode_record,
)
from fusewright.judge.isolation.sandbox import Plan
from fusewright.judge.isolation.shared_slot import Slot
from fusewright.judge.isolation.worker_pool import CHECKED, Site
from fusewright.judge.request import Request

# What is asked of one process; each turn ends where an answer of it is waited for.
Turns = Generator[None, None, None]
_ERRORS: Mapping[str, type[FusewrightError]] = {
    c.__name__: c for c in (BadUsage, UnusableProblem, NotVerifiable, InternalError)
}
# glibc fills memory with the complement: bytes that make large numbers in every type, never zeros
# or numbers too small to notice.
POISONS = (*range(0x01, 0x30), *range(0x80, 0xB0))


class Stopped(Exception):
    """The candidate's worker cannot be asked anything more."""


class Short(NotVerifiable):
    """The machine had too little of something: nobody's fault, and worth one more try."""


class Lost(NotVerifiable):
    """The trusted worker cannot: a kernel of PyTorch has ended CUDA for it on such a case."""

    def __init__(self, case: str, text: str) -> None:
        on = f"on what the judge tried ({case})" if case else "on arguments of the problem"
        super().__init__(f"PyTorch's own kernels end CUDA for the whole process {on}: {text}")
        self.case = case


@dataclass(frozen=True)
class _Shared:
    """Memory of a GPU for what a worker answers: how large, and a line to who takes it there."""

    size: int
    line: Channel

    def take(self, tensors: Sequence[TensorRecord], deadline: float) -> None:
        """Have the trusted worker copy what these records announce."""
        ends = [t.offset + t.nbytes - ON_DEVICE for t in tensors if t.nbytes]
        if max(ends, default=0) <= 0:
            return
        try:
            self.line.send_json({"bytes": max(ends)}, deadline)
            self.line.receive_json(deadline)
        except (Gone, Late) as error:  # who asks it next hears why
            raise NotVerifiable(f"The judge's own worker does not answer ({error}).") from error


class Workers:
    """Of one judging."""

    def __init__(self, request: Request, site: Site) -> None:
        self.request = request
        self.limits = request.limits
        self.site = site
        self.slots = site.slots
        self.costs = Costs()
        self.lab: dict[str, Any] = {}  # what the trusted worker has said of the problem
        self.workers: list[Worker] = []
        self._origins: dict[Worker, Path] = {}  # folders that candidates come from
        self._slot_of: dict[Worker, Slot] = {}
        self._shared: dict[Worker, _Shared] = {}
        self._sent: dict[Worker, int] = {}
        self._received: dict[Worker, int] = {}
        self._listeners = ThreadPoolExecutor()

    @property
    def reference(self) -> Worker:
        return self.site.reference

    def start_candidate(  # noqa: PLR0913 -- what one worker may differ in from the others
        self,
        name: str,
        slot: int,
        *,
        environment: Mapping[str, str] | None = None,
        plan: Plan | None = None,
        launcher: Sequence[str] = (),
        cold: bool = False,
        site: Site | None = None,
        origin: Path | None = None,
        generation: int = 0,
        program: str = CANDIDATE,
    ) -> Worker:
        """site: in whose folders and with whose isolation, if not the session's.  origin: the file
        of its candidate, if not that of the request.  generation: of the nursery that forks it.
        program: the module that it runs."""
        # New memory holds this byte's complement, and freed memory the byte: no old answers.
        poison, own = {"MALLOC_PERTURB_": str(secrets.choice(POISONS))}, self.slots[slot]
        worker = (site or self.site).start(
            name,
            program,
            options={"device": self.request.device, "cold": cold},
            regions=((own.inputs, own.outputs),),
            environment=CHECKED | poison if environment is None else environment,
            plan=plan,
            launcher=launcher,
            memory=self.request.limits.memory_bytes,
            generation=generation,
        )
        self.workers.append(worker)
        self._slot_of[worker] = own
        self._origins[worker] = (origin or self.request.candidate).resolve().parent
        return worker

    def ask_reference(self, **message: Any) -> dict[str, Any]:
        deadline = time.monotonic() + self.request.limits.trusted_s
        try:
            self.reference.channel.send_json(message, deadline)
            reply: dict[str, Any] = self.reference.channel.receive_json(deadline)
        except (Gone, Late, ProtocolViolation, ValueError) as error:
            if isinstance(error, Late):
                self.reference.kill("the trusted worker stopped answering")
            end = self.reference.finish()
            last = end.tail.strip().splitlines()[-1:] or [end.exit]
            raise NotVerifiable(
                f"The judge's own worker ended ({end.exit}: {last[0]}; {error}). Most often the "
                "machine has too little memory for this problem: make it smaller with --set."
            ) from error
        if reply.get("error") == "DeviceLost":
            raise Lost(reply["case"], reply["text"])
        if "error" in reply:
            raise _ERRORS.get(reply["error"], UnusableProblem)(reply["text"])
        return reply

    def post(self, worker: Worker, message: Mapping[str, Any]) -> None:
        """Send a command without waiting for its answer."""
        if message["do"] == "import":
            names, origin = self.lab.get("beside", ()), self._origins[worker]
            problem_files.lay(names, origin, worker.folder, self.site.plan.readable)
        number = self._sent[worker] = self._sent.get(worker, 0) + 1
        self.costs.posted(message)
        worker.channel.send_json({**message, "sequence": number}, time.monotonic() + 30)

    def collect(self, worker: Worker, seconds: float) -> Record:
        """The next answer, its form checked, its bytes taken. The first, number 0, says `ready`."""
        return self._counted(self.receive(worker, seconds))

    def receive(self, worker: Worker, seconds: float) -> Record:
        """It is taken out of memory that its sender can write to when it comes, and not later."""
        number = self._received.get(worker, -1) + 1
        self._received[worker] = number
        shared = self._shared.get(worker)
        body = worker.channel.receive(time.monotonic() + seconds, RECORD_LIMIT)
        record = decode_record(
            body, nonce=worker.nonce, sequence=number, region_bytes=self.slots[0].outputs.size,
            device_bytes=shared.size if shared else 0,
        )  # fmt: skip
        self._slot_of[worker].take(record.tensors)
        if shared:
            shared.take(record.tensors, time.monotonic() + self.limits.trusted_s)
        return record

    def content(self, worker: Worker, record: Record) -> bytes:
        """Of the first tensor of its last answer, which lies in memory of the host."""
        return self._slot_of[worker].read(record.tensors[0])

    def _counted(self, record: Record) -> Record:
        self.costs.took([tensor.nbytes for tensor in record.tensors])
        return record

    def ask_candidate(self, worker: Worker, message: Mapping[str, Any], seconds: float) -> Record:
        self.post(worker, message)
        return self.collect(worker, seconds)

    def warm_up(self, workers: Iterable[Worker]) -> None:
        """Have these start CUDA, if the device needs that, before anybody waits for it."""
        for worker in workers:
            if self.request.device == "cuda" and worker not in self._sent:
                with contextlib.suppress(Gone, Late, OSError):  # whoever asks it next is told
                    self.post(worker, {"do": "warm up"})

    def _expect_ready(self, worker: Worker) -> Turns:
        yield
        try:
            record = self.collect(worker, self.limits.start_s)
            if self._sent.get(worker):  # it has been told to warm up
                self.collect(worker, self.limits.start_s)
        except (Gone, Late, ProtocolViolation) as error:
            end = worker.kill("it did not start")
            last = end.tail.strip().splitlines()[-1:] or [end.exit]
            raise NotVerifiable(f"A worker could not start here: {last[0]} ({error}).") from error
        if record.kind != "ready":
            raise Stopped

    def _share(self, worker: Worker, slot: int) -> Turns:
        """From now on it is asked, and answers, in memory of the GPU, where that can be shared."""
        if self.request.device != "cuda":
            return
        size = int(self.ask_reference(do="share", lab="problem", slot=slot)["bytes"])
        if not size:
            return
        deadline = time.monotonic() + self.limits.start_s
        *memory, line = self.reference.channel.receive_descriptors(3, deadline)
        shared = _Shared(size, Channel(socket.socket(fileno=line)))
        try:
            self.post(worker, {"do": "share", "bytes": size})
            worker.channel.send_descriptors(memory, deadline)
            yield
            record = self.collect(worker, self.limits.start_s)
        except (Gone, Late, ProtocolViolation) as error:
            worker.kill("it did not take what is shared")
            raise NotVerifiable(f"A worker could not start here: {error}.") from error
        finally:
            for descriptor in memory:
                os.close(descriptor)
        if record.kind == "done":
            self._shared[worker] = shared
        else:  # its driver refuses: through the host, then
            shared.line.close()
            self.ask_reference(do="unshare", slot=slot)

    def _unshare(self, worker: Worker, slot: int) -> None:
        """This memory of the GPU is not used any more, if there is any."""
        if (shared := self._shared.pop(worker, None)) is not None:
            shared.line.close()
            with contextlib.suppress(NotVerifiable):  # it is gone, and that is known
                self.ask_reference(do="unshare", slot=slot)


def exhaust(turns: Turns) -> None:
    """All turns, with nothing beside them."""
    for _ in turns:
        continue
