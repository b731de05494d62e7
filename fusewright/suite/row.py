"""How a run ended -> one row of a suite; rows -> totals.

A row has one of the judge's three words. A run that ended without a report is `not-verified`, and
`end` says what happened (`run_end.py`), or that the file is unreadable.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusewright.judge.findings import Word
from fusewright.report.speed import (
    CANDIDATE,
    COMPILED,
    EAGER,
    SpeedRatio,
    predicted_s,
    ratio_of,
)
from fusewright.suite.run_end import RunEnd


@dataclass(frozen=True)
class SuiteRow:
    """One problem of a suite. error: relative L2 against float64.  times: seconds per call by side.

    ratios: by baseline.  roofline: the time that the target's bandwidth and rates predict for the
    plan, over the measured one.  operators: those in kernels of ours, and those left to PyTorch.
    degenerate: no output depends on an input.  node, device: as of `RunEnd`.
    """

    name: str
    verdict: Word
    reason: str
    end: str = ""
    error: float | None = None
    eager_error: float | None = None
    times: Mapping[str, float] | None = None
    ratios: Mapping[str, SpeedRatio] | None = None
    roofline: float | None = None
    kernels: int = 0
    library_nodes: int = 0
    fused_operators: int = 0
    library_operators: tuple[str, ...] = ()
    degenerate: bool = False
    seconds: float = 0.0
    node: str = ""
    device: str = ""

    @property
    def word(self) -> str:
        """What the table shows as the verdict."""
        more = self.end or "degenerate" * self.degenerate
        return f"{self.verdict} ({more})" if more else self.verdict

    @property
    def counts(self) -> bool:
        """Whether its times count in a mean."""
        return self.verdict == "verified" and not self.degenerate


@dataclass(frozen=True)
class Totals:
    """What a whole suite came to.

    means: geometric, over the timed rows that count; none where several kinds of machines timed
    them.  means_on: the same of each kind.
    """

    problems: int
    verified: int
    refuted: int
    not_verified: int
    means: Mapping[str, float]
    means_on: Mapping[str, Mapping[str, float]]
    faster: Mapping[str, int]
    slower: Mapping[str, int]
    fused_operators: int
    library_operators: int
    unsupported: int  # problems that could not be captured or loaded
    library: Mapping[str, int]  # name of a library node -> how often
    exit_code: int


def row_of(name: str, run: RunEnd) -> SuiteRow:
    """The row of a problem, from how its run ended."""
    report = run.report
    if report is None:
        row = SuiteRow(name, "not-verified", run.reason, end=run.end, seconds=run.seconds)
        return replace(row, node=run.node, device=run.device)
    kernels: Sequence[Mapping[str, Any]] = report["kernels"]
    library = [k for k in kernels if k["kind"] == "library" and k["name"] != "getitem"]
    fused = [k for k in kernels if k["kind"] != "library"]
    accuracy = report["accuracy"]
    timing = report["timing"] or {}
    times = {side: float(facts["p50_s"]) for side, facts in timing.get("sides", {}).items()}
    predicted = predicted_s(kernels)
    return SuiteRow(
        name,
        report["verdict"],
        run.reason,
        end=run.end,
        error=_number(accuracy.get("candidate", {}).get("rel_l2")),
        eager_error=_number(accuracy.get("eager", {}).get("rel_l2")),
        times=times or None,
        ratios={n: ratio_of(r) for n, r in timing.get("ratios", {}).items()} or None,
        roofline=predicted / times[CANDIDATE] if CANDIDATE in times else None,
        kernels=len(fused),
        library_nodes=len(library),
        fused_operators=sum(len(k["operators"]) for k in fused),
        library_operators=tuple(k["name"] for k in library),
        degenerate=bool(report["degenerate"]),
        seconds=run.seconds,
        node=run.node,
        device=run.device,
    )


def kept_row(fields: Mapping[str, Any]) -> SuiteRow:
    """A row as a store has it."""
    ratios, library = fields["ratios"], fields["library_operators"]
    compared = {n: SpeedRatio(**r) for n, r in ratios.items()} if ratios is not None else None
    return SuiteRow(**{**fields, "ratios": compared, "library_operators": tuple(library)})


def totals(results: Iterable[SuiteRow]) -> Totals:
    rows = list(results)
    words = [r.verdict for r in rows]
    good = [r.ratios for r in rows if r.counts and r.ratios]
    library = [n for r in rows for n in r.library_operators]
    kinds = sorted({r.device for r in rows if r.counts and r.ratios})
    means_on = {kind: _means([r for r in rows if r.device == kind]) for kind in kinds}
    return Totals(
        problems=len(rows),
        verified=words.count("verified"),
        refuted=words.count("refuted"),
        not_verified=words.count("not-verified"),
        means=_means(rows) if len(kinds) < 2 else {},
        means_on=means_on,
        faster={n: _claims(good, n, "faster") for n in (EAGER, COMPILED)},
        slower={n: _claims(good, n, "slower") for n in (EAGER, COMPILED)},
        fused_operators=sum(r.fused_operators for r in rows),
        library_operators=len(library),
        unsupported=sum(r.end == "unusable" for r in rows),
        library={n: library.count(n) for n in sorted(set(library), key=_by_count(library))},
        exit_code=1 if "refuted" in words else 3 if "not-verified" in words else 0,
    )


def _means(rows: Sequence[SuiteRow]) -> Mapping[str, float]:
    """By baseline."""
    return {n: mean for n in (EAGER, COMPILED) if (mean := geometric_mean(rows, n))}


def geometric_mean(results: Iterable[SuiteRow], baseline: str) -> float | None:
    """Of the results that count and were timed against this baseline; None if there are none."""
    logs = [
        math.log(r.ratios[baseline].median)
        for r in results
        if r.counts and r.ratios and baseline in r.ratios
    ]
    return math.exp(sum(logs) / len(logs)) if logs else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float | str) else None


def _claims(good: Iterable[Mapping[str, SpeedRatio]], baseline: str, claim: str) -> int:
    return sum(baseline in ratios and ratios[baseline].claim == claim for ratios in good)


def _by_count(names: Sequence[str]) -> Any:
    return lambda name: (-names.count(name), name)
