"""Legal inputs that get_inputs() never shows -> rows: right, refused clearly, or wrong."""

from __future__ import annotations

import time
from collections.abc import Mapping

from fusewright.judge import cases
from fusewright.judge.experiments import Judging
from fusewright.judge.trial import Refused, Steps, Trial

SECONDS = 15.0
FAMILY_CHECK = {
    "fresh": "values", "strides": "hazard-strides", "storage": "hazard-strides",
    "aliasing": "hazard-strides", "shapes": "hazard-shapes",
}  # fmt: skip
MAY_REFUSE = ("hazard-strides", "hazard-shapes")
# A raised error with one of these words has ruined the device context: no clear refusal.
STICKY = ("CUDA error", "device-side assert", "illegal memory", "CUBLAS_STATUS", "cuDNN error")


def hazards(t: Trial) -> Steps:
    """All cases that eager accepts, those that may crash a wrong kernel last."""
    lab, begin = t.lab, time.monotonic()
    seed = lab.seed("hazards") % 2**31
    matrix = sorted(cases.matrix(lab.inputs("hazards"), seed=seed), key=lambda c: c.isolated)
    only = t.options.get("case")
    tried: dict[str, list[str]] = {}
    refused: dict[str, list[str]] = {}
    late: list[str] = []
    for case in matrix:
        check = FAMILY_CHECK.get(case.family, "hazard-values")
        if only and case.name != only:
            continue
        if time.monotonic() - begin > SECONDS:
            late.append(case.name)
            continue
        try:
            accepted = yield from _case(t, case, check)
        except Refused as refusal:
            sticky = any(word in str(refusal) for word in STICKY)
            if sticky or check not in MAY_REFUSE or "exit:" in str(refusal):
                t.fail(check, f"raised {str(refusal)[:300]}")
                if sticky:
                    t.stopped = True
                    return
            else:
                refused.setdefault(check, []).append(case.name)
            continue
        if accepted:
            tried.setdefault(check, []).append(case.name)
    _sum_up(t, tried, refused, late)


def _case(t: Trial, case: cases.Case, check: str) -> Judging:
    lab = t.lab
    mode = "eval" if "eval" in lab.modes and case.family == "shapes" else lab.modes[0]
    values = case.build()
    begin = time.monotonic()
    if not lab.accepts(values, mode):
        return False
    t.seconds = time.monotonic() - begin  # this shape may take much longer than the last one
    t.hazard = not case.required
    try:
        yield from t.call(values, label=case.name, reports_to=check, mode=mode)
    finally:
        t.hazard = False
    return True


def _sum_up(t: Trial, tried: Mapping[str, list[str]], refused: Mapping[str, list[str]],
            late: list[str]) -> None:  # fmt: skip
    more = f"; no time for {len(late)}" if late else ""
    for check in ("hazard-values", "hazard-strides", "hazard-shapes"):
        names, refusals = tried.get(check, []), refused.get(check, [])
        if refusals:
            t.say("specialised", "note", f"refuses {', '.join(refusals[:12])}")
        if names or refusals:
            t.say(check, "pass", f"{len(names)} right, {len(refusals)} refused clearly{more}")
        else:
            t.say(check, "skip", f"eager accepts no such case{more}")
    t.say("values", "pass", f"{len(tried.get('values', []))} resampled draws")
