"""The probes of a problem -> one call of the candidate each, and what it shows."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fusewright.judge import probes
from fusewright.judge.trial import Steps, Trial

if TYPE_CHECKING:
    from fusewright.judge.lab import Lab

MOST = 1000  # there are never so many
NEEDED = ("precision", "influence")  # worked out once even where the plan has no more of them


def probe_runs(t: Trial) -> Steps:
    """Exact arithmetic: lower precision, a skipped element, a rounded output cannot hide."""
    lab, applied, skipped = t.lab, dict[str, list[str]](), list[str]()
    most = lab.counts.calls("probes", MOST, 0, each=lab.counts.probe)
    yield from t.load(lab.state, "inplace")
    few = yield from t.fewer()
    if few:
        values = lab.inputs("probes", rows=few)
        yield from _probed(t, values, MOST, NEEDED, applied, skipped)
        needed = (NEEDED[lab.seed("probe at full size") % len(NEEDED)],)
        yield from _probed(t, lab.own_values, 0, needed, applied, skipped)
    else:
        yield from _probed(t, lab.own_values, most, NEEDED, applied, skipped)
    for check in NEEDED:
        names = applied.get(check)
        text = ", ".join(names[:8]) if names else f"no probe applies: {'; '.join(skipped)[:300]}"
        t.say(check, "pass" if names else "skip", text)


def _probed(
    t: Trial, values: list[object], most: int, needed: Sequence[str],
    applied: dict[str, list[str]], skipped: list[str],
) -> Steps:  # fmt: skip
    """So many probes with these arguments, and one at least of each kind that is needed."""
    lab, made, here = t.lab, list[str](), set[str]()
    mode = lab.modes[-1] if "eval" not in lab.modes else "eval"
    own = values is lab.own_values
    for probe in probes.iterate(
        lab.eager(mode), lab.truth(mode), values, lab.state, lab.seed("probes") % 2**31,
        doubles=lab.doubles, known=_known(lab, mode) if own else None, left_out=lab.left_out,
        wanted=lambda f: len(made) < most or (f in needed and f not in here),
    ):  # fmt: skip
        made.append(probe.name)
        if not probe.applies:
            skipped.append(f"{probe.name}: {probe.why}")
            continue
        wrong = probe.check((yield from _run_probe(t, probe, mode)))
        t.label = probe.name
        t.counted(probe.finding)
        if wrong:
            t.say(probe.finding, "fail", f"{probe.name}: {wrong}")
        here.add(probe.finding)
        applied.setdefault(probe.finding, []).append(probe.name)


def _known(lab: Lab, mode: str) -> tuple[list[Tensor], list[Tensor]] | None:
    """What the lab has found out about its own draw already."""
    if lab.typical is None or mode != lab.modes[0]:
        return None
    return lab.typical.eager, lab.typical.truth


def _run_probe(
    t: Trial, probe: probes.Probe, mode: str
) -> Generator[dict[str, Any], Any, list[Tensor]]:
    """The candidate's answer under the probe's state; afterwards its own state is back."""
    own = t.lab.state
    other = {n: v for n, v in probe.state.items() if v is not own[n]}
    buffers = {n: own[n] for n in t.lab.touched}
    for state in (other, None, {n: own[n] for n in other} | buffers):
        if state is None:
            outputs = yield from t.bare_call(probe.inputs, label=probe.name, mode=mode)
        elif state:
            yield from t.load(state, "inplace")
    return outputs
