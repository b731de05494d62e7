"""Problem source + plan + kernels -> the emitted file, whose order is decided here.

Header; the user's text, with `forward` behind the user's own; the kernels, in the order of the
steps; support, as a region that can be folded. Kernels and support stand behind the last definition
of the user's, but in front of what may run the model while the file is imported. What is added is
laid out as `ruff format` would, in the indentation of the user's class.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from torch import nn

from fusewright.codegen.kernel_text import KernelText
from fusewright.common.call_arguments import is_wrapped
from fusewright.emit.formatter import WIDTH, comment, indented, tidy, wrap
from fusewright.emit.forward import forward_body
from fusewright.emit.guard import guard
from fusewright.emit.model_source import (
    ModelSource,
    lines_with_torch,
    model_source,
    renamed_lines,
    unchanged_lines,
)
from fusewright.emit.module_table import ModuleTable
from fusewright.emit.python_text import literal, parameters, signature_text
from fusewright.emit.runtime import Runtime, cpp_runtime, cuda_runtime
from fusewright.emit.runtime_snippets import Snippet
from fusewright.emit.same_files import same_files
from fusewright.emit.scope import EmitScope
from fusewright.emit.steps_function import StepsFunction
from fusewright.emit.traced_operator import TracedOperator
from fusewright.frontend.capture import Captured
from fusewright.fusion.planner import Plan
from fusewright.kernels.interface import Condition
from fusewright.targets.target import Target

NO_FILES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class GeneratedForward:
    """What replaces `forward`: statements before the guard, its conditions, and the rest.

    signature: the parameters behind self, as text.  call: how they are handed on.
    snippets: those that all of it calls.  imports: lines that it needs.  table: what modules have
    to be like.  own: the name of its class.  holds: the variable of what the conditions say: true,
    or a false value, which is a reason.  other: that of the other mode, if there is one.
    recorded: that for calls that record gradients, if there is one.  records: whether this is such
    a one.  functions: what it calls at the top level, each as lines.  steps: the statements as a
    function of their own, where they are one.  operator: as what PyTorch's compiler calls it.
    """

    signature: str
    call: str
    summary: str
    prelude: tuple[str, ...]
    conditions: tuple[str, ...]
    statements: tuple[str, ...]
    snippets: frozenset[Snippet] = frozenset()
    imports: tuple[str, ...] = ()
    table: ModuleTable | None = None
    own: str = "ModelNew"
    holds: str = "holds"
    other: OtherMode | None = None
    recorded: GeneratedForward | None = None
    records: bool = False
    functions: tuple[tuple[str, ...], ...] = ()
    steps: StepsFunction | None = None
    operator: TracedOperator | None = None

    @property
    def all(self) -> list[GeneratedForward]:
        """It, and all others that belong to it."""
        others = [self.recorded, self.other.forward if self.other else None]
        return [self, *(one for other in others if other for one in other.all)]

    @property
    def modes(self) -> list[tuple[str, GeneratedForward]]:
        """It, and that of the other mode; with the suffix of the names there."""
        return [("", self), *([(self.other.suffix, self.other.forward)] if self.other else [])]


@dataclass(frozen=True)
class OtherMode:
    """Another `forward`, for when the training flag is this one."""

    training: bool
    forward: GeneratedForward

    @property
    def suffix(self) -> str:
        return f"_in_{'train' if self.training else 'eval'}_mode"

    @property
    def method(self) -> str:
        return f"forward{self.suffix}"


@dataclass(frozen=True)
class NewClass:
    """A class with a new `forward` for submodules. base: their own class, as text.  paths: where
    they are in the model."""

    name: str
    base: str
    paths: tuple[str, ...]
    forward: GeneratedForward


def generated_forward(
    captured: Captured,
    plan: Plan,
    kernels: Sequence[KernelText],
    function_of: Mapping[str, str],
    conditions: Sequence[Condition],
    module: nn.Module,
    scope: EmitScope,
) -> GeneratedForward:
    """The emitted `forward` of `module`, with what its guard asks.

    kernels: of its steps.  function_of: which function each runs, by name.  conditions: of kernels.
    """
    asked = guard(captured, module, scope, plan, conditions)
    workspaces = {b.name: b.launch.workspace for b in kernels if b.launch.workspace}
    body = forward_body(
        captured, plan, kernels, function_of, asked, workspaces, traced=scope.traced
    )
    wrapped = is_wrapped(type(module).forward)
    signature, call = signature_text(parameters(module), wrapped=wrapped)
    count = f"{len(kernels)} fused kernel{'s' * (len(kernels) != 1)}"
    return GeneratedForward(
        signature,
        call,
        summary=f"{count}; `reference_forward` where a condition does not hold.",
        prelude=asked.prelude,
        conditions=asked.conditions,
        statements=body.statements,
        snippets=asked.snippets | body.snippets,
        imports=tuple(asked.containers.imports),
        table=asked.table,
        own=scope.own,
        holds=asked.holds,
        steps=body.steps,
        operator=body.operator,
    )


def runtime_block(
    kernels: Sequence[KernelText],
    target: Target,
    forwards: Sequence[GeneratedForward],
) -> Runtime:
    """The blocks behind the model, with the imports and the snippets that `forwards` need."""
    modes = [one for forward in forwards for one in forward.modes]
    forwards = [one for forward in forwards for one in forward.all]
    snippets = frozenset[Snippet]().union(*(f.snippets for f in forwards))
    imports = dict.fromkeys(line for f in forwards for line in f.imports)
    classes = [*dict.fromkeys(f.own for f in forwards)]
    if target.language == "cuda":
        runtime = cuda_runtime(kernels, target, snippets, classes)
    else:
        runtime = cpp_runtime(kernels, snippets, classes)
    tables = [_function(f.table.lines()) for f in forwards if f.table]
    tables = [_function(lines) for f in forwards for lines in f.functions] + tables
    operators = _operators(modes, target.device, runtime.kernels)
    support = "\n".join([*imports, *[""] * bool(imports), runtime.support, *operators])
    return Runtime(runtime.kernels, support, "\n\n\n".join(tables))


def _operators(
    modes: Sequence[tuple[str, GeneratedForward]], device: str, kernels: str
) -> Iterator[str]:
    """What makes operators for PyTorch's compiler known to it. modes: each `forward`, and the
    suffix of its names.  kernels: their text."""
    named: list[str] = []
    for suffix, forward in modes:
        if forward.operator:
            steps = "\n".join([*forward.statements, kernels])
            digest = hashlib.sha256(steps.encode()).hexdigest()[:12]
            inside = ", ".join(map(literal, (forward.own, suffix, digest)))
            named.append(f"{literal(forward.own + suffix)}: _FusewrightOperator({inside})")
    if named:
        yield from ("", "", f"_FUSEWRIGHT_DEVICE = {literal(device)}")
        yield "# Class and mode -> the operator with its steps."
        yield from wrap(f"_FUSEWRIGHT_OPERATORS = {{{', '.join(named)}}}", 0)


def _function(lines: Sequence[str]) -> str:
    """Lines of a function at the top level, as long as they may be."""
    return "\n".join(
        part for line in lines for part in wrap(line.lstrip(), len(line) - len(line.lstrip()))
    )


# ---- files ---------------------------------------------------------------------------------------


def emit_file(
    source: str, path: str, header: Sequence[str], runtime: Runtime, forward: GeneratedForward
) -> str:
    """The text of the emitted file; raises CaptureFailed where Model is not a plain class."""
    model = model_source(source, path)
    new_class = [*model.until_forward, *_added(model, forward), *model.definitions]
    if model.runs_at_once:
        return _under(header, [*_with_runtime(runtime, model.until_class), *new_class])
    return _under(header, [*_with_runtime(runtime, [*model.until_class, *new_class]), *model.rest])


def rename_only(source: str, path: str, header: Sequence[str]) -> str:
    """The user's text with no other change than the name of its class; raises as `emit_file`."""
    return _under(header, renamed_lines(source, path))


