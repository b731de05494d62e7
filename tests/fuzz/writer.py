"""The text of a random problem while it is written: its values, shapes, what is known of them.

A value is a variable of known shape and of the program's type. Some are *exact*: made from inputs
by operators of which IEEE 754 and PyTorch leave nothing open (sums and products of two numbers,
casts, choices, moves), so that every kernel has to give them to the bit. What is compared to the
bit, asked for its bits or for its place is exact; everything else is judged by its error.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

SIZES = (1, 1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 16, 17, 24, 31, 33)
# Many rows and few, short and long, odd ones too; images; rows that lie across memory.
LARGE = (
    *((1, 1 << 20), (2, 700_001), (4, 1 << 19), (7, 200_000), (16, 131_072), (64, 40_000)),
    *((128, 33_000), (300, 10_000), (257, 4097), (512, 5000), (1024, 1000), (4096, 256)),
    *((100_000, 17), (65_536, 32), (40_001, 64), (16, 64, 1024), (3, 512, 1500), (8, 33, 4096)),
    *((16, 32, 48, 48), (4, 64, 96, 96), (64, 128, 14, 14), (2, 8, 256, 257), (128, 16, 33, 33)),
    *((1_500_000,), (8, 100_000, 3), (1000, 2, 1000), (32, 12, 64, 65)),
)
REFUSED = (RuntimeError, IndexError, ValueError, NotImplementedError, AssertionError, TypeError)
_FACTS = re.compile(r"^FACTS = (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Facts:
    """What a program says about itself, a line of its text.

    kind: of what it is a trial.  exact: which of the tensors that it returns are right to the bit
    only.  float64: whether the model in float64 means the same, and can judge.  refused: what the
    message of a refusal must match, for a kind that may be refused.
    """

    kind: str = "plain"
    exact: tuple[int, ...] = ()
    float64: bool = True
    refused: str = ""

    def __str__(self) -> str:
        return f"FACTS = {(self.kind, self.exact, self.float64, self.refused)!r}"


def facts(text: str) -> Facts:
    """What the text of a program says about itself."""
    found = _FACTS.search(text)
    return Facts(*ast.literal_eval(found[1])) if found else Facts()


@dataclass
class Writer:
    """The program so far.

    shapes: of each variable.  exact: those that are right to the bit only.  answers: results of
    other types, each with its tensors' exactness.  parameters, setup: lines of the constructor.
    top: definitions before the model.  inputs: one text for each of `given`.
    """

    rng: random.Random
    dtype: str
    large: bool = False
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    given: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    exact: set[str] = field(default_factory=set)
    answers: dict[str, tuple[bool, ...]] = field(default_factory=dict)
    top: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    signature: str = ""
    construct: tuple[str, str] = ("self", "[]")
    float64: bool = True
    refused: str = ""

    @property
    def most(self) -> int:
        """How many elements a result may have."""
        return 4_000_000 if self.large else 20_000

    @property
    def ieee(self) -> bool:
        """Whether single operators are exact: results of 16 bits are rounded when stored only."""
        return self.dtype in ("torch.float32", "torch.float64")

    def new(self, text: str, shape: tuple[int, ...], *, exact: bool = False) -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        self.shapes[name] = shape
        if exact:
            self.exact.add(name)
        return name

    def answer(self, text: str, exact: Sequence[bool]) -> None:
        """A result that nothing else reads, of whatever type."""
        name = f"a{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        self.answers[name] = tuple(exact)

    def given_as(self, text: str, shape: tuple[int, ...] | None = None) -> str:
        """One more input. shape: if it is a value of the program's type."""
        name = f"x{len(self.given)}"
        self.given.append(name)
        self.inputs.append(text)
        if shape is not None:
            self.shapes[name] = shape
            self.exact.add(name)
        return name

    def pick(self, *, exact: bool = False) -> str:
        """Mostly a late value, so that chains come about."""
        names = [n for n in self.shapes if not exact or n in self.exact]
        return names[-1] if self.rng.random() < 0.6 else self.rng.choice(names)

    def parameter(self, shape: tuple[int, ...]) -> str:
        name = f"p{len(self.parameters)}"
        dims = ", ".join(map(str, shape))
        comma = "," if len(shape) == 1 else ""
        values = f"torch.randn(({dims}{comma})).to({self.dtype})"
        self.parameters.append(f"self.{name} = nn.Parameter({values})")
        return f"self.{name}"

    def words(self, x: str, *, exact: bool = False) -> dict[str, str]:
        """What lines of tables may name."""
        s = self.shapes[x]
        same = [n for n, t in self.shapes.items() if t == s and (not exact or n in self.exact)]
        words = {"x": x, "y": self.rng.choice(same), "i": "x0", "t": "x0.dtype"}
        words["k"] = str(self.rng.randint(1, 3))
        words["d"] = str(self.rng.randrange(len(s))) if s else "0"
        return words

    def filled(self, text: str, words: Mapping[str, str]) -> tuple[str, object] | None:
        """A line of a table and what PyTorch returns for it, unless it refuses these shapes."""
        s, known = self.shapes[words["x"]], len(self.parameters)
        text = text.format(**words)
        try:
            text = re.sub(r"\bP\(([^()]*)\)", lambda p: self.parameter(_sizes(p[1], s)), text)
            text = re.sub(r"\*?\bs\b(\[[^]]*\])?", lambda p: _number(p.group(), s), text)
            result = eval(text, self._scope())
            found = pytree.tree_leaves(result)
            if all(0 < t.numel() <= self.most and t.dim() <= 5 for t in found):
                return text, result
        except REFUSED:
            pass
        del self.parameters[known:]
        return None

    def _scope(self) -> dict[str, object]:
        """Shapes and types without memory: nothing is computed."""
        dtype = getattr(torch, self.dtype.removeprefix("torch."))

        def empty(shape: tuple[int, ...]) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device="meta")

        class Self:
            pass

        for line in self.parameters:
            name, sizes = re.findall(r"self\.(\w+) = .*?randn\((\(.*?\))\)", line)[0]
            setattr(Self, name, empty(eval(sizes)))
        values = {n: empty(s) for n, s in self.shapes.items()}
        return {"torch": torch, "F": F, "self": Self, **values}

    def takes(self, result: object) -> tuple[int, ...] | None:
        """The shape of what may go on as a value: one tensor of the program's type."""
        if isinstance(result, torch.Tensor) and str(result.dtype) == self.dtype:
            return tuple(result.shape)
        return None


def narrowed(rng: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to `shape`."""
    sizes = tuple(1 if rng.random() < 0.3 else s for s in shape)
    return sizes[rng.choice((0, 0, 1)) :] if len(sizes) > 1 else sizes


def _sizes(text: str, s: tuple[int, ...]) -> tuple[int, ...]:
    sizes: tuple[int, ...] = eval(f"({text},)", {"s": s})
    if size(sizes) > 1 << 22:
        raise ValueError(sizes)
    return sizes


def _number(text: str, s: tuple[int, ...]) -> str:
    if text.startswith("*"):
        return ", ".join(map(str, s))
    return str(eval(text, {"s": s}))


def joined(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    """The broadcast shape, if there is one."""
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True)
    sizes = [(x, y) for x, y in pairs]
    if any(x != y and 1 not in (x, y) for x, y in sizes):
        return None
    return tuple(max(x, y) for x, y in sizes)


def size(shape: Sequence[int]) -> int:
    total = 1
    for s in shape:
        total *= s
    return total
