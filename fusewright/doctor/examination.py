"""Every question of the table asked, none of which can end or hang the rest -> the diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fusewright.doctor.asking import Unanswered, within
from fusewright.doctor.observation import Diagnosis, Observation, diagnosis
from fusewright.doctor.questions import ASK_S, QUESTIONS, Known, Question, driver_answer
from fusewright.doctor.torch_facts import PATIENCE_S, ask_torch


def examine(
    progress: Callable[[str], None] = lambda _step: None, questions: Sequence[Question] = QUESTIONS
) -> Diagnosis:
    """progress: is told what is asked next."""
    progress("what PyTorch knows")
    first = known()
    observations = list[Observation]()
    for question in questions:
        progress(question.what)
        observations += answers(question, first)
    return diagnosis(observations, first.gpu_ability)


def known() -> Known:
    """What later questions ask about."""
    try:
        drivers = within(2 * ASK_S, driver_answer)
    except Unanswered:
        drivers = ()
    try:
        return Known(within(2 * PATIENCE_S, ask_torch), "", drivers)
    except Unanswered as error:
        return Known(None, str(error), drivers)


def answers(question: Question, first: Known) -> list[Observation]:
    """The observations of a question, or why there are none."""
    found = list[Observation]()

    def ask() -> None:
        found.extend(question.ask(first))

    try:
        within(question.limit_s, ask)
    except Unanswered as error:
        why = f"could not be asked: {error}"
        return [*found, Observation(question.what, "?", why, question.allows)]
    return found
