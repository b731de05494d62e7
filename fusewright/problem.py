"""Problem file -> Problem: a private module with Model, get_inputs and get_init_inputs, checked.

A problem file is code, and may do anything. It runs in a private module, and whatever it raises
(SystemExit too) leaves here as one `UnusableProblem` that names the line in the user's file.
Importing this file does not import torch; loading a problem does.
"""

from __future__ import annotations

import ast
import importlib.util
import itertools
import linecache
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType, TracebackType
from typing import TYPE_CHECKING

from fusewright.errors import BadUsage, FusewrightError, UnusableProblem

if TYPE_CHECKING:
    from torch import Tensor, nn

NO_OVERRIDES: Mapping[str, str] = MappingProxyType({})

# What a problem file must define -> what each name is for.
REQUIRED = {
    "Model": "the reference, a subclass of torch.nn.Module",
    "get_inputs": "returns the list of arguments of Model.forward",
    "get_init_inputs": "returns the list of arguments of Model(...)",
}
# Values other than tensors that `get_inputs` may hand to `forward`.
PLAIN_TYPES = (bool, int, float, complex, str, type(None))
_MESSAGE_LIMIT = 600
_load_number = itertools.count()


@dataclass(frozen=True)
class Problem:
    """One loaded problem file; `source` is the text as it stands on disk, without overrides."""

    path: Path
    source: str
    module: ModuleType
    overrides: Mapping[str, str]

    @property
    def model_class(self) -> type[nn.Module]:
        model: type[nn.Module] = self.module.__dict__["Model"]
        return model

    def make_init_inputs(self) -> list[object]:
        """The arguments of `Model(...)`."""
        return self._call_for_list("get_init_inputs")

    def make_model(self, init_inputs: Sequence[object] | None = None) -> nn.Module:
        """A new reference model; the caller sets the random state."""
        arguments = self.make_init_inputs() if init_inputs is None else list(init_inputs)
        advice = "Model(*get_init_inputs()) must work: compare the two argument lists."
        with _users_code(self.path, "Model(*get_init_inputs())", advice):
            return self.model_class(*arguments)

    def make_inputs(self) -> list[object]:
        """Fresh arguments of `forward`; the caller sets the random state."""
        inputs = self._call_for_list("get_inputs")
        for position, value in enumerate(inputs):
            found = _first_unusable(value, plain=True)
            if found is not None:
                where = _where(self.path, self.module.__dict__["get_inputs"])
                raise UnusableProblem(
                    f"{where}: get_inputs() returns {_kind(found)} at position {position}; "
                    "return tensors or plain numbers there."
                )
        return inputs

    def run(self, model: nn.Module, inputs: Sequence[object]) -> object:
        """`model(*inputs)`, with every output checked to be a tensor."""
        advice = "model(*get_inputs()) must work: compare the sizes in the file with each other."
        with _users_code(self.path, "Model.forward(*get_inputs())", advice):
            outputs: object = model(*inputs)
        found = _first_unusable(outputs, plain=False)
        if found is not None:
            raise UnusableProblem(
                f"{_where(self.path, type(model).forward)}: Model.forward returns {_kind(found)}; "
                "return a tensor, or a tuple, list or dict of tensors."
            )
        return outputs

    def _call_for_list(self, name: str) -> list[object]:
        function: Callable[[], object] = self.module.__dict__[name]
        with _users_code(self.path, f"{name}()", f"call {name}() by hand and repair it."):
            returned = function()
        if not isinstance(returned, (list, tuple)):
            raise UnusableProblem(
                f"{_where(self.path, function)}: {name}() returns "
                f"{_kind(returned)}; return a list, with one item per argument."
            )
        return list(returned)


def load_problem(path: Path | str, overrides: Mapping[str, str] = NO_OVERRIDES) -> Problem:
    """Run the problem file in a module of its own, with `overrides` in place of its constants."""
    path = Path(path)
    source, tree = _parse(path)
    tree = _override(path, tree, overrides)
    module = _execute(path, source, tree)
    _check_names(path, module)
    return Problem(path, source, module, MappingProxyType(dict(overrides)))


