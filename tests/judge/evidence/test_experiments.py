"""How many calls an experiment makes: the problem decides, and no clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fusewright.judge import counts
from fusewright.judge.evidence import experiments
from fusewright.judge.evidence.input_draws import Draws
from fusewright.judge.evidence.oracle import Oracle
from fusewright.judge.evidence.pytree import tensors
from tests.support.folders import PROBLEMS

RUNS: Mapping[str, tuple[Callable[[Tensor], Tensor], str, int]] = {
    "product": (lambda x: x @ x, "products", 2 * 64**3),
    "two products": (lambda x: x @ x @ x, "products", 4 * 64**3),
    "map": (lambda x: x + 1, "bytes", 2 * 4 * 64**2),
    "views are free": (lambda x: x.t()[0], "bytes", 0),
    "inverse": (torch.linalg.inv, "products", 2 * 64**3),
    "convolution": (
        lambda x: torch.conv2d(x[None, None], x[None, None, :3, :3]),
        "convolutions",
        2 * 62 * 62 * 9,
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_work_on_paper(name: str) -> None:
    run, field, wanted = RUNS[name]
    x = torch.eye(64)
    work, made = counts.work_of(lambda: [run(x)])
    assert getattr(work, field) == wanted
    assert torch.equal(made[0], run(x))


def test_a_recurrent_layer_counts_its_steps() -> None:
    model, x = torch.nn.LSTM(32, 32, num_layers=2), torch.randn(50, 4, 32)
    work, _ = counts.work_of(lambda: [model(x)[0]])
    wanted = 2 * 50 * 4 * 2 * (32 + 32) * 4 * 32
    assert wanted <= work.products <= 1.1 * wanted


@pytest.mark.parametrize(
    ("priced", "measured", "times"),
    [
        (0.001, 0.005, 1.0),  # cheap is cheap, whatever a clock says
        (0.1, 1.0, 1.0),  # an ordinary machine may be faster
        (0.01, 0.5, 100.0),  # nobody has listed these operators
        (0.01, 0.9, 100.0),  # beside busy neighbours: the same
    ],
)
def test_only_what_has_no_price_is_measured(priced: float, measured: float, times: float) -> None:
    work = counts.Work(bytes=int(priced * counts.RATES["cpu"].bytes))
    assert counts.priced(work, "cpu", measured) == pytest.approx(times)


def paper(seconds: float) -> counts.Counts:
    work = counts.Work(bytes=int(seconds * counts.RATES["cpu"].bytes))
    return counts.counts_of(work, "cpu", 1 << 10, [torch.zeros(256)], 1 << 10)


def test_costly_problems_are_asked_less_and_never_nothing() -> None:
    most = {"soak": 48, "fresh": 5, "determinism": 8, "warm": 12}
    for part, caps in most.items():
        found = [paper(s).calls(part, caps) for s in (1e-6, 1e-3, 0.05, 1.0, 100.0)]
        assert found[0] == caps
        assert found == sorted(found, reverse=True)
        assert found[-1] == 2


@pytest.mark.parametrize("noise", [0.98, 1.0, 1.02])
def test_what_a_draw_happens_to_contain_makes_no_difference(noise: float) -> None:
    assert paper(0.06 * noise) == paper(0.06)


@pytest.mark.parametrize("problem", ["linear_relu", "embedding_mean"])
def test_the_same_problem_has_the_same_counts(problem: str) -> None:
    found = []
    for seed in ("00", "7f"):
        order = {"device": "cpu", "accuracy": "contract", "seed": seed * 16, "overrides": {}}
        lab = Oracle({**order, "problem": str(PROBLEMS / f"{problem}.py")})
        lab.examine()
        found.append(lab.counts)
    assert found[0] == found[1]


@pytest.mark.parametrize("path", sorted(PROBLEMS.glob("*.py")), ids=lambda p: p.stem)
def test_every_problem_opens(path: Path) -> None:
    """Eager is asked for the same twice, in every mode, also where calls leave something behind."""
    order = {"device": "cpu", "accuracy": "contract", "seed": "3d" * 16, "overrides": {}}
    lab = Oracle({**order, "problem": str(path)})
    assert lab.modes
    assert not lab.random_modes
    assert not lab.raising_modes


@pytest.mark.parametrize("problem", ["linear_relu", "embedding_mean"])
def test_a_draw_that_is_not_kept_is_drawn_again(
    problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = {"device": "cpu", "accuracy": "contract", "seed": "5c" * 16, "overrides": {}}
    kept = Oracle({**order, "problem": str(PROBLEMS / f"{problem}.py")})
    kept.examine()
    assert kept.is_own(kept.own_values)
    monkeypatch.setattr(Draws, "on_gpu", True)
    monkeypatch.setattr("fusewright.judge.evidence.oracle.SCARCE", 1 << 60)
    lab = Oracle({**order, "problem": str(PROBLEMS / f"{problem}.py")})
    lab.examine()
    assert not lab.is_own(lab.own_values)
    pairs = zip(tensors(lab.own_values), tensors(kept.own_values), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("problem", ["linear_relu", "embedding_mean"])
@pytest.mark.parametrize("rows", [0, 3])
def test_each_change_is_of_another_element(problem: str, rows: int) -> None:
    """A cache that samples the inputs sees one change now and then, and not all of them."""
    order = {"device": "cpu", "accuracy": "contract", "seed": "1f" * 16, "overrides": {}}
    lab = Oracle({**order, "problem": str(PROBLEMS / f"{problem}.py")})
    lab.examine()
    values, places = list[object](lab.inputs("warm", rows=rows)), set[int]()
    for number in range(experiments.CHANGES[1]):
        label, near = experiments._nearly(lab, values, number, rows)
        assert label.startswith("one element changed")
        (before,), (after,) = tensors(values), tensors(near)
        changed = (before != after).flatten().nonzero()
        assert changed.numel() == 1
        places.add(int(changed))
        values = near
    assert len(places) > 1


def test_another_draw_has_as_many_rows_as_what_it_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the reference takes no small change: the same memory must hold it."""
    order = {"device": "cpu", "accuracy": "contract", "seed": "1f" * 16, "overrides": {}}
    lab = Oracle({**order, "problem": str(PROBLEMS / "linear_relu.py")})
    lab.examine()
    monkeypatch.setattr(lab, "takes", lambda *_: False)
    values = list[object](lab.inputs("warm", rows=3))
    label, near = experiments._nearly(lab, values, 0, 3)
    assert label == "another draw"
    assert [x.shape for x in tensors(near)] == [x.shape for x in tensors(values)]


