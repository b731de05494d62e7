"""A sample of mutants must be refuted here; bench/mutation.py tries all of them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.corpus import Bench, Entry, options_for
from tests.support.mutation import (
    SUBJECTS,
    Mutant,
    Result,
    all_mutants,
    mutants,
    regions,
    study,
    subjects,
)
from tests.support.mutation_operators import OPERATORS

# One per family of mistakes, spread over the subjects.
SAMPLE = (
    "normalised_gate-drop-addend-0",
    "linear_relu-stale-weight-0",
    "softmax_rows-kept-output-0",
    "linear_relu-nan-to-zero-0",
    "mean_and_max-divisor-0",
    "mean_and_max-max-ignores-nan-0",
    "normalised_gate-half-intermediate-0",
    "normalised_gate-variance-divisor-0",
    "normalised_gate-no-type-guard-0",
    "softmax_rows-drop-subtrahend-0",
    "softmax_rows-no-contiguity-guard-0",
    "channel_gate-lost-lane-0",
    "channel_gate-lost-rest-0",
)


@pytest.fixture(scope="module")
def every() -> dict[str, Mutant]:
    return {mutant.name: mutant for mutant in all_mutants()}


@pytest.fixture(scope="module")
def fates(every: dict[str, Mutant], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    folder = tmp_path_factory.mktemp("mutants")
    return {r.mutant.name: r for r in study([every[name] for name in SAMPLE], folder)}


@pytest.mark.parametrize("name", SAMPLE)
def test_mutant_is_refuted(name: str, fates: dict[str, Result]) -> None:
    result = fates[name]
    where = f"{result.mutant.subject.name}:{result.mutant.line}: {result.mutant.operator.mistake}"
    assert result.fate == "killed", f"{where}: {result.fate}. {result.outcome}"


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    bench = Bench(map(_entry, SUBJECTS), options_for)
    yield bench
    bench.close()


def _entry(subject: str) -> Entry:
    path, problem = next(pair for pair in subjects() if pair[0].stem == subject)
    return Entry(path, problem, catalogue="", check="", notes=(), needs=())


@pytest.mark.parametrize("subject", SUBJECTS)
def test_subject_without_a_mistake_is_verified(subject: str, bench: Bench) -> None:
    outcome = bench.outcome(_entry(subject))
    assert outcome.verdict == "verified", str(outcome)


def test_operators() -> None:
    assert len(OPERATORS) >= 25
    assert len({operator.name for operator in OPERATORS}) == len(OPERATORS)
    for operator in OPERATORS:
        re.compile(operator.pattern)


def test_every_operator_finds_a_place(every: dict[str, Mutant]) -> None:
    used = {mutant.operator.name for mutant in every.values()}
    assert used == {operator.name for operator in OPERATORS}


def test_a_mutant_differs_in_one_place(every: dict[str, Mutant]) -> None:
    for mutant in every.values():
        source = mutant.subject.read_text(encoding="utf-8")
        same = _common_prefix(source, mutant.text) + _common_prefix(source[::-1], mutant.text[::-1])
        assert mutant.text != source
        assert same >= min(len(source), len(mutant.text)) - 300, mutant.name


def test_regions_of_a_file_without_kernels(tmp_path: Path) -> None:
    plain = tmp_path / "plain.py"
    plain.write_text("class ModelNew:\n    return_value = 1\n")
    assert set(regions(plain.read_text())) == {"glue"}
    assert list[Mutant](mutants(plain, plain)) == []


def _common_prefix(a: str, b: str) -> int:
    """How many characters: the first beginning that differs, found by halving."""
    lengths = range(1, min(len(a), len(b)) + 1)
    return bisect_left(lengths, True, key=lambda n: a[:n] != b[:n])
