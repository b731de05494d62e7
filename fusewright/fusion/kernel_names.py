"""Kernels of a plan -> their names: the module that asks for them, then what they calculate.

`fc2_bias_relu` is the kernel of `self.fc2` and of what follows it; where a function of PyTorch is
called outside of modules, its kernel has the names of functions only, as `add_softmax`. Names are
for people: nothing is decided by them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import reduce
from itertools import count, dropwhile, takewhile

from fusewright.ir.graph import Graph, Node, base, origin_of
from fusewright.ir.origin import Origin, calls_of_modules

SEVERAL_CALLS = "attention"  # the contraction that may be written with several
Words = tuple[str, ...]
LONGEST = 40  # characters of a name, but for the number that keeps it apart from others


def _only_itself(name: str) -> frozenset[str]:
    return frozenset({name})


def _nothing(_: str) -> bool:
    return False


@dataclass(frozen=True)
class NameRules:
    """What a name of a kernel has to keep apart from in the texts that it stands in.

    symbols: all names that a kernel of this name has there.  is_reserved: whether a name means
    something else there.  taken: the symbols of kernels that are named already.
    """

    symbols: Callable[[str], frozenset[str]] = _only_itself
    is_reserved: Callable[[str], bool] = _nothing
    taken: frozenset[str] = frozenset()


def kernel_names(
    kernels: Iterable[tuple[Sequence[Node], Node | None]], graph: Graph, rules: NameRules
) -> list[str]:
    """A name for each kernel. kernels: the members of each, and its anchor."""
    calls = calls_of_modules(graph.origins.values())
    unique = _Unique(rules)
    return [unique.name(_name(members, anchor, graph, calls)) for members, anchor in kernels]


def shared_names(groups: Sequence[Sequence[str]], rules: NameRules) -> list[str]:
    """A name for each function that the kernels of a group share: what theirs have in common, so of
    paths all but the numbers that differ; and a kernel that shares with none keeps its own.

    groups: the names of the kernels of each.
    """
    alone = {name for group in groups if len(group) == 1 for name in group}
    taken = rules.taken.union(*map(rules.symbols, alone))
    unique = _Unique(replace(rules, taken=taken))
    return [group[0] if len(group) == 1 else unique.name(common_name(group)) for group in groups]


def common_name(names: Sequence[str]) -> str:
    """The words that names have in common, in order: `layers_fc_gelu` of
    `layers_0_fc1_gelu` and `layers_1_fc2_gelu`. The first name, where that is nothing."""
    words = reduce(_common_words, (tuple(name.split("_")) for name in names))
    kept = tuple(dropwhile(str.isdecimal, words))
    return "_".join(kept) or names[0]


def _common_words(one: Words, other: Words) -> Words:
    """The longest sequence of words that both have; of two that differ in a number, the rest."""
    longest: dict[tuple[int, int], Words] = {}
    for j in reversed(range(len(one))):
        for k in reversed(range(len(other))):
            found = [longest.get((j + 1, k), ()), longest.get((j, k + 1), ())]
            if word := _common_word(one[j], other[k]):
                found.append((word, *longest.get((j + 1, k + 1), ())))
            longest[j, k] = max(found, key=_letters_and_words)
    return longest.get((0, 0), ())


def _letters_and_words(words: Words) -> tuple[int, int]:
    """How many words of letters there are, which tell more than numbers, and how many at all."""
    return sum(not word.isdecimal() for word in words), len(words)


def _common_word(one: str, other: str) -> str:
    if one == other:
        return one
    stem = one.rstrip("0123456789")
    return stem if stem == other.rstrip("0123456789") else ""


class _Unique:
    """Hands out names that are kept apart from each other and from what rules say."""

    def __init__(self, rules: NameRules) -> None:
        self.rules, self.taken = rules, set(rules.taken)
        self.numbers: dict[str, Iterator[int]] = {}

    def name(self, wanted: str) -> str:
        wanted = f"{wanted}_fused" if self._means_more(wanted) else wanted
        name, after = wanted, self.numbers.setdefault(wanted, count(2))
        while self.rules.symbols(name) & self.taken or self._means_more(name):
            name = f"{wanted}_{next(after)}"
        self.taken |= self.rules.symbols(name)
        return name

    def _means_more(self, name: str) -> bool:
        return any(map(self.rules.is_reserved, self.rules.symbols(name)))


def _name(
    members: Sequence[Node],
    anchor: Node | None,
    graph: Graph,
    calls: Mapping[str, AbstractSet[str]],
) -> str:
    """The name of one kernel, as long as no other has it. calls: what each module calls."""
    own = origin_of(graph, anchor) if anchor else None
    lead = own or _lead(members, graph)
    words = list(dict.fromkeys(_words(members, anchor, graph)))
    if own and own.module and len(calls[own.module]) == 1:  # the module is that call
        words = [word for word in words if word != own.call]
    path = [identifier(part) for part in lead.module.split(".")] if lead else []
    path = [part for part in path if part]
    if lead and path and words[:1] == [lead.call] and _parts(path[-1]) & _parts(lead.call):
        words = words[1:]  # `softmax` is no `softmax_softmax`
    return _joined(path, [identifier(word) for word in words] or ["fused"] * (not path))


def _lead(members: Sequence[Node], graph: Graph) -> Origin | None:
    """Where a kernel without a contraction comes from: where its first rows are reduced or scanned,
    or else its first operator, of those that a module asks for."""
    rows = [m for m in members if m.row.kind in ("reduction", "scan")]
    found = (origin_of(graph, m) for m in (*rows, *members))
    return next((origin for origin in found if origin and origin.module), None)


def _words(members: Sequence[Node], anchor: Node | None, graph: Graph) -> Iterator[str]:
    """What the kernel calculates, in order, in the words of who wrote the model."""
    own = origin_of(graph, anchor) if anchor else None
    for m in members:
        origin = origin_of(graph, m)
        if m is not anchor and origin and origin == own:  # the rest of the same call
            yield from ["bias"] * _reads_tensor(m)
        elif not (m.args and all(a.op == "constant" for a in m.args)):
            yield origin.call if origin and m.op != SEVERAL_CALLS else m.op


def _reads_tensor(m: Node) -> bool:
    """Whether an operator reads a tensor that nothing computes."""
    read = [base(a) for a in m.args]
    return any(a.row.kind == "leaf" and a.op != "constant" for a in read)


def _parts(name: str) -> set[str]:
    """The words of a name without their numbers: those of `conv2d` and `conv1` are the same."""
    return {"".join(takewhile(str.isalpha, part)).lower() for part in name.split("_")} - {""}


def identifier(text: str) -> str:
    """The text as part of a name in C++: letters without accents, digits, single underscores."""
    letters = (c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in letters)
    return "_".join(part for part in plain.split("_") if part)


def _joined(path: Sequence[str], words: Sequence[str]) -> str:
    """One name: of a long path its end, which tells more, and of the words as many as fit."""
    while len(path) > 1 and len("_".join(path)) > LONGEST:
        path = path[1:]
    if path and not path[0][:1].isalpha():  # as of layers that are counted
        path = ["at", *path]
    name = "_".join(path)[:LONGEST].rstrip("_")
    for word in words:
        longer = f"{name}_{word}" if name else word[:LONGEST]
        if len(longer) > LONGEST:
            break
        name = longer
    return name
