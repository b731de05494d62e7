"""The rules of algebra, as data: left -> right, for every value, 0, inf and NaN included.

A rule's two sides are functions of the same variables; the left one is also the pattern. Lower-case
`c` matches number constants only and reaches `when` and the right side as a Python number. Each rule
is tested on both sides on ordinary and special values, and its right side must cost less.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fusewright.formula import Value, apply, where


@dataclass(frozen=True)
class Rule:
    """left -> right, when the constant allows it. `variables` names the arguments of both sides."""

    name: str
    variables: str
    left: Callable[..., Value]
    right: Callable[..., Value]
    when: Callable[[float], bool] = lambda c: True


def _power_of_two(c: float) -> bool:
    """Dividing by c and multiplying by 1/c round the same real number: both are exact scalings."""
    return c != 0.0 and math.isfinite(c) and abs(math.frexp(c)[0]) == 0.5 and 2**-60 < abs(c) < 2**60


RULES = (
    Rule("neg-neg", "x", lambda x: -(-x), lambda x: x),  # noqa: B002
    Rule("abs-neg", "x", lambda x: apply("abs", -x), lambda x: apply("abs", x)),
    Rule("abs-abs", "x", lambda x: apply("abs", apply("abs", x)), lambda x: apply("abs", x)),
    Rule("relu-relu", "x", lambda x: apply("relu", apply("relu", x)), lambda x: apply("relu", x)),
    Rule("relu-of-abs", "x", lambda x: apply("relu", apply("abs", x)), lambda x: apply("abs", x)),
    Rule("times-one", "xc", lambda x, c: x * c, lambda x, c: x, lambda c: c == 1),
    Rule("one-times", "xc", lambda x, c: c * x, lambda x, c: x, lambda c: c == 1),
    Rule("over-one", "xc", lambda x, c: x / c, lambda x, c: x, lambda c: c == 1),
    Rule("minus-zero", "xc", lambda x, c: x - c, lambda x, c: x, lambda c: str(c) in ("0", "0.0")),
    Rule("over-power-of-two", "xc", lambda x, c: x / c, lambda x, c: x * (1.0 / c), _power_of_two),
    Rule("max-self", "x", lambda x: apply("maximum", x, x), lambda x: x),
    Rule("min-self", "x", lambda x: apply("minimum", x, x), lambda x: x),
    Rule("max-zero", "xc", lambda x, c: apply("maximum", x, c), lambda x, c: apply("relu", x),
         lambda c: str(c) == "0.0"),
    Rule("pow-one", "xc", lambda x, c: apply("pow", x, c), lambda x, c: x, lambda c: c == 1),
    Rule("pow-two", "xc", lambda x, c: apply("pow", x, c), lambda x, c: x * x, lambda c: c == 2),
    Rule("pow-three", "xc", lambda x, c: apply("pow", x, c), lambda x, c: x * x * x, lambda c: c == 3),
    Rule("pow-minus-one", "xc", lambda x, c: apply("pow", x, c), lambda x, c: apply("reciprocal", x),
         lambda c: c == -1),
    Rule("where-same", "bx", lambda b, x: where(b, x, x), lambda b, x: x),
)  # fmt: skip
