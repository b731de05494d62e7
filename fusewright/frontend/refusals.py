"""An exception of torch.export -> the one paragraph that says why a model cannot be a graph.

It names the operator, the line of the user's file, and what to write instead. What is said is
read from the exception itself: where the tables do not know it, PyTorch's own words stand there
without advice.
"""

from __future__ import annotations

import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    free_unbacked_symbols,
)

from fusewright.common.package import PACKAGE
from fusewright.errors import CaptureFailed

_MESSAGE_LIMIT = 300
SHOWN = 3  # names of a list
_OURS = (Path(torch.__file__).parent, PACKAGE)
_TORCH, _FUSEWRIGHT = (f"{path}/" for path in _OURS)
_PYTHON = f"{Path(sysconfig.get_paths()['stdlib']).resolve()}/"
_INSTALLED = (Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib", "platlib"))
_LIBRARIES = tuple(f"{path.resolve()}/" for path in (*_OURS, *_INSTALLED))
# ATen name, without its overload, whose results have as many elements as the data says -> how a
# person writes the call, and what to write instead.
BY_SIZE: Mapping[str, tuple[str, str]] = {
    "nonzero": (
        "indexing by a boolean mask, or nonzero,",
        "Keep the shape: torch.where(mask, a, b), or sums of values times the mask.",
    ),
    "index": (
        "indexing by a boolean mask, or nonzero,",
        "Keep the shape: torch.where(mask, a, b), or sums of values times the mask.",
    ),
    "masked_select": (
        "masked_select",
        "Keep the shape: torch.where(mask, a, b), or sums of values times the mask.",
    ),
    "_unique2": ("unique", "Move it out of forward, and pass its result as an argument."),
    "unique_dim": ("unique", "Move it out of forward, and pass its result as an argument."),
    "unique_consecutive": (
        "unique_consecutive",
        "Move it out of forward, and pass its result as an argument.",
    ),
    "repeat_interleave": (
        "repeat_interleave with counts in a tensor",
        "Pass the number of all rows: repeat_interleave(x, counts, output_size=n).",
    ),
    "bincount": (
        "bincount",
        "Add ones at known places: x.new_zeros(n).index_add(0, index, ones).",
    ),
    "_pack_padded_sequence": (
        "pack_padded_sequence",
        "Run the layer on the padded sequence, and mask what lies behind each end.",
    ),
}
# The same for operators whose result is a number of Python.
BY_VALUE: Mapping[str, tuple[str, str]] = {
    "_local_scalar_dense": (
        ".item(), .tolist() or another use of a tensor's value as a number of Python",
        "Keep the value in a tensor: arithmetic and indexing take tensors of one element.",
    ),
    "equal": ("torch.equal", "Compare elements, (a == b).all(), and choose with torch.where."),
    "allclose": (
        "torch.allclose",
        "Compare elements, torch.isclose(a, b).all(), and choose with torch.where.",
    ),
    "is_nonzero": ("the truth of a tensor", "Choose with torch.where."),
}
# Of a change of memory that tensors share, of which torch.export says no more.
IN_COMMON = (
    "expected compiled_fn to be GraphModule|not yet handle non-differentiable view input mutations"
)
# What PyTorch says -> what that means, and what to write instead. The first that fits counts.
BY_WORDS: tuple[tuple[str, str, str], ...] = (
    (
        r"\.numpy\(\) is not supported",
        ".numpy() takes the values of a tensor out of PyTorch",
        "Compute with tensors.",
    ),
    (
        r"unsupported format string passed to (\w*Tensor|Sym\w+)\.",
        "a tensor's value is formatted as text, which needs it as a number of Python",
        "Remove the text from forward, or format outside.",
    ),
    (
        r"type must be tuple of ints, ?but got \w*Tensor",
        "a size is given by a tensor's value",
        "Give sizes as numbers that do not depend on the data.",
    ),
    (
        IN_COMMON,
        "forward changes a tensor in place in whose memory another input, parameter or buffer lies",
        "Give each its own memory (clone()), or return the new value instead.",
    ),
    (
        r"\bSym(Int|Float|Bool)\b|symbolic sizes|symbol z?u(f|\d)",  # in which its name begins so
        "a call or an operation of Python takes no number that only the data knows, as .item() "
        "gives one",
        "Give it to forward as a plain number, or keep it in a tensor.",
    ),
    (
        r"Pending unbacked symbols",
        "the size of a result depends on the values of a tensor",
        "Use operators whose sizes are known: torch.where, topk, sort.",
    ),
)
# A file of PyTorch's in which tracing stopped -> what that means, and what to write instead.
BY_PLACE: tuple[tuple[str, str, str], ...] = (
    (
        "modules/batchnorm.py",
        "BatchNorm with momentum=None reads its counter",
        "Give it a momentum: then the counter is not read.",
    ),
    (
        "utils/rnn.py",
        "a packed sequence has as many rows as its lengths say",
        "Run the layer on the padded sequence, and mask what lies behind each end.",
    ),
    (
        "modules/rnn.py",
        "a recurrent layer takes a packed sequence, which has as many rows as its lengths say",
        "Run the layer on the padded sequence, and mask what lies behind each end.",
    ),
)
NUMBER_OR_SIZE = (
    "the value of a tensor is needed as a number of Python while the graph is made (int(), "
    "float(), range(), a size, an index of a list, one_hot without its number of classes)",
    "Give it to forward as a plain number, or keep it in a tensor.",
)
UNKNOWN_ADVICE = "Keep sizes fixed, and choose with torch.where."
BY_OPERATOR = (
    "{} asks for the value of a tensor, which it needs as a number of Python (.item(), int(), "
    "float())",
    NUMBER_OR_SIZE[1],
)
# Functions that are a number of Python or ask for one, with a hint of their own.
AS_NUMBER = ("__int__", "__float__", "__index__", "__complex__", "__round__", "one_hot")
UNPLACED = (
    "where a view begins depends on a tensor's value (.item()), and what it is a view of was "
    "changed in place",
    "Select with the tensor, x.index_select(0, n), or return a new value instead of the change.",
)
MOST_SAID = 240  # letters of a message of torch.export
TRUTH = (
    "`if`, `while`, `assert` or bool() asks for a value that only the data knows",
    "Choose with torch.where, or move the question out of forward.",
)


def cannot_capture(error: BaseException, model: type) -> CaptureFailed:
    """The error that says where in the user's file tracing stopped, and why."""
    cause, advice = _cause(error)
    said = f"{cause}. {advice}" if advice else cause
    return CaptureFailed(
        f"{user_line(error, model)}: the model cannot be turned into a graph: {said}"
    )


def cannot_rewrite(
    error: BaseException, program: torch.fx.Graph, model: type
) -> CaptureFailed | None:
    """The same where not forward was stopped but the rewriting of what was traced: the line is that
    of the call at fault, if it can be told which that is."""
    found = re.search(r"While executing %(\w+) :", str(error))
    unplaced = "Pending unbacked symbols" in str(error)
    at = [n for n in program.nodes if (found and n.name == found[1]) or (unplaced and _unplaced(n))]
    if not at:
        return None
    cause, advice = UNPLACED if unplaced else _cause(error)
    said = f"{cause}. {advice}" if advice else cause
    return CaptureFailed(
        f"{_line_of(at[0], model)}: the model cannot be turned into a graph: {said}"
    )


def _unplaced(n: torch.fx.Node) -> bool:
    """Whether only the data knows where in its memory a view begins."""
    value = n.meta.get("val")
    offset = value.storage_offset() if isinstance(value, torch.Tensor) else 0
    return isinstance(offset, torch.SymInt) and bool(free_unbacked_symbols(offset))


def largest(error: Exception, name: str) -> int | None:
    """The largest size for which torch.export would leave it free, where it says that one."""
    found = re.search(rf"^\s*{name} = Dim\('{name}',(?: min=\d+,)? max=(\d+)\)$", str(error), re.M)
    return int(found[1]) if found else None


def why_not_free(error: Exception) -> str:
    """What torch.export says of a size that cannot be free, in a line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
    said = next((line for line in lines if line.startswith("- ")), lines[0])
    return f"torch.export says: {said.removeprefix('- ')[:MOST_SAID]}"


def changed_in_common(n: object, model: type, changed: str, others: Sequence[str]) -> CaptureFailed:
    """The error for a change in place of memory in which other tensors lie, too. n: what is
    written, in the exported program."""
    shown = " and ".join(others[:SHOWN]) + f" and {len(others) - SHOWN} more" * (
        len(others) > SHOWN
    )
    return CaptureFailed(
        f"{_line_of(n, model)}: the model cannot be turned into a graph: forward changes {changed} "
        f"in place, and {shown} share{'s' * (len(others) == 1)} memory with it, where the change "
        "is seen, too. Give each its own memory (clone()), or return the new value instead."
    )


def unknown_size(n: torch.fx.Node, model: type) -> CaptureFailed:
    """The error for a call of the exported program whose result's size only the data knows."""
    name = str(n.target).removeprefix("aten.").rpartition(".")[0]
    sized = ("what another call gives has a size that depends on the data", UNKNOWN_ADVICE)
    if name in BY_SIZE:
        sized = (f"the size of what {BY_SIZE[name][0]} gives depends on the data", BY_SIZE[name][1])
    elif any(isinstance(a, torch.fx.Node) and not _is_tensor(a) for a in n.args):
        sized = (f"the size of what {name} gives depends on a tensor's value", UNKNOWN_ADVICE)
    cause, advice = sized
    return CaptureFailed(
        f"{_line_of(n, model)}: the model cannot be turned into a graph: {cause}. {advice}"
    )


def _line_of(n: object, model: type) -> str:
    """`file:line` of the user's that made a call of the exported program."""
    said = n.meta.get("stack_trace") if isinstance(n, torch.fx.Node) else None
    places = re.findall(r'File "([^"]+)", line (\d+)', said or "")
    return _innermost([(path, int(number)) for path, number in places], model)


def _is_tensor(n: torch.fx.Node) -> bool:
    return isinstance(n.meta.get("val"), torch.Tensor)


def user_line(error: BaseException, model: type) -> str:
    """`file:line` of the innermost traceback entry in a file that is the user's own: no file of
    PyTorch's, Python's or ours. An installed package's counts where there is no other."""
    return _innermost(_places(error), model)


def running_line(passed_over: str = "") -> str:
    """`file:line` that runs now and is neither ours nor Python's own; "" if it is PyTorch's.

    passed_over: a function that stands for its caller.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file, own = frame.f_code.co_filename, frame.f_code.co_name == passed_over
        if file.startswith(_TORCH) and not own:
            return ""
        own = own or file.startswith((_FUSEWRIGHT, "<frozen"))
        if not own and ("/site-packages/" in file or not file.startswith(_PYTHON)):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _innermost(places: Iterable[tuple[str, int]], model: type) -> str:
    own = getattr(sys.modules.get(model.__module__), "__file__", None)
    found, library = model.__name__, ""
    for path, line in places:
        resolved = str(Path(path).resolve())
        if path == own or _is_users(path):
            found = f"{path}:{line}"
        elif "site-packages" in resolved and not resolved.startswith(_LIBRARIES[: len(_OURS)]):
            library = f"{path}:{line}"
    return found if found != model.__name__ else library or found


def _is_users(path: str) -> bool:
    """Whether a file is the user's own: no file of PyTorch's, Python's, ours or of a package."""
    return Path(path).is_file() and not str(Path(path).resolve()).startswith(_LIBRARIES)


def _places(error: BaseException) -> Iterator[tuple[str, int]]:
    step = error.__traceback__
    while step is not None:
        yield step.tb_frame.f_code.co_filename, step.tb_lineno
        step = step.tb_next


def _cause(error: BaseException) -> tuple[str, str]:
    """What stopped torch.export, as the exception says, and what to write instead (or "")."""
    passed = [path for path, _ in _places(error)]
    for name, cause, advice in BY_PLACE:
        if any(path.endswith(name) for path in passed):
            return f"{cause} ({_first_line(error)})", advice
    if known := _cause_by_type(error):
        return known
    text = str(error)
    container = re.match(r"Found (<class '[^']*'>) in output, which is not a known type", text)
    if container:
        kind = container[1].removeprefix("<class '").removesuffix("'>").rpartition(".")[2]
        return f"forward returns a {kind}", "Return a tensor, or a tuple, list or dict of tensors."
    for words, cause, advice in BY_WORDS:
        if re.search(words, text):
            return f"{cause} ({_first_line(error)})", advice
    return _first_line(error), ""


def _cause_by_type(error: BaseException) -> tuple[str, str] | None:
    """The same where the exception's class says it."""
    if isinstance(error, DynamicOutputShapeException):
        written, advice = BY_SIZE.get(_name(error), (_name(error), ""))
        return f"the size of what {written} gives depends on the data ({error.func})", advice
    if isinstance(error, DataDependentOutputException):
        written, advice = BY_VALUE.get(_name(error), (_name(error), ""))
        return f"{written} needs the data while the graph is made ({error.func})", advice
    if isinstance(error, UnsupportedOperatorException):
        return f"PyTorch cannot trace {error.func}, which has no rule for shapes", ""
    if isinstance(error, GuardOnDataDependentSymNode):
        return _asking(error)
    return None


def _asking(error: GuardOnDataDependentSymNode) -> tuple[str, str]:
    """Who asks for a value that only the data knows: the truth of something in the user's code, a
    number of Python, or an operator that takes such a number."""
    name = _called(error)
    if not name:
        name = "__int__" if getattr(error.cond, "is_Symbol", False) else "__bool__"
    if name in ("__bool__", "is_nonzero"):
        return TRUTH
    if name in AS_NUMBER:
        return NUMBER_OR_SIZE
    return BY_OPERATOR[0].format(name), BY_OPERATOR[1]


def _called(error: BaseException) -> str:
    """The function of PyTorch that the user's innermost line calls and that does not come back, as
    its person names it; "" if nothing is known of it."""
    frames = [f for f, _ in traceback.walk_tb(error.__traceback__)]
    own = [k for k, f in enumerate(frames) if _is_users(f.f_code.co_filename)]
    for frame in frames[max(own, default=-1) + 1 :]:
        code = frame.f_code
        if code.co_name.startswith("__torch_") and "func" in frame.f_locals:
            return str(getattr(frame.f_locals["func"], "__name__", "")).partition(".")[0]
        if code.co_name in ("__bool__", *AS_NUMBER):
            return code.co_name
    return ""


def _name(error: BaseException) -> str:
    """The operator that an exception of PyTorch's names, without namespace and overload."""
    return str(getattr(error, "func", "")).removeprefix("aten.").rpartition(".")[0]


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    first = lines[0][:_MESSAGE_LIMIT] if lines else ""
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
