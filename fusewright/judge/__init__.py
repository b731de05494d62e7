"""The judge: is a candidate's ModelNew right, and is it really faster? Importing loads no torch.

The package itself can be called: `fusewright.judge(problem, candidate)` is `judge.judge(...)`.
"""

from __future__ import annotations

import sys
from types import ModuleType

from fusewright.judge.findings import CHECKS, Finding, Row, Verdict
from fusewright.judge.judging import judge, replay
from fusewright.judge.request import Limits

__all__ = ["CHECKS", "Finding", "Limits", "Row", "Verdict", "judge", "replay"]


class _Callable(ModuleType):
    __call__ = staticmethod(judge)


sys.modules[__name__].__class__ = _Callable
