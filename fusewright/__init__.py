"""A PyTorch model in, one readable file with fused kernels out, verified against float64.

Importing this package is cheap: PyTorch is imported when one of the names below is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusewright.api.optimize import optimize as optimize
    from fusewright.common.problem_file import Problem as Problem
    from fusewright.common.problem_file import load_problem as load_problem
    from fusewright.judge import judge as judge
    from fusewright.judge.findings import Finding as Finding
    from fusewright.judge.findings import Verdict as Verdict

__version__ = "0.1.0"

# Name -> the file that holds it. `judge` is a package that can be called.
_EXPORTS = {
    "Finding": "fusewright.judge.findings",
    "Problem": "fusewright.common.problem_file",
    "Verdict": "fusewright.judge.findings",
    "judge": "fusewright",
    "load_problem": "fusewright.common.problem_file",
    "optimize": "fusewright.api.optimize",
}
__all__ = ["Finding", "Problem", "Verdict", "judge", "load_problem", "optimize"]


def __getattr__(name: str) -> object:
    if name == "judge":
        return import_module("fusewright.judge")
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'fusewright' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