def emit_parts(
    source: str, path: str, header: Sequence[str], runtime: Runtime, parts: Sequence[NewClass]
) -> str:
    """The user's text as it is, then classes for some submodules, ModelNew, whose constructor gives
    these submodules their classes, and what they call."""
    lines = lines_with_torch(source, path)
    return _under(header, _with_runtime(runtime, [*lines, "", "", *_with_parts("Model", parts)]))


def alias(source: str, path: str, header: Sequence[str]) -> str:
    """The user's text as it is, for a Model that is no plain class of the file."""
    return _under(header, [*unchanged_lines(source, path), "", "ModelNew = Model"])


def emit_bare_class(runtime: Runtime, forward: GeneratedForward) -> str:
    """A bare `class ModelNew` with the new `forward`, and what it calls, for a module that has no
    file."""
    return emit_classes(runtime, [NewClass("ModelNew", "", (), forward)])


def emit_subclasses(runtime: Runtime, parts: Sequence[NewClass]) -> str:
    """Classes with a new `forward`, whose bases have a name where it runs, and what they call."""
    lines = [line for part in parts for line in _subclass(part)]
    return _under([], _with_runtime(runtime, ["import torch", "", "", *lines]))


def emit_module_file(
    header: Sequence[str],
    imports: Sequence[str],
    base: str,
    runtime: Runtime | None = None,
    parts: Sequence[NewClass] = (),
    files: Mapping[str, str] = NO_FILES,
) -> str:
    """A file with `ModelNew`, derived from a class that the file imports.

    base: its name.  parts: classes for some submodules, or one for all of it, whose path is "".
    files: of the classes that it imports, module -> digest.
    """
    lines = ["import torch", *[""] * bool(imports), *imports, ""]
    if runtime is None:
        return _under(header, [*lines, f"ModelNew = {base}"])
    lines.append("")
    whole = [part.paths for part in parts] == [("",)]
    if whole:
        lines += [*_subclass(parts[0]), f"ModelNew = {parts[0].name}"]
    else:
        lines += _with_parts(base, parts)
    asked = same_files(files, [part.name for part in parts]) if files else []
    return _under(header, [*_with_runtime(runtime, lines), *asked])


