"""Rows of evidence -> Verdict: every check the judge knows, and the rule that turns rows into a word.

The rule fails closed: `verified` needs a row for every check that the request asks for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

Outcome = Literal["pass", "fail", "skip", "note"]
Word = Literal["verified", "refuted", "not-verified"]
EXIT_CODES: Mapping[Word, int] = MappingProxyType({"verified": 0, "refuted": 1, "not-verified": 3})


@dataclass(frozen=True)
class Check:
    """One promise. `when`: always, timing, grad, sanitize, or note (never decides a verdict)."""

    name: str
    when: str
    promise: str
    answers: str  # rows of the catalogue of cheats and failures (docs/judge.md)
    may_skip: bool = False  # a skip with a reason is then no gap in the evidence
    fewest: int = 0  # cases: a check that has seen fewer has shown nothing


_TABLE = (
    Check("self-canary", "always", "on this machine the judge refutes a known cheat and a known wrong kernel, and accepts a known good one", "V1 V12"),
    Check("import", "always", "the candidate file imports, within its time, and defines ModelNew", "F14 F28 C15"),
    Check("constructor", "always", "ModelNew(*get_init_inputs()) works", "C15 C36"),
    Check("parameters", "always", "names, shapes and dtypes of parameters and buffers are the reference's; pushed values are read back, and stay, bit for bit", "C36 P4 R9"),
    Check("structure", "always", "outputs have eager's containers, types, shapes, dtypes and device", "C6 C9 C10 C32 T6 T7", fewest=5),
    Check("values", "always", "outputs on fresh secret inputs are grossly right", "C1-C5 C20 C27 R2 R5 R7 C39", fewest=5),
    Check("accuracy", "always", "the error against float64 is not larger than eager's, in units of the problem's sensitivity: overall, per tile and at the maximum", "N5-N9 P2 P7", fewest=5),
    Check("nonfinite", "always", "NaN and infinities stand where float64 and eager put them", "C11 C12 V14", fewest=5),
    Check("precision", "always", "inputs on which arithmetic is exact show no lower precision than eager's", "N1-N4 N10", may_skip=True, fewest=1),
    Check("influence", "always", "each input element and parameter moves the outputs that it moves in float64", "C29 C31 R4", may_skip=True, fewest=1),
    Check("input-mutation", "always", "inputs are changed only where eager changes them", "C7", fewest=1),
    Check("aliasing", "always", "outputs share memory with inputs, parameters and each other only as eager's do", "C8", fewest=2),
    Check("output-reuse", "always", "an earlier output keeps its value while later calls run", "R10"),
    Check("stale-cache", "always", "new content at an old address, or nearly equal content, gives a new answer", "R1-R5 R8 R11 R12 T26", fewest=5),
    Check("weight-change", "always", "changed parameters are noticed: load_state_dict, in-place and .data writes, of single elements, too, new memory, new parameters in their places", "R9 C27 T20", may_skip=True, fewest=3),
    Check("buffers", "always", "after steps in train mode the buffers are eager's", "C35", may_skip=True, fewest=3),
    Check("mode", "always", "train() and eval() mean what they mean for eager", "C35", fewest=2),
    Check("guard-bands", "always", "no byte next to an input or parameter is written", "F2", fewest=1),
    Check("hazard-values", "always", "large, tiny, special and structured values", "N7 C28 C30 P3 P5", may_skip=True, fewest=2),
    Check("hazard-strides", "always", "transposed, sliced, expanded, offset and shared inputs", "F19 F21", may_skip=True, fewest=1),
    Check("hazard-shapes", "always", "other legal shapes are right, or refused with an exception", "C26 F20 T33", may_skip=True, fewest=1),
    Check("hazard-dtypes", "always", "module and inputs in float64, bfloat16 and float16 are right, or refused with an exception", "C26", may_skip=True, fewest=1),
    Check("determinism", "always", "the same input again is within the contract again, over all rounds", "C39 F5 F6 C40", fewest=4),
    Check("instances", "always", "two instances with different weights do not disturb each other", "F22 R8", fewest=3),
    Check("global-state", "always", "what a process has outside of its tensors is as it was: numeric flags, modes, hooks, functions, random numbers, the processor's rounding, signals, files, limits, environment", "T13 T14 F24 C14"),
    Check("gradients", "grad", "gradients of every input and parameter for random cotangents, also of fewer rows, against float64 autograd", "C33", fewest=2),
    Check("crash", "always", "no phase ends in a signal, an exit, or a device fault", "F1 F10 C15"),
    Check("timeout", "always", "every answer comes within its deadline", "F8 F14 F28 F30"),
    Check("protocol", "always", "every message is complete, in order and in range", "C15-C17 H7 H5"),
    Check("resources", "always", "memory, files, processes and output stay within their limits", "F12 F13 F15"),
    Check("leftovers", "always", "no daemon outlives a phase", "T29 T22 H1"),
    Check("timing-outputs", "timing", "the output of every timed call is right", "T5 T18 T19 T25 T33 V5 V6 C40", fewest=6),
    Check("timing-clocks", "timing", "the worker's clocks agree with each other and with the parent's", "T1-T4 T8-T12 T24"),
    Check("timing-floor", "timing", "no time is shorter than moving the bytes, or the products that nobody can avoid, take", "T24 D12"),
    Check("sanitizer", "sanitize", "compute-sanitizer finds no error with memcheck, racecheck, initcheck and synccheck", "F2-F6"),
    Check("weak-problem", "note", "an output that computes nothing would pass: the problem cannot tell", "P1-P5"),
    Check("specialised", "note", "the candidate refuses other legal shapes or dtypes with an exception", "C26"),
    Check("fallback", "note", "the candidate itself says that timed calls ran its original forward", ""),
    Check("forward-only", "note", "eager's output has a gradient, the candidate's has none", "C33"),
    Check("dirty-exit", "note", "a worker died after it had answered everything", "F11"),
    Check("nondeterministic", "note", "the same input gave other bits, within the contract", "F27"),
    Check("more-accurate", "note", "the candidate's error against float64 is less than half of eager's", "N8"),
    Check("default-device", "note", "eager runs on this device only under torch.set_default_device, and so did all sides", ""),
    Check("tripwire", "note", "something worth a human look, never a verdict", "D17"),
)  # fmt: skip
CHECKS: Mapping[str, Check] = MappingProxyType({check.name: check for check in _TABLE})


@dataclass(frozen=True)
class Finding:
    check: str
    detail: str


@dataclass(frozen=True)
class Row:
    """One check of one verdict, with the evidence in one line."""

    check: str
    outcome: Outcome
    evidence: str
    cases: int = 0  # calls, or tensors, that it has compared


@dataclass(frozen=True)
class Verdict:
    verdict: Word
    checks: tuple[Row, ...]
    findings: tuple[Finding, ...]
    reason: str  # one sentence: why this word
    accuracy: Mapping[str, object] = field(default_factory=dict)
    timing: Mapping[str, object] | None = None
    environment: Mapping[str, object] = field(default_factory=dict)
    replay: Mapping[str, object] = field(default_factory=dict)
    costs: Mapping[str, object] = field(default_factory=dict)  # see `costs.Costs`

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]


class Ledger:
    """Collects evidence; a check once failed stays failed.

    ignored: checks whose failures count as passed, to see what would get through without them.
    """

    def __init__(self, wanted: Iterable[str], ignored: Iterable[str] = ()) -> None:
        self.wanted = {"always", *wanted}
        self._ignored = frozenset(ignored)
        self.gaps: list[str] = []  # why the evidence is incomplete, although every row is there
        self._evidence: dict[str, list[tuple[Outcome, str]]] = {}
        self._cases: Counter[str] = Counter()

    def add(self, check: str, outcome: Outcome, evidence: str) -> None:
        if check not in CHECKS:
            raise KeyError(f"no check is called {check}")
        if outcome == "fail" and check in self._ignored:
            outcome = "pass"
        self._evidence.setdefault(check, []).append((outcome, evidence))

    def count(self, check: str, cases: int = 1) -> None:
        """Something was compared for this check."""
        self._cases[check] += cases

    def mark(self) -> tuple[dict[str, int], Counter[str], int]:
        """What is here now, for `back_to`."""
        rows = {name: len(rows) for name, rows in self._evidence.items()}
        return rows, self._cases.copy(), len(self.gaps)

    def back_to(self, mark: tuple[dict[str, int], Counter[str], int]) -> None:
        """Forget what has come since: it comes again."""
        rows, self._cases, gaps = mark[0], mark[1].copy(), mark[2]
        self._evidence = {n: self._evidence[n][:count] for n, count in rows.items()}
        del self.gaps[gaps:]

    def failed(self, *checks: str) -> bool:
        return any(
            row.outcome == "fail" for row in self.rows() if not checks or row.check in checks
        )

    def rows(self) -> tuple[Row, ...]:
        rows = []
        for name, check in CHECKS.items():
            evidence = self._evidence.get(name, [])
            if evidence:
                rows.append(replace(_merge(name, evidence), cases=self._cases[name]))
            elif check.when in self.wanted:
                rows.append(Row(name, "skip", "not reached"))
        return tuple(rows)

    def findings(self) -> tuple[Finding, ...]:
        entries = ((n, o, e) for n, rows in self._evidence.items() for o, e in rows)
        return tuple(dict.fromkeys(Finding(n, e) for n, o, e in entries if o in ("fail", "note")))

    def word(self) -> tuple[Word, str]:
        """The verdict and its reason; anything short of complete evidence is not verified."""
        rows = self.rows()
        if any(r.check == "self-canary" and r.outcome != "pass" for r in rows):
            return "not-verified", (self.gaps or ["the judge's self-test did not pass here"])[0]
        failed = [r.check for r in rows if r.outcome == "fail"]
        if failed:
            return "refuted", f"failed: {', '.join(failed)}"
        if self.gaps:
            return "not-verified", self.gaps[0]
        gaps = [r.check for r in rows if self._is_gap(r)]
        if gaps:
            return "not-verified", f"no complete evidence for: {', '.join(gaps)}"
        few = [f"{r.check} ({r.cases} of {n})" for r in rows if r.cases < (n := self._fewest(r))]
        if few:
            return "not-verified", f"fewer cases than it takes for: {', '.join(few)}"
        return "verified", "every check that was asked for passed"

    def _is_gap(self, row: Row) -> bool:
        check = CHECKS[row.check]
        if check.when == "note" or row.outcome == "pass":
            return False
        reached = bool(self._evidence.get(row.check))
        return not (reached and row.outcome == "skip" and check.may_skip)

    def _fewest(self, row: Row) -> int:
        """How many cases a row must have: none where it did not pass, or passes all the same."""
        asked = row.outcome == "pass" and row.check not in self._ignored
        return CHECKS[row.check].fewest if asked else 0


def _merge(name: str, evidence: list[tuple[Outcome, str]]) -> Row:
    """Worst outcome first; the evidence line says how often and shows the first of its kind."""
    for outcome in ("fail", "note", "pass", "skip"):
        lines = list(dict.fromkeys(e for o, e in evidence if o == outcome))
        if lines:
            more = f" (and {len(lines) - 1} more)" if outcome == "fail" and len(lines) > 1 else ""
            text = lines[0] + more if outcome in ("fail", "skip") else "; ".join(lines[:6])
            return Row(name, outcome, text)
    raise AssertionError("evidence is never empty")
