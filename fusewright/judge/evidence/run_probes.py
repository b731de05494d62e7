"""The probes of a problem -> one call of the candidate each, and what it shows.

A costly problem is probed with fewer rows; where no row depends on others, full size is probed,
too, and only some rows of what comes back are worked out.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fusewright.judge.evidence import hazard_cases, probes
from fusewright.judge.evidence.trial import Steps, Trial

if TYPE_CHECKING:
    from fusewright.judge.evidence.oracle import Oracle

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
        yield from _at_full_size(t, needed, applied, skipped)
    else:
        yield from _probed(t, lab.own_values, most, NEEDED, applied, skipped)
    for check in NEEDED:
        names = applied.get(check)
        text = ", ".join(names[:8]) if names else f"no probe applies: {'; '.join(skipped)[:300]}"
        t.say(check, "pass" if names else "skip", text)


def _at_full_size(
    t: Trial, needed: Sequence[str], applied: dict[str, list[str]], skipped: list[str]
) -> Steps:
    """One probe of the problem's own size. Where no row depends on others, what it expects is
    worked out for some of them alone."""
    lab, before = t.lab, sum(map(len, applied.values()))
    if lab.part and _mode(lab) in lab.apart:
        start = lab.seed("part of a probe") % (lab.own_rows - lab.part + 1)
        rows = slice(start, start + lab.part)
        yield from _probed(t, lab.own_values, 0, needed, applied, skipped, rows)
    if sum(map(len, applied.values())) == before:
        yield from _probed(t, lab.own_values, 0, needed, applied, skipped)


def _probed(
    t: Trial, values: list[object], most: int, needed: Sequence[str],
    applied: dict[str, list[str]], skipped: list[str], rows: slice | None = None,
) -> Steps:  # fmt: skip
    """So many probes with these arguments, and one at least of each kind that is needed; with
    `rows`, which depend on no others, only these of the outputs are looked at."""
    lab, made, here = t.lab, list[str](), set[str]()
    mode = _mode(lab)
    own = lab.is_own(values)
    for probe in probes.iterate(
        lab.eager(mode), lab.truth(mode), values, lab.state, lab.seed("probes") % 2**31, rows=rows,
        doubles=lab.doubles, known=_known(lab, mode) if own else None, left_out=lab.left_out,
        wanted=lambda f: len(made) < most or (f in needed and f not in here),
    ):  # fmt: skip
        made.append(probe.name)
        if not probe.applies:
            skipped.append(f"{probe.name}: {probe.why}")
            continue
        outputs = yield from _run_probe(t, probe, mode)
        if rows is not None:
            size = hazard_cases.rows_of(values)
            outputs = [o[rows] if o.ndim and o.shape[0] == size else o for o in outputs]
        wrong = probe.check(outputs)
        t.label = probe.name
        t.counted(probe.finding)
        if wrong:
            t.say(probe.finding, "fail", f"{probe.name}: {wrong}")
        here.add(probe.finding)
        applied.setdefault(probe.finding, []).append(probe.name)


def _mode(lab: Oracle) -> str:
    return lab.modes[-1] if "eval" not in lab.modes else "eval"


def _known(lab: Oracle, mode: str) -> tuple[list[Tensor], list[Tensor]] | None:
    """What the lab has found out about its own draw already."""
    if lab.typical is None or lab.typical.is_part or mode != lab.modes[0]:
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