def check_overrides(path: Path | str, overrides: Mapping[str, str]) -> None:
    """Raise as `load_problem` would on a file that does not parse or an override it cannot take.

    Runs nothing of the file and needs no torch.
    """
    path = Path(path)
    _override(path, _parse(path)[1], overrides)


def output_tensors(outputs: object) -> list[Tensor]:
    """The tensors of a checked output, in order: nested tuples, lists and dicts are walked."""
    if isinstance(outputs, Mapping):
        return [t for value in outputs.values() for t in output_tensors(value)]
    if isinstance(outputs, (list, tuple)):
        return [t for value in outputs for t in output_tensors(value)]
    tensor: Tensor = outputs  # type: ignore[assignment]
    return [tensor]


def _parse(path: Path) -> tuple[str, ast.Module]:
    try:
        source = importlib.util.decode_source(path.read_bytes())
        return source, ast.parse(source, filename=str(path))
    except OSError as error:
        raise BadUsage(
            f"{path}: cannot read the problem file: {error.strerror}. Give the path of a Python "
            "file that defines Model, get_inputs and get_init_inputs."
        ) from error
    except SyntaxError as error:
        where = f"{path}:{error.lineno}" if error.lineno else str(path)
        raise UnusableProblem(
            f"{where}: not valid Python for this interpreter: {error.msg}. Repair the file; "
            f"`python {path}` shows the place."
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:  # bad encoding, null bytes, nesting
        raise UnusableProblem(
            f"{path}: not a Python text file: {_one_line(error)}. Save it as UTF-8 Python source."
        ) from error


def _override(path: Path, tree: ast.Module, overrides: Mapping[str, str]) -> ast.Module:
    """Assign the new value right after each assignment, so that derived constants follow."""
    values = {name: _literal(name, text) for name, text in overrides.items()}
    constants = {name for statement in tree.body for name in _assigned(statement)}
    hidden = {name for statement in tree.body for name in _assigned_inside(statement)}
    for name in values:
        if name in hidden:
            raise BadUsage(
                f"--set {name}: {path} also assigns {name} inside another statement, so one value "
                f"cannot replace it. Make `{name} = ...` a plain assignment at the top level."
            )
        if name not in constants:
            known = ", ".join(sorted(constants - hidden)) or "none"
            raise BadUsage(
                f"--set {name}: {path} has no constant of that name at its top level. "
                f"It has: {known}."
            )
    body: list[ast.stmt] = []
    for statement in tree.body:
        body.append(statement)
        body += [_assignment(n, values[n], statement) for n in _assigned(statement) if n in values]
    return ast.Module(body=body, type_ignores=tree.type_ignores)


def _literal(name: str, text: str) -> ast.expr:
    try:
        ast.literal_eval(text)
        return ast.parse(text.strip(), mode="eval").body
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise BadUsage(
            f"--set {name}={text}: the value is not a Python literal. Write a number, True, None, "
            'a tuple such as (3, 3), or a string in quotes such as "relu".'
        ) from error


def _assignment(name: str, value: ast.expr, after: ast.stmt) -> ast.stmt:
    assignment = ast.Assign(targets=[ast.Name(name, ast.Store())], value=value)
    for node in ast.walk(assignment):
        ast.copy_location(node, after)
    return ast.fix_missing_locations(assignment)


def _targets(statement: ast.stmt) -> list[ast.expr]:
    if isinstance(statement, ast.Assign):
        return statement.targets
    if isinstance(statement, ast.AugAssign):
        return [statement.target]
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        return [statement.target]
    return []


def _stored(node: ast.AST) -> Iterator[str]:
    for n in ast.walk(node):
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
            yield n.id


def _assigned(statement: ast.stmt) -> list[str]:
    """Names that a top-level assignment binds: `a = 1`, `a, b = 1, 2`, `a: int = 1`, `a += 1`."""
    return [name for target in _targets(statement) for name in _stored(target)]


def _assigned_inside(statement: ast.stmt) -> Iterator[str]:
    """Module-level names bound where an added assignment could not follow: in `if`, `for`, ..."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        for n in ast.walk(statement):
            if isinstance(n, ast.Global):
                yield from n.names
    elif isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        if statement.value is not None:
            yield from _stored(statement.value)
    else:
        yield from _stored(statement)


def _execute(path: Path, source: str, tree: ast.Module) -> ModuleType:
    filename = str(path.absolute())
    stem = re.sub(r"\W", "_", path.stem)
    module = ModuleType(f"_fusewright_problem_{next(_load_number)}_{stem}")
    module.__file__ = filename
    # Known to sys.modules and linecache so that pickle, dataclasses, inspect and tracebacks work.
    sys.modules[module.__name__] = module
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    advice = "A problem file must be importable alone, with the packages installed here."
    try:
        with _users_code(path, "running the file", advice):
            exec(compile(tree, filename, "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        sys.modules.pop(module.__name__, None)
        raise
    return module


def _check_names(path: Path, module: ModuleType) -> None:
    from torch import nn

    missing = [f"{name} ({REQUIRED[name]})" for name in REQUIRED if name not in module.__dict__]
    if missing:
        raise UnusableProblem(f"{path}: the file does not define {', '.join(missing)}. Add it.")
    model = module.__dict__["Model"]
    if not (isinstance(model, type) and issubclass(model, nn.Module)):
        raise UnusableProblem(
            f"{path}: Model is {_kind(model)}; make it a class that derives from torch.nn.Module."
        )
    for name in ("get_inputs", "get_init_inputs"):
        if not callable(module.__dict__[name]):
            raise UnusableProblem(
                f"{path}: {name} is {_kind(module.__dict__[name])}; make it a function without "
                "arguments."
            )


def _first_unusable(value: object, *, plain: bool) -> object | None:
    """The first leaf that is no tensor (nor a plain value, where those may stand), wrapped."""
    from torch import Tensor

    if isinstance(value, Tensor) or (plain and isinstance(value, PLAIN_TYPES)):
        return None
    if isinstance(value, (list, tuple)) and (value or plain):
        leaves: Sequence[object] = value
    elif isinstance(value, Mapping) and value and not plain:
        leaves = tuple(value.values())
    else:
        return _Found(value)
    found = (_first_unusable(leaf, plain=plain) for leaf in leaves)
    return next((f for f in found if f is not None), None)


@dataclass(frozen=True)
class _Found:
    """Keeps a found `None` apart from `nothing found`."""

    value: object


def _kind(value: object) -> str:
    if isinstance(value, _Found):
        value = value.value
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"a value of type {type(value).__name__}"


@contextmanager
def _users_code(path: Path, doing: str, advice: str) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, FusewrightError):
        raise
    # The user's code may raise anything, `sys.exit()` included.
    except BaseException as error:
        line = _line_in(str(path.absolute()), error.__traceback__)
        where = f"{path}:{line}" if line else str(path)
        message = _one_line(error)
        if isinstance(error, MemoryError) or "memory" in message.lower():
            advice = "Make the problem smaller, for instance with --set batch_size=..."
        what = type(error).__name__ + (f": {message}" if message else "")
        raise UnusableProblem(f"{where}: {doing} raised {what.rstrip('.')}. {advice}") from error


def _where(path: Path, function: object) -> str:
    """The file, with the line of the function's head if it stands in that file."""
    code = getattr(function, "__code__", None)
    if code is None or code.co_filename != str(path.absolute()):
        return str(path)
    return f"{path}:{code.co_firstlineno}"


def _line_in(filename: str, traceback: TracebackType | None) -> int | None:
    """The innermost line of `filename` on the traceback: where the user can look."""
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == filename:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _MESSAGE_LIMIT else text[:_MESSAGE_LIMIT] + " ..."
