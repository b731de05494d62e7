"""Calls of the exported program -> which module of the model makes them, what it calls, and where.

`torch.export` notes for each call the modules that it is in, the function of PyTorch that Python
called, the ATen call that this came to, and where the lines of Python are.
"""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Iterable
from types import CodeType

import torch
from torch import nn

from fusewright.frontend.assigned_variables import (
    assigned_variables,
    computes,
    frames_of,
    results_of_functions,
)
from fusewright.frontend.call_words import call_word, function_of
from fusewright.ir.origin import Origin


class CallOrigins:
    """Where the calls of a model's program come from. nodes: of the program, in order."""

    def __init__(self, module: nn.Module, nodes: Iterable[torch.fx.Node]) -> None:
        self._file = _file_of(module)
        self._paths: dict[str, list[str]] = {}  # type of a module -> paths, in the model's order
        for path, child in module.named_modules(remove_duplicate=False):
            kind = type(child)
            self._paths.setdefault(f"{kind.__module__}.{kind.__qualname__}", []).append(path)

        computed = [n for n in nodes if computes(n)]
        self._variables = assigned_variables(computed, self._file)
        self._results = results_of_functions(computed)

    def of(self, n: torch.fx.Node, result: int | None = None) -> Origin:
        """The origin of one call. result: which one, of a call that returns several."""
        names, word = self._variables.get(n, ("",)), call_word(n)
        k = result or 0
        alone = result is not None or len(names) == 1
        variable = names[k] if alone and k < len(names) else ""
        is_result = n in self._results or not function_of(n)[1].endswith(f".{word}")
        return Origin(self._module(n), word, self._line(n), variable, is_result)

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
        found = [frame.line for frame in frames_of(n) if self._file and frame.file == self._file]
        return found[-1] if found else None


def _file_of(module: nn.Module) -> str:
    """The file that the model's `forward` is written in; "" if nothing says."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code.co_filename if isinstance(code, CodeType) else ""


def source_lines(module: nn.Module) -> list[str]:
    """The lines of that file; none where nobody has them, or where it is PyTorch's own."""
    where = str(type(module).forward.__module__)  # None, of a text that is run without a name
    pytorchs = where.startswith("torch.")
    return [] if pytorchs else linecache.getlines(_file_of(module))
