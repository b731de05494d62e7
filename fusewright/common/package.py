"""Where the files of this package lie.

By this folder frames of ours are told from a user's, workers are started, and a suite tells one
version of the package from another.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[1]
