"""A module and the arguments of a call -> a module of the same class, whose calls run kernels.

It is as `fusewright optimize` makes a file, but of a module that is there already, and neither
tuned nor judged.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from fusewright.api.about import Told
from fusewright.api.fused_class import ATTRIBUTE, Text, as_written, classes_of
from fusewright.api.names import Names, names_of
from fusewright.build.compilers import require_tools
from fusewright.build.fused_module import twin_of
from fusewright.common.call_arguments import Inputs, as_called, call, signature_of
from fusewright.common.containers import Unknown, flatten
from fusewright.compiler.compilation import make
from fusewright.compiler.modes import FurtherModes, in_mode
from fusewright.compiler.options import Options
from fusewright.compiler.pipeline import (
    code_in_modes,
    code_of_parts,
    make_parts,
)
from fusewright.compiler.rules import check_rules, check_rules_of_parts
from fusewright.emit.emitted_file import (
    GeneratedForward,
    NewClass,
    emit_module_file,
    emit_subclasses,
)
from fusewright.emit.header import header, header_of_parts, unchanged_header
from fusewright.emit.module_table import class_text
from fusewright.emit.python_text import NameScope
from fusewright.emit.runtime import Runtime
from fusewright.emit.scope import EmitScope
from fusewright.errors import BadUsage, CaptureFailed, FusewrightError, ToolMissing
from fusewright.frontend.asked_size import asked_sizes
from fusewright.frontend.flat_module import flat_arguments
from fusewright.frontend.submodules import observed
from fusewright.targets.detect import resolve_target
from fusewright.targets.target import Target

M = TypeVar("M", bound=nn.Module)


def optimize(
    module: M, /, *args: Any, options: Mapping[str, object] | None = None, **kwargs: Any
) -> M:
    """A module that shares every parameter and buffer with `module`, and whose calls run kernels.

    args, kwargs: those of a call that is like later ones, `module(*args, **kwargs)`.  options: of
    `fusewright.compiler.options.Options`, by name.  What became of the module is told by the
    result's attribute `fusewright`. The result is not judged: use `fusewright.judge` on files for
    that. Warns where kernels would not run on these arguments, if these are on the target.
    """
    if not isinstance(module, nn.Module):
        raise BadUsage(
            "fusewright.optimize takes an nn.Module, and the arguments of a call of it, not a "
            f"{type(module).__name__}."
        )
    module = _checked(module)
    chosen = _options(module, options)
    inputs = _inputs(module, args, kwargs)
    machine = _machine(chosen.target, module, inputs)
    names = names_of(module)
    flags = [child.training for child in module.modules()]
    training = chosen.mode == "train"
    with nullcontext() if chosen.mode == "both" else in_mode(module, training=training):
        try:
            fused = _as_whole(module, inputs, machine, chosen, names)
        except CaptureFailed as error:
            if chosen.dynamic_shapes:
                raise
            fused = _in_parts(module, inputs, machine, chosen, names, str(error))
    for child, flag in zip(fused.modules(), flags, strict=True):
        child.training = flag
    return fused


# ---- what is asked for ---------------------------------------------------------------------------


def _options(module: nn.Module, options: object) -> Options:
    """The options; raises BadUsage, with advice where `forward` has an argument of that name."""
    signature = signature_of(type(module).forward, bound=False)
    taken = signature is not None and "options" in signature.parameters
    advice = (
        f" {type(module).__name__}.forward has an argument of that name, too: give it that one by "
        "position."
    )
    if options is not None and not isinstance(options, Mapping):
        known = ", ".join(vars(Options()))
        raise BadUsage(
            f"options is a dict of {known}, not a {type(options).__name__}.{advice * taken}"
        )
    try:
        return Options.of(options)
    except BadUsage as error:
        raise BadUsage(f"{error}{advice * taken}") from error


def _checked(module: M) -> M:
    """The module as its classes were written; raises where it could not be another's twin."""
    kind = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule):
        raise CaptureFailed(f"This {kind} is a TorchScript module. Give the module behind it.")
    if "forward" in module.__dict__:
        raise CaptureFailed(
            f"This {kind} has a forward that was set on the object. Define it in the class."
        )
    written = {id(c): as_written(type(c)) for c in module.modules()}
    new = {id(c): written[id(c)] for c in module.modules() if written[id(c)] is not type(c)}
    if new:
        module = twin_of(module, new, {})  # type: ignore[assignment]
    if hasattr(module, ATTRIBUTE):
        raise BadUsage(
            f"This {kind} has an attribute called {ATTRIBUTE}, by which the result tells what "
            "became of it. Rename it."
        )
    return module


