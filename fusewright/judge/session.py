"""problem, candidate -> Verdict: the state machine in the parent, which fails closed.

The parent loads no torch and none of the candidate's code. It starts the workers, relays the
trusted worker's steps to the candidate's, checks every answer's form, and keeps the ledger.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import secrets
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fusewright.common.progress import Left
from fusewright.errors import (
    BadUsage,
    FusewrightError,
    NotVerifiable,
)
from fusewright.judge import outlook, shortage
from fusewright.judge.canary import CANARIES, PROBLEM
from fusewright.judge.findings import Ledger
from fusewright.judge.isolation.processes import End, Worker
from fusewright.judge.isolation.protocol import (
    NO_ROOM,
    Gone,
    Late,
    ProtocolViolation,
)
from fusewright.judge.isolation.worker_pool import ROOM, Site
from fusewright.judge.request import Limits, Phase, Request
from fusewright.judge.workers import Lost, Short, Stopped, Turns, Workers, exhaust

TOO_SLOW = "it is too slow to be judged"
OUT_OF_BUDGET = "the budget was used up before every check was made: give it more, as --budget 5m"
ABANDONED = "what ran beside it has ended the phase"
Progress = Callable[[str], None]  # see `progress.Left` for what else it may take
# After one of these nothing that other phases could say would be news.
FATAL = ("import", "constructor", "parameters", "structure", "timeout", "protocol", "resources")
RENEWALS = 4  # so many trusted workers may lose their GPU to what the judge has invented
YOUNG = 10  # messages, after which a worker has called its model for the first time
# Words in a source that promise a compiler run; only its deadline depends on them.
_BUILDS = ("load_inline", "cpp_extension", "triton", "torch.compile", "subprocess", "nvrtc")


@dataclass(frozen=True)
class Part:
    """A phase, the process that is asked, and the memory that it shares with the judge."""

    phase: Phase
    worker: Worker
    slot: int
    shares: bool = True  # memory of a GPU


def nothing() -> None:
    """Nothing is to be done."""


class Session(Workers):
    """One judging: its workers, its ledger, its log."""

    def __init__(self, request: Request, site: Site, progress: Progress) -> None:
        super().__init__(request, site)
        self._told = progress
        self._shown = ""
        self.outlook: outlook.Outlook | None = None  # once the problem is known
        self.seed = request.seed or secrets.token_hex(16)
        wanted = {name for name in ("timing", "grad", "sanitize") if getattr(request, name)}
        self.ledger = Ledger(wanted, request.ignored)
        self.source = ""  # the candidate's, once it is read
        self.cases: list[dict[str, str]] = []
        self._builds = False
        self._leaving: list[Worker] = []
        self.left_out: list[str] = []
        self.numbers: dict[str, float] = {}
        self.output_numbers: defaultdict[int, dict[str, float]] = defaultdict(dict)  # of each
        self.compared = 0
        self.counts: Mapping[str, Any] = {}
        self.asked: dict[str, list[str]] = {}  # experiment -> names of its cases
        self.examined_s = 0.0
        self._planned: Mapping[str, int] = {}
        self.waited_s = 0.0  # for answers of the candidate
        self.adopted = ""  # the hash of kernels that the caller has compiled, if it has
        self._concurrency = 1  # processes of a candidate that may be asked side by side
        self.is_out_of_budget = False  # was the time over before the checks were?
        self.alone = False  # has something been tried again, with the machine to itself?
        self._kills = shortage.kills()
        self._short: list[str] = []  # what the current phase could not do for want of memory

    @property
    def concurrency(self) -> int:
        """How many processes of the candidate are asked side by side."""
        return 1 if self.alone else self._concurrency

    def read_candidate(self, text: str | None = None) -> None:
        """From its file, or the text that will be there. Raises BadUsage where it is no text."""
        self.source = source_of(self.request.candidate) if text is None else text
        self._builds = any(word in self.source for word in _BUILDS)

    def listen(self, progress: Progress) -> None:
        """From now on it is told to this what phase begins, and now, what phase has."""
        self._told = progress
        if self._shown:
            progress(self._shown)

    def progress(self, phase: str, shown: str = "") -> None:
        """Another phase begins. shown: what is told of it, if not its name."""
        self._shown = shown or phase
        self.costs.enter(phase)
        self._told(self._shown)
        self._tell()

    def _tell(self) -> None:
        """What is done and left, where that is known and somebody wants to hear it."""
        if self.outlook is not None and isinstance(self._told, Left):
            self._told.left(self.outlook.share(), self.outlook.seconds_left())

    def adopt(self, library: Path) -> None:
        """Kernels that the caller has compiled from the candidate's own text."""
        self.adopted = hashlib.sha256(library.read_bytes()).hexdigest()
        self.site.adopt(library)

    # --- phases -----------------------------------------------------------------------------

    def run_phases(
        self,
        parts: Sequence[Part],
        limits: Limits | None = None,
        before_the_last: Callable[[], None] = nothing,
    ) -> None:
        """All experiments of some processes, side by side: while some compute, another is judged.

        The turns go round, in an order that no clock has a say in; but the first process is asked
        alone until it has built its kernels. Stopped if one of them cannot be asked further; the
        others are asked all the same, unless nothing that they could say would be news.

        before_the_last: called when there is one process left to be asked.
        """
        says = ", ".join(part.phase.says for part in parts)
        self.progress(", ".join(part.phase.name for part in parts), f"judging: {says}")
        self.limits = limits or self.request.limits
        waiting = deque((lane, self._turns(part)) for lane, part in enumerate(parts))
        prepare, stopped = before_the_last, None
        try:
            while waiting:
                if len(waiting) == 1:
                    prepare()
                    prepare = nothing
                lane, turns = waiting[0]
                if self.outlook is not None:
                    self.outlook.turn(lane)
                try:
                    next(turns)
                except StopIteration:
                    waiting.popleft()
                except Stopped as error:
                    waiting.popleft()
                    if self.is_over():
                        raise
                    stopped = error
                else:
                    if not self._builds_still():
                        waiting.rotate(-1)
        finally:
            for _, turns in waiting:
                turns.close()
        if stopped is not None:
            raise stopped

    def _turns(self, part: Part) -> Turns:
        """Of one phase."""
        only, worker = self.request.only, part.worker
        try:
            yield from self._expect_ready(worker)
            if part.shares:
                yield from self._share(worker, part.slot)
            for name in part.phase.experiments:
                if not only or name in (*only, "setup"):
                    if self.outlook is not None:
                        self.outlook.begin(f"{part.phase.name} {name}")
                    yield from self._experiment(name, worker, part.slot, "problem", self.ledger)
            self._demand_room()
        except Stopped:
            self._demand_room()
            raise
        except GeneratorExit:
            worker.kill(ABANDONED)  # before that its channel hears the end of it
            raise
        finally:
            self.send_off(worker)
            self._unshare(worker, part.slot)

    def _builds_still(self) -> bool:
        """Would several processes build the same kernels now?"""
        return self._builds and not self.adopted and "fresh" not in self.asked

    def is_over(self) -> bool:
        """Would nothing be news that could still be found out?"""
        return self.ledger.failed(*FATAL) or self.spent(self.ledger)

    def _demand_room(self) -> None:
        """Was there memory for everything? What refutes does so all the same."""
        missing, self._short = self._short, []
        if missing and not self.ledger.failed():
            raise Short(f"{missing[0]}. {self._memory_now()}")

    def _memory_now(self) -> str:
        text = f"Of memory, {shortage.memory_now()}."
        if self.request.device == "cuda":
            text += f" {self.ask_reference(do='memory')['text']}"
        return text

    def send_off(self, worker: Worker) -> None:
        """Tell a worker that it may leave; `part` looks at how it went, while others go on."""
        # It may be gone already, and that was recorded where it was noticed.
        with contextlib.suppress(Gone, Late, OSError):
            self.post(worker, {"do": "leave"})
        self._leaving.append(worker)

    def part(self) -> None:
        """Every worker that was sent off must be gone, without traces."""
        for worker in self._leaving:
            self._look_back(worker, worker.finish(self.limits.leave_s))
        self._leaving.clear()

    def _experiment(
        self, experiment: str, worker: Worker, slot: int, lab: str, ledger: Ledger, source: str = ""
    ) -> Turns:
        ignored = list(self.request.ignored) if ledger is self.ledger else []
        options = {"case": self.request.case, "ignored": ignored}
        begin = {"do": "begin", "lab": lab, "experiment": experiment, "slot": slot}
        reply = self.ask_reference(**begin, options=options)
        while "step" in reply:
            message = self._completed(reply["step"], source or self.source)
            seconds = self._seconds(message, float(reply["seconds"]), worker)
            asked = time.monotonic()
            try:
                self.post(worker, message)
                coming = self._listeners.submit(self.receive, worker, seconds)
                yield
                begun = time.monotonic()  # from here on it is waited for
                record = self._counted(coming.result())
            except (Gone, Late, ProtocolViolation) as error:
                self._demand_fairness(worker, error, asked, float(reply["seconds"]), slot)
                why = self._record_death(worker, error, f"{experiment}: {message['do']}", ledger)
                reply = self.ask_reference(do="abort", slot=slot, why=why)
                self._note(experiment, reply, ledger)
                raise Stopped from error
            if record.kind == "raised" and record.text.startswith(NO_ROOM):
                raise NotVerifiable(f"A worker cannot write its files ({record.text}). {ROOM}")
            self.waited_s += time.monotonic() - begun
            if lab == "problem" and self.outlook is not None:
                self.outlook.heard()
                self._tell()
            reply = self.ask_reference(do="answer", slot=slot, record=asdict(record))
            if "step" in reply:
                self._demand_pace(worker, slot, experiment, ledger)
        self._demand_tools(reply["over"])
        self._note(experiment, reply, ledger)
        if reply.get("stop"):
            raise Stopped

    def spent(self, ledger: Ledger) -> bool:
        """Have the candidate's answers taken longer than all of them may, or is the time over?"""
        limits = self.limits
        if time.monotonic() > self.request.deadline:
            return True
        return self.waited_s > (limits.refuted_s if ledger.failed() else limits.total_s)

    def _demand_pace(self, worker: Worker, slot: int, experiment: str, ledger: Ledger) -> None:
        """Stopped where the candidate is too slow to be asked all: that is no reason to ask less.

        What has been found out so far counts if it refutes.
        """
        if not self.spent(ledger):
            return
        worker.kill(TOO_SLOW)
        reply = self.ask_reference(do="stop", slot=slot)
        wrong = [row for row in reply["over"] if row[1] == "fail"]
        self._note(experiment, {**reply, "over": wrong}, ledger)
        if not ledger.failed():
            calls = f"{self.waited_s:.0f} s of answers, and the plan was not done ({experiment})"
            self.is_out_of_budget = time.monotonic() > self.request.deadline
            slow = f"too slow to judge: {calls}"
            ledger.gaps.append(OUT_OF_BUDGET if self.is_out_of_budget else slow)
        raise Stopped

    def _demand_tools(self, rows: Sequence[Sequence[str]]) -> None:
        """A candidate that cannot be built here is not wrong."""
        told = [e for c, o, e in rows if o == "fail" and c in ("import", "constructor")]
        if told and self._builds and (missing := ", ".join(self.site.missing_tools())):
            raise NotVerifiable(f"The candidate needs {missing} to be built: {told[0]}")

    def _completed(self, step: dict[str, Any], source: str) -> dict[str, Any]:
        if step["do"] != "import":
            return step
        own = {"source": source, "name": "candidate", "class": "ModelNew"}
        return {**step, **own, "threads": self.lab["threads"]}

    def _seconds(self, message: Mapping[str, Any], eager_s: float, worker: Worker) -> float:
        limits, young = self.limits, self._sent.get(worker, 0) < YOUNG
        if self._builds and young:
            return limits.build_s
        if message["do"] in ("import", "construct"):  # the first may compile, the second start CUDA
            return limits.import_s * _patience()
        calls = max(1.0, int(message.get("calls", 1)) / 10) * (2.0 if self.alone else 1.0)
        least = limits.import_s if young and self.request.device == "cuda" else limits.call_s
        return max(least * _patience(), 50 * eager_s) * calls

    def _demand_fairness(
        self, worker: Worker, error: Exception, asked: float, eager_s: float, slot: int
    ) -> None:
        """Short if it was the machine that kept a worker from answering. It is gone then."""
        lack = self.lack(worker, error, asked, eager_s)
        if not lack:
            return
        reply = self.ask_reference(do="stop", slot=slot)
        if not any(row[1] == "fail" for row in reply["over"]) and not self.ledger.failed():
            raise Short(f"{worker.name}: {lack}. {self._memory_now()}")

    def lack(self, worker: Worker, error: Exception, asked: float, eager_s: float) -> str:
        """What the machine lacked when a worker did not answer; empty where that was its own fault.

        What had time to run, or slept, was not starved: it hangs.
        """
        if isinstance(error, ProtocolViolation):
            return ""
        if isinstance(error, Gone):
            return shortage.of_memory(worker.finish(self.limits.leave_s), self._kills)
        within = time.monotonic() - asked
        end = worker.kill("no answer in time", asked)
        lack = shortage.of_time(end, within, max(self.limits.call_s, 50 * eager_s))
        if not lack and self.request.device == "cuda":
            lack = str(self.ask_reference(do="pace", lab="problem")["lack"])
        return lack

    def _record_death(self, worker: Worker, error: Exception, step: str, ledger: Ledger) -> str:
        """Which check the loss of a worker belongs to; kills what is left of it."""
        if isinstance(error, Late):
            worker.kill("no answer in time")
            ledger.add("timeout", "fail", f"{step}: no answer within its deadline")
            return "no answer in time"
        if isinstance(error, ProtocolViolation):
            worker.kill("it broke the protocol")
            ledger.add("protocol", "fail", f"{step}: {error}")
            return str(error)
        end = worker.finish(self.limits.leave_s)
        check = "resources" if end.reason.startswith("limit") else "crash"
        ledger.add(check, "fail", f"{step}: ended with {end.exit}")
        self._note_leftovers(end, ledger)
        return f"the process ended with {end.exit}"

    def _look_back(self, worker: Worker, end: End) -> None:
        self._note_leftovers(end, self.ledger)
        if end.reason.startswith("limit"):
            self.ledger.add("resources", "fail", f"{worker.name} ended with {end.exit}")
        told = self.ledger.failed("crash", "timeout", "protocol", "resources")
        if not end.clean and not told and end.reason not in (TOO_SLOW, ABANDONED):
            self.ledger.add("dirty-exit", "note", f"{worker.name} ended with {end.exit}")
        self._demand_dead(worker, end)

    def _demand_dead(self, worker: Worker, end: End) -> None:
        if not end.dead:
            self.ledger.gaps.append(f"a process of {worker.name} could not be killed")

    def _note_leftovers(self, end: End, ledger: Ledger) -> None:
        if end.leftovers:
            names = ", ".join(end.leftovers[:5])
            ledger.add("leftovers", "fail", f"{len(end.leftovers)} processes outlived it: {names}")

    @cached_property
    def _own_changes(self) -> frozenset[str]:
        """What the reference's own import, constructor and call change, in a process of their own.

        Asked only where a candidate has changed something.
        """
        plan, request = self.site.plan, self.request
        shown = (*plan.readable, str(request.problem))
        own = replace(plan, readable=shown, uid=plan.uid if plan.namespaces else None)
        slot = len(self.slots) - 1
        worker = self.start_candidate("reference", slot, plan=own)
        what = {"problem": str(request.problem), "overrides": dict(request.overrides)}
        load = {"do": "import", **what, "class": "Model", "threads": self.lab["threads"]}
        steps = self.ask_reference(do="prepare", lab="problem", slot=slot)["steps"]
        try:
            exhaust(self._expect_ready(worker))
            for step in (load, *steps, {"do": "flags"}):
                record = self.ask_candidate(worker, step, self.limits.build_s)
        except (Gone, Late, ProtocolViolation):
            return frozenset()
        finally:
            worker.stop("the reference has answered")
        return frozenset(record.text.splitlines() if record.kind == "done" else ())

    def _note(self, experiment: str, reply: Mapping[str, Any], ledger: Ledger) -> None:
        rows: Sequence[Sequence[str]] = reply["over"]
        for check, name in reply["cases"]:
            ledger.count(check)
            if ledger is self.ledger and name not in self.asked.setdefault(experiment, []):
                self.asked[experiment].append(name)
        failed = {check for check, outcome, _ in rows if outcome == "fail"}
        for check, outcome, evidence in rows:
            if outcome == "pass" and check in failed:
                continue
            changed = (check, outcome) == ("global-state", "fail") and ledger is self.ledger
            if changed and evidence in self._own_changes:
                outcome, evidence = "pass", f"as the reference does: {evidence}"
            if outcome == "gap":  # cases that could not be tried, for which nobody is to blame
                ledger.gaps.append(f"{check}: {evidence}")
                outcome = "skip"
            if outcome == "short":  # not even tried, for want of memory
                self._short.append(f"{check}: {evidence}")
                outcome = "skip"
            ledger.add(check, outcome, evidence)  # type: ignore[arg-type]
            if outcome == "fail" and ledger is self.ledger and check not in self.request.ignored:
                case = evidence.partition(":")[0]
                self.cases.append({"experiment": experiment, "check": check, "case": case})

    # --- the self-test ----------------------------------------------------------------------

    def run_canaries(self, worker: Worker, slot: int) -> None:
        """A good, a cheating and a wrong candidate, through the same pipeline."""
        self.progress("self-test", "judging: self-test")
        path = self.site.folder / "canary.py"
        path.write_text(PROBLEM, encoding="utf-8")
        self.open_lab("canary", path, {})
        self.ask_reference(do="examine", lab="canary")
        exhaust(self._expect_ready(worker))
        surprises = []
        for name, canary in CANARIES.items():
            ledger = Ledger(())
            for experiment in ("setup", "fresh"):
                asked = experiment, worker, slot, "canary", ledger
                try:
                    exhaust(self._experiment(*asked, canary.source))
                except Stopped:
                    break
            accepted = not ledger.failed() and bool(ledger.rows())
            if accepted != canary.honest:
                rows = [f"{r.check}: {r.evidence}" for r in ledger.rows() if r.outcome == "fail"]
                surprises.append(f"the {name} one was {'accepted' if accepted else rows}")
        self.send_off(worker)
        self._demand_room()
        text = "; ".join(surprises) or ", ".join(CANARIES)
        self.ledger.add("self-canary", "fail" if surprises else "pass", text)

    def open_lab(self, name: str, problem: Path, overrides: Mapping[str, str]) -> dict[str, Any]:
        return self.ask_reference(
            do="open", lab=name, problem=str(problem), overrides=dict(overrides), seed=self.seed,
            device=self.request.device, accuracy=self.request.accuracy, left_out=self.left_out,
            truth=self.request.truth, mode=self.request.mode if name == "problem" else "",
            counts=dict(self.counts or self.request.counts) if name == "problem" else {},
        )  # fmt: skip

    def open_problem(self) -> None:
        """Random parameters are tried here; where they end CUDA, others are."""
        self.progress("opening the problem", "judging: opening the problem")
        while True:
            try:
                self.lab = self.open_lab("problem", self.request.problem, self.request.overrides)
                return
            except Lost as lost:
                self._renew(lost)

    def examine(self) -> Sequence[str]:
        """Is the problem fit to be judged? Its weaknesses."""
        self.progress("examining the problem", "judging: examining the problem")
        begin = time.monotonic()
        found = self.ask_reference(do="examine", lab="problem")
        self.examined_s = time.monotonic() - begin
        self.counts, self._planned = found["counts"], found["planned"]
        self._concurrency = int(found["concurrency"])
        return list(found["weak"])

    def look_ahead(self, phases: Sequence[Phase]) -> None:
        """From here on it can be said how much of these is done."""
        named = [(phase.name, phase.experiments) for phase in phases]
        steps = outlook.steps_of(
            named, self._planned, self.examined_s, few=bool(self.counts["few"]),
            builds=self._builds, device=self.request.device,
        )  # fmt: skip
        behind = outlook.ENDING_S + (self.request.budget_s / 2 if self.request.timing else 0.0)
        self.outlook = outlook.Outlook(steps, behind)

    def recover(self, lost: Lost) -> None:
        """Another trusted worker knows the problem, and leaves out what the last one died of."""
        self._summarize()
        self.account()
        self._renew(lost)
        self.open_problem()
        self.examine()

    def _renew(self, lost: Lost) -> None:
        if not lost.case or len(self.left_out) >= RENEWALS:
            raise lost
        self.left_out.append(lost.case)
        self.site.renew()

    # --- the end ----------------------------------------------------------------------------

    def finish(self, *, complete: bool) -> None:
        """What only the whole run can say."""
        self._summarize()
        if not complete:
            return
        for check, evidence in (
            ("crash", "every process ended by itself"),
            ("timeout", "every answer in time"),
            ("protocol", f"{sum(self._received.values())} messages checked"),
            ("leftovers", "no process outlived its phase"),
        ):
            self.ledger.add(check, "pass", evidence)

    def _summarize(self) -> None:
        """What a trusted worker has seen, beside what those before it have."""
        summary = self.ask_reference(do="summary", lab="problem")
        of_all = self.numbers, summary["accuracy"]
        of_each = ((self.output_numbers[index], told) for index, told in summary["outputs"])
        for numbers, told in (of_all, *of_each):
            for name, value in told.items():
                numbers[name] = max(value, numbers.get(name, value))
        self.compared += int(summary["compared"])

    def account(self) -> None:
        """What the trusted worker has done, and taken, so far; for the report."""
        with contextlib.suppress(FusewrightError):  # it is gone, and the verdict says why
            told = self.ask_reference(do="costs")
            self.costs.ran(told["runs"])
            self.costs.ended("trusted worker", int(told["peak_bytes"]))

    def close(self) -> None:
        for worker in self.workers:
            worker.stop("the judging is over")
        for worker in self.workers:
            end = worker.kill("the judging is over")
            self.costs.ended(worker.name, end.peak_bytes)
            self._demand_dead(worker, end)
        self._listeners.shutdown()
        if self.site.lost():
            self.ledger.gaps.append("the process that starts workers was killed")

    def replay_data(self) -> dict[str, object]:
        kept = ("device", "accuracy", "truth", "grad", "overrides", "mode")
        request = asdict(self.request)
        own = {name: request[name] for name in kept}
        paths = {name: str(request[name]) for name in ("problem", "candidate")}
        return {
            "seed": self.seed, "request": own | paths, "counts": dict(self.counts),
            "cases": self.cases, "asked": self.asked,
        }  # fmt: skip


def _patience() -> float:
    """Two busy processes a core are allowed for; more of them, more time."""
    return min(10.0, max(1.0, os.getloadavg()[0] / (2 * (os.cpu_count() or 1))))


def source_of(path: Path) -> str:
    """The candidate's text, as Python would read it; nothing of it is run here."""
    try:
        return importlib.util.decode_source(path.read_bytes())
    except (SyntaxError, UnicodeDecodeError) as error:
        raise BadUsage(f"{path}: not a text file: {error}. Save it as UTF-8 Python.") from error
