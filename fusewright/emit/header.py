"""Decision record + kernels -> the comment lines at the top of an emitted file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from fusewright import __version__
from fusewright.codegen.kernel_text import KernelText
from fusewright.fusion.planner import Plan
from fusewright.kernels.interface import Description
from fusewright.loopnest.nest import Nest


def header(
    record: str,
    kernels: Iterable[tuple[KernelText, Nest, object]],
    plan: Plan,
    name: str,
    descriptions: Mapping[str, Description],
    function_of: Mapping[str, str],
) -> list[str]:
    """name: of the problem file.  descriptions: of kernels, by name.  function_of: of each kernel
    the function that runs it, which equal ones share."""
    lines = [
        f"ModelNew: {name} with fused kernels for {plan.target.name}, "
        f"written by fusewright {__version__}.",
        "",
        "The constructor, the parameters and the results are the original's. `forward` is new; "
        "where",
        "its guard does not hold (other shapes, gradients, autocast, ...) it runs",
        "`reference_forward`.",
        "",
    ]
    kept = [line for line in record.splitlines()[1:] if line.strip() and "predicted" not in line]
    return [*lines, *kept, *_numeric_classes(kernels, plan, descriptions, function_of), ""]


def header_of_parts(
    record: str,
    kernels: Iterable[tuple[KernelText, Nest, object]],
    plans: Iterable[Plan],
    name: str,
    descriptions: Mapping[str, Description],
    function_of: Mapping[str, str],
) -> list[str]:
    """The same where some submodules are new. kernels, plans: of all of them."""
    first, *_ = plans = list(plans)
    lines = [
        f"ModelNew: {name} with fused kernels for {first.target.name} in some of its submodules, "
        f"written by fusewright {__version__}.",
        "",
        "The constructor, the parameters and the results are the original's, and so is the code "
        "of Model, which stands here as it was written. Submodules named below have a new "
        "`forward`; where its guard does not hold, it runs that of their own class.",
        "",
    ]
    kept = [line for line in record.splitlines()[1:] if line.strip() and "predicted" not in line]
    return [*lines, *kept, *_numeric_classes(kernels, first, descriptions, function_of), ""]


def unchanged_header(record: str) -> list[str]:
    """For a file in which nothing is replaced."""
    kept = [line for line in record.splitlines() if line.strip()]
    return [f"ModelNew: {kept[0]}, kept by fusewright {__version__}.", "", *kept[1:], ""]


def _numeric_classes(
    kernels: Iterable[tuple[KernelText, Nest, object]],
    plan: Plan,
    descriptions: Mapping[str, Description],
    function_of: Mapping[str, str],
) -> list[str]:
    """In which precision each function computes."""
    lines = []
    for text, nest, _ in kernels:
        types = dict.fromkeys(p.node.dtype for p in text.pointers if p.node.dtype.is_floating_point)
        narrow = [str(t).removeprefix("torch.") for t in types if t.itemsize < 4]
        kind = "float64" if torch.float64 in types else "float32" if types else "integers"
        stored = f", {' and '.join(narrow)} only in memory" if narrow else ""
        anchor = nest.kernel.anchor
        own = f", its {anchor.op} as {descriptions[text.name].numeric}" if anchor else ""
        lines.append(f"  numeric class: {function_of[text.name]} computes in {kind}{stored}{own}")
    calls = any(s.node.op == "library" for s in plan.libraries)
    how = "run in full float32" if plan.precision == "ieee" else "follow PyTorch's flags"
    return [*dict.fromkeys(lines)] + [f"  numeric class: library contractions {how}"] * calls
