"""The rules of algebra, as data: left -> right, for every value, 0, inf and NaN included.

A rule's two sides are functions of the same variables; the left one is also the pattern. Lower-case
`c` matches number constants only and reaches `when` and the right side as a Python number. A rule
is tested on both sides on ordinary and special values, and its right side must cost less.
"""
# Both sides take every variable, by position; one that a side does not use begins with `_`.

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fusewright.ir.builder import TensorExpr, pointwise, where

ALGEBRA, SPELLING = "algebra", "spelling"
NO_ALGEBRA = "no-algebra"  # the restriction that switches these rules off


@dataclass(frozen=True)
class Rule:
    """left -> right, when the constant allows it. `variables` names the arguments of both sides.

    kind: "algebra" does less than the model asks for, and can be switched off; "spelling" does the
    same in a cheaper way.
    """

    name: str
    variables: str
    left: Callable[..., TensorExpr]
    right: Callable[..., TensorExpr]
    when: Callable[[float], bool] = lambda _c: True
    kind: str = ALGEBRA


def _is(number: float) -> Callable[[float], bool]:
    """Equal, and of the same sign where it is 0."""
    return lambda c: c == number and math.copysign(1.0, c) == math.copysign(1.0, number)


def _power_of_two(c: float) -> bool:
    """Dividing by c and multiplying by 1/c round the same real number: both are exact scalings."""
    return (
        c != 0.0 and math.isfinite(c) and abs(math.frexp(c)[0]) == 0.5 and 2**-60 < abs(c) < 2**60
    )


def _abs(x: TensorExpr) -> TensorExpr:
    return pointwise("abs", x)


def _relu(x: TensorExpr) -> TensorExpr:
    return pointwise("relu", x)


def _tanh_softplus(x: TensorExpr) -> TensorExpr:
    return pointwise("tanh", where(x > 20.0, x, pointwise("log1p", pointwise("exp", x))))


def _pow(x: TensorExpr, c: float) -> TensorExpr:
    return pointwise("pow", x, c)


RULES = (
    Rule("neg-neg", "x", lambda x: -(-x), lambda x: x),  # noqa: B002
    Rule("abs-neg", "x", lambda x: _abs(-x), _abs),
    Rule("abs-abs", "x", lambda x: _abs(_abs(x)), _abs),
    Rule("relu-relu", "x", lambda x: _relu(_relu(x)), _relu),
    Rule("relu-of-abs", "x", lambda x: _relu(_abs(x)), _abs),
    Rule("times-one", "xc", lambda x, c: x * c, lambda x, _c: x, _is(1.0)),
    Rule("one-times", "xc", lambda x, c: c * x, lambda x, _c: x, _is(1.0)),
    Rule("over-one", "xc", lambda x, c: x / c, lambda x, _c: x, _is(1.0)),
    Rule("minus-zero", "xc", lambda x, c: x - c, lambda x, _c: x, _is(0.0)),
    Rule("over-power-of-two", "xc", lambda x, c: x / c, lambda x, c: x * (1.0 / c),
         _power_of_two, SPELLING),
    Rule("max-self", "x", lambda x: pointwise("maximum", x, x), lambda x: x),
    Rule("min-self", "x", lambda x: pointwise("minimum", x, x), lambda x: x),
    Rule("max-zero", "xc", lambda x, c: pointwise("maximum", x, c), lambda x, _c: _relu(x),
         _is(0.0), SPELLING),
    Rule("zero-max", "xc", lambda x, c: pointwise("maximum", c, x), lambda x, _c: _relu(x),
         _is(0.0), SPELLING),
    Rule("tanh-softplus", "x", _tanh_softplus, lambda x: pointwise("tanh_softplus", x),
         kind=SPELLING),
    Rule("pow-one", "xc", _pow, lambda x, _c: x, _is(1.0)),
    Rule("pow-two", "xc", _pow, lambda x, _c: x * x, _is(2.0), SPELLING),
    Rule("pow-three", "xc", _pow, lambda x, _c: x * x * x, _is(3.0), SPELLING),
    Rule("pow-minus-one", "xc", _pow, lambda x, _c: pointwise("reciprocal", x), _is(-1.0),
         SPELLING),
    Rule("where-same", "bx", lambda b, x: where(b, x, x), lambda _b, x: x),
)  # fmt: skip


def allowed(restrictions: frozenset[str]) -> tuple[Rule, ...]:
    """The rules that a caller's restrictions leave."""
    return tuple(r for r in RULES if r.kind != ALGEBRA or NO_ALGEBRA not in restrictions)
