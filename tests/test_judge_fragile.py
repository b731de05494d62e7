"""Calls that would end CUDA for the process are refused beforehand; all others are made."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fusewright.judge.fragile import VECTOR_BYTES, Watch

KINDS = ("efficient", "flash", "cudnn")


class Call:
    """Stands in for one operator on a GPU."""

    def __init__(self, name: str) -> None:
        self.overloadpacket = getattr(torch.ops.aten, name)

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        return "was made"


def called(name: str, *args: Any, **kwargs: Any) -> Any:
    watch = Watch()  # type: ignore[no-untyped-call]
    return watch.__torch_dispatch__(Call(name), (), args, kwargs)


ROOM = torch.zeros(65)
ALIGNED = ROOM[-ROOM.data_ptr() % VECTOR_BYTES // 4 :][:60]
SHIFTED = ALIGNED[1:]


@pytest.mark.parametrize("kind", KINDS)
def test_fused_attention_is_not_called_between_two_vectors(kind: str) -> None:
    name = f"_scaled_dot_product_{kind}_attention"
    assert called(name, ALIGNED, ALIGNED, ALIGNED, None) == "was made"
    with pytest.raises(RuntimeError, match="between two vectors"):
        called(name, ALIGNED, SHIFTED, ALIGNED, None)
    with pytest.raises(RuntimeError, match="between two vectors"):
        called(name, ALIGNED, ALIGNED, ALIGNED, attn_bias=SHIFTED)


def test_other_operators_take_what_they_get() -> None:
    assert called("add", SHIFTED, SHIFTED) == "was made"
