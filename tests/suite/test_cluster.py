"""What a run may ask of a cluster's nodes, and what is said where their machines differ."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from fusewright.arena.leaderboard import machines_line
from fusewright.arena.page import arena_page
from fusewright.arena.ranking import ArenaRow, standings
from fusewright.cli import main
from fusewright.errors import BadUsage
from fusewright.html_report.render import page_text
from fusewright.report.speed import SpeedRatio
from fusewright.suite.cluster import (
    Node,
    Share,
    Versions,
    check_versions,
    gpu_nodes,
    shared,
    whole,
)
from fusewright.suite.pages import suite_page
from fusewright.suite.row import SuiteRow, totals
from fusewright.suite.table import total_lines

OWN = Versions("3.11", "2.11", "0.1")
HEAD = Node("head", "head", 8, 0, "", "", "a CPU", OWN)
LARGE = replace(HEAD, id="large", host="large", cpus=64, processor="a large CPU")
H200 = Node("h", "h", 64, 8, "H200", "9.0", "a CPU", OWN)
A100 = Node("a", "a", 32, 2, "A100", "8.0", "a CPU", OWN)


def test_nodes_that_differ_are_named() -> None:
    check_versions([HEAD, LARGE], OWN)
    old = replace(LARGE, versions=Versions("3.11", "2.10", "0.0"))
    with pytest.raises(BadUsage, match=r"large has PyTorch 2\.10, not 2\.11 and fusewright 0\.0"):
        check_versions([HEAD, old], OWN)
    with pytest.raises(BadUsage, match="large cannot import fusewright"):
        check_versions([replace(LARGE, versions=Versions("3.11", "2.11", ""))], OWN)


def test_who_has_a_gpu_for_a_target() -> None:
    every = [HEAD, H200, A100]
    assert gpu_nodes(every, None) == gpu_nodes(every, "cuda") == (H200, A100)
    assert gpu_nodes(every, "sm_90a") == (H200,)
    assert gpu_nodes(every, "sm_80") == (A100,)
    assert gpu_nodes(every, "cpu") == gpu_nodes(every, "sm_86") == gpu_nodes([HEAD], None) == ()
    newer = replace(H200, capability="12.0")
    assert gpu_nodes([newer], "sm_80") == (newer,), "no target is for it: it may run an older one"
    with pytest.raises(BadUsage, match="no node of the cluster has a GPU"):
        gpu_nodes([HEAD], "cuda")


def test_what_a_run_asks_for() -> None:
    assert shared([H200, A100], on_gpus=True) == Share(("h", "a"), cpus=8, gpus=1, at_once=10)
    assert whole([H200, A100], on_gpus=True) == Share(("h",), cpus=64, gpus=8, at_once=1)
    assert shared([HEAD, LARGE], on_gpus=False) == Share(("head", "large"), 4, 0, at_once=18)
    small = replace(HEAD, id="small", cpus=1)
    assert shared([HEAD, small], on_gpus=False) == Share(("head",), 4, 0, at_once=2)
    assert shared([small], on_gpus=False) == Share(("small",), 1, 0, at_once=1)
    twin = replace(LARGE, id="twin")
    assert whole([HEAD, LARGE, twin], on_gpus=False) == Share(("large", "twin"), 64, 0, at_once=2)
    none = replace(HEAD, cpus=0)
    assert shared([none], on_gpus=False) is whole([none], on_gpus=False) is None


def ratio(median: float) -> SpeedRatio:
    return SpeedRatio(median, median, median, "faster")


def test_no_mean_over_several_kinds_of_machines() -> None:
    def row(name: str, device: str, median: float) -> SuiteRow:
        ratios = {"eager": ratio(median)}
        return SuiteRow(name, "verified", "", ratios=ratios, node="n", device=device)

    rows = [row("a", "H200", 4.0), row("b", "H200", 9.0), row("c", "A100", 2.0)]
    assert totals(rows[:2]).means["eager"] == pytest.approx(6.0)
    summed = totals(rows)
    assert summed.means == {}
    assert summed.means_on["H200"]["eager"] == pytest.approx(6.0)
    said = total_lines(summed)
    assert "timed on 2 kinds of machines, whose ratios are not comparable:" in said
    assert "on A100: geometric mean 2.000x against eager" in said
    page = page_text(suite_page(rows, summed, {}, {}))
    assert "on H200: geometric mean 6.000x against eager" in page
    assert "n, A100" in page
    assert "no one mean" in page


def test_an_entrant_has_no_mean_over_several_kinds_of_machines() -> None:
    def row(problem: str, device: str) -> ArenaRow:
        return ArenaRow(
            problem, "ann", "verified", "", over_eager=ratio(2.0), place=1, device=device
        )

    rows = [row("norm", "H200"), row("softmax", "A100")]
    assert [one.mean for one in standings(rows[:1])] == [2.0]
    assert [one.mean for one in standings(rows)] == [None]
    assert machines_line(rows[:1]) == ""
    said = (
        "Timed on 2 kinds of machines, whose ratios are not comparable (A100: softmax; H200: norm)"
    )
    assert machines_line(rows).startswith(said)
    assert said in page_text(arena_page(rows, {}))


def test_without_ray(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "fusewright.suite.ray_runner", raising=False)
    with pytest.raises(SystemExit) as end:
        main.app(["suite", ".", "--ray", "head:6379"], prog_name="fusewright")
    assert end.value.code == 2
    assert "pip install 'fusewright[ray]'" in capsys.readouterr().err
