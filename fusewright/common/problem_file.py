"""Problem file -> Problem: a private module with Model, get_inputs, get_init_inputs, checked.

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
from inspect import Signature
from pathlib import Path
from types import MappingProxyType, ModuleType, TracebackType
from typing import TYPE_CHECKING

from fusewright.common.call_arguments import Inputs, call, read, signature_of, split
from fusewright.common.containers import Unknown, flatten
from fusewright.errors import BadUsage, FusewrightError, UnusableProblem

if TYPE_CHECKING:
    from torch import Tensor, nn

NO_OVERRIDES: Mapping[str, str] = MappingProxyType({})

# What a problem file must define -> what each name is for.
REQUIRED = {
    "Model": "the reference, a subclass of torch.nn.Module",
    "get_inputs": "returns the list of arguments of Model.forward",
}
OPTIONAL = "get_init_inputs"  # without it, the model is Model()
PRIVATE = "_fusewright_problem_"  # how the names of the modules of problem files begin
_MESSAGE_LIMIT = 600
# The errors by which PyTorch says that sizes do not fit each other, and words of their messages.
_SIZE_ERRORS = (RuntimeError, ValueError, IndexError, AssertionError)
_OF_SIZES = re.compile(
    r"(\b|_)(sizes?|shapes?|dims?|dimensions?|dimensional|\dD|channels?|elements(?! cannot))\b"
    r"|out of (range|bounds)",
    re.IGNORECASE,
)
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

    def make_init_inputs(self) -> Inputs:
        """The arguments of `Model(...)`."""
        if OPTIONAL not in self.module.__dict__:
            return Inputs()
        return self._call_for_inputs(OPTIONAL, signature_of(self.model_class, bound=True))

    def make_model(self, init_inputs: Sequence[object] | None = None) -> nn.Module:
        """A new reference model; the caller sets the random state."""
        given = self.make_init_inputs() if init_inputs is None else init_inputs
        known = OPTIONAL in self.module.__dict__
        doing = f"Model({_said(given, 'get_init_inputs()')})" if known else "Model()"
        advice = (
            f"{doing} must work: compare the two argument lists."
            if known
            else "Define get_init_inputs, which returns the list of arguments of Model(...)."
        )
        with _users_code(self.path, doing, advice):
            model: nn.Module = call(self.model_class, given)
        return model

    def make_inputs(self) -> Inputs:
        """Fresh arguments of `forward`; the caller sets the random state."""
        forward = signature_of(self.model_class.forward, bound=False)
        inputs = self._call_for_inputs("get_inputs", forward)
        for position, value in enumerate(inputs):
            try:
                flatten(value, f"position {position}")
            except Unknown as error:
                where = _where(self.path, self.module.__dict__["get_inputs"])
                raise UnusableProblem(
                    f"{where}: get_inputs() returns {error} at {error.path}; return tensors, plain "
                    "numbers or text there, or containers of them: lists, tuples, dicts, named "
                    "tuples, dataclasses."
                ) from error
        return inputs

    def run(self, model: nn.Module, inputs: Sequence[object]) -> object:
        """The model's outputs, checked to be tensors, or containers with tensors."""
        doing = f"Model.forward({_said(inputs, 'get_inputs()')})"
        must = f"{doing.replace('Model.forward', 'model')} must work:"
        advice = f"{must} call it by hand and repair it."
        of_sizes = f"{must} compare the sizes in the file with each other."
        with _users_code(self.path, doing, advice, of_sizes):
            outputs: object = call(model, inputs)
        try:
            wrong = "" if flatten(outputs)[1] else _kind(outputs)
        except Unknown as error:
            wrong = f"{error} at {error.path}" if error.path else str(error)
        if wrong:
            raise UnusableProblem(
                f"{_where(self.path, type(model).forward)}: Model.forward returns {wrong}; "
                "return a tensor, or a container with tensors: a tuple, list, dict, named tuple or "
                "dataclass."
            )
        return outputs

    def _call_for_inputs(self, name: str, signature: Signature | None) -> Inputs:
        function: Callable[[], object] = self.module.__dict__[name]
        with _users_code(self.path, f"{name}()", f"call {name}() by hand and repair it."):
            returned = function()
        try:
            found = read(returned, signature)
        except TypeError as error:
            raise UnusableProblem(
                f"{_where(self.path, function)}: {name}() returns a dict, whose keys are names of "
                f"arguments, and they do not fit: {error}. For a dict as the only argument, return "
                "a list with it."
            ) from error
        if found is None:
            raise UnusableProblem(
                f"{_where(self.path, function)}: {name}() returns "
                f"{_kind(returned)}; return a list, with one item per argument, or a dict of names."
            )
        return found


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
    """The tensors of a checked output, in order: containers are walked."""
    return flatten(outputs)[1]


def _said(inputs: Sequence[object], name: str) -> str:
    """How a call takes what a function returns."""
    positional, named = split(inputs)
    stars = [f"*{name}"] * bool(positional or not named) + [f"**{name}"] * bool(named)
    return stars[0] if len(stars) == 1 else f"*{name}[0], **{name}[1]"


def _parse(path: Path) -> tuple[str, ast.Module]:
    try:
        source = importlib.util.decode_source(path.read_bytes())
        return source, ast.parse(source, filename=str(path))
    except OSError as error:
        raise BadUsage(
            f"{path}: cannot read the problem file: {error.strerror}. Give the path of a Python "
            "file that defines Model and get_inputs."
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
    module = ModuleType(f"{PRIVATE}{next(_load_number)}_{stem}")
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
    for name in ("get_inputs", OPTIONAL):
        if name in module.__dict__ and not callable(module.__dict__[name]):
            raise UnusableProblem(
                f"{path}: {name} is {_kind(module.__dict__[name])}; make it a function without "
                "arguments."
            )


def _kind(value: object) -> str:
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"a value of type {type(value).__name__}"


@contextmanager
def _users_code(path: Path, doing: str, advice: str, of_sizes: str = "") -> Iterator[None]:
    """of_sizes: the advice where an error is about the sizes of tensors, if that is another one."""
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
        elif of_sizes and isinstance(error, _SIZE_ERRORS) and _OF_SIZES.search(message):
            advice = of_sizes
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
