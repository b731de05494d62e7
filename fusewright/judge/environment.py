"""Session -> what a reader needs to weigh or repeat its verdict: tier, hashes, versions, gaps."""

from __future__ import annotations

import hashlib
import platform
import shutil
import sys
from typing import TYPE_CHECKING

from fusewright.judge.processes import PACKAGE

if TYPE_CHECKING:
    from fusewright.judge.session import Session

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
        "sha256": {
            "problem": hashlib.sha256(request.problem.read_bytes()).hexdigest(),
            "candidate": hashlib.sha256(session.source.encode()).hexdigest(),
            "judge": _own_hash(),
        },
        "executable": sys.executable,
    }


def _own_hash() -> str:
    digest = hashlib.sha256()
    for path in sorted((PACKAGE / "judge").glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
