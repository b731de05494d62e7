"""Every probe of the table asked, none of which can end or hang the rest -> the diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fusewright.doctor.asking import Unanswered, within
from fusewright.doctor.finding import Diagnosis, Finding, diagnosis
from fusewright.doctor.probes import ASK_S, PROBES, Machine, Probe, driver_answer
from fusewright.doctor.torch_facts import PATIENCE_S, ask_torch


def examine(
    progress: Callable[[str], None] = lambda _step: None, probes: Sequence[Probe] = PROBES
) -> Diagnosis:
    """progress: is told what is asked next."""
    progress("what PyTorch knows")
    machine = known()
    findings = list[Finding]()
    for probe in probes:
        progress(probe.what)
        findings += answers(probe, machine)
    return diagnosis(findings, machine.gpu_ability)


def known() -> Machine:
    """What later probes ask about."""
    try:
        drivers = within(2 * ASK_S, driver_answer)
    except Unanswered:
        drivers = ()
    try:
        return Machine(within(2 * PATIENCE_S, ask_torch), "", drivers)
    except Unanswered as error:
        return Machine(None, str(error), drivers)


def answers(probe: Probe, machine: Machine) -> list[Finding]:
    """The findings of a probe, or why there are none."""
    found = list[Finding]()

    def ask() -> None:
        found.extend(probe.ask(machine))

    try:
        within(probe.limit_s, ask)
    except Unanswered as error:
        why = f"could not be asked: {error}"
        return [*found, Finding(probe.what, "?", why, probe.allows)]
    return found
