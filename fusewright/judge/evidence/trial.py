"""One call of a candidate -> rows of evidence: ship the arguments, expect, compare what came back.

This runs in the trusted worker. A step goes through the parent to the candidate's worker; what
comes back is a checked record with claims and the place of raw bytes, never a verdict.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from mmap import mmap
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusewright.judge.evidence import contract, hazard_cases
from fusewright.judge.evidence.cpu_kernels import where_lost
from fusewright.judge.evidence.legal_inputs import says_short
from fusewright.judge.evidence.position_outputs import POSITIONS, wrong
from fusewright.judge.evidence.signed_zeros import as_eager
from fusewright.judge.isolation import memory_limit, tensor_transport
from fusewright.judge.isolation.protocol import OTHER_DEVICE, OVERLAPPING

if TYPE_CHECKING:
    from fusewright.judge.evidence.expected_answers import Expected, Part
    from fusewright.judge.evidence.oracle import Oracle

Answer = Mapping[str, Any]
State = Mapping[str, Tensor]
Steps = Generator[dict[str, Any], Any, None]
Outputs = Generator[dict[str, Any], Any, "list[Tensor] | None"]


BORROWED = 4  # of so many calls that may borrow their sensitivity, one has its own all the same

# What a plain call is a case of, and what it is if its arguments come back.
ASKED = ("structure", "values", "accuracy", "nonfinite", "aliasing")
ECHOED = ("input-mutation", "guard-bands")
CALL_OPTIONS: Mapping[str, Any] = {
    "grad": False, "reuse": False, "hold": 0, "echo": False, "cotangents": None,
    "stream": "", "exact": False, "default_device": "",
}  # fmt: skip


def options_of(lab: Oracle) -> dict[str, Any]:
    """What a call of this problem is made with, if nothing else is said."""
    return {**CALL_OPTIONS, "default_device": lab.placing.device}


class Refused(Exception):
    """The candidate raised where it must not."""


# A raised error with one of these words has ruined the device context: no clear refusal.
STICKY = ("CUDA error", "device-side assert", "illegal memory", "CUBLAS_STATUS", "cuDNN error")


def is_clear(refusal: Refused) -> bool:
    """An exception that leaves the process as it was?"""
    return not any(word in str(refusal) for word in (*STICKY, "exit:"))


class Starved(Exception):
    """The candidate says that it has no memory: nobody knows whether it would have been right."""


class Trial:
    """One run of one experiment on one worker: its regions, its rows, its current expectation."""

    def __init__(
        self, lab: Oracle, inputs: mmap, outputs: mmap, options: Mapping[str, Any]
    ) -> None:
        self.lab = lab
        self.options = options
        self.rows: list[tuple[str, str, str]] = []
        self.seconds = lab.seconds  # how long eager and float64 took for the last call
        self.answer: Answer = {}
        self.expected: Expected | None = None
        self.label = "start"
        self.reports_to = ""  # the check that a wrong answer of the current call belongs to
        # Has the worker's state moved since it was loaded? Another experiment may have moved it.
        self.dirty = bool(lab.touched)
        self.typical = False
        self.hazard = False  # the current call's inputs are none that get_inputs() draws
        self.stopped = False  # nothing more can be asked of this worker
        self.cases: list[tuple[str, str]] = []  # check and name of all that was compared
        self.lost = False  # eager itself is lost in the current call: nothing was compared
        self._inputs, self._outputs = inputs, outputs
        self._prepare: Callable[[], None] | None = None
        self._own: Callable[[], Expected] | None = None  # with its own sensitivity
        self._count = 0
        self._fewer: int | None = None  # rows of a call that need not be of full size

    def say(self, check: str, outcome: str, evidence: str) -> None:
        if outcome == "fail" and check in self.options.get("ignored", ()):
            outcome = "pass"
        self.rows.append((check, outcome, evidence))

    def counted(self, *checks: str) -> None:
        """One more case of these checks, under the name of the current call."""
        self.cases += [(check, self.label) for check in checks]

    def known(self) -> Expected:
        """What was expected of the last call, for another one on the same content."""
        assert self.expected is not None
        return self.expected

    def died(self, why: str) -> None:
        if self.reports_to:
            self.say(self.reports_to, "fail", f"{self.label}: {why}")

    def refused(self, refusal: Refused) -> None:
        check = "structure" if "UnusableOutput" in str(refusal) else "crash"
        self.say(check, "fail", f"{self.label}: {refusal}")
        self.died(str(refusal))

    def starved(self, why: Starved) -> None:
        """No verdict; it is nothing that refutes, and nothing that a candidate gains by."""
        check = self.reports_to or "crash"
        first = str(why).strip().splitlines()[0]  # CUDA adds advice about other faults
        self.say(check, "short", f"{self.label}: the candidate ran out of memory: {first}")

    def prepare(self) -> None:
        if self._prepare is not None:
            self._prepare()
            self._prepare = None

    def ship(
        self, values: Sequence[object], offset: int = 0, *, constructor: bool = False
    ) -> dict[str, Any]:
        self._count += 1
        seed = self.lab.seed("guard", self._count)
        return tensor_transport.ship_only(
            values, seed, self._inputs, offset, constructor=constructor
        )

    def result(self, record: Mapping[str, Any]) -> Tensor | None:
        return tensor_transport.get_result(record, self._outputs, self.lab.device)

    def holds(self, record: Mapping[str, Any], wanted: Tensor) -> bool:
        return tensor_transport.holds(record, self._outputs, wanted)

    # --- steps ------------------------------------------------------------------------------

    def repeat(self, calls: int, arguments: Mapping[str, Any]) -> Generator[Any, Any, Answer]:
        """Many calls on the same arguments, which nobody judges."""
        placed = {"default_device": self.lab.placing.device}
        return self.ask("repeat", instance=0, calls=calls, arguments=arguments, **placed)

    def ask(self, do: str, **fields: Any) -> Generator[dict[str, Any], Any, Answer]:
        memory_limit.give_back(self.lab.device)
        answer: Answer = yield {"do": do, **fields}
        self.answer = answer
        if answer["kind"] == "raised":
            text = str(answer["text"])[:1500]
            raise (Starved if says_short(text) else Refused)(text)
        return answer

    def fewer(self) -> Generator[dict[str, Any], Any, int]:
        """How many rows those calls have that need not be of full size; 0: all calls are.

        Whoever refuses fewer rows, which is allowed, is asked everything at full size.
        """
        if self._fewer is None:
            rows = self._fewer = self.lab.few
            label, check = f"{rows} rows", "hazard-shapes"
            try:
                if rows:
                    values = self.lab.inputs("fewer rows", rows=rows)
                    yield from self.call(values, label=label, reports_to=check, typical=True)
            except Refused as refusal:
                if not is_clear(refusal):
                    raise
                self.say("specialised", "note", f"refuses {rows} rows: {str(refusal)[:200]}")
                self._fewer = 0
        return self._fewer

    def load(self, state: State, how: str = "load_state_dict", instance: int = 0) -> Steps:
        plain = {name: t.detach() for name, t in state.items()}
        yield from self.ask("load", arguments=self.ship([plain]), how=how, instance=instance)

    def call(  # noqa: PLR0913 -- what one call may differ in
        self, values: Sequence[object], *, label: str, state: State | None = None, mode: str = "",
        reports_to: str = "", instance: int = 0, typical: bool = False,
        known: Expected | None = None, like: Expected | None = None, **fields: Any,
    ) -> Outputs:  # fmt: skip
        """One call, judged. Returns the outputs, or None if their structure is wrong.

        `typical`: one of many plain draws, which may borrow the sensitivity of another;
        `like`: from where it is borrowed in any case; `known`: what is expected, where the same
        content was expected before.
        """
        lab = self.lab
        self.label, self.reports_to, self.expected, self.typical = label, reports_to, known, typical
        state, mode = (lab.state if state is None else state), (mode or lab.modes[0])
        if self.dirty:
            moved = {n: t for n, t in state.items() if n in lab.touched}
            yield from self.load(moved, "inplace", instance)
        self._count += 1
        shipment = tensor_transport.pack(values, lab.seed("guard", self._count))
        with_gradients = bool(fields.get("grad"))
        self._own = lambda: lab.expect(shipment, state, mode, gradients=with_gradients)
        if known is None:
            # Where there are calls with fewer rows, those have their own, and no other has.
            whole = not lab.few or hazard_cases.rows_of(values) != lab.few
            may = typical and whole and mode == lab.modes[0]
            may = may and (bool(lab.few) or bool(self._count % BORROWED))
            like = like or (lab.typical if may else None)
            grad = bool(fields.get("grad"))
            self._prepare = lambda: self._expect(shipment, state, mode, like, gradients=grad)
        arguments = tensor_transport.ship(shipment, self._inputs)
        yield from self._send(arguments, mode, instance, **fields)
        self.prepare()
        return self._judge(shipment, echo=fields.get("echo", False))

    def judge_timed(
        self, shipment: tensor_transport.Shipment, answer: Answer, state: State,
        like: Expected | None, *, hazard: bool,
    ) -> None:  # fmt: skip
        """The output of a timed call: the same rule, only the aliases are not asked for again."""
        self.label, self.reports_to, self.answer = "timed call", "timing-outputs", answer
        # Every output is compared; one in eight, at random, with its own sensitivity.
        like = like if self.lab.costly or secrets.randbelow(8) else None
        self.expected = self.lab.expect(shipment, state, self.lab.modes[0], like)
        self._own = lambda: self.lab.expect(shipment, state, self.lab.modes[0])
        self.hazard = hazard
        self._judge(shipment, echo=False)

    def bare_call(
        self, values: Sequence[object], *, label: str, mode: str
    ) -> Generator[dict[str, Any], Any, list[Tensor]]:
        """One call whose outputs somebody else judges."""
        self.label, self.reports_to = label, ""
        yield from self._send(self.ship(values), mode, 0)
        return self._results()

    def gradient_call(
        self, values: Sequence[object], cotangents: Sequence[Tensor], mode: str, outputs: int
    ) -> Generator[dict[str, Any], Any, list[Tensor | None]]:
        """The gradients, in order: inputs, then parameters; None where there is none."""
        self.label, self.reports_to = "gradients", "gradients"
        arguments = self.ship(values)
        shipped = self.ship(cotangents, offset=tensor_transport.end_of(arguments))
        yield from self._send(arguments, mode, 0, grad=True, cotangents=shipped)
        return [self.result(r) for r in self.answer["tensors"][outputs:]]

    def _send(self, arguments: dict[str, Any], mode: str, instance: int, **fields: Any) -> Steps:
        options = {**options_of(self.lab), **fields}
        buffers = mode == "train" and "B" in self.lab.kinds.values()
        self.dirty = buffers or bool(self.lab.writes.get(mode))
        yield from self.ask("call", instance=instance, mode=mode, arguments=arguments, **options)

    def _results(self) -> list[Tensor]:
        return [t for r in self.answer["tensors"] if (t := self.result(r)) is not None]

    def _expect(
        self, shipment: tensor_transport.Shipment, state: State, mode: str, like: Expected | None,
        *, gradients: bool,
    ) -> None:  # fmt: skip
        # Where calls are shortened, those have all draws of their sensitivity.
        most = 1 if self.lab.few else contract.PAIRS
        self.expected = self.lab.expect(shipment, state, mode, like, most, gradients)

    # --- judging one answer -----------------------------------------------------------------

    def fail(self, check: str, detail: str) -> None:
        self.say(self.reports_to or check, "fail", f"{self.label}: {detail}")

    def _judge(self, shipment: tensor_transport.Shipment, *, echo: bool) -> list[Tensor] | None:
        expected = self.expected
        assert expected is not None
        records = list(self.answer["tensors"])
        blocks = records[len(records) - len(shipment.blocks) :] if echo else []
        results = records[: len(records) - len(blocks)]
        wrong = _structure(self.answer["text"], results, expected, self.lab.device)
        if wrong:
            self.fail("structure", wrong)
            return None
        outputs = [t for r in results if (t := self.result(r)) is not None]
        compared = [self._compare_fairly(index, output) for index, output in enumerate(outputs)]
        self.lost = bool(compared) and not any(compared)
        if not self.lost:
            self.counted(*((self.reports_to,) if self.reports_to else ASKED), *(ECHOED * echo))
        if not self.reports_to:
            self._compare_aliases(results, expected)
        if echo:
            self._compare_blocks(blocks, shipment, expected)
        self.lab.calls_compared += 1
        return outputs

    def _compare_fairly(self, index: int, output: Tensor) -> bool:
        """Nobody is refuted with a borrowed sensitivity: a choice may be near in this draw."""
        assert self.expected is not None
        before, borrowed = len(self.rows), self.expected.like is not None
        done = self._compare(index, output, self.expected)
        failed = any(outcome == "fail" for _, outcome, _ in self.rows[before:])
        if not (failed and borrowed and self._own is not None):
            return done
        del self.rows[before:]
        self.expected, self._own = self._own(), None
        return self._compare(index, output, self.expected)

    def _compare(self, index: int, output: Tensor, expected: Expected) -> bool:
        """False where there is nothing to compare with."""
        eager, full = expected.eager[index], not self.reports_to and not self.typical
        output = output.to(eager.device)
        if not full and torch.equal(output, eager):
            return True  # no limit lies below eager's own error
        if not (full or self.hazard or self.lab.whole_truth):
            like = expected.like
            given = (like.sizes[index], like.usual[index]) if like else ()
            if contract.close(output, eager, *given):
                return True
        if (full or self.hazard) and self._passes_in_part(index, output, expected, full=full):
            return True
        if output.shape != eager.shape or expected.truth[index].shape != eager.shape:
            return False  # its size depends on roundings
        three = eager, expected.truth[index], lambda pairs: expected.kappa(pairs)[index]
        if self.hazard and contract.reference_fault(*three[:2]):
            return False  # eager itself is lost here

        def rule(found: Tensor) -> contract.Comparison:
            return contract.compare(
                found, *three, mode=self.lab.accuracy, hazard=self.hazard, full=full,
                noise=lambda: expected.noise()[index],
            )  # fmt: skip

        compared = self._compare_freely(index, output, expected, rule)
        if full:
            self.lab.seconds = min(self.lab.seconds, expected.seconds)
        if not compared.passed:
            self.fail(compared.check, f"output {index}: {compared.detail}")
            if compared.check == "values" and not self.reports_to:
                self.fail("accuracy", f"output {index}: {compared.detail}")
        if full:
            self._keep_numbers(index, compared)
        return True

    def _compare_freely(
        self, index: int, output: Tensor, expected: Expected,
        rule: Callable[[Tensor], contract.Comparison],
    ) -> contract.Comparison:  # fmt: skip
        """Where an output fails, what PyTorch itself leaves open is taken as eager has it: which of
        equal values a position names, the sign of a zero, infinities of a GPU and of a CPU."""
        eager, compared = expected.eager[index], rule(output)
        if not compared.passed or compared.numbers.get("ties"):
            compared = self._positions(index, output, expected) or compared
        others = None if compared.passed else expected.zeros()
        if others is not None:
            compared = rule(as_eager(output, eager, others[index]))
        others = expected.elsewhere() if compared.check == "nonfinite" else None
        if others is not None and not compared.passed:
            loose = contract.loosely(eager.dtype)
            compared = rule(where_lost(output, eager, others[index], loose))
        return compared

    def _passes_in_part(
        self, index: int, output: Tensor, expected: Expected, *, full: bool
    ) -> bool:
        """Are some rows, and all that are not close to eager's, right by all rules? Then all are.

        What is wrong in a row is looked for among all of them, once more: the row is not alone.
        """
        part = expected.part
        if part is None:
            return False
        eager, given = (
            expected.eager[index],
            (part.expected.sizes[index], part.expected.usual[index]),
        )
        apart = contract.rows_apart(output, eager, *given)
        if apart is None:
            return False
        doubtful = apart.nonzero().flatten()
        if len(doubtful) > self.lab.part and contract.close(output, eager, *given):
            doubtful = doubtful[:0]
        if not self._right_in(index, output, expected, part, full=full):
            return False
        for start in range(0, len(doubtful), self.lab.part):
            found = expected.some_rows(doubtful[start : start + self.lab.part])
            if found is None or not self._right_in(index, output, expected, found, full=False):
                return False
        return True

    def _right_in(
        self, index: int, output: Tensor, expected: Expected, part: Part, *, full: bool
    ) -> bool:
        """Are these rows right, with what float64 says to them alone?"""
        eager, some = expected.eager[index][part.rows], part.expected
        told = not contract.nowhere_finite(eager, some.truth[index])
        if self.hazard and told and contract.reference_fault(eager, some.truth[index]):
            return False
        compared = contract.compare(
            output[part.rows], eager, some.truth[index], lambda pairs: some.kappa(pairs)[index],
            mode=self.lab.accuracy, hazard=self.hazard, full=full,
            noise=lambda: some.noise()[index],
        )  # fmt: skip
        if compared.passed and full:
            self._keep_numbers(index, compared)
        return compared.passed

    def _keep_numbers(self, index: int, compared: contract.Comparison) -> None:
        """For the report: the worst of all fresh draws, of all outputs and of this one."""
        if compared.passed and compared.more_accurate:
            self.say("more-accurate", "note", "less than half of eager's error on fresh inputs")
        for name, value in compared.numbers.items():
            for numbers in (self.lab.accuracy_numbers, self.lab.output_numbers[index]):
                numbers[name] = max(numbers.get(name, value), value)

    def _positions(
        self, index: int, output: Tensor, expected: Expected
    ) -> contract.Comparison | None:
        """The same output judged as positions, if it is that."""
        eager, truth = expected.eager[index], expected.truth[index]
        if eager.dtype not in POSITIONS or not eager.numel() or output.shape != eager.shape:
            return None
        taken = expected.positions()[index]
        if taken is None:
            return None
        found = wrong(output, eager, truth, taken)
        count, numbers = int(found.sum()), {"elements": float(found.numel())}
        if not count:
            return contract.Comparison(True, "A", "values", "positions of best values", numbers)
        detail = f"{count} of {found.numel()} positions hold another value than the best one"
        return contract.Comparison(False, "F", "values", detail, numbers)

    def _compare_aliases(self, results: Sequence[Mapping[str, Any]], expected: Expected) -> None:
        for index, (found, wanted) in enumerate(zip(results, expected.aliases, strict=True)):
            if (found["alias"] >= 0) != (wanted >= 0):
                what = "shares memory" if found["alias"] >= 0 else "does not share memory"
                self.fail("aliasing", f"output {index} {what} where eager's does otherwise")

    def _compare_blocks(
        self,
        echoed: Sequence[Mapping[str, Any]],
        shipment: tensor_transport.Shipment,
        expected: Expected,
    ) -> None:
        for record, sent in zip(echoed, shipment.blocks, strict=True):
            if record["dtype"] != "uint8" or record["nbytes"] != sent.numel():
                raise Refused("the memory of an argument came back in another size")
        if all(
            torch.equal(after, sent.to(after.device)) and self.holds(record, sent)
            for record, sent, after in zip(echoed, shipment.blocks, expected.blocks, strict=True)
        ):
            return  # eager leaves its inputs alone, and so did the candidate
        masks = tensor_transport.covered(shipment)
        four = zip(echoed, shipment.blocks, masks, expected.blocks, strict=True)
        for record, sent, mask, after in four:
            found = self.result(record)
            assert found is not None
            self._compare_block(found.to(sent.device), sent, mask, after.to(sent.device))

    def _compare_block(self, found: Tensor, sent: Tensor, mask: Tensor, after: Tensor) -> None:
        outside = int((found != sent)[~mask].sum())
        if outside:
            self.fail("guard-bands", f"{outside} bytes next to an input were written")
        if not torch.equal(after, sent):
            changed = (after != sent) & mask
            if not bool(((found != sent) & mask)[changed].any()):
                self.fail("input-mutation", "eager writes to its input, the candidate does not")
        elif bool((found != sent)[mask].any()):
            count = int((found != sent)[mask].sum())
            self.fail("input-mutation", f"{count} bytes of an input were changed")


def named(answer: Answer) -> list[tuple[str, str, Mapping[str, Any]]]:
    """(name, kind, record) of each entry of a state; the counts are only a claim until here."""
    lines = [line.partition(" ") for line in answer["text"].splitlines()]
    if len(lines) != len(answer["tensors"]):
        raise Refused(f"{len(lines)} names came with {len(answer['tensors'])} tensors")
    pairs = zip(lines, answer["tensors"], strict=True)
    return [(name, kind, record) for (kind, _, name), record in pairs]


def _structure(
    spec: str, results: Sequence[Mapping[str, Any]], expected: Expected, device: str
) -> str:
    """How an answer is built otherwise than eager's, or ""; numbers of Python are on the CPU."""
    if len(results) != len(expected.eager):
        return f"{len(results)} tensors instead of {len(expected.eager)}"
    if spec != expected.spec:
        return f"returned {spec[:200]} instead of {expected.spec[:200]}"
    for index, (found, wanted) in enumerate(zip(results, expected.eager, strict=True)):
        shape, dtype = tuple(found["shape"]), str(wanted.dtype).removeprefix("torch.")
        if shape != tuple(wanted.shape) and shape == tuple(expected.truth[index].shape):
            shape = tuple(wanted.shape)  # what float64 selects is no worse than what eager does
        if shape != tuple(wanted.shape) or found["dtype"] != dtype:
            it = f"{found['dtype']}{list(shape)}"
            return f"output {index} is {it} instead of {dtype}{list(wanted.shape)}"
        if bool(found["flags"] & OTHER_DEVICE) != (wanted.device.type != device):
            return f"output {index} is on another device"
        if found["flags"] & OVERLAPPING and not expected.overlapping[index]:
            return f"output {index} repeats the same memory (stride 0)"
    return ""
