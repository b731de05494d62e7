"""What a worker of each isolation tier can still reach, on whatever machine the tests run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from fusewright.errors import NotVerifiable
from fusewright.judge.isolation import sandbox
from fusewright.judge.isolation.worker_pool import Site, open_site
from tests.support.folders import ROOT


def plans() -> tuple[sandbox.Plan, ...]:
    return sandbox.candidates_for(
        root=os.geteuid() == 0, uid=61_234, readable=(), writable=(), cuda=False
    )


PLANS = plans()


def opened(monkeypatch: pytest.MonkeyPatch, number: int) -> Iterator[Site]:
    """A site that may use nothing but one of the plans."""
    every = sandbox.candidates_for
    monkeypatch.setattr(sandbox, "candidates_for", lambda **kw: every(**kw)[number : number + 1])
    with open_site("cpu") as site:
        yield site


@pytest.mark.parametrize("number", range(len(PLANS)))
def test_every_plan_keeps_its_promise_or_says_that_it_cannot(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    try:
        for site in opened(monkeypatch, number):
            assert site.plan.tier == PLANS[number].tier
    except NotVerifiable as error:
        told = str(error)
        plain = PLANS[number].tier == 0
        if plain or "does not work here" not in told:
            pytest.fail(f"plan {number}: {told}")


def test_the_best_plan_that_works_is_taken_and_the_others_are_reported() -> None:
    with open_site("cpu") as site:
        better = [p for p in PLANS if p.tier > site.plan.tier]
        assert len(site.notes) >= len(better)
        assert f"tier {site.plan.tier}" in site.plan.says()


def test_a_tier_that_does_not_hold_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the seccomp filter the self-test must notice, and the judge must step down."""
    every = sandbox.candidates_for

    def toothless(**kw: object) -> tuple[sandbox.Plan, ...]:
        from dataclasses import replace

        return tuple(replace(p, seccomp=False) for p in every(**kw))  # type: ignore[arg-type]

    monkeypatch.setattr(sandbox, "candidates_for", toothless)
    with open_site("cpu") as site:
        assert site.plan.tier == 0
        assert any("no ptrace" in note for note in site.notes)


def test_the_environment_is_built_from_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LD_PRELOAD", "PYTHONPATH", "PYTHONSTARTUP", "CUDA_INJECTION64_PATH", "SECRET"):
        monkeypatch.setenv(name, "/nowhere/planted")
    with open_site("cpu") as site:
        assert "/nowhere/planted" not in site.environment(site.folder).values()


def test_the_private_folder_is_gone_afterwards() -> None:
    with open_site("cpu") as site:
        folder = site.folder
        assert folder.is_dir()
    assert not folder.exists()


def test_importing_the_judge_does_not_import_torch() -> None:
    import subprocess

    code = "import sys; import fusewright.judge; raise SystemExit('torch' in sys.modules)"
    root = ROOT
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