def emit_classes(runtime: Runtime, parts: Sequence[NewClass]) -> str:
    """Bare classes with a new `forward`, and what they call."""
    lines = ["import torch"]
    for part in parts:
        methods = _methods(part.forward, part.forward.signature, "")
        methods = [indented(line, "    ") for line in methods]
        lines += ["", "", f"class {part.name}:", *methods]
    return _under([], _with_runtime(runtime, lines))


# ---- what is added -------------------------------------------------------------------------------


_MODEL_NEW = """

class ModelNew({base}):
    \"\"\"{base}, where some submodules run kernels.\"\"\"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        children = dict(self.named_modules())
        for kind, paths in _FUSEWRIGHT_PARTS.items():
            for child in map(children.get, paths):
                if type(child) is kind.__base__:
                    child.__class__ = kind

    @staticmethod
    def fusewright_status():
        \"\"\"Calls of each class with kernels: with them, and without, by what did not hold.\"\"\"
        return {{kind.__name__: kind.fusewright_status() for kind in _FUSEWRIGHT_PARTS}}
""".rstrip()


def _with_parts(base: str, parts: Sequence[NewClass]) -> list[str]:
    """Classes for submodules, and `ModelNew`, derived from `base`, which gives them these."""
    classes = [line for part in parts for line in _subclass(part)]
    table = [line for part in parts for line in _places(part)]
    paths = ["_FUSEWRIGHT_PARTS = {  # class -> where its instances are", *table, "}"]
    return [*classes, *paths, *_MODEL_NEW.format(base=base).split("\n")]


def _joined(conditions: Sequence[str]) -> str:
    """All of them; two of which the second has brackets need no more, as `ruff format` has it."""
    joined = " and ".join(conditions)
    return joined if len(conditions) == 2 and conditions[1].startswith("(") else f"({joined})"


# Of a class with kernels.
_STATUS = """
@staticmethod
def fusewright_status():
    \"\"\"Its calls: with kernels, and without, by what did not hold.\"\"\"
    return {}"""


def _subclass(part: NewClass) -> list[str]:
    methods = [
        indented(line, "    ") for line in _methods(part.forward, part.forward.signature, "")
    ]
    kept = f"    reference_forward = {part.base}.forward"
    return [f"class {part.name}({part.base}):", kept, "", *methods, "", ""]


def _places(part: NewClass) -> list[str]:
    paths = ", ".join(map(_quoted, part.paths))
    return wrap(f"{part.name}: ({paths}{',' * (len(part.paths) == 1)}),", 4)


def _quoted(text: str) -> str:
    return f'"{text}"'


def _added(model: ModelSource, new: GeneratedForward) -> list[str]:
    """The new methods, in the indentation of the class."""
    if model.signature is None:
        text = [
            "",
            "def reference_forward(self, *args, **kwargs):",
            "    return super().forward(*args, **kwargs)",
            "",
            *_methods(new, new.signature, ""),
        ]
    else:
        text = ["", *_methods(new, model.signature, model.returns)]
    return [indented(line, model.unit) for line in text]


