"""Library products as contractions: what of their numbers is taken, and what stays BLAS's."""

from __future__ import annotations

import math

import pytest
import torch

from fusewright.ir.graph import Node, node
from fusewright.ir.library_call import LibraryCall, Scalar, TensorRef
from fusewright.rewrite.contraction import contraction_of


def added_product(dtype: torch.dtype, **numbers: complex) -> Node:
    shapes = (4, 6), (4, 8), (8, 6)
    tensors = [
        node("input", position=k, shape=shape, dtype=dtype) for k, shape in enumerate(shapes)
    ]
    call = LibraryCall(
        "aten.addmm",
        "default",
        "torch.addmm",
        tuple(map(TensorRef, range(3))),
        tuple((name, Scalar(number)) for name, number in numbers.items()),
        new_memory=True,
    )
    return node("library", tensors, shape=(4, 6), dtype=dtype, call=call)


@pytest.mark.parametrize("name", ["alpha", "beta"])
@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, complex(0, math.inf)])
def test_what_makes_infinities_of_a_product_stays_a_call(name: str, number: complex) -> None:
    assert contraction_of(added_product(torch.complex64, **{name: number})) is None


@pytest.mark.parametrize("number", [2, -0.5, 2j])
def test_what_scales_a_product_is_a_number_of_any_kind(number: complex) -> None:
    found = contraction_of(added_product(torch.complex64, alpha=number, beta=number))
    assert found is not None
    assert (found.alpha, found.beta) == (number, number)
