"""Generated Python as records: what a text reads, defines and calls is known when it is written.

Nothing is looked for in a text afterwards: which variable nobody reads any more, and which snippets
the emitted file needs, follows from these records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fusewright.emit.runtime_snippets import Snippet


@dataclass(frozen=True)
class Expression:
    """One value. reads: the variables of tensors in it.  snippets: what it calls of those."""

    text: str
    reads: frozenset[str] = frozenset()
    snippets: frozenset[Snippet] = frozenset()


@dataclass(frozen=True)
class Statement:
    """One line. defines: the variable of a tensor that it makes, if any.  The rest: as above."""

    text: str
    reads: frozenset[str] = frozenset()
    snippets: frozenset[Snippet] = frozenset()
    defines: str | None = None


def variable(name: str) -> Expression:
    """A variable that holds a tensor."""
    return Expression(name, frozenset({name}))


def expression(
    text: str, parts: Iterable[Expression] = (), snippets: Iterable[Snippet] = ()
) -> Expression:
    """A text that is made of `parts`, and itself calls `snippets`."""
    reads, called = frozenset[str](), frozenset(snippets)
    for part in parts:
        reads, called = reads | part.reads, called | part.snippets
    return Expression(text, reads, called)


def assign(name: str, value: Expression) -> Statement:
    """`name` becomes a variable that holds the value."""
    return Statement(f"{name} = {value.text}", value.reads, value.snippets, name)


def evaluate(value: Expression) -> Statement:
    """The value is worked out for what that does."""
    return Statement(value.text, value.reads, value.snippets)


def deletions(statements: Sequence[Statement], result: Statement) -> list[list[str]]:
    """For each of the statements but the result, the variables that nobody reads behind it."""
    defined = list(dict.fromkeys(s.defines for s in statements if s.defines))
    last = dict.fromkeys(defined, 0)
    for i, statement in enumerate([*statements, result]):
        last |= {name: i for name in statement.reads | {statement.defines} if name in last}
    found: list[list[str]] = [[] for _ in [*statements, result]]
    for name in defined:
        found[last[name]].append(name)
    return found[:-1]
