"""One condition of the guard, with what to say where it does not hold; and what an emitted file
does with that: it counts the call, and warns once for each model, or raises.

A condition that does not hold is a false value of Python's. Here it is a `_FusewrightReason`, which
is a text and false, so the call knows in words what was different. Where all holds, that is free.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fusewright.emit.python_text import literal

MODE_ADVICE = " (fusewright optimize --mode)"  # guard_snapshot says the same


@dataclass(frozen=True)
class GuardCondition:
    """text: Python that is true where it holds.  otherwise: what is so where it does not, in words;
    "" where the value of `text` says that itself."""

    text: str
    otherwise: str = ""

    def __str__(self) -> str:
        """As it stands in the guard."""
        return f"({self.text} or {says(self.otherwise)})" if self.otherwise else self.text


def says(words: str) -> str:
    """The text of a false value that says why."""
    return f"_fusewright_no({literal(words)})"


def all_of(texts: Iterable[str], otherwise: str) -> GuardCondition:
    """One condition of several."""
    every = list(texts)
    joined = " and ".join(every)
    return GuardCondition(f"({joined})" if len(every) > 1 else joined, otherwise)


# `_dynamo_marked_constant` is what torch._dynamo.assume_constant_result sets; to import that takes
# seconds. Dynamo then calls the function while it traces, and takes its answer for a constant.
REASONS = '''
class _FusewrightReason(str):
    """Why kernels cannot run, in words: a condition that does not hold."""

    def __bool__(self):
        return False


def _fusewright_no(what, details=""):
    """The reason; `what` of it is the same at other calls."""
    reason = _FusewrightReason(f"{what}{details}")
    reason.what = what
    return reason


_FUSEWRIGHT_REFUSED = {}  # class, reason -> calls that ran the original
_FUSEWRIGHT_TOLD = []  # the one map of models, kept by weak references, to what they were told


def _fusewright_refused(model, name, why):
    """Counts a call of the original, and says why: once for a model and a reason.

    With FUSEWRIGHT_STRICT=1 in the environment it is an error.
    """
    import os
    import warnings

    from torch.utils.weak import WeakIdKeyDictionary

    why = why if isinstance(why, _FusewrightReason) else _fusewright_no("a condition does not hold")
    key = name, why.what
    _FUSEWRIGHT_REFUSED[key] = _FUSEWRIGHT_REFUSED.get(key, 0) + 1
    text = f"{name} runs its original forward, not its kernels: {why}."
    if os.environ.get("FUSEWRIGHT_STRICT", "0") not in ("", "0"):
        raise RuntimeError(f"{text} FUSEWRIGHT_STRICT is set.")
    if not _FUSEWRIGHT_TOLD:
        _FUSEWRIGHT_TOLD.append(WeakIdKeyDictionary())
    told = _FUSEWRIGHT_TOLD[0].setdefault(model, set())
    if key not in told:
        told.add(key)
        warnings.warn(text, stacklevel=5)  # of who calls the model


def _fusewright_traced(name, why=""):
    """True. Counts that PyTorch's compiler traces the original, and says so."""
    tracing = _fusewright_no(f"PyTorch's compiler traces it{why and ', and '}{why}")
    _fusewright_refused(_fusewright_traced, name, tracing)
    return True


_fusewright_traced._dynamo_marked_constant = True


def _fusewright_status(name):
    """The calls of a class: with kernels, and without, by what did not hold."""
    refused = {what: n for (own, what), n in _FUSEWRIGHT_REFUSED.items() if own == name}
    original = sum(refused.values())
    return {"kernels": _FUSEWRIGHT_CALLS[name], "reference_forward": original, "because": refused}
'''
