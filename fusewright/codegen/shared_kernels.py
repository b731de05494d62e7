"""Kernels of a plan -> SharedKernels: which steps run which function of the emitted source.

Equal blocks of a model have the kernels of one: a function stands in the source once, and every
step that computes the same calls it, with tensors of its own. Two steps are the same where all that
is printed and launched for them is, but for names: `function_key` is the place that decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fusewright.codegen import cpu_source, cuda_source
from fusewright.codegen.kernel_text import Does, KernelText
from fusewright.fusion.kernel_names import NameRules, shared_names

CANONICAL = "kernel"  # what a kernel is called where kernels are compared


@dataclass(frozen=True)
class KernelStep:
    """A step of the plan that is a kernel. name: the step's.  numbered: its text as a function of
    another name, with numbers for the values in it.  printed: the same with the model's words for
    them.  group: what it may be shared within, whatever its text; "" for all."""

    name: str
    numbered: Callable[[str], KernelText]
    printed: Callable[[str], KernelText]
    group: str = ""


@dataclass(frozen=True)
class FunctionKey:
    """All that is printed and launched for a kernel, under canonical names.

    source: structs, fallback and entry, where sizes, strides, types, template arguments and the
    pattern of what is overwritten stand.  workspace: its bytes, as text.  aligned: of its whole
    tensors.  roles: of its other pointers.  in_place: which of them take over whose memory, by type
    and place.
    """

    source: str
    lifted: frozenset[tuple[str, int]]
    needs: frozenset[str]
    workspace: str
    aligned: tuple[bool, ...]
    roles: tuple[Does, ...]
    in_place: tuple[int, ...]


def function_key(text: KernelText, language: str) -> FunctionKey:
    """text: printed under canonical names."""
    function = {"cuda": cuda_source.function, "cpp": cpu_source.function}[language]
    launch, taken = text.launch, {id(result) for result, _ in text.in_place}
    return FunctionKey(
        source=function(text),
        lifted=text.lifted,
        needs=launch.needs,
        workspace=launch.workspace,
        aligned=tuple(tensor.aligned for tensor in launch.whole_tensors),
        roles=tuple(pointer.role for pointer in text.pointers),
        in_place=tuple(k for k, p in enumerate(text.pointers) if id(p.node) in taken),
    )


@dataclass(frozen=True)
class SharedKernels:
    """functions: as text, each once, in the order of their first calls.  function_of: the name of
    its function, by that of the step."""

    functions: tuple[KernelText, ...] = ()
    function_of: Mapping[str, str] = field(default_factory=dict)


NOTHING_SHARED = SharedKernels()


def share(steps: Sequence[KernelStep], language: str, rules: NameRules) -> SharedKernels:
    """Steps that are the same get one function, whose name is what theirs have in common; what is
    inside of it has the names of the first. rules: what names have to keep apart from."""
    alike: dict[tuple[str, FunctionKey], list[KernelStep]] = {}
    for step in steps:
        key = step.group, function_key(step.numbered(CANONICAL), language)
        alike.setdefault(key, []).append(step)
    groups = list(alike.values())
    names = shared_names([[step.name for step in group] for group in groups], rules)
    both = list(zip(names, groups, strict=True))
    functions = tuple(group[0].printed(name) for name, group in both)
    return SharedKernels(functions, {step.name: name for name, group in both for step in group})
