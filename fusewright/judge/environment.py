"""Session -> what a reader needs to weigh or repeat its verdict: tier, hashes, versions, gaps.

It is written into every report, with the accuracy table: the worst of all calls, and whether a
plain allclose would have seen it.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fusewright.judge.isolation.library_paths import PACKAGE

if TYPE_CHECKING:
    from fusewright.judge.session import Session

NO_OUTPUTS: Mapping[int, Mapping[str, float]] = {}
_TOOLS = ("g++", "ninja", "nvcc", "compute-sanitizer")


def describe(session: Session) -> dict[str, object]:
    plan, request = session.site.plan, session.request
    return {
        "isolation": plan.says(),
        "tier": plan.tier,
        "isolation notes": list(session.site.notes),
        "device": request.device,
        "torch": session.lab.get("torch", "unknown"),
        "threads": session.lab.get("threads", 0),
        "python": platform.python_version(),
        "machine": f"{platform.machine()} {platform.system()} {platform.release()}",
        "missing tools": [tool for tool in _TOOLS if shutil.which(tool) is None],
        "modes": list(session.lab.get("modes", ())),
        "calls compared": session.compared,
        "counts": dict(session.counts),
        "sha256": {
            "problem": hashlib.sha256(request.problem.read_bytes()).hexdigest(),
            "candidate": hashlib.sha256(session.source.encode()).hexdigest(),
            "judge": _own_hash(),
            **({"kernels compiled by the caller": session.adopted} if session.adopted else {}),
        },
        "executable": sys.executable,
    }


def accuracy_table(
    numbers: Mapping[str, float], outputs: Mapping[int, Mapping[str, float]] = NO_OUTPUTS
) -> dict[str, object]:
    """The worst of all compared calls: each side's error, and what plain allclose would say; of
    several outputs, by their places, also of each."""
    table: dict[str, object] = {}
    for side in ("candidate", "eager"):
        ending = f"_{side}"
        table[side] = {n.removesuffix(ending): v for n, v in numbers.items() if n.endswith(ending)}
    table["ulp"] = {n.removeprefix("ulp_"): v for n, v in numbers.items() if n.startswith("ulp_")}
    for name, count in numbers.items():
        if name.startswith("outside_allclose_"):
            verdict = f"fails on {count:.0f} elements" if count else "passes"
            table[f"allclose {name.removeprefix('outside_allclose_')} against eager"] = verdict
    if len(outputs) > 1:
        each = {index: accuracy_table(told) for index, told in sorted(outputs.items())}
        table["outputs"] = {f"output {index}": one for index, one in each.items()}
    return table


def _own_hash() -> str:
    digest = hashlib.sha256()
    for path in sorted((PACKAGE / "judge").rglob("*.py")):
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()
