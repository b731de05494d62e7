"""Problem source + plan + kernels -> the emitted file, whose order is decided here.

Header; the user's text, with `forward` behind the user's own; the kernels, in the order of the
steps; support, as a region that can be folded. Kernels and support stand behind the last definition
of the user's, but in front of what may run the model while the file is imported. What is added is
laid out as `ruff format` would, in the indentation of the user's class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    a one.  functions: what it calls at the top level, each as lines.
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

    @property
    def all(self) -> list[GeneratedForward]:
        """It, and all others that belong to it."""
        others = [self.recorded, self.other.forward if self.other else None]
        return [self, *(one for other in others if other for one in other.all)]


@dataclass(frozen=True)
class OtherMode:
    """Another `forward`, for when the training flag is this one."""

    training: bool
    forward: GeneratedForward

    @property
    def method(self) -> str:
        return f"forward_in_{'train' if self.training else 'eval'}_mode"


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
    asked = guard(captured, module, scope, plan.target, plan.precision, conditions)
    workspaces = {b.name: b.launch.workspace for b in kernels if b.launch.workspace}
    body = forward_body(captured, plan, kernels, function_of, asked, workspaces)
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
    )


def runtime_block(
    kernels: Sequence[KernelText],
    target: Target,
    forwards: Sequence[GeneratedForward],
) -> Runtime:
    """The blocks behind the model, with the imports and the snippets that `forwards` need."""
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
    support = "\n".join([*imports, *[""] * bool(imports), runtime.support])
    return Runtime(runtime.kernels, support, "\n\n\n".join(tables))


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
    return _fusewright_status({})"""


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
    own, other = literal(new.own), new.other
    records = f"if _fusewright_records({', '.join(['self', *[new.call] * bool(new.call)])}):"
    first = [
        f"if _fusewright_compiling() and _fusewright_traced({own}):",
        f"    return self.reference_forward({new.call})",
    ]
    if other:
        first += [
            f"if {'' if other.training else 'not '}self.training:",
            f"    return self.{other.method}({new.call})",
        ]
    named = [("forward", new, first), *([(other.method, other.forward, [])] if other else [])]
    lines = list[str]()
    for name, one, before in named:
        method = f"{name}_with_gradients"
        again = [records, f"    return self.{method}({new.call})"] if one.recorded else []
        lines += [""] * bool(lines)
        lines += _method(name, one, new, signature, returns, [*before, *again])
        if one.recorded:
            lines += ["", *_method(method, one.recorded, new, signature, returns, [])]
    return lines + _STATUS.format(own).split("\n")


def _method(
    name: str,
    new: GeneratedForward,
    model: GeneratedForward,
    signature: str,
    returns: str,
    first: Sequence[str],
) -> list[str]:
    """One method; widths count the indentation. model: has the call that is handed on.  first:
    statements before all others."""
    head = f"def {name}(self{', ' * bool(signature)}{signature}){returns}:"
    own, original = literal(new.own), f"    return self.reference_forward({model.call})"
    quiet = ["torch._C._set_grad_enabled(False)", "try:"] * new.records
    again = ["finally:", "    torch._C._set_grad_enabled(True)"] * new.records
    body = [
        f'"""{new.summary}"""',
        *first,
        *new.prelude,
        *quiet,
        f"{'    ' * new.records}{new.holds} = {_joined(new.conditions)}",
        *again,
        f"if not {new.holds}:",
        f"    _fusewright_refused(self, {own}, {new.holds})",
        original,
        f"_FUSEWRIGHT_CALLS[{own}] += 1",
        *map(tidy, new.statements),
    ]
    lines = wrap(head, 4)
    for line in body:
        plain = line.lstrip()
        lines += wrap(plain, 8 + len(line) - len(plain))
    return [line[4:] for line in lines]


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
