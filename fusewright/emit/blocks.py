"""Statements of a `forward` -> lines, in which equal blocks one behind the other are a loop.

Blocks are equal if their statements are, but for names, and each name is the same in all of them,
or made within the block, or made by the block before, or a tensor of the model whose place among
its tensors moves on evenly. The loop goes over the tensors of the blocks, and what a block makes
for the next has one name. What is deleted, and when, is as without the loop.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fusewright.emit.python_text import NameScope
from fusewright.emit.statement import Statement, deletions

FEWEST, SHORTEST = 3, 4  # blocks, and statements of one: fewer are shown as they are
LONGEST = 400  # statements of a block
# Strings, which hold no variables; and names that are no attributes and no keywords.
_WORDS = re.compile(
    r"\"[^\"]*\"|'[^']*'|^[A-Za-z_]\w*|(?<![\w.])[A-Za-z_]\w*(?!\w|\s*=(?!=))", re.ASCII
)


@dataclass(frozen=True)
class Lines:
    """lines: those of a loop are indented.  outside: the model's tensors that others read."""

    lines: tuple[str, ...]
    outside: frozenset[str]


def with_loops(
    statements: Sequence[Statement],
    result: Statement,
    tensors: Mapping[str, int],
    state: str,
    names: NameScope,
) -> Lines:
    """The statements, and the result behind them. tensors: variables of the model's tensors ->
    their places in `state`.  names: the local names in use."""
    return _Roller(statements, result, tensors, state, names).lines()


@dataclass(frozen=True)
class _Blocks:
    """`count` equal blocks of `size` statements, the first at `start`.

    made: by the place in a block where it is made, what each block calls that.  before: of those
    that the next block reads, by the same place: what the first block reads.  read: the places of
    the model's tensors that the first block reads.  stride: how far they move on.
    """

    start: int
    size: int
    count: int
    made: Mapping[int, tuple[str, ...]]
    before: Mapping[int, str]
    read: Mapping[int, tuple[str, ...]]
    stride: int

    @property
    def end(self) -> int:
        return self.start + self.size * self.count

    @property
    def window(self) -> int:
        """How many of the model's tensors, from the first that a block reads to the last."""
        return max(self.read) - min(self.read) + 1 if self.read else 0


