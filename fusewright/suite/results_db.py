"""Key -> result, on disk: what a suite has finished, so that a kill loses only what was running.

SQLite in WAL mode; each result is on the disk before the next problem counts as done.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from fusewright.errors import BadUsage

TABLE = "CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, result TEXT NOT NULL)"


class ResultsDb:
    """The results of earlier runs by key; use it as a context, from any thread."""

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, threading.Lock()
        try:
            self._connection = sqlite3.connect(path, timeout=60, check_same_thread=False)
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

    def get(self, key: str) -> dict[str, Any] | None:
        asked = "SELECT result FROM results WHERE key = ?"
        with self._lock:
            row = self._connection.execute(asked, (key,)).fetchone()
        return None if row is None else json.loads(row[0])

    def put(self, key: str, result: Mapping[str, Any]) -> str:
        """Keep a result, in place of an older one; why that was impossible, or ""."""
        text = json.dumps(result)
        try:
            with self._lock, self._connection:
                self._connection.execute(
                    "INSERT OR REPLACE INTO results VALUES (?, ?)", (key, text)
                )
        except sqlite3.Error as error:
            return str(error)
        return ""
