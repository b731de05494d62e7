"""Key -> result, on disk: what a suite has finished, so that a kill loses only what was running.

SQLite in WAL mode; each result is on the disk before the next problem counts as done.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from fusewright.errors import BadUsage
from fusewright.report.speed import SpeedRatio
from fusewright.suite.row import SuiteRow

TABLE = "CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, result TEXT NOT NULL)"


class ResultsDb:
    """The results of earlier runs by key; use it as a context, from one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._connection = sqlite3.connect(path, timeout=60)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=FULL")
            with self._connection:
                self._connection.execute(TABLE)
        except sqlite3.Error as error:
            raise BadUsage(
                f"{path}: cannot keep results here: {error}. Choose another folder with --output, "
                "or remove the file if it is not from fusewright."
            ) from error

    def __enter__(self) -> ResultsDb:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._connection.close()

    def get(self, key: str) -> SuiteRow | None:
        found = self._connection.execute("SELECT result FROM results WHERE key = ?", (key,))
        row = found.fetchone()
        return None if row is None else _result(json.loads(row[0]))

    def put(self, key: str, result: SuiteRow) -> str:
        """Keep a result, in place of an older one; why that was impossible, or ""."""
        text = json.dumps(asdict(result))
        try:
            with self._connection:
                self._connection.execute(
                    "INSERT OR REPLACE INTO results VALUES (?, ?)", (key, text)
                )
        except sqlite3.Error as error:
            return str(error)
        return ""


def _result(fields: dict[str, object]) -> SuiteRow:
    ratios, library = fields.pop("ratios"), fields.pop("library_operators")
    assert isinstance(library, list)
    compared = {n: SpeedRatio(**r) for n, r in ratios.items()} if isinstance(ratios, dict) else None
    return SuiteRow(**fields, ratios=compared, library_operators=tuple(library))  # type: ignore[arg-type]