def _inputs(module: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> Inputs:
    """The call; raises BadUsage for one that `forward` does not take."""
    kind, signature = type(module).__name__, signature_of(type(module).forward, bound=False)
    if signature is None:
        return as_called(type(module).forward, args, kwargs)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        strange = sorted({*vars(Options())} & {*kwargs} - {*signature.parameters})
        options = ", ".join(f'"{name}": ...' for name in strange)
        raise BadUsage(
            f"{kind}.forward does not take these arguments: {error}. Write those of a call, "
            f"fusewright.optimize(module, *args, **kwargs) for module(*args, **kwargs)"
            + (f", and options={{{options}}}." if strange else ".")
        ) from error
    return as_called(type(module).forward, args, kwargs)


def _machine(name: str | None, module: nn.Module, inputs: Sequence[object]) -> Target:
    """What kernels are for; if nobody says, where the tensors are."""
    if name is None:
        tensors = [*module.parameters(), *module.buffers(), *_tensors(inputs)]
        name = "cuda" if any(t.is_cuda for t in tensors) else "cpu"
    machine, here = resolve_target(name)
    if not here:
        raise ToolMissing(
            f"{machine.name} is not on this machine; emit a file with `fusewright optimize` "
            "instead."
        )
    require_tools(machine)
    return machine


def _tensors(inputs: Sequence[object]) -> Iterator[torch.Tensor]:
    """Those of the arguments that are tensors, or containers of them."""
    for value in inputs:
        with suppress(Unknown):
            yield from flatten(value)[1]


# ---- what is made --------------------------------------------------------------------------------


def _as_whole(module: M, inputs: Inputs, machine: Target, chosen: Options, names: Names) -> M:
    kind = type(module)
    asked = asked_sizes(module, inputs, dict(chosen.dynamic_shapes))
    made = make(module, inputs, machine, chosen.precision, chosen.rules, asked=asked)
    check_rules(made, chosen.rules)
    modes = _further(chosen).added(module, inputs, made)
    own, functions = _own(names, kind), modes.shared.function_of
    record = modes.record(kind.__name__, functions)
    if not made.replaced:
        return _unchanged(module, names, own, Told(record))
    scope = names.scope(kind, own)
    runtime, new = code_in_modes(modes, module, scope)
    lines = header(kind.__name__, machine.name, modes.notes(functions))
    classes = [NewClass(own, class_text(kind, scope), ("",), new)]
    written = _Written(lines, runtime, classes)
    text = _text(module, names, own, written, Told(record, modes.forwards(functions)))
    fused = twin_of(module, {id(module): classes_of(text).made[own]}, {})
    _warn_if_refused(fused, new, inputs, machine.device)
    return fused  # type: ignore[return-value]


def _further(chosen: Options) -> FurtherModes:
    return FurtherModes(chosen.mode == "both", chosen.gradients, chosen.rules)


def _in_parts(
    module: M, inputs: Inputs, machine: Target, chosen: Options, names: Names, why: str
) -> M:
    """The same for a module that cannot be captured as a whole: warns, with the reason."""
    kind = type(module)
    calls = observed(module, partial(_called, module, inputs))

    def scope(child: nn.Module, name: str) -> EmitScope:
        return names.scope(type(child), name)

    parts = make_parts(module, calls, machine, chosen.precision, _further(chosen), why, scope)
    check_rules_of_parts(chosen.rules, why)
    record = parts.record(kind.__name__)
    first, *_ = record.splitlines()
    warnings.warn(
        f"fusewright.optimize: {first}: {why} More is told by {ATTRIBUTE}.explain() of the result.",
        stacklevel=3,
    )
    taken = {t.made.name: [module.get_submodule(p) for p in t.paths] for t in parts.chosen.taken}
    own = _own(names, kind, taken)
    if not taken:
        return _unchanged(module, names, own, Told(record, (), parts.left))
    runtime, classes = code_of_parts(parts, scope)
    lines = header_of_parts(kind.__name__, machine.name, parts.notes, parts.left)
    written = _Written(lines, runtime, classes)
    text = _text(module, names, own, written, Told(record, parts.forwards, parts.left))
    made = classes_of(text).made
    new = {id(child): made[name] for name, children in taken.items() for child in children}
    return twin_of(module, {**new, id(module): made[own]}, {})  # type: ignore[return-value]


def _unchanged(module: M, names: Names, own: str, told: Told) -> M:
    """A twin of the module that tells why it has no kernels."""
    text = _text(module, names, own, _Written(unchanged_header(told.record)), told)
    return twin_of(module, {id(module): classes_of(text).made[own]}, {})  # type: ignore[return-value]


def _called(module: nn.Module, inputs: Inputs) -> object:
    """One eager call; raises BadUsage where the module cannot be called so."""
    try:
        return call(module, inputs)
    except FusewrightError:
        raise
    # The module is the user's code, and may raise anything.
    except Exception as error:
        listed = len(inputs) and isinstance(inputs[0], list | tuple | dict)
        raise BadUsage(
            f"{type(module).__name__}.forward raises {type(error).__name__} when it is called "
            f"with these arguments: {error}."
            + " The first of them is a container: write the arguments as in a call of the module, "
            "fusewright.optimize(module, x, y), not in a list." * bool(listed)
        ) from error


def _own(names: Names, kind: type, taken: Mapping[str, object] | None = None) -> str:
    """A name for the new class of the module itself."""
    return NameScope({*names.classes, *(taken or ())}).fresh(f"Fused{kind.__name__}")


@dataclass(frozen=True)
class _Written:
    """The pieces of a file. header: its comment.  runtime: what its classes call; None of none."""

    header: Sequence[str]
    runtime: Runtime | None = None
    classes: Sequence[NewClass] = ()


def _text(module: nn.Module, names: Names, own: str, written: _Written, told: Told) -> Text:
    """All that the classes are made of."""
    kind, runtime, classes = type(module), written.runtime, written.classes
    body = emit_subclasses(runtime, classes) if runtime else ""
    base = class_text(kind, names.scope(kind, own))
    bases = {c.name: names.classes.get(c.base) or _torchs(c.base) for c in classes}
    whole, why, names = "", "", names.used_by(f"{body}\n{base}\n")
    try:
        imports = names.imports()
        files = names.files()
        whole = emit_module_file(written.header, imports, base, runtime, classes, files)
    except BadUsage as error:
        why = str(error)
    return Text(body, bases, names, kind, own, told, whole, why)


def _torchs(name: str) -> type:
    """A class of PyTorch's by its dotted name."""
    found: Any = torch
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    kind: type = found
    return kind


# ---- whether kernels run -------------------------------------------------------------------------


def _warn_if_refused(
    fused: nn.Module, new: GeneratedForward, inputs: Sequence[object], device: str
) -> None:
    """Say which condition of the guard of `fused` does not hold for these inputs, if any.

    Inputs of another device say nothing: the module is yet to be moved.
    """
    tensors = flat_arguments(fused, inputs).tensors
    if any(t.device.type != device for t in (*tensors, *fused.parameters())):
        return
    if why := _refusal(fused, new, inputs):
        warnings.warn(
            "fusewright.optimize: calls with such arguments run "
            f"{type(fused).__name__}'s original forward: {why}. "
            "Give it what later calls will have: a module without hooks, and tensors without gaps.",
            stacklevel=4,
        )


def _refusal(fused: nn.Module, new: GeneratedForward, inputs: Sequence[object]) -> str:
    """Which condition does not hold, in words; or ""."""
    body = [*new.prelude, f"return ({' and '.join(new.conditions)})"]
    lines = [f"def asked(self, {new.signature}):", *(f"    {line}" for line in body)]
    found: dict[str, Any] = {}
    exec("\n".join(lines), inspect.unwrap(type(fused).forward).__globals__, found)
    with torch.no_grad():
        holds = call(partial(found["asked"], fused), inputs)
    return "" if holds else str(holds)
