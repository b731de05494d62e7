"""The top level of the user's file -> what of it only defines, so that nothing runs the model yet.

Python looks names up when a function is called. So what `forward` calls may stand behind all that
only defines, and has to stand in front of the first statement that may run the model while the file
is imported. The rule is one of statements and errs on the safe side: these only define,

    imports, `pass`, documentation;
    functions without decorators, whose defaults and annotations are plain;
    classes without decorators and keywords, with such statements inside; a method may be called
    `@staticmethod`, `@classmethod` or `@property`;
    assignments of plain values to names.

A plain value is made of constants, names, containers, operators, attributes and items, without any
call. At an operator, a dot or a bracket stands no name that a class, a function or a statement of
another kind gives in this file, since that might decide what happens there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

METHODS = {"staticmethod", "classmethod", "property"}  # decorators that call nothing
# What happens when a class is made can be the user's own: hooks, and classes of classes.
HOOKS = {"__init_subclass__", "__set_name__"}
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
CONTAINERS = (ast.Tuple, ast.List, ast.Set, ast.Dict, ast.Starred)
OPERATORS = (
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.JoinedStr),
    *(ast.FormattedValue, ast.Attribute, ast.Subscript, ast.Slice),
)
MARKS = (ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context)  # of these, no values


def first_that_runs(statements: Sequence[ast.stmt], model: ast.ClassDef) -> ast.stmt | None:
    """The first statement from `model` on that may run it; None where all of them only define."""
    made: set[str] = set()
    hooked = any(_has_hooks(s) for s in statements)
    behind = False
    for statement in statements:
        behind = behind or statement is model
        defines = _only_defines(statement, made) or (statement is model and not _marked(model))
        if behind and (not defines or (hooked and isinstance(statement, ast.ClassDef))):
            return statement
        made |= _made(statement, defines, made)
    return None


def _has_hooks(statement: ast.stmt) -> bool:
    """Whether it may decide what happens where a class is made."""
    return any(
        (isinstance(n, ast.FunctionDef) and n.name in HOOKS)
        or (isinstance(n, ast.ClassDef) and bool(n.keywords))
        for n in ast.walk(statement)
    )


def _marked(model: ast.ClassDef) -> bool:
    """Whether somebody else is given the class. What its own statements call does not have it."""
    return bool(model.decorator_list or model.keywords)


def _made(statement: ast.stmt, defines: bool, made: set[str]) -> set[str]:
    """The names that it gives to what may have operators of the user's own."""
    if isinstance(statement, DEFINITIONS):
        return {statement.name}
    inside = [*ast.walk(statement)]
    names = [n for n in inside if isinstance(n, ast.Name)]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return set()
    if defines and not any(n.id in made for n in names):
        return set()
    stored = {n.id for n in names if isinstance(n.ctx, ast.Store)}
    return stored | {n.name for n in inside if isinstance(n, DEFINITIONS)}


def _only_defines(statement: ast.stmt, made: set[str]) -> bool:
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Expr(ast.Constant()):
            return True
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return not statement.decorator_list and _has_plain_signature(statement, made)
        case ast.ClassDef(bases=bases, body=body):
            inside = (_only_defines(_undecorated(n), made) for n in body)
            return not _marked(statement) and _are_plain(bases, set()) and all(inside)
        case ast.Assign(targets=targets, value=value):
            return all(map(_are_names, targets)) and _is_plain(value, made)
        case ast.AnnAssign(target=ast.Name(), annotation=kind, value=value):
            return _are_plain([kind, value or kind], made)
        case ast.AugAssign(target=ast.Name(id=name), value=value):
            return name not in made and _is_plain(value, made, behind_operator=True)
    return False


def _undecorated(n: ast.stmt) -> ast.stmt:
    """A method without a decorator that calls nothing."""
    if isinstance(n, ast.FunctionDef):
        names = [d.id for d in n.decorator_list if isinstance(d, ast.Name)]
        if len(names) == len(n.decorator_list) and METHODS.issuperset(names):
            return ast.FunctionDef(n.name, n.args, n.body, [], n.returns)
    return n


def _has_plain_signature(n: ast.FunctionDef | ast.AsyncFunctionDef, made: set[str]) -> bool:
    a = n.args
    every = [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]
    kinds = [n.returns, *(one.annotation for one in every if one is not None)]
    values = [*a.defaults, *a.kw_defaults, *kinds]
    return _are_plain((v for v in values if v is not None), made)


def _are_names(target: ast.expr) -> bool:
    if isinstance(target, ast.Tuple | ast.List):
        return all(map(_are_names, target.elts))
    return isinstance(target, ast.Name)


def _are_plain(values: Iterable[ast.expr], made: set[str]) -> bool:
    return all(_is_plain(value, made) for value in values)


def _is_plain(value: ast.AST, made: set[str], behind_operator: bool = False) -> bool:
    """behind_operator: whether the value's class decides what happens to it."""
    if isinstance(value, ast.Name):
        return not (behind_operator and value.id in made)
    if isinstance(value, ast.Constant):
        return True
    if isinstance(value, ast.Lambda):
        return _are_plain((v for v in (*value.args.defaults, *value.args.kw_defaults) if v), made)
    behind = behind_operator or isinstance(value, OPERATORS)
    inside = (n for n in ast.iter_child_nodes(value) if not isinstance(n, MARKS))
    known = isinstance(value, CONTAINERS + OPERATORS)
    return known and all(_is_plain(n, made, behind) for n in inside)
