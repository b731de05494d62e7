"""What a candidate cannot help, or can help too well, decides nothing: slowness, load, memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from test_judge_chaos import GOOD, LIMITS, judged, request

from fusewright.judge import judging
from fusewright.judge.findings import Verdict
from fusewright.judge.site import Site

SLOW = GOOD.format(first="import time; time.sleep(PAUSE)")
WRONG_ON_NAN = (
    "return torch.relu((x @ self.proj.weight.t() + self.proj.bias).nan_to_num(0, 1e9, 0))"
)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with judging.open_site("cpu", timing=False) as opened:
        yield opened


def evidence(verdict: Verdict, check: str) -> str:
    return next(row.evidence for row in verdict.checks if row.check == check)


def wrong_on_nan(source: str) -> str:
    head, _, _ = source.rpartition("return torch.relu(")
    return head + WRONG_ON_NAN


# --- slowness ---------------------------------------------------------------------------------


def test_a_slow_candidate_is_asked_as_much_as_a_fast_one(tmp_path: Path, site: Site) -> None:
    found: list[Mapping[str, object]] = []
    for pause in ("0.0", "0.1"):
        asked = request(tmp_path, SLOW.replace("PAUSE", pause), only=("hazards",), seed="5a" * 16)
        verdict = judged(asked, site)
        assert not any(row.outcome == "fail" for row in verdict.checks), verdict.reason
        names = ("hazard-values", "hazard-strides", "hazard-shapes")
        found.append({name: evidence(verdict, name) for name in names})
    assert found[0] == found[1]


def test_slowness_hides_nothing(tmp_path: Path, site: Site) -> None:
    source = wrong_on_nan(SLOW.replace("PAUSE", "0.1"))
    verdict = judged(request(tmp_path, source, only=("hazards",)), site)
    assert verdict.verdict == "refuted"
    assert "hazard-values" in verdict.reason


@pytest.mark.parametrize("right", [True, False])
def test_what_is_too_slow_is_neither_verified_nor_refuted_for_it(
    tmp_path: Path, site: Site, right: bool
) -> None:
    source = SLOW.replace("PAUSE", "0.1")
    limits = replace(LIMITS, total_s=1.0)
    asked = request(tmp_path, source if right else wrong_on_nan(source), limits=limits)
    verdict = judged(replace(asked, only=()), site)
    assert verdict.verdict == "not-verified"
    assert verdict.reason.startswith("too slow to judge: ")
    assert not any(row.outcome == "fail" or row.check == "dirty-exit" for row in verdict.checks)