NORMS = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.BatchNorm1d(64)
        self.second = nn.BatchNorm1d(64)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))

def get_inputs():
    return [torch.randn(3, 64) * 1e-2 + {offset}]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(("offset", "least", "most"), [(0.0, 0.0, 64.0), (1000.0, 200.0, 1e9)])
def test_statistics_of_what_is_nearly_equal_are_as_uncertain_as_it_is(
    offset: float, least: float, most: float, tmp_path: Path
) -> None:
    """Behind a norm of three values that differ by little more than a rounding, all is chance."""
    path = tmp_path / "problem.py"
    path.write_text(NORMS.format(offset=offset), encoding="utf-8")
    order = {"device": "cpu", "accuracy": "contract", "seed": "5c" * 16, "overrides": {}}
    lab = Oracle({**order, "problem": str(path)})
    lab.examine()
    names = ["second.running_mean", "second.running_var", "second.num_batches_tracked"]
    draws = [lab.inputs("buffers", "train", number) for number in range(3)]
    before = {name: t.clone() for name, t in lab.state.items()}
    *found, steps = experiments._sensitivity(lab, draws, "train", names)
    assert all(torch.equal(t, lab.state[name]) for name, t in before.items())
    assert not steps.any()
    for name, kappa in zip(names, found, strict=False):
        own = lab.state[name].abs().double() * 2.0**-24
        assert least <= float(kappa.square().mean().sqrt() / own.square().mean().sqrt()) <= most
