"""Calls of the exported program -> which module of the model makes them, what it calls, and where.

`torch.export` notes for each call the modules that it is in, the function of PyTorch that Python
called, the ATen call that this came to, and where the lines of Python are.
"""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Mapping
from types import CodeType, MappingProxyType

import torch
from torch import nn

from fusewright.ir.origin import Origin

# Functions that are written with many others, of which a name says more.
COMPOSITE = frozenset({"multi_head_attention_forward"})
# What people call it, where PyTorch has a longer word.
WORDS: Mapping[str, str] = MappingProxyType(
    {
        "rsub": "sub",
        "scaled_dot_product_attention": "attention",
        "binary_cross_entropy_with_logits": "binary_cross_entropy",
        "native_batch_norm_legit": "batch_norm",
        "native_batch_norm_legit_functional": "batch_norm",
        "native_batch_norm_legit_no_training": "batch_norm",
    }
)


class CallOrigins:
    """Where the calls of a model's program come from."""

    def __init__(self, module: nn.Module) -> None:
        self._file = _file_of(module)
        self._paths: dict[str, list[str]] = {}  # type of a module -> paths, in the model's order
        for path, child in module.named_modules(remove_duplicate=False):
            kind = type(child)
            self._paths.setdefault(f"{kind.__module__}.{kind.__qualname__}", []).append(path)

    def of(self, n: torch.fx.Node) -> Origin:
        """The origin of one call."""
        return Origin(self._module(n), _call(n), self._line(n))

    def _module(self, n: torch.fx.Node) -> str:
        """The path of the innermost module. Of a module that has several names, torch.export may
        only know the end of a path."""
        for path, kind in reversed((n.meta.get("nn_module_stack") or {}).values()):
            known = self._paths.get(kind, [])
            if path in known:
                return str(path)
            for found in known:
                if found.endswith(f".{path}"):
                    return found
        return ""

    def _line(self, n: torch.fx.Node) -> int | None:
        """The last line of the model's file that leads to the call."""
        place = f'File "{self._file}", line '
        for text in reversed((n.meta.get("stack_trace") or "").splitlines()):
            head, found, tail = text.partition(place)
            number = tail.partition(",")[0]
            if self._file and found and not head.strip() and number.isdecimal():
                return int(number)
        return None


def _file_of(module: nn.Module) -> str:
    """The file that the model's `forward` is written in; "" if nothing says."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code.co_filename if isinstance(code, CodeType) else ""


def source_lines(module: nn.Module) -> list[str]:
    """The lines of that file; none where nobody has them, or where it is PyTorch's own."""
    pytorchs = type(module).forward.__module__.startswith("torch.")
    return [] if pytorchs else linecache.getlines(_file_of(module))


def _call(n: torch.fx.Node) -> str:
    """What Python called, or the ATen call where that has no name of its own."""
    _, _, name = str((n.meta.get("torch_fn") or ("", ""))[1]).rpartition(".")
    if not name or name.startswith("_") or name in COMPOSITE:
        name = str(n.meta.get("original_aten") or n.target).removeprefix("aten.").partition(".")[0]
    name = name.strip("_")
    return WORDS.get(name, name)
