"""Does a candidate read its parameters at each call? Rarer ways to change them, and small changes.

What a constructor binds (memory, a parameter) or a cache samples (every thousandth element) stays
right through all that writes a whole new state into the memory of the old one.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fusewright.judge.evidence import model_states
from fusewright.judge.evidence.legal_inputs import Illegal, asked
from fusewright.judge.evidence.pytree import mapped
from fusewright.judge.evidence.tied_tensors import each
from fusewright.judge.evidence.trial import Refused, State, Steps, Trial
from fusewright.judge.isolation.parameter_holders import REPLACING, hold
from fusewright.judge.isolation.tensor_transport import results_of

if TYPE_CHECKING:
    from fusewright.judge.evidence.oracle import Oracle

CHECK = "weight-change"
# Of single elements, each beside the state before it: a cache that samples one element in eight
# sees both rounds once in 64 judgings, one that samples every 61st once in 3,721.
ROUNDS = 2
FAR = 8.0  # a single element moves by so many times the largest: beyond any rounding of a sum
SMALL_BYTES = 256 << 20  # of a state of which a second module is made, to ask the reference


def one_element(t: Trial, few: int) -> Steps:
    """One element of each parameter, at a secret place; the rest, and the inputs, as they were."""
    lab = t.lab
    state: State = lab.state
    values = lab.inputs("weights", "one element", rows=few)
    for number in range(1 if lab.costly and not few else ROUNDS):
        label = f"after {('data', 'inplace')[number]} writes to one element of each parameter"
        state = nudged(lab, state, number)
        if not lab.takes(label, values, state):
            return
        if not number:
            yield from t.load(lab.state, "inplace")
            yield from t.call(values, label="before them", reports_to=CHECK, typical=True)
        yield from t.load(state, ("data", "inplace")[number])
        yield from t.call(values, label=label, reports_to=CHECK, state=state)


def nudged(lab: Oracle, state: State, number: int) -> State:
    """`state` with one element of each parameter larger in size, and of the same sign: what must
    be positive stays so.

    It is made from the state of the round before, not from the model's own: whoever saw that
    round's element would see it put back, and with it whatever else has changed.
    """
    draws = torch.Generator().manual_seed(lab.seed("one element", number) % 2**31)

    def change(name: str, value: Tensor) -> Tensor:
        new = value.clone()
        if lab.kinds[name] == "P" and value.is_floating_point() and value.numel():
            place = tuple(int(torch.randint(n, (), generator=draws)) for n in value.shape)
            largest = lab.state[name].abs().max()
            moved = value[place] + largest.copysign(value[place]) * FAR
            new[place] = moved if bool(torch.isfinite(moved)) else value[place]
        return new

    return each(state, change)


def exchanged(t: Trial, few: int) -> Steps:
    """New memory, and new parameters, where the reference itself reads those."""
    lab, state = t.lab, t.lab.changed
    if sum(v.numel() * v.element_size() for v in state.values()) > SMALL_BYTES:
        return
    ways = list(REPLACING)
    Random(lab.seed("ways to exchange parameters")).shuffle(ways)
    for how in ways[: 1 if lab.costly and not few else None]:
        values = lab.inputs("weights", how, rows=few)
        if not _follows(lab, how, values, state):
            continue
        try:
            yield from t.load(state, how)
        except Refused as refusal:  # nothing silent: what loads it is told
            t.say("specialised", "note", f"refuses {how}: {str(refusal)[:200]}")
            continue
        label = f"after {_WORDS[how]}"
        yield from t.call(values, label=label, reports_to=CHECK, typical=True, state=state)
        state = lab.state if state is lab.changed else lab.changed


_WORDS = {
    "storage": "parameters were given other memory",
    "assign": "load_state_dict(assign=True)",
    "replaced": "parameters were replaced",
}


def _follows(lab: Oracle, how: str, values: list[object], state: State) -> bool:
    """Is a copy of the reference right after that? What holds tensors of its own is not."""
    mode = lab.modes[0]
    wanted = lab.eager(mode)(mapped(values, Tensor.clone), state)
    other = model_states.copied(lab.model, {})
    try:
        with asked(), torch.no_grad():
            hold(other, {name: v.detach().clone() for name, v in state.items()}, how)
            found = results_of(lab.run(other, mapped(values, Tensor.clone), {}, mode))
    except Illegal:
        return False
    return len(found) == len(wanted) and all(
        a.shape == b.shape and torch.allclose(a, b, 1e-2, 1e-5, equal_nan=True)
        for a, b in zip(found, wanted, strict=True)
    )
