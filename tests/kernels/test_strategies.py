"""Families of kernels: which one a kernel is of, and how its strategies are remembered."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from torch import Tensor, nn

from fusewright.compiler.compilation import make
from fusewright.kernels.gemm.tile import DepthSplit, GemmTile, NoSplit, SplitK, StreamK
from fusewright.kernels.interface import StrategyContext
from fusewright.kernels.registry import (
    FAMILIES,
    Strategy,
    as_record,
    default_strategy,
    family_of,
    from_record,
    kernel_text,
    neighbours,
)
from fusewright.kernels.rowwise.family import CPU_TEXTS, RowFamily
from fusewright.targets.target import TARGETS

TYPES = {kind.__name__: kind for family in FAMILIES.values() for kind in family.strategies}


def example(kind: type) -> Strategy:
    """A record of a type; every field has another number."""
    found: Strategy = kind(**{f.name: k + 2 for k, f in enumerate(dataclasses.fields(kind))})
    return found


@pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES.keys())
def test_a_strategy_comes_back_from_json(kind: type) -> None:
    strategy = example(kind)
    record = json.loads(json.dumps(as_record(strategy)))
    assert record.keys() == {"family", "type", "fields"}
    assert kind in FAMILIES[record["family"]].strategies
    assert record["type"] == kind.__name__
    assert from_record(record) == strategy
    assert {strategy, from_record(record)} == {strategy}


@pytest.mark.parametrize("family", [f for f in FAMILIES.values() if isinstance(f, RowFamily)])
def test_every_strategy_of_rows_is_described(family: RowFamily) -> None:
    """With its own numbers."""
    assert family.texts.keys() - CPU_TEXTS.keys() == set(family.strategies) - CPU_TEXTS.keys()
    for kind, text in family.texts.items():
        assert "{" not in text.format_map(vars(example(kind)))


@pytest.mark.parametrize("reduce", [NoSplit(), SplitK(8), StreamK(8)])
def test_records_within_a_strategy_keep_their_type(reduce: DepthSplit) -> None:
    tile = GemmTile(128, True, packing="packed", reduce=reduce, vector=4)
    record = json.loads(json.dumps(as_record(tile)))
    assert record["fields"]["reduce"]["type"] == type(reduce).__name__
    assert from_record(record) == tile
    record["fields"]["reduce"]["type"] = "SplitRow"
    assert from_record(record) is None


def test_what_is_no_strategy_comes_back_as_none() -> None:
    record = {"family": "rowwise", "type": "SplitRow", "fields": {"threads": 512}}
    assert from_record(record) is None
    assert from_record({**record, "family": "suns"}) is None
    assert from_record({**record, "type": "FlatMap"}) is None
    assert from_record({**record, "type": "Rays"}) is None


def test_no_two_types_have_one_name() -> None:
    assert TYPES.keys() >= {"FlatMap", "RowPerTeam", "ChunkedScan", "GemmTile", "AttentionTile"}
    for family in FAMILIES.values():
        assert all(TYPES[kind.__name__] is kind for kind in family.strategies)


class Four(nn.Module):
    """A kernel for each kind of work."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1024, 1024)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return self.linear(x).relu(), y[:, :5].relu(), y.softmax(1), y[:, :9].cumsum(1)


@pytest.mark.parametrize(
    ("target", "families"),
    [
        ("sm_90a", {"gemm", "pointwise", "rowwise", "scan"}),
        ("cpu", {"pointwise", "rowwise", "scan"}),
    ],
)
def test_a_kernel_belongs_to_a_family(target: str, families: set[str]) -> None:
    made = make(Four(), [torch.empty(2048, 1024), torch.empty(2048, 4096)], TARGETS[target])
    context = StrategyContext(TARGETS[target], made.captured.graph)
    assert {family_of(nest.kernel).name for _, nest, _ in made.kernels} >= families
    for text, nest, strategy in made.kernels:
        assert strategy == default_strategy(nest, context)
        assert strategy not in neighbours(strategy, nest, context)
        assert text == kernel_text(nest, strategy, made.layout.in_place[text.name], made.names)
