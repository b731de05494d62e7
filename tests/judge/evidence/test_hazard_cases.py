"""The hazard matrix: legal, replayable, different from get_inputs()."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch
from torch import Tensor

from fusewright.judge.evidence import hazard_cases
from fusewright.judge.evidence.pytree import tensors

Pair = namedtuple("Pair", "left right")


def example() -> list[object]:
    g = torch.Generator().manual_seed(0)
    image = torch.randn(4, 3, 8, 6, generator=g)
    return [
        image,
        torch.randint(2, 9, (4,), generator=g),
        torch.rand(4, 5, generator=g) > 0.5,
        3,
        "mean",
        Pair(torch.rand(4, 3, 8, 6, generator=g).requires_grad_(), None),
        torch.randn(4, 3, 8, 6, generator=g),
        {"scale": torch.tensor(2.0)},
        torch.randn(6, 4, generator=g).half(),
    ]


def bits(t: Tensor) -> object:
    return (t.shape, t.stride(), t.dtype, t.detach().nan_to_num(7.5).tolist())


def find(inputs: list[object], seed: int, name: str) -> hazard_cases.Case:
    return next(case for case in hazard_cases.matrix(inputs, seed=seed) if case.name == name)


MATRIX = {case.name: case for case in hazard_cases.matrix(example(), seed=5)}


def first(name: str) -> Tensor:
    value = MATRIX[name].build()[0]
    assert isinstance(value, Tensor)
    return value


@pytest.mark.parametrize("name", MATRIX)
def test_replay_is_bit_for_bit(name: str) -> None:
    once = [bits(t) for t in tensors(MATRIX[name].build())]
    again = find(example(), seed=5, name=name).build()
    assert [bits(t) for t in tensors(again)] == once


@pytest.mark.parametrize("name", MATRIX)
def test_kind_and_range_are_kept(name: str) -> None:
    built, own = MATRIX[name].build(), example()
    assert built[3:5] == [3, "mean"]
    assert isinstance(built[5], Pair)
    assert built[5].right is None
    for left, right in zip(tensors(built), tensors(own), strict=True):
        assert (left.is_leaf, left.requires_grad) == (True, right.requires_grad)
        new, old = left.detach(), right.detach()
        assert new.dtype == old.dtype
        if old.dtype is torch.int64 and new.numel():
            assert int(new.min()) >= int(old.min())
            assert int(new.max()) <= int(old.max())
        if MATRIX[name].required and old.is_floating_point():
            assert float(new.min()) >= float(old.min())
            assert float(new.max()) <= float(old.max())


@pytest.mark.parametrize("name", [n for n, c in MATRIX.items() if c.family != "shapes"])
def test_shapes_stay(name: str) -> None:
    for new, old in zip(tensors(MATRIX[name].build()), tensors(example()), strict=True):
        assert new.shape == old.shape


def test_another_seed_gives_other_values() -> None:
    other = find(example(), seed=6, name="fresh-0").build()[0]
    assert isinstance(other, Tensor)
    assert not torch.equal(other, first("fresh-0"))
    assert not torch.equal(first("fresh-1"), first("fresh-0"))


def test_the_example_is_never_changed() -> None:
    own = example()
    before = [bits(t) for t in tensors(own)]
    for case in hazard_cases.matrix(own, seed=1):
        case.build()
    assert [bits(t) for t in tensors(own)] == before


def test_only_fresh_draws_are_required() -> None:
    assert {c.name for c in MATRIX.values() if c.required} == {"fresh-0", "fresh-1"}
    isolated = {c.family for c in MATRIX.values() if c.isolated}
    assert isolated == {"strides", "storage", "shapes"}


def test_values() -> None:
    assert first("scale-1e3").abs().max() > 1e3
    assert first("offset-1e3").mean() > 990
    assert 0 < first("tiny-denormal").abs().max() < torch.finfo(torch.float32).tiny
    assert first("special-inf-0").isposinf().sum() == 1
    assert first("special-nan-0").isnan().sum() == 1
    assert first("special-nan-1").isnan().sum() == 0
    assert first("special-minus-inf-row-0").isneginf().all(-1).sum() == 1
    assert (first("structure-one-hot").sum(-1) == 1).all()
    assert (first("structure-sorted").diff(dim=-1) >= 0).all()
    assert (first("structure-constant-rows").std(-1) == 0).all()
    assert float(first("structure-alternating").sum(-1).abs().max()) < 0.02
    assert {float(t) for t in first("tiny-zeros").reshape(-1)} == {0.0}
    assert all(t.isfinite().all() for t in tensors(MATRIX["scale-huge"].build()))


def test_layouts() -> None:
    assert first("strides-transposed").transpose(-1, -2).is_contiguous()
    assert first("strides-channels-last").is_contiguous(memory_format=torch.channels_last)
    assert first("strides-step-last").stride(-1) == 2
    assert first("strides-expanded").stride(0) == 0
    shifted = first("storage-offset")
    assert shifted.is_contiguous()
    assert shifted.storage_offset() == 1


def test_aliasing() -> None:
    built = MATRIX["aliasing-same"].build()
    assert built[0] is built[6]


@pytest.mark.parametrize(
    ("name", "size"),
    [("1", 1), ("0", 0), ("prime", 7), ("more", 5), ("less", 3), ("double", 9)],
)
def test_the_leading_dimension_changes_in_all_inputs(name: str, size: int) -> None:
    shapes = [tuple(t.shape) for t in tensors(MATRIX[f"shape-dim0-{name}"].build())]
    image = (size, 3, 8, 6)
    assert shapes == [image, (size,), (size, 5), image, image, (), (6, 4)]


def test_other_dimensions_change_alone() -> None:
    assert first("shape-dim3-prime").shape == (4, 3, 8, 7)
    assert first("shape-dim1-1").shape == (4, 1, 8, 6)


def test_two_sizes_change_at_once() -> None:
    assert first("shape-sizes01-1").shape == (1, 1, 8, 6)
    batch, channels, *rest = first("shape-sizes01-drawn").shape
    assert rest == [8, 6]
    assert batch > 1
    assert batch != 4
    assert channels > 1
    assert channels != 3


def test_a_size_changes_wherever_it_stands() -> None:
    """Of a sequence, and of its mask with as many rows as columns."""
    inputs: list[object] = [torch.zeros(3, 24, 8), torch.zeros(3, 1, 24, 24)]

    def shapes(name: str) -> list[tuple[int, ...]]:
        return [tuple(t.shape) for t in tensors(find(inputs, seed=2, name=name).build())]

    assert shapes("shape-size1-1") == [(3, 1, 8), (3, 1, 1, 1)]
    x, mask = shapes("shape-sizes01-drawn")
    assert mask == (x[0], 1, x[1], x[1])
    assert x != (3, 24, 8)
    assert x[2] == 8


def test_indices_keep_their_meaning() -> None:
    """Offsets stay sorted, a permutation stays one, others stay in range."""
    offsets, order = torch.tensor([0, 3, 3, 9, 12]), torch.tensor([3, 1, 0, 4, 2])
    built = find([offsets, order], seed=3, name="fresh-0").build()
    fresh_offsets, fresh_order = tensors(built)
    assert (fresh_offsets.diff() >= 0).all()
    assert fresh_order.sort().values.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "inputs",
    [
        [],
        [3, "x"],
        [torch.zeros(0, 4)],
        [torch.tensor(1.0)],
        [torch.zeros(3, dtype=torch.complex64)],
    ],
)
def test_odd_inputs(inputs: list[object]) -> None:
    for case in hazard_cases.matrix(inputs, seed=0):
        assert len(case.build()) == len(inputs)


def test_more_rows_than_a_grid_has_blocks() -> None:
    built = find([torch.zeros(8, 5)], seed=0, name="shape-dim0-grid").build()
    rows, columns = next(tensors(built)).shape
    assert rows >= 65537
    assert columns == 5


def test_nobody_knows_the_numbers_of_rows() -> None:
    """What a judging asks is no list: sizes of each kind come from its seed."""
    seen: dict[str, set[int]] = {}
    for seed in range(6):
        for case in hazard_cases.matrix([torch.zeros(8, 5)], seed=seed):
            if case.name.startswith("shape-dim0-"):
                rows = next(tensors(case.build())).shape[0]
                seen.setdefault(case.name.removeprefix("shape-dim0-"), set()).add(rows)
    assert all(len(seen[label]) > 3 for label in ("drawn", "many", "thousands", "grid")), seen
    assert all(4097 <= rows <= 8194 for rows in seen["thousands"])


def test_large_inputs_are_not_grown() -> None:
    names = {c.name for c in hazard_cases.matrix([torch.zeros(8, 4096)], seed=0)}
    assert "shape-dim0-grid" not in names
    assert "shape-dim0-double" in names


def test_shortened_inputs_lose_rows_where_most_have_them() -> None:
    assert hazard_cases.rows_of(example()) == 4
    shapes = [tuple(t.shape) for t in tensors(hazard_cases.shortened(example(), 2))]
    image = (2, 3, 8, 6)
    assert shapes == [image, (2,), (2, 5), image, image, (), (6, 4)]
    assert hazard_cases.rows_of([3, torch.tensor(1.0)]) == 0
