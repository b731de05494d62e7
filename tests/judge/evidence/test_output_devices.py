"""Results on another device than the model: as eager is, numbers of Python and lengths too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from fusewright.judge.evidence.expected_answers import Expected
from fusewright.judge.evidence.trial import _structure
from fusewright.judge.isolation.protocol import OTHER_DEVICE


@pytest.mark.parametrize("eager", ["cpu", "meta"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_result_is_where_eagers_is(eager: str, elsewhere: bool) -> None:
    wanted = torch.empty(2, device=eager)
    expected = SimpleNamespace(eager=[wanted], spec="tensor", truth=[wanted], overlapping=[False])
    found: dict[str, Any] = {"shape": (2,), "dtype": "float32", "flags": OTHER_DEVICE * elsewhere}
    wrong = _structure("tensor", [found], cast("Expected", expected), "meta")
    assert ("another device" in wrong) == ((eager == "meta") == elsewhere)
