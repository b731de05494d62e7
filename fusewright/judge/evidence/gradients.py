"""Random cotangents -> gradients of every input and parameter, compared with float64 autograd, at
the example's size and with fewer rows.

This is asked where `--grad` wants it. A gradient is held to the same contract as an output.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewright.judge.evidence import contract, hazard_cases
from fusewright.judge.evidence.legal_inputs import Illegal, ShortOfMemory, tried
from fusewright.judge.evidence.pytree import mapped, tensors, upcast
from fusewright.judge.evidence.tied_tensors import each
from fusewright.judge.evidence.trial import Refused, State, Steps, Trial, is_clear

COTANGENT_DRAWS = 2
FEWEST_ROWS = 2  # more than one, of another batch than the example's


def gradients(t: Trial) -> Steps:
    """Random cotangents; every input and parameter, against float64 autograd; then with fewer rows,
    which the candidate may refuse."""
    for draw in range(COTANGENT_DRAWS):
        if not (yield from _asked(t, t.lab.inputs("gradients", draw), draw)):
            return
    others = yield from _other_rows(t)
    if not any(outcome == "fail" for _, outcome, _ in t.rows):
        rows = f", and {' and '.join(others)}" * bool(others)
        t.say("gradients", "pass", f"{COTANGENT_DRAWS} random cotangents{rows}")


def _asked(
    t: Trial, inputs: Sequence[object], draw: object
) -> Generator[dict[str, Any], Any, bool]:
    """One call; whether it, and its gradients, are right."""
    lab = t.lab
    values, mode = _leaves(inputs), lab.modes[0]
    own = each(lab.state, lambda _, v: v.clone())
    bare = lab.eager(mode)(mapped(values, Tensor.clone), own)
    generator = torch.Generator().manual_seed(lab.seed("cotangents", draw))
    vectors = [torch.randn(o.shape, generator=generator).to(o) for o in bare]
    wanted = lab.gradients(lab.model, mapped(values, Tensor.clone), lab.state, vectors, mode)
    yield from t.load(lab.state)
    found = yield from t.gradient_call(values, vectors, mode, len(bare))
    try:
        _judge_gradients(t, values, vectors, mode, wanted, found)
    except Illegal as error:
        t.say("gradients", "gap", f"float64 has no gradient to compare with: {error}")
        return False
    t.counted("gradients")
    return not any(outcome == "fail" for _, outcome, _ in t.rows)


def _other_rows(t: Trial) -> Generator[dict[str, Any], Any, list[str]]:
    """A single row, and a secret number of them: those of which there are right gradients, in
    words."""
    inputs, found = t.lab.inputs("gradients", "rows"), list[str]()
    size = hazard_cases.rows_of(inputs)
    drawn = FEWEST_ROWS + t.lab.seed("rows of gradients") % max(size - FEWEST_ROWS, 1)
    for rows in (n for n in (1, drawn) if n < size):
        words = f"{rows} row{'s' * (rows > 1)}"
        try:
            with tried(words, t.lab.left_out):
                right = yield from _asked(t, hazard_cases.shortened(inputs, rows), words)
        except (Illegal, ShortOfMemory):  # eager does not take so few
            continue
        except Refused as refusal:
            if not is_clear(refusal):
                raise
            t.say("specialised", "note", f"refuses gradients of {words}: {str(refusal)[:200]}")
            continue
        if not right:
            return []
        found.append(words)
    return found


def _leaves(values: Sequence[object]) -> list[object]:
    """Copies that want a gradient wherever there can be one."""
    copies = mapped(values, Tensor.clone)
    for x in tensors(copies):
        x.requires_grad_(x.is_floating_point())
    return copies


def _judge_gradients(
    t: Trial,
    values: Sequence[object],
    vectors: Sequence[Tensor],
    mode: str,
    wanted: Sequence[Tensor | None],
    found: Sequence[Tensor | None],
) -> None:
    lab = t.lab
    wide = [v.double() if v.is_floating_point() else v for v in vectors]

    def truth(arguments: Sequence[object], state: State) -> list[Tensor]:
        leaves = _leaves(arguments)
        grads = lab.true_gradients(leaves, state, wide, mode)
        return [g for g in grads if g is not None]

    exact = truth(mapped(values, upcast), each(lab.state, lambda _, v: upcast(v)))
    unit = contract.unit_of(vectors)
    kappa = contract.sensitivity(truth, values, lab.state, unit=unit, seed=1)
    pairs = iter(zip(exact, kappa, strict=True))
    if len(found) != len(wanted):
        t.fail("gradients", f"{len(found)} gradients instead of {len(wanted)}")
        return
    for index, (mine, eager) in enumerate(zip(found, wanted, strict=True)):
        if (mine is None) != (eager is None):
            t.fail("gradients", f"gradient {index} is {'missing' if mine is None else 'not None'}")
        if eager is None:
            continue
        y, k = next(pairs)
        if mine is not None:
            compared = contract.compare(mine, eager, y, k)
            if not compared.passed:
                t.fail("gradients", f"gradient {index}: {compared.detail}")
