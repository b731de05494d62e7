"""einsum and tensordot of two tensors -> the two factors of a matrix product, as views.

A letter is a batch (in both factors and the result), a row or a column (in one factor and the
result), or summed (in both factors only). It is a matrix product if one letter is summed, one is
the column and stands last in the result, and batches stand before the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.ir.builder import TensorExpr, permute
from fusewright.ir.graph import Node

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
Factors = tuple[Node, Node]


def einsum(equation: str, tensors: Sequence[Node]) -> Factors | None:
    """[..., rows, k] and [..., columns, k]; None if it is no matrix product as it stands."""
    given, _, result = equation.replace(" ", "").partition("->")
    names = given.split(",")
    if not result or len(names) != 2 or len(tensors) != 2:
        return None
    (left, right), (x, y) = names, tensors
    return _factors(x, left, y, right, result) or _factors(y, right, x, left, result)


def tensordot(x: Node, y: Node, along: Sequence[int], with_: Sequence[int]) -> Factors | None:
    """The same of the dimensions `along` of x and `with_` of y."""
    left = LETTERS[: len(x.shape)]
    pairs = {b % len(y.shape): left[a] for a, b in zip(along, with_, strict=True)}
    fresh = iter(LETTERS[len(left) :])
    right = "".join(pairs.get(d) or next(fresh) for d in range(len(y.shape)))
    result = [c for c in left + right if not (c in left and c in right)]
    return einsum(f"{left},{right}->{''.join(result)}", (x, y))


def _factors(x: Node, left: str, y: Node, right: str, result: str) -> Factors | None:
    """The same with the columns in `right`, the result's last letter."""
    words = (left, right, result)
    if any(len(set(word)) < len(word) or not word.isalpha() for word in words):
        return None
    summed = [c for c in left if c in right and c not in result]
    batches = [c for c in result if c in left and c in right]
    columns = [c for c in right if c not in left]
    rows = [c for c in result if c in left and c not in batches]
    if len(summed) != 1 or len(columns) != 1 or not rows or (batches and len(rows) > 1):
        return None
    if [*batches, *rows, *columns] != list(result) or len(left) != len(result):
        return None
    return _turned(x, left, [*batches, *rows, *summed]), _turned(
        y, right, batches + columns + summed
    )


def _turned(n: Node, letters: str, wanted: Sequence[str]) -> Node:
    return permute(TensorExpr(n), tuple(letters.index(c) for c in wanted)).node
