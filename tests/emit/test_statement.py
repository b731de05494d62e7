"""Statements as records: what is deleted, and when, follows from what they read and define."""

from __future__ import annotations

import ast

import pytest

from fusewright.emit.blocks import with_loops
from fusewright.emit.dynamo_fast_path import CPU_MEMORY, CUDA_MEMORY
from fusewright.emit.python_text import NameScope
from fusewright.emit.runtime_snippets import SNIPPETS, Snippet
from fusewright.emit.statement import (
    Expression,
    Statement,
    assign,
    evaluate,
    expression,
    variable,
)

A, B = variable("a"), variable("b")


def call(*given: Expression) -> Expression:
    return expression(f"f({', '.join(g.text for g in given)})", given)


def lines(*statements: Statement, result: Expression) -> list[str]:
    return [*with_loops(statements, evaluate(result), {}, "", NameScope()).lines[:-1]]


def test_a_variable_goes_behind_its_last_reader() -> None:
    found = lines(
        assign("a", call()), assign("b", call(A)), assign("c", call(B)), result=variable("c")
    )
    assert found == ["a = f()", "b = f(a)", "del a", "c = f(b)"]


def test_what_the_result_holds_stays() -> None:
    found = lines(assign("a", call()), assign("b", call()), evaluate(call(B)), result=call(A, B))
    assert found == ["a = f()", "b = f()", "f(b)"]


def test_what_nobody_reads_goes_at_once() -> None:
    found = lines(assign("a", call()), assign("b", call()), result=B)
    assert found == ["a = f()", "del a", "b = f()"]


def test_a_variable_that_is_made_again_goes_once() -> None:
    again = [assign("a", call()), assign("a", call(A)), evaluate(call(A)), evaluate(call())]
    assert lines(*again, result=call()) == ["a = f()", "a = f(a)", "f(a)", "del a", "f()"]


def test_several_go_together_in_the_order_in_which_they_were_made() -> None:
    both = [assign("b", call()), assign("a", call()), evaluate(call(A, B)), evaluate(call())]
    assert lines(*both, result=call())[-2:] == ["del b, a", "f()"]


def test_names_in_text_are_no_variables() -> None:
    """The name of a kernel or of a keyword may be that of a variable."""
    named = expression('run["a"](a=1)')
    found = lines(assign("a", call()), evaluate(named), evaluate(call()), result=call())
    assert found == ["a = f()", "del a", 'run["a"](a=1)', "f()"]


def test_an_expression_reads_and_calls_what_its_parts_do() -> None:
    dense = expression(f"{Snippet.WITH_MEMORY_ORDER}(a)", [A], [Snippet.WITH_MEMORY_ORDER])
    whole = expression(f"{Snippet.ALIGNED}({dense.text}, b)", [dense, B], [Snippet.ALIGNED])
    assert whole.reads == {"a", "b"}
    assert assign("c", whole).snippets == {Snippet.WITH_MEMORY_ORDER, Snippet.ALIGNED}


@pytest.mark.parametrize("snippet", Snippet)
def test_a_snippet_is_named_after_its_function(snippet: Snippet) -> None:
    texts = [CPU_MEMORY, CUDA_MEMORY] if snippet is Snippet.EMPTY else [SNIPPETS[snippet]]
    for text in texts:
        body = ast.parse(text).body
        names = {n.name for n in body if isinstance(n, ast.FunctionDef)}
        stored = (t for n in body if isinstance(n, ast.Assign) for t in n.targets)
        assert snippet in names | {t.id for t in stored if isinstance(t, ast.Name)}
