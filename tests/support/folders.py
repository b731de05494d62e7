"""Where the repository lies, and what tests read of it."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
PACKAGE, EXAMPLES, ZOO = ROOT / "fusewright", ROOT / "examples", ROOT / "zoo"
# Problem files: good ones, ones that are refused, candidates that cheat, and honest candidates.
CORPUS = TESTS / "corpus"
PROBLEMS, BAD_PROBLEMS = CORPUS / "problems", CORPUS / "bad_problems"
CHEATS, CONTROLS = CORPUS / "cheats", CORPUS / "controls"
MODELS, GOLDEN_FOLDER = CORPUS / "models", TESTS / "golden"
