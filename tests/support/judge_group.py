"""Orders on stdin -> a line of JSON per candidate: several judgings that share a reference worker.

Each candidate gets its own secret seed, ledger, view of its problem and fresh processes, and goes
through `judging._judge` like any other; only the trusted worker and the self-test, which cost more
processor time than the candidate itself, are the group's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fusewright.errors import FusewrightError, NotVerifiable
from fusewright.judge import judging
from fusewright.judge.isolation.processes import Worker
from fusewright.judge.isolation.worker_pool import Site, open_site
from fusewright.judge.request import Limits, Request
from fusewright.judge.session import Session


def _silent(line: str) -> None:
    """Progress that nobody sees."""


class Member(Session):
    """A session whose self-test was made by the group's first one, on the same site."""

    def __init__(self, request: Request, site: Site, first: Session) -> None:
        super().__init__(request, site, _silent)
        self._first = first

    def start_candidate(self, name: str, slot: int, **options: Any) -> Worker:
        if name == "canary":
            return self.reference  # not asked: the group's self-test has been made
        return super().start_candidate(name, slot, **options)

    def run_canaries(self, worker: Worker, slot: int) -> None:
        row = next(row for row in self._first.ledger.rows() if row.check == "self-canary")
        self.ledger.add("self-canary", row.outcome, row.evidence)


def main() -> None:
    orders = json.loads(sys.stdin.read())
    requests = [_request(order) for order in orders]
    with open_site(requests[0].device) as site:
        first = Session(requests[0], site, _silent)
        try:
            first.open_problem()
            first.run_canaries(first.start_candidate("canary", 0), 0)
            for request in requests:
                _say(_judged(Member(request, site, first)))
        except NotVerifiable as error:  # of what the group shares
            for _ in requests:
                _say({"verdict": "not-verified", "reason": str(error), "checks": []})
        finally:
            first.close()


def _say(verdict: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(verdict) + "\n")
    sys.stdout.flush()


def _request(order: Mapping[str, Any]) -> Request:
    fields = dict(order)
    for name in ("problem", "candidate"):
        fields[name] = Path(fields[name])
    for name in ("only", "against"):
        fields[name] = tuple(fields.get(name, ()))
    fields["limits"] = Limits(**fields.get("limits", {}))
    return Request(**{**fields, "ignored": frozenset(fields.get("ignored", ()))})


def _judged(session: Member) -> dict[str, object]:
    try:
        session.read_candidate()
        judging._judge(session, nullcontext)
    except FusewrightError as error:
        session.ledger.gaps.append(str(error))
    finally:
        session.close()
    word, reason = session.ledger.word()
    rows: Sequence[Any] = [asdict(row) for row in session.ledger.rows()]
    return {"verdict": word, "reason": reason, "checks": rows}


if __name__ == "__main__":
    main()