class _Roller:
    """dead: what nobody reads behind each statement.  shapes: the statements but for names."""

    def __init__(
        self,
        statements: Sequence[Statement],
        result: Statement,
        tensors: Mapping[str, int],
        state: str,
        names: NameScope,
    ) -> None:
        self.statements, self.result = statements, result
        self.tensors, self.state, self.names = tensors, state, names
        self.dead = deletions(statements, result)
        variables = [s.reads | {s.defines or ""} for s in statements]
        self.slots = [_slots(s.text, v) for s, v in zip(statements, variables, strict=True)]
        self.shapes = [_shape(s.text, v) for s, v in zip(statements, variables, strict=True)]
        self.defined: dict[str, int] = {}  # by which statement first
        for i, s in enumerate(statements):
            if s.defines:
                self.defined.setdefault(s.defines, i)
        self.last = {name: i for i, s in enumerate([*statements, result]) for name in s.reads}
        self.outside: set[str] = set()
        self.new: dict[str, str] = {}  # what the last block made -> what the loop calls it

    def lines(self) -> Lines:
        lines = [*self._part(0, len(self.statements)), self._text(self.result)]
        return Lines(tuple(lines), frozenset(self.outside))

    def _part(self, start: int, end: int) -> Iterator[str]:
        """The lines for some of the statements."""
        blocks = self._best(start, end)
        if blocks is None:
            for i in range(start, end):
                yield self._text(self.statements[i])
                if i + 1 < len(self.statements):  # leaving the function deletes, too
                    yield from _delete(self.new.get(name, name) for name in self.dead[i])
            return
        yield from self._part(start, blocks.start)
        yield from self._loop(blocks)
        yield from self._part(blocks.end, end)

    def _text(self, statement: Statement) -> str:
        self.outside |= statement.reads & self.tensors.keys()
        return _renamed(statement.text, self.new)

    # -- finding

    def _best(self, start: int, end: int) -> _Blocks | None:
        """The blocks that leave out most statements; of these, those whose tensors are closest."""
        found: list[_Blocks] = []
        for saved, first, size, count in sorted(self._candidates(start, end), reverse=True):
            if found and saved < found[0].size * (found[0].count - 1):
                break
            if blocks := self._blocks(first, size, count):
                found.append(blocks)
        return min(found, key=lambda one: (one.window, one.start), default=None)

    def _candidates(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Blocks with equal shapes: statements left out, first statement, size, count."""
        for size in range(SHORTEST, min(LONGEST, (end - start) // FEWEST) + 1):
            run = 0  # how many from here on are as those a block later
            for i in reversed(range(start, end - size)):
                run = run + 1 if self.shapes[i] == self.shapes[i + size] else 0
                for count in range(FEWEST, run // size + 2):
                    yield size * (count - 1), i, size, count

    def _blocks(self, start: int, size: int, count: int) -> _Blocks | None:
        """The blocks, if their names are those of a loop."""
        firsts = range(start, start + size * count, size)
        made = self._made(firsts, size)
        if any(name not in made for name in self._defined_in(start, start + size * count)):
            return None
        before: dict[int, str] = {}
        read: dict[int, tuple[str, ...]] = {}
        strides: set[int] = set()
        constant: set[str] = set()
        for place in range(size):
            for names in zip(*(self.slots[first + place] for first in firsts), strict=True):
                at = [self.tensors[name] for name in names if name in self.tensors]
                where = [made.get(name) for name in names]
                if len(at) == count and at[0] != at[1]:
                    strides |= {b - a for a, b in itertools.pairwise(at)}
                    read[at[0]] = names
                elif where[1] is None:
                    constant |= {*names}
                    if len({*names}) > 1:
                        return None
                elif not _within(where):
                    made_at = _in_the_block_before(where)
                    if made_at < place or before.setdefault(made_at, names[0]) != names[0]:
                        return None
        if len(strides) > 1 or min(strides, default=1) < 1:
            return None
        if any(name in constant for names in read.values() for name in names):
            return None
        calls: dict[int, list[str]] = {}
        for name, (_, place) in made.items():
            calls.setdefault(place, []).append(name)
        named = {place: tuple(names) for place, names in calls.items()}
        stride = next(iter(strides), 0)
        found = _Blocks(start, size, count, named, before, read, stride)
        return found if self._dies_evenly(found) else None

    def _defined_in(self, start: int, end: int) -> set[str]:
        return {s.defines for s in self.statements[start:end] if s.defines}

    def _made(self, firsts: range, size: int) -> dict[str, tuple[int, int]]:
        """What blocks make -> the number of the block, and the place in it."""
        return {
            name: (k, i - first)
            for k, first in enumerate(firsts)
            for i in range(first, first + size)
            if (name := self.statements[i].defines) and self.defined[name] == i
        }

    def _dies_evenly(self, blocks: _Blocks) -> bool:
        """Whether blocks delete the same, and nobody else reads what any but the last one makes."""
        for place in range(blocks.size):
            every = [self._dying(blocks, k, place) for k in range(blocks.count)]
            own = {(at, ago) for at, ago in every[1] if not ago}
            if any(dying != every[1] for dying in every[2:]) or every[0] != own:
                return False
        return all(
            self.last.get(name, 0) < blocks.start + (k + 2) * blocks.size
            for names in blocks.made.values()
            for k, name in enumerate(names[:-1])
        )

    def _dying(self, blocks: _Blocks, k: int, place: int) -> set[tuple[int, int]]:
        """Of what dies behind a statement of block k, where it is made, and how many blocks ago."""
        dead = self.dead[blocks.start + k * blocks.size + place]
        return {
            (at, k - block)
            for at, names in blocks.made.items()
            for block, name in enumerate(names)
            if name in dead
        }

    # -- writing

    def _loop(self, blocks: _Blocks) -> Iterator[str]:
        """The lines of the loop, and what is done before and behind it."""
        self.names.taken -= {name for names in blocks.made.values() for name in names}
        called = {at: self.names.fresh(_common(names)) for at, names in blocks.made.items()}
        read = {at: self.names.fresh(_common(names)) for at, names in blocks.read.items()}
        inside = {names[1]: read[at] for at, names in blocks.read.items()}
        for at, names in blocks.made.items():
            inside |= {names[0]: called[at], names[1]: called[at]}
        mine = {name for names in blocks.made.values() for name in names}
        firsts = {*blocks.before.values()}
        for at, name in blocks.before.items():
            self.outside |= {name} & self.tensors.keys()
            yield f"{called[at]} = {self.new.get(name, name)}"
        early = {n for i in range(blocks.start, blocks.start + blocks.size) for n in self.dead[i]}
        yield from _delete(self.new.get(name, name) for name in sorted(firsts & early))
        yield from self._head(blocks, read)
        for place in range(blocks.size):
            statement = self.statements[blocks.start + blocks.size + place]
            self.outside |= (statement.reads - inside.keys()) & self.tensors.keys()
            yield f"    {_renamed(statement.text, self.new | inside)}"
            dying = self._dying(blocks, 1, place)
            gone = (called[at] for at, ago in sorted(dying) if not (ago and at == place))
            yield from (f"    {line}" for line in _delete(gone))
        late = {n for i in range(blocks.start, blocks.end) for n in self.dead[i]} - mine
        yield from _delete(self.new.get(n, n) for n in sorted(late - (firsts & early)))
        self.new |= {names[-1]: called[at] for at, names in blocks.made.items()}

    def _head(self, blocks: _Blocks, read: Mapping[int, str]) -> Iterator[str]:
        """What the loop goes over: the part of the model's tensors that each block has."""
        if not read:
            yield f"for {self.names.fresh('block')} in range({blocks.count}):"
            return
        one, first = self.names.fresh("block"), min(read)
        starts = range(first, first + blocks.count * blocks.stride, blocks.stride)
        parts = ", ".join(f"{self.state}[{at}:{at + blocks.window}]" for at in starts)
        yield f"for {one} in [{parts}]:"
        targets = (read.get(at, "_") for at in range(first, first + blocks.window))
        yield f"    [{', '.join(targets)}] = {one}"


def _within(where: Sequence[tuple[int, int] | None]) -> bool:
    """Whether each block reads what it makes itself, all at the same place."""
    return all(found and found == (k, (where[1] or found)[1]) for k, found in enumerate(where))


def _in_the_block_before(where: Sequence[tuple[int, int] | None]) -> int:
    """The place at which each block but the first finds what the one before made; else -1."""
    first, second = where[:2]
    place = second[1] if second else -1
    others = [(k, place) for k in range(len(where) - 1)]
    return place if first is None and [*where[1:]] == others else -1


def _slots(text: str, variables: Collection[str]) -> list[str]:
    """The variables in a text, each as often as it stands there."""
    return [word for word in _WORDS.findall(text) if word in variables]


def _shape(text: str, variables: Collection[str]) -> str:
    """The text without the names of its variables."""
    return _renamed(text, dict.fromkeys(variables, "\0"))


def _renamed(text: str, new: Mapping[str, str]) -> str:
    return _WORDS.sub(lambda found: new.get(found[0], found[0]), text)


def _common(names: Sequence[str]) -> str:
    """What names have in common, word by word, at their beginning and at their end."""
    words = [name.split("_") for name in names]
    least = min(map(len, words))
    head = next((k for k in range(least) if len({one[k] for one in words}) > 1), least)
    left = range(1, least - head + 1)
    tail = next((k - 1 for k in left if len({one[-k] for one in words}) > 1), least - head)
    first = words[0]
    return "_".join([*first[:head], *first[len(first) - tail :]]) or names[0]


def _delete(names: Iterable[str]) -> Iterator[str]:
    if found := ", ".join(names):
        yield f"del {found}"
