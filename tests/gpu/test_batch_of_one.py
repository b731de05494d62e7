"""On a GPU: problems at a batch of 1 and at others; eager's results, from kernels."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from fusewright.common.problem_file import load_problem
from fusewright.targets.detect import own_gpu
from tests.support.agreement import copied, disagreements, moved
from tests.support.compiled import ready
from tests.support.emitting import emit_file
from tests.support.folders import ROOT
from tests.support.graphs import with_batch

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

# One or more of each family: products, convolutions, rows, scans, maps, attention.
NAMES = (
    *("examples/gemm_add_relu", "examples/swish_bias_groupnorm", "examples/conv_relu_bias"),
    *("zoo/linear_gelu_softmax", "zoo/half_bfloat16_linear", "zoo/matmul_low_rank"),
    *("zoo/conv2d_pointwise_tail", "zoo/conv2d_depthwise_separable", "zoo/conv3d_groupnorm_clamp"),
    *("zoo/softmax_rows", "zoo/norm_layer", "zoo/norm_batch_eval", "zoo/scan_gated_sequence"),
    *("zoo/map_transpose_add", "zoo/map_pad_and_slice", "zoo/network_attention_causal"),
    "zoo/network_encoder_stack",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_one_is_eagers(name: str, tmp_path: Path) -> None:
    machine, path = own_gpu(), ROOT / f"{name}.py"
    assert machine is not None, "there is a GPU"
    emitted = emit_file(path, tmp_path, machine.name)
    (free,) = emitted.made.captured.graph.free
    assert free.least == 1
    problem = load_problem(path)
    torch.manual_seed(0)
    theirs, inputs = problem.make_model().cuda(), problem.make_inputs()
    ours = emitted.load().ModelNew(*problem.make_init_inputs()).cuda()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    for batch in (free.example, 1):
        given = moved(with_batch(inputs, emitted.made.captured.graph, batch), "cuda")
        with torch.no_grad():
            assert ready(copy.deepcopy(ours), copied(given)), batch
        assert disagreements(ours, theirs, given) == [], batch
