"""A random model: what `optimize` makes of it in this process, and what is wrong with that.

The benches of the CPU and of a GPU both ask this file, so a model that is refused as a whole, or
that eager itself refuses, counts alike in both.
"""

from __future__ import annotations

import copy
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from fusewright.common.call_arguments import call
from fusewright.common.problem_file import Problem, load_problem
from fusewright.errors import FusewrightError
from tests.fuzz.trials import allowed, wrong
from tests.fuzz.writer import facts
from tests.support.agreement import copied
from tests.support.compiled import Case, prepare_as_optimize, ready


class EagerRaises(Exception):
    """The model is none: PyTorch's own kernels refuse a type."""


class NoReason(Exception):
    """The whole model is not captured, and it is said why; but its kind is captured, or it is not
    that."""


def prepared(path: Path, target: str = "cpu") -> tuple[Case, str]:
    """What `optimize` does before it judges; with the reason where the model is taken in parts."""
    problem = load_problem(path)
    torch.manual_seed(0)
    with torch.no_grad():
        model, inputs = problem.make_model(), problem.make_inputs()
        try:
            copy.deepcopy(model)(*copied(inputs))
        except (RuntimeError, IndexError, ValueError) as error:
            raise EagerRaises(str(error)) from error  # shapes without memory said nothing of it
        problem.run(copy.deepcopy(model), copied(inputs))
    case, why = prepare_as_optimize(path, target=target)
    if why and not allowed(why, facts(problem.source)):
        raise NoReason(why)
    return case, why


def refusal(error: Exception) -> tuple[str, str]:
    """What an error before anything ran means: an outcome, and what is said of it."""
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, EagerRaises):
        return "of no model", said
    short = isinstance(error, FusewrightError | NoReason)
    return "wrong", said if short else f"{said}\n{where(error)}"


def where(error: Exception) -> str:
    """The last frames of what broke."""
    return "".join(traceback.format_tb(error.__traceback__)[-3:])


def judged(
    module: ModuleType,
    problem: Problem,
    theirs: nn.Module,
    drawn: Sequence[object],
    seed: int,
    counts: Counter[str],
    device: str = "cpu",
) -> str:
    """What is wrong with an emitted file that is imported. theirs, drawn: on the device."""
    ours = call(module.ModelNew, problem.make_init_inputs()).to(device)
    ours.load_state_dict(theirs.state_dict())
    with torch.no_grad():
        for_kernels = ready(copy.deepcopy(ours), copied(drawn))
    if not for_kernels:
        counts["not for the kernels"] += 1
    return "; ".join(wrong(ours, theirs, drawn, seed, counts, facts(problem.source)))
