"""Where the repository lies, and what tests read of it."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
PACKAGE, EXAMPLES, ZOO = ROOT / "fusewright", ROOT / "examples", ROOT / "zoo"
# Problem files: good ones, ones that are refused, candidates that cheat, and honest candidates.
PROBLEMS, BAD_PROBLEMS = TESTS / "problems", TESTS / "bad_problems"
CHEATS, CONTROLS = TESTS / "cheats", TESTS / "controls"
MODELS, GOLDEN_FOLDER = TESTS / "models", TESTS / "golden"
