"""Arguments are drawn where the model runs, if get_inputs() can draw them there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusewright.common.problem_file import load_problem
from fusewright.judge.counts import Work, counts_of
from fusewright.judge.evidence.input_draws import LARGE, Draws
from tests.support.folders import PROBLEMS

ELEMENTS = LARGE // 4
# What get_inputs returns -> where the draw was made. A tensor on "meta" was made there.
WRITTEN = {
    "torch.rand(N)": "meta",
    "torch.randn(2, N // 2).relu()": "meta",
    "torch.rand(N), torch.arange(3)": "meta",
    "torch.rand(8)": "cpu",
    "torch.rand(N, device='cpu')": "cpu",
    "torch.rand(N), torch.zeros(3, device='cpu')": "cpu",
    "torch.from_numpy(torch.rand(N).numpy())": "cpu",
    "TABLE[torch.randint(5, (N,))]": "cpu",
}


@pytest.mark.parametrize("text", WRITTEN)
def test_where_it_is_drawn(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "problem.py"
    path.write_text(
        f"import torch\nN = {ELEMENTS}\nTABLE = torch.rand(5)\n"
        "class Model(torch.nn.Module):\n    def forward(self, *x):\n        return x[0]\n"
        f"def get_inputs():\n    return [{text}]\n"
    )
    seeds: list[int] = []
    moved: list[torch.device] = []
    own = torch.Tensor.to

    def to(t: torch.Tensor, device: str) -> torch.Tensor:
        moved.append(t.device)
        return own(t, device)

    monkeypatch.setattr(torch.Tensor, "to", to)
    draws = Draws(load_problem(path, {}), "meta")
    for _ in range(2):
        made = draws.draw(lambda: seeds.append(torch.manual_seed(3).initial_seed()))
    assert all(t.device.type == "meta" for t in made)
    assert {d.type for d in moved} == ({"cpu"} if WRITTEN[text] == "cpu" else set())
    assert len(seeds) == (2 if WRITTEN[text] == "meta" else 3)  # elsewhere it is tried once


def test_the_same_seed_draws_the_same() -> None:
    draws = Draws(load_problem(PROBLEMS / "linear_relu.py", {}), "cpu")
    first, again = (draws.draw(lambda: torch.manual_seed(5)) for _ in range(2))
    assert torch.equal(first[0], again[0])


@pytest.mark.parametrize(("gigabytes", "fewer"), [(1.0, True), (0.001, False)])
def test_what_takes_long_to_send_to_a_gpu_may_have_fewer_rows(
    gigabytes: float, fewer: bool
) -> None:
    size = int(gigabytes * 1e9)
    made = [torch.empty(size // 4, device="meta")]
    counts = counts_of(Work(1, 2 * size), "cuda", size, made, 0)
    assert (counts.rows(4096) > 0) == fewer
