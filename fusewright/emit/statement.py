"""Generated Python as records: what a text reads, defines and calls is known when it is written.

Nothing is looked for in a text afterwards: which variable nobody reads any more, and which snippets
the emitted file needs, follows from these records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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


def with_deletes(statements: Sequence[Statement], result: Statement) -> Iterator[str]:
    """The statements but the result, each followed by the deletion of what nobody reads any more.

    Behind the last one nothing is deleted: leaving the function does that.
    """
    defined = list(dict.fromkeys(s.defines for s in statements if s.defines))
    last = dict.fromkeys(defined, 0)
    for i, statement in enumerate([*statements, result]):
        used = statement.reads | {statement.defines}
        last |= {name: i for name in defined if name in used}
    for i, statement in enumerate(statements):
        yield statement.text
        dead = [name for name in defined if last[name] == i]
        if dead and i + 1 < len(statements):
            yield f"del {', '.join(dead)}"
