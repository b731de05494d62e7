"""fusewright in one file: each step is one call of a file above.

problem -> capture -> rewrite -> attention -> gemm -> conv -> scan -> target lowering -> huge pages
-> plan -> storage -> strategies -> codegen -> emit -> build -> judge
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from fusewright import __version__
from fusewright.build.compilers import cache_folder, require_tools
from fusewright.build.fused_module import (
    Compiling,
    cross_compile,
    fused_module,
    scope_of,
)
from fusewright.codegen.cuda_source import cuda_source
from fusewright.codegen.kernel_symbols import CXX_NAMES, symbols
from fusewright.codegen.kernel_text import KernelText
from fusewright.codegen.shared_kernels import SharedKernels
from fusewright.common.atomic_write import STANDARD_OUTPUT, check_writable, write_atomically
from fusewright.common.budget import Budget
from fusewright.common.call_arguments import Inputs
from fusewright.common.problem_file import NO_OVERRIDES, Problem, load_problem
from fusewright.common.timing_lock import Need, Turn
from fusewright.compiler.compilation import (
    NO_RULES,
    Comment,
    Compilation,
    design,
    make,
    printed_as,
)
from fusewright.compiler.gradients import recorded_code
from fusewright.compiler.memory_need import Settle, Sized, Sizes, sizes_observed, sizes_of
from fusewright.compiler.modes import FurtherModes, InModes, in_its_mode
from fusewright.compiler.parts import Part, Parts
from fusewright.compiler.rules import check_rules, check_rules_of_parts
from fusewright.compiler.verdict import (
    Terms,
    is_judged_later,
    output_path,
    request_for,
    with_other_mode,
)
from fusewright.emit.emitted_file import (
    GeneratedForward,
    NewClass,
    OtherMode,
    alias,
    emit_bare_class,
    emit_file,
    emit_parts,
    generated_forward,
    rename_only,
    runtime_block,
)
from fusewright.emit.header import (
    header,
    header_of_parts,
    unchanged_header,
)
from fusewright.emit.module_table import class_text
from fusewright.emit.python_text import NameScope
from fusewright.emit.runtime import Runtime
from fusewright.emit.scope import EmitScope
from fusewright.errors import BadUsage, CaptureFailed
from fusewright.frontend.asked_size import NOTHING_ASKED, Wanted, asked_sizes, text_of
from fusewright.frontend.example_arguments import Example, example
from fusewright.frontend.submodules import Calls, choose, observed
from fusewright.judge.evidence.pytree import tensors
from fusewright.judge.findings import Verdict
from fusewright.judge.isolation.memory_limit import Peak
from fusewright.judge.judging import Judging, judge_request, open_judging
from fusewright.report.decision_record import (
    is_degenerate,
    is_worth_it,
    step_reports,
)
from fusewright.report.run_report import FusedForward, OptimizeResult, StepReport
from fusewright.targets.detect import resolve_target
from fusewright.targets.target import Target
from fusewright.tune.bench import CandidateText, EagerRaises, TuneBench, about_inputs, about_machine
from fusewright.tune.cache import TuneCache, TuneResult
from fusewright.tune.levels import level_of
from fusewright.tune.search_space import MODEL, TuneChoice, choices
from fusewright.tune.tuner import DEFAULT, cached_or, tune, untuned

Progress = Callable[[str], None]
TUNED = "fusewright_tuned.sqlite"  # beside the compiled kernels
ONLY_PLANNED = "nothing was written: explain only plans"
NOT_ASKED = "the file was neither compiled nor run, as --no-verify asks"


def _tuned(
    made: Compilation,
    progress: Progress,
    *,
    problem: Problem,
    given: Example,
    level: str,
    rules: frozenset[str],
    turn: Turn,
    seconds: float | None,
) -> Compilation:
    """What was made, with what is fastest here: as remembered, or tried now.

    seconds: of trying, at most; None: those of the level.
    """
    if level == "off" or not made.replaced:
        return made

    def other(choice: TuneChoice) -> Compilation:
        if choice == MODEL:
            return replace(made, plan=replace(made.plan, steps=()), kernels=(), replaced=False)
        if not choice.library:
            return printed_as(made, rules, choice)
        return design(made.given, machine, made.plan.precision, rules, choice)

    def write(choice: TuneChoice) -> CandidateText:
        chosen = other(choice)
        runtime, forward = _code(chosen, module, scope_of(module))
        return CandidateText(str(runtime), emit_bare_class(runtime, forward), bool(chosen.kernels))

    def timed() -> AbstractContextManager[None]:
        progress("tuning: timing")
        return turn()

    def work() -> TuneResult:
        progress("tuning")
        others = choices(made.kernels, made.shared, made.plan, rules, lambda c: other(c).plan)
        try:
            bench = TuneBench(module, problem.make_inputs(), machine, write, progress)
            return tune(bench, others, level, timed, seconds=seconds)
        except torch.cuda.OutOfMemoryError:
            return untuned(others, level, "the GPU has too little memory for it beside the model")
        except EagerRaises as error:
            return untuned(others, level, str(error).splitlines()[0])

    module, machine = problem.make_model(), made.plan.target
    about = [__version__, write(DEFAULT).kind, *sorted(rules), *about_machine(machine)]
    about += about_inputs(given.inputs, made.captured.graph)
    found = cached_or(TuneCache(cache_folder() / TUNED), level, about, work)
    return replace(other(found.choice), tuned=found)


def emitted_text(made: Compilation, module: nn.Module, problem: Problem) -> str:
    """The text of the emitted file, for the mode that it was made in."""
    return _emitted(in_its_mode(module, made), module, problem)[0]


def _emitted(modes: InModes, module: nn.Module, problem: Problem) -> tuple[str, str]:
    """The text of the emitted file, and its block that compiles kernels, or ""."""
    path, made, functions = str(problem.path), modes.first, modes.shared.function_of
    record = modes.record(problem.path.name, functions)
    if not made.replaced:
        return rename_only(problem.source, path, unchanged_header(record)), ""
    classes = _own_classes(problem) | {type(module): "ModelNew"}
    runtime, forward = code_in_modes(modes, module, EmitScope(classes, vars(problem.module)))
    lines = header(problem.path.name, made.plan.target.name, modes.notes(functions))
    text = emit_file(problem.source, path, lines, runtime, forward)
    return text, str(runtime) if modes.shared.functions else ""


def _code(
    made: Compilation, module: nn.Module, scope: EmitScope
) -> tuple[Runtime, GeneratedForward]:
    """The emitted kernels and the emitted `forward`, for the mode that it was made in."""
    return code_in_modes(in_its_mode(module, made), module, scope)


def code_in_modes(
    modes: InModes, module: nn.Module, scope: EmitScope
) -> tuple[Runtime, GeneratedForward]:
    """The same with what was made for the other mode, and for gradients."""
    forward = _forwards(modes, modes.shared, module, scope)
    functions = modes.functions(module)
    return runtime_block(functions, modes.first.plan.target, [forward]), forward


def _forwards(
    modes: InModes, shared: SharedKernels, module: nn.Module, scope: EmitScope
) -> GeneratedForward:
    """The emitted `forward` with all that belong to it, whose steps run functions of `shared`."""
    forward, *other = (
        _in_mode(modes, mode, shared, module, replace(scope, second=mode != modes.name))
        for mode in modes.by_mode
    )
    if other:
        forward = replace(forward, other=OtherMode(modes.other_name == "train", other[0]))
    return forward


def _in_mode(
    modes: InModes, mode: str, shared: SharedKernels, module: nn.Module, scope: EmitScope
) -> GeneratedForward:
    """The emitted `forward` for a mode, with that for its calls with gradients."""
    made = modes.by_mode[mode]
    forward = _forward(made, shared, module, scope)
    if mode not in modes.recorded:
        return forward
    recorded = recorded_code(modes.recorded[mode], made, shared.function_of, module, scope)
    return replace(forward, recorded=recorded)


def _commented(shared: SharedKernels, comments: Mapping[str, Comment]) -> tuple[KernelText, ...]:
    """The functions, each under its comment."""
    return tuple(replace(text, notes=comments[text.name]) for text in shared.functions)


def _forward(
    made: Compilation, shared: SharedKernels, module: nn.Module, scope: EmitScope
) -> GeneratedForward:
    """The emitted `forward`, whose steps run functions of `shared`."""
    return generated_forward(
        made.captured, made.plan, made.texts, shared.function_of, made.conditions, module, scope
    )


def optimize_file(
    problem_path: Path,
    *,
    out: Path | None = None,
    target: str | None = None,
    precision: str = "eager",
    rules: frozenset[str] = frozenset(),
    overrides: Mapping[str, str] = NO_OVERRIDES,
    mode: str = "both",
    dynamic: Wanted = NOTHING_ASKED,
    gradients: bool = False,
    force: bool = False,
    timing: bool = True,
    level: str | None = None,
    turn: Turn = nullcontext,
    progress: Progress = lambda _: None,
    judging: Judging | None = None,
    settle: Settle = lambda _: None,
    seed: str = "",
    budget: Budget | None = None,
) -> OptimizeResult:
    """Judge the fused file of a problem, then write it; see `OptimizeResult`.

    An interrupted run has written nothing, and has left an older file as it was.

    level: how much the tuner tries, "off", "quick" or "full"; None: "quick" where the file is for
    this machine and is timed, else "off".
    mode: "train" or "eval", for which the file is written and judged; "both": for that in which the
    model is made, and for the other one where forward is not the same there.
    dynamic: the sizes that are to be free, as `asked_sizes` has them.
    gradients: whether calls that record gradients get kernels, too; the judge then asks for these.
    turn: entered while calls are timed, so that nothing else of a suite disturbs them.
    judging: of this problem and this file, if one is open and is for this target's device. What
    comes before its candidate is done beside planning, unless something is timed meanwhile.
    settle: told the memory that all of this takes at most, as soon as that is known; it waits until
    there is as much.
    seed: from which the judge's inputs come, as `judge` takes it.
    budget: of all of this; level None is then as much as it has time for.

    Raises UnusableProblem for a file that is no problem or cannot be captured, BadUsage for rules
    that cannot be kept, ToolMissing where the target needs what this machine lacks.
    """
    machine, here = resolve_target(target)
    level = level_of(level, machine, here=here, timing=timing, budget=budget)
    out = output_path(problem_path, out)
    check_writable(out, force=force)
    if here:
        require_tools(machine)
    # The judge's processes import PyTorch while the model is captured here.
    opened: AbstractContextManager[Judging | None] = nullcontext(judging)
    if here and (judging is None or judging.request.device != machine.device):
        terms = Terms(timing, gradients, seed, budget)
        asked = request_for(problem_path, out, machine.device, overrides, mode, terms)
        opened = open_judging(asked)
    with opened if here else nullcontext() as judging:
        problem, module, given = _load(problem_path, overrides, progress, mode)
        progress("planning and generating kernels")
        limit = None if budget is None else budget.tuning_s
        work = partial(
            _tuned, problem=problem, given=given, level=level, rules=rules, turn=turn, seconds=limit
        )
        begin = judging.begin if judging and level == "off" else _nothing
        sized = Sized(machine.device, settle if here else _quiet, progress, begin)
        settings = precision, rules, work, progress, sized, mode, dynamic, gradients
        file = _file(problem, module, given, machine, *settings)
        outcome = _outcome(problem, overrides, machine, out, file, sized.need)
        if judging is None:
            why = _compiled_elsewhere(file, machine, progress)
            write_atomically(out, file.text, force=force)
            return replace(outcome, why_not=why)
        compiling = Compiling(file.runtime)
        del module, given, work
        torch.cuda.empty_cache()  # the judge's processes want the memory
        verdict = _verdict(judging, file, compiling, progress, turn, budget)
        write_atomically(out, file.text, force=force)
        return replace(outcome, verdict=verdict, tuning=file.tuning)


def _outcome(
    problem: Problem, overrides: Mapping[str, str], machine: Target, out: Path, file: _File,
    need: Need | None = None,
) -> OptimizeResult:  # fmt: skip
    """Without a verdict."""
    return OptimizeResult(
        out, file.record, file.reports, None, "", file.degenerate, None, file.parts, need,
        str(problem.path), machine.name, file.forwards, dict(overrides), file.text,
    )  # fmt: skip


def _verdict(
    judging: Judging,
    file: _File,
    compiling: Compiling,
    progress: Progress,
    turn: Turn,
    budget: Budget | None,
) -> Verdict:
    """On a file that is not written yet, in both modes if it has kernels for both."""
    verdict = judging.verdict(progress, turn, compiling.library, file.text)
    if not is_judged_later(verdict, file.mode):
        return verdict
    progress(f"judging it in {file.mode} mode")
    asked = replace(judging.request, mode=file.mode, timing=False)
    if budget is not None:
        asked = replace(asked, deadline=budget.end)
    site, library = judging.session.site, compiling.library
    other = judge_request(asked, progress, turn, site, library, file.text)
    return with_other_mode(verdict, file.mode, other)


def emit_only(
    problem_path: Path,
    *,
    out: Path | None = None,
    target: str | None = None,
    precision: str = "eager",
    rules: frozenset[str] = NO_RULES,
    overrides: Mapping[str, str] = NO_OVERRIDES,
    mode: str = "both",
    dynamic: Wanted = NOTHING_ASKED,
    gradients: bool = False,
    force: bool = False,
    progress: Progress = lambda _: None,
) -> tuple[OptimizeResult, str]:
    """What `optimize_file` says of the fused file, and its text: nothing is compiled, tuned or
    judged, and no machine like the target is needed.

    out: as there; STANDARD_OUTPUT: no file is written.
    """
    machine, _ = resolve_target(target)
    out = output_path(problem_path, out)
    if out != STANDARD_OUTPUT:
        check_writable(out, force=force)
    problem, module, given = _load(problem_path, overrides, progress, mode)
    progress("planning and generating kernels")
    settings = precision, rules, _as_planned, progress
    file = _file(
        problem, module, given, machine, *settings, mode=mode, dynamic=dynamic, gradients=gradients
    )
    if out != STANDARD_OUTPUT:
        write_atomically(out, file.text, force=force)
    return replace(_outcome(problem, overrides, machine, out, file), why_not=NOT_ASKED), file.text


def _compiled_elsewhere(file: _File, machine: Target, progress: Progress) -> str:
    """Compile for a GPU that is not here, and say why nobody has verified it."""
    progress(f"compiling for {machine.name}, which is not this machine")
    if not file.kernels:
        return f"nothing is replaced, and there is no {machine.name} GPU here"
    return cross_compile(cuda_source(file.kernels, machine), machine)


def explain_file(
    problem_path: Path,
    *,
    target: str | None = None,
    rules: frozenset[str] = NO_RULES,
    overrides: Mapping[str, str] = NO_OVERRIDES,
    dynamic: Wanted = NOTHING_ASKED,
    gradients: bool = False,
) -> OptimizeResult:
    """What would be made of a problem on a target: its `decisions` are the record. Nothing is
    written or built, and the model runs only if it cannot be captured as a whole."""
    machine, _ = resolve_target(target)
    problem, module, given = _load(problem_path, overrides, _quiet)
    settings = "eager", rules, _as_planned, _quiet
    file = _file(problem, module, given, machine, *settings, dynamic=dynamic, gradients=gradients)
    return replace(
        _outcome(problem, overrides, machine, STANDARD_OUTPUT, file), why_not=ONLY_PLANNED
    )


def fused_as(made: Compilation, module: nn.Module, rules: frozenset[str]) -> nn.Module | None:
    """A twin of a module that runs what was made of it in its own mode; None where the model as it
    was is fastest. Raises BadUsage for rules that cannot be kept."""
    check_rules(made, rules)
    if not made.replaced:
        return None
    runtime, new = _code(made, module, scope_of(module))
    return fused_module(module, emit_bare_class(runtime, new))


def _load(
    path: Path, overrides: Mapping[str, str], progress: Progress, mode: str = "both"
) -> tuple[Problem, nn.Module, Example]:
    progress(f"loading {path.name}")
    problem = load_problem(path, overrides)
    module, given = problem.make_model(), example(problem)
    if mode != "both":
        module.train(mode == "train")
    progress("capturing the model")
    return problem, module, given


def make_parts(
    module: nn.Module,
    calls: Calls,
    machine: Target,
    precision: str,
    further: FurtherModes,
    why: str,
    scope: Callable[[nn.Module, str], EmitScope],
) -> Parts:
    """`make` for the largest submodules for which it can be done and is worth it.

    calls: what they were seen to be called with.  further: what is made beside their own mode.
    scope: of the text for one of them.
    """
    rules = further.rules
    names, parts = NameScope(set(scope(module, "").values)), list[Part]()

    def attempt(child: nn.Module, inputs: Inputs, varies: bool) -> Part | None:
        kind = type(child).__name__
        if not class_text(type(child), scope(child, "")):
            raise CaptureFailed(f"{kind} is a class that the emitted file has no name for.")
        made = make(child, inputs, machine, precision, rules)
        if varies and not made.captured.graph.free:
            raise CaptureFailed(
                f"{kind} is called with different numbers of rows, and kernels for it would be "
                "for one of them."
            )
        if not made.kernels or not is_worth_it(made.given, made.plan, made.descriptions):
            return None
        others = [one for part in parts for one in part.modes.made]
        taken = frozenset[str]().union(*(symbols(t.name) for one in others for t in one.texts))
        made = design(made.given, machine, precision, rules, names=replace(CXX_NAMES, taken=taken))
        try:
            check_rules(made, rules)
        except BadUsage as error:
            raise CaptureFailed(f"{kind}: {error}") from error
        own = as_part(scope(child, f"Fused{kind}"), f"Fused{kind}", 1)
        _code(made, child, own)
        modes = further.added(child, inputs, made, others)
        try:
            code_in_modes(modes, child, own)
        except CaptureFailed as error:  # its own mode can be written
            modes = modes.alone(str(error))
        parts.append(Part(names.fresh(f"Fused{kind}"), modes))
        return parts[-1]

    return Parts(machine, choose(module, calls, attempt), why)


def as_part(scope: EmitScope, name: str, number: int) -> EmitScope:
    return replace(scope, own=name, part=number)


def code_of_parts(
    parts: Parts, scope: Callable[[nn.Module, str], EmitScope]
) -> tuple[Runtime, list[NewClass]]:
    """The emitted kernels of all parts, and the classes of these."""
    classes, comments = list[NewClass](), dict[str, Comment]()
    for number, taken in enumerate(parts.chosen.taken, 1):
        name, child = taken.made.name, taken.module
        own = as_part(scope(child, name), name, number)
        new = _forwards(taken.made.modes, parts.shared, child, own)
        for made in taken.made.modes.made:
            comments = made.comments(child, parts.shared) | comments
        classes.append(NewClass(name, class_text(type(child), own), taken.paths, new))
    functions = _commented(parts.shared, comments)
    return runtime_block(functions, parts.machine, [c.forward for c in classes]), classes


@dataclass(frozen=True)
class _File:
    """An emitted file, and what is said of it. runtime: its block that compiles kernels, or "".
    kernels: its functions."""

    text: str
    runtime: str
    record: str
    kernels: tuple[KernelText, ...]
    reports: tuple[StepReport, ...]
    degenerate: bool = False
    tuning: Mapping[str, object] | None = None
    parts: Mapping[str, object] | None = None
    mode: str = ""  # the other mode that it has kernels for
    forwards: tuple[FusedForward, ...] = ()


def _file(
    problem: Problem,
    module: nn.Module,
    given: Example,
    machine: Target,
    precision: str,
    rules: frozenset[str],
    tuned: Callable[[Compilation, Progress], Compilation],
    progress: Progress,
    sized: Callable[[Sizes], None] = lambda _: None,
    mode: str = "both",
    dynamic: Wanted = NOTHING_ASKED,
    gradients: bool = False,
) -> _File:
    """The model as a whole; where that cannot be captured, its parts, if it runs at all.

    mode: "both", or that of `module`, which it is written for alone.
    sized: told the sizes of its tensors, once and before anything large is made.
    """
    name = problem.path.name
    asked = asked_sizes(module, given.inputs, dynamic)
    further = FurtherModes(mode == "both", gradients, rules)
    try:
        made = make(module, given.inputs, machine, precision, rules, asked=asked)
        check_rules(made, rules)
        sized(sizes_of(made.given.graph))
        made = tuned(made, progress)
        modes = further.added(module, given.inputs, made)
        text, runtime = _emitted(modes, module, problem)
        reports = tuple(r for m in modes.made for r in step_reports(m.plan, m.descriptions))
        degenerate = is_degenerate(made.captured.graph)
        functions = modes.shared.function_of
        record = modes.record(name, functions)
        about = record, modes.shared.functions, reports, degenerate, made.tuning
        mode = modes.other_name if modes.second else ""
        return _File(text, runtime, *about, mode=mode, forwards=modes.forwards(functions))
    except CaptureFailed as error:
        why = str(error)
    if asked:
        text = text_of(dynamic)
        raise BadUsage(f"{text} cannot be free: the model can only be taken in parts. {why}")
    progress("the model cannot be captured as a whole: trying its parts")
    with Peak("cpu") as peak:
        calls = observed(module, lambda: problem.run(module, given.values(problem)))
    sized(sizes_observed(module, tensors(given.inputs), peak.size))
    named = {**_own_classes(problem), **_imported_classes(problem)}

    def scope(_child: nn.Module, _name: str) -> EmitScope:
        return EmitScope(named, vars(problem.module))

    parts = make_parts(module, calls, machine, precision, further, why, scope)
    check_rules_of_parts(rules, why)
    record = _anywhere(parts.record(name), problem)
    reports = tuple(r for m in parts.made for r in step_reports(m.plan, m.descriptions))
    text, runtime = _text_of_parts(parts, problem, record, scope)
    file = _File(text, runtime, record, parts.shared.functions, reports)
    return replace(file, parts=parts.facts, mode=parts.other_mode, forwards=parts.forwards)


def _text_of_parts(
    parts: Parts, problem: Problem, record: str, scope: Callable[[nn.Module, str], EmitScope]
) -> tuple[str, str]:
    """The emitted text, and its block that compiles kernels; the model as it was, and "", where
    nothing is new."""
    path = str(problem.path)
    if parts.chosen.taken:
        runtime, classes = code_of_parts(parts, scope)
        left = [_anywhere(line, problem) for line in parts.left]
        lines = header_of_parts(problem.path.name, parts.machine.name, parts.notes, left)
        return emit_parts(problem.source, path, lines, runtime, classes), str(runtime)
    try:
        return rename_only(problem.source, path, unchanged_header(record)), ""
    except CaptureFailed:  # not a plain class of the file
        return alias(problem.source, path, unchanged_header(record)), ""


def _anywhere(text: str, problem: Problem) -> str:
    """The text without the folder of the problem: a file shall not depend on where that lies."""
    return text.replace(f"{problem.path.absolute().parent}{os.sep}", "")


def _own_classes(problem: Problem) -> dict[type, str]:
    return {
        value: name
        for name, value in vars(problem.module).items()
        if isinstance(value, type) and value.__module__ == problem.module.__name__
    }


def _imported_classes(problem: Problem) -> dict[type, str]:
    """Classes of modules that the file has imported by name from elsewhere than PyTorch."""
    return {
        value: name
        for name, value in vars(problem.module).items()
        if isinstance(value, type)
        and issubclass(value, nn.Module)
        and not value.__module__.startswith("torch.")
    }


def _nothing() -> None:
    """Something else is timed first."""


def _quiet(_: object) -> None:
    """Progress that nobody watches, and memory that nobody is asked for."""


def _as_planned(made: Compilation, _: Progress) -> Compilation:
    """No tuning."""
    return made
