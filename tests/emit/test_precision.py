"""`--precision ieee`: PyTorch's own products run in full float32, and its flags survive."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fusewright.common.problem_file import load_problem
from fusewright.compiler.compilation import make
from fusewright.compiler.pipeline import emitted_text
from fusewright.targets.target import TARGETS
from tests.support.folders import EXAMPLES

EXAMPLE = EXAMPLES / "conv_relu_bias.py"
CALL = "_fusewright_ieee(lambda: torch.nn.functional.conv2d("


def _emitted(precision: str, target: str) -> str:
    problem = load_problem(EXAMPLE, {"batch_size": "2"})
    module = problem.make_model()
    made = make(module, problem.make_inputs(), TARGETS[target], precision)
    return emitted_text(made, module, problem)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "sm_80", "sm_90a"])
def test_products_are_wrapped_only_for_ieee(target: str) -> None:
    ours = target == "sm_90a"
    ieee = _emitted("ieee", target)
    assert (CALL in ieee) is not ours
    assert ("PyTorch's own contractions run in full float32" in ieee) is not ours
    assert ("ieee: full float32" in ieee) is ours
    eager = _emitted("eager", target)
    assert "_fusewright_ieee" not in eager
    theirs = target == "cpu"
    assert ("PyTorch's own contractions follow its flags" in eager) is theirs
    assert ("conv as tf32" in " ".join(eager.partition("import")[0].split())) is not theirs


def _flags() -> tuple[str, ...]:
    backends = torch.backends
    owners = (
        backends.cuda.matmul,
        backends.cudnn.conv,
        backends.mkldnn.matmul,
        backends.mkldnn.conv,
    )
    return tuple(owner.fp32_precision for owner in owners)


@pytest.mark.parametrize("asked", ["medium", "high", "highest"])
def test_flags_hold_inside_and_come_back(asked: str) -> None:
    names: dict[str, Any] = {}
    exec(compile(_emitted("ieee", "cpu"), "emitted", "exec"), names)
    seen: list[tuple[str, ...]] = []
    torch.set_float32_matmul_precision(asked)
    try:
        before = _flags()
        names["_fusewright_ieee"](lambda: seen.append(_flags()))
        assert seen == [("ieee",) * 4]
        assert _flags() == before
        with pytest.raises(ZeroDivisionError):
            names["_fusewright_ieee"](lambda: 1 // 0)
        assert _flags() == before
        assert torch.get_float32_matmul_precision() == asked
    finally:
        torch.set_float32_matmul_precision("highest")
