"""The names in the text of one kernel: the model's words for its tensors and values, or numbers.

Names are for people: nothing is decided by them. A pointer ends in `_ptr`; a value has the bare
word. A word that C++, the device library or another name of the kernel has already gets a number.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from itertools import count

from fusewright.codegen.kernel_symbols import is_spoken
from fusewright.ir.graph import Node, base

Word = tuple[str, ...]
LONGEST = 24  # characters of a word, to which a role and a number may add
NOBODY: AbstractSet[str] = frozenset()


@dataclass(frozen=True)
class ValueNames:
    """What the values of a model are called.

    words: of each node, its name or the parts of its path, in letters of ASCII, digits and
    underscores. None: names are numbered, so that equal kernels have equal texts.
    """

    words: Mapping[Node, Word] | None = None


NUMBERED = ValueNames()


class Role(Enum):
    """What a name stands for in a kernel: how it is numbered, and how it is made of a word."""

    OPERAND = ("in{}", "{}_ptr")
    RESULT = ("out{}", "{}_ptr")
    COUNTER = ("count{}", "{}_ptr")
    SCORE_OPERAND = ("s{}", "{}_of_scores")  # beside pointers, in the entry
    MEMBER = ("v{}", "{}")
    READ = ("x{}", "{}")  # an element, or one number per row
    ROW_READ = ("c{}", "{}")
    PLACE = ("o{}", "{}_out")  # where an element of a result goes
    SUM = ("v{}_sum", "{}_sum")  # before it is divided
    KEPT_ROW = ("k{}", "{}_row")
    KEPT_PLACE = ("k{}_", "{}_kept")  # where an element of a kept row goes
    MOMENTS = ("m{}", "{}_moments")
    ONLINE_SOFTMAX = ("m{}", "{}_softmax")
    DIVISOR = ("d{}", "{}_divisor")
    WINDOWS = ("w{}", "{}_windows")


class KernelNames:
    """Hands out the names of one kernel, each once.

    leaves: what the kernel reads; the first read of each has its bare word.  taken: what means
    something else in the text.
    """

    def __init__(
        self, names: ValueNames, leaves: Sequence[Node], taken: AbstractSet[str] = NOBODY
    ) -> None:
        self._words, self._others, self._taken = names.words, taken, set(taken)
        self._given: dict[tuple[str, Hashable], str] = {}
        self._first: dict[int, str] = {}
        if self._words is not None:
            self._paths = [self._words.get(base(leaf), (leaf.op,)) for leaf in leaves]
            self._first = {id(leaf): self._fresh("{}", self._word(leaf)) for leaf in leaves}

    def give(self, role: Role, number: int, of: Node | str, key: Hashable = None) -> str:
        """The name of a value; the same for the same key, which is else the node.

        number: its own among those of its role.  of: the node or the word that it is named after.
        """
        numbered, worded = role.value
        if self._words is None:
            return numbered.format(number)
        known = (worded, (id(of) if isinstance(of, Node) else of) if key is None else key)
        if known not in self._given:
            first = self._first.pop(id(of), "") if role in (Role.READ, Role.ROW_READ) else ""
            word = of if isinstance(of, str) else self._word(of)
            self._given[known] = first or self._fresh(worded, word)
        return self._given[known]

    def _word(self, n: Node) -> str:
        """The node's word, of a path as much of its end as tells it from others here."""
        assert self._words is not None
        n = base(n)
        path = self._words.get(n, (n.op,))
        others = [other for other in self._paths if other != path]
        fewest = next(
            (
                k
                for k in range(1, len(path))
                if path[-k][0].isalpha() and all(path[-k:] != other[-k:] for other in others)
            ),
            len(path),
        )
        return word_of(path[-fewest:])

    def _fresh(self, pattern: str, word: str) -> str:
        """The word as it is, or else with the first number that nothing has."""
        name = pattern.format(word)
        numbers = count(1 if name in self._others or is_spoken(name) else 2)
        while name in self._taken or is_spoken(name):
            name = pattern.format(f"{word}_{next(numbers)}")
        self._taken.add(name)
        return name


def word_of(path: Sequence[str]) -> str:
    """One word: of a long path its end. What are capitals alone may be a macro or a type's."""
    while len(path) > 1 and len("_".join(path)) > LONGEST:
        path = path[1:]
    word = "_".join(path)[:LONGEST].rstrip("_")
    word = word if any(map(str.islower, word)) else word.lower()
    return word if word[:1].isalpha() else f"at_{word}"
