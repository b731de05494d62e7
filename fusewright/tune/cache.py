"""Key -> what the tuner has found, on disk, so that nothing is tried twice.

SQLite in WAL mode: any number of processes may read and write. A store that cannot be used costs
time, never a result: who asks is warned and gets nothing.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusewright.kernels.registry import Strategy, as_record, from_record
from fusewright.tune.search_space import TuneChoice

TABLE = "CREATE TABLE IF NOT EXISTS tuned (key TEXT PRIMARY KEY, found TEXT NOT NULL)"
WAIT_S = 10.0
FORMAT = "strategies by family"  # of what is kept: what has another is never found


@dataclass(frozen=True)
class TuneResult:
    """What came of tuning. lines: for the decision record.  facts: for the report."""

    choice: TuneChoice
    lines: tuple[str, ...]
    facts: Mapping[str, object]


@dataclass(frozen=True)
class TuneCache:
    """The store in a file, which is made when it is first written to."""

    path: Path

    def get(self, key: str) -> TuneResult | None:
        with self._warned("read"):
            if not self.path.exists():
                return None
            with self._open() as connection:
                row = connection.execute("SELECT found FROM tuned WHERE key = ?", (key,)).fetchone()
            return None if row is None else _tuned(json.loads(row[0]))
        return None

    def put(self, key: str, tuned: TuneResult) -> None:
        text = json.dumps(_recorded(tuned), sort_keys=True)
        with self._warned("written"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._open() as connection, connection:
                connection.execute("INSERT OR REPLACE INTO tuned VALUES (?, ?)", (key, text))

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=WAIT_S)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            with connection:
                connection.execute(TABLE)
            yield connection

    @contextmanager
    def _warned(self, verb: str) -> Iterator[None]:
        """Within the block, what goes wrong with the file or with what it says is a warning."""
        try:
            yield
        except (sqlite3.Error, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            warnings.warn(
                f"{self.path}: what was tuned cannot be {verb}: {error}. Nothing is lost but time; "
                "remove the file if it is damaged, or set TORCH_EXTENSIONS_DIR to another folder.",
                stacklevel=4,
            )


def cache_key(facts: Sequence[str]) -> str:
    """The key of a model whose tuning depends on these facts."""
    return hashlib.sha256(json.dumps([FORMAT, *facts]).encode()).hexdigest()


def _recorded(tuned: TuneResult) -> dict[str, Any]:
    strategies = {name: as_record(s) for name, s in tuned.choice.strategies.items()}
    choice = {"strategies": strategies, "library": tuned.choice.library}
    return {"choice": choice, "lines": tuned.lines, "facts": tuned.facts}


def _tuned(found: Mapping[str, Any]) -> TuneResult | None:
    """What was found; None where it has a strategy that there is no more."""
    choice, strategies = found["choice"], dict[str, Strategy]()
    for name, record in choice["strategies"].items():
        if not (strategy := from_record(record)):
            return None
        strategies[name] = strategy
    chosen = TuneChoice(strategies, tuple(choice["library"]))
    return TuneResult(chosen, tuple(found["lines"]), dict(found["facts"]))
