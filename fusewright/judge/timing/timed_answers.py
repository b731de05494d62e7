"""The trusted worker's part of a timing: what every side is sent, and whether an answer is right.

All calls come the same way. Some of them, which nobody counts, carry other values or follow a
change of the parameters; the parent draws their places. So what is only right while it is timed
shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from mmap import mmap
from random import Random
from typing import Any

from torch import Tensor

from fusewright.judge.evidence import hazard_cases, model_states
from fusewright.judge.evidence.expected_answers import Expected
from fusewright.judge.evidence.hazard_cases import Case
from fusewright.judge.evidence.hazards import check_of
from fusewright.judge.evidence.legal_inputs import Illegal, ShortOfMemory
from fusewright.judge.evidence.oracle import NotJudgeable, Oracle
from fusewright.judge.evidence.trial import State, Trial, options_of
from fusewright.judge.isolation import tensor_transport

MOST, FEWEST = 24, 4  # calls between the counted ones, where the problem has so many cases
Message = Mapping[str, Any]


class Timed:
    """What all sides of one timing have in common."""

    def __init__(self, lab: Oracle) -> None:
        self._lab = lab
        self._mode = lab.modes[0]
        self._shipped: dict[tuple[object, ...], tensor_transport.Shipment] = {}
        self._carried: bool | None = None
        self._cases: dict[str, Case] = {}
        self._like: Expected | None = None  # with the other parameters

    def plan(self) -> dict[str, object]:
        """Which cases there are between the counted calls, and whether the parameters can move."""
        moves = self._moves()
        inputs = self._lab.inputs("between")
        matrix = hazard_cases.matrix(inputs, seed=self._lab.seed("between") % 2**31)
        found = in_turn(matrix, Random(self._lab.seed("order between")))
        most = self._lab.counts.calls("between", MOST, FEWEST, each=self._lab.counts.call)
        for case in found:
            if len(self._cases) < most and self._taken(case, moves=moves):
                self._cases[case.name] = case
        return {"cases": list(self._cases), "moves": moves}

    def steps(self, message: Message, inputs: mmap) -> list[dict[str, Any]]:
        """The next call, and what comes before; every side gets the same content."""
        lab, state = self._lab, self._state(message)
        arguments = tensor_transport.ship(self._drawn(message), inputs)
        options = {**options_of(lab), "mode": self._mode, "instance": 0}
        steps = [{"do": "call", "arguments": arguments, **options}]
        names = set(state) if message["load"] else lab.touched if self._carries() else set()
        if names:
            kept = {n: t.detach() for n, t in state.items() if n in names}
            seed, behind = lab.seed("guard"), tensor_transport.end_of(arguments)
            shipped = tensor_transport.ship_only([kept], seed, inputs, behind)
            load = {"do": "load", "how": "inplace", "instance": 0, "arguments": shipped}
            steps = [load, *steps]
        return steps

    def judge(self, trial: Trial, message: Message) -> None:
        """The output of one call of the candidate; that of a counted one may borrow."""
        like = self._like if message["moved"] else self._lab.typical
        hazard = bool(message["case"]) and not self._cases[message["case"]].required
        trial.judge_timed(
            self._drawn(message), message["record"], self._state(message),
            None if message["case"] else like, hazard=hazard,
        )  # fmt: skip
        if message["moved"] and self._like is None and not message["case"]:
            self._like = trial.expected

    def _state(self, message: Message) -> State:
        return self._lab.changed if message["moved"] else self._lab.state

    def _moves(self) -> bool:
        """Is there a second state that the reference takes?"""
        if not any(t.is_floating_point() or t.is_complex() for t in self._lab.state.values()):
            return False
        try:
            return bool(self._lab.changed)
        except (NotJudgeable, ShortOfMemory):
            return False

    def _taken(self, case: Case, *, moves: bool) -> bool:
        lab, values = self._lab, case.build()
        try:
            if lab.accepts(f"between {case.name}", values, self._mode) is None:
                return False
            return not moves or lab.takes(f"between {case.name}", values, lab.changed)
        except (Illegal, ShortOfMemory):
            return False

    def _drawn(self, message: Message) -> tensor_transport.Shipment:
        key = message["round"], message["call"]
        if key not in self._shipped:
            self._shipped = {k: v for k, v in self._shipped.items() if k[0] == key[0]}
            case = message["case"]
            values: Sequence[object] = (
                self._cases[case].build() if case else self._lab.inputs("timed", *key)
            )
            self._shipped[key] = tensor_transport.pack(values, self._lab.seed("guard", *key))
        return self._shipped[key]

    def _carries(self) -> bool:
        """Whether eager's answer depends on what an earlier call has left in its buffers."""
        if self._carried is None:
            lab, answers = self._lab, list[list[Tensor]]()
            state = lab.own(lab.state)
            for _ in range(2):
                made = lab.run_quietly(lab.inputs("carried"), state, self._mode)
                answers.append([t.clone() for t in made])
            self._carried = not all(map(model_states.same, *answers))
        return self._carried


def in_turn(matrix: Sequence[Case], draws: Random) -> list[Case]:
    """Those of other values in a secret order, but so that where few are asked, each kind has its
    turn before another's second: first NaN, which most of what is faster than right loses."""
    found = [case for case in matrix if check_of(case) == "hazard-values"]
    draws.shuffle(found)
    found.sort(key=lambda case: not case.name.startswith("special-nan"))
    turns: dict[str, int] = {}
    rank = {}
    for case in found:
        kind = case.name.rpartition("-")[0] if case.family == "special" else case.family
        rank[case.name] = turns[kind] = turns.get(kind, 0) + 1
    return sorted(found, key=lambda case: rank[case.name])
