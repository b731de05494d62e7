"""Which names a kernel may have in C++."""

from __future__ import annotations

import pytest

from fusewright.codegen.kernel_symbols import entry, fallback_struct, is_reserved, symbols


@pytest.mark.parametrize(
    "name",
    [
        *("float", "and", "template", "lambda", "None"),  # words of C++ and Python
        *("relu", "load", "team", "run_map", "tile", "keys"),  # of the device library
        *("in0", "out12", "x1", "v9", "k0", "count0"),  # of generated text
    ],
)
def test_reserved(name: str) -> None:
    assert is_reserved(name)


@pytest.mark.parametrize(
    "name", ["fc2", "fc2_bias_relu", "norm1", "softmax", "head", "linear", "conv1_bias", "input1"]
)
def test_free(name: str) -> None:
    assert not any(map(is_reserved, symbols(name)))


def test_symbols() -> None:
    assert {"fc2", entry("fc2"), fallback_struct("fc2")} < symbols("fc2")
    assert entry("fc2") == "run_fc2"