def _methods(new: GeneratedForward, signature: str, returns: str) -> list[str]:
    """`forward`, and what belongs to it, as lines at the left margin."""
    own, other, lines = literal(new.own), new.other, list[str]()
    original = f"return self.reference_forward({new.call})"
    records = f"if _fusewright_records({', '.join(['self', *[new.call] * bool(new.call)])}):"
    for suffix, one in new.modes:
        name, operator, called = f"forward{suffix}", one.operator, one
        before, recorded, again = list[str](), list[str](), list[str]()
        if other and not suffix:
            before.append(f"if {'' if other.training else 'not '}self.training:")
            before.append(f"    return self.{other.method}({new.call})")
        if one.recorded:
            recorded = [records, f"    return self.{name}_with_gradients({new.call})"]
        lines += [""] * bool(lines)
        if one.steps:
            called = replace(one, statements=tuple(one.steps.called(suffix)))
            again = one.steps.again(own)
        if operator:
            asked = [*operator.traced(suffix, own, original), *recorded, *again]
            lines += _method(name, called, new, signature, returns, before, asked)
        else:
            traced = f"if _fusewright_compiling() and _fusewright_traced({own}):"
            before += [traced, f"    {original}", *recorded]
            lines += _method(name, called, new, signature, returns, before, again)
        further = [one.steps.method(suffix, one.statements)] if one.steps else []
        for more in (*further, *([operator.tensors(suffix)] if operator else [])):
            lines += ["", *(part for line in more for part in _wrapped(line))]
        if one.recorded:
            method = f"{name}_with_gradients"
            lines += ["", *_method(method, one.recorded, new, signature, returns)]
    if operator := next((one.operator for _, one in new.modes if one.operator), None):
        lines += ["", *(part for line in operator.found(own) for part in _wrapped(line))]
    status = f"_fusewright_status({own})"
    if any(one.steps and one.steps.replayed for _, one in new.modes):
        status = f"{{**{status}, **_fusewright_launches({own})}}"
    return lines + _STATUS.format(status).split("\n")


def _method(
    name: str,
    new: GeneratedForward,
    model: GeneratedForward,
    signature: str,
    returns: str,
    before: Sequence[str] = (),
    asked: Sequence[str] = (),
) -> list[str]:
    """One method. model: has the call that is handed on.  before, asked: statements before all
    others, and before the conditions."""
    own, original = literal(new.own), f"    return self.reference_forward({model.call})"
    quiet = ["torch._C._set_grad_enabled(False)", "try:"] * new.records
    again = ["finally:", "    torch._C._set_grad_enabled(True)"] * new.records
    body = [
        f'"""{new.summary}"""',
        *before,
        *new.prelude,
        *asked,
        *quiet,
        f"{'    ' * new.records}{new.holds} = {_joined(new.conditions)}",
        *again,
        f"if not {new.holds}:",
        f"    _fusewright_refused(self, {own}, {new.holds})",
        original,
        f"_FUSEWRIGHT_CALLS[{own}] += 1",
        *map(tidy, new.statements),
    ]
    head = f"def {name}(self{', ' * bool(signature)}{signature}){returns}:"
    return [part for line in (head, *(f"    {line}" for line in body)) for part in _wrapped(line)]


def _wrapped(line: str) -> list[str]:
    """A line of a method, broken where it is too long as the class indents it."""
    plain = line.lstrip()
    return [part[4:] for part in wrap(plain, 4 + len(line) - len(plain))]


def _with_runtime(runtime: Runtime, text: Sequence[str]) -> list[str]:
    """Text, and behind it kernels and support."""
    rule = "# ---- kernels of ModelNew, in the order of its steps ".ljust(WIDTH - 1, "-")
    kernels = [rule, "", *runtime.kernels.split("\n"), "", ""] if runtime.kernels else []
    kernels += [*runtime.tables.split("\n"), "", ""] if runtime.tables else []
    support = ["# region support: not about this model", "", *runtime.support.split("\n"), "", ""]
    before = "\n".join(text).rstrip().split("\n")
    return [*before, "", "", *kernels, *support, "# endregion", "", ""]


def _under(header: Sequence[str], text: Sequence[str]) -> str:
    comments = [wrapped for line in header for wrapped in comment(line)]
    return "\n".join([*comments, *text]).rstrip() + "\n"
