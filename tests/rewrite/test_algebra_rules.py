"""Every rule: both sides have the same value, on special values too; it fires; the cost falls."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch

from fusewright.ir.builder import TensorExpr, pointwise
from fusewright.ir.graph import Graph, Node, node, toposort
from fusewright.ir.interpreter import interpret
from fusewright.rewrite.algebra_rules import ALGEBRA, NO_ALGEBRA, RULES, SPELLING, Rule, allowed
from fusewright.rewrite.simplify import cost, rewrite

INF, NAN = math.inf, math.nan
# Ordinary numbers, both zeros, infinities, NaN, the largest and the smallest, and subnormal ones.
GRID = [0.0, -0.0, 1.0, -1.0, 0.1, -2.5, 3.0, 1e10, -1e-10, INF, -INF, NAN, 1.7e308, 5e-324, 1e-310]
NUMBERS = [*GRID, 2.0, 0.5, -4.0, 1024.0, 7.0, 0.3, 2.0**-59, 2.0**61]


def variables(rule: Rule, dtype: torch.dtype) -> dict[str, TensorExpr]:
    names = [v for v in rule.variables if v != "c"]
    return {
        v: TensorExpr(
            node("input", position=k, shape=(len(GRID),), dtype=torch.bool if v == "b" else dtype)
        )
        for k, v in enumerate(names)
    }


def grid(name: str, dtype: torch.dtype) -> torch.Tensor:
    values = torch.tensor(GRID, dtype=dtype)
    return torch.arange(len(GRID)) % 2 == 0 if name == "b" else values


def sides(
    rule: Rule, c: float, dtype: torch.dtype
) -> tuple[Node, Node, list[torch.Tensor], list[Node]]:
    known = variables(rule, dtype)
    arguments = [known.get(v, c) for v in rule.variables]
    tensors = [grid(v, dtype) for v in known]
    return (
        rule.left(*arguments).node,
        rule.right(*arguments).node,
        tensors,
        [v.node for v in known.values()],
    )


def numbers(rule: Rule) -> list[float]:
    return [c for c in NUMBERS if rule.when(c)] if "c" in rule.variables else [0.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
def test_both_sides_are_equal(rule: Rule, dtype: torch.dtype) -> None:
    for c in numbers(rule):
        left, right, tensors, leaves = sides(rule, c, dtype)
        graph = Graph(tuple(leaves), (left, right))
        a, b = interpret(graph, tensors, {})
        # a power written as a product may differ in the last place
        close = torch.allclose(a, b, rtol=2 * torch.finfo(dtype).eps, atol=0.0, equal_nan=True)
        assert close, f"{rule.name} with c = {c}"


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
def test_the_right_side_costs_less(rule: Rule) -> None:
    for c in numbers(rule):
        left, right, _, _ = sides(rule, c, torch.float32)
        assert cost(right) < cost(left)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
def test_it_fires(rule: Rule) -> None:
    left, right, _, leaves = sides(rule, numbers(rule)[-1], torch.float32)
    result = pointwise("exp", TensorExpr(left)).node
    graph, used = rewrite(Graph(tuple(leaves), (result,)))
    assert rule.name in used
    assert cost(graph.outputs[0]) <= cost(pointwise("exp", TensorExpr(right)).node)


@pytest.mark.parametrize(
    ("name", "c"), [("times-one", 1.0 + 1e-15), ("minus-zero", -0.0), ("pow-two", 2.5)]
)
def test_it_does_not_fire_for_another_number(name: str, c: float) -> None:
    (rule,) = (r for r in RULES if r.name == name)
    assert not rule.when(c)


def test_a_rule_that_is_false_at_zero_would_be_caught() -> None:
    """x * (y / x) -> y holds for most numbers, and for neither 0 nor infinity."""
    x, y = (
        TensorExpr(node("input", position=k, shape=(len(GRID) ** 2,), dtype=torch.float64))
        for k in (0, 1)
    )
    pairs = torch.tensor(list(itertools.product(GRID, GRID)), dtype=torch.float64)
    graph = Graph((x.node, y.node), ((x * (y / x)).node, y.node))
    a, b = interpret(graph, [pairs[:, 0], pairs[:, 1]], {})
    assert not torch.allclose(a.nan_to_num(123.0), b.nan_to_num(123.0))


def test_algebra_can_be_switched_off() -> None:
    """What is left does the same work, spelled otherwise: as many operators, none left out."""
    assert allowed(frozenset()) == RULES
    left = allowed(frozenset({NO_ALGEBRA}))
    assert {rule.kind for rule in left} == {SPELLING}
    assert {rule.kind for rule in RULES} == {ALGEBRA, SPELLING}
    x = TensorExpr(node("input", position=0, shape=(4,), dtype=torch.float32))
    result = (pointwise("relu", pointwise("relu", x)) / 4.0).node
    _, used = rewrite(Graph((x.node,), (result,)), left)
    assert used == ("over-power-of-two",)
    _, used = rewrite(Graph((x.node,), (result,)), allowed(frozenset()))
    assert sorted(used) == ["over-power-of-two", "relu-relu"]


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
def test_algebra_leaves_something_out(rule: Rule) -> None:
    """The kind of a rule is what it does: algebra has fewer operators, spelling has others."""
    left, right, _, _ = sides(rule, numbers(rule)[-1], torch.float32)
    before, after = (Counter(n.op for n in toposort([side])) for side in (left, right))
    assert (after - before == Counter()) == (rule.kind == ALGEBRA)
